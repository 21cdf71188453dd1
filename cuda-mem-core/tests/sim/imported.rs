//! Imported blocks whose context is lost: what waits for the free is let go, and not before all uses are over.

use std::os::fd::AsFd;
use std::sync::Arc;

use cuda_mem_core::raw_pool::{AllocationType, ImportedBlock, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_sim::Sim;

use crate::common::gate::Gate;
use crate::common::kernels::Kernels;

const LEN: usize = 1 << 20;
const LOST: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;

/// One of a test's own that it may leave in disorder.
fn simulator() -> (Sim, Context) {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    (sim, context)
}

/// A block, to be freed on `home`, with a guard that is dropped after the free. The exporter never frees it.
fn import(home: &Stream) -> (ImportedBlock, Arc<()>) {
    let driver = home.context().driver();
    let (allocation_type, location) = (AllocationType::Pinned, MemoryLocation::Device(0));
    let properties = PoolProperties { allocation_type, location, shareable: true, max_size: 0 };
    let pool = MemoryPool::create(driver, &properties).unwrap();
    let address = pool.allocate(LEN, home).unwrap();
    home.synchronize().unwrap();
    let theirs = Arc::new(MemoryPool::import(driver, pool.export().unwrap().as_fd()).unwrap());
    // SAFETY: nothing here borrows the memory, which is never freed.
    let export = unsafe { MemoryPool::export_pointer(driver, address) }.unwrap();
    // SAFETY: imported once, from the pool's own process.
    let mut block = unsafe { ImportedBlock::import(&theirs, &export, LEN, home) }.unwrap();
    let guard = Arc::new(());
    block.drop_after_free(Arc::clone(&guard));
    (block, guard)
}

/// Of a context in which nothing can be called any more.
fn lose(context: &Context, stream: &Stream) {
    let kernels = Kernels::load(context);
    // SAFETY: nothing is there, which a simulator survives.
    unsafe { kernels.fill_u32(stream, 64, 1, 1) };
    assert_eq!(stream.synchronize().unwrap_err().code(), Some(LOST));
}

#[test]
fn a_lost_context_counts_as_the_free() {
    let (_sim, context) = simulator();
    let driver = context.driver();
    let (home, other) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    // Used on another stream too, behind which the free cannot be ordered any more.
    let [one, two] = [(); 2].map(|()| import(&home));
    drop(two.0.on(&other).unwrap());
    lose(&context, &home);
    for (block, guard) in [one, two] {
        drop(block);
        assert_eq!(Arc::strong_count(&guard), 1);
    }
    assert_eq!(driver.release_failures(), 0);
    assert_eq!(driver.reclaim(), 0);
}

/// The codes are those of one stream's context, and another one still works.
#[test]
fn uses_that_run_on_are_not_lost_with_a_context() {
    for function in ["cuStreamWaitEvent", "cuMemFreeAsync"] {
        let (sim, context) = simulator();
        let (driver, home, other) =
            (context.driver(), Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
        let (block, guard) = import(&home);
        drop(block.on(&other).unwrap());
        other.synchronize().unwrap();
        let gate = Gate::before(&other);
        sim.fail_call(function, 1, LOST);
        drop(block);
        assert_eq!(sim.struck().len(), 1, "{function}");
        assert_eq!((driver.reclaim(), Arc::strong_count(&guard)), (1, 2), "{function}");
        gate.open();
        other.synchronize().unwrap();
        // Once to free it, if that is still to do, and once when that is done.
        driver.reclaim();
        home.synchronize().unwrap();
        assert_eq!((driver.reclaim(), Arc::strong_count(&guard)), (0, 1), "{function}");
        assert_eq!(driver.release_failures(), 0);
    }
}
