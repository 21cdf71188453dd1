//! What is open as long as somebody may use memory that was handed on, whoever else has died.
//!
//! It is the writing end of a pipe whose reading end the memory's owner has. Nothing is ever written: the owner is told when the last
//! copy is closed, by hand or with its process.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FileType, fstat};

use crate::error::{Error, Result};
use crate::transport::Poller;

#[derive(Debug, Clone)]
pub(super) struct Keepsake(Arc<OwnedFd>);

impl Keepsake {
    /// One, and what tells that nobody has it any more.
    pub(super) fn new() -> Result<(PipeReader, Self)> {
        let (reader, writer) =
            io::pipe().map_err(|error| Error::System { call: "pipe2", source: Arc::new(error) })?;
        Ok((reader, Self(Arc::new(writer.into()))))
    }

    /// What a peer has sent, if it is an end of a pipe: that is asked about and closed without waiting for anybody, which a file of
    /// another kind may take its time for. One of a file system in user space may do so for the question too, and for the end of any
    /// descriptor of it, whoever receives it: a peer that is let in by the policy can keep one thread here waiting that way.
    pub(super) fn sent(descriptor: OwnedFd) -> Option<Self> {
        let is_pipe =
            fstat(&descriptor).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Fifo);
        is_pipe.then(|| Self(Arc::new(descriptor)))
    }

    /// Whether both are copies of one that this process was sent.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl AsFd for Keepsake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Closes those that nobody waits for: their owner is gone, or is done with whom it had handed the memory to.
pub(super) fn forget_unwanted(keepsakes: &mut Vec<Keepsake>) {
    let mut poller = Poller::new();
    for (index, keepsake) in keepsakes.iter().enumerate() {
        poller.closed(index, keepsake);
    }
    // What cannot be asked stays.
    let unwanted = poller.wait(Duration::ZERO).unwrap_or_default();
    for index in unwanted.into_iter().rev() {
        keepsakes.swap_remove(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_wanted_as_long_as_somebody_waits() {
        let (reader, wanted) = Keepsake::new().unwrap();
        let (gone, unwanted) = Keepsake::new().unwrap();
        drop(gone);
        let mut keepsakes = vec![unwanted.clone(), wanted.clone(), unwanted];
        forget_unwanted(&mut keepsakes);
        assert!(matches!(&keepsakes[..], [one] if one.is(&wanted)));
        let mut poller = Poller::new();
        poller.closed((), &reader);
        assert_eq!(poller.wait(Duration::ZERO).unwrap(), []);
        drop((wanted, keepsakes));
        assert_eq!(poller.wait(Duration::from_secs(60)).unwrap(), [()]);
    }
}
