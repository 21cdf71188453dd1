//! The giving end of a connection.

mod announced;
mod leases;
#[cfg(any(test, fuzzing))]
pub(super) mod played;
mod send;
mod serve;

use std::collections::HashMap;
use std::fmt;
use std::io::PipeReader;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{self as core, Context, Stream};

use super::keepsake::{Given, Keepsake};
use super::options::{AheadLimit, FenceKind};
use super::pool::SharedPool;
use super::reaper;
use super::ring::{self, Consumer, Producer};
use super::share::Share;
use super::slab::Slab;
use super::wire::{self, Accept, Fence, HandOver, Offer};
use super::words::Words;
use super::{Heard, heard, refuse_forked, say};
use crate::error::{Error, Result};
use crate::transport::{Branch, Connection, Deadline, Peer};
use announced::{Announced, Retiring};
use leases::{Lease, Leases, Out};
use send::Unsent;

/// Hands buffers to the process at the other end of a connection, which has an [`Importer`](super::Importer).
///
/// A buffer that is handed over is kept, as a lease, until its receiver is done with it. If the receiver closes, exits or is
/// killed, its leases end within a second, and streams that wait for it go on; nobody else notices. What it had handed on is waited
/// for as if it lived, until those who got it are done or gone too.
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
    announced: Mutex<Announced>,
    /// One of them, which it was asked about last. It is changed under that lock.
    latest: AtomicU64,
    /// Where it hears of segments ahead of their first buffer, and of how many.
    branch: Branch,
    ahead_limit: AheadLimit,
    /// Segments whose end the importer was not told of yet.
    retiring: Mutex<Vec<Retiring>>,
    /// What the importer has to let go of before it is freed here.
    slabs: Mutex<HashMap<u64, Arc<Slab>>>,
    ring: Mutex<Producer<ring::Shared>>,
    /// Where the importer says that it sleeps.
    way: ring::Shared,
    /// How many sleepers are called behind their entries, and not before.
    late: AtomicU32,
    /// Whether the importer is in another process.
    is_to_another: bool,
    /// Read by the thread that looks after peers.
    releases: Mutex<Consumer<ring::Shared>>,
    /// Where it says that it sleeps.
    bed: ring::Shared,
    /// How many frames whoever reads the ring must have heard.
    sent: AtomicU64,
    /// Where it is heard that nobody has anything any more that the importer handed on.
    keepers: PipeReader,
    /// What the importer was told to keep, for those who had handed the memory to this process.
    given: Mutex<Given>,
    /// The peer has closed its end or broken the protocol.
    is_closing: AtomicBool,
    /// How many importers of this process had lost their exporter when leases of theirs were looked for last.
    ended: AtomicUsize,
}

impl Exporter {
    /// Makes an exporter of a connection, and is done when the importer at the other end has answered. Fences are recorded
    /// for streams of the context's device.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] and [`Error::Wire`] if the other end is no importer; [`core::Error::Unsupported`] if the device's streams
    /// cannot wait for words; those of [`Connection::send`] and [`Connection::recv`]; [`core::Error::Forked`].
    pub fn new(context: &Context, connection: Connection, deadline: impl Into<Deadline>) -> Result<Self> {
        let exporter = Self::unwatched(context, connection, deadline.into())?;
        reaper::watch(Arc::<ExportLink>::clone(&exporter.link))?;
        Ok(exporter)
    }

    /// One that the thread does not look after.
    fn unwatched(context: &Context, connection: Connection, deadline: Deadline) -> Result<Self> {
        refuse_forked()?;
        let memory = Words::memory(context)?;
        let (keepers, keepsake) = Keepsake::new()?;
        let descriptors = [memory.as_fd(), keepsake.as_fd()];
        say(&connection, &wire::Message::Offer(Offer::OURS), &descriptors, deadline)?;
        // Whoever has one has it of the importer.
        drop(keepsake);
        let Heard { message: answer, descriptors, .. } = heard(&connection, deadline)?;
        let pid = connection.peer().pid();
        let not_accepted = Error::Protocol { pid, what: "the offer is not accepted" };
        let (accepted, branch) = match (answer, <[OwnedFd; 1]>::try_from(descriptors)) {
            (wire::Message::Accept(accepted), Ok([descriptor])) => {
                (accepted, Branch::sent(&connection, descriptor).map_err(|error| connection.breaks(error))?)
            }
            _ => return Err(connection.breaks(not_accepted)),
        };
        let Accept { segments, bytes } = accepted;
        let ahead_limit = AheadLimit { segments: usize::try_from(segments).unwrap_or(usize::MAX), bytes };
        // Behind the answer, for the importer has mapped it.
        let words = Arc::new(Words::of(context, memory, pid)?);
        let [ring, bed] = words.rings()?;
        let (way, ring, releases) = (ring.clone(), Mutex::new(ring.producer()), Mutex::new(bed.consumer()));
        let link = Arc::new(ExportLink {
            context: context.clone(),
            is_to_another: pid != std::process::id(),
            connection,
            words,
            leases: Mutex::default(),
            out: Arc::new(Out { leases: AtomicUsize::new(0), is_open: AtomicBool::new(true) }),
            announced: Mutex::default(),
            latest: AtomicU64::new(send::NONE),
            branch,
            ahead_limit,
            retiring: Mutex::default(),
            slabs: Mutex::default(),
            ring,
            way,
            late: AtomicU32::new(0),
            releases,
            bed,
            sent: AtomicU64::new(0),
            keepers,
            given: Mutex::default(),
            is_closing: AtomicBool::new(false),
            ended: AtomicUsize::new(usize::MAX),
        });
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
    /// Nothing was handed over then, but for one case: if the driver refuses to record the fence, the receiver may have the buffer by then.
    /// It gets [`Error::FenceRefused`] from it, and from what was handed over on this stream before; so may, here, another thread that hands
    /// over at that moment. [`Error::NoLinesLeft`] after many of these. [`Error::Timeout`] when the receiver takes no messages, [`Error::PeerDied`],
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
        let (share, link) = (buffer.into(), &self.link);
        link.expect_open("handing over")?;
        let called = if fence == FenceKind::Word { link.call_early() } else { None };
        let deadline = deadline.into();
        // First: who keeps nothing for the memory's owners does not have it either.
        link.give_keepsakes(&share.holder.keepsakes(), deadline)?;
        link.announce(&share.segment, deadline)?;
        share.holder.order(stream)?;
        let (segment, offset, len) = (share.segment.id(), share.offset as u64, share.len as u64);
        let event = (fence == FenceKind::Event).then(|| link.event(stream)).transpose()?;
        let (event, handle) = event.unzip();
        // Whatever can be done before the fence is: beside it there is the entry and nothing else.
        let sequence = link.lease(Lease::new(share, event, &link.out))?;
        let said = |fence| HandOver { sequence, segment, offset, len, fence };
        let sent = match handle {
            Some(handle) => link.send(said(Fence::Event(handle)), called, deadline).map_err(Unsent::from),
            None => link.record_and_send(stream, said, called, deadline),
        };
        if let Err(Unsent { error, is_there: false }) = sent {
            drop(link.end_lease(sequence));
            return Err(error);
        }
        link.note_use(segment);
        sent.map_err(|unsent| unsent.error)?;
        Ok(sequence)
    }

    /// Tells the receiver of all segments of a pool: of those that are there now, and of each new one as soon as it is there. It maps them
    /// in the background, as many as its [`AheadLimit`] says, and their first buffers cost no mapping any more.
    ///
    /// **It gets all of the pool's memory by this**, but for isolated buffers, whether anything of it is handed over or not. Nobody is
    /// waited for; what cannot be told now is told with the first buffer. Ends with the exporter or the pool.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] if the receiver is gone; [`core::Error::Forked`].
    pub fn attach(&self, pool: &SharedPool) -> Result<()> {
        refuse_forked()?;
        self.link.expect_open("attaching a pool")?;
        pool.attach(&self.link);
        Ok(())
    }

    /// Tells the receiver of the memory that a buffer lies in, as [`attach`](Self::attach) does of a pool's: for an isolated buffer, or
    /// a block of a caching allocator. False if it is not told ahead, because of its [`AheadLimit`] or because it has not heard
    /// yet of what it was told before; then it is told with the first buffer.
    ///
    /// **It gets the whole of the memory by this**, whether the buffer is handed over or not. Nobody is waited for.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] if the receiver is gone, [`Error::Timeout`] if it takes no messages; [`Error::Core`] and [`Error::Pool`] if the
    /// memory cannot be exported; [`core::Error::Forked`].
    pub fn announce(&self, buffer: impl Into<Share>) -> Result<bool> {
        refuse_forked()?;
        let share = buffer.into();
        self.link.expect_open("announcing a segment")?;
        self.link.give_keepsakes(&share.holder.keepsakes(), Duration::ZERO.into())?;
        self.link.announce_segment_ahead(&share.segment)
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
