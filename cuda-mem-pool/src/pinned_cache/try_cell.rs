//! A value that one thread at a time may have, and for which nobody waits.
//!
//! # Safety
//!
//! Relies on `taken`: who turns it from false to true is alone with the value until they turn it back.

#![allow(unsafe_code, reason = "shares a value under a flag of its own")]

use crate::primitive::{AtomicBool, Ordering, UnsafeCell, yield_now};

/// A value behind a flag. Taking it costs one uncontended atomic exchange, giving it back one store.
#[derive(Debug)]
pub(crate) struct TryCell<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

/// The value is with whoever has this. Gives it back when dropped, also when a panic passes.
pub(crate) struct Held<'c, T>(&'c TryCell<T>);

impl<T> TryCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the value, unless somebody has it.
    #[inline]
    pub(crate) fn hold(&self) -> Option<Held<'_, T>> {
        // Acquire: what the last one did to the value is done. Not a swap: who is refused must not write.
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Held(self))
    }

    /// Takes the value when nobody has it.
    pub(crate) fn wait(&self) -> Held<'_, T> {
        loop {
            match self.hold() {
                Some(held) => return held,
                None => yield_now(),
            }
        }
    }

    /// Runs `body` on the value, unless somebody has it.
    #[inline]
    pub(crate) fn try_with<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.hold().map(|mut held| held.with(body))
    }
}

impl<T> Held<'_, T> {
    #[inline]
    pub(crate) fn with<R>(&mut self, body: impl FnOnce(&mut T) -> R) -> R {
        self.0.value.with_mut(|value| {
            // SAFETY: the flag was false when `self` was made, so nobody has the value, and nobody gets it before `self` is
            // dropped; `self` is borrowed mutably, so it is lent once at a time.
            body(unsafe { &mut *value })
        })
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: what was done to the value is done for the next one.
        self.0.taken.store(false, Ordering::Release);
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
