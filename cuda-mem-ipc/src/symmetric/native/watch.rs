//! The thread that looks after the other ranks: it takes their messages, notices their end, and keeps the deadlines.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::message;
use super::state::{Peer, State};
use crate::error::Error as TransportError;
use crate::symmetric::Why;
use crate::transport::{Deadline, Message, Poller};

/// How long a stream that comes to its wait late, after the poison, waits at most: a writer that lives on may have moved the word. And after how
/// long the system is asked again for what it refused.
const AGAIN: Duration = Duration::from_millis(5);
const LONG: Duration = Duration::from_secs(3600);
/// How many messages of a rank are taken before deadlines, the other ranks and this rank's own end have their turn. More than a rank that
/// follows the protocol has to say at a time, as a rule.
pub(super) const MOST_AT_A_TIME: usize = 64;

pub(super) fn start(state: &Arc<State>) -> io::Result<JoinHandle<()>> {
    let state = Arc::clone(state);
    thread::Builder::new().name("symmetric".to_owned()).spawn(move || watch(&state))
}

fn watch(state: &State) {
    while !state.stop.load(Ordering::Acquire) {
        // Also if there was no room for word of it: then something else came.
        let _ = state.check();
        let (late, next) = state.overdue();
        if let Some(rank) = late {
            state.break_by(rank, Why::TimedOut);
        }
        let limit = if state.is_ending() {
            state.let_go();
            Deadline::after(AGAIN)
        } else {
            next.map_or(Deadline::after(LONG), Deadline::from)
        };
        let mut poller = Poller::new();
        poller.readable(None, &state.wake_up);
        for (rank, peer) in state.others().filter(|(_, peer)| !peer.is_gone.load(Ordering::Acquire)) {
            poller.readable(Some(rank), &peer.connection);
            poller.readable(Some(rank), &**peer.connection.peer());
        }
        let Ok(ready) = poller.wait(limit) else {
            // Too many descriptors for the system: no rank's death would be noticed.
            state.break_by(state.rank, Why::Failed);
            thread::sleep(AGAIN);
            continue;
        };
        for rank in ready {
            match rank {
                None => {
                    // All of what woke it.
                    let _ = rustix::io::read(&state.wake_up, &mut [0; 8]);
                }
                Some(rank) => {
                    if let Some(Some(peer)) = state.peers.get(rank) {
                        take(state, rank, peer);
                    }
                }
            }
        }
    }
}

/// Takes what a peer has sent, up to its end if it has one. What is left is taken in the next turn.
pub(super) fn take(state: &State, rank: usize, peer: &Peer) {
    for _ in 0..MOST_AT_A_TIME {
        if peer.is_gone.load(Ordering::Acquire) || state.stop.load(Ordering::Acquire) {
            return;
        }
        let (culprit, why) = match peer.connection.hear(Deadline::after(Duration::ZERO)) {
            Ok(message) => {
                if is_heard(peer, message) {
                    continue;
                }
                (rank, Why::Unreachable)
            }
            Err(TransportError::Timeout { .. }) => return,
            // This process's system refuses it: what the rank has sent stays. If that lasts, the deadlines of the other ranks name this one.
            Err(error) if error.is_the_system_s() => {
                thread::sleep(AGAIN);
                return;
            }
            // This process has no room for descriptors, whatever the rank has sent.
            Err(TransportError::ControlTruncated { .. }) => (state.rank, Why::Failed),
            Err(error) if error.is_gone() => {
                if !state.directory.has_left(rank) {
                    state.break_by(rank, Why::Died);
                }
                // Before the look: who notes a wait behind it sees this.
                peer.is_gone.store(true, Ordering::Release);
                if state.waits_for(rank) {
                    state.break_by(rank, Why::Left);
                }
                return;
            }
            Err(_) => (rank, Why::Unreachable),
        };
        // Before the connection ends, by which the other rank would take this one for dead.
        state.break_by(culprit, why);
        peer.is_gone.store(true, Ordering::Release);
        // Whatever else the rank says is of no use, and it may go on for ever.
        let _ = peer.connection.breaks(TransportError::Broken);
        return;
    }
}

/// Takes a message; false for one that no rank sends, or one too many.
fn is_heard(peer: &Peer, message: Message) -> bool {
    match message.kind {
        message::SEGMENT => peer.segments.announce(&message.payload, message.descriptors),
        message::WORDS => peer.pieces.announce(&message.payload, message.descriptors),
        message::SAID => message.descriptors.is_empty() && peer.said.push(message.payload),
        // The next turn looks at the directory.
        message::BROKEN => message.descriptors.is_empty(),
        _ => false,
    }
}
