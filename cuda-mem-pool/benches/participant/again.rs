//! A pool's block freed, its stream waited for, and the block allocated again, some times in a row: the median of them.

use std::error::Error;
use std::time::Instant;

use cuda_mem_pool::{
    Allocation, HostDeviceAccessible, MemoryResource, PinnedMemoryResource, PinnedMemoryResourceOptions,
};

use crate::machine::Machine;
use crate::protocol::{Answer, Outcome, Request};

/// The pool with its block, kept from one round to the next.
#[derive(Default)]
pub(crate) struct Again {
    kept: Option<(PinnedMemoryResource, Allocation<HostDeviceAccessible>)>,
}

impl Again {
    pub(crate) fn measure(&mut self, machine: &Machine, request: &Request) -> Outcome {
        let bytes = request.number::<usize>("bytes")?;
        let (pool, block) = match self.kept.take() {
            Some(kept) if kept.1.len() == bytes => kept,
            _ => {
                let options = PinnedMemoryResourceOptions::default();
                let pool = PinnedMemoryResource::new(&machine.context, &options)?;
                let block = allocate(&pool, machine, bytes)?;
                (pool, block)
            }
        };
        let mut block = block;
        let mut cycles = Vec::new();
        for _ in 0..request.number::<usize>("times")? {
            let started = Instant::now();
            block.close().map_err(|refused| refused.error)?;
            machine.stream.synchronize()?;
            block = pool.allocate(bytes, &machine.stream)?;
            cycles.push(started.elapsed().as_secs_f64() * 1e6);
            // Whether it is ready is no part of the cycle, and the next one starts on a stream that is.
            machine.stream.synchronize()?;
        }
        cycles.sort_by(f64::total_cmp);
        let microseconds = cycles.get(cycles.len() / 2).copied().ok_or("times is 0")?;
        let start = block.as_mut_slice()?.as_mut_ptr();
        // SAFETY: the bytes of the block, which nobody else uses.
        unsafe { machine.check(start, bytes)? };
        self.kept = Some((pool, block));
        Ok(Answer::Figures(vec![("again", microseconds / (bytes as f64 / f64::from(1 << 30)))]))
    }
}

fn allocate(
    pool: &PinnedMemoryResource,
    machine: &Machine,
    bytes: usize,
) -> Result<Allocation<HostDeviceAccessible>, Box<dyn Error>> {
    let block = pool.allocate(bytes, &machine.stream)?;
    machine.stream.synchronize()?;
    Ok(block)
}
