//! The driver's own pool, `cudaMallocAsync`.
//!
//! # Safety
//!
//! Relies on the replay freeing each block once. No work uses the memory but waits that do not touch it.

#![allow(unsafe_code, reason = "frees memory of a pool")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use cuda_mem_core::raw_pool::{self, AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::sys::{CUmemPool_attribute, CUresult};

use super::super::calls::Call;
use super::super::candidate::{Candidate, Refused, Tally};
use super::super::costs::Kind;
use super::super::machine::Peaks;
use super::Device;

/// Half of what a free and an allocation took together on an H200; what it takes to grow is not in it.
const CALL: Duration = Duration::from_nanos(500);
/// An event that is recorded and waited for.
const WAIT: Duration = Duration::from_nanos(330);

/// A pool of the driver that keeps what it has.
pub(crate) struct DriverPool {
    device: Arc<Device>,
    pool: MemoryPool,
    /// The stream of each block, by its address.
    blocks: Mutex<HashMap<u64, u64>>,
}

impl DriverPool {
    /// A new pool on the device, of at most so many bytes.
    pub(crate) fn new(device: Arc<Device>, capacity: Option<u64>) -> Result<Self> {
        let context = device.context();
        let properties = PoolProperties {
            allocation_type: AllocationType::Pinned,
            location: MemoryLocation::Device(context.device().as_raw()),
            shareable: false,
            max_size: usize::try_from(capacity.unwrap_or(0))?,
        };
        let pool = MemoryPool::create(context.driver(), &properties)?;
        pool.set_number(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
        Ok(Self { device, pool, blocks: Mutex::default() })
    }
}

impl Candidate for DriverPool {
    fn allocate(&self, size: u64, stream: u64) -> Result<u64, Refused> {
        let on = self.device.stream(stream)?;
        let bytes = usize::try_from(size).map_err(anyhow::Error::from)?;
        match self.device.time(Kind::PoolAlloc, CALL, || self.pool.allocate(bytes, on)) {
            Ok(address) => {
                self.blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(address, stream);
                Ok(address)
            }
            Err(error) if error.code() == Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                Err(Refused::OutOfMemory)
            }
            Err(error) => Err(Refused::Failed(error.into())),
        }
    }

    fn free(&self, address: u64, side: Option<u64>) -> Result<(), Refused> {
        let stream = self.blocks.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        let Some(stream) = stream else {
            return Err(Refused::Failed(anyhow::anyhow!("no block at {address}")));
        };
        let on = self.device.stream(stream)?;
        if let Some(side) = side {
            let other = self.device.stream(side)?;
            let waited = self.device.time(Kind::StreamWait, WAIT, || on.wait_stream(other));
            waited.map_err(anyhow::Error::from)?;
            self.device.log().note(&Call::Order { to: stream, from: side, at: None });
        }
        self.device
            .time(Kind::PoolFree, CALL, || {
                // SAFETY: from this pool, and freed once: it was in the map until now. No work touches it.
                unsafe { raw_pool::free(address, on) }
            })
            .map_err(|error| Refused::Failed(error.into()))
    }

    fn tally(&self) -> Result<Tally> {
        let reserved = self.pool.number(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?;
        self.device.note_peaks(Peaks { reserved, mappings: 0 });
        Ok(Tally::default())
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        // What the trace never frees.
        let blocks = std::mem::take(&mut *self.blocks.lock().unwrap_or_else(PoisonError::into_inner));
        for (address, stream) in blocks {
            if let Ok(on) = self.device.stream(stream) {
                // SAFETY: from this pool, in the map until now, and no work touches it. What fails goes with the process.
                let _ = unsafe { raw_pool::free(address, on) };
            }
        }
    }
}
