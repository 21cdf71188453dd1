//! How many descriptors it takes to share a process's tensors, whatever their sizes.

use std::collections::BTreeSet;

use cuda_mem_core::{Driver, Stream};
use cuda_mem_sim::Sim;
use cuda_mem_torch::{CudaAllocator, NativeAllocator};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// How many descriptors name all blocks of these sizes, shared at once, and the bytes of all that they name.
fn descriptors(sizes: impl Iterator<Item = usize>) -> (usize, u64) {
    let sim = Sim::builder().memory(64 * GIB as u64).build();
    let driver = Driver::over(sim.table()).unwrap();
    let device = driver.device(0).unwrap();
    let stream = Stream::new(&device.primary_context().unwrap()).unwrap();
    let allocator = NativeAllocator::new(driver);
    allocator.init(1).unwrap();
    let blocks: Vec<_> = sizes.map(|size| allocator.malloc(size, device, &stream).unwrap()).collect();
    let (mut numbers, mut bytes) = (BTreeSet::new(), 0);
    for block in &blocks {
        // SAFETY: nobody opens it.
        let handle = unsafe { allocator.share_ipc_handle(*block) }.unwrap().handle;
        let size = u64::from_ne_bytes(handle[10..18].try_into().unwrap());
        let count = u64::from_ne_bytes(handle[18..26].try_into().unwrap()) as usize;
        let all = handle[26..26 + 4 * count].chunks(4);
        for number in all.map(|number| i32::from_ne_bytes(number.try_into().unwrap())) {
            bytes += if numbers.insert(number) { size } else { 0 };
        }
    }
    for block in blocks {
        // SAFETY: nothing uses it.
        unsafe { allocator.raw_delete(block) }.unwrap();
    }
    (numbers.len(), bytes)
}

/// A process may open 1,024 files by default.
#[test]
fn ten_thousand_tensors_take_fewer_descriptors_than_a_process_may_have() {
    let (found, _) = descriptors(std::iter::repeat_n(MIB, 10_000));
    assert!(found < 1024, "{found}");
}

#[test]
fn tensors_of_any_sizes_take_a_descriptor_a_handle() {
    // From 1 KiB to 640 MiB, each size with its odd end.
    let sizes = (0..).map(|at: usize| (1 << (10 + at % 20)) + at * 12_345 % (1 << (10 + at % 20)) / 4);
    let mut all = 0;
    let sizes: Vec<_> = sizes
        .take_while(|size| {
            all += size;
            all < 15 * GIB
        })
        .collect();
    let live: usize = sizes.iter().sum();
    let (found, bytes) = descriptors(sizes.into_iter());
    // The most of 2 % that the allocator holds beyond what is live.
    assert!(bytes <= live as u64 * 102 / 100, "{found} of {bytes} bytes together for {live}");
    assert!(found < 1024, "{found}");
}
