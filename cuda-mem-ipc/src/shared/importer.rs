//! The receiving end of a connection.

mod ahead;
mod give_back;
mod kept;
mod known;
mod over;
#[cfg(any(test, fuzzing))]
pub(super) mod played;
mod receive;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use cuda_mem_pool::cuda_mem_core::{self as core, Context, Stream};

use super::keepsake::Keepsake;
use super::options::AheadLimit;
use super::reaper;
use super::received::ReceivedBuffer;
use super::returned::Returned;
use super::ring::{self, Consumer, Producer};
use super::wire::{self, Accept, HandOver};
use super::words::Words;
use super::{Heard, heard, refuse_forked, say};
use crate::error::{Error, Result};
use crate::transport::{Branch, Connection, Deadline, Peer};
use kept::Kept;
use known::{Known, MOST_SEGMENTS};

/// How many importers of this process have lost their exporter.
pub(super) static ENDED: AtomicUsize = AtomicUsize::new(0);

/// Receives buffers from the process at the other end of a connection, which has an [`Exporter`](super::Exporter).
///
/// A segment is mapped once in a process, whichever connections to its exporter bring buffers of it: when the first of them is received, or
/// in the background before that, if it was announced ahead and is within the [`AheadLimit`]. It stays mapped until its exporter says that it is gone, or is gone itself and all that it had sent was received, and the last buffer of it is
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
    /// Held while a message is received and looked at, not while one is waited for.
    turn: Mutex<Turn>,
    ring: ring::Shared,
    releases: Mutex<Producer<ring::Shared>>,
    /// Where the exporter says that nobody there looks.
    bed: ring::Shared,
    pub(super) words: Arc<Words>,
    segments: Mutex<BTreeMap<u64, Known>>,
    /// Where segments are announced ahead of their first buffer, how many of them are mapped, and whether nothing comes there any more.
    branch: Branch,
    ahead_limit: AheadLimit,
    early: Arc<AtomicUsize>,
    /// How many descriptors are kept of segments that were announced ahead beyond the limit.
    kept_back: Arc<AtomicUsize>,
    /// How many segments of host memory are pinned that came by this connection, retired ones too.
    pinned: Arc<AtomicUsize>,
    is_deaf: AtomicBool,
    /// Held while a message of the branch is received and looked at.
    hearing: Mutex<()>,
    /// Releases that could not be sent at once.
    unsent: Mutex<Vec<Returned>>,
    /// Buffers that have not gone back.
    live: AtomicUsize,
    /// Segments that the exporter has to hear the end of: how many there are, and those that have come to it.
    slabs: AtomicUsize,
    let_go: Mutex<Vec<u64>>,
    is_reclaiming: Arc<AtomicBool>,
    /// The importer is gone and so is what it had of the segments; their exporter may not have heard of it. Changes with
    /// [`segments`](Self::segments) alone.
    has_let_go: AtomicBool,
    /// Whether a thread gives back what could not be before.
    is_settling: AtomicBool,
    /// The exporter sleeps, and could not be woken.
    is_to_wake: AtomicBool,
    /// Where releases are recorded that have no stream of their own.
    stream: OnceLock<Stream>,
    /// What whoever gets a buffer next has to keep.
    keepsake: Keepsake,
    /// What this process keeps, for those who had handed the buffers to the exporter.
    kept: Mutex<Kept>,
    /// How often something was let go of that is not gone.
    parting: Arc<AtomicUsize>,
    is_open: AtomicBool,
    is_over: AtomicBool,
    /// Nothing more comes of the exporter.
    is_exhausted: AtomicBool,
    /// Last: from its end on the exporter, and whoever was to be told by it, take it that nothing is mapped here.
    connection: Connection,
}

/// How far what the exporter says was heard.
struct Turn {
    ring: Consumer<ring::Shared>,
    /// How many frames.
    heard: u64,
    /// When the connection was asked for one last.
    listened: Option<Instant>,
    /// A buffer that came as a message, behind those in the ring.
    held: Option<HandOver>,
    /// A segment whose end was heard when what came by the branch could not be.
    retired: Option<u64>,
}

impl Importer {
    /// Makes an importer of a connection, once the exporter at the other end has made its offer. Memory is mapped for the
    /// device of the context, and ahead of its first buffer as far as [`AheadLimit::default`] goes.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] and [`Error::Wire`] if the other end is no exporter; [`core::Error::Unsupported`] if the device's streams
    /// cannot wait for words; those of [`Connection::send`] and [`Connection::recv`]; [`core::Error::Forked`].
    pub fn new(context: &Context, connection: Connection, deadline: impl Into<Deadline>) -> Result<Self> {
        Self::with_ahead(context, connection, AheadLimit::default(), deadline)
    }

    /// As [`Importer::new`], with a limit of what is mapped ahead of its first buffer.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// As there; [`core::Error::NotAccepted`] for more segments than an importer knows at a time, 4096.
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
        let Heard { message: offer, descriptors, .. } = heard(&connection, deadline)?;
        let offered = match (offer, <[OwnedFd; 2]>::try_from(descriptors)) {
            (wire::Message::Offer(_), Ok([descriptor, keepsake])) => {
                Keepsake::sent(keepsake).map(|keepsake| (descriptor, keepsake))
            }
            _ => None,
        };
        let Some((descriptor, keepsake)) = offered else {
            return Err(connection.breaks(Error::Protocol { pid, what: "it does not begin with an offer" }));
        };
        let words = Arc::new(Words::open(context, descriptor, pid)?);
        let (branch, descriptor) = Branch::beside(&connection)?;
        let accepted = Accept { segments: ahead.segments as u64, bytes: ahead.bytes };
        say(&connection, &wire::Message::Accept(accepted), &[descriptor.as_fd()], deadline)?;
        // Its end is the exporter's.
        drop(descriptor);
        let [ring, bed] = words.rings()?;
        let releases = Mutex::new(bed.producer());
        let link = Arc::new(ImportLink {
            context: context.clone(),
            connection,
            turn: Mutex::new(Turn {
                ring: ring.consumer(),
                heard: 0,
                listened: None,
                held: None,
                retired: None,
            }),
            ring,
            releases,
            bed,
            words,
            segments: Mutex::default(),
            branch,
            ahead_limit: ahead,
            early: Arc::default(),
            kept_back: Arc::default(),
            pinned: Arc::default(),
            is_deaf: AtomicBool::new(false),
            hearing: Mutex::default(),
            unsent: Mutex::default(),
            live: AtomicUsize::new(0),
            slabs: AtomicUsize::new(0),
            let_go: Mutex::default(),
            is_reclaiming: Arc::default(),
            has_let_go: AtomicBool::new(false),
            is_settling: AtomicBool::new(false),
            is_to_wake: AtomicBool::new(false),
            stream: OnceLock::new(),
            keepsake,
            kept: Mutex::default(),
            parting: Arc::default(),
            is_open: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
            is_exhausted: AtomicBool::new(false),
        });
        Ok(Self { link })
    }

    /// The next buffer, as soon as it was handed over: its bytes are there when its fence is reached, which
    /// [`ReceivedBuffer::on`] has a stream wait for. Only the first buffer of a segment takes calls of the driver, or waits for those that
    /// are made ahead; no deadline interrupts them.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
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
        let mut has_slept = false;
        loop {
            if !link.look(deadline, has_slept) {
                return Err(receive::nothing_came());
            }
            match link.take() {
                Err(error) if error.is_timeout() && !deadline.has_passed() => link.sleep(deadline)?,
                result => return result,
            }
            has_slept = true;
        }
    }

    /// How many segments are mapped of which no buffer came yet: those that its exporter has announced ahead, as far as they are done and
    /// within the [`AheadLimit`].
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
    fn breaks(&self, what: &'static str) -> Error {
        self.connection.breaks(Error::Protocol { pid: self.connection.peer().pid(), what })
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
