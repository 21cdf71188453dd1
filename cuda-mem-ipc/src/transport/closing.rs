//! Closes descriptors that other processes made, in threads that no call waits for.
//!
//! Closing the last copy of a descriptor can take as long as its maker wants: a socket that lingers, a file of a file system in user space. So
//! no descriptor that a peer has sent is closed by a thread of the program, nor by the one that looks after peers: [`Descriptors`] go to
//! threads of this module, and so do sockets with messages in them that were not received.

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::net::sockopt;

use super::system;
use crate::background::Background;

/// How many threads close at the most, each of which one descriptor can hold up.
const MOST_THREADS: usize = 16;

/// How many jobs may wait for them. What comes then is left open.
const MOST_WAITING: usize = 1024;

static CLOSING: Background = Background::new("cuda-mem-close", MOST_THREADS);

/// The process that has these threads, or 0. A forked child has none of them. No lock: a child would find one of the parent's taken.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Descriptors that a peer has sent. Dropped, they are closed in the background: nothing that the peer chose is waited for.
/// [`Connection`](super::Connection) has an example.
#[derive(Debug, Default)]
pub struct Descriptors(Vec<OwnedFd>);

impl Descriptors {
    /// All of them, to be closed by the caller.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.0)
    }

    /// The only one; none if there are more or fewer.
    pub(crate) fn only(mut self) -> Option<OwnedFd> {
        if self.0.len() == 1 { self.0.pop() } else { None }
    }
}

impl From<Vec<OwnedFd>> for Descriptors {
    fn from(descriptors: Vec<OwnedFd>) -> Self {
        Self(descriptors)
    }
}

impl Deref for Descriptors {
    type Target = [OwnedFd];

    fn deref(&self) -> &[OwnedFd] {
        &self.0
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let descriptors = std::mem::take(&mut self.0);
        if !descriptors.is_empty() {
            in_background(descriptors, |descriptors| descriptors.into_iter().for_each(close));
        }
    }
}

/// Closes a socket that may have messages in it, each with descriptors: the system would close those along with it.
pub(super) fn close_socket(socket: Arc<OwnedFd>) {
    in_background(socket, |socket| {
        // The owner's copy goes in a moment. Then this is the last, and closes whatever stays in the socket behind what reads as its end.
        while Arc::strong_count(&socket) > 1 {
            thread::yield_now();
        }
        let mut buffer = [0; 1];
        while let Ok(received) = system::receive(socket.as_fd(), &mut buffer) {
            let is_over = received.bytes == 0 && received.descriptors.is_empty();
            received.descriptors.into_iter().for_each(close);
            if is_over {
                break;
            }
        }
    });
}

fn in_background<T: Send + 'static>(what: T, close: impl FnOnce(T) + Send + 'static) {
    let this = std::process::id();
    let owner = PROCESS.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed);
    if owner.is_err_and(|owner| owner != this) {
        // The parent has them, so that nothing ends here. What a child was sent itself it closes here too.
        drop(what);
    } else if CLOSING.waiting() < MOST_WAITING {
        CLOSING.run(move || close(what));
    } else {
        // Every thread is held up. Rather a descriptor less than a thread of the program.
        let _ = std::mem::ManuallyDrop::new(what);
    }
}

/// Closes a descriptor. A socket does not linger: nobody but this process has it, or its close waits for nothing.
fn close(descriptor: OwnedFd) {
    // Refused for what is no socket, without asking the file.
    let _ = sockopt::set_socket_linger(&descriptor, None);
    drop(descriptor);
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use rustix::io::IoSlice;
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
        sendmsg, socketpair,
    };

    use super::{close_socket, in_background};

    /// A file system in user space can take as long as it wants.
    #[test]
    fn nobody_waits_for_a_close() {
        let (go_on, may_go_on) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        in_background((), move |()| {
            tell.send(may_go_on.recv_timeout(Duration::from_secs(10)).is_ok()).unwrap();
        });
        go_on.send(()).unwrap();
        assert!(told.recv().unwrap(), "whoever closes goes on meanwhile");
    }

    /// An empty packet reads as the end. What a peer has sent behind it is closed with the last copy of the socket.
    #[test]
    fn the_owner_of_a_socket_does_not_close_what_is_left_in_it() {
        let pair = |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let (here, there) = pair(SocketType::SEQPACKET);
        sendmsg(&there, &[IoSlice::new(b"")], &mut SendAncillaryBuffer::default(), SendFlags::empty())
            .unwrap();
        // A socket says at its other end that its last copy was closed. Here as in a packet, by whoever closes the last of all.
        let (inside, outside) = pair(SocketType::STREAM);
        let descriptors = [inside.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&there, &[IoSlice::new(b"behind")], &mut control, SendFlags::empty()).unwrap();
        drop((inside, there));
        let socket = Arc::new(here);
        close_socket(Arc::clone(&socket));
        // The owner is slower than the thread that closes.
        thread::sleep(Duration::from_millis(100));
        assert_eq!(Arc::strong_count(&socket), 2, "the owner's copy is not the last");
        drop(socket);
        assert_eq!(rustix::io::read(&outside, &mut [0; 1]), Ok(0), "and it is closed");
    }
}
