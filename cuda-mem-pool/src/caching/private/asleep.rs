//! What tags need of private pools: to have them hand nothing out for a while, and to know what is live in them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::Private;
use crate::engine::segments::SegmentView;
use crate::error::{PoolError, Result};
use crate::mempool_id::MempoolId;
use crate::primitive::lock;
use crate::resource::RawResource;
use crate::snapshot::BlockState;
use crate::statistics::PoolSize;

impl Private {
    /// Has pools hand nothing out and give nothing back, or do so again.
    pub(in crate::caching) fn set_asleep(&self, ids: &[MempoolId], is_asleep: bool) {
        let mut state = lock(&self.state);
        for id in ids {
            if let Ok(pool) = state.pools.get_mut(*id) {
                pool.is_asleep = is_asleep;
            }
        }
    }

    /// The segments of these pools by address. Those that are on their way in or out are not among them.
    pub(in crate::caching) fn segment_kinds(&self, ids: &[MempoolId]) -> HashMap<u64, PoolSize> {
        let state = lock(&self.state);
        let pools = ids.iter().filter_map(|id| state.pools.get(*id).ok());
        pools.flat_map(|pool| pool.heap.segments()).map(|segment| (segment.address, segment.kind)).collect()
    }

    /// What is live in these pools, in the order of the addresses, and where each block begins that somebody has or that a stream still
    /// uses. Of pools that a graph may use all is live: the graph reads and writes what is free here.
    pub(in crate::caching) fn live(&self, ids: &[MempoolId]) -> (Vec<Range<u64>>, Vec<u64>) {
        let state = lock(&self.state);
        let (mut live, mut blocks) = (Vec::new(), Vec::new());
        for pool in ids.iter().filter_map(|id| state.pools.get(*id).ok()) {
            let used = |segment: SegmentView<'_>| {
                let used: Vec<_> =
                    segment.blocks().filter(|block| block.state != BlockState::Inactive).collect();
                used
            };
            for segment in pool.heap.segments() {
                if pool.is_captured {
                    live.push(segment.address..segment.address + segment.bytes);
                }
            }
            for block in pool.heap.segments().flat_map(used) {
                if !pool.is_captured {
                    live.push(block.address..block.address + block.size);
                }
                blocks.push(block.address);
            }
        }
        live.sort_unstable_by_key(|range| range.start);
        (live, blocks)
    }

    /// Has a pool get its segments from a source, which is made if there is none. [`Error::PoolHasMemory`](crate::Error::PoolHasMemory) if it
    /// has some from elsewhere.
    pub(in crate::caching) fn give_source(&self, id: MempoolId, source: Arc<dyn RawResource>) -> Result<()> {
        let mut state = lock(&self.state);
        if state.pools.get(id).is_err() {
            return Ok(state.pools.create_or_incref(id, Some(source))?);
        }
        let pool = state.pools.in_use(id)?;
        if pool.source.is_some() || pool.is_leaving() || !pool.heap.is_empty() {
            return Err(PoolError::HasMemory { id }.into());
        }
        pool.source = Some(source);
        Ok(())
    }
}
