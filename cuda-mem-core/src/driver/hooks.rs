//! Releases that fail: they are counted, and the hook of the program is told, once the locks are gone that were held meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use cuda_mem_sys::CUresult;

use super::Driver;
use super::deferred::catch_panic;
use crate::driver::fork;
use crate::error::Error;

thread_local! {
    /// How many of [`LateReports`] the thread has.
    static HELD: Cell<usize> = const { Cell::new(0) };
    /// What it is to tell when it has none any more.
    static UNTOLD: RefCell<VecDeque<(Driver, Error)>> = const { RefCell::new(VecDeque::new()) };
}

type ReleaseFailureHook = dyn Fn(&Error) + Send + Sync;

/// The releases of one driver that have failed.
#[derive(Default)]
pub(super) struct Failures {
    count: AtomicU64,
    hook: RwLock<Option<Arc<ReleaseFailureHook>>>,
}

impl Driver {
    /// How many releases have failed so far: frees, unregistrations and destructions in `Drop`, which returns no error.
    #[must_use]
    pub fn release_failures(self) -> u64 {
        self.state.failures.count.load(Ordering::Relaxed)
    }

    /// Has `hook` called for each release that fails from now on, in the thread where it fails: at once, or when the locks are gone that
    /// the thread has ([`LateReports`](crate::LateReports)), so that it may ask allocators what they have. It replaces an earlier hook.
    ///
    /// The hook must not panic: a panic in it is swallowed, because it would come out of a `Drop`.
    pub fn on_release_failure(self, hook: impl Fn(&Error) + Send + Sync + 'static) {
        if !fork::forked() {
            let there = &self.state.failures.hook;
            // Dropped without the lock: what the old hook has captured may release something, and fail.
            let _replaced = there.write().unwrap_or_else(PoisonError::into_inner).replace(Arc::new(hook));
        }
    }

    /// Counts a release that failed, and calls the hook: for owners above this crate, whose `Drop` cannot return an error.
    /// Does nothing in a forked child and at the end of the process. A thread with [`LateReports`](crate::LateReports) tells later.
    #[cold]
    pub fn report_release_failure(self, error: &Error) {
        if fork::forked() || error.code() == Some(CUresult::CUDA_ERROR_DEINITIALIZED) {
            // A child has nothing to release; at process exit the driver gave everything back before us.
            return;
        }
        self.state.failures.count.fetch_add(1, Ordering::Relaxed);
        let keep = |untold: &RefCell<VecDeque<_>>| untold.borrow_mut().push_back((self, error.clone()));
        if !are_late() || UNTOLD.try_with(keep).is_err() {
            self.tell_release_failure(error);
        }
    }

    /// Tells the hook.
    fn tell_release_failure(self, error: &Error) {
        let hook = self.state.failures.hook.read().unwrap_or_else(PoisonError::into_inner).clone();
        // Of a panic nobody is left to be told: the hook's documentation forbids it.
        catch_panic(|| {
            #[cfg(feature = "tracing")]
            tracing::warn!(%error, "a release failed");
            if let Some(hook) = hook {
                hook(error);
            }
        });
    }
}

/// As long as the calling thread has one, the hook for releases that fail ([`Driver::on_release_failure`]) is not called there. It is
/// when the last one is dropped, once for each release that failed meanwhile, in order; they count at once.
/// [`Driver::reclaim`] does nothing there, a later call does it: the drop of what the program gave to an owner is its code too.
///
/// For owners above this crate that call the driver, or drop what does, with locks held that the program's hook may wait for. Made
/// before the lock is taken, it is dropped after that. Forgotten, the thread tells of no failure any more, and all are counted.
///
/// ```
/// use cuda_mem_core::LateReports;
/// use std::sync::Mutex;
///
/// let blocks = Mutex::new(vec![1]);
/// let reports = LateReports::new();
/// if let Ok(mut blocks) = blocks.lock() {
///     blocks.clear(); // what is dropped here may fail to be released
/// }
/// drop(reports); // here the hook hears of it, and may look at the blocks
/// ```
#[derive(Debug)]
#[must_use = "reports are late as long as it lives"]
pub struct LateReports {
    /// What is held back is the thread's.
    _not_send: PhantomData<*mut ()>,
}

impl LateReports {
    /// From here on failures are told of later.
    // Without it a value that is made by itself, as a default, would hold the thread's reports back.
    #[allow(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Self {
        // A thread at its end holds nothing back.
        let _ = HELD.try_with(|held| held.set(held.get() + 1));
        Self { _not_send: PhantomData }
    }
}

impl Drop for LateReports {
    fn drop(&mut self) {
        let held = HELD.try_with(Cell::get).unwrap_or(0);
        if held == 1 && !fork::forked() {
            // As long as it tells the thread still has one: what the hook itself fails to release is told behind the others.
            while let Some((driver, error)) =
                UNTOLD.try_with(|untold| untold.borrow_mut().pop_front()).ok().flatten()
            {
                driver.tell_release_failure(&error);
            }
        }
        let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(1)));
    }
}

/// Whether the calling thread has [`LateReports`].
pub(crate) fn are_late() -> bool {
    HELD.try_with(Cell::get).unwrap_or(0) > 0
}
