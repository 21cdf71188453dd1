//! What private pools show of themselves.

use std::collections::HashMap;

use super::allocate::pool_of;
use super::{Private, State};
use crate::caching::shared::Shared;
use crate::caching::slot::shown_handle;
use crate::engine::paged::SLAB;
use crate::error::{CachePool, CachedMemory};
use crate::mempool_id::MempoolId;
use crate::primitive::lock;
use crate::segments::{Block, BlockState as Doing, SegmentKind, SegmentView};
use crate::snapshot::{AllocatorSettings, BlockInfo, BlockState, Frames, SegmentInfo};

impl Shared {
    /// The segments of all private pools.
    pub(in crate::caching) fn private_segments(
        &self,
        device: u32,
        stacks: &HashMap<u64, Frames>,
    ) -> Vec<SegmentInfo> {
        let state = lock(&self.private.state);
        let pools = state.pools.iter();
        let segments = pools.flat_map(|(id, pool)| pool.heap().segments().map(move |segment| (id, segment)));
        segments.map(|(id, segment)| shown(&state, device, id, &segment, stacks)).collect()
    }
}

impl Private {
    /// The option of that name, as it is now.
    pub(in crate::caching) fn max_split_size(&self) -> Option<u64> {
        lock(&self.state).options.max_split_size()
    }

    /// How the allocator is set up now. Only the default pool grows by pages, and it always does.
    pub(in crate::caching) fn settings(&self) -> AllocatorSettings {
        let options = lock(&self.state).options;
        AllocatorSettings {
            max_split_size: options.max_split_size(),
            garbage_collection_threshold: options.garbage_collection_threshold().unwrap_or(0.0),
            expandable_segments: true,
            graph_capture_record_stream_reuse: self.captures.reused(),
            roundup_power2_divisions: options.roundup_power2_divisions().to_vec(),
        }
    }

    /// What each pool has free, of those that have any.
    pub(in crate::caching) fn cached(&self) -> Vec<CachedMemory> {
        let state = lock(&self.state);
        let cached = state.pools.iter().map(|(id, pool)| {
            let blocks = pool.heap().segments().flat_map(|segment| segment.blocks());
            let free = blocks.filter(|block| block.state == Doing::Inactive);
            let largest = free.map(|block| block.size).max().unwrap_or(0);
            CachedMemory {
                pool: CachePool::Private(id),
                bytes: pool.heap().totals().cached() as usize,
                largest: largest as usize,
            }
        });
        cached.filter(|cached| cached.bytes > 0).collect()
    }

    /// The largest block that a stream would get of a private pool, when there is so much room for a segment of the device's own memory; for
    /// [`MempoolId::NONE`] of those that lend in need.
    pub(in crate::caching) fn largest(&self, id: MempoolId, stream: u64, room: usize) -> usize {
        let state = lock(&self.state);
        if id == MempoolId::NONE {
            return state.pools.largest_on_oom(stream) as usize;
        }
        let Ok(pool) = state.pools.get(id) else { return 0 };
        // What another source would have given nobody knows.
        let room = if pool.source().is_some() { 0 } else { room };
        pool.heap().largest_for(stream, room as u64, SLAB as u64) as usize
    }

    /// How many blocks that somebody has, and how many segments, have `least` bytes or more.
    pub(in crate::caching) fn oversize(&self, least: u64) -> (u64, u64) {
        let state = lock(&self.state);
        let segments = || state.pools.iter().flat_map(|(_, pool)| pool.heap().segments());
        let blocks = segments().flat_map(|segment| segment.blocks());
        let blocks = blocks.filter(|block| block.state == Doing::ActiveAllocated && block.size >= least);
        (blocks.count() as u64, segments().filter(|segment| segment.bytes() >= least).count() as u64)
    }

    /// How many free blocks there are beside others, and their bytes, in small segments and in large ones.
    pub(in crate::caching) fn splits(&self) -> [(u64, u64); 2] {
        let state = lock(&self.state);
        [SegmentKind::Small, SegmentKind::Large].map(|kind| {
            let totals = state.pools.iter().map(|(_, pool)| pool.heap().totals_of(kind));
            totals.fold((0, 0), |(count, bytes): (u64, u64), totals| {
                (count.saturating_add(totals.inactive_splits), bytes.saturating_add(totals.inactive_split))
            })
        })
    }
}

fn shown(
    state: &State,
    device: u32,
    id: MempoolId,
    segment: &SegmentView<'_>,
    stacks: &HashMap<u64, Frames>,
) -> SegmentInfo {
    let block = |block: Block| BlockInfo {
        address: block.address,
        size: block.size,
        requested_size: block.requested,
        state: match block.state {
            Doing::ActiveAllocated => BlockState::ActiveAllocated,
            Doing::ActivePendingFree => BlockState::ActivePendingFree,
            Doing::Inactive => BlockState::Inactive,
        },
        frames: stacks.get(&block.address).filter(|_| block.state != Doing::Inactive).cloned(),
    };
    let blocks = segment.blocks().map(block).collect();
    SegmentInfo {
        stream: state.streams.get(segment.stream()).map_or(0, |stream| shown_handle(&stream)),
        segment_pool_id: id,
        serial: Some(segment.serial()),
        frames: state.makers.get(&segment.address()).cloned(),
        ..SegmentInfo::of(device, pool_of(segment.kind()), blocks)
    }
}
