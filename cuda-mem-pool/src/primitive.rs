//! What threads share, from the standard library or, in the models that run with `--cfg loom`, from the model checker.

mod exclusive;

use std::ops::{Deref, DerefMut};

use cuda_mem_core::LateReports;
pub(crate) use exclusive::Exclusive;

#[cfg(all(loom, test))]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

/// The standard library's, with the model checker's way in.
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

/// Locks, also after a panic elsewhere: what is behind the locks here is right after each statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// As [`lock`], unless somebody has it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// As [`lock`], for those who call the driver meanwhile, or drop what does: what the driver refuses to take back the program's hook hears of
/// when the lock is gone, which it may wait for.
pub(crate) fn lock_over_calls<T>(mutex: &Mutex<T>) -> OverCalls<'_, T> {
    let reports = LateReports::new();
    OverCalls { guard: lock(mutex), _reports: reports }
}

/// What [`lock_over_calls`] has locked.
#[derive(Debug)]
pub(crate) struct OverCalls<'m, T> {
    guard: MutexGuard<'m, T>,
    /// Behind the lock, so that it goes later.
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

/// As [`lock`], of something that nobody has for long: who sleeps meanwhile comes back late, and more so the one behind it.
pub(crate) fn lock_soon<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(not(all(loom, test)))]
    {
        // Most are through within the first few; the rest are for a holder that does not run.
        const TRIES: u32 = 200;
        let mut tries = 0;
        for _ in 0..TRIES {
            match try_lock(mutex) {
                Some(guard) => return guard,
                None => wait_a_moment(&mut tries),
            }
        }
    }
    lock(mutex)
}

/// Lets another thread go on.
pub(crate) fn yield_now() {
    #[cfg(all(loom, test))]
    loom::thread::yield_now();
    #[cfg(not(all(loom, test)))]
    std::thread::yield_now();
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
