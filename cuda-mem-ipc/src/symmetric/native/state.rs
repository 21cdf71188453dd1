//! What the threads of a rank share: the other ranks, what streams wait for, and whether the group is sound.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::{Error as CoreError, Fence, FenceLine};
use rustix::event::{EventfdFlags, eventfd};

use super::announced::{Queue, Row};
use super::directory::{Directory, LEAVING};
use super::message;
use super::segment::Segment;
use super::words::Piece;
use crate::error::Error as TransportError;
use crate::primitive::lock;
use crate::symmetric::{Error, Result, Why};
use crate::transport::{Connection, Deadline};

/// How often a thread that waits looks whether a rank broke the group.
pub(super) const SLICE: Duration = Duration::from_millis(2);
/// So many waits are kept without a look at them.
const KEEP: usize = 64;
/// How many exchanges a rank may be ahead.
const SAID: usize = 64;

#[derive(Debug)]
pub(super) struct State {
    pub(super) group: String,
    pub(super) rank: usize,
    /// By rank; none for this one.
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) directory: Directory,
    broken: OnceLock<(usize, Why)>,
    waits: Mutex<Waits>,
    /// What the watching thread sleeps on, besides the other ranks: an eventfd.
    pub(super) wake_up: OwnedFd,
    is_leaving: AtomicBool,
    /// Whether segments have no memory. Changes under the lock of those that make some.
    pub(super) is_asleep: AtomicBool,
    pub(super) stop: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) connection: Connection,
    pub(super) is_gone: AtomicBool,
    pub(super) segments: Row<Segment>,
    pub(super) pieces: Row<Piece>,
    /// What the peer has said in exchanges that this rank has not ended yet.
    pub(super) said: Queue<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Waits {
    list: Vec<Waiting>,
    /// From so many on, those that are over are forgotten.
    prune_at: usize,
    noted: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    /// The rank that is to signal; none if the wait was refused: then no rank is at fault for it.
    rank: Option<usize>,
    line: FenceLine,
    fence: Fence,
    deadline: Option<Instant>,
}

impl Waiting {
    /// Whether its stream was let go, by the signal or by poison.
    fn is_over(&self) -> bool {
        !matches!(self.fence.is_complete(), Ok(false))
    }
}

impl Peer {
    pub(super) fn new(connection: Connection) -> Self {
        let is_gone = AtomicBool::new(false);
        let (segments, pieces, said) = (Row::new(), Row::new(), Queue::new(SAID));
        Self { connection, is_gone, segments, pieces, said }
    }
}

impl State {
    pub(super) fn new(
        group: &str,
        rank: usize,
        connections: Vec<Option<Connection>>,
        directory: Directory,
    ) -> Result<Self, TransportError> {
        let wake_up = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            group: group.to_owned(),
            rank,
            peers: connections.into_iter().map(|connection| connection.map(Peer::new)).collect(),
            directory,
            broken: OnceLock::new(),
            waits: Mutex::default(),
            wake_up: wake_up.map_err(TransportError::system("eventfd"))?,
            is_leaving: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        })
    }

    pub(super) fn ranks(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn others(&self) -> impl Iterator<Item = (usize, &Peer)> {
        self.peers.iter().enumerate().filter_map(|(rank, peer)| Some((rank, peer.as_ref()?)))
    }

    /// Whether a rank's connection has ended. Of a wait that was noted before this is asked, the caller or the watching thread sees that.
    pub(super) fn is_gone(&self, rank: usize) -> bool {
        matches!(self.peers.get(rank), Some(Some(peer)) if peer.is_gone.load(Ordering::Acquire))
    }

    /// [`Error::Broken`] if any rank has found a rank to be at fault. Waiting streams are let go then: word of it may not have come.
    pub(super) fn check(&self) -> Result<()> {
        let broken = self.broken.get().copied().or_else(|| self.directory.broken());
        broken.map_or(Ok(()), |(rank, why)| Err(self.break_by(rank, why)))
    }

    /// The error for a rank that has left. It may have done so because the group is broken, by another one.
    pub(super) fn left(&self, rank: usize) -> Error {
        self.check().err().unwrap_or(Error::Left { rank })
    }

    /// Refuses what a rank is needed for that has begun to leave: it waits no more, and has poisoned what it waited for.
    pub(super) fn refuse_leaving(&self, rank: usize) -> Result<()> {
        let is_leaving = self.directory.leaving(rank)?.load(Ordering::SeqCst) >= LEAVING;
        if is_leaving { Err(self.left(rank)) } else { Ok(()) }
    }

    pub(super) fn expect_awake(&self) -> Result<()> {
        let is_asleep = self.is_asleep.load(Ordering::Acquire);
        if is_asleep { Err(Error::Asleep { group: self.group.clone() }) } else { Ok(()) }
    }

    /// Tells all ranks that one is at fault, and lets the waiting streams go. If several ranks are said to be at fault, the first counts.
    pub(super) fn break_by(&self, rank: usize, why: Why) -> Error {
        // Before the poison: a program whose stream is let go must see why.
        self.directory.break_by(rank, why);
        let (rank, why) = self.directory.broken().unwrap_or((rank, why));
        let is_first = self.broken.set((rank, why)).is_ok();
        let (rank, why) = self.broken.get().copied().unwrap_or((rank, why));
        self.let_go();
        if is_first {
            for (_, peer) in self.others() {
                // A rank that takes no message finds it in the directory.
                let _ = peer.connection.send(message::BROKEN, &[], &[], Deadline::after(Duration::ZERO));
            }
            self.wake();
        }
        Error::Broken { group: self.group.clone(), rank, why }
    }

    /// A message that all ranks have to get did not go to one of them.
    pub(super) fn unsent(&self, rank: usize, error: &TransportError) -> Error {
        let (rank, why) = match error {
            _ if self.directory.has_left(rank) => return self.left(rank),
            error if error.is_gone() => (rank, Why::Died),
            error if error.is_timeout() => (rank, Why::TimedOut),
            // The system refused this process: for other processes' descriptors that are under way, or for want of memory.
            TransportError::TooManyInFlight | TransportError::System { .. } => (self.rank, Why::Failed),
            _ => (rank, Why::Unreachable),
        };
        self.break_by(rank, why)
    }

    /// Poisons the lines that streams wait for. To ask one that was poisoned does so once more, if a writer has moved it since.
    pub(super) fn let_go(&self) {
        let waits = lock(&self.waits);
        waits.list.iter().filter(|waiting| !waiting.is_over()).for_each(|waiting| waiting.line.poison());
    }

    /// Whether streams are to be let go, for whatever reason.
    pub(super) fn is_ending(&self) -> bool {
        self.broken.get().is_some() || self.is_leaving.load(Ordering::Acquire)
    }

    /// This rank leaves: its streams wait for nothing any more.
    pub(super) fn leave(&self) {
        // Before the poison, also of the watching thread: a rank that comes upon it must see why.
        let _ = self.directory.leaving(self.rank).map(|word| word.store(LEAVING, Ordering::SeqCst));
        self.is_leaving.store(true, Ordering::Release);
        self.let_go();
        self.wake();
    }

    /// Notes a wait before it is put into its stream, so that no stream waits for a rank that is dead. Returns the number of the wait.
    pub(super) fn note_wait(
        &self,
        rank: usize,
        line: &FenceLine,
        generation: u64,
        timeout: Option<Duration>,
    ) -> Result<u64, CoreError> {
        let fence = line.fence(generation)?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut waits = lock(&self.waits);
        if waits.list.len() >= waits.prune_at.max(KEEP) && !self.is_ending() {
            waits.list.retain(|waiting| !waiting.is_over());
            // So that each is looked at a few times at most.
            waits.prune_at = 2 * waits.list.len();
        }
        let number = waits.noted;
        waits.noted += 1;
        // The watching thread wakes up at the first deadline that there is.
        let mut others = waits.list.iter().filter_map(|other| other.deadline);
        let is_first = deadline.is_some_and(|at| others.all(|other| at < other));
        waits.list.push(Waiting { number, rank: Some(rank), line: line.clone(), fence, deadline });
        drop(waits);
        if is_first {
            self.wake();
        }
        Ok(number)
    }

    /// A wait that was noted could not be put into its stream, for all that is known: no rank is late for it. If the stream has it all the
    /// same, it is let go with the other waits.
    pub(super) fn was_refused(&self, number: u64) {
        let mut waits = lock(&self.waits);
        if let Some(refused) = waits.list.iter_mut().rev().find(|waiting| waiting.number == number) {
            (refused.rank, refused.deadline) = (None, None);
        }
    }

    /// Forgets waits that are over, and returns a rank that is late, and when to ask again.
    pub(super) fn overdue(&self) -> (Option<usize>, Option<Instant>) {
        if self.is_ending() {
            return (None, None);
        }
        let now = Instant::now();
        let mut waits = lock(&self.waits);
        let is_due = |waiting: &Waiting| waiting.deadline.is_some_and(|deadline| deadline <= now);
        waits.list.retain(|waiting| !is_due(waiting) || !waiting.is_over());
        let late = waits.list.iter().find(|waiting| is_due(waiting)).and_then(|waiting| waiting.rank);
        (late, waits.list.iter().filter_map(|waiting| waiting.deadline).min())
    }

    /// Whether a stream still waits for a rank.
    pub(super) fn waits_for(&self, rank: usize) -> bool {
        lock(&self.waits).list.iter().any(|waiting| waiting.rank == Some(rank) && !waiting.is_over())
    }

    /// Has the watching thread look around.
    pub(super) fn wake(&self) {
        // It fails only when it was woken 2^64 times.
        let _ = rustix::io::write(&self.wake_up, &1u64.to_ne_bytes());
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }
}
