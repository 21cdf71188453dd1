//! What happens to a handle of another heap that cannot be had.

use std::collections::BTreeMap;

use super::device::Device;
use super::model::Others;
use crate::engine::paged::{Block, GrowError, Load, NoIndex, PageSource, Policy, StreamHeap, Wanted};

const HANDLE: usize = 4 << 20;
const RANGE: u64 = 1 << 30;

/// A heap tries to take a handle from another, whose work it cannot wait for because it captures. The handle was once mapped where
/// the heap is about to map another one; it must not be offered there again.
#[test]
fn a_handle_that_cannot_be_had_stays_where_it_was() {
    let mut source = PageSource::new(Device::new(2, 1 << 30), Policy { little: 0, ..Policy::DEFAULT }, RANGE);
    let (mut mine, mut theirs) = (StreamHeap::new(), StreamHeap::new());
    source.add_range(HANDLE).unwrap();
    let (range, end) = source.ground.ranges().next().unwrap();
    let (gap, home) = (range, end - HANDLE as u64);

    // It was mapped at the gap later than at home, was brought home again, and work uses it there.
    let handle = source.create(1, HANDLE).unwrap().unwrap();
    source.move_to(1, &mut theirs, handle, home).unwrap();
    source.move_to(1, &mut theirs, handle, gap).unwrap();
    source.bring_home(1, &mut theirs, handle, home).unwrap();
    source.mark_free(1, &theirs).unwrap();
    let block = theirs.allocate(HANDLE, 0, &NoIndex).unwrap();
    assert_eq!(block.address, home);
    source.backend_mut().work(1, home, HANDLE);
    theirs.free(block.number, &NoIndex).unwrap();
    theirs.release_spare_pages(&NoIndex);

    // There is memory for half of the block; for the other half the handle would be moved.
    source.set_limit(2 * HANDLE);
    source.backend_mut().capturing.insert(0);
    let mut heaps = BTreeMap::from([(1, theirs)]);
    let load = Load { active: 0, peak: 0 };
    let wanted = Wanted { size: 2 * HANDLE, unused: 0, load };
    assert!(source.grow(0, &mut mine, &mut Others(&mut heaps), wanted, &NoIndex).is_err());
    assert_eq!((source.reserved(), source.ground.at(gap).unwrap().chunk == handle), (2 * HANDLE, false));

    let behind = |heap: &mut StreamHeap| {
        let block: Block = heap.allocate(HANDLE, 0, &NoIndex).unwrap();
        (block.address, source.backend().pieces(block.address, HANDLE))
    };
    let (at_mine, my_bytes) = behind(&mut mine);
    let (at_theirs, their_bytes) = behind(heaps.get_mut(&1).unwrap());
    assert_eq!((at_mine, at_theirs), (gap, home));
    assert_ne!(my_bytes, their_bytes, "two blocks have the same bytes");
}

/// Were the books wrong about a gap, two blocks would have the same addresses: that is refused, and nothing is lost by it.
#[test]
fn memory_is_never_mapped_over_what_is_offered() {
    let mut source = PageSource::new(Device::new(1, 1 << 30), Policy::DEFAULT, RANGE);
    let mut mine = StreamHeap::new();
    source.add_range(HANDLE).unwrap();
    let (at, _) = source.ground.ranges().next().unwrap();
    let handle = source.create(0, HANDLE).unwrap().unwrap();
    source.move_to(0, &mut mine, handle, at).unwrap();
    let block = mine.allocate(HANDLE, 0, &NoIndex).unwrap();
    let bytes = source.backend().pieces(block.address, HANDLE);

    let other = source.create(0, HANDLE).unwrap().unwrap();
    assert_eq!(source.move_to(0, &mut mine, other, at), Err(GrowError::InUse { address: at }));
    assert_eq!(source.lend(0, &mut mine, handle, HANDLE / 2, at), Err(GrowError::InUse { address: at }));
    assert_eq!(source.backend().pieces(block.address, HANDLE), bytes);
    assert_eq!(source.reserved(), HANDLE, "the other handle went back");
    mine.free(block.number, &NoIndex).unwrap();
    assert_eq!(mine.allocate(HANDLE, 0, &NoIndex).unwrap().address, at);
}
