//! The resources over driver pools against a model that knows what is allocated, what was written into it, and what the pools
//! must say of themselves. Every case has a machine of its own.

mod books;
mod kinds;
mod memory;
mod sharing;
mod world;

use cuda_mem_sim::Sim;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::machines::Machine;
use crate::rig::expect_clean;
use kinds::{Config, Kind};
use world::World;

const MIB: usize = 1 << 20;

#[derive(Debug, Clone, Copy)]
enum Size {
    Bytes(usize),
    /// More than a pool with a limit may hold, and more than a pool without one grows by at a time.
    AboveMax,
}

#[derive(Debug, Clone)]
enum Step {
    /// A resource takes the place of another, which is closed with memory out.
    Open(Index, Config),
    CloseResource(Index),
    Allocate {
        slot: Index,
        size: Size,
        stream: Option<Index>,
        by_address: bool,
    },
    Fill {
        block: Index,
        stream: Index,
        value: u8,
    },
    Write {
        block: Index,
        stream: Index,
        from: Index,
    },
    /// Perhaps of what the device writes just then.
    Read {
        block: Index,
        stream: Index,
        fill: bool,
    },
    /// What was allocated by its address is freed on the stream, or on its own.
    Drop {
        block: Index,
        stream: Option<Index>,
    },
    Close(Index),
    Trim(Index, usize),
    SetThreshold(Index, u64),
    ResetHighs(Index),
    Synchronise,
    /// The later work of a stream waits until the host has to wait for it.
    Hold(Index),
    Share {
        slot: Index,
        bare: bool,
        register_own: bool,
    },
    DropImport(Index),
    SetPeers(Index, [bool; 2]),
}

fn machine() -> impl Strategy<Value = (usize, Machine)> {
    let machine = (select(vec![12060, 13000]), 1..=2, any::<bool>());
    let machine = machine.prop_map(|(driver, numa_nodes, peers)| Machine { driver, numa_nodes, peers });
    (1..=2usize, machine)
}

fn config() -> impl Strategy<Value = Config> {
    (
        select(vec![Kind::Device, Kind::Device, Kind::Pinned, Kind::Pinned]),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.3),
        select(vec![0, 0, 1, 32 * MIB, 33 * MIB]),
        select(vec![None, Some(0), Some(0), Some(1)]),
        any::<Index>(),
    )
        .prop_map(|(kind, owned, shared, max_size, node, device)| Config {
            kind,
            owned,
            shared,
            max_size,
            node,
            device,
        })
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    let maybe = || prop::option::of(any::<Index>());
    let keep = || select(vec![0, 1, 2 * MIB, 32 * MIB, 100 * MIB]);
    let size = prop_oneof![
        1 => select(vec![0, 1, 511, 512, 513]).prop_map(Size::Bytes),
        3 => (0..100_000usize).prop_map(|half| Size::Bytes(2 * half + 1)),
        3 => (2 * MIB - 2..2 * MIB + 3).prop_map(Size::Bytes),
        1 => Just(Size::AboveMax),
    ];
    prop_oneof![
        1 => (index(), config()).prop_map(|(slot, config)| Step::Open(slot, config)),
        1 => index().prop_map(Step::CloseResource),
        10 => (index(), size, maybe(), prop::bool::weighted(0.3)).prop_map(
            |(slot, size, stream, by_address)| Step::Allocate { slot, size, stream, by_address }
        ),
        6 => (index(), index(), any::<u8>())
            .prop_map(|(block, stream, value)| Step::Fill { block, stream, value }),
        4 => (index(), index(), index()).prop_map(|(block, stream, from)| Step::Write { block, stream, from }),
        4 => (index(), index(), any::<bool>()).prop_map(|(block, stream, fill)| Step::Read { block, stream, fill }),
        5 => (index(), maybe()).prop_map(|(block, stream)| Step::Drop { block, stream }),
        2 => index().prop_map(Step::Close),
        2 => (index(), keep()).prop_map(|(slot, keep)| Step::Trim(slot, keep)),
        1 => (index(), keep()).prop_map(|(slot, bytes)| Step::SetThreshold(slot, bytes as u64)),
        1 => index().prop_map(Step::ResetHighs),
        2 => Just(Step::Synchronise),
        2 => index().prop_map(Step::Hold),
        2 => (index(), any::<bool>(), any::<bool>())
            .prop_map(|(slot, bare, register_own)| Step::Share { slot, bare, register_own }),
        1 => index().prop_map(Step::DropImport),
        2 => (index(), any::<[bool; 2]>()).prop_map(|(slot, peers)| Step::SetPeers(slot, peers)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_pools_are_their_model(
        (devices, machine) in machine(),
        configs in vec(config(), 3),
        steps in vec(step(), 1..80),
    ) {
        let sim: Sim = machine.builder().devices(devices).build();
        let mut world = World::new(&sim, machine, &configs);
        for step in &steps {
            world.step(step);
            world.check();
        }
        world.end();
        expect_clean(&sim);
    }
}
