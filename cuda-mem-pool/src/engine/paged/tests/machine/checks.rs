//! What holds of a machine between any two steps.

use std::collections::BTreeSet;

use super::Machine;

impl Machine {
    /// Each byte of a handle is offered, or in use, at one of its mappings, and only there.
    fn check_handles(&self) {
        for (number, chunk) in self.source.ground.chunks().filter(|(_, chunk)| !chunk.maps.is_empty()) {
            let maps = chunk.maps.iter().map(|at| *self.source.ground.at(*at).expect("a mapping"));
            let mut parts: Vec<(usize, usize)> = maps
                .inspect(|map| assert_eq!((map.chunk, map.bytes), (number, chunk.bytes)))
                .filter(|map| !map.is_stale())
                .map(|map| (map.from, map.to))
                .collect();
            parts.sort_unstable();
            let end = parts.iter().fold(0, |end, (from, to)| {
                assert_eq!(*from, end, "bytes of handle {number} are at two of its mappings, or at none");
                *to
            });
            assert_eq!(end, chunk.bytes, "bytes of handle {number} are at none of its mappings");
        }
    }

    /// What a heap has is what the mappings of its handles offer.
    fn check_places(&self) {
        let mut had: Vec<(u64, u64, u32)> = Vec::new();
        for (stream, heap) in &self.heaps {
            had.extend(heap.layout().iter().map(|(at, size, _)| (*at, at + *size as u64, *stream)));
        }
        had.sort_unstable();
        let mut had = had.into_iter().peekable();
        for (address, map) in self.source.ground.maps().filter(|(_, map)| !map.is_stale()) {
            let (mut at, to) = (address + map.from as u64, address + map.to as u64);
            let of = self.source.ground.chunk(map.chunk).expect("a handle").heap;
            while at < to {
                let (from, end, heap) = *had.peek().expect("what is offered is in a heap");
                assert!(from <= at && at < end, "nobody has {at:#x}, which is offered");
                assert_eq!(heap, of, "{at:#x} is in another heap than its handle");
                at = end.min(to);
                // The next mapping may go on with it.
                if end <= to {
                    had.next();
                } else {
                    let rest = had.peek_mut().expect("it");
                    rest.0 = to;
                }
            }
        }
        assert_eq!(had.next(), None, "a heap has what no mapping offers");
    }

    /// Every byte is in a block or free, in one heap, and the heaps' books agree with ours.
    pub(super) fn check(&self) {
        self.check_handles();
        self.check_places();
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
