//! What stays of an allocation that was shared, as long as it may be opened.

use std::fs;
use std::os::unix::fs::MetadataExt;

use cuda_mem_core::{Driver, Stream};
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::segments::Filter;
use cuda_mem_torch::{CudaAllocator, NativeAllocator};

/// The file behind the first descriptor of a handle, while this process has it.
fn file_of(handle: &[u8]) -> Option<u64> {
    let descriptor = i32::from_ne_bytes(handle[26..30].try_into().unwrap());
    fs::metadata(format!("/proc/self/fd/{descriptor}")).ok().map(|file| file.ino())
}

#[test]
fn a_checkpoint_that_is_restored_ends_the_sharing_of_what_it_frees() {
    let driver = Driver::over(cuda_mem_sim::table()).unwrap();
    let device = driver.device(0).unwrap();
    let stream = Stream::new(&device.primary_context().unwrap()).unwrap();
    let (allocator, id) = (NativeAllocator::new(driver), MempoolId::for_graph());
    allocator.init(1).unwrap();
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    let state = allocator.checkpoint_state(device, id).unwrap();
    let block = allocator.malloc(3 << 20, device, &stream).unwrap();
    // SAFETY: nobody opens it.
    let shared = unsafe { allocator.share_ipc_handle(block) }.unwrap();
    let file = file_of(&shared.handle).unwrap();
    // SAFETY: nothing uses the pool's memory, and what is called freed is not freed again.
    let delta = unsafe { allocator.set_checkpoint_pool_state(device, &state) }.unwrap();
    assert_eq!(delta.ptrs_freed, [block]);
    assert_ne!(file_of(&shared.handle), Some(file), "it is kept for others yet");
    allocator.end_allocate_to_pool(device, id).unwrap();
    allocator.release_pool(device, id).unwrap();
}
