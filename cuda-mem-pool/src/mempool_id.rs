//! Names private pools.

use std::fmt;
// Not the model checker's: the counters order nothing.
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of a private pool, as PyTorch's: `(0, n)` for one that a user made, `(n, 0)` for a graph's, each counted from 1. That of a tag is
/// `(n, n)`, which PyTorch, that counts by itself, gives to none.
///
/// ```
/// use cuda_mem_pool::MempoolId;
///
/// let (users, graphs) = (MempoolId::for_user(), MempoolId::for_graph());
/// assert_eq!((users.0, graphs.1), (0, 0));
/// assert_ne!(users, MempoolId::for_user());
/// assert_eq!(MempoolId::default(), MempoolId::NONE);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MempoolId(pub u64, pub u64);

static USERS: AtomicU64 = AtomicU64::new(1);
static GRAPHS: AtomicU64 = AtomicU64::new(1);
static TAGS: AtomicU64 = AtomicU64::new(1);

impl MempoolId {
    /// Stands for no private pool: `(0, 0)`.
    pub const NONE: Self = Self(0, 0);

    /// The next name for a pool that a user makes. No other call in this process gives the same.
    #[must_use]
    pub fn for_user() -> Self {
        Self(0, USERS.fetch_add(1, Ordering::Relaxed))
    }

    /// The next name for the pool of a graph, as [`MempoolId::for_user`].
    #[must_use]
    pub fn for_graph() -> Self {
        Self(GRAPHS.fetch_add(1, Ordering::Relaxed), 0)
    }

    pub(crate) fn for_tag() -> Self {
        let number = TAGS.fetch_add(1, Ordering::Relaxed);
        Self(number, number)
    }

    pub(crate) fn is_tag_s_own(self) -> bool {
        self.0 == self.1 && self != Self::NONE
    }
}

impl fmt::Display for MempoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.0, self.1)
    }
}
