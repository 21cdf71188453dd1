//! A caching allocator for each device.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use cuda_mem_ipc::cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Context, Device, Driver, Stream, forked};
use cuda_mem_ipc::cuda_mem_pool::{self as pool};

use super::telling::Listeners;
use super::uncached::Uncached;
use crate::error::{Error, Result};
use crate::ipc::{Exports, Opened};
use crate::lock::{read, write};

/// The devices' allocators, and what goes around them.
pub(crate) struct Caches {
    driver: Driver,
    options: CachingOptions,
    devices: RwLock<Vec<Arc<PerDevice>>>,
    enabled: AtomicBool,
    /// Whether blocks that streams used may serve their capture again.
    pub(super) reuse: AtomicBool,
    pub(super) uncached: Uncached,
    pub(super) listeners: Listeners,
    pub(crate) exports: Exports,
    pub(crate) opened: Opened,
}

/// What there is of a device.
#[derive(Debug)]
pub(crate) struct PerDevice {
    pub(crate) context: Context,
    pub(crate) cache: CachingAllocator,
    /// The default stream, once it was asked for.
    default_stream: OnceLock<Stream>,
}

impl Caches {
    pub(super) fn new(driver: Driver, options: CachingOptions) -> Self {
        Self {
            driver,
            options,
            devices: RwLock::default(),
            enabled: AtomicBool::new(true),
            reuse: AtomicBool::new(false),
            uncached: Uncached::default(),
            listeners: Listeners::default(),
            exports: Exports::default(),
            opened: Opened::new(),
        }
    }

    pub(crate) fn init(&self, device_count: usize) -> Result<()> {
        refuse_forked()?;
        let mut devices = write(&self.devices);
        for ordinal in devices.len()..device_count {
            let context = self.driver.device(ordinal)?.primary_context()?;
            let cache = CachingAllocator::new(&context, &self.options)?;
            self.apply_reuse(&cache)?;
            self.listeners.attach_all(&cache);
            devices.push(Arc::new(PerDevice { context, cache, default_stream: OnceLock::new() }));
        }
        Ok(())
    }

    pub(crate) fn initialized(&self) -> bool {
        !forked() && !read(&self.devices).is_empty()
    }

    /// What there is of a device.
    pub(crate) fn of(&self, device: Device) -> Result<Arc<PerDevice>> {
        refuse_forked()?;
        if device.driver() != self.driver {
            return Err(core::Error::ForeignContext { what: "the device" }.into());
        }
        let devices = read(&self.devices);
        let found = usize::try_from(device.as_raw()).ok().and_then(|ordinal| devices.get(ordinal));
        found.cloned().ok_or(Error::NotInitialized { device, count: devices.len() })
    }

    /// All devices that are initialised.
    pub(crate) fn all(&self) -> Result<Vec<Arc<PerDevice>>> {
        refuse_forked()?;
        Ok(read(&self.devices).clone())
    }

    /// The current device and its default stream.
    pub(crate) fn current(&self) -> Result<(Device, Stream)> {
        let device = self.current_device()?;
        Ok((device, self.of(device)?.default_stream()?))
    }

    pub(crate) fn current_device(&self) -> Result<Device> {
        let device = self.driver.current_device()?;
        device.ok_or_else(|| pool::Error::NoCurrentContext { what: "the allocator" }.into())
    }

    pub(super) fn enable(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::Relaxed);
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }
}

impl PerDevice {
    fn default_stream(&self) -> Result<Stream> {
        if let Some(stream) = self.default_stream.get() {
            return Ok(stream.clone());
        }
        let stream = Stream::legacy(&self.context)?;
        Ok(self.default_stream.get_or_init(|| stream).clone())
    }
}

/// Before any lock, which a thread of the parent may have held.
pub(crate) fn refuse_forked() -> Result<()> {
    if forked() { Err(core::Error::Forked.into()) } else { Ok(()) }
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caches")
            .field("driver", &self.driver)
            .field("enabled", &self.is_enabled())
            .finish_non_exhaustive()
    }
}
