//! A caching allocator for each device.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_mem_ipc::cuda_mem_pool::caching::CachingOptions;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Device, Driver, Stream, forked};
use cuda_mem_ipc::cuda_mem_pool::{self as pool};

use super::telling::Listeners;
use crate::devices::{Devices, MOST, PerDevice};
use crate::error::{Error, Result};
use crate::ipc::Opened;
use crate::lock::lock;
use crate::uncached::Uncached;

/// The devices' allocators, and what goes around them.
pub(crate) struct Caches {
    pub(crate) driver: Driver,
    options: CachingOptions,
    devices: Devices,
    /// Held while devices are made, and while what holds for all of them changes.
    pub(super) making: Mutex<()>,
    enabled: AtomicBool,
    /// Whether blocks that streams used may serve their capture again.
    pub(super) reuse: AtomicBool,
    /// Their allocations know themselves what uses them.
    pub(super) uncached: Uncached<()>,
    pub(super) listeners: Listeners,
    pub(crate) opened: Opened,
}

impl Caches {
    pub(super) fn new(driver: Driver, options: CachingOptions) -> Self {
        Self {
            driver,
            options,
            devices: Devices::new(),
            making: Mutex::new(()),
            enabled: AtomicBool::new(true),
            reuse: AtomicBool::new(false),
            uncached: Uncached::new(),
            listeners: Listeners::default(),
            opened: Opened::new(),
        }
    }

    pub(crate) fn init(&self, device_count: usize) -> Result<()> {
        refuse_forked()?;
        // The program's hook may call this.
        let _reports = core::LateReports::new();
        let _making = lock(&self.making);
        for number in self.devices.all().count()..device_count {
            let context = self.driver.device(number)?.primary_context()?;
            let device = PerDevice::new(context, &self.options)?;
            self.apply_reuse(&device.caching)?;
            self.listeners.attach_all(&device.caching);
            self.devices.add(device).ok_or(Error::TooManyDevices { asked: device_count, most: MOST })?;
        }
        Ok(())
    }

    pub(crate) fn initialized(&self) -> bool {
        !forked() && self.devices.get(0).is_some()
    }

    /// What there is of a device.
    #[inline]
    pub(crate) fn of(&self, device: Device) -> Result<&PerDevice> {
        refuse_forked()?;
        self.driver.expect_same(device.driver(), "the device")?;
        let count = || self.devices.all().count();
        self.devices.get(device.as_raw()).ok_or_else(|| Error::NotInitialized { device, count: count() })
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

    pub(super) fn enable(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::Relaxed);
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }
}

/// Before any lock, which a thread of the parent may have held.
pub(crate) fn refuse_forked() -> Result<()> {
    if forked() { Err(core::Error::Forked.into()) } else { Ok(()) }
}

crate::shown!(Caches, |it| driver: it.driver, enabled: it.is_enabled());
