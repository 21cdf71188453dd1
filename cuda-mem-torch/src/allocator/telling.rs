//! What the caching allocators tell of themselves.

use std::sync::{Arc, Mutex};

use cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_ipc::cuda_mem_pool::caching::{CachingAllocator, OutOfMemoryReport};
use cuda_mem_ipc::cuda_mem_pool::history::{History, HistoryOptions};
use cuda_mem_ipc::cuda_mem_pool::snapshot::{Snapshot, TraceEntry};

use super::caches::Caches;
use crate::error::{OutOfMemory, OutOfMemoryObserver, Result};
use crate::lock::lock;

impl Caches {
    pub(crate) fn snapshot(&self, id: MempoolId) -> Result<Snapshot> {
        let mut all = Snapshot::default();
        for device in self.all()? {
            add(&mut all, device.caching.snapshot());
        }
        if id != MempoolId::NONE {
            all.segments.retain(|segment| segment.segment_pool_id == id);
        }
        Ok(all)
    }

    pub(crate) fn record_history(&self, enabled: bool, options: &HistoryOptions) -> Result<()> {
        let devices = self.all()?;
        let making = lock(&self.making);
        let before = std::mem::replace(&mut *lock(&self.listeners.history), enabled.then(|| options.clone()));
        for device in devices {
            record(&device.caching, enabled.then_some(options));
        }
        drop(making);
        // With the last of it goes a closure of others.
        drop(before);
        Ok(())
    }

    pub(crate) fn attach_out_of_memory_observer(&self, observer: &OutOfMemoryObserver) -> Result<()> {
        let devices = self.all()?;
        let _making = lock(&self.making);
        lock(&self.listeners.observers).push(Arc::clone(observer));
        for device in devices {
            observe(&device.caching, observer);
        }
        Ok(())
    }

    pub(crate) fn attach_allocator_trace_tracker(&self, tracker: &TraceTracker) -> Result<()> {
        let devices = self.all()?;
        let _making = lock(&self.making);
        lock(&self.listeners.trackers).push(Arc::clone(tracker));
        for device in devices {
            attach(device.caching.history(), tracker);
        }
        Ok(())
    }
}

/// Is told of each entry of a history.
pub(crate) type TraceTracker = Arc<dyn Fn(&TraceEntry) + Send + Sync>;

/// Has one tracker be told of the entries of a history more.
pub(crate) fn attach(history: &History, tracker: &TraceTracker) {
    let tracker = Arc::clone(tracker);
    history.attach(move |entry| tracker(entry));
}

/// Who is told, also by devices that are yet to be initialised.
#[derive(Default)]
pub(super) struct Listeners {
    observers: Mutex<Vec<OutOfMemoryObserver>>,
    trackers: Mutex<Vec<TraceTracker>>,
    /// What is recorded, if anything is.
    history: Mutex<Option<HistoryOptions>>,
}

impl Listeners {
    pub(super) fn attach_all(&self, cache: &CachingAllocator) {
        lock(&self.observers).iter().for_each(|observer| observe(cache, observer));
        for tracker in lock(&self.trackers).iter() {
            attach(cache.history(), tracker);
        }
        if let Some(options) = &*lock(&self.history) {
            record(cache, Some(options));
        }
    }
}

fn observe(cache: &CachingAllocator, observer: &OutOfMemoryObserver) {
    let observer = Arc::clone(observer);
    cache.attach_oom_observer(move |report| observer(&report.into()));
}

fn record(cache: &CachingAllocator, options: Option<&HistoryOptions>) {
    match options {
        Some(options) => cache.history().start(options),
        None => cache.history().stop(),
    }
}

/// Adds another device's snapshot. How the allocator is set up is the same everywhere.
pub(crate) fn add(all: &mut Snapshot, one: Snapshot) {
    all.segments.extend(one.segments);
    all.tags.extend(one.tags);
    all.allocator_settings = one.allocator_settings;
    one.device_traces
        .into_iter()
        .enumerate()
        .for_each(|(place, entries)| trace_of(all, place).extend(entries));
}

/// The history of a device, by its number.
pub(crate) fn trace_of(all: &mut Snapshot, place: usize) -> &mut Vec<TraceEntry> {
    let devices = all.device_traces.len().max(place + 1);
    all.device_traces.resize(devices, Vec::new());
    &mut all.device_traces[place]
}

impl From<&OutOfMemoryReport> for OutOfMemory {
    fn from(report: &OutOfMemoryReport) -> Self {
        Self {
            device: report.device,
            requested: report.requested,
            allowed: report.limit.unwrap_or(report.total),
            total: report.total,
            free: report.free,
            allocated: report.live,
        }
    }
}
