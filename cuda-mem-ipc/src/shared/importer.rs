//! The receiving end of a connection.

mod give_back;
mod segments;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{self as core, Context, Stream, Uses};

use super::budget::Budget;
use super::options::AheadLimit;
use super::reaper;
use super::received::{Received, ReceivedBuffer};
use super::ring::{self, Consumer, Producer};
use super::wire::{self, HandOver};
use super::words::Words;
use super::{heard, protocol, say, unreadable};
use crate::error::{Error, Result};
use crate::primitive::{lock, refuse_forked};
use crate::transport::{Connection, Deadline, Peer};
pub(super) use give_back::Returned;
use segments::{Known, MOST_SEGMENTS};

/// How long the ring is looked at before the thread sleeps: less than it takes to be woken.
const SPIN: Duration = Duration::from_micros(20);

/// The same for a thread that was woken: longer than who woke it takes to put something there. Not much longer, for where processors are
/// few it may have taken that one's.
const WOKEN: Duration = Duration::from_micros(5);

/// Receives buffers from the process at the other end of a connection, which has an [`Exporter`](super::Exporter).
///
/// A segment is mapped once in a process, whichever connections to its exporter bring buffers of it: in the background as soon as it was
/// announced, within the [`AheadLimit`], otherwise when the first of its buffers is received. It stays mapped until its exporter says that
/// it is gone, or is gone itself and all that it had sent was received, and the last buffer of it is dropped. Whatever comes is checked; a
/// message that breaks the protocol ends the connection.
///
/// When the exporter dies, streams that wait for its work go on, and the buffers whose work it had not finished give
/// [`Error::PeerDied`]. Their memory stays what it is until they are dropped.
///
/// Dropped, the connection stays until the last buffer has gone back. [`Exporter::listen`](super::Exporter::listen) has an example.
pub struct Importer {
    link: Arc<ImportLink>,
}

pub(super) struct ImportLink {
    pub(super) context: Context,
    /// Held while an entry is taken, not while one is waited for.
    entries: Mutex<Consumer<ring::Shared>>,
    /// How many were taken whose segments are being looked for.
    receiving: AtomicUsize,
    ring: ring::Shared,
    releases: Mutex<Producer<ring::Shared>>,
    /// Where the exporter's thread says that it sleeps.
    wake_flag: ring::Shared,
    pub(super) words: Words,
    segments: Mutex<BTreeMap<u64, Arc<Known>>>,
    ahead_limit: AheadLimit,
    /// How many descriptors came of segments that are not mapped yet.
    waiting: Arc<AtomicUsize>,
    budget: Budget,
    /// Held while a message is received and looked at.
    reading: Mutex<()>,
    /// How many buffers could not be given back at once.
    unsent: AtomicUsize,
    /// Buffers that have not gone back.
    live: AtomicUsize,
    /// Segments that the exporter has to hear the end of: how many there are, and those that have come to it.
    slabs: AtomicUsize,
    let_go: Mutex<Vec<u64>>,
    is_reclaiming: Arc<AtomicBool>,
    /// The exporter sleeps, and could not be woken.
    is_to_wake: AtomicBool,
    /// Where releases are recorded that have no stream of their own.
    stream: OnceLock<Stream>,
    is_open: AtomicBool,
    /// Why no message comes any more.
    ended: OnceLock<Error>,
    /// The exporter is gone.
    is_over: AtomicBool,
    /// Last: from its end on the exporter takes it that nothing is mapped here.
    connection: Connection,
}

impl Importer {
    /// Makes an importer of a connection, once the exporter at the other end has made its offer. Memory is mapped for the
    /// device of the context, and ahead of its first buffer as far as [`AheadLimit::default`] goes.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] and [`Error::Wire`] if the other end is no exporter; [`core::Error::Unsupported`] if the device's streams
    /// cannot wait for words; those of [`Connection::recv`].
    pub fn new(context: &Context, connection: Connection, deadline: impl Into<Deadline>) -> Result<Self> {
        Self::with_ahead(context, connection, AheadLimit::default(), deadline)
    }

    /// As [`Importer::new`], with a limit of what is mapped ahead of its first buffer: [`core::Error::NotAccepted`] above 4096 segments, which
    /// is what an importer knows at a time.
    pub fn with_ahead(
        context: &Context,
        connection: Connection,
        ahead: AheadLimit,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        let importer = Self::unwatched(context, connection, ahead, deadline.into())?;
        reaper::watch(Arc::<ImportLink>::clone(&importer.link))?;
        Ok(importer)
    }

    /// One that the thread does not look after.
    fn unwatched(
        context: &Context,
        connection: Connection,
        ahead: AheadLimit,
        deadline: Deadline,
    ) -> Result<Self> {
        refuse_forked()?;
        if ahead.segments > MOST_SEGMENTS {
            let (value, accepted) = (ahead.segments, 0..=MOST_SEGMENTS);
            return Err(core::Error::NotAccepted { option: "AheadLimit::segments", value, accepted }.into());
        }
        let pid = connection.peer().pid();
        let (offer, descriptors) = heard(&connection, deadline)?;
        if offer != wire::Message::Offer || descriptors.len() != 1 {
            return Err(protocol(&connection, "it does not begin with an offer"));
        }
        let words = Words::open(context, descriptors, pid)?;
        let accepted = wire::Message::Accept { segments: ahead.segments as u64, bytes: ahead.bytes };
        say(&connection, &accepted, &[], deadline)?;
        let [ring, wake_flag] = words.rings()?;
        let link = Arc::new(ImportLink {
            context: context.clone(),
            entries: Mutex::new(ring.consumer()),
            receiving: AtomicUsize::new(0),
            ring,
            releases: Mutex::new(wake_flag.producer()),
            wake_flag,
            words,
            segments: Mutex::default(),
            ahead_limit: ahead,
            waiting: Arc::default(),
            budget: Budget::default(),
            reading: Mutex::default(),
            unsent: AtomicUsize::new(0),
            live: AtomicUsize::new(0),
            slabs: AtomicUsize::new(0),
            let_go: Mutex::default(),
            is_reclaiming: Arc::default(),
            is_to_wake: AtomicBool::new(false),
            stream: OnceLock::new(),
            is_open: AtomicBool::new(true),
            ended: OnceLock::new(),
            is_over: AtomicBool::new(false),
            connection,
        });
        Ok(Self { link })
    }

    /// The next buffer, as soon as it was handed over: its bytes are there when its fence is reached, which
    /// [`ReceivedBuffer::on`] has a stream wait for. Only the first buffer of a segment takes calls of the driver, or waits for those that
    /// are made ahead; no deadline interrupts them.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] when none comes, one that [is gone](Error::is_gone) when none can come. For a segment that was not mapped its error,
    /// for each buffer of it, which goes back; [`Error::System`] also for a message that the system refused. The connection goes on; not after
    /// [`Error::Wire`], [`Error::Protocol`] and those of [`Connection::recv`], for a peer that does not follow the protocol.
    pub fn recv(&self, deadline: impl Into<Deadline>) -> Result<ReceivedBuffer> {
        refuse_forked()?;
        let (deadline, link) = (deadline.into(), &self.link);
        let mut spin = SPIN;
        loop {
            link.look(deadline, spin);
            match link.take() {
                Err(error) if error.is_timeout() && !deadline.has_passed() => link.sleep(deadline),
                result => return result,
            }
            spin = WOKEN;
        }
    }

    /// How many segments are mapped of which no buffer came yet: those announced ahead, as far as they are done and within the [`AheadLimit`].
    #[must_use]
    pub fn mapped_ahead(&self) -> usize {
        if core::forked() { 0 } else { self.link.mapped_ahead() }
    }

    /// The process at the other end.
    #[must_use]
    pub fn peer(&self) -> &Arc<Peer> {
        self.link.connection.peer()
    }

    /// How many of the buffers have not gone back yet.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.link.live.load(Ordering::SeqCst)
    }
}

impl ImportLink {
    /// Looks for a while whether there is something to take, without a system call.
    fn look(&self, deadline: Deadline, spin: Duration) {
        let position = lock(&self.entries).position();
        let end = deadline.min(Deadline::after(spin));
        while !ring::has_more(&self.ring, position) && !end.has_passed() {
            std::hint::spin_loop();
        }
    }

    /// Waits until there is something to take, or nothing comes any more. The thread that ends the connection wakes this.
    fn sleep(&self, deadline: Deadline) {
        let position = lock(&self.entries).position();
        if let Some(rung) = ring::prepare_sleep(&self.ring, position)
            && self.ended.get().is_none()
        {
            ring::sleep(&self.ring, rung, deadline);
        }
    }

    fn take(self: &Arc<Self>) -> Result<ReceivedBuffer> {
        if self.connection.is_broken() {
            // What is in the ring is believed no more than messages are.
            self.forget_all();
            return Err(Error::Broken);
        }
        // Before the look: what was handed over before the end is there then.
        let ended = self.ended.get().cloned();
        let entry = {
            let mut entries = lock(&self.entries);
            let entry = entries.peek();
            if matches!(entry, Ok(Some(_))) {
                entries.advance();
                self.receiving.fetch_add(1, Ordering::SeqCst);
            }
            entry
        };
        match entry {
            Ok(Some(entry)) => {
                let said = HandOver::of_entry(entry).map_err(unreadable(&self.connection));
                let received = said.and_then(|said| self.receive(said));
                self.receiving.fetch_sub(1, Ordering::SeqCst);
                if self.is_over() {
                    self.forget_if_last();
                }
                received
            }
            Ok(None) => {
                let error = ended.ok_or(Error::Timeout { what: "a buffer came" })?;
                self.forget_if_last();
                Err(error)
            }
            Err(_) => Err(self.breaks("it has put more into the ring than there is room for")),
        }
    }

    /// Lets go of the segments if no buffer of them can come any more.
    fn forget_if_last(&self) {
        let is_last = {
            let entries = lock(&self.entries);
            !matches!(entries.peek(), Ok(Some(_))) && self.receiving.load(Ordering::SeqCst) == 0
        };
        if is_last || self.connection.is_broken() {
            self.forget_all();
        }
    }

    fn receive(self: &Arc<Self>, said: HandOver) -> Result<ReceivedBuffer> {
        let outside = || self.breaks("it hands over what lies outside of its segment");
        let memory = self.memory(said.segment).and_then(|segment| {
            let (offset, len) = (usize::try_from(said.offset), usize::try_from(said.len));
            let (Ok(offset), Ok(len)) = (offset, len) else { return Err(outside()) };
            let end = offset.checked_add(len).filter(|end| *end <= segment.info.bytes).ok_or_else(outside)?;
            Ok((segment, offset..end))
        });
        self.live.fetch_add(1, Ordering::SeqCst);
        let refuse = |_: &Error| self.give_back(Returned::new(said.sequence, None, Uses::new()));
        let (segment, range) = memory.inspect_err(refuse)?;
        let (link, offset, len) = (Arc::clone(self), range.start, range.len());
        let received = Received { link, segment, offset, len, said, uses: Uses::new() };
        Ok(ReceivedBuffer { received: Arc::new(received) })
    }

    fn breaks(&self, what: &'static str) -> Error {
        protocol(&self.connection, what)
    }

    fn stream(&self) -> Result<&Stream> {
        if let Some(stream) = self.stream.get() {
            return Ok(stream);
        }
        let stream = Stream::new(&self.context)?;
        Ok(self.stream.get_or_init(|| stream))
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        if !core::forked() {
            self.link.is_open.store(false, Ordering::SeqCst);
            reaper::wake();
        }
    }
}

crate::impl_debug!(Importer, |it| peer: it.peer().pid());

#[cfg(any(test, fuzzing))]
#[path = "../../tests/players/importer.rs"]
pub(super) mod played;
