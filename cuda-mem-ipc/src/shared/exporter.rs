//! The giving end of a connection.

mod serve;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{self as core, Context, Driver, Stream};

use super::buffer::Share;
use super::options::AheadLimit;
use super::pool::SharedPool;
use super::reaper;
use super::ring::{self, Consumer, Corrupt, Producer};
use super::segment::{Segment, SegmentInfo};
use super::slab::Slab;
use super::wire::{self, HandOver, Point};
use super::words::Words;
use super::{heard, protocol, say, until};
use crate::error::{Error, Result};
use crate::primitive::{lock, refuse_forked};
use crate::transport::{Connection, Deadline, Peer, guard};
use serve::Leases;

/// Hands buffers to the process at the other end of a connection, which has an [`Importer`](super::Importer).
///
/// A buffer that is handed over is kept, as a lease, until its receiver is done with it. If the receiver closes, exits or is
/// killed, its leases end within a second, and streams that wait for it go on; other receivers are not affected.
///
/// Dropped, the connection stays until the last lease has ended. [`Exporter::listen`] has an example.
#[derive(Debug)]
pub struct Exporter {
    link: Arc<ExportLink>,
}

pub(super) struct ExportLink {
    connection: Connection,
    driver: Driver,
    words: Arc<Words>,
    leases: Mutex<Leases>,
    /// How many leases there are, those that are just ending too, and whether there may be more.
    out: Arc<AtomicUsize>,
    is_open: AtomicBool,
    /// Segments that the importer was told of, with the bytes of those that it has no buffer of. The lock is held while it is told, so that no
    /// buffer overtakes its segment.
    announced: Mutex<HashMap<u64, Option<u64>>>,
    ahead_limit: AheadLimit,
    /// Segments whose end the importer was not told of yet.
    retiring: Mutex<Vec<u64>>,
    /// What the importer has to let go of before it is freed here.
    slabs: Mutex<HashMap<u64, Arc<Slab>>>,
    ring: Mutex<Producer<ring::Shared>>,
    /// Where the importer's readers sleep.
    way: ring::Shared,
    /// Whether the importer is in another process.
    is_to_another: bool,
    /// Read by the thread that looks after peers.
    releases: Mutex<Consumer<ring::Shared>>,
    /// Where that thread says that it sleeps.
    wake_flag: ring::Shared,
    /// Why nothing is handed over any more.
    ended: OnceLock<Error>,
}

impl Exporter {
    /// Makes an exporter of a connection, and is done when the importer at the other end has answered. Fences are recorded
    /// for streams of the context's device.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] and [`Error::Wire`] if the other end is no importer; [`core::Error::Unsupported`] if the device's streams
    /// cannot wait for words; those of [`Connection::recv`].
    pub fn new(context: &Context, connection: Connection, deadline: impl Into<Deadline>) -> Result<Self> {
        let exporter = Self::unwatched(context, connection, deadline.into())?;
        reaper::watch(Arc::<ExportLink>::clone(&exporter.link))?;
        Ok(exporter)
    }

    /// One that the thread does not look after.
    fn unwatched(context: &Context, connection: Connection, deadline: Deadline) -> Result<Self> {
        refuse_forked()?;
        // No importer ever sends one.
        guard(connection.as_fd());
        let memory = Words::memory(context)?;
        say(&connection, &wire::Message::Offer, &[memory.as_fd()], deadline)?;
        let (answer, descriptors) = heard(&connection, deadline)?;
        let pid = connection.peer().pid();
        let (wire::Message::Accept { segments, bytes }, true) = (answer, descriptors.is_empty()) else {
            return Err(protocol(&connection, "the offer is not accepted"));
        };
        let ahead_limit = AheadLimit { segments: usize::try_from(segments).unwrap_or(usize::MAX), bytes };
        // Behind the answer, for the importer has mapped it.
        let words = Arc::new(Words::of(context, memory, pid)?);
        let [way, wake_flag] = words.rings()?;
        let (ring, releases) = (Mutex::new(way.producer()), Mutex::new(wake_flag.consumer()));
        let link = Arc::new(ExportLink {
            is_to_another: pid != std::process::id(),
            connection,
            driver: context.driver(),
            words,
            leases: Mutex::default(),
            out: Arc::default(),
            is_open: AtomicBool::new(true),
            announced: Mutex::default(),
            ahead_limit,
            retiring: Mutex::default(),
            slabs: Mutex::default(),
            ring,
            way,
            releases,
            wake_flag,
            ended: OnceLock::new(),
        });
        Ok(Self { link })
    }

    /// Hands a buffer over, behind all that `stream` was given and the buffer's uses. Returns the number by which the receiver knows it.
    ///
    /// **The receiver gets the whole segment that the buffer lies in**, to read and to write: every other buffer of it too, handed to
    /// others or not. A pool is one circle of trust. Memory that only one receiver may see belongs into a pool of its own, or into an
    /// [isolated](SharedPool::allocate_isolated) buffer; an [`Exportable`](super::Exportable) gives whatever lies in the same handles.
    ///
    /// Neither host nor stream waits. Only the first buffer of a segment takes a descriptor along. The buffer may be dropped
    /// here at once, and may be handed to several receivers.
    ///
    /// # Capture
    ///
    /// [`core::Error::Capturing`] if the stream captures.
    ///
    /// # Errors
    ///
    /// Nothing was handed over then, but for one case: if the driver refuses to record the fence, the connection ends, and the receiver gets
    /// [`Error::PeerDied`] of what was not finished. [`Error::Timeout`] when the receiver takes no buffers or too many descriptors are under way,
    /// one that [is gone](Error::is_gone) when it is; [`Error::TooManyWaits`] if the buffer comes back from peers that do not reach their fences.
    pub fn hand_over(
        &self,
        buffer: impl Into<Share>,
        stream: &Stream,
        deadline: impl Into<Deadline>,
    ) -> Result<u64> {
        refuse_forked()?;
        let (share, link, deadline) = (buffer.into(), &self.link, deadline.into());
        link.expect_open("handing over")?;
        link.driver.expect_same(stream.context().driver(), "the stream")?;
        link.driver.expect_same(share.driver, "the buffer")?;
        // First: a reader that sleeps takes longer to wake up than everything else, and looks for the entry for a while.
        ring::wake(&link.way);
        link.announce(&share.segment, deadline)?;
        share.holder.order(stream)?;
        link.reserve(deadline)?;
        let (segment, offset, len) = (share.segment.info.id, share.offset as u64, share.len as u64);
        // Whatever can be done before the fence is: beside it there is the entry and nothing else.
        let sequence = link.lease(share.holder).inspect_err(|_| lock(&link.ring).cancel())?;
        // Its fence is known when it is recorded.
        let fence = Point { line: 0, generation: 0 };
        link.record_and_push(stream, HandOver { sequence, segment, offset, len, fence })?;
        Ok(sequence)
    }

    /// Tells the receiver of all segments of a pool: of those that are there now, and of each new one as soon as it is there. It maps them
    /// in the background, as many as its [`AheadLimit`] says, and their first buffers cost no mapping any more.
    ///
    /// **It gets all of the pool's memory by this**, but for isolated buffers, whether anything of it is handed over or not. The call does
    /// not wait; a segment that cannot be announced now is announced with its first buffer. Ends with the exporter or the pool.
    ///
    /// # Errors
    ///
    /// One that [is gone](Error::is_gone) if the receiver is; [`Error::Protocol`] or [`Error::Wire`], which say what it did wrong.
    pub fn attach(&self, pool: &SharedPool) -> Result<()> {
        refuse_forked()?;
        self.link.expect_open("attaching a pool")?;
        self.link.driver.expect_same(pool.pool.context.driver(), "the pool")?;
        pool.attach(&self.link);
        Ok(())
    }

    /// Tells the receiver of the memory that a buffer lies in, as [`attach`](Self::attach) does of a pool's: for an isolated buffer, or
    /// a block of a caching allocator. False if it is not told ahead, because of its [`AheadLimit`], or because too many messages
    /// or descriptors are under way; then it is told with the first buffer.
    ///
    /// **It gets the whole of the memory by this**, whether the buffer is handed over or not. The call does not wait.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach); [`Error::Core`] and [`Error::Pool`] if the memory cannot be exported.
    pub fn announce(&self, buffer: impl Into<Share>) -> Result<bool> {
        refuse_forked()?;
        let share = buffer.into();
        self.link.expect_open("announcing a segment")?;
        self.link.driver.expect_same(share.driver, "the buffer")?;
        share.segment.with_handles(|handles| self.link.announce_ahead(&share.segment.info, handles))
    }

    /// How many buffers the receiver has.
    #[must_use]
    pub fn leases(&self) -> usize {
        if core::forked() { 0 } else { self.link.out.load(Ordering::SeqCst) }
    }

    /// Waits until the receiver has given back everything that was handed over, or until [`Error::Timeout`].
    pub fn returned(&self, deadline: impl Into<Deadline>) -> Result<()> {
        refuse_forked()?;
        until(deadline.into(), "the receiver had given everything back", || Ok(self.leases() == 0))
    }

    /// The process at the other end.
    #[must_use]
    pub fn peer(&self) -> &Arc<Peer> {
        self.link.connection.peer()
    }
}

impl ExportLink {
    /// Refuses once the importer has closed its end or broken the protocol, as far as was heard.
    fn expect_open(&self, doing: &'static str) -> Result<()> {
        match self.ended.get() {
            Some(Error::Closed { .. }) => Err(Error::Closed { doing }),
            ended => ended.cloned().map_or(Ok(()), Err),
        }
    }

    /// Tells the importer of a segment before a buffer of it, once. While it waits for room it has no lock that the reaper takes.
    fn announce(self: &Arc<Self>, segment: &Segment, deadline: Deadline) -> Result<()> {
        let is_known = |announced: &mut HashMap<u64, Option<u64>>| {
            announced.get_mut(&segment.info.id).map(|ahead| *ahead = None).is_some()
        };
        if is_known(&mut lock(&self.announced)) {
            return Ok(());
        }
        segment.with_handles(|handles| {
            until(deadline, "the peer could be told of the segment", || {
                let mut announced = lock(&self.announced);
                self.expect_open("handing over")?;
                Ok(is_known(&mut announced) || self.tell(&mut announced, &segment.info, None, handles)?)
            })
        })
    }

    /// Tells the importer of a segment of which it has no buffer yet, and returns whether it knows of it. Nobody is waited for.
    pub(super) fn announce_ahead(
        self: &Arc<Self>,
        segment: &SegmentInfo,
        handles: &[BorrowedFd<'_>],
    ) -> Result<bool> {
        let mut announced = lock(&self.announced);
        // Its exporter may be gone, or the importer. Behind the lock, which the thread takes before it lets go of the link: it either sees
        // what is told here, or this sees that the exporter is gone.
        if !self.is_open.load(Ordering::SeqCst) || self.ended.get().is_some() {
            return Ok(false);
        }
        if announced.contains_key(&segment.id) {
            return Ok(true);
        }
        let (bytes, ahead) = (segment.bytes as u64, announced.values().copied().flatten());
        if !self.ahead_limit.has_room(bytes, ahead) {
            return Ok(false);
        }
        self.tell(&mut announced, segment, Some(bytes), handles)
    }

    /// Tells of a segment, and will tell of its end. False if there is no room now.
    fn tell(
        self: &Arc<Self>,
        announced: &mut HashMap<u64, Option<u64>>,
        segment: &SegmentInfo,
        ahead: Option<u64>,
        handles: &[BorrowedFd<'_>],
    ) -> Result<bool> {
        if let Some(slab) = &segment.slab {
            // Before it can answer.
            lock(&self.slabs).insert(segment.id, Arc::clone(slab));
        }
        let told = say(&self.connection, &wire::Message::Segment(segment.said()), handles, Duration::ZERO);
        if let Err(error) = told {
            lock(&self.slabs).remove(&segment.id);
            return if error.has_no_room() { Ok(false) } else { Err(error) };
        }
        segment.is_known_by(Arc::downgrade(self));
        announced.insert(segment.id, ahead);
        Ok(true)
    }

    /// A segment of this process is gone.
    pub(super) fn retire(&self, segment: u64) {
        if lock(&self.announced).remove(&segment).is_some() {
            lock(&self.retiring).push(segment);
            reaper::wake();
        }
    }

    /// Sets a place of the ring aside, as soon as there is one.
    fn reserve(&self, deadline: Deadline) -> Result<()> {
        until(deadline, "the peer had taken enough buffers for another one", || {
            let what = "it has taken more from the ring than there was";
            self.expect_open("handing over")?;
            lock(&self.ring).reserve().map_err(|Corrupt| protocol(&self.connection, what))
        })
    }

    /// Has the stream record the fence of a hand-over, and writes the entry to the place that is set aside.
    ///
    /// The entry comes right before the fence, so that the receiver has its stream wait while the driver here is busy with the fence. Its
    /// stream waits for that call alone, which waits for no device. In one process it might: streams of one process share hardware
    /// queues, and a stream there that waits may hold up the very one which is to record it, so there the entry comes behind it.
    fn record_and_push(&self, stream: &Stream, said: HandOver) -> Result<()> {
        let mut is_pushed = false;
        let mut push = |fence| {
            is_pushed = true;
            lock(&self.ring).push(HandOver { fence, ..said }.to_entry());
        };
        let recorded = self.words.record_announced(stream, |point| {
            if self.is_to_another {
                push(point);
            }
            self.is_to_another
        });
        if let (Ok(point), false) = (&recorded, self.is_to_another) {
            push(*point);
        }
        if is_pushed {
            ring::wake(&self.way);
            // Nothing says any more when the work is done that the receiver was told of.
            return recorded.map(drop).map_err(|error| self.connection.breaks(error));
        }
        lock(&self.ring).cancel();
        drop(self.end_lease(said.sequence));
        recorded.map(drop)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if !core::forked() {
            self.link.is_open.store(false, Ordering::SeqCst);
            reaper::wake();
        }
    }
}

crate::impl_debug!(ExportLink, |it| peer: it.connection.peer());

#[cfg(any(test, fuzzing))]
#[path = "../../tests/players/exporter.rs"]
pub(super) mod played;
