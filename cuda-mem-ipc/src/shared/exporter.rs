//! The giving end of a connection.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::ipc::InterprocessEvent;
use cuda_mem_pool::cuda_mem_core::{self as core, Context, Stream};

use super::options::FenceKind;
use super::reaper::{self, Watched};
use super::releases::{self, bury};
use super::ring::{self, Consumer, Corrupt, Producer, Pushed};
use super::segment::SegmentRef;
use super::share::{Holder, Share};
use super::slab::Slab;
use super::wire::{self, Fence, HandOver, Offer, Release};
use super::words::{Point, ReleaseFence, Words};
use super::{Heard, MOST_AT_A_TIME, heard, lock, refuse_forked, say};
use crate::error::{Error, Result};
use crate::transport::{Connection, Deadline, Peer, Poller};

/// Hands buffers to the process at the other end of a connection, which has an [`Importer`](super::Importer).
///
/// A buffer that is handed over is kept, as a lease, until its receiver is done with it. If the receiver closes, exits or is
/// killed, its leases end within a second, and streams that wait for it go on; nobody else notices.
///
/// Dropped, the connection stays until the last lease has ended. [`SharedPool`](super::SharedPool) has an example.
pub struct Exporter {
    link: Arc<ExportLink>,
}

pub(super) struct ExportLink {
    context: Context,
    connection: Connection,
    words: Arc<Words>,
    leases: Mutex<Leases>,
    /// How many leases there are, those that are just ending too.
    out: Arc<Out>,
    /// Segments that the importer has. The lock is held while a new one is sent, so that no buffer of it overtakes it.
    announced: Mutex<HashSet<u64>>,
    /// Segments whose end the importer was not told of yet.
    retiring: Mutex<Vec<u64>>,
    /// What the importer has to let go of before it is freed here.
    slabs: Mutex<HashMap<u64, Arc<Slab>>>,
    ring: Mutex<Producer<ring::Shared>>,
    /// Read by the thread that looks after peers.
    releases: Mutex<Consumer<ring::Shared>>,
    /// Where it says that it sleeps.
    bed: ring::Shared,
    /// How many frames whoever reads the ring must have heard.
    sent: AtomicU64,
    /// The peer has closed its end or broken the protocol.
    is_closing: AtomicBool,
}

#[derive(Default)]
struct Leases {
    next: u64,
    open: HashMap<u64, Lease>,
    /// The peer is gone.
    are_over: bool,
}

/// A buffer that a receiver has.
struct Lease {
    holder: Arc<dyn Holder>,
    _segment: SegmentRef,
    /// What the receiver waits for, if it is an event.
    _event: Option<InterprocessEvent>,
    /// Last: who sees that it has ended finds the buffer back.
    _count: Counted,
}

/// What is out.
struct Out {
    leases: AtomicUsize,
    /// Whether there may be more.
    is_open: AtomicBool,
}

/// One of so many.
struct Counted(Arc<Out>);

impl Counted {
    fn new(out: &Arc<Out>) -> Self {
        out.leases.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(out))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let was_last = self.0.leases.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && !self.0.is_open.load(Ordering::SeqCst) {
            reaper::wake();
        }
    }
}

impl Exporter {
    /// Makes an exporter of a connection, and is done when the importer at the other end has answered. Fences are recorded
    /// for streams of the context's device.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] and [`Error::Wire`] if the other end is no importer; [`core::Error::Unsupported`] if the device's streams
    /// cannot wait for words; those of [`Connection::send`] and [`Connection::recv`]; [`core::Error::Forked`].
    pub fn new(context: &Context, connection: Connection, deadline: impl Into<Deadline>) -> Result<Self> {
        refuse_forked()?;
        let deadline = deadline.into();
        let words = Arc::new(Words::create(context, connection.peer().pid())?);
        let descriptor = words.descriptor()?;
        say(&connection, &wire::Message::Offer(Offer::OURS), &[descriptor.as_fd()], deadline)?;
        let Heard { message: answer, descriptors, .. } = heard(&connection, deadline)?;
        if answer != wire::Message::Accept || !descriptors.is_empty() {
            let pid = connection.peer().pid();
            return Err(connection.breaks(Error::Protocol { pid, what: "the offer is not accepted" }));
        }
        words.seal()?;
        let [ring, bed] = words.rings()?;
        let (ring, releases) = (Mutex::new(ring.producer()), Mutex::new(bed.consumer()));
        let link = Arc::new(ExportLink {
            context: context.clone(),
            connection,
            words,
            leases: Mutex::default(),
            out: Arc::new(Out { leases: AtomicUsize::new(0), is_open: AtomicBool::new(true) }),
            announced: Mutex::default(),
            retiring: Mutex::default(),
            slabs: Mutex::default(),
            ring,
            releases,
            bed,
            sent: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
        });
        reaper::watch(Arc::<ExportLink>::clone(&link))?;
        Ok(Self { link })
    }

    /// Hands a buffer over, behind everything that `stream` was given so far and behind the buffer's uses. Returns the number
    /// that the receiver knows it by.
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
    /// Nothing was handed over then. [`Error::Timeout`] when the receiver takes no messages, [`Error::PeerDied`],
    /// [`Error::Closed`] and [`Error::PeerExited`] when it is gone; [`Error::Core`]: [`core::Error::ForeignContext`] for another
    /// driver's stream, those of [`FenceLine::record`](core::FenceLine::record), [`core::Error::Forked`].
    pub fn hand_over(
        &self,
        buffer: impl Into<Share>,
        stream: &Stream,
        deadline: impl Into<Deadline>,
    ) -> Result<u64> {
        self.hand_over_with(FenceKind::Word, buffer, stream, deadline)
    }

    /// As [`Exporter::hand_over`], with a fence of a kind.
    ///
    /// # Capture
    ///
    /// As there.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn hand_over_with(
        &self,
        fence: FenceKind,
        buffer: impl Into<Share>,
        stream: &Stream,
        deadline: impl Into<Deadline>,
    ) -> Result<u64> {
        refuse_forked()?;
        let (share, deadline, link) = (buffer.into(), deadline.into(), &self.link);
        if link.is_closing.load(Ordering::Acquire) {
            return Err(Error::Closed { doing: "handing over" });
        }
        link.announce(&share.segment, deadline)?;
        share.holder.order(stream)?;
        let (fence, event) = link.fence(fence, stream)?;
        let lease = Lease {
            holder: share.holder,
            _segment: share.segment.clone(),
            _event: event,
            _count: Counted::new(&link.out),
        };
        let sequence = link.lease(lease)?;
        let (segment, offset, len) = (share.segment.id(), share.offset as u64, share.len as u64);
        if let Err(error) = link.send(HandOver { sequence, segment, offset, len, fence }, deadline) {
            drop(link.end_lease(sequence));
            return Err(error);
        }
        Ok(sequence)
    }

    /// How many buffers the receiver has.
    #[must_use]
    pub fn leases(&self) -> usize {
        if core::forked() { 0 } else { self.link.out.leases.load(Ordering::SeqCst) }
    }

    /// The process at the other end.
    #[must_use]
    pub fn peer(&self) -> &Arc<Peer> {
        self.link.connection.peer()
    }
}

impl ExportLink {
    /// Tells the importer of a segment, once. Whoever waits for room does so without the lock, which the thread takes too.
    fn announce(self: &Arc<Self>, segment: &SegmentRef, deadline: Deadline) -> Result<()> {
        loop {
            match self.try_announce(segment) {
                Err(error) if error.is_timeout() && !deadline.has_passed() => self.wait_for_room(deadline)?,
                result => return result,
            }
        }
    }

    fn try_announce(self: &Arc<Self>, segment: &SegmentRef) -> Result<()> {
        let mut announced = lock(&self.announced);
        if announced.contains(&segment.id()) {
            return Ok(());
        }
        let message = wire::Message::Segment(segment.said());
        if let Some(slab) = segment.slab() {
            // Before it can answer.
            lock(&self.slabs).insert(segment.id(), Arc::clone(slab));
        }
        let said = segment.with_descriptors(|descriptors| self.say(&message, descriptors, Duration::ZERO));
        if let Err(error) = said {
            lock(&self.slabs).remove(&segment.id());
            return Err(error);
        }
        announced.insert(segment.id());
        segment.is_known_by(Arc::downgrade(self));
        Ok(())
    }

    fn wait_for_room(&self, deadline: Deadline) -> Result<()> {
        let mut poller = Poller::new();
        poller.writable((), &self.connection);
        poller.readable((), &**self.connection.peer());
        poller.wait(deadline).map(drop)
    }

    fn say(
        &self,
        message: &wire::Message,
        descriptors: &[BorrowedFd<'_>],
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let number = say(&self.connection, message, descriptors, deadline)?;
        // Its place among the others': threads that send at the same time may come here in any order.
        self.sent.fetch_max(number.saturating_add(1), Ordering::Release);
        Ok(())
    }

    /// By the ring, if it has room; otherwise as a message.
    fn send(&self, said: HandOver, deadline: Deadline) -> Result<()> {
        // What has to be heard before, the segment above all, was sent before.
        let pushed = match said.to_entry(self.sent.load(Ordering::Acquire)) {
            Some(entry) => lock(&self.ring).push(entry),
            None => Ok(Pushed::Full),
        };
        match pushed {
            Ok(Pushed::Quietly) => Ok(()),
            Ok(Pushed::ToASleeper) => {
                // A peer whose queue is full has something to wake up for, and of one that is gone the thread will hear.
                let _ = self.say(&wire::Message::Ring, &[], Duration::ZERO);
                Ok(())
            }
            Ok(Pushed::Full) => self.say(&wire::Message::HandOver(said), &[], deadline),
            Err(Corrupt) => {
                let (pid, what) =
                    (self.connection.peer().pid(), "it has taken more from the ring than there was");
                Err(self.connection.breaks(Error::Protocol { pid, what }))
            }
        }
    }

    /// A segment of this process is gone.
    pub(super) fn retire(&self, segment: u64) {
        if lock(&self.announced).remove(&segment) {
            lock(&self.retiring).push(segment);
            reaper::wake();
        }
    }

    fn fence(&self, kind: FenceKind, stream: &Stream) -> Result<(Fence, Option<InterprocessEvent>)> {
        Ok(match kind {
            FenceKind::Word => {
                let Point { line, generation } = self.words.record(stream)?;
                (Fence::Word { line, generation }, None)
            }
            FenceKind::Event => {
                let event = InterprocessEvent::new(&self.context)?;
                stream.record(event.event())?;
                (Fence::Event(*event.handle()?.as_bytes()), Some(event))
            }
        })
    }

    fn lease(&self, lease: Lease) -> Result<u64> {
        let mut leases = lock(&self.leases);
        if leases.are_over {
            drop(leases);
            return Err(Error::PeerDied { pid: self.connection.peer().pid() });
        }
        let sequence = leases.next;
        leases.next = sequence.wrapping_add(1);
        leases.open.insert(sequence, lease);
        Ok(sequence)
    }

    /// The caller drops it outside the lock: a buffer may end with it.
    fn end_lease(&self, sequence: u64) -> Option<Lease> {
        lock(&self.leases).open.remove(&sequence)
    }

    /// Whether no lease is out any more, nor will be.
    fn is_let_go(&self) -> bool {
        !self.out.is_open.load(Ordering::SeqCst) && self.out.leases.load(Ordering::SeqCst) == 0
    }

    /// The lease that has ended. Its buffer, and all that the buffer has, may end with it and wait for streams: not here.
    fn take_release(&self, release: Release) -> Result<Lease> {
        let Release { sequence, line, generation } = release;
        let Some(lease) = self.end_lease(sequence) else {
            let (pid, what) = (self.connection.peer().pid(), "it releases what it does not have");
            return Err(Error::Protocol { pid, what });
        };
        if generation > 0 {
            let (words, point) = (Arc::clone(&self.words), Point { line, generation });
            words.expect(point);
            lease.holder.released(ReleaseFence { words, point });
        }
        Ok(lease)
    }

    /// Nobody there has it any more.
    fn take_slab(&self, segment: u64) -> Result<()> {
        let Some(slab) = lock(&self.slabs).remove(&segment) else {
            let (pid, what) = (self.connection.peer().pid(), "it lets go of what it does not have");
            return Err(Error::Protocol { pid, what });
        };
        // If it does so of its own accord, it has to be told anew.
        lock(&self.announced).remove(&segment);
        bury(slab);
        Ok(())
    }

    /// Without leases nobody needs the segments there.
    fn retire_all(&self) {
        let mut announced = lock(&self.announced);
        let slabs = lock(&self.slabs);
        let retiring = slabs.keys().copied().filter(|segment| announced.remove(segment)).collect::<Vec<_>>();
        lock(&self.retiring).extend(retiring);
    }

    /// What has come by the ring.
    fn take_releases(&self) -> Result<()> {
        let pid = self.connection.peer().pid();
        let mut releases = lock(&self.releases);
        let mut take = || {
            let what = "it has put more into the ring than there is room for";
            let Some(entry) = releases.peek().map_err(|_| Error::Protocol { pid, what })? else {
                return Ok(None);
            };
            releases.advance();
            let release = Release::of_entry(entry).map_err(|source| Error::Wire { pid, source });
            release.and_then(|release| self.take_release(release)).map(Some)
        };
        let mut ended = Vec::new();
        let mut taken = Ok(());
        for _ in 0..MOST_AT_A_TIME {
            match take() {
                Ok(Some(lease)) => ended.push(lease),
                Ok(None) => break,
                Err(error) => {
                    taken = Err(self.connection.breaks(error));
                    break;
                }
            }
        }
        let_go(ended);
        taken
    }

    fn take_messages(&self) -> Result<()> {
        for _ in 0..MOST_AT_A_TIME {
            let Heard { message, descriptors, .. } = match heard(&self.connection, Duration::ZERO) {
                Err(error) if error.is_timeout() => return Ok(()),
                result => result?,
            };
            let taken = match message {
                wire::Message::Release(release) if descriptors.is_empty() => {
                    self.take_release(release).map(|lease| let_go(vec![lease]))
                }
                wire::Message::Ring if descriptors.is_empty() => Ok(()),
                wire::Message::LetGo { segment } if descriptors.is_empty() => self.take_slab(segment),
                _ => Err(Error::Protocol {
                    pid: self.connection.peer().pid(),
                    what: "an importer does not say that",
                }),
            };
            taken.map_err(|error| self.connection.breaks(error))?;
        }
        Ok(())
    }
}

/// Ends leases one by one: one that waits holds up no other.
fn let_go(leases: Vec<Lease>) {
    if !leases.is_empty() {
        releases::queue(leases.into_iter().map(|lease| move || drop(lease)));
    }
}

impl Watched for ExportLink {
    fn connection(&self) -> &Connection {
        &self.connection
    }

    fn reads(&self) -> bool {
        true
    }

    fn service(&self) -> Result<()> {
        // Both, whatever the other says: what a peer has given back before it ended counts. What is in the ring was there before the
        // end was heard.
        let (heard, released) = (self.take_messages(), self.take_releases());
        released.and(heard).inspect_err(|_| self.is_closing.store(true, Ordering::Release))?;
        if self.is_let_go() {
            self.retire_all();
        }
        let mut retiring = lock(&self.retiring);
        while let Some(&segment) = retiring.last() {
            if self.say(&wire::Message::Retire { segment }, &[], Duration::ZERO).is_err() {
                break;
            }
            retiring.pop();
        }
        Ok(())
    }

    fn may_sleep(&self) -> bool {
        let position = lock(&self.releases).position();
        ring::may_doze(&self.bed, position)
    }

    fn awake(&self) {
        ring::rise(&self.bed);
    }

    fn is_restless(&self) -> bool {
        !lock(&self.retiring).is_empty() || self.is_let_go()
    }

    fn is_done(&self) -> bool {
        // As long as the peer has to reach something, it is watched.
        self.is_let_go() && self.words.expected_are_reached() && lock(&self.slabs).is_empty()
    }

    fn end(&self) {
        // First, so that whoever gets the memory next does not wait for the dead.
        self.words.end();
        let held = {
            let mut leases = lock(&self.leases);
            leases.are_over = true;
            std::mem::take(&mut leases.open)
        };
        let_go(held.into_values().collect());
        bury(std::mem::take(&mut *lock(&self.slabs)));
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if !core::forked() {
            self.link.out.is_open.store(false, Ordering::SeqCst);
            reaper::wake();
        }
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").field("peer", &self.peer().pid()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ExportLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportLink").finish_non_exhaustive()
    }
}
