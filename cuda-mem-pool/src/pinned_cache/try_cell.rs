//! A value that one thread at a time may have, and for which nobody waits.
//!
//! # Safety
//!
//! Relies on `taken`: who turns it from false to true is alone with the value until they turn it back.

#![allow(unsafe_code, reason = "shares a value under a flag of its own")]

use crate::primitive::{AtomicBool, Ordering, UnsafeCell};

/// A value behind a flag. Taking it costs one uncontended atomic exchange, giving it back one store.
#[derive(Debug)]
pub(crate) struct TryCell<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

/// Gives the value back, also when a panic passes.
struct Taken<'c>(&'c AtomicBool);

impl<T> TryCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Runs `body` on the value, unless somebody has it.
    #[inline]
    pub(crate) fn try_with<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        // Acquire: what the last one did to the value is done. Not a swap: who is refused must not write.
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let _taken = Taken(&self.taken);
        Some(self.value.with_mut(|value| {
            // SAFETY: the flag was false, so nobody has the value, and nobody gets it before `_taken` is dropped.
            body(unsafe { &mut *value })
        }))
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: what was done to the value is done for the next one.
        self.0.store(false, Ordering::Release);
    }
}

// SAFETY: one thread at a time has the value, and it moves between threads as a whole.
unsafe impl<T: Send> Sync for TryCell<T> {}

#[cfg(all(loom, test))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Whoever gets the value is alone with it, and sees all that was done before.
    #[test]
    fn one_thread_has_the_value() {
        loom::model(|| {
            let cell = Arc::new(TryCell::new(0));
            let add = |cell: &TryCell<u32>| u32::from(cell.try_with(|value| *value += 1).is_some());
            let other = thread::spawn({
                let cell = Arc::clone(&cell);
                move || add(&cell) + add(&cell)
            });
            let mine = add(&cell);
            let others = other.join().unwrap();
            assert_eq!(cell.try_with(|value| *value), Some(mine + others));
            assert!(mine + others >= 1, "refused to everybody");
        });
    }

    /// What an owner puts in while another thread closes the cache is taken by the one or kept by the other, not lost: this is
    /// how thread caches end.
    #[test]
    fn nothing_is_lost_between_its_owner_and_who_closes_it() {
        loom::model(|| {
            let cell = Arc::new(TryCell::new((Vec::new(), false)));
            let owner = thread::spawn({
                let cell = Arc::clone(&cell);
                move || {
                    let kept = cell.try_with(|(blocks, closed): &mut (Vec<u32>, bool)| {
                        if !*closed {
                            blocks.push(7);
                        }
                        !*closed
                    });
                    u32::from(kept != Some(true))
                }
            });
            let taken = loop {
                let taken = cell.try_with(|(blocks, closed)| {
                    *closed = true;
                    std::mem::take(blocks)
                });
                match taken {
                    Some(taken) => break taken.len() as u32,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(taken + owner.join().unwrap(), 1);
        });
    }
}
