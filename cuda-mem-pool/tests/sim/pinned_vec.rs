//! Vectors in pinned memory.

use cuda_mem_core::{Context, DeviceBuffer, Stream, Transfer};
use cuda_mem_pool::pinned_cache::{PinnedCacheOptions, PinnedVec};
use cuda_mem_pool::{Error, PinnedCachingAllocator};
use cuda_mem_sim::Sim;
use proptest::prelude::*;

use crate::common::is_filled;
use crate::rig::on;

const MIB: usize = 1 << 20;

fn allocator(context: &Context, options: PinnedCacheOptions) -> PinnedCachingAllocator {
    PinnedCachingAllocator::with_options(context, options.with_returns_surplus(false))
}

#[derive(Debug, Clone)]
enum Step {
    Push(u32),
    Extend(Vec<u32>),
    Reserve(usize),
    Truncate(usize),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u32>().prop_map(Step::Push),
        4 => prop::collection::vec(any::<u32>(), 0..2000).prop_map(Step::Extend),
        1 => (0..3000usize).prop_map(Step::Reserve),
        1 => (0..3000usize).prop_map(Step::Truncate),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_pinned_vector_is_a_vector(steps in prop::collection::vec(step(), 1..40)) {
        on(Sim::builder(), |_, context| {
            let allocator = allocator(context, PinnedCacheOptions::default());
            let (mut pinned, mut plain) = (PinnedVec::new(&allocator), Vec::new());
            for step in &steps {
                match step {
                    Step::Push(value) => {
                        pinned.push(*value).unwrap();
                        plain.push(*value);
                    }
                    Step::Extend(values) => {
                        pinned.extend_from_slice(values).unwrap();
                        plain.extend_from_slice(values);
                    }
                    Step::Reserve(more) => {
                        pinned.reserve(*more).unwrap();
                        assert!(pinned.capacity() >= plain.len() + more);
                    }
                    Step::Truncate(len) => {
                        pinned.truncate(*len);
                        plain.truncate(*len);
                    }
                    Step::Clear => {
                        pinned.clear();
                        plain.clear();
                    }
                }
                assert_eq!(pinned[..], plain[..]);
                assert_eq!((pinned.len(), pinned.is_empty()), (plain.len(), plain.is_empty()));
                assert!(allocator.statistics().active_requests.current <= 1);
            }
            drop(pinned);
            assert_eq!(allocator.statistics().active_requests.current, 0);
        });
    }
}

#[test]
fn elements_without_bytes_take_no_memory() {
    on(Sim::builder(), |_, context| {
        let allocator = allocator(context, PinnedCacheOptions::default());
        let mut nothing = PinnedVec::<[u8; 0]>::with_capacity(&allocator, usize::MAX).unwrap();
        nothing.extend_from_slice(&[[]; 5]).unwrap();
        assert_eq!((nothing.len(), allocator.statistics().active_requests.allocated), (5, 0));
    });
}

#[test]
fn a_vector_goes_to_a_device_and_back() {
    on(Sim::builder(), |_, context| {
        let stream = Stream::new(context).unwrap();
        let allocator = allocator(context, PinnedCacheOptions::default());
        let mut there = PinnedVec::with_capacity(&allocator, 3 * MIB / 8).unwrap();
        there.extend_from_slice(&(0..1000u64).collect::<Vec<_>>()).unwrap();
        let device = DeviceBuffer::<u64>::uninit(&stream, 1000).unwrap();
        let there = Transfer::upload(&stream, there, &device.whole()).unwrap().wait().unwrap();
        let mut back = PinnedVec::new(&allocator);
        back.extend_from_slice(&[0; 1000]).unwrap();
        let back = Transfer::download(&stream, &device.whole(), back).unwrap().wait().unwrap();
        assert_eq!(there[..], back[..]);
    });
}

/// What cannot be is refused, and the vector is as before.
#[test]
fn a_vector_that_cannot_grow_stays_as_it_is() {
    on(Sim::builder(), |_, context| {
        let allocator = allocator(context, PinnedCacheOptions::default().with_max_bytes(4 * MIB));
        let mut bytes = PinnedVec::new(&allocator);
        bytes.extend_from_slice(&[7u8; 3 * MIB]).unwrap();
        let refused = bytes.extend_from_slice(&[8; MIB]);
        let Err(Error::OutOfMemory { limit, used, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!((limit, used), (4 << 20, 3 << 20));
        let mut wide = PinnedVec::<u64>::new(&allocator);
        assert!(matches!(wide.reserve(usize::MAX), Err(Error::TooLarge { .. })));
        assert!(bytes.len() == 3 * MIB && is_filled(&bytes, 7));
    });
}

/// The limit counts all that is pinned, and free memory goes back before it refuses.
#[test]
fn no_more_is_pinned_than_the_limit() {
    on(Sim::builder(), |_, context| {
        let allocator = allocator(context, PinnedCacheOptions::default().with_max_bytes(8 * MIB));
        let (one, other) = (allocator.allocate(3 * MIB).unwrap(), allocator.allocate(4 * MIB).unwrap());
        let refused = allocator.allocate(2 * MIB).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        drop(other);
        let larger = allocator.allocate(5 * MIB).unwrap();
        let statistics = allocator.statistics();
        assert_eq!((statistics.allocated_bytes.current, statistics.allocated_bytes.peak), (8 << 20, 8 << 20));
        drop((one, larger));
    });
}

#[cfg(feature = "allocator-api2")]
mod collections {
    use super::*;
    use allocator_api2::alloc::{Allocator, Layout};
    use allocator_api2::boxed::Box;
    use allocator_api2::vec::Vec;

    #[test]
    fn collections_live_in_pinned_memory() {
        on(Sim::builder(), |_, context| {
            let allocator = allocator(context, PinnedCacheOptions::default());
            let mut vec = Vec::new_in(&allocator);
            vec.extend((0..10_000u32).map(|number| (number as u8, number)));
            let boxed = Box::new_in(String::from("any type"), &allocator);
            assert_eq!((vec[777], &**boxed), ((9, 777), "any type"));
            assert_eq!(allocator.statistics().active_requests.current, 2);
            drop((vec, boxed));
            assert_eq!(allocator.statistics().active_requests.current, 0);
            // Padding of elements that were there is no byte that somebody may read.
            let block = allocator.allocate(40_000).unwrap();
            assert!(block.as_slice().unwrap().iter().all(|byte| *byte == 0));
        });
    }

    #[test]
    fn layouts_at_the_edges() {
        on(Sim::builder(), |_, context| {
            let allocator = allocator(context, PinnedCacheOptions::default());
            let of = |size, align| Layout::from_size_align(size, align).unwrap();
            let empty = Allocator::allocate(&&allocator, of(0, 1024)).unwrap();
            assert_eq!((empty.len(), empty.addr().get() % 1024), (0, 0));
            assert!(Allocator::allocate(&&allocator, of(10, 512)).is_err());
            let aligned = Allocator::allocate(&&allocator, of(10, 256)).unwrap();
            assert_eq!((aligned.len(), aligned.addr().get() % 256), (10, 0));
            // SAFETY: allocated above with this layout.
            unsafe { Allocator::deallocate(&&allocator, aligned.cast(), of(10, 256)) };
            // SAFETY: as above.
            unsafe { Allocator::deallocate(&&allocator, empty.cast(), of(0, 1024)) };
            assert_eq!(allocator.statistics().active_requests.current, 0);
        });
    }
}

#[test]
fn elements_without_bytes_are_counted_up_to_the_last_number() {
    on(Sim::builder(), |_, context| {
        let allocator = allocator(context, PinnedCacheOptions::default());
        let mut vec = PinnedVec::<[u32; 0]>::new(&allocator);
        vec.extend_from_slice(&[[]; usize::MAX]).unwrap();
        let refused = vec.push([]).unwrap_err();
        assert!(matches!(refused, Error::TooLarge { bytes: usize::MAX }), "{refused}");
        assert_eq!(vec.len(), usize::MAX);
    });
}
