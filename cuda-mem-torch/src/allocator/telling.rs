//! What the caching allocators tell of themselves.

use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_ipc::cuda_mem_pool::caching::OutOfMemoryReport;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Device;
use cuda_mem_ipc::cuda_mem_pool::history::{HistoryOptions, TraceTracker};
use cuda_mem_ipc::cuda_mem_pool::snapshot::Snapshot;
use cuda_mem_ipc::cuda_mem_pool::statistics::DeviceStatistics;

use super::caches::Caches;
use super::types::{OutOfMemory, OutOfMemoryObserver};
use crate::error::Result;

impl Caches {
    pub(crate) fn device_stats(&self, device: Device) -> Result<DeviceStatistics> {
        Ok(self.of(device)?.cache.statistics())
    }

    pub(crate) fn reset_accumulated_stats(&self, device: Device) -> Result<()> {
        self.of(device)?.cache.reset_accumulated_statistics();
        Ok(())
    }

    pub(crate) fn reset_peak_stats(&self, device: Device) -> Result<()> {
        self.of(device)?.cache.reset_peak_statistics();
        Ok(())
    }

    pub(crate) fn snapshot(&self, id: MempoolId) -> Result<Snapshot> {
        let mut all = Snapshot::default();
        for device in self.all()? {
            add(&mut all, device.cache.snapshot());
        }
        if id != MempoolId::NONE {
            all.segments.retain(|segment| segment.segment_pool_id == id);
        }
        Ok(all)
    }

    pub(crate) fn record_history(&self, enabled: bool, options: &HistoryOptions) -> Result<()> {
        for device in self.all()? {
            let history = device.cache.history();
            if enabled { history.start(options) } else { history.stop() }
        }
        Ok(())
    }

    pub(crate) fn attach_out_of_memory_observer(&self, observer: &OutOfMemoryObserver) -> Result<()> {
        for device in self.all()? {
            let observer = Arc::clone(observer);
            device.cache.attach_oom_observer(move |report| observer(&report.into()));
        }
        Ok(())
    }

    pub(crate) fn attach_allocator_trace_tracker(&self, tracker: &Arc<dyn TraceTracker>) -> Result<()> {
        for device in self.all()? {
            device.cache.history().attach(Arc::clone(tracker));
        }
        Ok(())
    }
}

/// Adds another device's snapshot. How the allocator is set up is the same everywhere.
fn add(all: &mut Snapshot, one: Snapshot) {
    all.segments.extend(one.segments);
    all.allocator_settings = one.allocator_settings;
    for (place, entries) in one.device_traces.into_iter().enumerate() {
        if all.device_traces.len() <= place {
            all.device_traces.resize_with(place.saturating_add(1), Vec::new);
        }
        if let Some(trace) = all.device_traces.get_mut(place) {
            trace.extend(entries);
        }
    }
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
