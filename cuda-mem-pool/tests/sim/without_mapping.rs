//! Devices and drivers that do not map memory: those that say so, and those that refuse the calls for it.

use cuda_mem_core::sys::{CUdevice_attribute, CUresult};
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_pool::caching::CachingAllocator;
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::{Error, MemoryResource, MempoolId};
use cuda_mem_sim::Sim;

use crate::blocks::{allocator, free, routed};
use crate::common::gate::Gate;
use crate::rig::on;

const MIB: usize = 1 << 20;
const MAPS: CUdevice_attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;

fn without_mapping(test: impl FnOnce(&Sim, &Context, &Stream)) {
    on(Sim::builder().memory(256 << 20).attribute(MAPS, 0), |sim, context| {
        let stream = Stream::new(context).unwrap();
        test(sim, context, &stream);
    });
}

/// Writes to a block and reads it back.
fn works(allocator: &CachingAllocator, bytes: usize, stream: &Stream, seed: u8) {
    let mut block = allocator.allocate(bytes, stream).unwrap();
    block.as_device_range().fill_bytes(stream, seed).unwrap();
    assert!(block.to_vec(stream).unwrap() == vec![seed; bytes]);
}

/// Writes to both ends of a block and reads them back.
fn has_ends(allocator: &CachingAllocator, bytes: usize, stream: &Stream, seed: u8) {
    const PART: usize = 4096;
    let mut block = allocator.allocate(bytes, stream).unwrap();
    for place in [0..PART, bytes - PART..bytes] {
        let part = block.as_device_range().range(place).unwrap();
        let mut seen = vec![0; PART];
        part.fill_bytes(stream, seed).unwrap();
        part.copy_to_slice(stream, &mut seen).unwrap();
        assert!(seen == vec![seed; PART]);
    }
}

/// Who allocates by other means what goes to no private pool does so there too.
#[test]
fn a_request_that_goes_to_no_private_pool_gets_nothing_of_the_default_one() {
    without_mapping(|_, context, stream| {
        let (allocator, id) = (allocator(context), MempoolId::for_user());
        assert_eq!(allocator.allocate_in_pool(3 * MIB, stream).unwrap(), None);
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        let block = allocator.allocate_in_pool(3 * MIB, stream).unwrap().expect("a block of the pool");
        allocator.end_allocate_to_pool(id).unwrap();
        assert_eq!(allocator.allocate_in_pool(3 * MIB, stream).unwrap(), None);
        free(&allocator, block);
        allocator.release_pool(id).unwrap();
        assert_eq!(allocator.empty_pool_cache(id).unwrap(), 20 * MIB);
    });
}

#[test]
fn the_default_pool_has_segments_of_the_driver_there() {
    without_mapping(|_, context, stream| {
        let allocator = allocator(context);
        for (seed, bytes) in [(1, 1000), (2, 700_000), (3, 3 * MIB), (4, 40 * MIB)] {
            works(&allocator, bytes, stream, seed);
        }
        let blocks = [1000, 3 * MIB].map(|bytes| allocator.allocate_by_address(bytes, stream).unwrap());
        assert_eq!(allocator.base_allocation(blocks[1]).unwrap(), (blocks[1], 20 * MIB));
        // SAFETY: nobody opens it.
        assert_eq!(unsafe { allocator.ipc_handle(blocks[1]) }.unwrap().len(), 3 << 20);
        let snapshot = allocator.snapshot();
        assert!(
            snapshot.segments.iter().all(|one| one.segment_pool_id == MempoolId::NONE && !one.is_expandable)
        );
        assert!(!snapshot.allocator_settings.expandable_segments);
        assert_eq!(allocator.statistics().allocated_bytes.all.current, 1024 + (3 << 20));
        blocks.into_iter().for_each(|block| free(&allocator, block));
        assert_eq!(allocator.reserved_bytes(), 62 * MIB);
        stream.synchronize().unwrap();
        assert_eq!(allocator.empty_cache().unwrap(), 62 * MIB);
        assert_eq!(allocator.reserved_bytes(), 0);
        // It goes on.
        works(&allocator, MIB, stream, 5);
    });
}

#[test]
fn what_is_free_there_serves_other_sizes_streams_and_pools() {
    without_mapping(|_, context, stream| {
        let (allocator, id) = (allocator(context), MempoolId::for_user());
        let other = Stream::new(context).unwrap();
        free(&allocator, allocator.allocate_by_address(200 * MIB, stream).unwrap());
        free(&allocator, allocator.allocate_by_address(180 * MIB, &other).unwrap());
        let private = routed(&allocator, id, 190 * MIB, stream).unwrap();
        let refused = allocator.allocate_by_address(100 * MIB, &other).unwrap_err();
        let Error::DeviceOutOfMemory(report) = &refused else { panic!("{refused}") };
        assert_eq!(
            (report.requested, report.cached.len()),
            (100 * MIB, 0),
            "all that was free went: {refused}"
        );
        free(&allocator, private);
        // A pool that lends in need serves the default pool's requests.
        allocator.set_use_on_oom(id, true).unwrap();
        let lent = allocator.allocate_by_address(100 * MIB, stream).unwrap();
        assert_eq!(lent, private);
        free(&allocator, lent);
        allocator.release_pool(id).unwrap();
        free(&allocator, allocator.allocate_by_address(200 * MIB, &other).unwrap());
        assert_eq!(allocator.statistics().num_ooms, 1);
    });
}

#[test]
fn a_report_there_has_what_is_free_by_stream() {
    without_mapping(|_, context, stream| {
        let allocator = allocator(context);
        let kept = allocator.allocate_by_address(3 * MIB, stream).unwrap();
        let refused = allocator.allocate_by_address(250 * MIB, stream).unwrap_err();
        let Error::DeviceOutOfMemory(report) = &refused else { panic!("{refused}") };
        let cached: Vec<_> = report.cached.iter().map(|one| (one.stream, one.bytes, one.largest)).collect();
        assert_eq!(cached, [(Some(stream.id()), 17 * MIB, 17 * MIB)], "{refused}");
        assert_eq!((report.reserved, report.live), (20 * MIB, 3 * MIB));
        free(&allocator, kept);
    });
}

#[test]
fn a_block_that_another_stream_uses_waits_for_it_there() {
    without_mapping(|_, context, stream| {
        let (allocator, other) = (allocator(context), Stream::new(context).unwrap());
        let gate = Gate::before(&other);
        let block = allocator.allocate_by_address(3 * MIB, stream).unwrap();
        allocator.record_stream(block, &other).unwrap();
        free(&allocator, block);
        let next = allocator.allocate_by_address(3 * MIB, stream).unwrap();
        assert_ne!(next, block, "it is in use yet");
        gate.open();
        other.synchronize().unwrap();
        free(&allocator, next);
        let again = allocator.allocate_by_address(100 * MIB, stream).unwrap();
        assert_eq!(allocator.statistics().active.all.current, 1, "growing has looked");
        free(&allocator, again);
    });
}

/// As in WSL2, where `cuMemSetAccess` answers 999, and with a virtual GPU, where the granularity is refused: the device says that it maps.
#[test]
fn a_driver_that_refuses_to_map_serves_too() {
    const CALLS: [&str; 6] = [
        "cuMemGetAllocationGranularity",
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
    ];
    let codes = [
        CUresult::CUDA_ERROR_UNKNOWN,
        CUresult::CUDA_ERROR_NOT_SUPPORTED,
        CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        CUresult::CUDA_ERROR_INVALID_VALUE,
    ];
    for call in CALLS {
        for code in codes {
            for always in [false, true] {
                refused(call, code, always);
            }
        }
    }
}

/// Nothing panics, what is refused is named and is not held, and what was refused once works the next time.
fn refused(call: &str, code: CUresult, always: bool) {
    let case = format!("{call} {} {}", code.0, if always { "always" } else { "once" });
    let sim = Sim::builder().memory(1 << 30).build();
    {
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let stream = Stream::new(&context).unwrap();
        let free_before = context.memory_info().unwrap().free;
        for _ in 0..if always { 2000 } else { 1 } {
            sim.fail_call(call, 1, code);
        }
        let allocator = allocator(&context);
        for bytes in [1000, 700_000, 3 * MIB, 40 * MIB] {
            match allocator.allocate(bytes, &stream) {
                Ok(block) => block.range(..1000).unwrap().fill_bytes(&stream, 1).unwrap(),
                // A full device, as far as the driver says.
                Err(error) if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    let names = error.to_string().contains(call);
                    assert!(names || error.is_out_of_memory(), "{case}: {error}");
                }
                Err(error) => panic!("{case}: {error}"),
            }
        }
        sim.clear_faults();
        stream.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.statistics().allocated_bytes.all.current, 0, "{case}");
        let missing = free_before - context.memory_info().unwrap().free;
        // A page that cannot be unmapped is there until the process ends.
        assert!(missing == 0 || call == "cuMemUnmap", "{case}: {missing} bytes are held");
        (1..=4).for_each(|seed| has_ends(&allocator, 9 << 20, &stream, seed));
    }
    assert_eq!(sim.misuse().len(), 0, "{case}: {:?}", sim.misuse());
    if call != "cuMemUnmap" {
        assert_eq!(sim.leaks().len(), 0, "{case}: {:?}", sim.leaks());
    }
}
