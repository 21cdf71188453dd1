//! A socket that carries frames: checks what comes, keeps deadlines, ends with its owner, and takes descriptors only when expected.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, sendmsg, shutdown, sockopt,
};

use super::closing::{Descriptors, close_socket};
use super::connection::Message;
use super::deadline::{Deadline, wait};
use super::frame::{Frame, MAX_DESCRIPTORS, MAX_FRAME};
use super::peer::Peer;
use super::system::{self, Received};
use crate::error::{Error, MessageError, Result};
use crate::primitive::lock;

/// What the system counts against a socket's buffer for the longest frame, with its own overhead.
const SEND_BUFFER: usize = 2 * MAX_FRAME;

/// How long a send waits before it tries again to have descriptors under way.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) socket: Socket,
    is_broken: AtomicBool,
    /// Held by whoever writes a frame there and sends it.
    sending: Mutex<Vec<u8>>,
    receiving: Mutex<Box<[u8]>>,
}

impl Channel {
    pub(super) fn new(socket: Socket) -> Result<Self> {
        let size =
            || sockopt::socket_send_buffer_size(&socket).map_err(Error::system("getsockopt(SO_SNDBUF)"));
        if size()? < SEND_BUFFER {
            // Best effort: what counts is what the system made of it.
            let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
            let bytes = size()?;
            if bytes < SEND_BUFFER {
                return Err(Error::SendBuffer { bytes, needed: SEND_BUFFER });
            }
        }
        Ok(Self {
            socket,
            is_broken: AtomicBool::new(false),
            sending: Mutex::default(),
            receiving: Mutex::new(vec![0; MAX_FRAME].into_boxed_slice()),
        })
    }

    pub(super) fn send(
        &self,
        frame: Frame<'_>,
        descriptors: &[BorrowedFd<'_>],
        peer: Option<&Peer>,
        deadline: Deadline,
    ) -> Result<()> {
        const WHAT: &str = "the peer had taken enough messages for another one";
        self.until(PollFlags::OUT, WHAT, peer, deadline, || self.try_send(frame, descriptors))
    }

    pub(super) fn receive(&self, peer: Option<&Peer>, deadline: Deadline) -> Result<Message> {
        self.until(PollFlags::IN, "a message came", peer, deadline, || self.try_receive())
    }

    /// Tries until it is done, the deadline has passed or the peer has ended. What a peer sent before it ended is received.
    fn until<T>(
        &self,
        flags: PollFlags,
        what: &'static str,
        peer: Option<&Peer>,
        deadline: Deadline,
        mut attempt: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        self.socket.check_process()?;
        let (mut exited, mut has_waited) = (None, false);
        loop {
            if self.is_broken() {
                return Err(Error::Broken);
            }
            // All processes of the user together may have too many descriptors under way: no event of the socket tells of room again.
            let tried = attempt();
            let is_full = matches!(tried, Err(Error::TooManyInFlight)) && !deadline.has_passed();
            if !is_full && let Some(done) = tried? {
                return Ok(done);
            }
            if let Some(pid) = exited {
                return Err(Error::PeerExited { pid });
            }
            let socket = (!is_full).then(|| PollFd::new(&self.socket, flags));
            let pidfd = peer.map(|peer| PollFd::new(peer, PollFlags::IN));
            let mut descriptors = socket.into_iter().chain(pidfd).collect::<Vec<_>>();
            let end = if is_full { Deadline::after(PAUSE) } else { deadline };
            // Another thread may have been faster, again and again.
            let is_late = has_waited && deadline.has_passed() || !wait(&mut descriptors, end)?;
            if is_late && !is_full {
                return Err(Error::Timeout { what });
            }
            has_waited = true;
            let has_ended = descriptors.last().is_some_and(|pidfd| !pidfd.revents().is_empty());
            exited = peer.filter(|_| has_ended).map(Peer::pid);
        }
    }

    /// None if the peer's queue is full. The lock is not held while anybody waits.
    fn try_send(&self, frame: Frame<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<Option<()>> {
        let mut bytes = lock(&self.sending);
        frame.encode(&mut bytes);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let mut push =
            || descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors));
        if descriptors.len() > MAX_DESCRIPTORS || !push() {
            return Err(Error::TooManyDescriptors { asked: descriptors.len(), most: MAX_DESCRIPTORS });
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent =
            rustix::io::retry_on_intr(|| sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, flags));
        match sent {
            Ok(_) => Ok(Some(())),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::PERM) if !descriptors.is_empty() => Err(Error::DescriptorsRefused),
            Err(Errno::TOOMANYREFS) => Err(Error::TooManyInFlight),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(Error::Closed { doing: "sending" }),
            Err(errno) => Err(Error::system("sendmsg")(errno)),
        }
    }

    fn try_receive(&self) -> Result<Option<Message>> {
        let mut receiving = lock(&self.receiving);
        let buffer = &mut **receiving;
        let mut result = self.packet(buffer);
        if matches!(result, Err(Errno::CONNRESET)) {
            // The peer ended with something unread, which the system says once and first; what it had sent comes behind that.
            result = self.packet(buffer);
        }
        let received = match result {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::CONNRESET | Errno::NOTCONN) => return Err(Error::Closed { doing: "receiving" }),
            Err(errno) => return Err(Error::system("recvmsg")(errno)),
        };
        if received.bytes == 0 && received.descriptors.is_empty() {
            return Err(Error::Closed { doing: "receiving" });
        }
        check(received, buffer).map(Some)
    }

    fn packet(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        #[cfg(test)]
        refusal::of(&self.socket)?;
        system::receive(self.socket.as_fd(), buffer)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// Ends the connection for both sides because of what came, which is handed back.
    pub(super) fn breaks(&self, error: Error) -> Error {
        self.is_broken.store(true, Ordering::Release);
        self.socket.end();
        error
    }
}

fn check(received: Received, buffer: &[u8]) -> Result<Message> {
    let Received { bytes, is_cut, is_control_cut, descriptors, sender } = received;
    // Whatever becomes of it, nobody here waits for their end.
    let descriptors = Descriptors::from(descriptors);
    if is_control_cut {
        return Err(Error::ControlTruncated { received: descriptors.len() });
    }
    if is_cut {
        return Err(MessageError::Value { field: "length", value: bytes as u64 + 1 }.into());
    }
    let frame = Frame::parse(buffer.get(..bytes).unwrap_or_default())?;
    let declared = usize::from(frame.descriptors);
    if descriptors.len() != declared {
        return Err(Error::DescriptorCount { declared, received: descriptors.len() });
    }
    let Frame { kind, payload, .. } = frame;
    Ok(Message { kind, payload: payload.to_vec(), descriptors, sender })
}

/// A socket of this process. Forked children have it too: they can neither use nor end it, and when it is dropped here it has ended
/// for the other side, whether they still live or not.
#[derive(Debug)]
pub(super) struct Socket {
    descriptor: Arc<OwnedFd>,
    made_in: u32,
    /// Whether a message with descriptors may be in it.
    may_carry: AtomicBool,
}

static WITHOUT_GUARD: AtomicBool = AtomicBool::new(false);

/// Has new sockets go without `SO_PASSRIGHTS`, as on Linux before 6.16: for tests, which show that everything holds without it too.
#[doc(hidden)]
pub fn without_descriptor_guard() {
    WITHOUT_GUARD.store(true, Ordering::SeqCst);
}

impl Socket {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        // A listener's sockets and a child's end have it from their makers.
        let may_carry = AtomicBool::new(!system::refuses_descriptors(descriptor.as_fd()));
        Self { descriptor: Arc::new(descriptor), made_in: std::process::id(), may_carry }
    }

    /// One that nobody can have sent anything to yet, and that takes no descriptors before [`take_descriptors`](Self::take_descriptors): who
    /// sends one gets `EPERM`. Linux before 6.16 does not have this, and what comes there is closed in the background.
    pub(super) fn guarded(descriptor: OwnedFd) -> Self {
        guard(descriptor.as_fd());
        Self::new(descriptor)
    }

    /// Lets the peer send descriptors, which is known by now.
    pub(super) fn take_descriptors(&self) {
        self.may_carry.store(true, Ordering::SeqCst);
        system::set_passes_descriptors(self.as_fd(), true);
    }

    /// A forked child has its parent's sockets and their numbers, and would use both twice.
    pub(super) fn check_process(&self) -> Result<()> {
        let (made_in, here) = (self.made_in, std::process::id());
        if here == made_in { Ok(()) } else { Err(Error::Forked { made_in, here }) }
    }

    /// What was sent can still be received; nothing more comes or goes.
    pub(super) fn end(&self) {
        // It fails when the other side has ended it already.
        let _ = shutdown(self, Shutdown::Both);
    }
}

/// Has the system refuse descriptors that somebody wants to send there, if it can: from Linux 6.16 on that fails there, before they are closed
/// here in the background.
pub(crate) fn guard(descriptor: BorrowedFd<'_>) {
    if !WITHOUT_GUARD.load(Ordering::SeqCst) {
        system::set_passes_descriptors(descriptor, false);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return;
        }
        self.end();
        if self.may_carry.load(Ordering::SeqCst) {
            // The last copy closes it, which is that one: what is in it may take long to close.
            close_socket(Arc::clone(&self.descriptor));
        }
    }
}

#[cfg(test)]
#[path = "../../tests/players/refusal.rs"]
pub(crate) mod refusal;
