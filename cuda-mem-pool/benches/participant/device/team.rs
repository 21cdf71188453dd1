//! Threads that work at the same time.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// What the threads of a measurement know of each other.
pub(crate) struct Team {
    size: usize,
    here: AtomicUsize,
    round: AtomicUsize,
    failed: AtomicBool,
}

impl Team {
    /// Waits until all have come here.
    pub(crate) fn meet(&self) -> Result<(), String> {
        let round = self.round.load(Ordering::Acquire);
        if self.here.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            self.here.store(0, Ordering::Release);
            self.round.fetch_add(1, Ordering::AcqRel);
        }
        while self.round.load(Ordering::Acquire) == round {
            self.wait()?;
        }
        Ok(())
    }

    /// A moment for another thread; an error where one of them has failed, which would be waited for in vain.
    pub(crate) fn wait(&self) -> Result<(), String> {
        if self.failed.load(Ordering::Relaxed) {
            return Err("another thread has failed".to_owned());
        }
        thread::yield_now();
        Ok(())
    }
}

/// Runs `work` in each of some threads; their results, or what the first of them says that failed.
pub(crate) fn in_threads<R: Send>(
    size: usize,
    work: impl Fn(usize, &Team) -> Result<R, String> + Sync,
) -> Result<Vec<R>, Box<dyn Error>> {
    let team =
        Team { size, here: AtomicUsize::new(0), round: AtomicUsize::new(0), failed: AtomicBool::new(false) };
    let member = |index| {
        let result = work(index, &team);
        if result.is_err() {
            team.failed.store(true, Ordering::Relaxed);
        }
        result
    };
    let results = thread::scope(|scope| {
        let workers = (0..size).map(|index| scope.spawn(move || member(index))).collect::<Vec<_>>();
        let ended = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|_| Err("a thread died".to_owned()))
        };
        workers.into_iter().map(ended).collect::<Vec<_>>()
    });
    Ok(results.into_iter().collect::<Result<_, _>>()?)
}
