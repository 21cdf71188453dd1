//! What holds of a machine between any two steps.

use std::collections::{BTreeMap, BTreeSet};

use super::Machine;
use crate::engine::slab::NONE;

impl Machine {
    /// Each byte of a handle that is no leaf is offered, or in use, at one of its mappings, and only there.
    fn check_handles(&self) {
        let chunks = self.source.ground.chunks();
        for (number, chunk) in chunks.filter(|(_, chunk)| !chunk.maps.is_empty() && chunk.leaf == NONE) {
            let maps = chunk.maps.iter().map(|at| *self.source.ground.at(*at).expect("a mapping"));
            let mut parts: Vec<(usize, usize)> = maps
                .inspect(|map| assert_eq!((map.chunk, map.bytes()), (number, chunk.bytes)))
                .filter(|map| !map.is_stale())
                .map(|map| (map.from(), map.to()))
                .collect();
            parts.sort_unstable();
            let end = parts.iter().fold(0, |end, (from, to)| {
                assert_eq!(*from, end, "bytes of handle {number} are at two of its mappings, or at none");
                *to
            });
            assert_eq!(end, chunk.bytes, "bytes of handle {number} are at none of its mappings");
        }
    }

    /// A handle belongs where others lie beside it, and is mapped there.
    fn check_homes(&self) {
        let ground = &self.source.ground;
        for (number, chunk) in ground.chunks().filter(|(_, chunk)| chunk.place > 0) {
            assert!(ground.is_row(chunk.place), "handle {number} belongs to {:#x}, in no row", chunk.place);
            assert!(chunk.maps.contains(&chunk.place), "handle {number} has left its place for good");
        }
        for (address, map) in ground.maps() {
            let is_place = ground.chunk(map.chunk).is_some_and(|chunk| chunk.place == address);
            assert_eq!(map.is_place(), is_place, "{address:#x} knows better where its handle belongs");
        }
    }

    /// Each byte of a handle is in one block, or free, in the heap that has the handle, once, and at a mapping that offers it.
    fn check_places(&self) {
        let ground = &self.source.ground;
        let mut had: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for (stream, heap) in &self.heaps {
            for (address, size, _) in heap.layout() {
                let (mut at, end) = (address, address + size as u64);
                while at < end {
                    let (start, map) = ground.covering(at).expect("a heap has what is not mapped");
                    let (from, to) = (start + map.from() as u64, start + map.to() as u64);
                    assert!((from..to).contains(&at), "a heap has {at:#x}, which no mapping offers");
                    let of = ground.chunk(map.chunk).expect("a handle").heap;
                    assert_eq!(of, *stream, "{at:#x} is in another heap than its handle");
                    assert_eq!(of, map.heap, "{at:#x} is another heap's by its mapping");
                    had.entry(map.chunk).or_default().push((at - start, to.min(end) - start));
                    at = to.min(end);
                }
            }
        }
        for (number, chunk) in ground.chunks().filter(|(_, chunk)| !chunk.maps.is_empty()) {
            let mut parts = had.remove(&number).unwrap_or_default();
            parts.sort_unstable();
            let end = parts.iter().fold(0, |end, (from, to)| {
                assert_eq!(*from, end, "bytes of handle {number} are in a heap twice, or in none");
                *to
            });
            assert_eq!(end, chunk.bytes as u64, "bytes of handle {number} are in no heap");
        }
    }

    /// Every byte is in a block or free, in one heap, and the heaps' books agree with ours.
    pub(super) fn check(&self) {
        self.check_handles();
        self.check_places();
        self.check_homes();
        let mut all = 0;
        let mut kept: BTreeSet<u64> = self.index.0.borrow().keys().copied().collect();
        for (_, block) in &self.live {
            assert!(kept.remove(&block.address), "in use, and not in the index");
        }
        for (stream, heap) in &self.heaps {
            let layout = heap.layout();
            layout.iter().filter(|(_, _, free)| *free).for_each(|(address, ..)| _ = kept.remove(address));
            all += layout.iter().map(|(_, size, _)| size).sum::<usize>();
            assert!(layout.windows(2).all(|pair| pair[0].0 + pair[0].1 as u64 <= pair[1].0));
            let used = layout.iter().filter(|(_, _, free)| !free).map(|(_, size, _)| size).sum();
            assert_eq!(heap.used_bytes(), used);
            let live = self.live.iter().filter(|(of, _)| of == stream).map(|(_, block)| block.size).sum();
            assert_eq!(used, live);
        }
        // Handles that the driver did not take back.
        let unmapped = self.source.ground.chunks().filter(|(_, chunk)| chunk.maps.is_empty());
        let refused: usize = unmapped.map(|(_, chunk)| chunk.bytes).sum();
        assert_eq!(all + refused, self.source.reserved(), "bytes were lost");
        assert_eq!(self.source.reserved(), self.source.backend().held);
        assert_eq!(kept, BTreeSet::new(), "neither in use nor free, and still in the index");
    }
}
