//! Private pools in a snapshot and in the statistics.

use crate::caching::private::allocate::pool_of;
use crate::caching::private::{Private, State};
use crate::engine::paged::Splits;
use crate::mempool_id::MempoolId;
use crate::primitive::lock;
use crate::segments::{Block, BlockState, SegmentKind, SegmentView};
use crate::snapshot::{BlockInfo, BlockState as Shown, SegmentInfo};

impl Private {
    /// The segments of all pools, also of those that were released and whose memory is still here.
    pub(in crate::caching) fn segments(&self, device: u32) -> Vec<SegmentInfo> {
        let state = lock(&self.state);
        let pools = state.pools.iter();
        pools
            .flat_map(|(id, pool)| pool.heap().segments().map(move |segment| (id, segment)))
            .map(|(id, segment)| state.shown(device, id, &segment))
            .collect()
    }

    /// What is free beside blocks, in small segments and in large ones.
    pub(in crate::caching) fn splits(&self) -> [Splits; 2] {
        let state = lock(&self.state);
        [SegmentKind::Small, SegmentKind::Large].map(|kind| {
            let mut sum = Splits::default();
            for (_, pool) in state.pools.iter() {
                let totals = pool.heap().totals_of(kind);
                sum.add(totals.inactive_splits, totals.inactive_split);
            }
            sum
        })
    }
}

impl State {
    fn shown(&self, device: u32, id: MempoolId, segment: &SegmentView<'_>) -> SegmentInfo {
        let blocks = segment.blocks().map(|block| shown(&block)).collect();
        let stream = self.streams.get(&segment.stream());
        SegmentInfo {
            stream: stream.map_or(0, |stream| stream.as_raw() as usize as u64),
            segment_pool_id: id,
            ..SegmentInfo::of(device, pool_of(segment.kind()), blocks)
        }
    }
}

fn shown(block: &Block) -> BlockInfo {
    let state = match block.state {
        BlockState::ActiveAllocated => Shown::ActiveAllocated,
        BlockState::ActivePendingFree => Shown::ActivePendingFree,
        BlockState::Inactive => Shown::Inactive,
    };
    let Block { address, size, requested, .. } = *block;
    BlockInfo { address, size, requested_size: requested, state, frames: None }
}
