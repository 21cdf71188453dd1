//! Telling of releases that failed once the locks are gone that were held meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;

use crate::driver::Driver;
use crate::error::Error;
use crate::fork;

thread_local! {
    /// How many of [`LateReports`] the thread has.
    static HELD: Cell<usize> = const { Cell::new(0) };
    /// What it is to tell when it has none any more.
    static UNTOLD: RefCell<VecDeque<(Driver, Error)>> = const { RefCell::new(VecDeque::new()) };
}

/// As long as the calling thread has one, the hook for releases that fail ([`Driver::on_release_failure`]) is not called there. It is
/// when the last one is dropped, once for each release that failed meanwhile, in order; they count at once.
///
/// For owners above this crate that call the driver, or drop what does, with locks held that the program's hook may wait for. Made
/// before the lock is taken, it is dropped after that. Forgotten, the thread tells of no failure any more, and all are counted.
///
/// ```
/// use cuda_mem_core::LateReports;
/// use std::sync::Mutex;
///
/// let books = Mutex::new(vec![1]);
/// let reports = LateReports::new();
/// if let Ok(mut books) = books.lock() {
///     books.clear(); // what is dropped here may fail to be released
/// }
/// drop(reports); // here the hook hears of it, and may look at the books
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
            // As long as it tells the thread still has one: what the hook itself fails to release is told behind the others, and not
            // from within.
            while let Some((driver, error)) =
                UNTOLD.try_with(|untold| untold.borrow_mut().pop_front()).ok().flatten()
            {
                driver.tell_release_failure(&error);
            }
        }
        let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(1)));
    }
}

/// Keeps a failure for later if that is how the calling thread tells of them; whether it is.
pub(crate) fn put_off(driver: Driver, error: &Error) -> bool {
    let is_late = HELD.try_with(|held| held.get() > 0).unwrap_or(false);
    is_late && UNTOLD.try_with(|untold| untold.borrow_mut().push_back((driver, error.clone()))).is_ok()
}
