//! What keeps a handle from going home: an extent in its bytes.

use crate::engine::paged::extents::Extents;
use crate::engine::slab::NONE;

const MIB: usize = 1 << 20;

/// Eight blocks in a row, the last of which is free.
fn row() -> (Extents, Vec<u32>) {
    let mut extents = Extents::new(None);
    assert!(extents.offer(0, 8 * MIB, 0));
    let take = |_| {
        let number = extents.find(MIB).unwrap();
        extents.take(number, MIB, 0).map(|_| number)
    };
    let blocks = (0..7).map(take).collect::<Option<Vec<_>>>().unwrap();
    (extents, blocks)
}

#[test]
fn the_first_block_in_some_bytes_is_named_until_they_are_free() {
    let (mut extents, blocks) = row();
    let (address, size) = (2 * MIB as u64, 4 * MIB);
    for block in &blocks[2..6] {
        assert!(extents.free_at(address, size).is_none());
        assert_eq!(extents.blocking(address, size), Some(*block));
        assert!(extents.blocks(*block, address, size));
        extents.release(*block, 0).unwrap();
        assert!(!extents.blocks(*block, address, size), "it is free, or its number is nobody's");
    }
    assert_eq!(extents.blocking(address, size), None);
    assert!(extents.free_at(address, size).is_some());
}

#[test]
fn neighbours_block_nothing() {
    let (extents, blocks) = row();
    let (address, size) = (3 * MIB as u64, MIB);
    assert!(!extents.blocks(blocks[2], address, size) && !extents.blocks(blocks[4], address, size));
    assert!(extents.blocks(blocks[3], address + 256, 256), "a part of it");
    assert!(extents.blocks(blocks[3], address - 256, 512), "and what begins in front of it");
    assert!(!extents.blocks(NONE, address, size));
    // The last one is free; behind it there is nothing.
    assert_eq!(extents.blocking(7 * MIB as u64, MIB), None);
    assert_eq!(extents.blocking(7 * MIB as u64, 2 * MIB), Some(NONE));
    assert_eq!(extents.blocking(9 * MIB as u64, MIB), Some(NONE));
    assert_eq!(extents.blocking(6 * MIB as u64, 2 * MIB), Some(blocks[6]));
}
