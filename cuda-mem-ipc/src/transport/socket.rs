//! A socket that ends with its owner, whoever else has it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{Shutdown, shutdown};

use crate::error::{Error, Result};

/// A socket of this process. Forked children have it too: they can neither use nor end it, and when it is dropped here it has ended
/// for the other side, whether they still live or not.
#[derive(Debug)]
pub(super) struct Socket {
    descriptor: OwnedFd,
    made_in: u32,
}

impl Socket {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor, made_in: std::process::id() }
    }

    /// A forked child has its parent's sockets and their numbers, and would use both twice.
    pub(super) fn check_process(&self) -> Result<()> {
        let (made_in, here) = (self.made_in, std::process::id());
        if here == made_in { Ok(()) } else { Err(Error::Forked { made_in, here }) }
    }

    /// What was sent can still be received; nothing more comes or goes.
    pub(super) fn end(&self) {
        // It fails when the other side has ended it already.
        let _ = shutdown(&self.descriptor, Shutdown::Both);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.end();
        }
    }
}
