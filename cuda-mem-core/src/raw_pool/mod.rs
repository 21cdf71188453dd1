//! The driver's memory pools, one function a call: what the pool crate builds its resources on.
//!
//! # Safety
//!
//! Relies on `cuMemPoolDestroy` leaving the allocations that are still out intact, as its documentation states (and hardware
//! does), so a pool may be dropped before what came from it; of an imported pool the driver refuses it (seen on hardware).

#![allow(unsafe_code, reason = "calls driver functions")]

mod attributes;
mod block;
mod owned;
mod share;

use std::ptr;

use cuda_mem_sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAllocationHandleType, CUmemPoolHandle_st, CUmemPoolProps_v1,
    CUmemoryPool,
};

use crate::driver::{Device, Driver, Handle, Relaxed, fork, refuse_forked};
use crate::error::{Error, Refused, Result, WithBytes, call};
use crate::stream::Stream;
use crate::vmm::{Access, access_of};

pub use crate::buffer::free;
pub use crate::vmm::{AllocationType, MemoryLocation};
pub use attributes::PoolAttributes;
pub use block::{ImportedBlock, PoolBlock};
pub use share::PointerExport;

/// How a pool is made. There is no default: a pool lies somewhere. [`MemoryPool`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolProperties {
    /// The kind of its memory.
    pub allocation_type: AllocationType,
    /// Where its memory lies.
    pub location: MemoryLocation,
    /// Whether other processes may be given the pool, as a POSIX file descriptor. Pools on [`MemoryLocation::Host`] cannot be.
    pub shareable: bool,
    /// The most bytes it may reserve, which the driver rounds up; 0 for what the system has.
    pub max_size: usize,
}

/// A memory pool of the driver.
///
/// ```
/// use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolProperties};
/// use cuda_mem_core::{Driver, Stream};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let stream = Stream::new(&driver.device(0)?.primary_context()?)?;
/// let properties = PoolProperties {
///     allocation_type: AllocationType::Pinned,
///     location: MemoryLocation::Device(0),
///     shareable: false,
///     max_size: 0,
/// };
/// let pool = MemoryPool::create(driver, &properties)?;
/// let address = pool.allocate(1 << 20, &stream)?;
/// assert_eq!(pool.attributes()?.used_mem_current, 1 << 20);
/// // SAFETY: from a pool, not used, freed once.
/// unsafe { cuda_mem_core::raw_pool::free(address, &stream)? };
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
pub struct MemoryPool {
    driver: Driver,
    raw: Handle<CUmemPoolHandle_st>,
    part: Part,
}

/// What a value has to do with the end of its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// It made or imported the pool: the last of these destroys it.
    Owner,
    /// It was given a pool that a program made here and may let go: as long as this value lives, so does the pool.
    Guest,
    /// The pool is the driver's, or another library's that keeps it.
    None,
}

impl MemoryPool {
    /// A new pool.
    ///
    /// Wraps [`cuMemPoolCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html). Needs no
    /// context.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 1 for a location or kind that the driver has no pools of, or none to share, 2 if `max_size` is more than
    /// there is.
    pub fn create(driver: Driver, properties: &PoolProperties) -> Result<Self> {
        let _relaxed = Relaxed::enter(driver)?;
        let handles = if properties.shareable {
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        } else {
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE
        };
        let raw_properties = CUmemPoolProps_v1 {
            allocType: properties.allocation_type.as_raw(),
            handleTypes: handles,
            location: properties.location.as_raw(),
            win32SecurityAttributes: ptr::null_mut(),
            maxSize: properties.max_size,
            usage: 0,
            reserved: [0; 54],
        };
        let mut raw: CUmemoryPool = ptr::null_mut();
        owned::created(driver, || {
            // SAFETY: one handle to write; the properties are read during the call.
            unsafe { call!(driver, cuMemPoolCreate(&mut raw, &raw_properties)) }?;
            Ok(raw.addr())
        })?;
        Ok(Self { driver, raw: Handle::new(raw), part: Part::Owner })
    }

    /// The pool that `cuMemAllocAsync` takes memory from on this device, or its default one if no other was made current.
    ///
    /// Wraps [`cuDeviceGetMemPool`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html). The pool stays its
    /// owner's; one that was made here is destroyed when this value is gone too.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignPool`] if another library's pool was made current.
    pub fn current_of_device(device: Device) -> Result<Self> {
        let driver = device.driver();
        let _relaxed = Relaxed::enter(driver)?;
        let default = |raw: &mut CUmemoryPool| {
            // SAFETY: one handle to write, a valid device.
            unsafe { call!(driver, cuDeviceGetDefaultMemPool(raw, device.as_raw())) }
        };
        Self::given(driver, default, |raw| {
            // SAFETY: one handle to write, a valid device.
            unsafe { call!(driver, cuDeviceGetMemPool(raw, device.as_raw())) }
        })
    }

    /// The pool that is current for a place and a kind of memory, or the default one if no other was made current.
    ///
    /// Wraps [`cuMemGetMemPool`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html). The pool stays
    /// its owner's; one that was made here is destroyed when this value is gone too.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] before CUDA 13.0; [`Error::ForeignPool`].
    pub fn current(driver: Driver, location: MemoryLocation, kind: AllocationType) -> Result<Self> {
        let _relaxed = Relaxed::enter(driver)?;
        let mut place = location.as_raw();
        let default = |raw: &mut CUmemoryPool| default_raw(driver, location, kind, raw);
        Self::given(driver, default, |raw| {
            // SAFETY: one handle to write; the location is read during the call.
            unsafe { call!(driver, cuMemGetMemPool(raw, &mut place, kind.as_raw())) }
        })
    }

    /// A pool that was made here, or that nobody can destroy.
    fn given(
        driver: Driver,
        default: impl FnOnce(&mut CUmemoryPool) -> Result<()>,
        get: impl FnOnce(&mut CUmemoryPool) -> Result<()>,
    ) -> Result<Self> {
        let mut raw: CUmemoryPool = ptr::null_mut();
        let is_ours = owned::given(driver, || {
            get(&mut raw)?;
            Ok(raw.addr())
        })?;
        if !is_ours {
            let mut never_destroyed: CUmemoryPool = ptr::null_mut();
            default(&mut never_destroyed)?;
            if raw != never_destroyed {
                return Err(Error::ForeignPool);
            }
        }
        let part = if is_ours { Part::Guest } else { Part::None };
        Ok(Self { driver, raw: Handle::new(raw), part })
    }

    /// A pool of another library, which owns it and destroys it.
    ///
    /// Takes an untyped pointer, so that any binding's `CUmemoryPool` can be passed.
    ///
    /// # Safety
    ///
    /// `raw` must be a pool of `driver`, and stay valid for as long as the result exists.
    #[must_use]
    pub unsafe fn borrow_raw(driver: Driver, raw: *mut std::ffi::c_void) -> Self {
        Self { driver, raw: Handle::new(raw.cast()), part: Part::None }
    }

    /// The default pool for a place and a kind of memory.
    ///
    /// Wraps [`cuMemGetDefaultMemPool`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    /// Errors: as [`MemoryPool::current`].
    pub fn default_of(driver: Driver, location: MemoryLocation, kind: AllocationType) -> Result<Self> {
        let _relaxed = Relaxed::enter(driver)?;
        let mut raw: CUmemoryPool = ptr::null_mut();
        default_raw(driver, location, kind, &mut raw)?;
        Ok(Self { driver, raw: Handle::new(raw), part: Part::None })
    }

    /// Makes this pool the current one for a place and a kind of memory: what [`MemoryPool::current`] gives from now on, for
    /// all of the process. When it is destroyed, the default one is current again.
    ///
    /// Wraps [`cuMemSetMemPool`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] before CUDA 13.0; [`Error::Driver`]: code 1 if the pool's memory is elsewhere or of another kind, or the pool is
    /// imported.
    pub fn make_current(&self, location: MemoryLocation, kind: AllocationType) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver)?;
        owned::made_current(self.driver, self.raw.raw().addr(), (location, kind), || {
            set_current(self.driver, location, kind, self.raw.raw())
        })
    }

    /// The driver it belongs to.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// The driver's handle, a `CUmemoryPool`. It is valid while this value lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut std::ffi::c_void {
        self.raw.raw().cast()
    }

    /// Whether the pool was made or imported by this value, and is destroyed with the last such.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        self.part == Part::Owner
    }

    /// Memory of the pool, to be freed with [`free`]; 0 for 0 bytes.
    ///
    /// Wraps [`cuMemAllocFromPoolAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html). Ordered
    /// on `stream`; the address is known at once, the memory may be used after this point of the stream.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 2 for more than there is or than the pool may have, 1 for an imported pool.
    pub fn allocate(&self, bytes: usize, stream: &Stream) -> Result<CUdeviceptr> {
        self.driver.expect_same(stream.driver(), "the stream")?;
        const CALL: &str = "allocating from a memory pool";
        stream.refuse_capturing(CALL)?;
        if bytes == 0 {
            return Ok(0);
        }
        self.driver.reclaim();
        let _relaxed = Relaxed::enter(self.driver)?;
        let entered = stream.enter()?;
        let mut address = 0;
        stream.refuse_capturing(CALL)?;
        // SAFETY: one address to write; a live pool and a live stream of the same driver.
        unsafe {
            call!(self.driver, cuMemAllocFromPoolAsync(&mut address, bytes, self.raw.raw(), entered.raw()))
        }
        .with_bytes(bytes)?;
        if let Err(error) = stream.spoil_capture(CALL) {
            // SAFETY: allocated above, its address returned to no one, and freed once.
            if unsafe { free(address, stream) }.is_err() {
                // It is a graph's, or leaked.
                self.driver.report_release_failure(&error);
            }
            return Err(error);
        }
        Ok(address)
    }

    /// Gives memory back to the system until no more than `bytes_to_keep` bytes are reserved, or all that is left is in use.
    /// What was freed but not synchronised with counts as in use.
    ///
    /// Wraps [`cuMemPoolTrimTo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html). NVIDIA documents
    /// that shareable pools ignore it; drivers of CUDA 13.0 act on it (seen on hardware).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 1 for an imported pool.
    pub fn trim_to(&self, bytes_to_keep: usize) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver)?;
        // SAFETY: a live pool.
        unsafe { call!(self.driver, cuMemPoolTrimTo(self.raw.raw(), bytes_to_keep)) }
    }

    /// Whether a device reads and writes the pool's memory.
    ///
    /// Wraps [`cuMemPoolGetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    pub fn is_accessible_from(&self, device: Device) -> Result<bool> {
        let _relaxed = Relaxed::enter(self.driver)?;
        self.driver.expect_same(device.driver(), "the device")?;
        let mut place = MemoryLocation::Device(device.as_raw()).as_raw();
        let mut flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
        // SAFETY: one value to write; the location is read during the call; a live pool.
        unsafe { call!(self.driver, cuMemPoolGetAccess(&mut flags, self.raw.raw(), &mut place)) }?;
        Ok(flags == CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    }

    /// Lets devices read and write all memory of the pool, or no longer: what is allocated now and later. Without devices no
    /// call is made.
    ///
    /// Wraps [`cuMemPoolSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html), once for all
    /// devices. It takes longer the more memory is allocated (8.5 ms for 1 GiB of host memory, seen on hardware).
    ///
    /// Work that uses the memory from a device that loses access faults.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 101 for a device that cannot reach the memory, or for taking access from the device that the memory lies on.
    pub fn set_access(&self, devices: &[Device], accessible: bool) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver)?;
        let access = if accessible { Access::ReadWrite } else { Access::None };
        let table = access_of(self.driver, devices, access)?;
        if table.is_empty() {
            return Ok(());
        }
        // SAFETY: as many entries as said, read during the call; a live pool.
        unsafe { call!(self.driver, cuMemPoolSetAccess(self.raw.raw(), table.as_ptr(), table.len())) }
    }

    /// Destroys the pool if it is owned, and tells whether the driver did. A pool that was imported several times is one, which
    /// the last of them destroys, and so is one that was given out as the current one. What was allocated from it stays valid until it is
    /// freed, and then goes back to the system. An imported pool of host memory is best closed right behind the free of its last block: where
    /// a thread has waited for that free before, the driver refuses later mappings at the block's addresses with code 208 (seen on hardware).
    ///
    /// Wraps [`cuMemPoolDestroy`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    ///
    /// # Errors
    ///
    /// The pool comes back with the error: [`Error::Driver`] with code 1 for an imported pool of which a block is not freed.
    pub fn close(self) -> Result<(), Refused<Self>> {
        Refused::unless_released(self, Self::destroy)
    }

    fn destroy(&self) -> Result<()> {
        refuse_forked()?;
        if self.part == Part::None {
            return Ok(());
        }
        let _relaxed = Relaxed::enter(self.driver)?;
        owned::let_go(self.driver, self.raw.raw().addr(), |place| {
            place.map_or(Ok(()), |(location, kind)| self.give_way(location, kind))?;
            // SAFETY: this value is the pool's last owner (`let_go`), and destroys it once: after a success `close` forgets it.
            unsafe { call!(self.driver, cuMemPoolDestroy(self.raw.raw())) }
        })
    }

    /// Ends the pool of a block that could not be freed because its context was lost. The driver may refuse to destroy an imported pool
    /// then, which is not counted.
    fn go_with_context(mut self) {
        if self.destroy().is_err() {
            owned::abandon(self.driver, self.raw.raw().addr());
        }
        self.part = Part::None;
    }

    /// Has the default pool be current where this one is. The driver does so itself for devices; for host memory it makes a device's default
    /// pool current, if there is one by then (seen on hardware), whose memory the host cannot reach.
    fn give_way(&self, location: MemoryLocation, kind: AllocationType) -> Result<()> {
        let (mut place, mut current) = (location.as_raw(), ptr::null_mut());
        // SAFETY: one handle to write; the location is read during the call.
        unsafe { call!(self.driver, cuMemGetMemPool(&mut current, &mut place, kind.as_raw())) }?;
        if current != self.raw.raw() {
            return Ok(());
        }
        // By itself, under the lock of all pools: a value of it would leave the relaxed mode, of which the hook may hear.
        let mut default = ptr::null_mut();
        default_raw(self.driver, location, kind, &mut default)?;
        set_current(self.driver, location, kind, default)
    }
}

/// The default pool of a place, which the driver lets nobody destroy (`cuMemPoolDestroy`'s documentation).
fn default_raw(
    driver: Driver,
    location: MemoryLocation,
    kind: AllocationType,
    raw: &mut CUmemoryPool,
) -> Result<()> {
    let mut place = location.as_raw();
    // SAFETY: one handle to write; the location is read during the call.
    unsafe { call!(driver, cuMemGetDefaultMemPool(raw, &mut place, kind.as_raw())) }
}

/// Has a live pool be the current one of a place.
fn set_current(
    driver: Driver,
    location: MemoryLocation,
    kind: AllocationType,
    pool: CUmemoryPool,
) -> Result<()> {
    let mut place = location.as_raw();
    // SAFETY: the location is read during the call; the callers' pool lives.
    unsafe { call!(driver, cuMemSetMemPool(&mut place, kind.as_raw(), pool)) }
}

impl Drop for MemoryPool {
    fn drop(&mut self) {
        if !fork::forked() && !self.driver.release(|| self.destroy()) && self.part != Part::None {
            owned::abandon(self.driver, self.raw.raw().addr());
        }
    }
}

impl PartialEq for MemoryPool {
    /// Whether both are the same pool of the same driver.
    fn eq(&self, other: &Self) -> bool {
        self.driver == other.driver && self.raw == other.raw
    }
}

impl Eq for MemoryPool {}

impl_debug!(MemoryPool, |it| raw: it.raw.raw(), owned: it.is_owned());
