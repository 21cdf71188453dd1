//! Pinned memory that the driver allocates.

use std::time::Duration;

use cuda_mem_core::host::{HostMemory, PinnedFlags};
use cuda_mem_core::sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED, CUresult,
};
use cuda_mem_core::{DeviceBuffer, PinnedBuffer, copy};

use crate::common::gate::Gate;
use crate::common::outcome::record;
use crate::common::{World, pattern};

#[test]
fn it_is_zero_and_can_be_written() {
    let world = World::new();
    let mut pinned = PinnedBuffer::<u32>::zeroed(&world.context, 5000, PinnedFlags::default()).unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [0; 5000]);
    pinned.as_mut_slice().unwrap()[4999] = 7;
    assert_eq!(
        DeviceBuffer::from_slice(&world.stream, pinned.as_slice().unwrap())
            .unwrap()
            .to_vec(&world.stream)
            .unwrap()[4999],
        7
    );
    pinned.close().unwrap();
}

#[test]
fn the_driver_gets_the_flags() {
    let world = World::new();
    let get = world.driver.table().cuMemHostGetFlags().unwrap();
    for flags in [
        PinnedFlags::empty(),
        PinnedFlags::PORTABLE,
        PinnedFlags::MAPPED,
        PinnedFlags::WRITE_COMBINED,
        PinnedFlags::all(),
    ] {
        let pinned = PinnedBuffer::<u8>::zeroed(&world.context, 100, flags).unwrap();
        let mut there = 0;
        // SAFETY: one number to write; memory that lives.
        let query = || unsafe { get(&mut there, pinned.as_ptr().cast_mut().cast()) };
        assert_eq!(world.context.with_current(query).unwrap(), CUresult::CUDA_SUCCESS);
        record!(&format!("{flags:?}"), &(there as usize));
        // With unified addressing everything is mapped, and drivers say so.
        let asked = flags.bits() & (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_WRITECOMBINED);
        assert_eq!(there & !CU_MEMHOSTALLOC_DEVICEMAP, asked);
        let stream = world.new_stream();
        let address = pinned.on(&stream).unwrap().address();
        assert_ne!(address, 0);
    }
}

#[test]
fn of_no_bytes() {
    let world = World::new();
    let empty = PinnedBuffer::<u64>::zeroed(&world.context, 0, PinnedFlags::default()).unwrap();
    assert!(empty.is_empty());
    assert_eq!(empty.as_slice().unwrap(), []);
    assert_eq!(empty.on(&world.stream).unwrap().address(), 0);
    empty.close().unwrap();
}

#[test]
fn a_slice_is_given_when_the_device_has_written() {
    let world = World::new();
    let stream = world.new_stream();
    let device = DeviceBuffer::from_slice(&stream, &pattern(5000, 1)).unwrap();
    let mut pinned = PinnedBuffer::<u8>::zeroed(&world.context, 5000, PinnedFlags::default()).unwrap();
    for _ in 0..2 {
        let gate = Gate::before(&stream);
        {
            let (from, to) = (device.on_read(&stream).unwrap(), pinned.on(&stream).unwrap());
            // SAFETY: both know that this stream uses them.
            unsafe { copy::memcpy_async(&stream, to.address(), from.address(), 5000) }.unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                gate.open();
            });
            assert_eq!(pinned.as_mut_slice().unwrap(), pattern(5000, 1));
        });
        pinned.as_mut_slice().unwrap().fill(0);
    }
}

#[test]
fn dropped_in_use_it_waits() {
    let world = World::new();
    let stream = world.new_stream();
    let device = DeviceBuffer::<u8>::zeroed(&stream, 5000).unwrap();
    let pinned = PinnedBuffer::<u8>::zeroed(&world.context, 5000, PinnedFlags::default()).unwrap();
    let gate = Gate::before(&stream);
    {
        let (from, to) = (device.on_read(&stream).unwrap(), pinned.on(&stream).unwrap());
        // SAFETY: both know that this stream uses them.
        unsafe { copy::memcpy_async(&stream, to.address(), from.address(), 5000) }.unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(10));
            gate.open();
        });
        drop(pinned);
        assert!(stream.is_idle().unwrap());
    });
}
