//! A virtual machine gets its memory page by page from its host, at the first touch, which is many times slower than any touch
//! after it. Memory that was touched and given back is like that of a machine that has run for a while.

use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::system::available_memory;

/// What one thread has at a time: large enough for the C library to give it back to the kernel.
const PIECE: u64 = 256 << 20;

/// Touches a fifth more than `bytes` and gives it back.
pub(crate) fn touch_and_free(bytes: u64) -> Result<()> {
    let wanted = bytes + bytes / 5;
    let available = available_memory().unwrap_or(0);
    ensure!(
        wanted < available,
        "the benchmark needs {:.1} GiB of free memory, the machine has {:.1} GiB: choose a smaller --gib",
        gib(wanted),
        gib(available)
    );
    let started = Instant::now();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let pieces = wanted.div_ceil(PIECE);
    let length = usize::try_from(PIECE.min(wanted)).unwrap_or(0);
    let mine = |index: usize| {
        let share = (index as u64..pieces).step_by(threads);
        // Written, because zeroed memory costs the kernel nothing until then; held until all have theirs.
        share.map(|_| vec![1u8; length]).collect::<Vec<_>>()
    };
    let held = thread::scope(|scope| {
        let workers = (0..threads).map(|index| scope.spawn(move || mine(index))).collect::<Vec<_>>();
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect::<Vec<_>>()
    });
    let touched = held.iter().map(|piece| piece.len() as u64).sum::<u64>();
    drop(held);
    let seconds = started.elapsed().as_secs_f64();
    println!("memory: {:.2} GiB touched and freed in {seconds:.1} s", gib(touched));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_machine_has_is_refused_before_anything_is_touched() {
        let error = touch_and_free(u64::MAX / 2).unwrap_err().to_string();
        assert!(error.contains("choose a smaller --gib"), "{error}");
        touch_and_free(1 << 20).unwrap();
    }
}
