//! Blocks of `CachingAllocator`'s private pools that serve the capture again in which streams used them.

use cuda_mem_core::{Event, Stream};
use cuda_mem_pool::MempoolId;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::Filter;

use crate::common::World;
use crate::common::capture::{Capture, GLOBAL};
use crate::common::kernels::Kernels;
use crate::support::free;

const COUNT: u64 = 4096;
const BYTES: usize = COUNT as usize;

fn allocator(world: &World, reuse: bool) -> CachingAllocator {
    let allocator = CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap();
    set(&allocator, reuse);
    allocator
}

fn set(allocator: &CachingAllocator, reuse: bool) {
    // SAFETY: the captures of these tests are each one thread's, and nobody changes their graphs.
    unsafe { allocator.set_graph_capture_record_stream_reuse(reuse) }.unwrap();
}

fn begin(allocator: &CachingAllocator, id: MempoolId) {
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
}

fn allocate(allocator: &CachingAllocator, stream: &Stream) -> u64 {
    allocator.allocate_by_address(BYTES, stream).unwrap()
}

/// Has `to` come after all that `from` was given.
fn join(from: &Stream, to: &Stream) {
    let event = Event::new(from.context()).unwrap();
    from.record(&event).unwrap();
    // SAFETY: nobody else works at the captures of this test, and its graphs are not launched.
    unsafe { to.join_capture(&event) }.unwrap();
}

#[test]
fn a_block_serves_its_capture_again_once_its_users_are_joined() {
    let world = World::new();
    let kernels = Kernels::load(&world.context);
    let (allocator, id) = (allocator(&world, true), MempoolId::for_graph());
    let (stream, sides) = (world.new_stream(), [world.new_stream(), world.new_stream()]);
    let results = allocator.allocate_by_address(3 * BYTES, &stream).unwrap();
    stream.synchronize().unwrap();
    begin(&allocator, id);
    let capture = Capture::begin(&stream, GLOBAL);
    let block = allocate(&allocator, &stream);
    // SAFETY: the memory is the pool's until after the launch, as that which it is copied to is this test's.
    unsafe { kernels.fill_u32(&stream, block, COUNT / 4, 41) };
    for (side, at) in sides.iter().zip([0, COUNT]) {
        join(&stream, side);
        // SAFETY: as above.
        unsafe { kernels.copy_u8(side, results + at, block, COUNT) };
        allocator.record_stream(block, side).unwrap();
    }
    free(&allocator, block);
    let before = allocate(&allocator, &stream);
    assert_ne!(before, block, "nobody was joined");
    join(&sides[0], &stream);
    let between = allocate(&allocator, &stream);
    assert_ne!(between, block, "one was joined");
    // What a stream does later is no matter: the free came before.
    // SAFETY: as above.
    unsafe { kernels.add_one_u32(&sides[0], results, COUNT / 4) };
    let elsewhere = allocate(&allocator, &sides[1]);
    assert_ne!(elsewhere, block, "it is another stream's");
    join(&sides[1], &stream);
    assert_eq!(allocator.statistics().active.all.current, 5);
    let after = allocate(&allocator, &stream);
    assert_eq!(after, block, "all were joined");
    assert_eq!(allocator.statistics().active.all.current, 5);
    // SAFETY: as above.
    unsafe { kernels.fill_u32(&stream, after, COUNT / 4, 7) };
    // SAFETY: as above.
    unsafe { kernels.copy_u8(&stream, results + 2 * COUNT, after, COUNT) };
    sides.iter().for_each(|side| join(side, &stream));
    let graph = capture.end().expect("to ask leaves a capture alone");
    allocator.end_allocate_to_pool(id).unwrap();
    for _ in 0..3 {
        // SAFETY: the pool is there.
        unsafe { graph.run(&stream) };
        let mut bytes = vec![0u8; 3 * BYTES];
        // SAFETY: a whole block of the bytes' size; the copy is waited for.
        unsafe {
            cuda_mem_core::copy::memcpy_async(&stream, bytes.as_mut_ptr() as u64, results, bytes.len())
        }
        .unwrap();
        stream.synchronize().unwrap();
        let words: Vec<u32> =
            bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
        let expected = [42, 41, 7].into_iter().flat_map(|value| vec![value; BYTES / 4]);
        assert!(words.into_iter().eq(expected));
    }
    [before, between, elsewhere, after, results].into_iter().for_each(|block| free(&allocator, block));
    allocator.release_pool(id).unwrap();
    drop(graph);
}

/// The same with one user that is joined at once: what is handed out next, beside the block, and how many wait behind it.
fn after_a_join(
    allocator: &CachingAllocator,
    world: &World,
    record_early: bool,
    change: impl Fn(&CachingAllocator),
) -> bool {
    let id = MempoolId::for_graph();
    let (stream, side) = (world.new_stream(), world.new_stream());
    begin(allocator, id);
    let early = record_early.then(|| allocate(allocator, &stream));
    if let Some(block) = early {
        allocator.record_stream(block, &side).unwrap();
    }
    let capture = Capture::begin(&stream, GLOBAL);
    let block = early.unwrap_or_else(|| allocate(allocator, &stream));
    join(&stream, &side);
    allocator.record_stream(block, &side).unwrap();
    change(allocator);
    free(allocator, block);
    join(&side, &stream);
    let next = allocate(allocator, &stream);
    drop(capture.end().unwrap());
    allocator.end_allocate_to_pool(id).unwrap();
    side.synchronize().unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.statistics().active.all.current, 1, "in any case it comes back behind the capture");
    free(allocator, next);
    allocator.release_pool(id).unwrap();
    allocator.empty_pool_cache(id).unwrap();
    next == block
}

#[test]
fn only_uses_of_the_capture_alone_end_with_a_join() {
    let world = World::new();
    let allocator = allocator(&world, true);
    assert!(after_a_join(&allocator, &world, false, |_| ()));
    assert!(!after_a_join(&allocator, &world, true, |_| ()), "the stream had used it before it captured");
}

#[test]
fn off_blocks_wait_for_the_end_of_the_capture() {
    let world = World::new();
    assert!(!after_a_join(&allocator(&world, false), &world, false, |_| ()));
    let allocator = allocator(&world, true);
    assert!(!after_a_join(&allocator, &world, false, |allocator| set(allocator, false)));
    assert!(
        !after_a_join(&allocator, &world, false, |allocator| set(allocator, true)),
        "recorded while it was off"
    );
    assert!(after_a_join(&allocator, &world, false, |_| ()));
}

#[test]
fn what_waits_for_one_capture_does_not_come_back_in_the_next() {
    let world = World::new();
    let (allocator, id) = (allocator(&world, true), MempoolId::for_graph());
    let (stream, side) = (world.new_stream(), world.new_stream());
    begin(&allocator, id);
    let capture = Capture::begin(&stream, GLOBAL);
    let (kept, freed) = (allocate(&allocator, &stream), allocate(&allocator, &stream));
    join(&stream, &side);
    [kept, freed].into_iter().for_each(|block| allocator.record_stream(block, &side).unwrap());
    free(&allocator, freed);
    join(&side, &stream);
    drop(capture.end().unwrap());
    let capture = Capture::begin(&stream, GLOBAL);
    // One was freed in the capture before, one was used in it.
    join(&stream, &side);
    allocator.record_stream(kept, &side).unwrap();
    free(&allocator, kept);
    join(&side, &stream);
    let next = allocate(&allocator, &stream);
    assert!(next != kept && next != freed);
    assert_eq!(allocator.statistics().active.all.current, 3);
    drop(capture.end().unwrap());
    allocator.end_allocate_to_pool(id).unwrap();
    side.synchronize().unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.statistics().active.all.current, 1);
    free(&allocator, next);
    allocator.release_pool(id).unwrap();
}
