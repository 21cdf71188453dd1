//! What the program gave to be called, and what its panics come to.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls what must not take its caller along when it panics, between a driver's call and the books, say. None if it did; the panic hook
/// has reported it.
pub(crate) fn quietly<R>(body: impl FnOnce() -> R) -> Option<R> {
    // The payload's own drop might panic again.
    catch_unwind(AssertUnwindSafe(body)).map_err(ManuallyDrop::new).ok()
}
