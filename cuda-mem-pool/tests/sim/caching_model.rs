//! The caching allocator against a model that knows what is out, what was written into it and who used it last. Every case has a
//! machine of its own; streams are held up, so that work is pending while memory goes from hand to hand.

mod memory;
mod world;

use cuda_mem_pool::caching::CachingOptions;
use cuda_mem_pool::segments::Options;
use cuda_mem_sim::Sim;
use proptest::array::uniform16;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::rig::expect_clean;
use world::World;

#[derive(Debug, Clone)]
enum Step {
    Allocate {
        stream: Index,
        bytes: usize,
        by_address: bool,
    },
    /// Behind its last use, which a stream other than its own is recorded for.
    Use {
        block: Index,
        stream: Index,
    },
    Free {
        block: Index,
        elsewhere: bool,
    },
    /// A raw block, ordered on a stream that is perhaps not its own.
    FreeOn {
        block: Index,
        stream: Index,
    },
    EmptyCache,
    /// The handle goes; blocks and work of the stream stay.
    DropStream(Index),
    /// The later work of a stream waits until something has to wait for it.
    Hold(Index),
    LetGo,
    Synchronise,
    /// Begins a capture, in the global mode, or ends the one there is.
    Capture(Index),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    let bytes = prop_oneof![
        2 => select(vec![1, 511, 512, 513, 16 << 10, (16 << 10) + 1, 1 << 20, (1 << 20) + 1, 2 << 20]),
        3 => 1..16_384usize,
        2 => 16_384..(1usize << 20),
        6 => (1usize << 20)..(24 << 20),
        1 => (24usize << 20)..(100 << 20),
    ];
    prop_oneof![
        20 => (index(), bytes, any::<bool>())
            .prop_map(|(stream, bytes, by_address)| Step::Allocate { stream, bytes, by_address }),
        8 => (index(), index()).prop_map(|(block, stream)| Step::Use { block, stream }),
        14 => (index(), prop::bool::weighted(0.3)).prop_map(|(block, elsewhere)| Step::Free { block, elsewhere }),
        4 => (index(), index()).prop_map(|(block, stream)| Step::FreeOn { block, stream }),
        2 => Just(Step::EmptyCache),
        1 => index().prop_map(Step::DropStream),
        3 => index().prop_map(Step::Hold),
        1 => Just(Step::LetGo),
        1 => Just(Step::Synchronise),
        2 => index().prop_map(Step::Capture),
    ]
}

fn options() -> impl Strategy<Value = CachingOptions> {
    let divisions = prop_oneof![2 => Just([0; 16]), 1 => uniform16(select(vec![0, 1, 2, 4, 64, 1 << 40]))];
    let fractions = select(vec![1.0, 1.0, 0.5]);
    (prop::bool::weighted(0.8), fractions, divisions).prop_map(|(moves, fraction, divisions)| {
        let segments = Options::default().with_roundup_power2_divisions(divisions);
        let options = CachingOptions::default().with_moves(moves);
        options.with_memory_fraction(fraction).with_segments(segments)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_caching_allocator_is_its_model(
        memory in select(vec![32u64 << 20, 128 << 20, 512 << 20]),
        options in options(),
        steps in vec(step(), 1..120),
    ) {
        let sim: Sim = Sim::builder().memory(memory).workers(2).build();
        let mut world = World::new(&sim, &options);
        for step in &steps {
            world.step(step);
            world.check();
        }
        world.end();
        expect_clean(&sim);
    }
}
