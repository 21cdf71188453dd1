//! What allocates symmetric memory.
//!
//! # Safety
//!
//! Declares an unsafe trait; nothing is called here.

#![allow(unsafe_code, reason = "declares an unsafe trait")]

use std::fmt;
use std::sync::Arc;

use cuda_mem_pool::cuda_mem_core::Device;
use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;

use super::{Result, SymmetricMemory};

/// A kind of device, by the name that it has in PyTorch. The [module](crate::symmetric) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceType(&'static str);

impl DeviceType {
    /// NVIDIA's GPUs.
    pub const CUDA: Self = Self("cuda");

    /// Another kind.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// An allocation of a backend. Addresses come again, and this does not: two are equal if they are the same allocation.
/// [`NativeBackend::take`](super::NativeBackend::take) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Allocated {
    /// Where it begins.
    pub address: CUdeviceptr,
    /// Which it is of those that have had the address: no two of a backend have both in common.
    pub serial: u64,
}

/// Allocates memory on every rank alike, and tells each rank where the others have it.
///
/// It is registered by device type and [`name`](Self::name) in [`Backends`](super::Backends).
/// The [module](crate::symmetric) has an example.
///
/// # Safety
///
/// Memory that [`alloc`](Self::alloc) gives is its receiver's alone until it is freed, and so many bytes on that device. Owners of memory are
/// made over it.
///
/// # Capture
///
/// Each backend says what may be called while streams capture. All functions of [`NativeBackend`](super::NativeBackend) may, with memory that
/// no stream uses which captures.
pub unsafe trait SymmetricBackend: Send + Sync {
    /// What it is chosen by: `"NATIVE"`, `"NVSHMEM"`, `"NCCL"`.
    fn name(&self) -> &str;

    /// Memory on `device`, whatever device is current, that other ranks can reach after a rendezvous. All ranks of a group
    /// allocate the same sizes in the same order.
    ///
    /// # Errors
    ///
    /// Those of the backend. One that needs a group refuses to go without ([`Error::GroupNeeded`](super::Error::GroupNeeded));
    /// one that cannot have a group refuses one.
    fn alloc(&self, size: usize, device: Device, group: Option<&str>) -> Result<Allocated>;

    /// The allocation that an address lies in now.
    ///
    /// # Errors
    ///
    /// Those of the backend, for an address that is none of its own.
    fn find(&self, address: CUdeviceptr) -> Result<Allocated>;

    /// Gives memory back. It lives on while a [`SymmetricMemory`] of it does.
    ///
    /// # Errors
    ///
    /// Those of the backend, for an address that is none of its own.
    fn free(&self, address: CUdeviceptr) -> Result<()>;

    /// Gives memory back unless it has been already, also if another allocation has its address by now, which stays.
    ///
    /// # Errors
    ///
    /// Those of [`free`](Self::free).
    fn free_if(&self, allocated: Allocated) -> Result<()>;

    /// Whether it is of no further use, so that [`Backends::register`](super::Backends::register) takes another one of its name in its
    /// place. Returns at once.
    fn has_ended(&self) -> bool {
        false
    }

    /// Brings the ranks together over an allocation, by any address in it. Every rank has to call it.
    ///
    /// # Errors
    ///
    /// Those of the backend; each names the rank that is at fault.
    fn rendezvous(&self, address: CUdeviceptr, group: Option<&str>) -> Result<Arc<dyn SymmetricMemory>>;
}
