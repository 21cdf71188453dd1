//! How room is made for a segment.

use super::support::{Bump, MIB, Stubborn};
use crate::engine::segments::{AllocateError, Options, SegmentHeap};

#[test]
fn everything_free_goes_before_memory_is_out() {
    let (mut heap, mut source) = (SegmentHeap::new(Options::default()), Bump::of(64 * MIB));
    let kept = heap.allocate_from(0, 1000, &mut source).unwrap();
    for bytes in [MIB, 10 * MIB, 20 * MIB] {
        let block = heap.allocate_from(1, bytes, &mut source).unwrap();
        heap.free(block).unwrap();
    }
    assert_eq!(heap.totals().reserved, 2 * MIB + 2 * MIB + 10 * MIB + 20 * MIB);
    heap.allocate_from(2, 62 * MIB, &mut source).unwrap();
    assert_eq!(heap.totals().reserved, 64 * MIB);
    assert!(heap.get(kept).is_some());

    let error = heap.allocate_from(2, 3 * MIB, &mut source).unwrap_err();
    let (segment, reserved, active) = (20 * MIB, 64 * MIB, 62 * MIB + 1024);
    let expected = AllocateError::OutOfMemory { requested: 3 * MIB, segment, reserved, active, limit: None };
    assert_eq!(error, expected);
    heap.allocate_from(0, MIB, &mut source).unwrap();
}

#[test]
fn pending_blocks_make_room_once_they_are_complete() {
    let (mut heap, mut source) = (SegmentHeap::new(Options::default()), Bump::of(30 * MIB));
    let block = heap.allocate_from(0, 30 * MIB, &mut source).unwrap();
    heap.free_pending(block).unwrap();
    let error = heap.allocate_from(1, 20 * MIB, &mut source).unwrap_err();
    assert!(matches!(error, AllocateError::OutOfMemory { .. }));
    heap.complete(block).unwrap();
    heap.allocate_from(1, 20 * MIB, &mut source).unwrap();
}

#[test]
fn unsplit_segments_go_as_few_as_make_room() {
    let options = Options::builder().max_split_size(Some(20 * MIB)).build().unwrap();
    let (mut heap, mut source) = (SegmentHeap::new(options), Bump::of(280 * MIB));
    let sizes = [30 * MIB, 40 * MIB, 50 * MIB, 150 * MIB, 10 * MIB];
    let blocks = sizes.map(|bytes| heap.allocate_from(0, bytes, &mut source).unwrap());
    for block in blocks {
        heap.free(block).unwrap();
    }
    source.log.clear();
    // 150 is 20 too many for 120, and the one that would hold it; 10 may be split, and stays.
    heap.allocate_from(0, 120 * MIB, &mut source).unwrap();
    assert_eq!(source.log, [(false, 150 * MIB), (true, 120 * MIB)]);
    source.log.clear();
    // None holds 100: the largest that do together.
    source.left = 20 * MIB;
    heap.allocate_from(0, 100 * MIB, &mut source).unwrap();
    assert_eq!(source.log, [(false, 50 * MIB), (false, 40 * MIB), (false, 30 * MIB), (true, 100 * MIB)]);
    assert_eq!(heap.totals().reserved, 230 * MIB);
    // What is too large to be split does not do: the source is not asked again before all went that is free.
    (source.asked, source.left) = (0, 0);
    let error = heap.allocate_from(0, 110 * MIB, &mut source).unwrap_err();
    assert!(matches!(error, AllocateError::OutOfMemory { reserved, .. } if reserved == 220 * MIB));
    assert_eq!(source.asked, 2);
}

#[test]
fn a_limit_is_kept_without_asking_the_source() {
    let (mut heap, mut source) = (SegmentHeap::new(Options::default()), Bump::endless());
    heap.set_limit(Some(50 * MIB));
    let block = heap.allocate_from(0, 30 * MIB, &mut source).unwrap();
    let error = heap.allocate_from(0, 22 * MIB, &mut source).unwrap_err();
    assert!(error.to_string().ends_with("and the limit is 52428800"), "{error}");
    assert_eq!(source.log, [(true, 30 * MIB)]);
    heap.free(block).unwrap();
    heap.allocate_from(1, 22 * MIB, &mut source).unwrap();
    assert_eq!(source.log, [(true, 30 * MIB), (false, 30 * MIB), (true, 22 * MIB)]);
    heap.allocate_from(1, 28 * MIB, &mut source).unwrap();
    assert_eq!(heap.totals().reserved, 50 * MIB);
}

#[test]
fn garbage_goes_when_too_much_of_the_limit_is_reserved() {
    let options = Options::builder().garbage_collection_threshold(Some(0.5)).build().unwrap();
    let (mut heap, mut source) = (SegmentHeap::new(options), Bump::endless());
    heap.set_limit(Some(100 * MIB));
    for bytes in [20 * MIB, 30 * MIB] {
        let block = heap.allocate_from(0, bytes, &mut source).unwrap();
        heap.free(block).unwrap();
        heap.allocate_from(1, MIB, &mut source).unwrap();
    }
    // 54 of 50: the first one is free for longer than the average.
    assert_eq!(heap.totals().reserved, 52 * MIB);
    source.log.clear();
    heap.allocate_from(2, 10 * MIB, &mut source).unwrap();
    assert_eq!(source.log, [(false, 20 * MIB), (true, 10 * MIB)]);
}

#[test]
fn what_the_source_does_not_take_stays() {
    let (mut heap, mut source) = (SegmentHeap::new(Options::default()), Bump::of(60 * MIB));
    for stream in [0, 1] {
        let block = heap.allocate_from(stream, 30 * MIB, &mut source).unwrap();
        heap.free(block).unwrap();
    }
    source.stubborn = true;
    let error = heap.allocate_from(2, 20 * MIB, &mut source).unwrap_err();
    assert_eq!(error, AllocateError::Source(Stubborn));
    assert_eq!(heap.empty_cache(&mut source), Err(AllocateError::Source(Stubborn)));
    assert_eq!((heap.totals().reserved, heap.totals().segments), (60 * MIB, 2));
    assert_eq!(source.left, 0);
    source.stubborn = false;
    assert_eq!(heap.empty_cache(&mut source), Ok(60 * MIB));
    assert_eq!(source.left, 60 * MIB);
}

#[test]
fn a_segment_at_a_bad_address_goes_back() {
    struct Odd(u64);
    impl crate::engine::segments::SegmentSource for Odd {
        type Error = std::convert::Infallible;
        fn acquire(&mut self, bytes: u64) -> Result<Option<u64>, Self::Error> {
            self.0 += bytes;
            Ok(Some(513))
        }
        fn release(&mut self, address: u64, bytes: u64) -> Result<(), Self::Error> {
            assert_eq!(address, 513);
            self.0 -= bytes;
            Ok(())
        }
    }
    let (mut heap, mut source) = (SegmentHeap::new(Options::default()), Odd(0));
    let error = heap.allocate_from(0, 1, &mut source).unwrap_err();
    assert!(error.to_string().contains("0x201"), "{error}");
    assert_eq!((source.0, heap.totals().segments), (0, 0));
}
