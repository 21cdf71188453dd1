//! The largest block that would be had, against requests of all sizes.

use super::support::{MIB, allocate_at};
use crate::engine::segments::{Allocation, Options, SegmentHeap};

const PIECE: u64 = 2 * MIB;

/// Whether the stream would get a block of that size; the heap is as before.
fn has(heap: &mut SegmentHeap, stream: u64, bytes: u64, room: u64) -> bool {
    match heap.allocate(stream, bytes).unwrap() {
        Allocation::Hit(block) => heap.free(block.address).is_some(),
        Allocation::Miss(wanted) => wanted.bytes.next_multiple_of(PIECE) <= room,
    }
}

#[test]
fn it_is_had_and_no_larger_one_is() {
    let rounded = Options::default().with_roundup_power2_divisions([4; 16]);
    let whole = Options::default().with_max_split_size(Some(24 * MIB));
    for options in [Options::default(), rounded, whole] {
        for free in
            [&[][..], &[MIB], &[3 * MIB], &[MIB, 15 * MIB], &[30 * MIB, 50 * MIB, MIB], &[23 * MIB, 27 * MIB]]
        {
            let mut heap = SegmentHeap::new(options);
            // Something stays in each segment, and another stream has more than this.
            for (at, &bytes) in free.iter().enumerate() {
                let block = allocate_at(&mut heap, 1, bytes, (at as u64 + 1) << 32);
                let _rest = heap.allocate(1, 512 << (at % 3)).unwrap();
                heap.free(block).unwrap();
            }
            let other = allocate_at(&mut heap, 2, 60 * MIB, 1 << 40);
            heap.free(other).unwrap();
            for room in [0, 2, 4, 9, 10, 11, 12, 20, 25, 40].map(|room| room * MIB) {
                let room = room / PIECE * PIECE;
                let largest = heap.largest_for(1, room);
                assert!(
                    largest == 0 || has(&mut heap, 1, largest, room),
                    "{options:?} {free:?} {room}: {largest}"
                );
                let larger = (largest + 1..64 * MIB).step_by(MIB as usize / 7);
                let had = larger.into_iter().find(|&bytes| has(&mut heap, 1, bytes, room));
                assert_eq!(had, None, "{options:?} {free:?} {room}: {largest}");
            }
        }
    }
}
