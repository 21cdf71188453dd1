//! A pool's block freed, its stream waited for, and the block allocated again.

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
        let started = Instant::now();
        block.close().map_err(|refused| refused.error)?;
        machine.stream.synchronize()?;
        let mut block = allocate(&pool, machine, bytes)?;
        let microseconds = started.elapsed().as_secs_f64() * 1e6;
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
