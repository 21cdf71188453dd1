//! The receiving end of a connection.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::ipc::{EventHandle, OpenedEvent};
use cuda_mem_pool::cuda_mem_core::{self as core, Context, Stream};

use super::arrival::Arrival;
use super::reaper::{self, Watched};
use super::received::ReceivedBuffer;
use super::releases::{self, bury};
use super::returned::Returned;
use super::ring::{self, Consumer, Producer, Pushed};
use super::segment::Segment;
use super::wire::{self, Fence, HandOver, Release};
use super::words::{Point, Words};
use super::{Heard, MOST_AT_A_TIME, heard, lock, refuse_forked, say};
use crate::error::{Error, Result};
use crate::import::{ImportError, ImportKey, Imported, Imports};
use crate::transport::{Connection, Deadline, Peer, Poller};

/// How many segments a peer may have this process map at a time.
const MOST_SEGMENTS: usize = 4096;

/// How long the ring is looked at before the thread sleeps: less than it takes to be woken.
const SPIN: Duration = Duration::from_micros(20);

/// How long another connection's import or release of the same segment may take, whatever the deadline is: a segment that is
/// refused stays refused.
const IMPORT: Duration = Duration::from_secs(10);

/// What this process has mapped for all importers.
static IMPORTS: OnceLock<Imports<Segment>> = OnceLock::new();

/// Receives buffers from the process at the other end of a connection, which has an [`Exporter`](super::Exporter).
///
/// A segment is mapped once in a process, whichever connections to its exporter bring buffers of it, and stays mapped until
/// its exporter says that it is gone, or is gone itself and all that it had sent was received, and the last buffer of it is
/// dropped. Whatever comes is checked; a message
/// that breaks the protocol ends the connection.
///
/// When the exporter dies, streams that wait for its work go on, and the buffers whose work it had not finished give
/// [`Error::PeerDied`]. Their memory stays what it is until they are dropped.
///
/// Dropped, the connection stays until the last buffer has gone back. [`SharedPool`](super::SharedPool) has an example.
pub struct Importer {
    link: Arc<ImportLink>,
}

pub(super) struct ImportLink {
    context: Context,
    connection: Connection,
    /// Held while a message is received and looked at, not while one is waited for.
    turn: Mutex<Turn>,
    ring: ring::Shared,
    releases: Mutex<Producer<ring::Shared>>,
    /// Where the exporter says that nobody there looks.
    bed: ring::Shared,
    pub(super) words: Arc<Words>,
    segments: Mutex<HashMap<u64, Known>>,
    /// Releases that could not be sent at once.
    unsent: Mutex<Vec<Returned>>,
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
    is_over: AtomicBool,
}

/// How far what the exporter says was heard.
struct Turn {
    ring: Consumer<ring::Shared>,
    /// How many frames.
    heard: u64,
    /// A buffer that came as a message, behind those in the ring.
    held: Option<HandOver>,
}

/// A segment that the exporter has announced.
enum Known {
    Mapped(Imported<Segment>),
    /// It could not be imported, for this reason. Its buffers go back at once.
    Refused {
        error: Error,
        is_slab: bool,
    },
}

impl Known {
    fn is_slab(&self) -> bool {
        match self {
            Self::Mapped(segment) => segment.slab().is_some(),
            Self::Refused { is_slab, .. } => *is_slab,
        }
    }
}

impl Importer {
    /// Makes an importer of a connection, once the exporter at the other end has made its offer. Memory is mapped for the
    /// device of the context.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] and [`Error::Wire`] if the other end is no exporter; [`core::Error::Unsupported`] if the device's streams
    /// cannot wait for words; those of [`Connection::send`] and [`Connection::recv`]; [`core::Error::Forked`].
    pub fn new(context: &Context, connection: Connection, deadline: impl Into<Deadline>) -> Result<Self> {
        refuse_forked()?;
        let deadline = deadline.into();
        let pid = connection.peer().pid();
        let Heard { message: offer, descriptors, .. } = heard(&connection, deadline)?;
        let descriptor = match (offer, <[OwnedFd; 1]>::try_from(descriptors)) {
            (wire::Message::Offer(_), Ok([descriptor])) => descriptor,
            _ => {
                return Err(
                    connection.breaks(Error::Protocol { pid, what: "it does not begin with an offer" })
                );
            }
        };
        let words = Arc::new(Words::open(context, descriptor, pid)?);
        say(&connection, &wire::Message::Accept, &[], deadline)?;
        let [ring, bed] = words.rings()?;
        let releases = Mutex::new(bed.producer());
        let link = Arc::new(ImportLink {
            context: context.clone(),
            connection,
            turn: Mutex::new(Turn { ring: ring.consumer(), heard: 0, held: None }),
            ring,
            releases,
            bed,
            words,
            segments: Mutex::default(),
            unsent: Mutex::default(),
            live: AtomicUsize::new(0),
            slabs: AtomicUsize::new(0),
            let_go: Mutex::default(),
            is_reclaiming: Arc::default(),
            is_to_wake: AtomicBool::new(false),
            stream: OnceLock::new(),
            is_open: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
        });
        reaper::watch(Arc::<ImportLink>::clone(&link))?;
        Ok(Self { link })
    }

    /// The next buffer, as soon as it was handed over: its bytes are there when its fence is reached, which
    /// [`ReceivedBuffer::on`] has a stream wait for. Only the first buffer of a segment takes calls of the driver, which no
    /// deadline interrupts.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] when none comes, [`Error::Closed`] and [`Error::PeerExited`] when none can come any more. When a
    /// segment could not be mapped, its error, for each buffer of it, which goes back; the connection goes on. [`Error::Wire`] and
    /// [`Error::Protocol`] for a peer that does not follow the protocol, after which the connection is broken; those of
    /// [`Connection::recv`]; [`core::Error::Forked`].
    pub fn recv(&self, deadline: impl Into<Deadline>) -> Result<ReceivedBuffer> {
        refuse_forked()?;
        let (deadline, link) = (deadline.into(), &self.link);
        loop {
            match link.take() {
                Err(error) if error.is_timeout() && !deadline.has_passed() => link.wait(deadline)?,
                result => return result,
            }
        }
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
    fn breaks(&self, what: &'static str) -> Error {
        self.connection.breaks(Error::Protocol { pid: self.connection.peer().pid(), what })
    }

    /// Waits until there is something to receive, or the peer has ended.
    fn wait(&self, deadline: Deadline) -> Result<()> {
        let position = lock(&self.turn).ring.position();
        let start = Instant::now();
        while start.elapsed() < SPIN {
            if ring::has_more(&self.ring, position) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let slept = if ring::may_sleep(&self.ring, position) {
            let mut poller = Poller::new();
            poller.readable((), &self.connection);
            poller.readable((), &**self.connection.peer());
            poller.wait(deadline).map(drop)
        } else {
            Ok(())
        };
        ring::awake(&self.ring);
        slept
    }

    /// The next buffer, if it is there.
    fn take(self: &Arc<Self>) -> Result<ReceivedBuffer> {
        // Messages are believed in their order, whoever receives them.
        let mut turn = lock(&self.turn);
        for _ in 0..MOST_AT_A_TIME {
            let corrupt = |_| self.breaks("it has put more into the ring than there is room for");
            if let Some(entry) = turn.ring.peek().map_err(corrupt)? {
                let pid = self.connection.peer().pid();
                let wrong = |source| self.connection.breaks(Error::Wire { pid, source });
                let (said, messages) = HandOver::of_entry(entry).map_err(wrong)?;
                let is_next = turn.held.is_none_or(|held| said.sequence < held.sequence);
                if messages <= turn.heard && is_next {
                    turn.ring.advance();
                    return self.receive(said);
                }
            }
            if let Some(said) = turn.held.take() {
                return self.receive(said);
            }
            let Heard { message, descriptors, number } = match heard(&self.connection, Duration::ZERO) {
                Err(error) if error.is_gone() || matches!(error, Error::Broken) => {
                    self.forget_all();
                    return Err(error);
                }
                result => result?,
            };
            turn.heard = number.saturating_add(1);
            let no_descriptor = descriptors.is_empty();
            match message {
                wire::Message::Segment(said) if descriptors.len() == said.descriptors() => {
                    self.learn(&said, descriptors)?;
                }
                // Behind what was put into the ring before.
                wire::Message::HandOver(said) if no_descriptor => turn.held = Some(said),
                wire::Message::Retire { segment } if no_descriptor => self.forget(segment)?,
                wire::Message::Ring if no_descriptor => {}
                _ => return Err(self.breaks("an exporter does not say that")),
            }
        }
        Err(Error::Timeout { what: "a buffer came" })
    }

    /// Maps a segment, unless this process has it.
    fn learn(self: &Arc<Self>, said: &wire::Segment, descriptors: Vec<OwnedFd>) -> Result<()> {
        let (is_known, count) = {
            let segments = lock(&self.segments);
            (segments.contains_key(&said.segment), segments.len())
        };
        if is_known {
            return Err(self.breaks("it announces a segment twice"));
        }
        if count >= MOST_SEGMENTS {
            return Err(self.breaks("it announces more segments than are accepted"));
        }
        let key = ImportKey::new(self.context.device(), &identity(self.connection.peer(), said));
        let import = |departure| Segment::import(&self.context, said, descriptors, departure);
        let imported = IMPORTS.get_or_init(Imports::new).import(&key, IMPORT, import);
        let known = match imported {
            // Somebody else's import of what the peer now says has another size.
            Ok(segment) if segment.bytes() as u64 != said.bytes => {
                return Err(self.breaks("it announces a segment with another size than before"));
            }
            Ok(segment) => {
                if let Some(slab) = segment.slab() {
                    self.slabs.fetch_add(1, Ordering::SeqCst);
                    slab.tell(Arc::downgrade(self), said.segment);
                }
                Known::Mapped(segment)
            }
            Err(ImportError::Failed(error)) => self.refused(error, said),
            Err(ImportError::Timeout(_)) => self.refused(Error::ImportBusy, said),
            Err(ImportError::Forked) => return Err(core::Error::Forked.into()),
        };
        lock(&self.segments).insert(said.segment, known);
        Ok(())
    }

    fn refused(&self, error: Error, said: &wire::Segment) -> Known {
        let is_slab = said.place.is_in_a_pool();
        if is_slab {
            self.slabs.fetch_add(1, Ordering::SeqCst);
        }
        Known::Refused { error, is_slab }
    }

    /// The exporter may free a segment.
    pub(super) fn slab_is_gone(&self, segment: u64) {
        lock(&self.let_go).push(segment);
        reaper::wake();
    }

    fn forget(&self, segment: u64) -> Result<()> {
        match lock(&self.segments).remove(&segment) {
            // It was not imported, so that nobody has it.
            Some(Known::Refused { is_slab: true, .. }) => self.slab_is_gone(segment),
            Some(known) => {
                let is_slab = known.is_slab();
                bury(known);
                if is_slab {
                    // From here on the thread looks whether its free was reached.
                    reaper::wake();
                }
            }
            None => return Err(self.breaks("it retires a segment that it did not announce")),
        }
        Ok(())
    }

    /// Nothing more will come of any segment. Their release waits for streams.
    fn forget_all(&self) {
        bury_all(std::mem::take(&mut *lock(&self.segments)));
    }

    fn receive(self: &Arc<Self>, said: HandOver) -> Result<ReceivedBuffer> {
        let segment = match lock(&self.segments).get(&said.segment) {
            Some(Known::Mapped(segment)) => Ok(segment.clone()),
            Some(Known::Refused { error, .. }) => Err(error.clone()),
            None => return Err(self.breaks("it hands over a part of a segment that it did not announce")),
        };
        let range = (usize::try_from(said.offset), usize::try_from(said.len));
        let (Ok(offset), Ok(len)) = range else {
            return Err(self.breaks("it hands over what lies outside of its segment"));
        };
        let arrival = segment.and_then(|segment| {
            if offset.checked_add(len).is_none_or(|end| end > segment.bytes()) {
                return Err(self.breaks("it hands over what lies outside of its segment"));
            }
            Ok((segment, self.arrival(said.fence)?))
        });
        match arrival {
            Ok((segment, arrival)) => {
                self.live.fetch_add(1, Ordering::SeqCst);
                Ok(ReceivedBuffer::new(self, segment, offset..offset.saturating_add(len), said, arrival))
            }
            Err(error) => {
                let release = Release { sequence: said.sequence, line: 0, generation: 0 };
                // Nobody is there to be told if it fails.
                let _ = say(&self.connection, &wire::Message::Release(release), &[], Duration::ZERO);
                Err(error)
            }
        }
    }

    fn arrival(&self, fence: Fence) -> Result<Arrival> {
        Ok(match fence {
            Fence::Word { line, generation } => {
                Arrival::Word { words: Arc::clone(&self.words), point: Point { line, generation } }
            }
            Fence::Event(handle) => {
                Arrival::Event(OpenedEvent::open(&self.context, &EventHandle::from_bytes(handle))?)
            }
        })
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// A stream of its own for releases.
    pub(super) fn stream(&self) -> Result<&Stream> {
        if let Some(stream) = self.stream.get() {
            return Ok(stream);
        }
        let stream = Stream::new(&self.context)?;
        Ok(self.stream.get_or_init(|| stream))
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// By the ring, if it has room; otherwise as a message.
    pub(super) fn send(&self, release: Release) -> Result<()> {
        let pushed = lock(&self.releases).push(release.to_entry());
        let message = match pushed {
            Ok(Pushed::Quietly) => return Ok(()),
            Ok(Pushed::ToASleeper) if ring::is_to_wake(&self.bed) => wire::Message::Ring,
            // Another one does.
            Ok(Pushed::ToASleeper) => return Ok(()),
            Ok(Pushed::Full) => wire::Message::Release(release),
            Err(_) => return Err(self.breaks("it has taken more from the ring than there was")),
        };
        if message == wire::Message::Ring {
            self.wake_exporter();
            if self.is_to_wake.load(Ordering::SeqCst) {
                reaper::wake();
            }
            return Ok(());
        }
        say(&self.connection, &message, &[], Duration::ZERO).map(drop)
    }

    /// Tells the exporter to look at the ring, now or as soon as it can be. What is in the ring is there.
    fn wake_exporter(&self) {
        match say(&self.connection, &wire::Message::Ring, &[], Duration::ZERO) {
            // One whose queue is full has something to wake up for.
            Err(error) if !error.is_timeout() && !error.is_gone() && !matches!(error, Error::Broken) => {
                // The system is short of something. Nobody else wakes it: the exporter does not say again that it sleeps.
                self.is_to_wake.store(true, Ordering::SeqCst);
            }
            _ => {}
        }
    }

    /// Gives a buffer back, now or as soon as it can be.
    pub(super) fn give_back(&self, mut returned: Returned) {
        if returned.is_sent(self) {
            self.gone_back();
            return;
        }
        lock(&self.unsent).push(returned);
        if self.is_over() {
            // The thread may have looked for the last time.
            self.settle_unsent();
        } else {
            reaper::wake();
        }
    }

    /// Gives back what could not be before. Once the exporter is gone, that is all of it: its uses go to the segments, whose
    /// release waits for them.
    fn settle_unsent(&self) {
        let unsent = std::mem::take(&mut *lock(&self.unsent));
        for mut returned in unsent {
            if returned.is_sent(self) {
                self.gone_back();
            } else {
                lock(&self.unsent).push(returned);
            }
        }
    }

    /// Drops a share in a segment, whose end may have to wait for others.
    pub(super) fn let_go(&self, known_as: u64, segment: Imported<Segment>) {
        let segments = lock(&self.segments);
        if matches!(segments.get(&known_as), Some(Known::Mapped(_))) {
            // Not the last, as long as nobody takes that one out.
            drop(segment);
        } else {
            drop(segments);
            bury(segment);
        }
    }

    /// Whether some are used no more that the exporter has not heard the end of.
    fn has_slabs_to_let_go(&self) -> bool {
        let slabs = self.slabs.load(Ordering::SeqCst);
        slabs > 0 && slabs > lock(&self.segments).values().filter(|known| known.is_slab()).count()
    }

    /// Tells the exporter which segments are gone here, and has those go that can.
    fn let_go_of_slabs(&self) {
        if self.is_let_go() {
            // The exporter need not say that they are used no more.
            let segments = std::mem::take(&mut *lock(&self.segments));
            let refused = |(segment, known): (&u64, &Known)| {
                matches!(known, Known::Refused { is_slab: true, .. }).then_some(*segment)
            };
            lock(&self.let_go).extend(segments.iter().filter_map(refused));
            bury_all(segments);
        }
        // What has been freed in stream order ends here. It may wait for streams, so that it is not done by the thread that asks.
        if !self.is_reclaiming.swap(true, Ordering::SeqCst) {
            let (driver, is_reclaiming) = (self.context.driver(), Arc::clone(&self.is_reclaiming));
            releases::queue([move || {
                driver.reclaim();
                is_reclaiming.store(false, Ordering::SeqCst);
            }]);
        }
        let mut let_go = lock(&self.let_go);
        while let Some(&segment) = let_go.last() {
            if say(&self.connection, &wire::Message::LetGo { segment }, &[], Duration::ZERO).is_err() {
                break;
            }
            let_go.pop();
            self.slabs.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn gone_back(&self) {
        self.live.fetch_sub(1, Ordering::SeqCst);
        if !self.is_open.load(Ordering::SeqCst) {
            reaper::wake();
        }
    }

    /// Whether no buffer is out any more.
    fn is_let_go(&self) -> bool {
        !self.is_open.load(Ordering::SeqCst) && self.live.load(Ordering::SeqCst) == 0
    }
}

fn bury_all(segments: HashMap<u64, Known>) {
    // Often there are none, and it is asked again and again.
    if !segments.is_empty() {
        bury(segments);
    }
}

/// What names a segment in this process: who announces it, and as what. Nobody can name another's.
fn identity(peer: &Peer, said: &wire::Segment) -> Vec<u8> {
    let numbers = [peer.pid().into(), peer.start_time(), said.generation, said.segment];
    numbers.iter().flat_map(|number: &u64| number.to_le_bytes()).collect()
}

impl Watched for ImportLink {
    fn connection(&self) -> &Connection {
        &self.connection
    }

    fn reads(&self) -> bool {
        false
    }

    fn service(&self) -> Result<()> {
        if self.is_to_wake.swap(false, Ordering::SeqCst) {
            self.wake_exporter();
        }
        self.settle_unsent();
        if self.slabs.load(Ordering::SeqCst) > 0 {
            self.let_go_of_slabs();
        }
        Ok(())
    }

    fn is_restless(&self) -> bool {
        let is_to_wake = self.is_to_wake.load(Ordering::SeqCst);
        is_to_wake || !lock(&self.unsent).is_empty() || self.is_let_go() || self.has_slabs_to_let_go()
    }

    fn is_done(&self) -> bool {
        // Its end is what tells the exporter that the words will not be written any more.
        let has_slabs = self.slabs.load(Ordering::SeqCst) > 0;
        self.is_let_go() && lock(&self.unsent).is_empty() && !has_slabs && self.words.own_are_reached()
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.words.end();
        // Before the segments are forgotten.
        self.settle_unsent();
        // Buffers that the peer had sent are received all the same. Whoever has the turn now sees the end by itself.
        if let Ok(turn) = self.turn.try_lock() {
            let is_over = turn.held.is_none() && matches!(turn.ring.peek(), Ok(None));
            if is_over && !self.connection.has_message() {
                self.forget_all();
            }
        }
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

impl fmt::Debug for Importer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Importer").field("peer", &self.peer().pid()).finish_non_exhaustive()
    }
}
