//! A value that its owner takes very often, and other threads once in a while.
//!
//! # Safety
//!
//! Relies on the two flags: each side raises its own before it looks at the other's, and [`Barrier`] has at least one of
//! them see the other's. The owner then steps back, and others wait. There is one [`Owner`], and it is borrowed mutably
//! while it has the value; the others have a lock among themselves.

#![allow(unsafe_code, reason = "shares a value under flags of its own")]

use std::sync::Arc;

use super::barrier::Barrier;
use crate::primitive::{AtomicBool, Mutex, MutexGuard, Ordering, UnsafeCell, lock, yield_now};

/// The owner's way to the value: two stores and a load.
#[derive(Debug)]
pub(super) struct Owner<T>(Arc<Cell<T>>);

/// Everybody else's way to it.
#[derive(Debug)]
pub(super) struct Others<T>(Arc<Cell<T>>);

#[derive(Debug)]
struct Cell<T> {
    barrier: Barrier,
    /// The owner has the value, or looks whether it can have it.
    taken: AtomicBool,
    /// Another thread has the value, or waits for the owner to leave it.
    wanted: AtomicBool,
    others: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time has the value, and it moves between threads as a whole.
unsafe impl<T: Send> Sync for Cell<T> {}

pub(super) fn new<T>(value: T) -> (Owner<T>, Others<T>) {
    let cell = Arc::new(Cell {
        barrier: Barrier::new(),
        taken: AtomicBool::new(false),
        wanted: AtomicBool::new(false),
        others: Mutex::new(()),
        value: UnsafeCell::new(value),
    });
    (Owner(Arc::clone(&cell)), Others(cell))
}

impl<T> Owner<T> {
    /// Runs `body` on the value, unless another thread wants it.
    #[inline]
    pub(super) fn try_with<R>(&mut self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        let cell = &*self.0;
        cell.taken.store(true, Ordering::Relaxed);
        let _left = Left(cell);
        cell.barrier.often();
        // Acquire: what another did to the value is done.
        if cell.wanted.load(Ordering::Acquire) {
            return None;
        }
        Some(cell.value.with_mut(|value| {
            // SAFETY: nobody wanted the value after `taken` was true, so whoever wants it now waits until `_left` is
            // dropped; `self` is borrowed mutably and the only owner.
            body(unsafe { &mut *value })
        }))
    }

    /// Runs `body` on the value when nobody else wants it.
    pub(super) fn with<R>(&mut self, body: impl FnOnce(&mut T) -> R) -> R {
        let mut body = Some(body);
        loop {
            match self.try_with(|value| body.take().map(|body| body(value))) {
                Some(Some(result)) => return result,
                // Without raising the own flag again: whoever wants the value looks at it.
                _ => {
                    while self.0.wanted.load(Ordering::Relaxed) {
                        yield_now();
                    }
                }
            }
        }
    }
}

impl<T> Others<T> {
    /// The owner is gone.
    pub(super) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// Runs `body` on the value of each cell, for which their owners are refused meanwhile. False if the kernel has no barrier
/// for that, and nothing was done. Two calls for the same cells must have them in the same order.
pub(super) fn with_each<T>(cells: &[Others<T>], mut body: impl FnMut(&mut T)) -> bool {
    let Some(first) = cells.first() else { return true };
    // One barrier for all of them.
    let wanted: Vec<Wanted<'_, T>> = cells.iter().map(|cell| Wanted::new(&cell.0)).collect();
    if !first.0.barrier.seldom() {
        return false;
    }
    for wanted in wanted {
        // Acquire: what the owner did to the value is done.
        while wanted.0.taken.load(Ordering::Acquire) {
            yield_now();
        }
        wanted.0.value.with_mut(|value| {
            // SAFETY: the owner is not at the value, and sees that it is wanted before it gets there again; `wanted` has
            // the lock of the others.
            body(unsafe { &mut *value });
        });
    }
    true
}

/// The owner does not take the value before this is dropped, if it sees that it is wanted.
struct Wanted<'c, T>(&'c Cell<T>, #[allow(dead_code, reason = "held")] MutexGuard<'c, ()>);

impl<'c, T> Wanted<'c, T> {
    fn new(cell: &'c Cell<T>) -> Self {
        let others = lock(&cell.others);
        cell.wanted.store(true, Ordering::Relaxed);
        Self(cell, others)
    }
}

impl<T> Drop for Wanted<'_, T> {
    fn drop(&mut self) {
        // Release: what was done to the value is done for its owner. The lock is let go of after this.
        self.0.wanted.store(false, Ordering::Release);
    }
}

/// The owner leaves the value when this is dropped, also when a panic passes.
struct Left<'c, T>(&'c Cell<T>);

impl<T> Drop for Left<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: what was done to the value is done for the others.
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(all(loom, test))]
mod models {
    use super::*;
    use loom::thread;

    /// The owner and two others: whoever gets the value is alone with it, which the cell of the model checks too, and
    /// sees all that was done before.
    #[test]
    fn one_thread_has_the_value() {
        loom::model(|| {
            let (mut owner, others) = new(0);
            let others = Arc::new([others]);
            let adding = [1, 2].map(|_| {
                let others = Arc::clone(&others);
                thread::spawn(move || assert!(with_each(&others[..], |value| *value += 1)))
            });
            let mine = u32::from(owner.try_with(|value| *value += 1).is_some());
            for thread in adding {
                thread.join().unwrap();
            }
            assert_eq!(owner.try_with(|value| *value), Some(2 + mine));
        });
    }

    /// The owner comes several times while another takes all: each thing is taken by the one or kept by the other.
    #[test]
    fn nothing_is_lost_between_its_owner_and_who_takes_all() {
        loom::model(|| {
            let (mut owner, others) = new(Vec::new());
            let taking = thread::spawn(move || {
                let mut taken = Vec::new();
                assert!(with_each(&[others], |value: &mut Vec<u32>| taken.append(value)));
                taken
            });
            let mut own = Vec::new();
            for value in [1, 2] {
                let refused = owner.try_with(|values| values.push(value)).is_none();
                own.extend(refused.then_some(value));
            }
            own.extend(owner.try_with(Vec::pop).flatten());
            own.extend(taking.join().unwrap());
            owner.with(|values| own.append(values));
            own.sort_unstable();
            assert_eq!(own, [1, 2]);
        });
    }
}
