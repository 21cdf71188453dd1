//! A socket whose other end is not known yet.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use super::channel::{Channel, Packet};
use super::connection::Connection;
use super::deadline::Deadline;
use super::frame::{Frame, MIN_VERSION};
use super::hello::{self, Hello};
use super::peer::Peer;
use super::policy::PeerPolicy;
use super::socket::{Socket, guard};
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
                channel.take_descriptors();
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
                channel.take_descriptors();
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
    let hello = Frame::new(hello::KIND, &payload)?.with_version(MIN_VERSION);
    channel.send(hello, &[], Some(peer), deadline)
}

/// The hello, if it is one.
fn heard(packet: &Packet) -> Result<Hello> {
    let no_hello = || Error::NoHello { kind: packet.kind, bytes: packet.payload.len() };
    let alone = packet.descriptors.is_empty();
    let hello = Hello::parse(&packet.payload).filter(|_| packet.kind == hello::KIND && alone);
    hello.filter(|_| packet.version == MIN_VERSION).ok_or_else(no_hello)
}
