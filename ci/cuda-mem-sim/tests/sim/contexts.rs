//! The life of contexts and what dies with them, and faults that a context does not survive.

use std::ptr;

use cuda_mem_sys::*;

use crate::common::{Machine, code, ok};

#[test]
fn a_primary_context_lives_until_its_last_release_and_can_live_again() {
    let machine = Machine::new();
    let (table, old) = (machine.table, machine.context);
    let (stream, event) = (machine.stream(1), machine.event(0));
    let mut again = ptr::null_mut();
    ok!(table, cuDevicePrimaryCtxRetain(&mut again, 0));
    assert_eq!(again, old);
    let id = || {
        let mut id = 0;
        (code!(table, cuCtxGetId(old, &mut id)), id)
    };
    let first = id();
    ok!(table, cuDevicePrimaryCtxRelease(0));
    ok!(table, cuStreamQuery(stream));
    ok!(table, cuDevicePrimaryCtxRelease(0));

    // It is still on the stack, and of no use.
    let mut current = ptr::null_mut();
    ok!(table, cuCtxGetCurrent(&mut current));
    assert_eq!(current, old);
    assert_eq!(id().0, 709);
    for code in [
        code!(table, cuCtxSynchronize()),
        code!(table, cuMemAlloc(&mut 0, 16)),
        code!(table, cuStreamQuery(stream)),
        code!(table, cuStreamDestroy(stream)),
        code!(table, cuEventQuery(event)),
        code!(table, cuEventDestroy(event)),
        code!(table, cuStreamQuery(ptr::null_mut())),
    ] {
        assert_eq!(code, 709);
    }
    ok!(table, cuCtxGetDevice(&mut 9));
    assert_eq!(code!(table, cuDevicePrimaryCtxRelease(0)), 201);

    ok!(table, cuDevicePrimaryCtxRetain(&mut again, 0));
    assert_eq!(again, old);
    machine.memory(16);
    assert_ne!(id(), first);
}

#[test]
fn a_reset_ends_the_context_but_not_its_references() {
    let machine = Machine::new();
    let (mut flags, mut active) = (9, 9);
    ok!(machine.table, cuDevicePrimaryCtxReset(0));
    ok!(machine.table, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    assert_eq!((flags, active), (0, 0));
    assert_eq!(code!(machine.table, cuCtxSynchronize()), 709);
    ok!(machine.table, cuDevicePrimaryCtxReset(0));
    ok!(machine.table, cuDevicePrimaryCtxRelease(0));
    assert_eq!(code!(machine.table, cuDevicePrimaryCtxRelease(0)), 201);
}

#[test]
fn the_stack_of_contexts_belongs_to_the_thread() {
    let machine = Machine::new();
    let (table, primary) = (machine.table, machine.context);
    let mut second = ptr::null_mut();
    ok!(table, cuCtxCreate(&mut second, 0, 0));
    let current = || {
        let mut current = ptr::null_mut();
        ok!(table, cuCtxGetCurrent(&mut current));
        current
    };
    assert_eq!(current(), second);
    let there = std::thread::spawn(move || {
        let mut current = ptr::null_mut();
        ok!(table, cuCtxGetCurrent(&mut current));
        (
            current.is_null(),
            code!(table, cuCtxPopCurrent(ptr::null_mut())),
            code!(table, cuMemAlloc(&mut 0, 1)),
        )
    });
    assert_eq!(there.join().unwrap(), (true, 201, 201));
    ok!(table, cuCtxDestroy(second));
    assert_eq!(current(), primary);
    assert_eq!(code!(table, cuCtxDestroy(primary)), 201);
    ok!(table, cuCtxPushCurrent(primary));
    ok!(table, cuCtxSetCurrent(ptr::null_mut()));
    assert_eq!(current(), primary);
    assert_eq!(code!(table, cuCtxPushCurrent(ptr::null_mut())), 1);
}

#[test]
fn a_destroyed_context_takes_its_streams_and_events_with_it() {
    let machine = Machine::new();
    let mut second = ptr::null_mut();
    ok!(machine.table, cuCtxCreate(&mut second, 0, 0));
    let (stream, event) = (machine.stream(1), machine.event(0));
    let primary_event = {
        ok!(machine.table, cuCtxPushCurrent(machine.context));
        let event = machine.event(0);
        ok!(machine.table, cuCtxPopCurrent(ptr::null_mut()));
        event
    };
    assert_eq!(code!(machine.table, cuEventRecord(primary_event, stream)), 400);
    ok!(machine.table, cuCtxDestroy(second));
    assert_eq!(code!(machine.table, cuStreamQuery(stream)), 709);
    assert_eq!(code!(machine.table, cuEventQuery(event)), 709);
    assert_eq!(code!(machine.table, cuCtxSetCurrent(second)), 0);
    assert_eq!(code!(machine.table, cuCtxSynchronize()), 709);
}

#[test]
fn an_illegal_access_loses_the_device() {
    let machine = Machine::new();
    let (stream, event) = (machine.stream(1), machine.event(0));
    ok!(machine.table, cuEventRecord(event, stream));
    let write = machine.kernel(c"write_checked");
    assert_eq!(machine.launch(write, stream, &[0x10_0000]), 0);
    assert_eq!(code!(machine.table, cuStreamSynchronize(stream)), 700);
    for code in [
        code!(machine.table, cuEventQuery(event)),
        code!(machine.table, cuMemAlloc(&mut 0, 16)),
        code!(machine.table, cuCtxSynchronize()),
        code!(machine.table, cuStreamCreate(&mut ptr::null_mut(), 0)),
        code!(machine.table, cuEventDestroy(event)),
    ] {
        assert_eq!(code, 700);
    }
    ok!(machine.table, cuCtxGetDevice(&mut 0));
    ok!(machine.table, cuCtxGetCurrent(&mut ptr::null_mut()));
    let mut second = ptr::null_mut();
    assert_eq!(code!(machine.table, cuCtxCreate(&mut second, 0, 0)), 700);
    ok!(machine.table, cuDevicePrimaryCtxReset(0));
    assert_eq!(code!(machine.table, cuDevicePrimaryCtxRetain(&mut second, 0)), 700);
}

#[test]
fn a_misaligned_access_is_716() {
    let machine = Machine::new();
    let write = machine.kernel(c"write_checked");
    let at = machine.memory(16);
    assert_eq!(machine.launch(write, ptr::null_mut(), &[at + 1]), 0);
    assert_eq!(code!(machine.table, cuCtxSynchronize()), 716);
}

#[test]
fn kernels_do_what_their_text_says() {
    let machine = Machine::new();
    let (at, to) = (machine.memory(4096), machine.memory(4096));
    let (fill, add, copy) =
        (machine.kernel(c"fill_u32"), machine.kernel(c"add_one_u32"), machine.kernel(c"copy_u8"));
    assert_eq!(machine.launch(fill, ptr::null_mut(), &[at, 1024, 41]), 0);
    assert_eq!(machine.launch(add, ptr::null_mut(), &[at, 1023]), 0);
    assert_eq!(machine.launch(copy, ptr::null_mut(), &[to, at, 4096]), 0);
    assert_eq!((machine.word(to), machine.word(to + 4088), machine.word(to + 4092)), (42, 42, 41));
    let mut module = ptr::null_mut();
    ok!(machine.table, cuModuleLoadData(&mut module, cuda_mem_sim::TEST_KERNELS.as_ptr().cast()));
    let mut function = ptr::null_mut();
    assert_eq!(code!(machine.table, cuModuleGetFunction(&mut function, module, c"nothing".as_ptr())), 500);
    let mut pointers = [ptr::null_mut()];
    let launched = code!(
        machine.table,
        cuLaunchKernel(fill, 1, 1, 1, 2048, 1, 1, 0, ptr::null_mut(), pointers.as_mut_ptr(), ptr::null_mut())
    );
    assert_eq!(launched, 1);
}

#[test]
fn devices_tell_what_they_are() {
    let machine = Machine::of(cuda_mem_sim::Sim::builder().devices(2).memory(1 << 30));
    let (mut count, mut bytes, mut value) = (0, 0, 0);
    ok!(machine.table, cuDeviceGetCount(&mut count));
    ok!(machine.table, cuDeviceTotalMem(&mut bytes, 1));
    assert_eq!((count, bytes), (2, 1 << 30));
    assert_eq!(code!(machine.table, cuDeviceGet(&mut value, 2)), 101);
    assert_eq!(code!(machine.table, cuDeviceGet(&mut value, -1)), 101);
    assert_eq!(code!(machine.table, cuDeviceGetAttribute(&mut value, CUdevice_attribute(9999), 0)), 1);
    assert_eq!(code!(machine.table, cuDeviceGetAttribute(&mut value, CUdevice_attribute(75), 99)), 101);
    let mut id = [0; 32];
    ok!(machine.table, cuDeviceGetPCIBusId(id.as_mut_ptr(), 32, 1));
    ok!(machine.table, cuDeviceGetByPCIBusId(&mut value, id.as_ptr()));
    assert_eq!(value, 1);
    assert_eq!(code!(machine.table, cuDeviceGetPCIBusId(id.as_mut_ptr(), 5, 1)), 1);
    ok!(machine.table, cuDeviceCanAccessPeer(&mut value, 0, 1));
    assert_eq!(value, 1);
    let mut other = ptr::null_mut();
    ok!(machine.table, cuDevicePrimaryCtxRetain(&mut other, 1));
    ok!(machine.table, cuCtxEnablePeerAccess(other, 0));
    assert_eq!(code!(machine.table, cuCtxEnablePeerAccess(other, 0)), 704);
    ok!(machine.table, cuCtxDisablePeerAccess(other));
    assert_eq!(code!(machine.table, cuCtxDisablePeerAccess(other)), 705);
}
