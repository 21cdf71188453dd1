//! What a pool tells of itself, and what can be set.
//!
//! # Safety
//!
//! Relies on none of the attributes that are accepted here having more than eight bytes.

#![allow(unsafe_code, reason = "calls driver functions")]

use cuda_mem_sys::CUmemPool_attribute;

use super::MemoryPool;
use crate::driver::Relaxed;
use crate::error::{Error, Result, call};

/// The attributes of a pool, all read one after the other. Sizes are in bytes. [`MemoryPool`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolAttributes {
    /// Whether memory freed on one stream is reused on another that waits for an event recorded after the free.
    pub reuse_follow_event_dependencies: bool,
    /// Whether memory is reused on another stream if its free happens to be done already.
    pub reuse_allow_opportunistic: bool,
    /// Whether the driver may make a stream wait for another so that memory can be reused.
    pub reuse_allow_internal_dependencies: bool,
    /// How much unused memory is kept when a stream, an event or a context is synchronised with; more is given back. 0 in a
    /// new pool.
    pub release_threshold: u64,
    /// What the pool holds now.
    pub reserved_mem_current: u64,
    /// The most it held since this was last reset.
    pub reserved_mem_high: u64,
    /// What is allocated now.
    pub used_mem_current: u64,
    /// The most that was allocated since this was last reset.
    pub used_mem_high: u64,
}

type Name = CUmemPool_attribute;

impl MemoryPool {
    /// All attributes.
    ///
    /// Wraps [`cuMemPoolGetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html). Others may
    /// allocate between one attribute and the next.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 1 for an imported pool, whose attributes are its own process's to ask.
    pub fn attributes(&self) -> Result<PoolAttributes> {
        Ok(PoolAttributes {
            reuse_follow_event_dependencies: self
                .flag(Name::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES)?,
            reuse_allow_opportunistic: self.flag(Name::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC)?,
            reuse_allow_internal_dependencies: self
                .flag(Name::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)?,
            release_threshold: self.number(Name::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)?,
            reserved_mem_current: self.number(Name::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            reserved_mem_high: self.number(Name::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
            used_mem_current: self.number(Name::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            used_mem_high: self.number(Name::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        })
    }

    /// One attribute that is a flag.
    ///
    /// Wraps [`cuMemPoolGetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    ///
    /// # Errors
    ///
    /// As [`MemoryPool::attributes`]; [`Error::NotAccepted`] for an attribute of which this crate does not know the size.
    pub fn flag(&self, attribute: CUmemPool_attribute) -> Result<bool> {
        // The driver writes four bytes of the eight, the others stay 0.
        Ok(self.number(attribute)? != 0)
    }

    /// One attribute that is a number.
    ///
    /// Wraps [`cuMemPoolGetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    /// Errors: as [`MemoryPool::flag`].
    pub fn number(&self, attribute: CUmemPool_attribute) -> Result<u64> {
        expect_known(attribute)?;
        let _relaxed = Relaxed::enter(self.driver)?;
        let mut value = 0u64;
        // SAFETY: eight bytes to write, which is the size of the largest known attribute; a live pool.
        unsafe {
            call!(self.driver, cuMemPoolGetAttribute(self.raw.raw(), attribute, (&raw mut value).cast()))
        }?;
        Ok(value)
    }

    /// Sets an attribute that is a flag.
    ///
    /// Wraps [`cuMemPoolSetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 1 if it cannot be set, or the pool is imported; [`Error::NotAccepted`] as [`MemoryPool::flag`].
    pub fn set_flag(&self, attribute: CUmemPool_attribute, value: bool) -> Result<()> {
        self.set_number(attribute, u64::from(value))
    }

    /// Sets an attribute that is a number. The two `*_MEM_HIGH` take 0 only, which resets them to what is there now.
    ///
    /// Wraps [`cuMemPoolSetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    /// Errors: as [`MemoryPool::set_flag`].
    pub fn set_number(&self, attribute: CUmemPool_attribute, value: u64) -> Result<()> {
        expect_known(attribute)?;
        let _relaxed = Relaxed::enter(self.driver)?;
        let mut value = value;
        // SAFETY: eight bytes to read, which is the size of the largest known attribute (a flag reads the low four of them, on the
        // little-endian hosts that CUDA has); a live pool.
        unsafe {
            call!(self.driver, cuMemPoolSetAttribute(self.raw.raw(), attribute, (&raw mut value).cast()))
        }
    }
}

/// Refuses an attribute that a later driver may have: it could be larger than the place for its value.
fn expect_known(attribute: CUmemPool_attribute) -> Result<()> {
    let first = Name::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES.0;
    let last = Name::CU_MEMPOOL_ATTR_USED_MEM_HIGH.0;
    if (first..=last).contains(&attribute.0) {
        return Ok(());
    }
    let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
    let accepted = number(first)..=number(last);
    Err(Error::NotAccepted { option: "the attribute of a memory pool", value: number(attribute.0), accepted })
}
