//! The caching allocators of devices, and what is set up for all of them. They are found without a lock and without a count: a free asks here
//! first.
//!
//! # Safety
//!
//! What was promised of captures when blocks were let serve them again holds for each device.

#![allow(unsafe_code, reason = "lets blocks serve their capture again")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, OnceLock};

use cuda_mem_ipc::cuda_mem_pool::caching::{CachingAllocator, CachingOptions, CallbackId};
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Context, Driver, Stream};
use cuda_mem_ipc::cuda_mem_pool::history::HistoryOptions;
use cuda_mem_ipc::cuda_mem_pool::snapshot::Snapshot;
use cuda_mem_ipc::cuda_mem_pool::{Error, Result};

use crate::ipc;
use crate::lock::lock;

/// As many devices as PyTorch can tell apart, and more than a host has.
pub(crate) const MOST: usize = 64;

const NONE: i32 = -1;

/// What there is of a device. A context takes memory of the device.
#[derive(Debug)]
pub(crate) struct PerDevice {
    pub(crate) ordinal: i32,
    pub(crate) context: Context,
    pub(crate) caching: CachingAllocator,
    /// The default stream, and one that nobody else puts work into, once they were asked for.
    default_stream: OnceLock<Stream>,
    own_stream: OnceLock<Stream>,
}

/// Devices by their numbers. Each is made once and stays where it is.
pub(crate) struct Devices {
    made: [OnceLock<PerDevice>; MOST],
    /// The one that there is, as long as it is alone.
    only: AtomicI32,
    /// Whether history is recorded, told without a lock: trackers may ask, while others wait for them.
    records: AtomicBool,
    /// Held while a device is made, and while what holds for all of them changes.
    setup: Mutex<Option<Setup>>,
}

/// What holds for every device, also those that are made later.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) options: CachingOptions,
    /// By devices' numbers, of those for which it was set.
    fractions: BTreeMap<usize, f64>,
    /// Whether blocks that streams used may serve their capture again.
    reuse: bool,
    /// Whether the default pool does not grow by pages, which may move once they are free.
    pub(crate) is_fixed: bool,
    /// What is recorded, if anything is.
    history: Option<HistoryOptions>,
    /// By their numbers, in their order.
    listeners: BTreeMap<u64, Listener>,
    /// How many listeners there were.
    numbers: u64,
}

/// A function of the program.
struct Listener {
    attach: Box<dyn Fn(&PerDevice) -> CallbackId + Send + Sync>,
    /// To which devices' allocators, under which id.
    attached: Vec<(i32, CallbackId)>,
}

thread_local! {
    /// Where the thread found the last block that it asked for, of several devices: where it looks first.
    static LAST: Cell<i32> = const { Cell::new(0) };
}

impl Setup {
    /// The share of a device's memory that may be held.
    pub(crate) fn fraction(&self, number: usize) -> f64 {
        self.fractions.get(&number).copied().unwrap_or(self.options.memory_fraction)
    }

    fn make(&mut self, context: Context, number: usize) -> Result<PerDevice> {
        let options = self.options.with_memory_fraction(self.fraction(number));
        let caching = CachingAllocator::new(&context, &options)?;
        let ordinal = context.device().as_raw();
        caching.attach_backing_watcher(ipc::close);
        let [default_stream, own_stream] = [const { OnceLock::new() }; 2];
        let device = PerDevice { ordinal, context, caching, default_stream, own_stream };
        // SAFETY: the promise of the caller that set `reuse`.
        unsafe { device.caching.set_graph_capture_record_stream_reuse(self.reuse) }?;
        device.caching.set_expandable_segments(!self.is_fixed)?;
        if let Some(options) = &self.history {
            device.caching.history().start(options);
        }
        for listener in self.listeners.values_mut() {
            listener.attached.push((ordinal, (listener.attach)(&device)));
        }
        Ok(device)
    }
}

impl PerDevice {
    /// The largest free block, in bytes, or `room` if that is more; a `room` of 0 stands for what the device has free.
    pub(crate) fn largest(&self, room: usize) -> Result<usize> {
        let room = if room == 0 { self.context.memory_info()?.free } else { room };
        Ok(room.max(self.caching.largest_free_block()?))
    }

    pub(crate) fn default_stream(&self) -> core::Result<Stream> {
        kept(&self.default_stream, || Stream::legacy(&self.context))
    }

    /// A stream that no program captures.
    pub(crate) fn own_stream(&self) -> core::Result<Stream> {
        kept(&self.own_stream, || Stream::new(&self.context))
    }
}

fn kept(place: &OnceLock<Stream>, make: impl FnOnce() -> core::Result<Stream>) -> core::Result<Stream> {
    let stream = place.get().cloned().map_or_else(make, Ok)?;
    Ok(place.get_or_init(|| stream).clone())
}

impl Devices {
    pub(crate) const fn new() -> Self {
        let made = [const { OnceLock::new() }; MOST];
        let records = AtomicBool::new(false);
        Self { made, only: AtomicI32::new(NONE), records, setup: Mutex::new(None) }
    }

    /// What there is of a device that was made.
    #[inline]
    pub(crate) fn get(&self, ordinal: i32) -> Option<&PerDevice> {
        self.made.get(usize::try_from(ordinal).ok()?)?.get()
    }

    /// All that were made.
    pub(crate) fn all(&self) -> impl Iterator<Item = &PerDevice> {
        self.made.iter().filter_map(OnceLock::get)
    }

    /// The device with this number, made if need be.
    pub(crate) fn make<E: From<core::Error> + From<Error>>(
        &self,
        driver: Driver,
        number: usize,
    ) -> Result<&PerDevice, E> {
        let none = core::Error::NoSuchDevice { ordinal: number, count: MOST };
        let place = self.made.get(number).ok_or(none)?;
        // The program's hook may call this.
        let _reports = core::LateReports::new();
        let mut setup = lock(&self.setup);
        if let Some(made) = place.get() {
            return Ok(made);
        }
        let context = driver.device(number)?.primary_context()?;
        let device = setup.get_or_insert_default().make(context, number)?;
        let only = if self.all().next().is_none() { device.ordinal } else { NONE };
        self.only.store(only, Ordering::Relaxed);
        Ok(place.get_or_init(|| device))
    }

    /// Changes what holds for every device; none is made meanwhile.
    pub(crate) fn set_up<R>(&self, change: impl FnOnce(&mut Setup) -> R) -> R {
        change(lock(&self.setup).get_or_insert_default())
    }

    /// Sets the share of a device's memory that may be held, now or once it is made.
    pub(crate) fn set_memory_fraction(&self, number: usize, fraction: f64) -> Result<()> {
        self.set_up(|setup| {
            setup.fractions.insert(number, fraction);
            let made = self.made[number].get();
            made.map_or(Ok(()), |device| device.caching.set_memory_fraction(fraction))
        })
    }

    /// Lets blocks that streams used serve their capture again, or not.
    ///
    /// # Safety
    ///
    /// As [`CachingAllocator::set_graph_capture_record_stream_reuse`].
    pub(crate) unsafe fn set_reuse(&self, reuse: bool) -> Result<()> {
        self.set_up(|setup| {
            setup.reuse = reuse;
            // SAFETY: the caller's promise.
            self.all()
                .try_for_each(|device| unsafe { device.caching.set_graph_capture_record_stream_reuse(reuse) })
        })
    }

    /// Records what happens on all devices from now on; without options, no more.
    pub(crate) fn record_history(&self, options: Option<&HistoryOptions>) {
        // Dropped after the unlock: the program's closure may go with it.
        let _before = self.set_up(|setup| {
            for history in self.all().map(|device| device.caching.history()) {
                options.map_or_else(|| history.stop(), |options| history.start(options));
            }
            self.records.store(options.is_some(), Ordering::Relaxed);
            std::mem::replace(&mut setup.history, options.cloned())
        });
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.records.load(Ordering::Relaxed)
    }

    /// Attaches a function to all devices; gives its number, by which it may be detached.
    pub(crate) fn attach(&self, attach: impl Fn(&PerDevice) -> CallbackId + Send + Sync + 'static) -> u64 {
        self.set_up(|setup| {
            let attached = self.all().map(|device| (device.ordinal, attach(device))).collect();
            setup.numbers += 1;
            setup.listeners.insert(setup.numbers, Listener { attach: Box::new(attach), attached });
            setup.numbers
        })
    }

    /// Detaches the function with this number from all devices; false if there is none.
    pub(crate) fn detach(&self, number: u64) -> bool {
        let gone = self.set_up(|setup| setup.listeners.remove(&number));
        for (ordinal, id) in gone.iter().flat_map(|listener| &listener.attached) {
            self.get(*ordinal).map(|device| device.caching.detach(*id));
        }
        gone.is_some()
    }

    /// The number of the function that is called so where it was attached.
    pub(crate) fn number_of(&self, id: CallbackId) -> Option<u64> {
        let has = |listener: &Listener| listener.attached.iter().any(|(_, known)| *known == id);
        self.set_up(|setup| {
            setup.listeners.iter().find(|(_, listener)| has(listener)).map(|(number, _)| *number)
        })
    }

    /// All memory and all blocks of all devices, and their history. How the allocators are set up is the same everywhere.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut all = Snapshot::default();
        for one in self.all().map(|device| device.caching.snapshot()) {
            all.segments.extend(one.segments);
            all.tags.extend(one.tags);
            all.allocator_settings = one.allocator_settings;
            let devices = all.device_traces.len().max(one.device_traces.len());
            all.device_traces.resize(devices, Vec::new());
            for (entries, more) in all.device_traces.iter_mut().zip(one.device_traces) {
                entries.extend(more);
            }
        }
        all
    }

    /// Asks the devices' allocators about an address, until one knows it.
    #[inline]
    pub(crate) fn search<'d, R>(
        &'d self,
        mut ask: impl FnMut(&'d PerDevice) -> Result<R>,
    ) -> Result<Option<R>> {
        match self.only() {
            Some(device) => answered(ask(device)),
            None => self.search_all(ask),
        }
    }

    /// The device, where there is one alone: most programs have one for each process.
    #[inline]
    pub(crate) fn only(&self) -> Option<&PerDevice> {
        self.get(self.only.load(Ordering::Relaxed))
    }

    fn search_all<'d, R>(&'d self, mut ask: impl FnMut(&'d PerDevice) -> Result<R>) -> Result<Option<R>> {
        let last = LAST.try_with(Cell::get).unwrap_or(0);
        let others = self.all().filter(|device| device.ordinal != last);
        for device in self.get(last).into_iter().chain(others) {
            if let Some(found) = answered(ask(device))? {
                let _ = LAST.try_with(|last| last.set(device.ordinal));
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

#[inline]
fn answered<R>(answer: Result<R>) -> Result<Option<R>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Error::UnknownAddress { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
