//! What could not be released when its owner was dropped.
//!
//! A stream that captures a graph can neither free memory nor be waited for. What was used on it waits here; each later
//! allocation and each later release of the driver tries again.
//!
//! # Safety
//!
//! Relies on nothing but what stands here: memory is taken out of its owner where the owner ends.

#![allow(unsafe_code, reason = "takes memory out of its owner")]

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Driver, are_late, fork, lock, refusal_in_host_function};
use crate::error::{Error, Result};

/// Something to give back to the driver.
pub(crate) trait Release: Send {
    /// Gives it back. After an error it is still there; if that is [`Error::Timeout`] too, it is only not yet the time. Who drops or closes it
    /// `waits` for its uses, and who comes upon it later does not: that caller has other work, which the uses may be waiting for.
    fn release(&mut self, waits: bool) -> Result<()>;
}

/// Memory of an owner, which goes back to the driver when the owner is dropped: now if possible, and later if not.
#[derive(Debug)]
pub(crate) struct Owned<R: Held>(ManuallyDrop<R>);

/// What an owner has.
pub(crate) trait Held: Release + 'static {
    fn driver(&self) -> Driver;

    /// Whether there is nothing, or nothing any more, to give back.
    fn is_released(&self) -> bool;
}

impl<R: Held> Owned<R> {
    pub(crate) fn new(held: R) -> Self {
        Self(ManuallyDrop::new(held))
    }

    /// Without giving it back.
    pub(crate) fn into_inner(self) -> R {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once: `this` is neither dropped nor used again.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<R: Held> Deref for Owned<R> {
    type Target = R;

    #[inline]
    fn deref(&self) -> &R {
        &self.0
    }
}

impl<R: Held> DerefMut for Owned<R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.0
    }
}

impl<R: Held> Drop for Owned<R> {
    fn drop(&mut self) {
        // SAFETY: taken once; the value is not used after its drop.
        let held = unsafe { ManuallyDrop::take(&mut self.0) };
        if !held.is_released() && !fork::forked() {
            held.driver().release_or_defer(held);
        }
    }
}

/// What waits, of one driver.
#[derive(Default)]
pub(crate) struct Deferred {
    /// How many wait or are being released, so that the usual case costs one load.
    count: AtomicUsize,
    waiting: Mutex<Vec<Box<dyn Release>>>,
}

impl Driver {
    /// Releases memory whose owner was dropped at a moment when the driver would not take it, and returns how many owners'
    /// memory still waits, or is released by another thread right now. Uses that run yet are not waited for: their memory waits on, and so does
    /// what the driver frees behind all work of a context, while a stream waits for a fence ([`FenceLine`](crate::FenceLine)). A panic of
    /// an owner's own drop is swallowed; that drop may wait, as that of an allocator does which ends with its last block.
    ///
    /// That is the case while a stream that used the memory captures a graph, while only another thread can name a default
    /// stream that used it, while a stream that used it is just being disowned ([`Stream::disown`](crate::Stream::disown)), while the host
    /// function runs that dropped it, and for what is to be dropped behind the free of an imported block. Every allocation and release does
    /// this by itself, and it costs next to nothing where nothing was put off. What [`Driver::registrations_left`] counts is no part of it: no
    /// stream is kept for that. A borrowed stream ([`Stream::borrow_raw`](crate::Stream::borrow_raw)) that memory was used
    /// on may be destroyed when this returns 0 and the memory's owners are gone.
    pub fn reclaim(self) -> usize {
        if fork::forked() { 0 } else { self.deferred().reclaim(self) }
    }

    /// Releases what an owner had, now if possible and later if not.
    pub(crate) fn release_or_defer<R: Release + 'static>(self, mut owned: R) {
        let deferred = self.deferred();
        deferred.reclaim(self);
        match self.attempt(|| owned.release(true)) {
            Ok(()) => {}
            Err(error) if error.may_pass() || refusal_in_host_function(self).is_some() => {
                deferred.count.fetch_add(1, Ordering::Relaxed);
                lock(&deferred.waiting).push(Box::new(owned));
            }
            Err(error) => self.give_up(owned, &error),
        }
    }

    /// Leaks what the driver refuses to take: whatever is behind it may still be in use.
    pub(crate) fn give_up<O>(self, owned: O, error: &Error) {
        let _ = ManuallyDrop::new(owned);
        self.report_release_failure(error);
    }
}

impl Deferred {
    fn reclaim(&self, driver: Driver) -> usize {
        // A push that this load misses is seen by the next one. Acquire: what another thread has counted off is released by now.
        let waiting = self.count.load(Ordering::Acquire);
        // What is dropped with an owner is the program's. In a host function the driver takes nothing, and what waits would be leaked.
        if waiting == 0 || are_late() || refusal_in_host_function(driver).is_some() {
            return waiting;
        }
        let taken = std::mem::take(&mut *lock(&self.waiting));
        // Without the lock: a release that fails runs the program's hook, which may drop owners of its own.
        let (mut still, mut ended) = (Vec::new(), 0);
        for mut owned in taken {
            match catch_panic(|| driver.attempt(|| owned.release(false))) {
                Some(Err(error)) if error.may_pass() => {
                    still.push(owned);
                    continue;
                }
                Some(Err(error)) => driver.give_up(owned, &error),
                Some(Ok(())) | None => {
                    catch_panic(|| drop(owned));
                }
            }
            ended += 1;
        }
        lock(&self.waiting).append(&mut still);
        self.count.fetch_sub(ended, Ordering::AcqRel).saturating_sub(ended)
    }
}

/// Calls code of the program, whose panic must not unwind through the caller: owners found on the way, hooks, callbacks. `None` if it
/// panicked; the panic hook has reported it.
#[doc(hidden)]
pub fn catch_panic<R>(body: impl FnOnce() -> R) -> Option<R> {
    // The payload's own drop might panic again.
    catch_unwind(AssertUnwindSafe(body)).map_err(ManuallyDrop::new).ok()
}

/// What is to be dropped when memory has gone back to the driver, in this order.
#[derive(Default)]
pub(crate) struct Guards(Vec<Box<dyn Send + Sync>>);

impl Guards {
    pub(crate) fn add(&mut self, guard: impl Send + Sync + 'static) {
        self.0.push(Box::new(guard));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl_debug!(Guards, |it| count: it.0.len());
