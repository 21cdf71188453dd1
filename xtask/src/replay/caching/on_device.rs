//! The allocator itself, on a device of a driver.
//!
//! # Safety
//!
//! Relies on the replay freeing each block once. No work uses the memory but waits that do not touch it.

#![allow(unsafe_code, reason = "frees memory by its address")]

use std::sync::Arc;

use anyhow::{Result, ensure};
use cuda_mem_pool::Error;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::statistics::Stat;

use super::super::candidate::{Candidate, Refused, Tally};
use super::super::driver::Device;
use super::watcher::Watcher;

/// The allocator.
pub(crate) struct OnDevice {
    device: Arc<Device>,
    allocator: CachingAllocator,
    watcher: Arc<Watcher>,
    /// The device's free memory before there was an allocator.
    free_before: u64,
}

impl OnDevice {
    pub(crate) fn new(device: Arc<Device>, capacity: Option<u64>, moves: bool) -> Result<Self> {
        let context = device.context();
        let memory = context.memory_info()?;
        let fraction = capacity.map_or(1.0, |bytes| share(bytes, memory.total as u64));
        let options = CachingOptions::default().with_moves(moves).with_memory_fraction(fraction);
        let watcher = Arc::new(Watcher::new(Arc::clone(&device)));
        let allocator = CachingAllocator::observed(context, &options, watcher.clone())?;
        Ok(Self { device, allocator, watcher, free_before: memory.free as u64 })
    }
}

/// The fraction of `total` that comes out as `bytes`.
#[expect(clippy::cast_precision_loss, reason = "no device has as many bytes as a float counts exactly")]
fn share(bytes: u64, total: u64) -> f64 {
    if bytes >= total { 1.0 } else { (bytes as f64 + 0.5) / total as f64 }
}

/// An error as the replay takes it.
fn refused(error: Error) -> Refused {
    match error {
        // As the other allocators take it: more than there are addresses is more than there is memory.
        Error::TooLarge { .. } => Refused::OutOfMemory,
        error if error.is_out_of_memory() => Refused::OutOfMemory,
        error => Refused::Failed(error.into()),
    }
}

impl Candidate for OnDevice {
    fn allocate(&self, size: u64, stream: u64) -> Result<u64, Refused> {
        let bytes = usize::try_from(size).map_err(anyhow::Error::from)?;
        let on = self.device.stream(stream)?;
        self.allocator.allocate_by_address(bytes, on).map_err(refused)
    }

    fn free(&self, address: u64, side: Option<u64>) -> Result<(), Refused> {
        if let Some(side) = side {
            self.allocator.record_stream(address, self.device.stream(side)?).map_err(refused)?;
        }
        // SAFETY: from this allocator, and freed once. No work touches it.
        unsafe { self.allocator.free_by_address(address) }.map_err(refused)
    }

    fn tally(&self) -> Result<Tally> {
        self.watcher.result()?;
        let statistics = self.allocator.statistics();
        let Stat { current: reserved, peak, .. } = statistics.reserved_bytes.all;
        let seen = self.watcher.peaks().reserved;
        ensure!(seen == peak, "the allocator says that it had {peak} bytes at the most, and got {seen}");
        self.device.note_peaks(self.watcher.peaks());
        let free = self.device.context().memory_info()?.free as u64;
        Ok(Tally {
            retries: statistics.num_alloc_retries,
            metadata_bytes: self.allocator.metadata_bytes() as u64,
            unconfirmed: Some(reserved.abs_diff(self.free_before.saturating_sub(free))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn the_share_of_a_capacity_comes_out_as_it() {
        let total = 143_771u64 << 20;
        for bytes in [0, 1, 2 << 20, 4_517_265_408, total - 1, total, total + 1] {
            let share = share(bytes, total);
            let limit = if share < 1.0 { (total as f64 * share) as u64 } else { total };
            assert_eq!(limit, bytes.min(total));
        }
    }
}
