//! A value behind the lock that counts.
//!
//! # Safety
//!
//! Relies on a [`Shard`] being a lock: between taking it and dropping its guard nobody else has it.

#![allow(unsafe_code, reason = "shares a value under the lock that counts")]

use super::{Shard, ShardGuard};
use crate::primitive::UnsafeCell;

/// A value and its shard: taking the value costs one compare-exchange, which serves for counting too.
#[derive(Debug)]
pub(crate) struct CountedCell<T> {
    shard: Shard,
    value: UnsafeCell<T>,
}

impl<T> CountedCell<T> {
    pub(crate) fn new(shard: Shard, value: T) -> Self {
        Self { shard, value: UnsafeCell::new(value) }
    }

    /// Runs `body` on the value, unless somebody has it.
    #[inline]
    pub(crate) fn try_with<R>(&self, body: impl FnOnce(&mut T, &ShardGuard<'_>) -> R) -> Option<R> {
        let guard = self.shard.try_hold()?;
        Some(self.lend(&guard, body))
    }

    /// Runs `body` on the value as soon as nobody has it.
    #[inline]
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T, &ShardGuard<'_>) -> R) -> R {
        let guard = self.shard.hold();
        self.lend(&guard, body)
    }

    #[inline]
    fn lend<R>(&self, guard: &ShardGuard<'_>, body: impl FnOnce(&mut T, &ShardGuard<'_>) -> R) -> R {
        self.value.with_mut(|value| {
            // SAFETY: `guard` is of this shard and was just taken by a caller above, who keeps it until `body` is over: nobody else has
            // the value. `body` cannot put another guard in its place behind a shared reference.
            body(unsafe { &mut *value }, guard)
        })
    }
}

// SAFETY: one thread at a time has the value, under the shard, and it moves between threads as a whole.
unsafe impl<T: Send> Sync for CountedCell<T> {}
