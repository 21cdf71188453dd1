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

/// What somebody was sent to keep. It keeps nothing open: who waits for the last copy would wait for whoever was sent another one.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// How many were sent.
    count: u64,
    /// Of those the ones that may not be forgotten yet.
    sent: Vec<Sent>,
}

#[derive(Debug)]
struct Sent {
    /// How many were sent before it.
    number: u64,
    pipe: Pipe,
    /// What this process has of it, which may have come by several ways.
    copies: Vec<Weak<OwnedFd>>,
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
    /// Sends one, unless that was done, by whichever way it has come.
    pub(super) fn give(&mut self, keepsake: &Keepsake, send: impl FnOnce() -> Result<()>) -> Result<()> {
        let copy = Arc::downgrade(&keepsake.end);
        let mut sent = self.sent.iter_mut();
        if let Some(known) = sent.find(|sent| sent.pipe == keepsake.pipe && sent.is_there()) {
            if !known.copies.iter().any(|known| known.ptr_eq(&copy)) {
                known.copies.retain(|copy| copy.strong_count() > 0);
                known.copies.push(copy);
            }
            return Ok(());
        }
        send()?;
        self.sent.push(Sent { number: self.count, pipe: keepsake.pipe, copies: vec![copy] });
        self.count = self.count.saturating_add(1);
        Ok(())
    }

    /// Whether something was sent that this process has no more.
    pub(super) fn has_unwanted(&self) -> bool {
        !self.sent.iter().all(Sent::is_there)
    }

    /// Tells of what was sent and this process has no more, by how many were sent before it. What could not be told stays.
    pub(super) fn tell_of_unwanted(&mut self, tell: impl Fn(u64) -> bool) {
        self.sent.retain(|sent| sent.is_there() || !tell(sent.number));
    }
}

impl Sent {
    /// Whether this process has it still, so that the pipe's name is its own.
    fn is_there(&self) -> bool {
        self.copies.iter().any(|copy| copy.strong_count() > 0)
    }
}

impl AsFd for Keepsake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

/// Closes those that nobody waits for: their owner is gone, or is done with whom it had handed the memory to.
pub(super) fn forget_unwanted<T>(keepsakes: &mut Vec<T>, keepsake: impl Fn(&T) -> &Keepsake) {
    let mut poller = Poller::new();
    for (index, held) in keepsakes.iter().enumerate() {
        poller.closed(index, keepsake(held));
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

    /// Whether it is sent now.
    fn is_given(given: &mut Given, keepsake: &Keepsake) -> bool {
        let mut is_sent = false;
        let send = || {
            is_sent = true;
            Ok(())
        };
        given.give(keepsake, send).unwrap();
        is_sent
    }

    #[test]
    fn it_is_known_whichever_way_it_comes_and_as_long_as_it_is_there() {
        let ((_readers, one), (_others, other)) = (Keepsake::new().unwrap(), Keepsake::new().unwrap());
        let again = Keepsake::sent(one.end.try_clone().unwrap()).unwrap();
        assert!(again.is(&one) && !again.is(&other));
        let mut given = Given::default();
        let mut is_sent = |keepsake: &Keepsake| {
            let is_sent = is_given(&mut given, keepsake);
            (is_sent, given.has_unwanted())
        };
        assert_eq!(is_sent(&one), (true, false));
        assert_eq!(is_sent(&again), (false, false));
        assert_eq!(is_sent(&other), (true, false));
        drop(one);
        // As long as there is one of the copies that it was given by.
        assert_eq!(is_sent(&again), (false, false));
        let last = Keepsake::sent(again.end.try_clone().unwrap()).unwrap();
        drop(again);
        // Another copy's end has not come to it, but the pipe may be gone for all that is known.
        assert_eq!(is_sent(&last), (true, true));
        let told = std::cell::RefCell::new(Vec::new());
        given.tell_of_unwanted(|_| false);
        drop(other);
        given.tell_of_unwanted(|number| {
            told.borrow_mut().push(number);
            true
        });
        assert_eq!(told.into_inner(), [0, 1]);
        assert!(!given.has_unwanted());
    }

    #[test]
    fn what_could_not_be_sent_was_not_given() {
        let (_reader, one) = Keepsake::new().unwrap();
        let mut given = Given::default();
        assert!(given.give(&one, || Err(Error::Broken)).is_err());
        assert!(is_given(&mut given, &one));
        drop(one);
        given.tell_of_unwanted(|number| number == 0);
        assert!(!given.has_unwanted());
    }

    #[test]
    fn it_is_wanted_as_long_as_somebody_waits() {
        let (reader, wanted) = Keepsake::new().unwrap();
        let (gone, unwanted) = Keepsake::new().unwrap();
        drop(gone);
        let mut keepsakes = vec![unwanted.clone(), wanted.clone(), unwanted];
        forget_unwanted(&mut keepsakes, |keepsake| keepsake);
        assert!(matches!(&keepsakes[..], [one] if one.is(&wanted)));
        let mut poller = Poller::new();
        poller.closed((), &reader);
        assert_eq!(poller.wait(Duration::ZERO).unwrap(), []);
        drop((wanted, keepsakes));
        assert_eq!(poller.wait(Duration::from_secs(60)).unwrap(), [()]);
    }
}
