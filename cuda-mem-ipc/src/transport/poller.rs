//! Waiting for many at once.

use std::fmt;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};

use super::deadline::{Deadline, wait};
use crate::error::Result;

/// Waits for any of several descriptors: of listeners, connections, peers and whatever else a server thread looks after.
///
/// A thread makes one for each turn, of what it looks after then. Each descriptor comes with a key, by which it is known
/// afterwards.
///
/// ```
/// use cuda_mem_ipc::transport::{Poller, pair};
///
/// let ((first, there), (second, _open)) = (pair()?, pair()?);
/// drop(there); // the other side of `first` is gone
/// let mut poller = Poller::new();
/// poller.readable("first", &first);
/// poller.readable("second", &second);
/// assert_eq!(poller.wait(std::time::Duration::from_secs(10))?, ["first"]);
/// # Ok::<(), cuda_mem_ipc::Error>(())
/// ```
pub struct Poller<'fd, K> {
    keys: Vec<K>,
    descriptors: Vec<PollFd<'fd>>,
}

impl<'fd, K: Clone> Poller<'fd, K> {
    /// Of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self { keys: Vec::new(), descriptors: Vec::new() }
    }

    /// Adds something that is ready when there is something to read, to accept or to hear of its end: a listener's client, a
    /// message, the exit of a [`Peer`](super::Peer).
    pub fn readable(&mut self, key: K, descriptor: &'fd impl AsFd) {
        self.add(key, descriptor, PollFlags::IN);
    }

    /// Adds a connection that is ready when its peer's queue has room again, or when it has ended.
    pub fn writable(&mut self, key: K, descriptor: &'fd impl AsFd) {
        self.add(key, descriptor, PollFlags::OUT);
    }

    fn add(&mut self, key: K, descriptor: &'fd impl AsFd, flags: PollFlags) {
        self.keys.push(key);
        self.descriptors.push(PollFd::new(descriptor, flags));
    }

    /// The keys of all that are ready, in the order in which they were added; none when the deadline passed first.
    ///
    /// # Errors
    ///
    /// [`Error::System`](crate::Error::System) when [`poll`](https://man7.org/linux/man-pages/man2/poll.2.html) fails, for
    /// instance of more descriptors than this process may have open.
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<Vec<K>> {
        if !wait(&mut self.descriptors, deadline.into())? {
            return Ok(Vec::new());
        }
        let ready = |(_, descriptor): &(&K, &PollFd<'_>)| !descriptor.revents().is_empty();
        Ok(self.keys.iter().zip(&self.descriptors).filter(ready).map(|(key, _)| key.clone()).collect())
    }
}

impl<K: Clone> Default for Poller<'_, K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug> fmt::Debug for Poller<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("keys", &self.keys).finish_non_exhaustive()
    }
}
