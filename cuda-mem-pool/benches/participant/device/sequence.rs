//! The operations of RMM's random-allocation benchmark, one by one as it makes them.

use cuda_mem_pool::Error;

use super::engines::MinStd;

/// What is live at most, in all.
const LIMIT: u64 = 16_000 << 20;

/// What one run of it had live at once, at most.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peak {
    pub(crate) bytes: u64,
    pub(crate) blocks: usize,
}

/// One run: `allocations` blocks of up to `largest` bytes. What cannot be had is a free instead.
pub(crate) fn run(
    allocations: u64,
    largest: u64,
    mut allocate: impl FnMut(usize) -> Result<u64, Error>,
    mut free: impl FnMut(u64),
) -> Result<Peak, Error> {
    let mut engine = MinStd::new();
    let (mut live, mut peak) = (Vec::<(u64, u64)>::new(), Peak::default());
    let (mut made, mut total) = (0, 0);
    for _ in 0..2 * allocations {
        let bytes = engine.uniform(1, largest);
        let wants =
            live.is_empty() || (engine.uniform(0, 99) < 73 && made < allocations && total + bytes < LIMIT);
        let block = match wants.then(|| allocate(bytes as usize)) {
            Some(Ok(address)) => Some(address),
            None => None,
            Some(Err(error)) if error.is_out_of_memory() => None,
            Some(Err(error)) => return Err(error),
        };
        if let Some(address) = block {
            live.push((address, bytes));
            made += 1;
            total += bytes;
            peak = Peak { bytes: peak.bytes.max(total), blocks: peak.blocks.max(live.len()) };
        } else if !live.is_empty() {
            let index = engine.uniform(0, allocations - 1) as usize % live.len();
            let (address, bytes) = live.swap_remove(index);
            free(address);
            total -= bytes;
        }
    }
    live.into_iter().for_each(|(address, _)| free(address));
    Ok(peak)
}
