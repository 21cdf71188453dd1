//! A route of this thread's allocations ends in this thread.

use cuda_mem_core::Driver;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};

fn main() {
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
    let pool = allocator.private_pool(None).unwrap();
    let route = pool.route_this_thread().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(route));
    });
}
