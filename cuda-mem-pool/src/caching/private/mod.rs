//! Private pools: memory that serves nobody else, in PyTorch's segment layout, which never moves.
//!
//! The books are those of [`crate::segments`], behind one lock that nobody has while the driver, an upstream, a filter or a
//! tracker is called.

mod allocate;
mod api;
mod captured;
mod checkpoint;
mod free;
mod handed_out;
mod ladder;
mod left;
mod limit;
mod memory;
mod peers;
mod reclaim;
mod routes;
mod share;
mod shown;
mod streams;
mod told;

pub use share::BlockExport;

use std::collections::HashMap;
use std::sync::Arc;

use cuda_mem_core::Context;

use self::captured::Captures;
use self::handed_out::HandedOut;
use self::memory::Memory;
use self::streams::Streams;
use super::pending::Pending;
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock};
use crate::resource::RawResource;
use crate::segments::{Options, PrivatePool, PrivatePools};
use crate::snapshot::Frames;
use crate::statistics::Shard;

/// The private pools of an allocator.
#[derive(Debug)]
pub(super) struct Private {
    /// How many routes there are, so that the usual allocation costs one load.
    routes: AtomicUsize,
    /// How many freed blocks wait for streams that still use them.
    waiting: AtomicUsize,
    /// The bytes of all blocks that are not free, which the counter has among the others'.
    active: AtomicUsize,
    /// The bytes of all segments.
    reserved: AtomicUsize,
    /// The most that may be held, with the default pool's.
    limit: AtomicUsize,
    /// From how many bytes on garbage is collected; the largest number for never.
    garbage: AtomicUsize,
    state: Mutex<State>,
    /// As the books have them.
    pub(super) streams: Arc<Streams>,
    /// Who finds out which streams nobody has any more.
    leaving: Mutex<()>,
    captures: Captures,
    memory: Memory,
    shard: Shard,
}

#[derive(Debug)]
struct State {
    options: Options,
    pools: PrivatePools<Arc<dyn RawResource>>,
    /// What the books do not know of a pool.
    notes: HashMap<MempoolId, Notes>,
    blocks: HandedOut,
    /// The streams that blocks belong to.
    streams: Arc<Streams>,
    /// The stacks of the requests that segments were made for, by address. They stay when a recording ends, as long as the segment
    /// does.
    makers: HashMap<u64, Frames>,
}

#[derive(Debug, Default)]
struct Notes {
    pending: Arc<Pending>,
}

impl State {
    /// Whether graphs may use the pool's memory, wherever they are launched.
    fn is_captured(&self, id: MempoolId) -> bool {
        self.pools.get(id).is_ok_and(PrivatePool::is_captured)
    }
}

impl Private {
    pub(super) fn new(context: &Context, shard: Shard, options: Options) -> Self {
        let streams = Arc::<Streams>::default();
        let state = State {
            options,
            pools: PrivatePools::new(options),
            notes: HashMap::new(),
            blocks: HandedOut::default(),
            streams: Arc::clone(&streams),
            makers: HashMap::new(),
        };
        Self {
            routes: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            limit: AtomicUsize::new(usize::MAX),
            garbage: AtomicUsize::new(usize::MAX),
            state: Mutex::new(state),
            streams,
            leaving: Mutex::new(()),
            captures: Captures::default(),
            memory: Memory::new(context),
            shard,
        }
    }

    /// Whether any allocations go to a private pool.
    #[inline]
    pub(super) fn is_routed(&self) -> bool {
        self.routes.load(Ordering::Relaxed) != 0
    }

    /// The bytes of all blocks that are not free.
    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// The bytes of all segments.
    pub(super) fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// The most that may be held, with the default pool's.
    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Host memory that the books take.
    pub(super) fn metadata_bytes(&self) -> usize {
        lock(&self.state).blocks.metadata_bytes()
    }

    /// Gives all memory back, at the end: nobody has a block and the device is done. What a call refuses stays.
    pub(super) fn close(&self) {
        self.memory.close();
    }
}
