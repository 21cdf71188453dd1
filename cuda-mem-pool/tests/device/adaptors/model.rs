//! Any sequence of calls, with an upstream that fails at times: the books of every adaptor are those of a model.

use std::collections::BTreeMap;

use cuda_mem_pool::statistics::Stat;
use cuda_mem_pool::{Allocation, DeviceAccessible, Error, MemoryResource, TrackingAdaptor};
use proptest::collection::vec;
use proptest::prelude::*;

use super::faulty::Faulty;
use crate::common::World;
use crate::support::device;

#[derive(Debug, Clone)]
enum Step {
    Allocate { bytes: usize, by_address: bool, fails: bool },
    Free { which: usize, fails: bool, wrong_size: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![Just(0usize), 1usize..300, 300usize..40_000];
    let rarely = || prop::bool::weighted(0.15);
    let allocate = (bytes, any::<bool>(), rarely()).prop_map(|(bytes, by_address, fails)| Step::Allocate {
        bytes,
        by_address,
        fails,
    });
    let free = (any::<usize>(), rarely(), rarely()).prop_map(|(which, fails, wrong_size)| Step::Free {
        which,
        fails,
        wrong_size,
    });
    prop_oneof![5 => allocate, 4 => free]
}

/// An allocation that is out.
enum Out {
    Owned(Allocation<DeviceAccessible>),
    Raw { address: u64, bytes: usize },
}

impl Out {
    fn key(&self) -> (u64, usize) {
        match self {
            Self::Owned(block) => (block.address(), block.len()),
            Self::Raw { address, bytes } => (*address, *bytes),
        }
    }
}

/// What must have been counted, from the list of what happened.
fn counted(changes: &[i64], amount: impl Fn(i64) -> i64) -> Stat {
    let mut stat = Stat::default();
    for change in changes.iter().map(|change| amount(*change)) {
        let size = change.unsigned_abs();
        if change > 0 { stat.increase(size) } else { stat.decrease(size) }
    }
    stat
}

struct Program<'w> {
    world: &'w World,
    upstream: Faulty,
    resource: TrackingAdaptor<TrackingAdaptor<Faulty>>,
    out: Vec<Out>,
    /// The bytes allocated and freed (below 0).
    changes: Vec<i64>,
}

impl<'w> Program<'w> {
    fn new(world: &'w World) -> Self {
        let upstream = Faulty::new(device(world));
        let resource = TrackingAdaptor::new(TrackingAdaptor::new(upstream.clone(), false), false);
        Self { world, upstream, resource, out: Vec::new(), changes: Vec::new() }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Allocate { bytes, by_address, fails } => {
                self.upstream.refuse_allocations(usize::from(fails));
                let stream = &self.world.stream;
                let result = if by_address {
                    self.resource.allocate_raw(bytes, stream).map(|address| Out::Raw { address, bytes })
                } else {
                    self.resource.allocate(bytes, stream).map(Out::Owned)
                };
                match result {
                    Ok(out) => {
                        assert!(!fails);
                        let address = out.key().0;
                        assert_eq!(address % 256, 0);
                        if bytes > 0 {
                            assert_ne!(address, 0);
                            self.out.push(out);
                            self.changes.push(bytes as i64);
                        }
                    }
                    Err(Error::OutOfMemory { .. }) => assert!(fails),
                    Err(error) => panic!("{error}"),
                }
                self.upstream.refuse_allocations(0);
            }
            Step::Free { which, fails, wrong_size } => {
                if self.out.is_empty() {
                    return;
                }
                let out = self.out.swap_remove(which % self.out.len());
                let (address, bytes) = out.key();
                self.upstream.refuse_frees(usize::from(fails));
                let left = match out {
                    Out::Owned(block) => block.close().err().map(|refused| Out::Owned(refused.owner)),
                    Out::Raw { .. } => {
                        let said = bytes + usize::from(wrong_size);
                        // SAFETY: allocated and not used; a wrong size is refused, which is what is tested.
                        let freed = unsafe { self.resource.deallocate(address, said, None) };
                        freed.err().map(|error| {
                            let size = matches!(error, Error::Core(cuda_mem_core::Error::WrongSize { .. }));
                            assert_eq!(size, wrong_size);
                            Out::Raw { address, bytes }
                        })
                    }
                };
                self.upstream.refuse_frees(0);
                match left {
                    Some(out) => self.out.push(out),
                    None => self.changes.push(-(bytes as i64)),
                }
            }
        }
    }

    fn check(&self) {
        let model = self.out.iter().map(Out::key).collect::<BTreeMap<_, _>>();
        let bytes = model.values().map(|bytes| *bytes as u64).sum::<u64>();
        let tracking = self.resource.upstream();
        let books = tracking.outstanding_allocations();
        assert_eq!(books.iter().map(|one| (one.address, one.bytes)).collect::<BTreeMap<_, _>>(), model);
        assert_eq!(tracking.bytes().current, bytes);
        assert_eq!(self.resource.bytes(), counted(&self.changes, |bytes| bytes));
        assert_eq!(self.resource.allocations(), counted(&self.changes, i64::signum));
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        for out in self.out.drain(..) {
            if let Out::Raw { address, bytes } = out {
                // SAFETY: allocated and not used.
                unsafe { self.resource.deallocate(address, bytes, None) }.unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_books_are_those_of_the_model(steps in vec(step(), 1..80)) {
        let world = World::new();
        let mut program = Program::new(&world);
        for step in &steps {
            program.run(step);
            program.check();
        }
        let upstream = program.upstream.clone();
        let tracking = program.resource.upstream().clone();
        drop(program);
        prop_assert_eq!(tracking.bytes().current, 0);
        world.context.synchronize().unwrap();
        prop_assert_eq!(upstream.used(), 0);
    }
}
