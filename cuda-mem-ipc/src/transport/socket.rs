//! A socket that ends with its owner, whoever else has it, and takes descriptors only when they are expected.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{Shutdown, shutdown};

use super::{closing, system};
use crate::error::{Error, Result};

/// A socket of this process. Forked children have it too: they can neither use nor end it, and when it is dropped here it has ended
/// for the other side, whether they still live or not.
#[derive(Debug)]
pub(super) struct Socket {
    descriptor: Arc<OwnedFd>,
    made_in: u32,
    /// Whether a message with descriptors may be in it.
    may_carry: AtomicBool,
}

/// Whether tests have this process go without `SO_PASSRIGHTS`, as on Linux before 6.16.
static WITHOUT_GUARD: AtomicBool = AtomicBool::new(false);

/// Has new sockets go without `SO_PASSRIGHTS`, as on Linux before 6.16: for tests, which show that everything holds without it too.
#[doc(hidden)]
pub fn without_descriptor_guard(is_so: bool) {
    WITHOUT_GUARD.store(is_so, Ordering::SeqCst);
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

    /// Lets the peer send no more descriptors: it has no reason to.
    pub(super) fn refuse_descriptors(&self) {
        guard(self.as_fd());
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

/// Has the system refuse descriptors that somebody wants to send there, if it can.
pub(super) fn guard(descriptor: BorrowedFd<'_>) {
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
            // The last copy closes it: that one's, or this one when nothing is in it any more.
            closing::close_socket(Arc::clone(&self.descriptor));
        }
    }
}
