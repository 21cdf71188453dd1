//! Until when something may take, and waiting that long, for many at once.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// The moment at which an operation gives up.
///
/// Every operation that may wait takes one, as a [`Duration`] from now, an [`Instant`], or a deadline that several operations
/// share. One that has passed makes an operation do what it can at once.
///
/// ```
/// use std::time::Duration;
///
/// use cuda_mem_ipc::transport::Deadline;
///
/// let whole = Deadline::after(Duration::from_secs(5));
/// assert!(whole.remaining() <= Duration::from_secs(5));
/// assert!(Deadline::after(Duration::ZERO).has_passed());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        /// As good as never, and on every clock.
        const FAR: Duration = Duration::from_secs(1 << 30);
        let now = Instant::now();
        Self(now.checked_add(time).or_else(|| now.checked_add(FAR)).unwrap_or(now))
    }

    /// The time that is left; zero when it has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether no time is left.
    #[must_use]
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }
}

impl From<Duration> for Deadline {
    fn from(time: Duration) -> Self {
        Self::after(time)
    }
}

impl From<Instant> for Deadline {
    fn from(moment: Instant) -> Self {
        Self(moment)
    }
}

/// Waits for an event at any of the descriptors, also through signals; `false` when the deadline passed first.
pub(super) fn wait(descriptors: &mut [PollFd<'_>], deadline: Deadline) -> Result<bool> {
    loop {
        let left = deadline.remaining();
        // What the system's clock cannot hold is for ever; it is asked again then.
        let left_of_it = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1 << 30, tv_nsec: 0 });
        match poll(descriptors, Some(&left_of_it)) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(Error::system("poll")(errno)),
        }
    }
}

/// Asks again and again until something is so.
pub(crate) fn until(deadline: Deadline, what: &'static str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let mut pause = Duration::from_micros(1);
    while !is_so()? {
        if deadline.has_passed() {
            return Err(Error::Timeout { what });
        }
        // Short waits stay fast, long ones cost little.
        thread::sleep(pause.min(deadline.remaining()));
        pause = (pause * 2).min(Duration::from_micros(200));
    }
    Ok(())
}

/// Waits for any of several descriptors: of listeners, connections, peers and whatever else a server thread looks after.
///
/// A thread makes one for each turn, of what it looks after then. Each descriptor comes with a key of its own.
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
#[derive(Debug, Default)]
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
        self.keys.push(key);
        self.descriptors.push(PollFd::new(descriptor, PollFlags::IN));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_is_a_deadline() {
        assert!(Deadline::after(Duration::MAX).remaining() > Duration::from_secs(1 << 29));
        assert!(Deadline::from(Instant::now()).has_passed());
        let (reader, writer) = std::io::pipe().unwrap();
        drop(writer);
        let mut ended = [PollFd::new(&reader, PollFlags::IN)];
        for time in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            assert!(wait(&mut ended, Deadline::after(time)).unwrap(), "what is there is seen at once");
        }
    }

    #[test]
    fn nothing_is_waited_for_until_the_deadline_and_no_longer() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let deadline = Deadline::after(Duration::from_millis(5));
        assert!(!wait(&mut [PollFd::new(&reader, PollFlags::IN)], deadline).unwrap());
        assert!(deadline.has_passed());
    }
}
