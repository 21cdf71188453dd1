//! A socket whose other end is not known yet, and the first message in each direction: which versions a side speaks, and which process it is.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | least version |
//! | 2 | 2 | highest version |
//! | 4 | 4 | process number |
//! | 8 | 8 | start of the process, in clock ticks after the system's |
//!
//! Its frame is always of the first version, so that any two releases understand it; later ones may put more behind it, which is not read.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::channel::{Channel, Socket, guard};
use super::connection::{Connection, Message};
use super::deadline::Deadline;
use super::frame::{Frame, VERSION};
use super::peer::{Peer, start_time};
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
    /// Whether this is the end that the maker of a pair keeps, of which the system would name the maker itself.
    is_makers: bool,
    /// Whether everybody in the network namespace can have connected.
    is_public: bool,
}

/// Two connected ends: one to keep, and a descriptor for a child.
///
/// The descriptor has close-on-exec; the standard library gives it to a child as one of its standard streams. Nothing else needs to be
/// agreed on, no name exists, and both sides still check each other: the process with the child's end says hello, and the system
/// tells the parent which process that is.
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
    Ok((Pending { socket: Socket::guarded(here), is_makers: true, is_public: false }, there))
}

impl Pending {
    /// From a socket that has connected, or that a listener has accepted.
    pub(super) fn connected(socket: Socket, is_public: bool) -> Self {
        Self { socket, is_makers: false, is_public }
    }

    /// In a child: from the descriptor that the parent made by [`pair`]; [`Error::NotAnEnd`] for another kind. It gets close-on-exec.
    pub fn inherited(socket: OwnedFd) -> Result<Self> {
        let kind = (sockopt::socket_domain(&socket), sockopt::socket_type(&socket));
        let is_end = kind == (Ok(AddressFamily::UNIX), Ok(SocketType::SEQPACKET));
        if !is_end || sockopt::socket_acceptconn(&socket) != Ok(false) {
            return Err(Error::NotAnEnd);
        }
        fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(Error::system("fcntl(F_SETFD)"))?;
        Ok(Self::connected(Socket::new(socket), false))
    }

    /// Finds out who is there, checks it against the policy, and exchanges hellos.
    ///
    /// Nothing is sent to a peer that is not admitted, and it finds the connection closed. The end that [`pair`] kept is the one
    /// exception to checking the peer before reading from it: the system names only the sender of the first message, so that
    /// message, which may have no descriptors, is read first. No peer can send descriptors before it is admitted (Linux 6.16); what comes
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
        let channel = Channel::new(self.socket)?;
        let first = self.is_makers.then(|| channel.receive(None, deadline)).transpose()?;
        let peer = match &first {
            Some(first) => Peer::of_credentials(first.sender.ok_or(Error::PeerUnknown)?)?,
            None => Peer::of_socket(channel.socket.as_fd())?,
        };
        policy.check(&peer)?;
        // A socket that asks for senders also gets a name when it sends, which nobody needs.
        sockopt::set_socket_passcred(&channel.socket, false)
            .map_err(Error::system("setsockopt(SO_PASSCRED)"))?;
        // Before the peer can know that it is admitted.
        channel.socket.take_descriptors();
        let own = Hello::own()?;
        let frame = Frame { kind: HELLO, payload: own.as_bytes(), descriptors: 0 };
        channel.send(frame, &[], Some(&peer), deadline)?;
        let first = first.map_or_else(|| channel.receive(Some(&peer), deadline), Ok)?;
        heard(&first)?.agree(&peer)?;
        Ok(Connection::new(channel, peer))
    }
}

impl AsFd for Pending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The hello, if it is one; what a later release puts behind it is not read.
fn heard(packet: &Message) -> Result<&Hello> {
    let is_hello = packet.kind == HELLO && packet.descriptors.is_empty();
    let hello = Hello::ref_from_prefix(&packet.payload).ok().filter(|_| is_hello);
    let no_hello = || Error::NoHello { kind: packet.kind, bytes: packet.payload.len() };
    hello.map(|(hello, _)| hello).ok_or_else(no_hello)
}

/// The kind of the first message.
const HELLO: u16 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Hello {
    /// The least and the highest.
    versions: [U16; 2],
    pid: U32,
    start_time: U64,
}

impl Hello {
    /// Of this process.
    fn own() -> Result<Self> {
        let versions = [VERSION; 2].map(U16::new);
        let start_time = start_time(std::process::id())?.into();
        Ok(Self { versions, pid: std::process::id().into(), start_time })
    }

    /// Whether the hello is that of the peer, and it speaks this side's version.
    fn agree(self, peer: &Peer) -> Result<()> {
        let (pid, start_time) = (peer.pid(), peer.start_time());
        let (told_pid, told_start_time) = (self.pid.get(), self.start_time.get());
        if (told_pid, told_start_time) != (pid, start_time) {
            return Err(Error::PeerMismatch { pid, start_time, told_pid, told_start_time });
        }
        let [least, highest] = self.versions.map(U16::get);
        if (least..=highest).contains(&VERSION) {
            return Ok(());
        }
        Err(Error::NoCommonVersion { theirs: (least, highest), ours: (VERSION, VERSION) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::system::Credentials;

    #[test]
    fn a_hello_is_read_as_it_is_written() {
        let (versions, pid) = ([1, 0x0203].map(U16::new), 0x0405_0607.into());
        let hello = Hello { versions, pid, start_time: 0x0809_0a0b_0c0d_0e0f.into() };
        let bytes = hello.as_bytes();
        assert_eq!(bytes, [1, 0, 3, 2, 7, 6, 5, 4, 15, 14, 13, 12, 11, 10, 9, 8]);
        let packet = |payload: &[u8]| {
            let (payload, descriptors) = (payload.to_vec(), Vec::new().into());
            Message { kind: HELLO, payload, descriptors, sender: None }
        };
        assert_eq!(heard(&packet(bytes)).unwrap(), &hello);
        assert_eq!(heard(&packet(&[bytes, b"later"].concat())).unwrap(), &hello);
        assert!(matches!(heard(&packet(&bytes[..15])), Err(Error::NoHello { bytes: 15, .. })));
    }

    #[test]
    fn a_common_version_is_spoken_with_the_right_process() {
        let pid = std::process::id();
        let peer = Peer::of_credentials(Credentials { pid: pid.cast_signed(), uid: 0, gid: 0 }).unwrap();
        let own = Hello::own().unwrap();
        own.agree(&peer).unwrap();
        Hello { versions: [1, 900].map(U16::new), ..own }.agree(&peer).unwrap();
        for versions in [(VERSION + 1, 900), (0, 0), (5, 1)] {
            let refused = Hello { versions: [versions.0, versions.1].map(U16::new), ..own }.agree(&peer);
            assert!(matches!(refused, Err(Error::NoCommonVersion { theirs, .. }) if theirs == versions));
        }
        let other = Hello { pid: (pid + 1).into(), ..own }.agree(&peer);
        assert!(matches!(other, Err(Error::PeerMismatch { told_pid, .. }) if told_pid == pid + 1));
        let later = Hello { start_time: own.start_time + U64::new(1), ..own }.agree(&peer);
        assert!(matches!(later, Err(Error::PeerMismatch { .. })));
    }
}
