//! Registrations that are undone only while no stream is busy.
//!
//! Before the driver unregisters memory it waits for all work of the contexts that have it, and meanwhile it holds up whoever
//! launches, copies, records an event, registers memory, or makes or destroys a stream (seen on hardware). A stream that waits
//! for another process would so hold up the very thread that could let it go. Memory that other processes have too goes when a
//! peer dies, whatever the streams are doing at that moment: it waits here.
//!
//! The driver can be asked about all of a context at once, by `cuCtxRecordEvent`, but that ends every capture in it, whatever mode the thread is
//! in (seen on hardware). So each stream is asked that core knows of. What is not known here is waited for by the driver's call: work of default
//! streams of threads but for their waits for words, of streams that others made and never lent, and of streams that were destroyed.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, Weak};
use std::thread;
use std::time::Duration;

use super::known::KnownStreams;
use crate::driver::deferred::{Release, catch_panic};
use crate::driver::{self, Driver, LateReports, Service, are_late, fork, lock};
use crate::error::{Error, Result};

/// How long a busy device is left alone, at first and at most.
const PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(800)];

/// Within so long an idle stream comes to an event: it takes some microseconds.
const REACHED: Duration = Duration::from_millis(1);

/// Whether the thread is there that tries again.
static IS_TRYING: Mutex<bool> = Mutex::new(false);

/// Words that streams are made to wait for.
pub(crate) trait Awaited: Send + Sync {
    /// Whether a stream waits for one that is not there yet.
    fn is_awaited(&self) -> bool;
}

/// What one driver has of it.
#[derive(Default)]
pub(crate) struct WhenIdle {
    /// How many wait or are being undone, so that the usual case costs one load.
    count: AtomicUsize,
    waiting: Mutex<Vec<Box<dyn Release>>>,
    /// Shared while a stream is given a wait for a word, and alone while memory is unregistered: no such wait comes between the look
    /// at the streams and the driver's own.
    giving: RwLock<()>,
    pub(super) streams: KnownStreams,
    /// For the default streams of threads, which no other thread can ask about.
    words: Mutex<Vec<Weak<dyn Awaited>>>,
}

/// Has attempts fail until the result is dropped. To be held around a driver's call that has a stream wait for a word, and no longer.
pub(crate) fn giving_a_wait(driver: Driver) -> RwLockReadGuard<'static, ()> {
    driver.service::<WhenIdle>().giving.read().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    /// How many registrations of memory that other processes have too wait to be undone until no stream is busy.
    ///
    /// Such memory ([`SharedMapping`](crate::host::SharedMapping), [`SharedWords`](crate::ipc::SharedWords)) stays pinned
    /// and mapped until then. It is looked for by a thread, which is there while something waits. While no stream is lent
    /// to code that could capture it ([`Stream::borrow_raw`](crate::Stream::borrow_raw), [`Stream::legacy`](crate::Stream::legacy),
    /// [`Stream::as_raw`](crate::Stream::as_raw), [`Stream::wait`](crate::Stream::wait)), it is also looked for whenever such memory is
    /// registered or dropped: the others are asked by an event, for which only that thread has the time.
    ///
    /// What is not known here is not looked at, and the driver waits for it as for any free, and launches wait too: work
    /// of the default streams of threads, but for their waits for fences ([`FenceLine`](crate::FenceLine)); of streams that were
    /// never lent here; and of those that were destroyed.
    #[must_use]
    pub fn registrations_left(self) -> usize {
        if fork::forked() { 0 } else { self.service::<WhenIdle>().count.load(Ordering::SeqCst) }
    }

    /// Calls `free`, which frees or unregisters memory, if no stream is busy, and keeps streams from being given waits for fences until
    /// it has returned. None, and it was not called, if one is busy or captures, or if another thread is just giving one such a wait.
    ///
    /// For memory that can be freed at any time, by a thread that no other waits for: the driver waits for all streams before it frees, and holds up
    /// launches meanwhile. Streams that were lent ([`Driver::registrations_left`] tells which) are asked by an event, which takes a
    /// millisecond. What is not known here is not looked at, as there.
    ///
    /// `free` must not have streams wait for fences, nor call what may: it would wait for itself.
    ///
    /// # Capture
    ///
    /// A stream that captures is busy, and its capture stays as it is.
    pub fn while_idle<R>(self, free: impl FnOnce() -> R) -> Option<R> {
        if fork::forked() {
            return None;
        }
        let (waiting, points) = (self.service::<WhenIdle>(), self.record_points());
        waiting.alone_if(|| waiting.is_idle(self, points), free)
    }

    /// As [`Driver::while_idle`], if streams may be busy with what ends by itself: none of them waits for a fence that is not reached. The
    /// driver then waits for their work, and holds up launches for as long.
    ///
    /// # Capture
    ///
    /// As there, but for streams that capture, which are not looked at.
    pub fn while_nothing_is_awaited<R>(self, free: impl FnOnce() -> R) -> Option<R> {
        self.service::<WhenIdle>().alone_if(|| !self.is_fence_awaited(), free)
    }

    /// Whether a stream waits for a fence that is not reached. Makes no call.
    #[must_use]
    pub fn is_fence_awaited(self) -> bool {
        !fork::forked() && self.service::<WhenIdle>().is_awaited()
    }

    /// Calls what frees or unregisters memory; for who does not wait only while nothing is awaited. [`Error::Timeout`] if something is.
    pub(crate) fn free(self, waits: bool, free: impl FnOnce() -> Result<()>) -> Result<()> {
        if waits {
            return free();
        }
        self.while_nothing_is_awaited(free).unwrap_or(Err(Error::Timeout(Duration::ZERO)))
    }

    fn record_points(self) -> bool {
        let recorded = self.service::<WhenIdle>().streams.record_points(self);
        if recorded {
            thread::sleep(REACHED);
        }
        recorded
    }

    /// Releases what an owner had, as soon as no stream is busy.
    pub(crate) fn release_when_idle(self, owned: impl Release + 'static) {
        self.service::<WhenIdle>().count.fetch_add(1, Ordering::SeqCst);
        lock(&self.service::<WhenIdle>().waiting).push(Box::new(owned));
        if self.undo_if_idle() > 0 {
            keep_trying();
        }
    }

    /// Undoes what waits if no stream is busy, and tells how much still waits. One that was lent counts as busy. Waits for
    /// nothing but the driver's call, and that for nothing but what is not known here.
    pub(crate) fn undo_if_idle(self) -> usize {
        self.undo(|_| false)
    }

    /// As [`Driver::undo_if_idle`], but for streams that were lent, which are asked too. That takes a millisecond, and longer while
    /// somebody frees or unregisters memory: not for a thread that others wait for.
    pub(crate) fn undo_if_all_are_idle(self) -> usize {
        self.undo(Self::record_points)
    }

    fn undo(self, points: impl FnOnce(Self) -> bool) -> usize {
        // A push that the load misses is seen by the next one, who comes after it at the latest.
        let left = self.registrations_left();
        // What is dropped with an owner is the program's.
        if left == 0 || are_late() {
            return left;
        }
        self.service::<WhenIdle>().attempt(self, points(self))
    }
}

impl Service for WhenIdle {
    const SLOT: usize = 0;
}

impl WhenIdle {
    /// Has words looked at, too.
    pub(crate) fn watch(&self, words: Weak<dyn Awaited>) {
        let mut all = lock(&self.words);
        all.retain(|words| words.strong_count() > 0);
        all.push(words);
    }

    /// Has words looked at no more. From here on nobody who looks keeps them.
    pub(crate) fn forget(&self, words: &Arc<impl Awaited>) {
        lock(&self.words).retain(|known| !ptr::addr_eq(known.as_ptr(), Arc::as_ptr(words)));
    }

    fn pop(&self) -> Option<Box<dyn Release>> {
        let mut waiting = lock(&self.waiting);
        (!waiting.is_empty()).then(|| waiting.remove(0))
    }

    fn attempt(&self, driver: Driver, points: bool) -> usize {
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        let reports = LateReports::new();
        let alone = self.alone();
        if alone.is_some() {
            for _ in 0..self.count.load(Ordering::SeqCst) {
                if !self.is_idle(driver, points) {
                    break;
                }
                let Some(mut owned) = self.pop() else { break };
                match driver.attempt(|| owned.release(false)) {
                    Ok(()) => done.push(owned),
                    Err(error) if error.may_pass() => lock(&self.waiting).push(owned),
                    Err(error) => refused.push((owned, error)),
                }
            }
        }
        // Alone no longer: a hook of the program's may have streams wait for words, and so may a drop.
        drop(alone);
        drop(reports);
        let ended = done.len().saturating_add(refused.len());
        for owned in done {
            catch_panic(|| drop(owned));
        }
        refused.into_iter().for_each(|(owned, error)| driver.give_up(owned, &error));
        self.count.fetch_sub(ended, Ordering::SeqCst).saturating_sub(ended)
    }

    fn is_idle(&self, driver: Driver, points: bool) -> bool {
        !self.is_awaited() && self.streams.are_idle(driver, points)
    }

    fn is_awaited(&self) -> bool {
        let is_awaited = |words: &Weak<dyn Awaited>| words.upgrade().is_some_and(|words| words.is_awaited());
        lock(&self.words).iter().any(is_awaited)
    }

    /// The right to free while no stream is given a wait; none if somebody gives one, or frees, just now.
    fn alone(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        match self.giving.try_write() {
            Ok(alone) => Some(alone),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn alone_if<R>(&self, is_so: impl FnOnce() -> bool, free: impl FnOnce() -> R) -> Option<R> {
        if fork::forked() {
            return None;
        }
        // The program's hook may have streams wait for words.
        let _reports = LateReports::new();
        let _alone = self.alone()?;
        is_so().then(free)
    }
}

/// Has a thread try until nothing is left.
fn keep_trying() {
    let mut is_trying = lock(&IS_TRYING);
    if *is_trying {
        return;
    }
    let thread = thread::Builder::new().name("cuda-mem-idle".into()).spawn(try_until_nothing_is_left);
    // Without one it is left for the next drop of such memory, which tries again.
    *is_trying = thread.is_ok();
}

fn try_until_nothing_is_left() {
    let [mut pause, most] = PAUSE;
    loop {
        thread::sleep(pause);
        pause = (pause * 2).min(most);
        driver::all().into_iter().for_each(|driver| {
            driver.undo_if_all_are_idle();
        });
        let mut is_trying = lock(&IS_TRYING);
        // Under the lock, also which drivers there are: who adds something after this starts the next one.
        if driver::all().iter().all(|driver| driver.registrations_left() == 0) {
            *is_trying = false;
            return;
        }
    }
}
