//! Private pools: memory that serves no other pool, in PyTorch's segment layout, which never moves.
//!
//! [`api`] is what users call, [`blocks`] allocates and frees, [`memory`] gets segments and gives them back, [`graph`] serves
//! captures and checkpoints, [`reclaim`] is what is tried without memory. The tables are those of [`crate::segments`], behind one
//! lock that no thread holds while the driver, an upstream, a filter or a tracker is called.

mod api;
mod blocks;
mod graph;
mod memory;
mod reclaim;

pub(super) use api::refuse_tag_s;
pub use api::{PoolRoute, PrivatePool};
pub use graph::Restored;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use cuda_mem_core::Context;

use self::graph::Captures;
use self::memory::SegmentMemory;
use super::pending::Pending;
use super::shared::DeviceCache;
use crate::engine::segments::{Block, PoolTable, Segment};
use crate::error::{CachedMemory, PoolError, Result};
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock};
use crate::resource::RawResource;
use crate::segments::Options;
use crate::snapshot::{AllocatorSettings, BlockInfo, BlockState, Frames, SegmentInfo};
use crate::statistics::{PoolSize, Shard};

#[derive(Debug)]
pub(super) struct Private {
    /// How many routes there are, so that the usual allocation costs one load.
    routes: AtomicUsize,
    state: Mutex<PoolState>,
    /// Blocks of all pools that other streams use.
    pub(super) pending: Pending,
    captures: Captures,
    pub(super) memory: SegmentMemory,
    shard: Shard,
}

#[derive(Debug)]
struct PoolState {
    pools: PoolTable<Arc<dyn RawResource>>,
    /// The stacks of the requests that segments were made for, by address, as long as the segments are there.
    segment_stacks: HashMap<u64, Frames>,
}

impl PoolState {
    /// Whether graphs may use the pool's memory, wherever they are launched.
    fn is_captured(&self, id: MempoolId) -> bool {
        self.pools.get(id).is_ok_and(|pool| pool.is_captured)
    }

    /// The block that begins at an address, and its pool, unless it is free.
    fn block(&self, address: u64) -> Option<(MempoolId, Block)> {
        self.pools.iter().find_map(|(id, pool)| Some((id, pool.heap.get(address)?)))
    }

    fn live(&self, address: u64) -> Option<(MempoolId, Block)> {
        self.block(address).filter(|(_, block)| block.state == BlockState::ActiveAllocated)
    }

    /// The pools whose segments are of a source.
    fn of(&self, source: &dyn RawResource) -> Vec<MempoolId> {
        let is_it = |own: &Arc<dyn RawResource>| ptr::addr_eq(Arc::as_ptr(own), source);
        let pools = self.pools.iter().filter(|(_, pool)| pool.source.as_ref().is_some_and(is_it));
        pools.map(|(id, _)| id).collect()
    }

    fn segments(&self) -> impl Iterator<Item = (MempoolId, &Segment)> {
        self.pools.iter().flat_map(|(id, pool)| pool.heap.segments().map(move |segment| (id, segment)))
    }
}

impl Private {
    pub(super) fn new(context: &Context, shard: Shard, options: Options) -> Self {
        let (pools, segment_stacks) = (PoolTable::new(options), HashMap::new());
        Self {
            routes: AtomicUsize::new(0),
            state: Mutex::new(PoolState { pools, segment_stacks }),
            pending: Pending::default(),
            captures: Captures::default(),
            memory: SegmentMemory::new(context),
            shard,
        }
    }

    /// Serves every request that goes to no private pool from segments of `cuMemAlloc` too, or no more: the default pool is then one more
    /// pool of this kind, called [`MempoolId::NONE`], which is always routed. Afterwards it is a released one.
    pub(super) fn serve_default(&self, serves: bool) {
        let mut state = lock(&self.state);
        match state.pools.serve_default(serves) {
            true if serves => self.routes.fetch_add(1, Ordering::Relaxed),
            true => self.routes.fetch_sub(1, Ordering::Relaxed),
            false => return,
        };
    }

    #[inline]
    pub(super) fn is_routed(&self) -> bool {
        self.routes.load(Ordering::Relaxed) != 0
    }

    /// The bytes of all blocks that are not free, which the counter has among the others'. And those of segments that came from pools' own
    /// sources, but for tags: they need not be the device's.
    pub(super) fn active(&self) -> (usize, usize) {
        let state = lock(&self.state);
        let blocks = state.segments().flat_map(|(_, segment)| segment.blocks());
        let active = blocks.filter(|block| block.state != BlockState::Inactive);
        let sources = state.pools.iter().filter(|(_, pool)| pool.source.is_some() && !pool.heap.is_roomy);
        let of_sources = sources.flat_map(|(_, pool)| pool.heap.segments()).map(|segment| segment.bytes);
        (active.map(|block| block.size as usize).sum(), of_sources.map(|bytes| bytes as usize).sum())
    }

    pub(super) fn options(&self) -> Options {
        lock(&self.state).pools.options()
    }

    pub(super) fn settings(&self) -> AllocatorSettings {
        let state = lock(&self.state);
        let options = state.pools.options();
        AllocatorSettings {
            max_split_size: options.max_split_size,
            garbage_collection_threshold: options.garbage_collection_threshold.unwrap_or(0.0),
            // Only the default pool grows by pages.
            expandable_segments: !state.pools.serves_default(),
            graph_capture_record_stream_reuse: self.captures.are_reused(),
            roundup_power2_divisions: options.roundup_power2_divisions.to_vec(),
        }
    }

    /// Whether a pool hands memory out.
    pub(super) fn serves(&self, id: MempoolId) -> bool {
        lock(&self.state).pools.get(id).is_ok_and(|pool| !pool.is_asleep && !pool.is_freeable())
    }

    /// The block that begins at an address, and the first address and the bytes of its segment.
    pub(super) fn block_at(&self, address: u64) -> Option<(Block, u64, usize)> {
        let state = lock(&self.state);
        let (id, block) = state.live(address)?;
        let segment = state.pools.get(id).ok()?.heap.segment_at(address)?;
        Some((block, segment.address, segment.bytes as usize))
    }

    /// The largest block that a stream would get of a private pool, with so much room for a segment, or of those that lend in need.
    pub(super) fn largest(&self, id: MempoolId, stream: u64, room: usize) -> usize {
        let state = lock(&self.state);
        let is_default = id == MempoolId::NONE;
        let lending = state.pools.iter().filter(|(_, pool)| is_default && pool.lends());
        let lent = lending.map(|(_, pool)| pool.heap.largest_for(stream, 0)).max().unwrap_or(0);
        let own = state.pools.get(id).ok().filter(|pool| !pool.is_freeable()).map_or(0, |pool| {
            // What a source other than a tag's would have given is not known.
            let room = if pool.source.is_none() || pool.heap.is_roomy { room } else { 0 };
            pool.heap.largest_for(stream, room as u64)
        });
        lent.max(own) as usize
    }

    /// How many free blocks there are beside others, and their bytes, in small segments and in large ones.
    pub(super) fn splits(&self) -> [(u64, u64); 2] {
        let state = lock(&self.state);
        [PoolSize::Small, PoolSize::Large].map(|kind| {
            let splits = state.pools.iter().map(|(_, pool)| pool.heap.splits(kind));
            splits.fold((0, 0), |(count, bytes), splits| (count + splits.0, bytes + splits.1))
        })
    }
}

/// What tags need: pools that hand nothing out for a while, and what is live in them.
impl Private {
    /// The pools whose segments are of a source.
    pub(in crate::caching) fn pools_of(&self, source: &dyn RawResource) -> Vec<MempoolId> {
        lock(&self.state).of(source)
    }

    /// Has the pools of a source hand nothing out and give nothing back, or do so again.
    pub(in crate::caching) fn set_asleep(&self, source: &dyn RawResource, is_asleep: bool) {
        let mut state = lock(&self.state);
        for id in state.of(source) {
            if let Ok(pool) = state.pools.get_mut(id) {
                pool.is_asleep = is_asleep;
            }
        }
    }

    /// Where the first block of a source's pools begins that is wanted, or that a graph may use, which is any of a captured pool.
    pub(super) fn find(&self, of: &dyn RawResource, is_it: impl Fn(&Block) -> bool) -> Option<u64> {
        let state = lock(&self.state);
        let mut pools = state.of(of).into_iter().filter_map(|id| state.pools.get(id).ok());
        pools.find_map(|pool| {
            let is_used = |block: &Block| (pool.is_captured && !pool.is_freeable()) || is_it(block);
            let mut blocks = pool.heap.segments().flat_map(Segment::blocks);
            blocks.find(is_used).map(|block| block.address)
        })
    }

    /// What is live in a source's pools by address, all of a pool that a graph may use, and each segment that is not on its way in or out.
    pub(in crate::caching) fn live(&self, source: &dyn RawResource) -> (Vec<Range<u64>>, HashSet<u64>) {
        let state = lock(&self.state);
        let (mut live, mut segments) = (Vec::new(), HashSet::new());
        for pool in state.of(source).into_iter().filter_map(|id| state.pools.get(id).ok()) {
            for segment in pool.heap.segments() {
                segments.insert(segment.address);
                if pool.is_captured {
                    live.push(segment.address..segment.address + segment.bytes);
                    continue;
                }
                let blocks = segment.blocks().filter(|block| block.state != BlockState::Inactive);
                live.extend(blocks.map(|block| block.address..block.address + block.size));
            }
        }
        live.sort_unstable_by_key(|range| range.start);
        (live, segments)
    }

    /// Gives a pool, or a new one for whoever uses it first, the source of a tag. [`PoolError::HasMemory`] if it has other memory or another tag.
    pub(in crate::caching) fn give_source(&self, id: MempoolId, source: Arc<dyn RawResource>) -> Result<()> {
        let mut state = lock(&self.state);
        let is_given = state.of(&*source).contains(&id);
        match state.pools.get_mut(id) {
            Ok(pool) if is_given && pool.is_freeable() => pool.uses = None,
            Ok(_) => {}
            Err(_) => {
                state.pools.create_or_incref(id, None)?;
                state.pools.in_use(id)?.uses = id.is_tag_s_own().then_some(1);
            }
        }
        let pool = state.pools.in_use(id)?;
        if !is_given && (pool.source.is_some() || pool.leaving > 0 || !pool.heap.is_empty()) {
            return Err(PoolError::HasMemory { id }.into());
        }
        (pool.source, pool.heap.is_roomy) = (Some(source), true);
        Ok(())
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PrivatePools<'s> {
    pub(super) shared: &'s DeviceCache,
    pub(super) private: &'s Private,
}

/// Figures.
impl PrivatePools<'_> {
    pub(super) fn segments(self, device: u32, stacks: &HashMap<u64, Frames>) -> Vec<SegmentInfo> {
        let state = lock(&self.private.state);
        let block = |block: Block| BlockInfo {
            address: block.address,
            size: block.size,
            requested_size: block.requested,
            state: block.state,
            frames: stacks.get(&block.address).filter(|_| block.state != BlockState::Inactive).cloned(),
        };
        let info = |(id, segment): (MempoolId, &Segment)| SegmentInfo {
            stream: self.shared.streams.handle_of(segment.stream),
            segment_pool_id: id,
            serial: Some(segment.serial),
            frames: state.segment_stacks.get(&segment.address).cloned(),
            ..SegmentInfo::of(device, segment.kind, segment.blocks().map(block).collect())
        };
        state.segments().map(info).collect()
    }

    /// What each pool has free, and each stream of the default pool, of those that have any and do not sleep.
    pub(super) fn cached(self) -> Vec<CachedMemory> {
        let state = lock(&self.private.state);
        let mut all = BTreeMap::<_, (usize, usize)>::new();
        for (pool, segment) in state.segments() {
            let of = || self.shared.streams.slot_of(segment.stream);
            let slot = if pool == MempoolId::NONE { of() } else { None };
            let named = slot.map(|slot| (slot.stream_id(), slot.handle()));
            let is_asleep = state.pools.get(pool).is_ok_and(|pool| pool.is_asleep);
            for block in segment.blocks().filter(|block| !is_asleep && block.state == BlockState::Inactive) {
                let (bytes, largest) = all.entry((pool, named)).or_default();
                (*bytes, *largest) = (*bytes + block.size as usize, (*largest).max(block.size as usize));
            }
        }
        let cached = all.into_iter().map(|((pool, named), (bytes, largest))| {
            let (stream, handle) = named.unzip();
            CachedMemory { pool, stream, handle: handle.unwrap_or(0), bytes, largest }
        });
        cached.collect()
    }
}
