//! The caching allocators of devices, found without a lock and without a count: a free asks here first.

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use cuda_mem_ipc::cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Context, Stream};
use cuda_mem_ipc::cuda_mem_pool::{Error, Result};

use crate::ipc::Exports;

/// As many devices as PyTorch can tell apart, and more than a host has.
pub(crate) const MOST: usize = 64;

const NONE: i32 = -1;
const SEVERAL: i32 = -2;

/// What there is of a device. A context takes memory of the device.
#[derive(Debug)]
pub(crate) struct PerDevice {
    pub(crate) ordinal: i32,
    pub(crate) context: Context,
    pub(crate) caching: CachingAllocator,
    /// What of it other processes were told of.
    pub(crate) exports: Exports,
    /// The default stream, once it was asked for.
    default_stream: OnceLock<Stream>,
}

/// Devices by their numbers. Each is made once and stays where it is.
pub(crate) struct Devices {
    made: [OnceLock<PerDevice>; MOST],
    /// The one that there is, as long as it is alone.
    only: AtomicI32,
}

thread_local! {
    /// Where the thread found the last block that it asked for, of several devices: where it looks first.
    static LAST: Cell<i32> = const { Cell::new(0) };
}

impl PerDevice {
    pub(crate) fn new(context: Context, options: &CachingOptions) -> Result<Self> {
        let caching = CachingAllocator::new(&context, options)?;
        let ordinal = context.device().as_raw();
        Ok(Self { ordinal, context, caching, exports: Exports::default(), default_stream: OnceLock::new() })
    }

    pub(crate) fn default_stream(&self) -> core::Result<Stream> {
        if let Some(stream) = self.default_stream.get() {
            return Ok(stream.clone());
        }
        let stream = Stream::legacy(&self.context)?;
        Ok(self.default_stream.get_or_init(|| stream).clone())
    }
}

impl Devices {
    pub(crate) const fn new() -> Self {
        Self { made: [const { OnceLock::new() }; MOST], only: AtomicI32::new(NONE) }
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

    /// Adds a device, if it is not there, before anybody can have memory of it; none for a number that is too high. Callers take turns.
    pub(crate) fn add(&self, device: PerDevice) -> Option<&PerDevice> {
        let place = self.made.get(usize::try_from(device.ordinal).ok()?)?;
        let only = if self.only.load(Ordering::Relaxed) == NONE { device.ordinal } else { SEVERAL };
        self.only.store(only, Ordering::Relaxed);
        Some(place.get_or_init(|| device))
    }

    /// Asks the devices' allocators about an address, until one knows it.
    #[inline]
    pub(crate) fn search<'d, R>(
        &'d self,
        mut ask: impl FnMut(&'d PerDevice) -> Result<R>,
    ) -> Result<Option<R>> {
        // Most programs have one for each process.
        match self.get(self.only.load(Ordering::Relaxed)) {
            Some(device) => answered(ask(device)),
            None => self.search_all(ask),
        }
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

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}
