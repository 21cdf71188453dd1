//! What streams hold, and how often memory moves between them, while there is more of it.

use cuda_mem_core::{Context, Stream};
use cuda_mem_pool::MemoryResource;
use cuda_mem_pool::caching::CachingAllocator;
use cuda_mem_sim::Sim;

use crate::blocks::{allocator, free};
use crate::common::gate::Gate;
use crate::rig::on;

const MIB: usize = 1 << 20;

/// A device of 16 GiB.
fn on_large(test: impl FnOnce(&Sim, &Context)) {
    on(Sim::builder().memory(16 << 30), test);
}

fn streams<const N: usize>(context: &Context) -> [Stream; N] {
    [(); N].map(|()| Stream::new(context).unwrap())
}

/// A turn of a stream: blocks of so many MiB are live at once, and free and done with at its end.
fn turn(allocator: &CachingAllocator, stream: &Stream, sizes: &[usize]) {
    let live: Vec<_> = sizes.iter().map(|mib| allocator.allocate(mib * MIB, stream).unwrap()).collect();
    drop(live);
    stream.synchronize().unwrap();
}

/// At first the memory goes from one to the next; streams that come back for it again and again keep theirs.
#[test]
fn streams_that_take_turns_keep_what_they_have() {
    on_large(|sim, context| {
        let (allocator, streams) = (allocator(context), streams::<4>(context));
        let round = || streams.iter().for_each(|stream| turn(&allocator, stream, &[300, 200, 100]));
        round();
        let one = allocator.reserved_bytes();
        assert!(one < 2 * 640 * MIB, "{one} are held for turns of 600 MiB");
        (0..4).for_each(|_| round());
        let mapped = sim.log().count("cuMemMap");
        (0..4).for_each(|_| round());
        assert_eq!(sim.log().count("cuMemMap"), mapped);
        assert!(allocator.reserved_bytes() < 5 * 640 * MIB, "{}", allocator.reserved_bytes());
    });
}

/// Two neighbours that make one hole as large as the block: one waits for another stream, which is done. A larger hole stays whole.
#[test]
fn a_large_block_is_cut_behind_what_other_streams_are_done_with() {
    on_large(|_, context| {
        let (allocator, [stream, side]) = (allocator(context), streams(context));
        let allocate = |mib: usize| allocator.allocate_by_address(mib * MIB, &stream).unwrap();
        let [large, between, first, second, behind] = [512, 2, 96, 96, 2].map(allocate);
        assert_eq!(second, first + 96 * MIB as u64);
        let gate = Gate::before(&side);
        allocator.record_stream(first, &side).unwrap();
        [large, first, second].into_iter().for_each(|address| free(&allocator, address));
        gate.open();
        side.synchronize().unwrap();
        let held = allocator.reserved_bytes();
        assert_eq!(allocate(192), first, "the best fit");
        assert_eq!(allocate(512), large);
        assert_eq!(allocator.reserved_bytes(), held);
        [large, between, first, behind].into_iter().for_each(|address| free(&allocator, address));
    });
}

/// Each has less than a heap may leave unjoined alone.
#[test]
fn many_streams_with_little_memory_hold_little_together() {
    on_large(|_, context| {
        let (allocator, streams) = (allocator(context), streams::<12>(context));
        let mut live: Vec<_> = (0..32 * streams.len()).map(|_| None).collect();
        // Each size is asked for once by each stream: none is on a quick list.
        for size in 0..400 {
            for (number, stream) in streams.iter().enumerate() {
                let place = (size * 29 % 32) + 32 * number;
                live[place] = None;
                live[place] = Some(allocator.allocate((size * 157 % 400 + 40) * 1024, stream).unwrap());
            }
        }
        let active = allocator.statistics().active_bytes.all.peak as usize;
        let held = allocator.reserved_bytes();
        assert!(held < 2 * active, "{held} are held for {active}");
    });
}
