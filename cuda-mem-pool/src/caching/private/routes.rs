//! Which allocations go where, as the calling thread sees it.

use std::cell::Cell;

use super::Private;
use crate::mempool_id::MempoolId;
use crate::primitive::lock;

thread_local! {
    static ELSEWHERE: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is in somebody's upstream or filter. What that allocates goes to no private pool, which would ask it
/// again.
#[derive(Debug)]
pub(super) struct Unrouted {
    before: bool,
}

impl Unrouted {
    pub(super) fn enter() -> Self {
        // A thread at its end has routes as it had.
        Self { before: ELSEWHERE.try_with(|inside| inside.replace(true)).unwrap_or(false) }
    }
}

impl Drop for Unrouted {
    fn drop(&mut self) {
        let _ = ELSEWHERE.try_with(|inside| inside.set(self.before));
    }
}

impl Private {
    /// The pool that an allocation for a stream goes to.
    pub(super) fn route(&self, stream: u64) -> Option<MempoolId> {
        if ELSEWHERE.try_with(Cell::get).unwrap_or(false) {
            return None;
        }
        // The filters are somebody else's code: they are asked, and dropped, without the lock.
        let routes = lock(&self.state).pools.routes().clone();
        let _unrouted = Unrouted::enter();
        routes.find(stream)
    }
}
