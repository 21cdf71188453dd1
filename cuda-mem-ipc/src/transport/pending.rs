//! A socket whose other end is not known yet, and the first message in each direction: which versions a side speaks, and which process it is.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | least version |
//! | 2 | 2 | highest version |
//! | 4 | 4 | process number |
//! | 8 | 8 | start of the process, in clock ticks after the system's |
//!
//! Its frame is always of the least version, [`MIN_VERSION`] of the first release, so that any two releases understand it; later
//! ones may put more behind it, which is not read.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::channel::{Channel, Packet, Socket, guard};
use super::connection::Connection;
use super::deadline::Deadline;
use super::frame::{Frame, MAX_VERSION, MIN_VERSION};
use super::peer::{Peer, own_start_time};
use super::policy::PeerPolicy;
use crate::error::{Error, Result};

/// One end of something that becomes a [`Connection`] when both sides have admitted each other.
///
/// A server gets it from [`Listener::accept`](super::Listener::accept), a parent from [`pair`], a child from
/// [`inherited`](Self::inherited). [`AsFd`] gives the socket, readable when the peer has said hello: a server that completes it
/// only then does not wait for a client that says nothing. [`Connection`] and [`pair`] have examples.
#[derive(Debug)]
pub struct Pending {
    socket: Socket,
    end: End,
    /// Whether everybody in the network namespace can have connected.
    is_public: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The system knows who connected, listens, or made the pair.
    Known,
    /// The end that the maker of a pair keeps: the system would name the maker itself.
    Maker,
}

/// Two connected ends: one to keep, and a descriptor for a child.
///
/// The descriptor has close-on-exec; the standard library gives it to a child as one of its standard streams. Nothing else needs to be
/// agreed on, no name exists, and both sides still check each other: whoever holds the child's end says hello, and the system
/// tells the parent who that is.
///
/// ```no_run
/// use std::os::fd::AsFd;
/// use std::process::{Command, Stdio};
/// use std::time::Duration;
///
/// use cuda_mem_ipc::transport::{PeerPolicy, Pending, pair};
///
/// const LIMIT: Duration = Duration::from_secs(10);
/// // The parent. Its copy of the child's end goes with the `Command`.
/// let (here, there) = pair()?;
/// let child = Command::new("worker").stdin(Stdio::from(there)).spawn()?;
/// let policy = PeerPolicy::default().with_predicate(move |peer| peer.pid() == child.id());
/// let connection = here.complete(&policy, LIMIT)?;
///
/// // The child.
/// let there = std::io::stdin().as_fd().try_clone_to_owned()?;
/// let connection = Pending::inherited(there)?.complete(&PeerPolicy::default(), LIMIT)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The C function is [`socketpair`](https://man7.org/linux/man-pages/man2/socketpair.2.html).
pub fn pair() -> Result<(Pending, OwnedFd)> {
    let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(Error::system("socketpair"))?;
    // Before the child can send: the system notes senders only for who has asked.
    sockopt::set_socket_passcred(&here, true).map_err(Error::system("setsockopt(SO_PASSCRED)"))?;
    guard(there.as_fd());
    Ok((Pending { socket: Socket::guarded(here), end: End::Maker, is_public: false }, there))
}

impl Pending {
    /// From a socket that has connected.
    pub(super) fn connected(socket: Socket, is_public: bool) -> Self {
        Self { socket, end: End::Known, is_public }
    }

    /// From one that a listener has accepted.
    pub(super) fn accepted(socket: OwnedFd, is_public: bool) -> Self {
        Self::connected(Socket::new(socket), is_public)
    }

    /// In a child: from the descriptor that the parent made by [`pair`]; [`Error::NotAnEnd`] for another kind. It gets close-on-exec.
    pub fn inherited(socket: OwnedFd) -> Result<Self> {
        expect_end(&socket)?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(Error::system("fcntl(F_SETFD)"))?;
        Ok(Self::accepted(socket, false))
    }

    /// Finds out who is there, checks it against the policy, and exchanges hellos.
    ///
    /// Nothing is sent to a peer that is not admitted, and it finds the connection closed. The end that [`pair`] kept is the one
    /// exception to "who is it" before "what does it say": only the sender of the first message is told by the system, so that
    /// message, which may have no descriptors, is read first. Nobody can send descriptors before it is admitted (Linux 6.16); what comes
    /// with descriptors all the same is closed in the background, so that the deadline holds.
    ///
    /// # Errors
    ///
    /// [`Error::ImplicitPolicy`] for the default policy with an abstract name; [`Error::PeerRefused`] by the policy here, [`Error::Closed`] by the
    /// peer's; [`Error::PeerExited`], [`Error::PeerUnknown`], [`Error::PeerMismatch`] when it is not clear who the peer is; [`Error::NoHello`],
    /// [`Error::NoCommonVersion`] and those of [`Connection::recv`] for what is no peer of this protocol; [`Error::Timeout`].
    pub fn complete(self, policy: &PeerPolicy, deadline: impl Into<Deadline>) -> Result<Connection> {
        let deadline = deadline.into();
        self.socket.check_process()?;
        policy.expect_explicit(self.is_public)?;
        let (peer, channel, first) = match self.end {
            End::Known => {
                let peer = Peer::of_socket(self.socket.as_fd())?;
                policy.check(&peer)?;
                let channel = Channel::new(self.socket)?;
                // Before the peer can know that it is admitted.
                channel.socket().take_descriptors();
                say_hello(&channel, &peer, deadline)?;
                let first = channel.receive(Some(&peer), deadline)?;
                (peer, channel, first)
            }
            End::Maker => {
                let channel = Channel::new(self.socket)?;
                let first = channel.receive(None, deadline)?;
                let peer = Peer::of_credentials(first.sender.ok_or(Error::PeerUnknown)?)?;
                policy.check(&peer)?;
                // A socket that asks for senders also gets a name when it sends, which nobody needs.
                sockopt::set_socket_passcred(&channel, false)
                    .map_err(Error::system("setsockopt(SO_PASSCRED)"))?;
                channel.socket().take_descriptors();
                say_hello(&channel, &peer, deadline)?;
                (peer, channel, first)
            }
        };
        let version = heard(&first)?.agree(&peer)?;
        Ok(Connection::new(channel, peer, version))
    }
}

impl AsFd for Pending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Asks a descriptor whether it is a socket of the transport's kind, which no other kind of file is made to do anything by.
pub(super) fn expect_end(descriptor: &OwnedFd) -> Result<()> {
    let domain = sockopt::socket_domain(descriptor);
    let kind = sockopt::socket_type(descriptor);
    if (domain, kind) != (Ok(AddressFamily::UNIX), Ok(SocketType::SEQPACKET))
        || sockopt::socket_acceptconn(descriptor) != Ok(false)
    {
        return Err(Error::NotAnEnd);
    }
    Ok(())
}

fn say_hello(channel: &Channel, peer: &Peer, deadline: Deadline) -> Result<()> {
    let payload = Hello::own()?.encode();
    let hello = Frame::new(HELLO, &payload)?.with_version(MIN_VERSION);
    channel.send(hello, &[], Some(peer), deadline)
}

/// The hello, if it is one.
fn heard(packet: &Packet) -> Result<Hello> {
    let no_hello = || Error::NoHello { kind: packet.kind, bytes: packet.payload.len() };
    let alone = packet.descriptors.is_empty();
    let hello = Hello::parse(&packet.payload).filter(|_| packet.kind == HELLO && alone);
    hello.filter(|_| packet.version == MIN_VERSION).ok_or_else(no_hello)
}

/// The kind of the first message.
const HELLO: u16 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hello {
    versions: (u16, u16),
    pid: u32,
    start_time: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Bytes {
    least: U16,
    highest: U16,
    pid: U32,
    start_time: U64,
}

impl Hello {
    /// Of this process.
    fn own() -> Result<Self> {
        let versions = (MIN_VERSION, MAX_VERSION);
        Ok(Self { versions, pid: std::process::id(), start_time: own_start_time()? })
    }

    fn encode(self) -> Vec<u8> {
        let (least, highest) = self.versions;
        let (pid, start_time) = (self.pid.into(), self.start_time.into());
        Bytes { least: least.into(), highest: highest.into(), pid, start_time }.as_bytes().to_vec()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (bytes, _later) = Bytes::ref_from_prefix(bytes).ok()?;
        let versions = (bytes.least.get(), bytes.highest.get());
        Some(Self { versions, pid: bytes.pid.get(), start_time: bytes.start_time.get() })
    }

    /// The version to speak, if the hello is that of the peer.
    fn agree(self, peer: &Peer) -> Result<u16> {
        if (self.pid, self.start_time) != (peer.pid(), peer.start_time()) {
            return Err(Error::PeerMismatch {
                pid: peer.pid(),
                start_time: peer.start_time(),
                told_pid: self.pid,
                told_start_time: self.start_time,
            });
        }
        let (least, highest) = self.versions;
        let version = highest.min(MAX_VERSION);
        if version < least.max(MIN_VERSION) {
            return Err(Error::NoCommonVersion { theirs: self.versions, ours: (MIN_VERSION, MAX_VERSION) });
        }
        Ok(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::system::Credentials;

    #[test]
    fn a_hello_is_read_as_it_is_written() {
        let hello = Hello { versions: (1, 0x0203), pid: 0x0405_0607, start_time: 0x0809_0a0b_0c0d_0e0f };
        let bytes = hello.encode();
        assert_eq!(bytes, [1, 0, 3, 2, 7, 6, 5, 4, 15, 14, 13, 12, 11, 10, 9, 8]);
        assert_eq!(Hello::parse(&bytes), Some(hello));
        assert_eq!(Hello::parse(&[&bytes[..], b"later"].concat()), Some(hello));
        assert_eq!(Hello::parse(&bytes[..15]), None);
    }

    #[test]
    fn the_highest_common_version_is_spoken_with_the_right_process() {
        let pid = std::process::id();
        let peer = Peer::of_credentials(Credentials { pid: pid.cast_signed(), uid: 0, gid: 0 }).unwrap();
        let own = Hello::own().unwrap();
        assert_eq!(own.agree(&peer).unwrap(), MAX_VERSION);
        assert_eq!(Hello { versions: (1, 900), ..own }.agree(&peer).unwrap(), MAX_VERSION);
        for versions in [(MAX_VERSION + 1, 900), (0, 0), (5, 1)] {
            let refused = Hello { versions, ..own }.agree(&peer);
            assert!(matches!(refused, Err(Error::NoCommonVersion { theirs, .. }) if theirs == versions));
        }
        let other = Hello { pid: pid + 1, ..own }.agree(&peer);
        assert!(matches!(other, Err(Error::PeerMismatch { told_pid, .. }) if told_pid == pid + 1));
        let later = Hello { start_time: own.start_time + 1, ..own }.agree(&peer);
        assert!(matches!(later, Err(Error::PeerMismatch { .. })));
    }
}
