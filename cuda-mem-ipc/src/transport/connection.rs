//! A connection to a checked peer: messages with descriptors, in order, until a deadline.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::address::Address;
use super::channel::Channel;
use super::closing::Descriptors;
use super::deadline::Deadline;
use super::frame::{Frame, MAX_PAYLOAD};
use super::peer::Peer;
use super::pending::Pending;
use super::policy::PeerPolicy;
use super::system::Credentials;
use crate::error::{Error, Result};

/// How long a listener that is not there yet is left alone.
const PAUSE: Duration = Duration::from_millis(2);

/// The first kind that is not the transport's own.
pub const FIRST_KIND: u16 = 16;

/// A connection to a process that the policy admitted.
///
/// Messages arrive whole and in order. A send waits while the peer's queue is full, which holds a few hundred KiB, so a peer that
/// stops to receive costs the sender a [`Timeout`](Error::Timeout) and never memory. A message that is not of the protocol breaks
/// the connection for both sides, and what came with it is closed. When the peer's process ends, calls that wait get an error at once,
/// also if another process still has the socket; what it had sent before is received first.
///
/// All methods take `&self`: threads may send and receive at the same time, and each message goes to one receiver. [`AsFd`]
/// gives the socket, readable when a message is there, for a [`Poller`](super::Poller). A forked child can only drop it, unnoticed.
///
/// ```
/// use std::os::fd::AsFd;
/// use std::thread;
/// use std::time::Duration;
///
/// use cuda_mem_ipc::transport::{FIRST_KIND, PeerPolicy, Pending, pair};
///
/// const LIMIT: Duration = Duration::from_secs(10);
/// let (here, there) = pair()?;
/// // In the other process; here a thread.
/// let other = thread::spawn(move || {
///     let connection = Pending::inherited(there)?.complete(&PeerPolicy::default(), LIMIT)?;
///     let message = connection.recv(LIMIT)?;
///     connection.send(message.kind + 1, b"thanks", &[], LIMIT)
/// });
///
/// let connection = here.complete(&PeerPolicy::default(), LIMIT)?;
/// let file = std::fs::File::open("/dev/null")?;
/// connection.send(FIRST_KIND, b"have this", &[file.as_fd()], LIMIT)?;
/// let answer = connection.recv(LIMIT)?;
/// assert_eq!((answer.kind, &*answer.payload), (FIRST_KIND + 1, &b"thanks"[..]));
/// assert_eq!((answer.descriptors.len(), connection.peer().pid()), (0, std::process::id())); // a thread of ours, here
/// assert!(connection.peer().is_alive()?);
/// # other.join().map_err(|_| "panicked")??;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Connection {
    channel: Channel,
    peer: Arc<Peer>,
}

/// What came from the peer. [`Connection`] has an example.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// What it is about, from [`FIRST_KIND`] on.
    pub kind: u16,
    /// At most [`MAX_PAYLOAD`] bytes, whatever they are: the peer wrote them.
    pub payload: Vec<u8>,
    /// Descriptors of this process now, with close-on-exec. What they are of is the peer's choice.
    pub descriptors: Descriptors,
    /// Who sent it, if the socket asks for that.
    pub(super) sender: Option<Credentials>,
}

impl Connection {
    /// Connects to a [`Listener`](super::Listener), and is done when both sides have admitted each other.
    ///
    /// It waits while the listener's queue is full, and does not wait for a listener that is not there.
    ///
    /// # Errors
    ///
    /// [`Error::NotListening`] if there is no listener, otherwise as [`Pending::complete`]. The C function is
    /// [`connect`](https://man7.org/linux/man-pages/man2/connect.2.html).
    pub fn connect(address: &Address, policy: &PeerPolicy, deadline: impl Into<Deadline>) -> Result<Self> {
        let deadline = deadline.into();
        policy.expect_explicit(address.is_public())?;
        Pending::connected(address.connect(deadline)?, address.is_public()).complete(policy, deadline)
    }

    /// As [`connect`](Self::connect), to a listener that may not be there yet, or whose process has ended.
    pub(crate) fn connect_soon(address: &Address, policy: &PeerPolicy, deadline: Deadline) -> Result<Self> {
        let mut ended: Option<(_, Error)> = None;
        loop {
            // Its forked children may have its queue, where a connection keeps its place for good: one for each socket file.
            let file = address.directory().and_then(|at| at.join(address.name()).symlink_metadata().ok());
            let file = file.map(|file| (file.ino(), file.ctime(), file.ctime_nsec()));
            ended = match ended.take().filter(|(at, _)| file.is_some() && file == *at) {
                Some((_, error)) if deadline.has_passed() => return Err(error),
                None => match Self::connect(address, policy, deadline) {
                    Err(Error::NotListening { .. }) if !deadline.has_passed() => None,
                    Err(error @ Error::PeerExited { .. }) if !deadline.has_passed() => Some((file, error)),
                    connection => return connection,
                },
                known => known,
            };
            thread::sleep(PAUSE);
        }
    }

    pub(super) fn new(channel: Channel, peer: Peer) -> Self {
        Self { channel, peer: Arc::new(peer) }
    }

    /// The process at the other end. It may be kept longer than the connection.
    #[must_use]
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Sends a message, with duplicates of the descriptors (`SCM_RIGHTS`), which may be closed here as soon as it returns.
    ///
    /// # Errors
    ///
    /// Nothing was sent when it fails. [`Error::Timeout`] when the peer's queue stays full until the deadline, [`Error::TooManyInFlight`] when
    /// the user's processes have too many descriptors under way until then; [`Error::PayloadTooLong`], [`Error::TooManyDescriptors`] and
    /// [`Error::ReservedKind`] for what no message carries; [`Error::DescriptorsRefused`]; [`Error::Closed`], [`Error::PeerExited`],
    /// [`Error::Broken`] when the connection has ended. The C function is [`sendmsg`](https://man7.org/linux/man-pages/man2/sendmsg.2.html).
    pub fn send(
        &self,
        kind: u16,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        if kind < FIRST_KIND {
            return Err(Error::ReservedKind { kind, first: FIRST_KIND });
        }
        if payload.len() > MAX_PAYLOAD {
            return Err(Error::PayloadTooLong { bytes: payload.len(), most: MAX_PAYLOAD });
        }
        // Too many are refused by the channel.
        let count = u16::try_from(descriptors.len()).unwrap_or(u16::MAX);
        let frame = Frame { kind, payload, descriptors: count };
        self.channel.send(frame, descriptors, Some(&self.peer), deadline.into())
    }

    /// Receives the next message.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] when none comes; [`Error::Closed`] and [`Error::PeerExited`] when none can come any more. What is not of the protocol
    /// breaks the connection, and everything that came with it is closed: [`Error::Frame`], [`Error::DescriptorCount`],
    /// [`Error::ControlTruncated`], [`Error::ReservedKind`], and [`Error::Broken`] from then on. The C function is
    /// [`recvmsg`](https://man7.org/linux/man-pages/man2/recvmsg.2.html).
    pub fn recv(&self, deadline: impl Into<Deadline>) -> Result<Message> {
        use Error::{ControlTruncated, DescriptorCount, Frame, ReservedKind};
        self.hear(deadline.into()).map_err(|error| match error {
            Frame(_) | DescriptorCount { .. } | ControlTruncated { .. } | ReservedKind { .. } => {
                self.breaks(error)
            }
            error => error,
        })
    }

    /// As [`recv`](Self::recv), for who ends the connection itself after what is not of the protocol.
    pub(crate) fn hear(&self, deadline: Deadline) -> Result<Message> {
        let message = self.channel.receive(Some(&self.peer), deadline)?;
        let (kind, first) = (message.kind, FIRST_KIND);
        if kind < first { Err(Error::ReservedKind { kind, first }) } else { Ok(message) }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.channel.is_broken()
    }

    /// Ends the connection for both sides because of what a message said, which is handed back.
    pub(crate) fn breaks(&self, error: Error) -> Error {
        self.channel.breaks(error)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.socket.as_fd()
    }
}
