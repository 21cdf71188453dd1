//! What threads share: the standard library's locks and atomics, or the model checker's under `--cfg loom`; waits of both caches.
//!
//! # Safety
//!
//! [`Exclusive`] has nothing in it, so any number of threads may have it at once: the model checker objects when two touch it.

#![allow(unsafe_code, reason = "shares the model checker's cell")]

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use cuda_mem_core::{LateReports, Result, StreamId, UsePoint};

#[cfg(all(loom, test))]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::yield_now,
};

#[cfg(not(all(loom, test)))]
pub(crate) use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::yield_now,
};

/// The standard library's cell, with the model checker's method.
#[cfg(not(all(loom, test)))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(loom, test)))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, body: impl FnOnce(*mut T) -> R) -> R {
        body(self.0.get())
    }
}

/// Marks what one thread at a time may touch. The model checker reports two at once; elsewhere it is nothing.
#[derive(Debug, Default)]
pub(crate) struct Exclusive(#[cfg(all(loom, test))] UnsafeCell<()>);

impl Exclusive {
    #[inline]
    pub(crate) fn touch(&self) {
        #[cfg(all(loom, test))]
        self.0.with_mut(|_| ());
    }
}

// SAFETY: nothing is in it.
#[cfg(all(loom, test))]
unsafe impl Sync for Exclusive {}

/// A number that no other call in this process gives, from 1 on.
pub(crate) fn unique() -> u64 {
    use std::sync::atomic::AtomicU64;
    // Not one of a model's: its value goes on from one to the next.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Locks, also after a panic elsewhere: each statement under these locks leaves their values consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks as [`lock`], unless another thread has the lock.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// Locks as [`lock`], for code that calls the driver under the lock or drops owners there. The program's hook hears of failed
/// releases after the unlock, since it may wait for the lock.
pub(crate) fn lock_over_calls<T>(mutex: &Mutex<T>) -> OverCalls<'_, T> {
    let reports = LateReports::new();
    OverCalls { guard: lock(mutex), _reports: reports }
}

/// The guard of [`lock_over_calls`].
#[derive(Debug)]
pub(crate) struct OverCalls<'m, T> {
    guard: MutexGuard<'m, T>,
    /// Declared behind the lock, so dropped after it.
    _reports: LateReports,
}

impl<T> Deref for OverCalls<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for OverCalls<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A moment in a wait for somebody who does nothing long: at first without the system, which has the thread come back late. After
/// that it sleeps, for a holder that does not run because those who wait for it do.
pub(crate) fn wait_a_moment(tries: &mut u32) {
    const SPINS: u32 = if cfg!(all(loom, test)) { 0 } else { 64 };
    const YIELDS: u32 = if cfg!(all(loom, test)) { u32::MAX } else { 256 };
    const SLEEP: std::time::Duration = std::time::Duration::from_micros(50);
    match *tries {
        tries if tries < SPINS => std::hint::spin_loop(),
        tries if tries < YIELDS => yield_now(),
        _ => std::thread::sleep(SLEEP),
    }
    *tries = tries.saturating_add(1);
}

/// Whether a freed block's uses are over, by their points, which are recorded where there are none. `behind` are the streams that have not come
/// far enough for an earlier block: they are not asked again.
pub(crate) fn are_over(
    points: &mut Option<Vec<UsePoint>>,
    behind: &mut Vec<StreamId>,
    record: impl FnOnce() -> Result<Vec<UsePoint>>,
    is_reached: impl Fn(&UsePoint) -> Result<bool>,
) -> bool {
    // A capture may have ended.
    let Some(known) = points.take().or_else(|| record().ok()) else { return false };
    let (is_behind, mut is_known) = (known.iter().any(|point| behind.contains(&point.stream().id())), true);
    let is_over = !is_behind
        && known.iter().all(|point| {
            let reached = is_reached(point);
            is_known &= reached.is_ok();
            if matches!(reached, Ok(false)) {
                behind.push(point.stream().id());
            }
            reached.unwrap_or(false)
        });
    // A capture may have had a point that ended before it was noticed: it says nothing then. The next call records others.
    *points = is_known.then_some(known);
    is_over
}

type Flag = &'static std::thread::LocalKey<Cell<bool>>;

thread_local! {
    /// The thread is in an upstream or a filter of device memory: what these allocate goes to no private pool, which would ask them again.
    pub(crate) static IN_FOREIGN_CODE: Cell<bool> = const { Cell::new(false) };
    /// The thread asks filters of pinned memory, of which the same is true.
    pub(crate) static ASKING: Cell<bool> = const { Cell::new(false) };
    /// The thread is in a watcher, and has the page source.
    pub(crate) static WATCHING: Cell<bool> = const { Cell::new(false) };
    /// The thread is in a tracker, and has the turn to tell.
    pub(crate) static TELLING: Cell<bool> = const { Cell::new(false) };
    /// The thread is in what tells stacks, and may have blocks in hand.
    pub(crate) static IN_PROVIDER: Cell<bool> = const { Cell::new(false) };
}

/// Sets a flag of the thread until it is dropped, also when a panic passes.
#[derive(Debug)]
pub(crate) struct Inside {
    flag: Flag,
    before: bool,
}

impl Inside {
    pub(crate) fn new(flag: Flag) -> Self {
        let before = flag.try_with(|flag| flag.replace(true)).unwrap_or(false);
        Self { flag, before }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // A thread at its end has no flag.
        let _ = self.flag.try_with(|flag| flag.set(self.before));
    }
}

pub(crate) fn is_set(flag: Flag) -> bool {
    flag.try_with(Cell::get).unwrap_or(false)
}

/// Waits for what other threads do soon.
pub(crate) fn wait_until(mut is_over: impl FnMut() -> bool) {
    let mut tries = 0;
    while !is_over() {
        wait_a_moment(&mut tries);
    }
}

/// As [`wait_until`], unless those threads may wait for this one.
pub(crate) fn wait_unless_awaited(mut are_done: impl FnMut() -> bool) {
    let is_awaited = [&IN_FOREIGN_CODE, &ASKING, &WATCHING, &TELLING, &IN_PROVIDER].into_iter().any(is_set);
    wait_until(|| is_awaited || are_done());
}

/// Writes setters of options that are passed by value: `with_NAME(FIELD: TYPE) => VALUE` gives the field the value.
macro_rules! setters {
    ($($with:ident($field:ident: $type:ty) => $value:expr;)*) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $with(mut self, $field: $type) -> Self {
            self.$field = $value;
            self
        }
    )*};
}
pub(crate) use setters;
