//! Which allocations go to which private pool.

use std::fmt;
use std::sync::Arc;
use std::thread;

use crate::error::PoolError;
use crate::mempool_id::MempoolId;

/// Says of an allocation for a stream, in the thread that makes it, whether it goes to a pool.
///
/// ```
/// use cuda_mem_pool::segments::Filter;
///
/// assert!(Filter::stream(7).accepts(7) && !Filter::stream(7).accepts(8));
/// let here = Filter::this_thread();
/// assert!(here.accepts(7));
/// assert!(!std::thread::spawn(move || here.accepts(7)).join().unwrap());
/// ```
#[derive(Clone)]
pub struct Filter(Arc<dyn Fn(u64) -> bool + Send + Sync>);

impl Filter {
    /// What `accepts` says of a stream, asked in the allocating thread.
    pub fn new(accepts: impl Fn(u64) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(accepts))
    }

    /// All allocations for this stream.
    #[must_use]
    pub fn stream(stream: u64) -> Self {
        Self::new(move |asked| asked == stream)
    }

    /// All allocations that the calling thread makes.
    #[must_use]
    pub fn this_thread() -> Self {
        let this = thread::current().id();
        Self::new(move |_| thread::current().id() == this)
    }

    /// Whether an allocation for the stream, in the calling thread, goes to the pool.
    #[must_use]
    pub fn accepts(&self, stream: u64) -> bool {
        (self.0)(stream)
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter").finish_non_exhaustive()
    }
}

/// The routes at one moment, the innermost last. A clone of them can be asked where no lock is held: filters are other
/// people's code. [`Filter`] has an example of what they choose by.
#[derive(Debug, Clone, Default)]
pub struct Routes(Vec<(MempoolId, Filter)>);

impl Routes {
    /// The pool that an allocation for the stream, in the calling thread, goes to: of the filters that accept it, the one that
    /// was begun last decides.
    #[must_use]
    pub fn find(&self, stream: u64) -> Option<MempoolId> {
        self.0.iter().rev().find(|(_, filter)| filter.accepts(stream)).map(|&(id, _)| id)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether allocations go to the pool.
    #[must_use]
    pub fn has(&self, id: MempoolId) -> bool {
        self.0.iter().any(|&(routed, _)| routed == id)
    }

    pub(super) fn begin(&mut self, id: MempoolId, filter: Filter) {
        self.0.push((id, filter));
    }

    pub(super) fn end(&mut self, id: MempoolId) -> Result<Filter, PoolError> {
        let place = self.0.iter().position(|&(routed, _)| routed == id);
        Ok(self.0.remove(place.ok_or(PoolError::NotRouted { id })?).1)
    }
}
