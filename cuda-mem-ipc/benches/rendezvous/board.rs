//! Words in memory of both ranks, over which they meet without the device and tell each other a number.

use std::cell::Cell;
use std::error::Error;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::host::SharedMapping;

use crate::crew::{LIMIT, RANKS};

pub(crate) const OTHER_FAILED: &str = "the other rank failed";

/// Bytes of a line of the cache, which each word has for itself.
const LINE: usize = 64;
const FAILED: usize = 0;
/// How often each rank has met.
const MET: usize = 1;
/// What each says, for even meetings and for odd ones: who is a meeting ahead does not write over what others read.
const SAID: usize = MET + RANKS;

#[derive(Debug)]
pub(crate) struct Board {
    mapping: SharedMapping,
    rank: usize,
    met: Cell<u64>,
}

impl Board {
    pub(crate) fn create() -> Result<Self, Box<dyn Error>> {
        Ok(Self { mapping: SharedMapping::create(4096)?, rank: 0, met: Cell::new(0) })
    }

    pub(crate) fn open(descriptor: OwnedFd, rank: usize) -> Result<Self, Box<dyn Error>> {
        Ok(Self { mapping: SharedMapping::open(descriptor)?, rank, met: Cell::new(0) })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.mapping.as_fd()
    }

    fn word(&self, line: usize) -> Result<&AtomicU64, Box<dyn Error>> {
        Ok(self.mapping.word(line * LINE)?)
    }

    /// Nobody is to wait for this rank any more.
    pub(crate) fn fail(&self) -> Result<(), Box<dyn Error>> {
        self.word(FAILED)?.store(1, Ordering::Release);
        Ok(())
    }

    /// Waits for the other rank, awake; what each has said.
    pub(crate) fn meet(&self, said: u64) -> Result<[u64; RANKS], Box<dyn Error>> {
        let turn = self.met.get() + 1;
        self.met.set(turn);
        let place = |rank: usize| SAID + RANKS * usize::from(turn.is_multiple_of(2)) + rank;
        self.word(place(self.rank))?.store(said, Ordering::Relaxed);
        self.word(MET + self.rank)?.store(turn, Ordering::Release);
        let (failed, start) = (self.word(FAILED)?, Instant::now());
        let mut all = [0; RANKS];
        for (rank, heard) in all.iter_mut().enumerate() {
            let met = self.word(MET + rank)?;
            for spin in 1u32.. {
                if met.load(Ordering::Acquire) >= turn {
                    break;
                }
                std::hint::spin_loop();
                if spin.is_multiple_of(1 << 14) {
                    if failed.load(Ordering::Relaxed) > 0 {
                        return Err(OTHER_FAILED.into());
                    }
                    if start.elapsed() > LIMIT {
                        return Err("the other rank does not come".into());
                    }
                    // There may be fewer processors than ranks.
                    std::thread::yield_now();
                }
            }
            *heard = self.word(place(rank))?.load(Ordering::Relaxed);
        }
        Ok(all)
    }
}
