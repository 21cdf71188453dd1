//! Imported memory at an address.
//!
//! # Safety
//!
//! Relies on a mapping keeping its memory when the handle is released, and on every use of it being in its [`Uses`]: work that is
//! put into a stream without [`ImportedMapping::on`] is its author's `unsafe` responsibility.

#![allow(unsafe_code, reason = "unmaps memory")]

use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use crate::buffer::{Borrowed, used_memory};
use crate::driver::deferred::{Guards, Held, Owned, Release};
use crate::driver::{Device, Driver, LateReports, lock, refuse_forked};
use crate::error::{Error, Refused, Result, expect_lost};
use crate::uses::Uses;
use crate::vmm::{Access, AddressRange, PhysicalMemory};

/// Memory of another process's `cuMemCreate`, mapped as a whole. It stays when that process is gone. Memory of this process can be
/// had in the same way ([`ImportedMapping::reserve`] and [`wake`](ImportedMapping::wake)).
///
/// Dropped, it waits for the device uses that it knows of, and is unmapped once.
///
/// ```
/// use std::os::fd::AsFd;
///
/// use cuda_mem_core::ipc::ImportedMapping;
/// use cuda_mem_core::vmm::{self, CreateOptions, ShareableMemory};
/// use cuda_mem_core::{Driver, Stream};
///
/// let device = Driver::over(cuda_mem_sim::table())?.device(0)?; // in a program: Driver::system()?
/// let page = vmm::granularity(device)?;
/// let memory = ShareableMemory::create(device, page, &CreateOptions::supported_by(device)?)?;
/// let descriptor = memory.export_posix_fd()?;
///
/// // In the other process, which received the descriptor and the size (here the same one).
/// let theirs = ImportedMapping::import_posix_fd(device, descriptor.as_fd(), page, &[device])?;
/// let stream = Stream::new(&device.primary_context()?)?;
/// let address = theirs.on(&stream)?.address(); // for a kernel
/// assert_eq!(address, theirs.as_raw());
///
/// stream.synchronize()?;
/// // SAFETY: the stream was waited for, and nothing uses the address before there is memory again.
/// unsafe { theirs.sleep() }?;
/// theirs.wake_posix_fd(descriptor.as_fd(), &[device])?; // the same memory, or other memory of its size
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug)]
pub struct ImportedMapping {
    /// Taken out when the mapping is closed or dropped.
    mapped: Owned<Mapped>,
}

/// What there is to unmap.
#[derive(Debug)]
struct Mapped {
    /// None once the addresses are given back.
    range: Option<AddressRange>,
    device: Device,
    uses: Uses,
    guards: Guards,
    /// Released after the unmapping, when nobody waits for it. Locked while it is mapped or unmapped.
    handles: Mutex<Vec<PhysicalMemory>>,
}

impl ImportedMapping {
    /// Maps the memory behind a descriptor, which its sender said has `bytes` bytes of `device`, for some devices to read and
    /// write.
    ///
    /// Both are checked, as by [`PhysicalMemory::import_posix_fd`]. The descriptor stays the caller's and may be closed
    /// afterwards.
    ///
    /// Wraps [`cuMemImportFromShareableHandle`, `cuMemGetAllocationPropertiesFromHandle`, `cuMemMap` and
    /// `cuMemSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). Needs no context.
    ///
    /// # Errors
    ///
    /// [`Error::NotWhole`], [`Error::NotAsDeclared`], [`Error::NotGranular`]; [`Error::Driver`]: code 999 if the descriptor is no memory,
    /// 101 for a device that cannot reach it. Nothing is mapped then.
    pub fn import_posix_fd(
        device: Device,
        descriptor: BorrowedFd<'_>,
        bytes: usize,
        devices: &[Device],
    ) -> Result<Self> {
        Self::import_posix_fds(device, &[(descriptor, bytes)], devices)
    }

    /// As [`ImportedMapping::import_posix_fd`], for memory of several handles with their sizes, which are mapped side by side in
    /// this order. Errors: as there; [`Error::NotGranular`] without handles, [`Error::TooLarge`].
    pub fn import_posix_fds(
        device: Device,
        parts: &[(BorrowedFd<'_>, usize)],
        devices: &[Device],
    ) -> Result<Self> {
        let total = parts.iter().try_fold(0usize, |sum, (_, bytes)| sum.checked_add(*bytes));
        let total = total.ok_or(Error::TooLarge { count: usize::MAX, size: 1 })?;
        // SAFETY: it is returned only with all of its memory mapped; after an error it is dropped here, which unmaps the rest.
        let mapping = unsafe { Self::reserve(device, total) }?;
        for &(descriptor, bytes) in parts {
            mapping.wake(PhysicalMemory::import_unchecked(device, None, descriptor, bytes)?, devices)?;
        }
        Ok(mapping)
    }

    /// As [`ImportedMapping::import_posix_fd`], for memory that lies on a [node](crate::vmm::CreateOptions::node) of the host. One device may
    /// use it, and the host: the driver may have a processor do copies between two places of the host's memory. Errors: as there.
    pub fn import_posix_fd_of_node(
        device: Device,
        node: i32,
        descriptor: BorrowedFd<'_>,
        bytes: usize,
    ) -> Result<Self> {
        // SAFETY: it is returned only with all of its memory mapped; after an error it is dropped here, which unmaps the rest.
        let mapping = unsafe { Self::reserve(device, bytes) }?;
        mapping.wake(PhysicalMemory::import_unchecked(device, Some(node), descriptor, bytes)?, &[device])?;
        mapping.mapped.range.as_ref().map_or(Ok(()), |range| range.let_host_in(node))?;
        Ok(mapping)
    }

    /// Addresses for `bytes` bytes of a device, without memory. Errors: as [`AddressRange::reserve`].
    ///
    /// # Safety
    ///
    /// Nothing uses them, no range of this value either, before [`wake`](Self::wake) has given memory to all of them.
    pub unsafe fn reserve(device: Device, bytes: usize) -> Result<Self> {
        device.driver().reclaim();
        let range = AddressRange::reserve(device, bytes, 0)?;
        let (range, uses, guards, handles) = (Some(range), Uses::new(), Guards::default(), Mutex::default());
        Ok(Self { mapped: Owned::new(Mapped { range, device, uses, guards, handles }) })
    }

    /// Unmaps the memory, behind the device uses that it knows of, and releases it. The addresses stay.
    ///
    /// Wraps [`cuMemUnmap` and `cuMemRelease`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). After an error nothing
    /// was unmapped; a handle that the driver does not release is [counted](Driver::release_failures).
    ///
    /// # Safety
    ///
    /// As for [`AddressRange::unmap`], of all its addresses, and from then on as for [`ImportedMapping::reserve`].
    pub unsafe fn sleep(&self) -> Result<()> {
        refuse_forked()?;
        let _reports = LateReports::new();
        let mut handles = lock(&self.mapped.handles);
        self.mapped.uses.wait()?;
        if let Some(range) = self.mapped.range.as_ref().filter(|range| range.mapped_bytes() > 0) {
            // SAFETY: the mappings of these addresses, side by side from the first on; the caller's promise.
            range.driver().attempt(|| unsafe { range.unmap(0, range.mapped_bytes()) })?;
        }
        let gone = std::mem::take(&mut *handles);
        drop(handles);
        // Outside the lock: of one that the driver does not release the program's hook is told, which may wake this.
        drop(gone);
        Ok(())
    }

    /// Maps memory of this process at the first addresses that have none; once all have some, lets devices read and write it. It is
    /// released with the mapping. After an error [`sleep`](Self::sleep) takes away what may be mapped.
    ///
    /// Wraps [`cuMemMap` and `cuMemSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html).
    /// Errors: [`Error::NotWhole`], and as [`AddressRange::map`] and [`set_access`](AddressRange::set_access).
    pub fn wake(&self, memory: PhysicalMemory, devices: &[Device]) -> Result<()> {
        let mut handles = lock(&self.mapped.handles);
        if let Some(range) = &self.mapped.range {
            memory.map_whole(range, range.mapped_bytes())?;
        }
        handles.push(memory);
        if self.is_awake() { self.allow(devices) } else { Ok(()) }
    }

    /// As [`ImportedMapping::wake`], with the memory behind a descriptor: [`ImportedMapping::import_posix_fd`] has the errors.
    pub fn wake_posix_fd(&self, descriptor: BorrowedFd<'_>, devices: &[Device]) -> Result<()> {
        self.wake(PhysicalMemory::import_unchecked(self.device(), None, descriptor, self.bytes())?, devices)
    }

    /// Whether all of its addresses have memory.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        self.mapped.range.as_ref().is_some_and(|range| range.mapped_bytes() == range.bytes())
    }

    /// The device that the memory lies on, or that it was mapped for.
    #[must_use]
    pub fn device(&self) -> Device {
        self.mapped.device
    }

    /// Lets more devices read and write the memory.
    ///
    /// Wraps [`cuMemSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). Needs no context.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 101 for a device that cannot reach it.
    pub fn allow(&self, devices: &[Device]) -> Result<()> {
        // There is one until the mapping is closed.
        let range = self.mapped.range.as_ref();
        range.map_or(Ok(()), |range| range.set_access(0, range.bytes(), devices, Access::ReadWrite))
    }

    /// Takes over the uses of a part of the memory, whose own owner is gone: the release waits for them too.
    pub fn absorb_uses(&self, uses: Uses) {
        self.mapped.uses.absorb(uses);
    }

    /// Whether no use of the memory runs any more that it knows of, so that its end waits for none: [`Uses::have_passed`].
    /// Errors: as there.
    pub fn have_uses_passed(&mut self) -> Result<bool> {
        self.mapped.uses.have_passed()
    }

    /// Has `guard` dropped once the memory is unmapped, which may be after this value's own end: a stream that captures is
    /// waited for later. If the driver refuses to unmap it, `guard` is never dropped, unless the context that used it is lost: then nobody
    /// uses it any more.
    pub fn drop_after_unmap(&mut self, guard: impl Send + Sync + 'static) {
        self.mapped.guards.add(guard);
    }

    /// Unmaps the memory, and tells whether the driver did. Waits for the device uses that it knows of.
    ///
    /// Wraps [`cuMemUnmap` and `cuMemAddressFree`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html).
    ///
    /// # Errors
    ///
    /// The mapping comes back with the error.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        self.mapped.release(true).map_err(|error| Refused::new(error, self))
    }
}

used_memory!(
    ImportedMapping,
    |this| this.mapped.range.as_ref().map_or(0, AddressRange::address),
    this.mapped.range.as_ref().map_or(0, AddressRange::bytes),
    Borrowed { uses: &this.mapped.uses, driver: this.device().driver(), context: None, behind: None }
);

impl Held for Mapped {
    fn driver(&self) -> Driver {
        self.device.driver()
    }

    fn is_released(&self) -> bool {
        self.range.is_none()
    }
}

impl Release for Mapped {
    fn release(&mut self, waits: bool) -> Result<()> {
        refuse_forked()?;
        let Some(range) = &self.range else { return Ok(()) };
        self.uses.settle(waits)?;
        let mapped = range.mapped_bytes();
        // SAFETY: the mappings of these addresses, side by side from the first on, of which no use runs any more.
        let unmap = || unsafe { range.unmap(0, mapped) };
        if let Err(error) = if mapped > 0 { unmap() } else { Ok(()) } {
            expect_lost(error)?;
            // The code may be that of earlier work. Nobody uses the memory any more, mapped or not: what waits for that goes on, and the
            // addresses stay reserved, which is counted.
            self.range = None;
        }
        // A refusal is counted.
        lock(&self.handles).clear();
        if let Some(range) = self.range.take()
            && let Err(refused) = range.close()
        {
            self.range = Some(refused.owner);
            return Err(refused.error);
        }
        Ok(())
    }
}
