//! Blocks of pools and pools, when calls fail: what waits for the free of an imported block is let go when the context is lost, and
//! not before all uses are over; and what the driver does not take back of our own is counted.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cuda_mem_core::raw_pool::{
    AllocationType, ImportedBlock, MemoryLocation, MemoryPool, PoolBlock, PoolProperties,
};
use cuda_mem_core::sys::{CUmemPoolProps_v1, CUmemoryPool, CUresult, Table};
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_sim::Sim;

use crate::common::gate::Gate;
use crate::common::kernels::Kernels;
use crate::rig::log_of;

const LEN: usize = 1 << 20;
const LOST: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;

/// One of a test's own that it may leave in disorder.
fn simulator() -> (Sim, Context) {
    let sim = Sim::builder().record(true).build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    (sim, context)
}

/// A pool to share.
fn create(driver: Driver) -> MemoryPool {
    let (allocation_type, location) = (AllocationType::Pinned, MemoryLocation::Device(0));
    let properties = PoolProperties { allocation_type, location, shareable: true, max_size: 0 };
    MemoryPool::create(driver, &properties).unwrap()
}

/// A block, to be freed on `home`, with a guard that is dropped after the free. The exporter never frees it.
fn import(home: &Stream) -> (ImportedBlock, Arc<()>) {
    let driver = home.context().driver();
    let pool = create(driver);
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
pub(crate) fn lose(context: &Context, stream: &Stream) {
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

/// The driver refuses to destroy an imported pool before. And once a thread has waited for the free of a block of the host, it leaves the
/// block's addresses in its books when the pool goes, and whatever is mapped there next is refused.
#[test]
fn an_imported_pool_goes_right_behind_the_free_of_its_last_block() {
    let (sim, context) = simulator();
    let home = Stream::new(&context).unwrap();
    let (block, guard) = import(&home);
    let records = log_of(&sim.log(), || drop(block));
    let called: Vec<_> = records.iter().map(|record| record.function).collect();
    let called: Vec<_> =
        called.into_iter().filter(|&name| name != "cuThreadExchangeStreamCaptureMode").collect();
    assert!(called.windows(2).any(|pair| pair == ["cuMemFreeAsync", "cuMemPoolDestroy"]), "{called:?}");
    home.synchronize().unwrap();
    assert_eq!((context.driver().reclaim(), Arc::strong_count(&guard)), (0, 1));
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

/// Another thread's default stream, and one that its owner has destroyed.
#[test]
fn blocks_of_streams_that_nobody_can_name_are_freed_once_they_are_not_used() {
    for is_own in [false, true] {
        for is_disowned in [false, true] {
            let (sim, context) = simulator();
            let (driver, other) = (context.driver(), Stream::new(&context).unwrap());
            let owner = Stream::new(&context).unwrap();
            let home = if is_disowned {
                // SAFETY: the owner lives longer.
                unsafe { Stream::borrow_raw(&context, owner.as_raw()) }.unwrap()
            } else {
                Stream::per_thread(&context).unwrap()
            };
            let pool = Arc::new(create(driver));
            let own = is_own.then(|| PoolBlock::allocate(&pool, LEN, &home).unwrap());
            let imported = (!is_own).then(|| import(&home));
            drop(own.as_ref().map(|block| block.on(&other).unwrap()));
            drop(imported.as_ref().map(|(block, _)| block.on(&other).unwrap()));
            let gate = Gate::before(&other);
            home.disown();
            drop(owner);
            let guard = imported.as_ref().map(|(_, guard)| Arc::clone(guard));
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    // Long enough for a free that waits for nobody.
                    std::thread::sleep(Duration::from_millis(50));
                    assert_eq!(sim.log().count("cuMemFreeAsync"), 0, "it is in use");
                    gate.open();
                });
                threads.spawn(|| drop((own, imported, home)));
            });
            assert_eq!((driver.reclaim(), driver.release_failures()), (0, 0));
            assert_eq!(sim.log().count("cuMemFreeAsync"), 1);
            assert!(guard.is_none_or(|guard| Arc::strong_count(&guard) == 1));
            assert_eq!(sim.misuse().len(), 0);
        }
    }
}

/// It is freed on a stream of its own; without one, or where the driver refuses that, it is tried again.
#[test]
fn a_block_of_a_stream_that_nobody_can_name_is_kept_until_it_can_be_freed() {
    for function in ["cuStreamCreateWithPriority", "cuMemFreeAsync"] {
        let (sim, context) = simulator();
        let owner = Stream::new(&context).unwrap();
        // SAFETY: the owner lives longer.
        let home = unsafe { Stream::borrow_raw(&context, owner.as_raw()) }.unwrap();
        let (block, guard) = import(&home);
        home.disown();
        sim.fail_call(function, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        drop(block);
        assert_eq!(sim.struck().len(), 1, "{function}");
        context.driver().reclaim();
        context.synchronize().unwrap();
        assert_eq!((context.driver().reclaim(), Arc::strong_count(&guard)), (0, 1), "{function}");
        assert_eq!(context.driver().release_failures(), 0, "{function}");
    }
}

/// A refusal is no free of what this process has allocated, whatever its code.
#[test]
fn a_block_of_our_own_that_the_driver_refuses_to_free_is_counted() {
    for function in ["cuStreamWaitEvent", "cuMemFreeAsync"] {
        let (sim, context) = simulator();
        let (home, other) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
        let pool = Arc::new(create(context.driver()));
        let block = PoolBlock::allocate(&pool, LEN, &home).unwrap();
        drop(block.on(&other).unwrap());
        sim.fail_call(function, 1, LOST);
        drop(block);
        assert_eq!((context.driver().reclaim(), context.driver().release_failures()), (0, 1), "{function}");
        assert_eq!(sim.log().count("cuMemFreeAsync"), u64::from(function == "cuMemFreeAsync"), "tried once");
    }
}

/// The free is behind them, and the stream was waited for.
#[test]
fn uses_are_not_asked_for_behind_a_free_that_was_waited_for() {
    let (sim, context) = simulator();
    let (home, other) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let (block, guard) = import(&home);
    drop(block.on(&other).unwrap());
    sim.log().clear();
    // The first orders the free behind the other stream.
    sim.fail_call("cuEventRecord", 2, CUresult::CUDA_ERROR_UNKNOWN);
    block.close().unwrap();
    assert_eq!((sim.struck().len(), Arc::strong_count(&guard)), (1, 1));
    let (waits, queries) = (sim.log().count("cuStreamSynchronize"), sim.log().count("cuStreamQuery"));
    assert_eq!((waits, queries), (1, 0));
}

/// Whoever imports it later is its only owner.
#[test]
fn a_pool_that_could_not_be_destroyed_has_no_owner_any_more() {
    let (sim, context) = simulator();
    let driver = context.driver();
    let pool = create(driver);
    let descriptor = pool.export().unwrap();
    let import = || MemoryPool::import(driver, descriptor.as_fd()).unwrap();
    // A release is tried twice.
    for _ in 0..2 {
        sim.fail_call("cuMemPoolDestroy", 1, CUresult::CUDA_ERROR_UNKNOWN);
    }
    let first = import();
    let name = first.as_raw();
    drop(first);
    assert_eq!((sim.struck().len(), driver.release_failures()), (2, 1));
    let [again, once_more] = [(); 2].map(|()| import());
    assert_eq!((again.as_raw(), once_more.as_raw()), (name, name));
    sim.log().clear();
    drop(again);
    assert_eq!(sim.log().count("cuMemPoolDestroy"), 0, "there is another");
    drop(once_more);
    assert_eq!(sim.log().count("cuMemPoolDestroy"), 1);
}

static DESTROYED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn the_same(pool: *mut CUmemoryPool, _: *const CUmemPoolProps_v1) -> CUresult {
    // SAFETY: the caller's handle.
    unsafe { pool.write(ptr::without_provenance_mut(0x1000)) };
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn destroy(_: CUmemoryPool) -> CUresult {
    DESTROYED.fetch_add(1, Ordering::SeqCst);
    CUresult::CUDA_SUCCESS
}

/// Who had its name before, and was destroyed behind our back, is not one of its owners.
#[test]
fn a_pool_is_alone_with_its_name_when_it_is_made() {
    let sim: &Sim = Box::leak(Box::new(Sim::builder().build()));
    let lookup = |symbol: &CStr| match symbol.to_bytes() {
        b"cuGetProcAddress_v2" => ptr::null(),
        b"cuMemPoolCreate" => the_same as *const _,
        b"cuMemPoolDestroy" => destroy as *const _,
        _ => sim.symbol(symbol),
    };
    // SAFETY: the addresses are those of functions that have the types of the names they are given for.
    let table = unsafe { Table::from_lookup(lookup) }.unwrap();
    let driver = Driver::over(Box::leak(Box::new(table))).unwrap();
    let _gone = std::mem::ManuallyDrop::new(create(driver));
    drop(create(driver));
    assert_eq!(DESTROYED.load(Ordering::SeqCst), 1);
}
