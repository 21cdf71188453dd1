//! What each rank says to all others, over the group's connections. The n-th message of a rank belongs to the n-th of every other.
//!
//! # Safety
//!
//! Relies on each connection being one process's, checked when the group was joined, whose messages come in order.

#![allow(unsafe_code, reason = "implements an unsafe trait")]

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Group;
use super::message;
use crate::primitive::{lock, refuse_forked};
use crate::symmetric::{Error, Exchange, Result, Why};
use crate::transport::Deadline;

// SAFETY: the n-th call takes the n-th message of every rank's own connection.
unsafe impl Exchange for Group {
    fn name(&self) -> &str {
        self.name()
    }

    fn rank(&self) -> usize {
        self.rank()
    }

    fn world_size(&self) -> usize {
        self.world_size()
    }

    /// A rank that says nothing in time breaks the group, for all ranks: those that heard everybody must not go on alone.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`], [`Error::Left`], which name the rank; [`Error::Transport`] for more bytes than a message has.
    fn all_gather(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        refuse_forked()?;
        let _turn = lock(&self.inner.exchanging);
        let (state, deadline) = (self.state(), Deadline::after(timeout));
        state.check()?;
        for (rank, peer) in state.others() {
            let sent = peer.connection.send(message::SAID, bytes, &[], deadline);
            sent.map_err(|error| match error {
                // Nothing has gone out, to nobody.
                source @ crate::Error::PayloadTooLong { .. } => Error::Transport { rank, source },
                error => state.unsent(rank, &error),
            })?;
        }
        let mut said = Vec::with_capacity(self.world_size());
        for rank in 0..self.world_size() {
            let Some(Some(peer)) = state.peers.get(rank) else {
                said.push(bytes.to_vec());
                continue;
            };
            said.push(loop {
                // Asked before the queue: what a rank said before it went is in it.
                let is_gone = peer.is_gone.load(Ordering::Acquire);
                if let Some(heard) = peer.said.next() {
                    break heard;
                }
                state.check()?;
                if is_gone {
                    return Err(Error::Left { rank });
                }
                if deadline.has_passed() {
                    return Err(state.break_by(rank, Why::TimedOut));
                }
            });
        }
        // Somebody may have given up meanwhile, who would not do what all have said.
        state.check()?;
        Ok(said)
    }

    fn check(&self) -> Result<()> {
        self.check()
    }
}
