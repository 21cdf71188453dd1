//! Addresses without memory, and the memory that is mapped there.
//!
//! # Safety
//!
//! Relies on `cuMemAddressReserve` giving addresses that nobody else has until `cuMemAddressFree`, which is called only when all
//! that was mapped there is unmapped, and on the driver refusing a mapping where there is one (seen on hardware).

#![allow(unsafe_code, reason = "calls driver functions")]

use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_sys::{CUdeviceptr, CUmemAccessDesc_v1};

use super::{Access, MemoryLocation, PhysicalMemory, access_of, expect_granular, granularity};
use crate::driver::{Device, Driver, fork, refuse_forked};
use crate::error::{Error, Refused, Result, WithBytes, call};

/// Addresses of devices that are kept for mappings.
///
/// All methods may be called by several threads at a time. Who has which pages is for the callers to know: only the number of
/// mapped bytes is counted here, so that addresses are never given back under a mapping. The [module](super) has an example.
pub struct AddressRange {
    driver: Driver,
    address: CUdeviceptr,
    bytes: usize,
    granularity: usize,
    mapped: AtomicUsize,
}

impl AddressRange {
    /// Reserves `bytes` addresses for memory of `device`, and of others with its granularity, from a multiple of `alignment`
    /// bytes on; 0 leaves the alignment to the driver.
    ///
    /// Wraps [`cuMemAddressReserve`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). Needs no context. It
    /// costs no memory: 16 TiB are as good as 2 MiB.
    ///
    /// # Errors
    ///
    /// [`Error::NotGranular`] for a size that is 0 or no multiple of the [`granularity`], [`Error::NotAPowerOfTwo`] for an alignment that
    /// is neither 0 nor that; [`Error::Driver`]: code 2 for more than there are.
    pub fn reserve(device: Device, bytes: usize, alignment: usize) -> Result<Self> {
        let driver = device.driver();
        let granularity = granularity(device)?;
        expect_granular(bytes, granularity)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(Error::NotAPowerOfTwo { what: "the alignment", value: alignment });
        }
        let mut address = 0;
        // SAFETY: one address to write; no flags exist.
        unsafe { call!(driver, cuMemAddressReserve(&mut address, bytes, alignment, 0, 0)) }
            .with_bytes(bytes)?;
        Ok(Self { driver, address, bytes, granularity, mapped: AtomicUsize::new(0) })
    }

    /// The driver it belongs to.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Its first address.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// How many addresses there are.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many of them have memory.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.mapped.load(Ordering::Relaxed)
    }

    /// Maps all of `memory` `offset` bytes behind the first address. No device can use it there before
    /// [`AddressRange::set_access`], whatever it may do at other addresses of the same memory.
    ///
    /// Wraps [`cuMemMap`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html), which maps handles as a whole. Not
    /// ordered with work of streams: the memory is there when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::NotGranular`] for the offset, [`Error::OutOfRange`]; [`Error::Driver`]: code 1 if something is mapped there already, 2
    /// beyond the largest number of mappings. Nothing was mapped then.
    pub fn map(&self, offset: usize, memory: &PhysicalMemory) -> Result<()> {
        refuse_forked()?;
        let address = self.place(offset, memory.bytes())?;
        self.driver.expect_same(memory.driver(), "the memory")?;
        // SAFETY: a live handle with all of its bytes, at addresses of this reservation; the driver refuses those that have
        // memory.
        unsafe { call!(self.driver, cuMemMap(address, memory.bytes(), 0, memory.as_raw(), 0)) }
            .with_bytes(memory.bytes())?;
        self.mapped.fetch_add(memory.bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// Says what devices may do at mapped addresses, which are whole mappings side by side. Without devices no call is made.
    ///
    /// Wraps [`cuMemSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html), once for all devices and
    /// mappings. Not ordered with work of streams.
    ///
    /// Work that does what its device may no longer do faults.
    ///
    /// # Errors
    ///
    /// [`Error::NotGranular`], [`Error::OutOfRange`]; [`Error::Driver`]: code 1 if something in the range is not mapped, 101 for a device
    /// that cannot reach the memory.
    pub fn set_access(&self, offset: usize, bytes: usize, devices: &[Device], access: Access) -> Result<()> {
        refuse_forked()?;
        let address = self.place(offset, bytes)?;
        let table = access_of(self.driver, devices, access)?;
        if table.is_empty() {
            return Ok(());
        }
        // SAFETY: as many entries as said, read during the call; addresses of this reservation.
        unsafe { call!(self.driver, cuMemSetAccess(address, bytes, table.as_ptr(), table.len())) }
            .with_bytes(bytes)
    }

    /// Lets the host read and write all of the range, in which memory is mapped that lies on this node of the host.
    pub(crate) fn let_host_in(&self, node: i32) -> Result<()> {
        let location = MemoryLocation::HostNuma(node).as_raw();
        let entry = CUmemAccessDesc_v1 { location, flags: Access::ReadWrite.as_raw() };
        // SAFETY: one entry, read during the call; the addresses of this reservation.
        unsafe { call!(self.driver, cuMemSetAccess(self.address, self.bytes, &entry, 1)) }
    }

    /// Unmaps what is mapped in a range of addresses. Mappings of the same memory at other addresses stay.
    ///
    /// Wraps [`cuMemUnmap`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html), which waits for nothing, neither
    /// on the host nor on a device, and happens at once (seen on hardware).
    ///
    /// # Errors
    ///
    /// [`Error::NotGranular`], [`Error::OutOfRange`]; [`Error::Driver`]: code 1 if a mapping reaches beyond the range. Nothing was unmapped
    /// then.
    ///
    /// # Safety
    ///
    /// The range consists of whole mappings, without a gap. All work that uses these addresses has ended, as the host knows by
    /// a wait or a query, and none that is enqueued later uses them, graphs that captured them included, before something is
    /// mapped there again.
    pub unsafe fn unmap(&self, offset: usize, bytes: usize) -> Result<()> {
        refuse_forked()?;
        let address = self.place(offset, bytes)?;
        // SAFETY: addresses of this reservation, which no work uses, by the caller's promise.
        unsafe { call!(self.driver, cuMemUnmap(address, bytes)) }.with_bytes(bytes)?;
        self.mapped.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the addresses back, and tells whether the driver took them.
    ///
    /// Wraps [`cuMemAddressFree`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). Dropped with something
    /// mapped, a range stays reserved, and the failure is [counted](Driver::release_failures).
    ///
    /// # Errors
    ///
    /// [`Error::StillMapped`]. The range comes back with the error.
    pub fn close(self) -> Result<(), Refused<Self>> {
        Refused::unless_released(self, Self::free)
    }

    /// No thread maps meanwhile: the caller owns the range, or is dropping it.
    fn free(&self) -> Result<()> {
        refuse_forked()?;
        let bytes = self.mapped_bytes();
        if bytes != 0 {
            return Err(Error::StillMapped { bytes });
        }
        // SAFETY: one whole reservation, in which nothing is mapped, freed once: after a success `close` forgets it, a drop repeats only a failure.
        unsafe { call!(self.driver, cuMemAddressFree(self.address, self.bytes)) }.with_bytes(self.bytes)
    }

    /// The address of a range of whole pages.
    fn place(&self, offset: usize, bytes: usize) -> Result<CUdeviceptr> {
        let granularity = self.granularity;
        if !offset.is_multiple_of(granularity) {
            return Err(Error::NotGranular { what: "the offset", value: offset, granularity });
        }
        expect_granular(bytes, granularity)?;
        let end = offset.saturating_add(bytes);
        if end > self.bytes {
            return Err(Error::OutOfRange { range: offset..end, len: self.bytes });
        }
        Ok(self.address + offset as u64)
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        if !fork::forked() {
            self.driver.release(|| self.free());
        }
    }
}

impl_debug!(AddressRange, |it|
    address: format_args!("{:#x}", it.address), bytes: it.bytes, mapped_bytes: it.mapped_bytes()
);
