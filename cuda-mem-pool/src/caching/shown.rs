//! All that there is, as a snapshot.

use std::collections::{HashMap, HashSet};

use super::shared::Shared;
use super::slot::StreamSlot;
use crate::engine::paged::Piece;
use crate::snapshot::{BlockInfo, BlockState, Frames, SegmentInfo, Snapshot};
use crate::statistics::PoolSize;

/// What is known of blocks beside their heaps.
struct Known {
    device: u32,
    /// Blocks that were freed and are still in use by a stream.
    pending: HashSet<u64>,
    stacks: HashMap<u64, Frames>,
}

impl Shared {
    pub(super) fn snapshot(&self) -> Snapshot {
        self.count_all_frees();
        let active = self.counter.active_bytes();
        self.tell_moves();
        // While it is held no memory comes, goes or moves.
        let source = self.source_to_look();
        let known = self.known(self.stacks());
        let mut segments = self.default_segments(&known);
        let device = known.device;
        let mut device_traces = vec![Vec::new(); device as usize];
        device_traces.push(self.history.entries());
        drop(source);
        segments.extend(self.private.segments(device, &known.stacks));
        // The next one shows it: what a program did last is the last entry of this one.
        self.tell_snapshot(active);
        Snapshot { segments, device_traces, allocator_settings: self.private.settings() }
    }

    /// The segments of a snapshot, without stacks.
    pub(super) fn segments(&self) -> Vec<SegmentInfo> {
        self.count_all_frees();
        // While it is held no memory comes, goes or moves.
        let source = self.source_to_look();
        let known = self.known(HashMap::new());
        let mut segments = self.default_segments(&known);
        drop(source);
        segments.extend(self.private.segments(known.device, &known.stacks));
        segments
    }

    fn known(&self, stacks: HashMap<u64, Frames>) -> Known {
        let device = u32::try_from(self.context.device().as_raw()).unwrap_or_default();
        Known { device, pending: self.pending.freed(), stacks }
    }

    fn default_segments(&self, known: &Known) -> Vec<SegmentInfo> {
        let heaps: Vec<_> = self.slots.iter().map(|slot| (slot, self.pieces_of(slot))).collect();
        heaps.into_iter().flat_map(|(slot, pieces)| known.segments(slot, &pieces)).collect()
    }

    /// What a stream has, in the order of the addresses, when all frees are taken in.
    pub(super) fn pieces_of(&self, slot: &StreamSlot) -> Vec<Piece> {
        slot.heap.with(|heap, guard| {
            self.drain(slot, heap, guard);
            heap.pieces()
        })
    }
}

impl Known {
    /// The ranges of addresses that a stream has, each without a gap; those of small blocks are ranges of their own.
    fn segments(&self, slot: &StreamSlot, pieces: &[Piece]) -> Vec<SegmentInfo> {
        let runs = pieces.chunk_by(|one, next| {
            one.in_slab == next.in_slab && one.address + one.size as u64 == next.address
        });
        runs.map(|run| {
            let is_small = run.first().is_some_and(|piece| piece.in_slab);
            let pool = if is_small { PoolSize::Small } else { PoolSize::Large };
            let blocks = run.iter().map(|piece| self.block(piece)).collect();
            SegmentInfo {
                stream: slot.handle(),
                is_expandable: true,
                ..SegmentInfo::of(self.device, pool, blocks)
            }
        })
        .collect()
    }

    fn block(&self, piece: &Piece) -> BlockInfo {
        let state = match piece.requested {
            None => BlockState::Inactive,
            Some(_) if self.pending.contains(&piece.address) => BlockState::ActivePendingFree,
            Some(_) => BlockState::ActiveAllocated,
        };
        let frames = match state {
            BlockState::Inactive => None,
            _ => self.stacks.get(&piece.address).cloned(),
        };
        let requested_size = piece.requested.unwrap_or(0) as u64;
        BlockInfo { address: piece.address, size: piece.size as u64, requested_size, state, frames }
    }
}
