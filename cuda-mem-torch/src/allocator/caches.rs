//! A caching allocator for each device.

use std::sync::atomic::{AtomicBool, Ordering};

use cuda_mem_ipc::Imports;
use cuda_mem_ipc::cuda_mem_pool::caching::CachingOptions;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::DeviceAllocation;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Device, Driver, Stream, forked};
use cuda_mem_ipc::cuda_mem_pool::{self as pool};

use crate::devices::{Devices, PerDevice};
use crate::error::{Error, Result};
use crate::ipc::Memory;
use crate::uncached::Uncached;

/// The devices' allocators, and what goes around them.
pub(crate) struct Caches {
    pub(crate) driver: Driver,
    pub(crate) devices: Devices,
    /// Whether devices are made when they are first used, and need no `init`.
    is_lazy: bool,
    pub(super) enabled: AtomicBool,
    /// Their allocations know themselves what uses them.
    pub(super) uncached: Uncached<DeviceAllocation>,
    pub(crate) opened: Imports<Memory>,
}

impl Caches {
    pub(super) fn new(driver: Driver, options: CachingOptions, is_lazy: bool) -> Self {
        let devices = Devices::new();
        devices.set_up(|setup| setup.options = options);
        let (uncached, opened) = (Uncached::new(), Imports::new());
        Self { driver, devices, is_lazy, enabled: AtomicBool::new(true), uncached, opened }
    }

    /// What there is of a device.
    #[inline]
    pub(crate) fn of(&self, device: Device) -> Result<&PerDevice> {
        refuse_forked()?;
        self.driver.expect_same(device.driver(), "the device")?;
        self.devices.get(device.as_raw()).map_or_else(|| self.new_device(device), Ok)
    }

    #[cold]
    fn new_device(&self, device: Device) -> Result<&PerDevice> {
        if !self.is_lazy {
            return Err(Error::NotInitialized { device, count: self.devices.all().count() });
        }
        self.devices.make(self.driver, usize::try_from(device.as_raw()).unwrap_or(usize::MAX))
    }

    /// All devices that are initialised.
    pub(crate) fn all(&self) -> Result<impl Iterator<Item = &PerDevice>> {
        refuse_forked()?;
        Ok(self.devices.all())
    }

    /// Asks each device's allocator about an address, until one knows it.
    #[inline]
    pub(crate) fn find<R>(&self, ask: impl FnMut(&PerDevice) -> pool::Result<R>) -> Result<Option<R>> {
        refuse_forked()?;
        Ok(self.devices.search(ask)?)
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

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }
}

/// Before any lock, which a thread of the parent may have held.
pub(crate) fn refuse_forked() -> Result<()> {
    if forked() { Err(core::Error::Forked.into()) } else { Ok(()) }
}

crate::impl_debug!(Caches, |it| driver: it.driver, enabled: it.is_enabled());
