//! Holes around what a driver is, and what it owns.

use std::ptr;

use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::sys::{
    CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPool_attribute,
    CUmemPoolProps_v1, CUresult,
};
use cuda_mem_core::{Driver, Error, Stream};
use cuda_mem_sim::Sim;

use crate::rig::on_simulator;

fn pool_made_current(driver: Driver) -> MemoryPool {
    let properties = PoolProperties {
        allocation_type: AllocationType::Pinned,
        location: MemoryLocation::Device(0),
        shareable: false,
        max_size: 0,
    };
    let pool = MemoryPool::create(driver, &properties).unwrap();
    pool.make_current(MemoryLocation::Device(0), AllocationType::Pinned).unwrap();
    pool
}

/// The owner's drop left the pool of the other driver value with a handle that was destroyed.
#[test]
fn d1_a_pool_of_another_table_does_not_dangle() {
    on_simulator(|sim, context| {
        let one = context.driver();
        let other = Driver::over(Box::leak(Box::new(sim.new_table().unwrap()))).unwrap();
        assert_eq!(one, other);
        let pool = pool_made_current(one);
        let guest = MemoryPool::current_of_device(other.device(0).unwrap()).unwrap();
        assert_eq!(pool.as_raw(), guest.as_raw());
        drop(pool);
        assert_eq!(sim.log().count("cuMemPoolDestroy"), 0);
        assert_eq!(guest.attributes().unwrap().used_mem_current, 0);
        drop(guest);
        assert_eq!(sim.log().count("cuMemPoolDestroy"), 1);
    });
}

/// Simulators share their functions one after the other.
#[test]
fn d1_an_ended_simulator_is_no_other_ones_driver() {
    let mut drivers = Vec::new();
    for _ in 0..40 {
        let sim = Sim::builder().build();
        let driver = Driver::over(sim.table()).unwrap();
        assert!(!drivers.contains(&driver));
        drivers.push(driver);
    }
}

/// Its owner destroys it when it likes, and nothing here would know.
#[test]
fn d1_another_librarys_pool_is_not_given_out_by_a_safe_call() {
    on_simulator(|sim, context| {
        let (table, device) = (sim.table(), context.device());
        let properties = CUmemPoolProps_v1 {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
            win32SecurityAttributes: ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut raw = ptr::null_mut();
        let create = table.cuMemPoolCreate().unwrap();
        // SAFETY: one handle to write; the properties are read during the call.
        assert_eq!(unsafe { create(&mut raw, &properties) }, CUresult::CUDA_SUCCESS);
        let set = table.cuDeviceSetMemPool().unwrap();
        // SAFETY: a device and a live pool.
        assert_eq!(unsafe { set(device.as_raw(), raw) }, CUresult::CUDA_SUCCESS);
        let found = MemoryPool::current_of_device(device);
        assert!(matches!(found, Err(Error::ForeignPool)), "{found:?}");
        {
            // SAFETY: the pool stays until it is destroyed below.
            let pool = unsafe { MemoryPool::borrow_raw(context.driver(), raw.cast()) };
            assert_eq!(pool.attributes().unwrap().used_mem_current, 0);
        }
        let destroy = table.cuMemPoolDestroy().unwrap();
        // SAFETY: made above, destroyed once, and nobody has it.
        assert_eq!(unsafe { destroy(raw) }, CUresult::CUDA_SUCCESS);
        assert!(MemoryPool::current_of_device(device).is_ok());
    });
}

/// The driver would write as many bytes as a later attribute has.
#[test]
fn d4_an_attribute_of_a_later_driver_is_refused_before_the_call() {
    on_simulator(|sim, context| {
        let pool = MemoryPool::current_of_device(context.device()).unwrap();
        sim.log().clear();
        for number in [0, 9, u32::MAX] {
            let attribute = CUmemPool_attribute(number);
            let results = [
                pool.number(attribute).map(drop),
                pool.flag(attribute).map(drop),
                pool.set_number(attribute, 1),
                pool.set_flag(attribute, true),
            ];
            for result in results {
                assert!(matches!(result, Err(Error::NotAccepted { .. })), "{number}: {result:?}");
            }
        }
        assert_eq!(sim.log().records().len(), 0);
        let stream = Stream::new(context).unwrap();
        drop(stream);
    });
}
