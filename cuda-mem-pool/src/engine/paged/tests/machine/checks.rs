//! What holds of a machine between any two steps.

use std::collections::{BTreeMap, BTreeSet};

use super::Machine;
use crate::engine::paged::memory::Content;

impl Machine {
    /// A handle is active in one slot at most, and the slots know it.
    fn check_handles(&self) {
        for (number, handle) in self.source.memory.handles() {
            for address in handle.stale.iter().chain(&handle.active) {
                let range = self.source.memory.range_at(*address).expect("a range");
                assert_eq!((range.slot_of(*address), range.unit), (*address, handle.bytes));
                match range.content(*address) {
                    Content::Active(other) => assert_eq!((other, handle.active), (number, Some(*address))),
                    Content::Stale { handle: other, .. } => {
                        assert!(other == number && handle.active != Some(*address));
                    }
                    Content::Empty => {
                        panic!("handle {number} is mapped at {address:#x}, and the slot is empty")
                    }
                }
            }
        }
    }

    /// Each byte of a handle is in one block, or free, in the heap that has the handle, once.
    fn check_places(&self) {
        let mut had: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for (stream, heap) in &self.heaps {
            for piece in heap.pieces() {
                let (mut at, end) = (piece.address, piece.address + piece.size as u64);
                while at < end {
                    let (start, number, handle) =
                        self.source.memory.active_at(at).expect("a heap has what is not active");
                    let range = self.source.memory.range_at(at).unwrap();
                    assert_eq!(range.heap, *stream, "{at:#x} is in another heap's range");
                    let to = start + handle.bytes as u64;
                    had.entry(number).or_default().push((at - start, to.min(end) - start));
                    at = to.min(end);
                }
            }
        }
        for (number, handle) in self.source.memory.handles().filter(|(_, handle)| handle.active.is_some()) {
            let mut parts = had.remove(&number).unwrap_or_default();
            parts.sort_unstable();
            let end = parts.iter().fold(0, |end, (from, to)| {
                assert_eq!(*from, end, "bytes of handle {number} are in a heap twice, or in none");
                *to
            });
            assert_eq!(end, handle.bytes as u64, "bytes of handle {number} are in no heap");
        }
    }

    /// Every byte is in a block or free, in one heap, and the heaps' records agree with ours.
    pub(super) fn check(&self) {
        self.check_handles();
        self.check_places();
        let mut all = 0;
        let mut entered: BTreeSet<u64> = self.index.0.borrow().keys().copied().collect();
        for (_, block) in &self.live {
            assert!(entered.remove(&block.address), "in use, and not in the index");
        }
        for (stream, heap) in &self.heaps {
            let pieces = heap.pieces();
            let layout: Vec<_> =
                pieces.iter().map(|piece| (piece.address, piece.size, piece.requested.is_none())).collect();
            layout.iter().filter(|(_, _, free)| *free).for_each(|(address, ..)| _ = entered.remove(address));
            all += layout.iter().map(|(_, size, _)| size).sum::<usize>();
            assert!(layout.windows(2).all(|pair| pair[0].0 + pair[0].1 as u64 <= pair[1].0));
            let used = layout.iter().filter(|(_, _, free)| !free).map(|(_, size, _)| size).sum::<usize>();
            assert_eq!(heap.used_bytes(), used);
            let live =
                self.live.iter().filter(|(of, _)| of == stream).map(|(_, block)| block.size).sum::<usize>();
            assert_eq!(used, live);
        }
        // Handles that the driver did not take back.
        let unmapped = self.source.memory.handles().filter(|(_, handle)| handle.active.is_none());
        let refused: usize = unmapped.map(|(_, handle)| handle.bytes).sum();
        assert_eq!(all + refused, self.source.reserved(), "bytes were lost");
        assert_eq!(self.source.reserved(), self.source.backend.held);
        assert_eq!(entered, BTreeSet::new(), "neither in use nor free, and still in the index");
    }
}
