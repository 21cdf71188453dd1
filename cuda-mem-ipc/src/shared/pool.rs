//! A pool whose memory other processes can be given.

use std::sync::{Arc, Mutex, Weak};

use cuda_mem_pool::cuda_mem_core::vmm::{self, ShareableMemory};
use cuda_mem_pool::cuda_mem_core::{self as core, Context, Stream, Uses};

use super::buffer::SharedBuffer;
use super::exporter::ExportLink;
use super::free::Last;
use super::options::{MemoryKind, SharedPoolOptions};
use super::segment::{Segment, on_node};
use super::slab::Slabs;
use crate::error::Result;
use crate::free_list::FreeList;
use crate::primitive::{lock, lock_over_calls, refuse_forked};

/// What buffers begin at and are made up to, in bytes.
const GRANULE: usize = 512;

/// Memory for other processes: large segments with one handle each, cut into buffers.
///
/// A peer maps a segment when it gets the first buffer of it, or before if it is [attached](super::Exporter::attach), and from then on a
/// hand-over needs no handle and no mapping. It always gets the whole segment: memory that not every receiver of the pool may see belongs into
/// another pool, or into [`isolated`](Self::allocate_isolated) buffers.
///
/// Buffers are allocated and freed in stream order: memory is used again at once, and the stream waits for the streams that used it last, those
/// of a receiver in another process too. The host waits for nothing. Clones are handles to the same pool, which lives as long as any of its
/// buffers. [`Exporter::listen`](super::Exporter::listen) has an example.
#[derive(Debug, Clone)]
pub struct SharedPool {
    pub(super) pool: Arc<Pool>,
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) context: Context,
    options: SharedPoolOptions,
    /// What sizes of segments are multiples of.
    page: usize,
    /// The driver's pool, if segments are blocks of one.
    slabs: Option<Arc<Slabs>>,
    state: Mutex<State>,
    /// Exporters whose importers are told of each segment as soon as it is there.
    attached: Mutex<Vec<Weak<ExportLink>>>,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Slot>,
    /// Freed while a stream that used it captured.
    parked: Vec<(Cut, Uses)>,
}

#[derive(Debug)]
struct Slot {
    segment: Arc<Segment>,
    free: FreeList<Last>,
    /// For one buffer only.
    is_isolated: bool,
}

/// A part of a segment, with its last uses.
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
    /// [`core::Error::NotAccepted`] for segments of no bytes; [`core::Error::NoSuchNumaNode`]; [`core::Error::Driver`]: code 1 for a node that
    /// has no memory to share.
    pub fn new(context: &Context, options: &SharedPoolOptions) -> Result<Self> {
        refuse_forked()?;
        expect_bytes("the size of a segment", options.segment_bytes)?;
        let page = match options.kind {
            MemoryKind::Device | MemoryKind::HostNuma(_) => vmm::granularity(context.device())?,
            // Files and blocks have whole pages by themselves.
            MemoryKind::DevicePool | MemoryKind::Host => GRANULE,
        };
        let has_slabs = options.kind == MemoryKind::DevicePool;
        let slabs = has_slabs.then(|| Slabs::new(context)).transpose()?.map(Arc::new);
        if let MemoryKind::HostNuma(node) = options.kind {
            // Whether there is such a node, and the driver has memory of it that can be shared.
            ShareableMemory::create(context.device(), page, &on_node(node))?;
        }
        let (context, options) = (context.clone(), *options);
        let (state, attached) = (Mutex::default(), Mutex::default());
        Ok(Self { pool: Arc::new(Pool { context, options, page, slabs, state, attached }) })
    }

    /// A buffer of `bytes` bytes, for `stream` at first, which is ordered behind earlier uses of the memory. Its bytes are undefined.
    ///
    /// # Capture
    ///
    /// [`core::Error::Capturing`] if the stream captures and would have to wait for earlier uses.
    ///
    /// # Errors
    ///
    /// [`core::Error::NotAccepted`] for 0 bytes, [`core::Error::ForeignContext`] for another driver's stream; those of
    /// [`ShareableMemory::create`](vmm::ShareableMemory::create) when a new segment is needed.
    pub fn allocate(&self, bytes: usize, stream: &Stream) -> Result<SharedBuffer> {
        self.pool.context.driver().expect_same(stream.context().driver(), "the stream")?;
        let room = self.pool.room(bytes)?;
        let cut = match self.pool.cut(room, stream) {
            Some(cut) => cut,
            None => self.pool.grow(room, self.pool.options.segment_bytes, false)?,
        };
        SharedBuffer::new(&self.pool, cut, bytes, stream)
    }

    /// As [`SharedPool::allocate`], in a segment of its own: its receiver gets nothing else.
    ///
    /// It takes whole pages, a handle and a descriptor, and a mapping in each receiver, all of which go when it is freed.
    pub fn allocate_isolated(&self, bytes: usize, stream: &Stream) -> Result<SharedBuffer> {
        self.pool.context.driver().expect_same(stream.context().driver(), "the stream")?;
        let room = self.pool.room(bytes)?;
        let cut = self.pool.grow(room, room, true)?;
        SharedBuffer::new(&self.pool, cut, bytes, stream)
    }

    /// Gives segments without buffers back to the driver, and tells their bytes. Waits for work of this process that used them, but for blocks
    /// of driver pools, which are freed behind it in the background; importers are told, and the memory is free when they have let go as well.
    pub fn trim(&self) -> usize {
        if core::forked() {
            return 0;
        }
        self.pool.unpark();
        let unused = {
            let mut state = lock(&self.pool.state);
            let (unused, used) = state.slots.drain(..).partition::<Vec<_>, _>(|slot| slot.free.is_unused());
            state.slots = used;
            unused
        };
        let bytes = unused.iter().map(|slot| slot.segment.info.bytes).sum();
        // Another share is just being dropped.
        unused.into_iter().filter_map(|slot| Arc::into_inner(slot.segment)).for_each(Segment::end);
        bytes
    }

    /// Announces to an importer all segments that are not isolated: those that are there, and those to come.
    pub(super) fn attach(&self, link: &Arc<ExportLink>) {
        let pool = &self.pool;
        {
            let mut attached = lock(&pool.attached);
            attached.retain(|known| known.strong_count() > 0);
            if !attached.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(link))) {
                attached.push(Arc::downgrade(link));
            }
        }
        let shared = |slot: &Slot| (!slot.is_isolated).then(|| Arc::clone(&slot.segment));
        let segments = lock(&pool.state).slots.iter().filter_map(shared).collect::<Vec<_>>();
        for segment in segments {
            // Whatever it cannot be told now it is told with the first buffer.
            let _ = segment.with_handles(|handles| link.announce_ahead(&segment.info, handles));
        }
    }

    /// The bytes of all segments.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        let bytes = || lock(&self.pool.state).slots.iter().map(|slot| slot.segment.info.bytes).sum();
        if core::forked() { 0 } else { bytes() }
    }
}

impl Pool {
    fn room(&self, bytes: usize) -> Result<usize> {
        refuse_forked()?;
        expect_bytes("the size of a shared buffer", bytes)?;
        let whole = bytes.checked_next_multiple_of(GRANULE).filter(|&room| isize::try_from(room).is_ok());
        Ok(whole.ok_or(core::Error::TooLarge { count: bytes, size: 1 })?)
    }

    /// Free bytes for a stream: some that it need not wait for, if there are any.
    fn cut(&self, room: usize, stream: &Stream) -> Option<Cut> {
        self.unpark();
        let (_reports, mut state) = lock_over_calls(&self.state);
        for may_wait in [false, true] {
            for slot in state.slots.iter_mut().filter(|slot| !slot.is_isolated) {
                let is_wanted =
                    |last: &Last| if may_wait { last.may_order(stream) } else { last.is_over(Some(stream)) };
                if let Some((offset, last)) = slot.free.take(room, is_wanted) {
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
        let segment = Segment::create(&self.context, kind, slabs, bytes, |info, handles| {
            let links = lock(&self.attached).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
            for link in links.iter().filter(|_| !is_isolated) {
                // An importer that cannot be told now is told with the first buffer.
                let _ = link.announce_ahead(info, handles);
            }
            Ok(())
        })?;
        let segment = Arc::new(segment);
        let mut free = FreeList::new(segment.info.bytes, Last::default());
        // The isolated one has all of it.
        let room = if is_isolated { segment.info.bytes } else { room };
        let taken = free.take(room, |_| true);
        lock(&self.state).slots.push(Slot { segment: Arc::clone(&segment), free, is_isolated });
        let (offset, last) = taken.unwrap_or_default();
        Ok(Cut { segment, offset, room, last })
    }

    /// Takes a block back, whose next owner will wait for its last uses. A stream whose queue is full holds this up, and what is dropped
    /// may call the program: nobody else is to wait for either.
    pub(super) fn free(&self, mut freed: Cut, mut uses: Uses) {
        let Ok(points) = uses.points() else {
            return lock(&self.state).parked.push((freed, uses));
        };
        freed.last.add_points(points);
        let Cut { segment, offset, room, last } = freed;
        segment.absorb(uses);
        let (_reports, mut state) = lock_over_calls(&self.state);
        let _gone = state.free(&segment, offset, room, last);
        drop(state);
    }

    /// Tries once more to take back what could not be waited for.
    fn unpark(&self) {
        let parked = std::mem::take(&mut lock(&self.state).parked);
        parked.into_iter().for_each(|(freed, uses)| self.free(freed, uses));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if core::forked() {
            return;
        }
        // Their captures cannot be waited for, but what the streams were given before can.
        for (freed, uses) in lock(&self.state).parked.drain(..) {
            freed.segment.absorb(uses);
        }
    }
}

impl State {
    /// Returns a segment that is needed no more.
    fn free(&mut self, segment: &Arc<Segment>, offset: usize, room: usize, last: Last) -> Option<Slot> {
        let index = self.slots.iter().position(|slot| Arc::ptr_eq(&slot.segment, segment))?;
        let slot = self.slots.get_mut(index)?;
        slot.free.give(offset, room, last);
        if slot.is_isolated { Some(self.slots.swap_remove(index)) } else { None }
    }
}

pub(super) fn expect_bytes(option: &'static str, value: usize) -> Result<()> {
    let accepted = 1..=isize::MAX.unsigned_abs();
    if value > 0 { Ok(()) } else { Err(core::Error::NotAccepted { option, value, accepted }.into()) }
}
