//! Numbers at the ends of what their types hold.

use cuda_mem_core::{Context, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions, Hold, Pin};
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::segments::{Filter, Options};
use cuda_mem_pool::{Error, MemoryResource, MempoolId, PinnedCachingAllocator, TrackingAdaptor};
use cuda_mem_sim::Sim;
use proptest::prelude::*;

use crate::rig::on;

fn number() -> BoxedStrategy<u64> {
    let near = |power: u32| (1u64 << power).wrapping_sub(1)..=(1u64 << power).saturating_add(1);
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        Just(u64::MAX - 511),
        Just(i64::MAX as u64),
        Just(i64::MAX as u64 + 1),
        (0..64u32).prop_flat_map(near),
        0..(64u64 << 20),
    ]
    .boxed()
}

fn part() -> BoxedStrategy<f64> {
    prop_oneof![
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(-1.0),
        Just(0.0),
        Just(-0.0),
        Just(f64::MIN_POSITIVE),
        Just(1.0),
        Just(f64::MAX),
        Just(1.0 - f64::EPSILON),
        0.0..1.0f64,
        1.0..2.0f64,
    ]
    .boxed()
}

fn options() -> impl Strategy<Value = CachingOptions> {
    let segments = (
        number(),
        prop::option::of(number()),
        prop::option::of(number()),
        prop::array::uniform16(prop_oneof![Just(0), number()]),
        prop::option::of(part()),
    );
    let segments = prop_oneof![
        Just(Options::default()),
        segments.prop_map(|(large, split, rounding, divisions, threshold)| Options::default()
            .with_large_segment_size(large)
            .with_max_split_size(split)
            .with_max_non_split_rounding(rounding)
            .with_roundup_power2_divisions(divisions)
            .with_garbage_collection_threshold(threshold)),
        (
            prop::array::uniform16((0..64u32).prop_map(|power| 1u64 << power)),
            prop::option::of(0.0..1.0f64),
            11..(1u64 << 40)
        )
            .prop_map(|(divisions, threshold, large)| Options::default()
                .with_roundup_power2_divisions(divisions)
                .with_garbage_collection_threshold(threshold)
                .with_large_segment_size(large << 20)),
    ];
    (
        any::<bool>(),
        prop::option::of(part()),
        number(),
        prop_oneof![Just(1.0), part()],
        prop::option::of(number()),
        segments,
    )
        .prop_map(|(moves, over, most, fraction, reserve, segments)| {
            let hold = over.map_or(Hold::Ample, |over_peak| Hold::Tight { over_peak });
            let options = CachingOptions::default()
                .with_moves(moves)
                .with_hold(hold)
                .with_max_bytes(most as usize)
                .with_memory_fraction(fraction)
                .with_segments(segments);
            reserve.map_or(options, |reserve| options.with_reserve_bytes(reserve as usize))
        })
}

fn ask(allocator: &CachingAllocator, stream: &Stream, number: u64, other: u64, at: u64) {
    let bytes = number as usize;
    let _ = allocator.trim_to(bytes);
    let _ = allocator.set_limit(bytes);
    let _ = allocator.set_limit(usize::MAX);
    let tag = allocator.tag("tag").unwrap();
    for address in [number, other, at, at.wrapping_add(number)] {
        let _ = allocator.pin(address, other as usize, Pin::Graph);
        let _ = allocator.segment(address);
        let _ = allocator.generation(address, other as usize);
        let _ = allocator.base_allocation(address);
        let _ = allocator.block_bytes(address);
        let _ = allocator.record_stream(address, stream);
        let _ = tag.keep(address, other as usize, "a test");
        let _ = (tag.has(address), tag.is_asleep_at(address));
        let _ = tag.read_backup(address, &mut [0; 3]);
    }
    let id = MempoolId(number, other);
    let _ = allocator.create_or_incref_pool(id, None);
    let _ = allocator.begin_allocate_to_pool(id, Filter::this_thread());
    drop(allocator.allocate(bytes, stream));
    let _ = allocator.end_allocate_to_pool(id);
    let _ = allocator.checkpoint_pool(id);
    let _ = allocator.release_pool(id);
    let _ = allocator.release_pool(id);
    let _ = allocator.empty_pool_cache(id);
    let scope = tag.enter().unwrap();
    drop(allocator.allocate(bytes, stream));
    drop(scope);
    let adaptor = TrackingAdaptor::new(allocator.clone(), false);
    drop(adaptor.allocate(bytes, stream));
    drop(adaptor.allocate(other as usize, stream));
    if let Ok(mut block) = allocator.allocate(bytes.min(1 << 20), stream) {
        let _ = block.range(other as usize..bytes).map(|range| range.fill_bytes(stream, 1));
        let _ = block.range(..=other as usize);
        let _ = block
            .as_device_range()
            .range((std::ops::Bound::Excluded(bytes), std::ops::Bound::Included(other as usize)));
    }
    let _ = (allocator.statistics(), allocator.snapshot(), allocator.largest_free_block());
}

fn ask_pinned(context: &Context, stream: &Stream, number: u64, other: u64) {
    let options = PinnedCacheOptions::default()
        .with_max_cached_bytes(other as usize)
        .with_thread_cache_bytes(number as usize);
    let pinned = PinnedCachingAllocator::with_options(context, options);
    let sizes = [number.min(1 << 22), other.min(1 << 22), number | 1 << 62];
    for bytes in sizes.map(|bytes| bytes as usize) {
        drop(pinned.allocate(bytes));
        drop(MemoryResource::allocate(&pinned, bytes, stream));
        drop(pinned.allocate_with(bytes, Some(stream), Some(other as u32 | 1 << 20)));
    }
    pinned.trim_to(other as usize);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn numbers_at_the_ends_are_refused_or_work(
        options in options(),
        numbers in prop::collection::vec((number(), number()), 1..4),
    ) {
        on(Sim::builder().memory(1 << 30), |_, context| {
            let stream = Stream::new(context).unwrap();
            let Ok(allocator) = CachingAllocator::new(context, &options) else { return };
            let at = allocator.allocate(1 << 20, &stream).map_or(0, |block| block.address());
            for (number, other) in numbers {
                ask(&allocator, &stream, number, other, at);
                ask_pinned(context, &stream, number, other);
                let _ = allocator.set_segment_options(options.segments);
                let _ = allocator.set_expandable_segments(number % 2 == 0);
            }
        });
    }
}

/// A program may change what it was told.
#[test]
fn a_report_with_more_than_there_can_be_is_printed() {
    on(Sim::builder().memory(64 << 20), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let stream = Stream::new(context).unwrap();
        drop(allocator.allocate(3 << 20, &stream).unwrap());
        let Err(Error::DeviceOutOfMemory(mut report)) = allocator.allocate(1 << 30, &stream) else {
            panic!("it has no such memory")
        };
        report.cached[0].bytes = usize::MAX;
        report.cached.push(report.cached[0]);
        assert_eq!(report.cached_bytes(), usize::MAX);
        assert!(report.to_string().contains("17179869184.00 GiB free"), "{report}");
    });
}
