//! Virtual memory management: its calls, and what is done wrong with it.

use std::sync::{Arc, Mutex};

use cuda_mem_core::ipc::ImportedMapping;
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::vmm::{self, Access, AddressRange, CreateOptions, PhysicalMemory};
use cuda_mem_core::{Context, Driver, Error, Stream};
use cuda_mem_sim::{MisuseKind, Sim};

use crate::common::gate::Gate;
use crate::common::kernels::Kernels;
use crate::rig::{log_of, on, on_simulator};

/// A simulator of a test's own that it may leave in disorder, with two mappings of one page side by side.
fn two_mappings() -> (Sim, Context, AddressRange, usize) {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let device = context.device();
    let page = vmm::granularity(device).unwrap();
    let memory = PhysicalMemory::create(device, page, &CreateOptions::default()).unwrap();
    let range = AddressRange::reserve(device, 2 * page, 0).unwrap();
    range.map(0, &memory).unwrap();
    range.map(page, &memory).unwrap();
    range.set_access(0, 2 * page, &[device], Access::ReadWrite).unwrap();
    (sim, context, range, page)
}

#[test]
fn each_thing_is_one_call() {
    on_simulator(|sim, context| {
        let device = context.device();
        let page = vmm::granularity(device).unwrap();
        let options = CreateOptions::supported_by(device).unwrap();
        let range = AddressRange::reserve(device, 4 * page, 0).unwrap();
        let expect = |work: &mut dyn FnMut(), call: &str| {
            let records = log_of(&sim.log(), work);
            let called: Vec<_> = records.iter().map(|record| record.function).collect();
            assert_eq!(called, [call]);
        };
        let mut memory = None;
        expect(&mut || memory = Some(PhysicalMemory::create(device, page, &options).unwrap()), "cuMemCreate");
        let memory = memory.unwrap();
        expect(&mut || range.map(0, &memory).unwrap(), "cuMemMap");
        expect(&mut || range.set_access(0, page, &[device], Access::ReadWrite).unwrap(), "cuMemSetAccess");
        // SAFETY: nothing uses it.
        expect(&mut || unsafe { range.unmap(0, page) }.unwrap(), "cuMemUnmap");
        let mut memory = Some(memory);
        expect(&mut || drop(memory.take()), "cuMemRelease");
        let mut range = Some(range);
        expect(&mut || drop(range.take()), "cuMemAddressFree");
    });
}

#[test]
fn a_range_that_is_dropped_with_memory_stays_and_is_reported() {
    let (sim, context, range, page) = two_mappings();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    context.driver().on_release_failure(move |error: &Error| tell.lock().unwrap().push(error.to_string()));
    drop(range);
    assert_eq!(context.driver().release_failures(), 1);
    let told = told.lock().unwrap();
    assert!(told[0].starts_with(&format!("{} bytes are still mapped", 2 * page)), "{told:?}");
    assert_eq!(sim.log().count("cuMemAddressFree"), 0);
}

#[test]
fn memory_and_devices_of_another_driver_are_refused() {
    on_simulator(|_, context| {
        on_simulator(|_, other| {
            let page = vmm::granularity(context.device()).unwrap();
            let range = AddressRange::reserve(context.device(), page, 0).unwrap();
            let memory = PhysicalMemory::create(other.device(), page, &CreateOptions::default()).unwrap();
            let mapped = range.map(0, &memory);
            assert!(matches!(mapped, Err(Error::ForeignContext { what: "the memory" })), "{mapped:?}");
            let allowed = range.set_access(0, page, &[other.device()], Access::Read);
            assert!(matches!(allowed, Err(Error::ForeignContext { what: "the device" })), "{allowed:?}");
        });
    });
}

#[test]
fn a_node_that_does_not_exist_is_named() {
    on_simulator(|_, context| {
        let (device, options) =
            (context.device(), CreateOptions { node: Some(99), ..CreateOptions::default() });
        let made = PhysicalMemory::create(device, vmm::granularity(device).unwrap(), &options);
        assert!(matches!(made, Err(Error::NoSuchNumaNode { node: 99, .. })), "{made:?}");
    });
}

#[test]
fn a_release_that_fails_comes_back() {
    on_simulator(|sim, context| {
        let device = context.device();
        let page = vmm::granularity(device).unwrap();
        let memory = PhysicalMemory::create(device, page, &CreateOptions::default()).unwrap();
        let range = AddressRange::reserve(device, page, 0).unwrap();
        sim.fail_call("cuMemRelease", 1, CUresult::CUDA_ERROR_UNKNOWN);
        sim.fail_call("cuMemAddressFree", 1, CUresult::CUDA_ERROR_UNKNOWN);
        let refused = memory.close().unwrap_err();
        assert_eq!(refused.error.code(), Some(CUresult::CUDA_ERROR_UNKNOWN));
        refused.owner.close().unwrap();
        let refused = range.close().unwrap_err();
        assert_eq!(refused.error.code(), Some(CUresult::CUDA_ERROR_UNKNOWN));
        refused.owner.close().unwrap();
    });
}

/// What waits for an unmapping waits for nobody else to use the memory.
#[test]
fn a_lost_context_counts_as_the_unmapping() {
    const LOST: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
    // Whose stream cannot be waited for, whose unmapping gives the code of earlier work, and what no context is to blame for.
    for (unmapped, failures, left) in
        [(None, 0, 1), (Some(LOST), 1, 1), (Some(CUresult::CUDA_ERROR_INVALID_VALUE), 1, 2)]
    {
        let sim = Sim::builder().build();
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let (driver, device, stream) = (context.driver(), context.device(), Stream::new(&context).unwrap());
        let page = vmm::granularity(device).unwrap();
        let memory = PhysicalMemory::create(device, page, &CreateOptions::default()).unwrap();
        // SAFETY: nothing uses it before it has memory.
        let mut mapping = unsafe { ImportedMapping::reserve(device, page) }.unwrap();
        mapping.wake(memory, &[device]).unwrap();
        let guard = Arc::new(());
        mapping.drop_after_unmap(Arc::clone(&guard));
        drop(mapping.on(&stream).unwrap());
        match unmapped {
            // Twice, for it is tried again.
            Some(code) => (0..2).for_each(|_| sim.fail_call("cuMemUnmap", 1, code)),
            None => {
                let kernels = Kernels::load(&context);
                // SAFETY: nothing is there, which a simulator survives.
                unsafe { kernels.fill_u32(&stream, 64, 1, 1) };
            }
        }
        drop(mapping);
        assert_eq!((driver.reclaim(), driver.release_failures()), (0, failures), "{unmapped:?}");
        assert_eq!(Arc::strong_count(&guard), left, "{unmapped:?}");
    }
}

#[test]
fn unmapping_under_work_is_reported() {
    let (sim, context, range, page) = two_mappings();
    let (kernels, stream) = (Kernels::load(&context), Stream::new(&context).unwrap());
    let gate = Gate::before(&stream);
    // SAFETY: mapped memory, but not for as long as it has to be, which a simulator survives.
    unsafe { kernels.fill_u32(&stream, range.address(), 1000, 1) };
    // SAFETY: nobody uses the second mapping.
    unsafe { range.unmap(page, page) }.unwrap();
    assert!(sim.misuse().is_empty());
    // SAFETY: broken on purpose.
    unsafe { range.unmap(0, page) }.unwrap();
    assert_eq!(sim.misuse()[0].kind, MisuseKind::UnmappedInUse);
    gate.open();
    assert_eq!(stream.synchronize().unwrap_err().code(), Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
}

#[test]
fn work_that_reaches_into_where_the_next_mapping_was_is_reported() {
    let (sim, context, range, page) = two_mappings();
    let (kernels, stream) = (Kernels::load(&context), Stream::new(&context).unwrap());
    // SAFETY: nobody uses the second mapping.
    unsafe { range.unmap(page, page) }.unwrap();
    // SAFETY: broken on purpose, which a simulator survives.
    unsafe { kernels.fill_u32(&stream, range.address() + page as u64 - 400, 101, 1) };
    assert_eq!(sim.misuse()[0].kind, MisuseKind::UseAfterFree);
    assert_eq!(stream.synchronize().unwrap_err().code(), Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
}

#[test]
fn hundreds_of_thousands_of_mappings_need_no_more_than_their_handles() {
    on(Sim::builder().no_data().memory(180 << 30), |_, context| {
        let device = context.device();
        let page = vmm::granularity(device).unwrap();
        let create = |_| PhysicalMemory::create(device, page, &CreateOptions::default()).unwrap();
        let memory: Vec<_> = (0..50_000).map(create).collect();
        let range = AddressRange::reserve(device, 16 << 40, 0).unwrap();
        for index in 0..200_000 {
            range.map(index * page, &memory[index % memory.len()]).unwrap();
        }
        range.set_access(0, 200_000 * page, &[device], Access::ReadWrite).unwrap();
        let info = context.memory_info().unwrap();
        assert_eq!(info.total - info.free, 50_000 * page);
        // SAFETY: nothing uses them.
        unsafe { range.unmap(0, 200_000 * page) }.unwrap();
        assert_eq!(range.mapped_bytes(), 0);
    });
}
