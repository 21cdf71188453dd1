//! A pool whose memory other processes can be given.

mod blocks;

use std::sync::{Arc, Mutex};

use cuda_mem_pool::cuda_mem_core::raw_pool::MemoryLocation;
use cuda_mem_pool::cuda_mem_core::{self as core, Context, Stream, Uses, vmm};

use super::attached::Attached;
use super::books::Books;
use super::buffer::SharedBuffer;
use super::exporter::ExportLink;
use super::last::Last;
use super::options::{MemoryKind, SharedPoolOptions};
use super::segment::Segment;
use super::slab::Slabs;
use super::{expect_driver, lock, refuse_forked};
use crate::error::Result;

/// What buffers begin at and are made up to, in bytes.
const GRANULE: usize = 512;

/// Memory for other processes: large segments with one handle each, cut into buffers.
///
/// A peer maps a segment when it gets the first buffer of it, or before if it is [attached](super::Exporter::attach), and from then
/// on a hand-over needs no handle and no mapping. It
/// always gets the whole segment: what may not be seen by everybody who gets anything of the pool belongs into another pool, or
/// into [`isolated`](Self::allocate_isolated) buffers.
///
/// Buffers are allocated and freed in stream order: memory is used again at once, and the stream waits for whoever used it
/// last, a receiver in another process too. The host waits for nothing. Clones are handles to the same pool, which lives as
/// long as any of its buffers.
///
/// ```
/// use std::time::Duration;
///
/// use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};
/// use cuda_mem_ipc::transport::{PeerPolicy, Pending, pair};
/// use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Driver, Stream};
///
/// const LIMIT: Duration = Duration::from_secs(10);
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let (here, there) = pair()?;
///
/// // In the other process; here a thread.
/// let theirs = context.clone();
/// let other = std::thread::spawn(move || {
///     let connection = Pending::inherited(there)?.complete(&PeerPolicy::default(), LIMIT)?;
///     let importer = Importer::new(&theirs, connection, LIMIT)?;
///     let buffer = importer.recv(LIMIT)?;
///     let stream = Stream::new(&theirs)?;
///     let address = buffer.on(&stream)?.address(); // for a kernel, which runs behind the exporter's work
///     drop(buffer); // goes back behind that kernel
///     Ok::<_, cuda_mem_ipc::Error>(address)
/// });
///
/// let stream = Stream::new(&context)?;
/// let pool = SharedPool::new(&context, &SharedPoolOptions::default())?;
/// let buffer = pool.allocate(1 << 20, &stream)?;
/// let written = buffer.on(&stream)?.address(); // for a kernel that writes it
/// let connection = here.complete(&PeerPolicy::default(), LIMIT)?;
/// let exporter = Exporter::new(&context, connection, LIMIT)?;
/// exporter.hand_over(&buffer, &stream, LIMIT)?;
/// drop(buffer); // its memory is used again behind the receiver's work
/// # let seen = other.join().map_err(|_| "panicked")??;
/// # assert!(written != 0 && seen != 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct SharedPool {
    pool: Arc<Pool>,
}

#[derive(Debug)]
pub(super) struct Pool {
    context: Context,
    options: SharedPoolOptions,
    /// What sizes of segments are multiples of.
    page: usize,
    /// The driver's pool, if segments are blocks of one.
    slabs: Option<Arc<Slabs>>,
    state: Mutex<State>,
    attached: Attached,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Slot>,
    /// Freed while a stream that used it captured.
    parked: Vec<Freed>,
}

#[derive(Debug)]
struct Slot {
    segment: Arc<Segment>,
    books: Books<Last>,
    /// For one buffer only.
    is_isolated: bool,
}

/// A block whose owner is gone.
#[derive(Debug)]
pub(super) struct Freed {
    pub(super) segment: Arc<Segment>,
    pub(super) offset: usize,
    pub(super) room: usize,
    pub(super) uses: Uses,
    pub(super) last: Last,
}

/// A block that was cut for a new owner.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) segment: Arc<Segment>,
    pub(super) offset: usize,
    pub(super) room: usize,
    pub(super) last: Last,
}

impl SharedPool {
    /// A pool without memory yet.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`core::Error::NotAccepted`] for segments of no bytes; [`core::Error::Driver`]: code 1 for a node that has no pools to
    /// share; [`core::Error::Forked`].
    pub fn new(context: &Context, options: &SharedPoolOptions) -> Result<Self> {
        refuse_forked()?;
        expect_bytes("the size of a segment", options.segment_bytes)?;
        let location = match options.kind {
            MemoryKind::DevicePool => Some(MemoryLocation::Device(context.device().as_raw())),
            MemoryKind::HostNumaPool(node) => Some(MemoryLocation::HostNuma(node)),
            MemoryKind::Device | MemoryKind::Host => None,
        };
        let page = match options.kind {
            MemoryKind::Device => vmm::granularity(context.device())?,
            // Files and blocks have whole pages by themselves.
            _ => GRANULE,
        };
        let slabs = location.map(|location| Slabs::new(context, location)).transpose()?.map(Arc::new);
        let (context, options) = (context.clone(), *options);
        let (state, attached) = (Mutex::default(), Attached::default());
        Ok(Self { pool: Arc::new(Pool { context, options, page, slabs, state, attached }) })
    }

    /// A buffer of `bytes` bytes, for `stream` at first, which is ordered behind whoever had the memory before. What is in it is
    /// undefined.
    ///
    /// # Capture
    ///
    /// [`core::Error::Capturing`] if the stream captures and has to wait for somebody.
    ///
    /// # Errors
    ///
    /// [`core::Error::NotAccepted`] for 0 bytes, [`core::Error::TooLarge`], [`core::Error::ForeignContext`] for another driver's
    /// stream; those of
    /// [`ShareableMemory::create`](vmm::ShareableMemory::create) when a new segment is needed, in
    /// [`Error::Core`](crate::Error::Core); [`core::Error::Forked`].
    pub fn allocate(&self, bytes: usize, stream: &Stream) -> Result<SharedBuffer> {
        expect_driver(&self.pool.context, stream)?;
        let room = self.pool.room(bytes)?;
        let cut = match self.pool.cut(room, stream) {
            Some(cut) => cut,
            None => self.pool.grow(room, self.pool.options.segment_bytes, false)?,
        };
        SharedBuffer::new(&self.pool, cut, bytes, stream)
    }

    /// As [`SharedPool::allocate`], in a segment of its own: who gets it gets nothing else.
    ///
    /// It takes whole pages, a handle and a descriptor, and a mapping in each receiver, all of which go when it is freed.
    ///
    /// # Capture
    ///
    /// As there.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn allocate_isolated(&self, bytes: usize, stream: &Stream) -> Result<SharedBuffer> {
        expect_driver(&self.pool.context, stream)?;
        let room = self.pool.room(bytes)?;
        let cut = self.pool.grow(room, room, true)?;
        SharedBuffer::new(&self.pool, cut, bytes, stream)
    }

    /// Gives segments without buffers back to the driver, and tells their bytes. Waits for work of this process that used
    /// them, but for blocks of driver pools, which are freed behind it in the background; importers are told, and the memory is free when
    /// they have let go as well.
    pub fn trim(&self) -> usize {
        if core::forked() {
            return 0;
        }
        self.pool.unpark();
        let unused = {
            let mut state = lock(&self.pool.state);
            let (unused, used) = state.slots.drain(..).partition::<Vec<_>, _>(|slot| slot.books.is_unused());
            state.slots = used;
            unused
        };
        unused.iter().for_each(|slot| slot.segment.wait_for_its_end());
        unused.iter().map(|slot| slot.segment.bytes()).sum()
    }

    /// Has an importer told of all segments that everybody may get buffers of: those that are there, and those to come.
    pub(super) fn attach(&self, link: &Arc<ExportLink>) {
        let pool = &self.pool;
        pool.attached.add(link);
        let shared = |slot: &Slot| (!slot.is_isolated).then(|| Arc::clone(&slot.segment));
        let segments = lock(&pool.state).slots.iter().filter_map(shared).collect::<Vec<_>>();
        segments.iter().for_each(|segment| drop(link.announce_segment_ahead(segment)));
    }

    /// The bytes of all segments.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        if core::forked() {
            0
        } else {
            lock(&self.pool.state).slots.iter().map(|slot| slot.segment.bytes()).sum()
        }
    }
}

fn expect_bytes(option: &'static str, value: usize) -> Result<()> {
    if value == 0 {
        return Err(
            core::Error::NotAccepted { option, value, accepted: 1..=isize::MAX.unsigned_abs() }.into()
        );
    }
    Ok(())
}
