//! `AlignedAdaptor`.

use std::alloc::Layout;

use cuda_mem_core::Error::NotAllocated;
use cuda_mem_pool::{AlignedAdaptor, Error, MemoryResource};

use super::faulty::{Faulty, is_refusal};
use crate::common::{World, pattern};

const PAGE: usize = 4096;
const LARGE: usize = 65_536;

fn paged(world: &World) -> (Faulty, AlignedAdaptor<Faulty>) {
    let upstream = Faulty::new(world);
    let resource = AlignedAdaptor::new(upstream.clone(), PAGE, LARGE).unwrap();
    (upstream, resource)
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

#[test]
fn numbers_that_are_no_alignments() {
    let world = World::new();
    for asked in [0, 1, 128, 255, 257, 768, 4097, usize::MAX] {
        let refused = AlignedAdaptor::new(Faulty::new(&world), asked, 0).unwrap_err();
        assert!(matches!(refused, Error::InvalidAlignment { asked: named, least: 256 } if named == asked));
    }
    assert!(AlignedAdaptor::new(Faulty::new(&world), 256, 5).is_ok());
}

#[test]
fn the_alignment_that_everything_has_goes_straight_through() {
    let world = World::new();
    let upstream = Faulty::new(&world);
    let resource = AlignedAdaptor::new(upstream.clone(), 256, 0).unwrap();
    drop(resource.allocate(1000, &world.stream).unwrap());
    assert_eq!(upstream.asked(), [layout(1000, 256)]);
}

#[test]
fn below_the_threshold_it_goes_straight_through() {
    let world = World::new();
    let (upstream, resource) = paged(&world);
    let block = resource.allocate(LARGE - 1, &world.stream).unwrap();
    let small = resource.allocate_aligned(100, 8, &world.stream).unwrap();
    assert_eq!(upstream.asked(), [layout(LARGE - 1, 256), layout(100, 8)]);
    block.close().unwrap();
    small.close().unwrap();
    assert_eq!(resource.allocate(0, &world.stream).unwrap().address(), 0);
}

#[test]
fn from_the_threshold_on_it_is_aligned_within_a_larger_block() {
    let world = World::new();
    let (upstream, resource) = paged(&world);
    let block = resource.allocate(LARGE, &world.stream).unwrap();
    assert_eq!(upstream.asked(), [layout(LARGE + PAGE - 256, 256)]);
    assert_eq!(block.address() % PAGE as u64, 0);
    assert_eq!(block.len(), LARGE);
    let bytes = pattern(LARGE, 1);
    block.copy_from_slice(&world.stream, &bytes).unwrap();
    assert_eq!(block.to_vec(&world.stream).unwrap(), bytes);
    block.close().unwrap();
    world.context.synchronize().unwrap();
    assert_eq!(upstream.used(), 0);
}

#[test]
fn any_alignment_that_is_asked_for_is_given() {
    let world = World::new();
    let (upstream, resource) = paged(&world);
    for power in 0..22 {
        let alignment = 1usize << power;
        // Neighbours, so that not all of them begin at an aligned address by chance.
        let blocks =
            [1, 100, 70_000].map(|size| resource.allocate_aligned(size, alignment, &world.stream).unwrap());
        assert!(blocks.iter().all(|block| block.address() % alignment as u64 == 0), "{alignment}");
        assert_eq!(blocks[2].address() % PAGE.max(alignment) as u64, 0);
        blocks.into_iter().for_each(|block| block.close().unwrap());
    }
    assert_eq!(resource.allocate_aligned(0, 1 << 20, &world.stream).unwrap().address(), 0);
    world.context.synchronize().unwrap();
    assert_eq!(upstream.used(), 0);
}

#[test]
fn several_at_a_time_do_not_overlap() {
    let world = World::new();
    let (upstream, resource) = paged(&world);
    let blocks =
        (0..20u8).map(|_| resource.allocate(LARGE + 100, &world.stream).unwrap()).collect::<Vec<_>>();
    for (seed, block) in (0..).zip(&blocks) {
        block.copy_from_slice(&world.stream, &pattern(LARGE + 100, seed)).unwrap();
    }
    for (seed, block) in (0..).zip(&blocks) {
        assert_eq!(block.to_vec(&world.stream).unwrap(), pattern(LARGE + 100, seed));
    }
    drop(blocks);
    world.context.synchronize().unwrap();
    assert_eq!(upstream.used(), 0);
}

#[test]
fn by_address_the_block_around_it_goes_back() {
    let world = World::new();
    let (upstream, resource) = paged(&world);
    let address = resource.allocate_raw(LARGE, &world.stream).unwrap();
    assert_eq!(address % PAGE as u64, 0);
    // SAFETY: allocated above and not used.
    unsafe { resource.deallocate(address, LARGE, None) }.unwrap();
    // SAFETY: refused, because it is freed already.
    let again = unsafe { resource.raw().deallocate(address, layout(LARGE, 256), &world.stream) };
    assert!(matches!(again, Err(NotAllocated { address: named }) if named == address));
    world.context.synchronize().unwrap();
    assert_eq!(upstream.used(), 0);
}

#[test]
fn memory_that_is_not_its_own_is_refused() {
    let world = World::new();
    let (upstream, resource) = paged(&world);
    let address = upstream.allocate_raw(LARGE, &world.stream).unwrap();
    // SAFETY: refused, which is what is tested.
    let refused = unsafe { resource.deallocate(address, LARGE, None) }.unwrap_err();
    assert!(matches!(refused, Error::Core(NotAllocated { address: named }) if named == address));
    // SAFETY: allocated above and not used; the free before was refused.
    unsafe { upstream.deallocate(address, LARGE, None) }.unwrap();
}

#[test]
fn what_fails_leaves_nothing_behind() {
    let world = World::new();
    let (upstream, resource) = paged(&world);
    upstream.refuse_allocations(1);
    assert!(matches!(resource.allocate(LARGE, &world.stream), Err(Error::OutOfMemory { .. })));
    let block = resource.allocate(LARGE, &world.stream).unwrap();
    upstream.refuse_frees(1);
    let refused = block.close().unwrap_err();
    assert!(is_refusal(&refused.error));
    refused.owner.close().unwrap();
    let most = isize::MAX as usize - 255;
    assert!(
        matches!(resource.allocate(most, &world.stream), Err(Error::TooLarge { bytes }) if bytes == most)
    );
    world.context.synchronize().unwrap();
    assert_eq!(upstream.used(), 0);
}
