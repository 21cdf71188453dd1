//! A pool whose memory other processes can be given.

use std::sync::{Arc, Mutex};

use cuda_mem_pool::cuda_mem_core::raw_pool::MemoryLocation;
use cuda_mem_pool::cuda_mem_core::{self as core, Context, Stream, Uses, vmm};

use super::attached::Attached;
use super::books::Books;
use super::buffer::SharedBuffer;
use super::exporter::ExportLink;
use super::last::Last;
use super::options::{MemoryKind, SharedPoolOptions};
use super::releases::bury;
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
    /// them; importers are told, and the memory is free when they have let go as well.
    pub fn trim(&self) -> usize {
        if core::forked() {
            return 0;
        }
        let unused = {
            let mut state = lock(&self.pool.state);
            state.unpark();
            let (unused, used) = state.slots.drain(..).partition::<Vec<_>, _>(|slot| slot.books.is_unused());
            state.slots = used;
            unused
        };
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

impl Pool {
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The bytes that a buffer takes.
    fn room(&self, bytes: usize) -> Result<usize> {
        refuse_forked()?;
        expect_bytes("the size of a shared buffer", bytes)?;
        let whole = bytes.checked_next_multiple_of(GRANULE).filter(|&room| isize::try_from(room).is_ok());
        Ok(whole.ok_or(core::Error::TooLarge { count: bytes, size: 1 })?)
    }

    /// Free bytes for a stream: some that it need not wait for, if there are any.
    fn cut(&self, room: usize, stream: &Stream) -> Option<Cut> {
        let mut state = lock(&self.state);
        state.unpark();
        for anything in [false, true] {
            for slot in state.slots.iter_mut().filter(|slot| !slot.is_isolated) {
                if let Some((offset, last)) =
                    slot.books.take(room, |last| anything || last.is_over_for(stream))
                {
                    return Some(Cut { segment: Arc::clone(&slot.segment), offset, room, last });
                }
            }
        }
        None
    }

    /// A new segment, and `room` bytes of it. No lock is held during the driver's calls.
    fn grow(&self, room: usize, bytes: usize, is_isolated: bool) -> Result<Cut> {
        let too_large = core::Error::TooLarge { count: bytes, size: 1 };
        let bytes = bytes.max(room).checked_next_multiple_of(self.page).ok_or(too_large)?;
        let (kind, slabs) = (self.options.kind, self.slabs.as_ref());
        let segment = Segment::create(&self.context, kind, slabs, bytes, |face, means| {
            if !is_isolated {
                self.attached.tell(face, means);
            }
        })?;
        let segment = Arc::new(segment);
        let mut books = Books::new(segment.bytes(), Last::default());
        // The isolated one has all of it.
        let room = if is_isolated { segment.bytes() } else { room };
        let taken = books.take(room, |_| true);
        lock(&self.state).slots.push(Slot { segment: Arc::clone(&segment), books, is_isolated });
        let (offset, last) = taken.unwrap_or_default();
        Ok(Cut { segment, offset, room, last })
    }

    /// Takes a block back, whose next owner will wait for its last uses.
    pub(super) fn free(&self, freed: Freed) {
        let gone = lock(&self.state).free(freed);
        if let Some(gone) = gone {
            // Its release waits for work, which whoever drops a buffer need not.
            bury(gone);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !core::forked() {
            // As in `free`: the last buffer's end is the pool's.
            bury(std::mem::take(&mut *lock(&self.state)));
        }
    }
}

impl State {
    /// Returns a segment that is needed no more.
    fn free(&mut self, mut freed: Freed) -> Option<Slot> {
        let Ok(points) = freed.uses.points() else {
            self.parked.push(freed);
            return None;
        };
        let Freed { segment, offset, room, uses, mut last } = freed;
        last.add_points(points);
        segment.absorb(uses);
        let index = self.slots.iter().position(|slot| Arc::ptr_eq(&slot.segment, &segment))?;
        let slot = self.slots.get_mut(index)?;
        slot.books.give(offset, room, last);
        if slot.is_isolated { Some(self.slots.swap_remove(index)) } else { None }
    }

    fn unpark(&mut self) {
        for freed in std::mem::take(&mut self.parked) {
            if let Some(gone) = self.free(freed) {
                bury(gone);
            }
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
