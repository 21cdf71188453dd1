//! What is open as long as somebody may use memory that was handed on, whoever else has died.
//!
//! It is the writing end of a pipe whose reading end the memory's owner has. Nothing is ever written: the owner is told when the last
//! copy is closed, by hand or with its process.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::transport::Poller;

#[derive(Debug, Clone)]
pub(super) struct Keepsake {
    end: Arc<OwnedFd>,
    pipe: Pipe,
}

/// What names a pipe as long as anybody has an end of it: its file system and its number there.
type Pipe = (u64, u64);

/// That somebody was sent one. It keeps nothing open: who waits for the last copy would wait for whoever was sent another one.
#[derive(Debug)]
pub(super) struct Given {
    end: Weak<OwnedFd>,
    pipe: Pipe,
}

impl Keepsake {
    /// One, and what tells that nobody has it any more.
    pub(super) fn new() -> Result<(PipeReader, Self)> {
        let (reader, writer) =
            io::pipe().map_err(|error| Error::System { call: "pipe2", source: Arc::new(error) })?;
        let made = Self::of(writer.into()).map_err(Error::system("fstat"))?;
        // A pipe is one.
        let keepsake = made.ok_or(Error::NotAnEnd)?;
        Ok((reader, keepsake))
    }

    /// What a peer has sent, if it is an end of a pipe: that is asked about and closed without waiting for anybody, which a file of
    /// another kind may take its time for. One of a file system in user space may do so for the question too, and for the end of any
    /// descriptor of it, whoever receives it: a peer that is let in by the policy can keep one thread here waiting that way.
    pub(super) fn sent(descriptor: OwnedFd) -> Option<Self> {
        Self::of(descriptor).unwrap_or_default()
    }

    fn of(descriptor: OwnedFd) -> Result<Option<Self>, Errno> {
        let found = fstat(&descriptor)?;
        let is_pipe = FileType::from_raw_mode(found.st_mode) == FileType::Fifo;
        let pipe = (found.st_dev, found.st_ino);
        Ok(is_pipe.then(|| Self { end: Arc::new(descriptor), pipe }))
    }

    /// Whether both are of one pipe, whichever way they came: what goes around in a circle would come again and again.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.pipe == other.pipe
    }
}

impl Given {
    pub(super) fn of(keepsake: &Keepsake) -> Self {
        Self { end: Arc::downgrade(&keepsake.end), pipe: keepsake.pipe }
    }

    /// Whether this process has it still, so that the pipe's name is its own.
    pub(super) fn is_there(&self) -> bool {
        self.end.strong_count() > 0
    }

    pub(super) fn is(&self, keepsake: &Keepsake) -> bool {
        self.is_there() && self.pipe == keepsake.pipe
    }
}

impl AsFd for Keepsake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
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
    fn it_is_known_whichever_way_it_comes_and_as_long_as_it_is_there() {
        let ((_readers, one), (_others, other)) = (Keepsake::new().unwrap(), Keepsake::new().unwrap());
        let again = Keepsake::sent(one.end.try_clone().unwrap()).unwrap();
        assert!(again.is(&one) && !again.is(&other));
        let given = Given::of(&one);
        assert!(given.is(&again) && !given.is(&other));
        drop(one);
        // Another copy's end has not come to it, but the pipe may be gone for all that is known.
        assert!(!given.is_there() && !given.is(&again));
    }

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
