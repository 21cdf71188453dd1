//! Blocks of many sizes, all live at once: what is held for what was asked for.

use std::time::Instant;

use cuda_mem_pool::PinnedCachingAllocator;

use crate::machine::Machine;
use crate::memory::Reading;
use crate::protocol::{Answer, Outcome, Request};

pub(crate) fn measure(machine: &Machine, request: &Request) -> Outcome {
    let sizes = request.numbers("sizes")?;
    let requested = sizes.iter().sum::<usize>();
    let before = Reading::now()?;
    let started = Instant::now();
    let allocator = PinnedCachingAllocator::new(&machine.context);
    let mut blocks = sizes.iter().map(|bytes| allocator.allocate(*bytes)).collect::<Result<Vec<_>, _>>()?;
    let ready = started.elapsed().as_secs_f64();
    let mut figures = Reading::now()?.since(before, requested as u64);
    let held = allocator.statistics().allocated_bytes.current as f64 / requested as f64;
    figures.extend([("ready", ready), ("held", held)]);
    // Marked at both ends, all of them before the first is looked at: no block may lie on another.
    let mark = |index: usize| u32::try_from(index).unwrap_or(u32::MAX).to_ne_bytes();
    for (index, block) in blocks.iter_mut().enumerate() {
        let bytes = block.as_mut_slice()?;
        bytes[..4].copy_from_slice(&mark(index));
        let end = bytes.len() - 4;
        bytes[end..].copy_from_slice(&mark(index));
    }
    for (index, block) in blocks.iter().enumerate() {
        let bytes = block.as_slice()?;
        if bytes[..4] != mark(index) || bytes[bytes.len() - 4..] != mark(index) {
            return Err(format!("the block of {} bytes shares some with another", bytes.len()).into());
        }
    }
    Ok(Answer::Figures(figures))
}
