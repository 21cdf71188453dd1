//! Contexts, primary ones and others.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::Ordering;

use cuda_mem_sys::{CUcontext, CUdevice, CUlimit, CUresult};

use super::stream::GREATEST_PRIORITY;
use crate::call::Call;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const INVALID_CONTEXT: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;

/// The flags that a context can have, of which the scheduling ones exclude each other.
const FLAGS: c_uint = 0xFF;
const SCHEDULES: [c_uint; 4] = [0, 1, 2, 4];
const SCHEDULE_MASK: c_uint = 0x7;

/// Host memory can be mapped in every context, and its flags say so.
const MAP_HOST: c_uint = 0x8;

fn check_flags(flags: c_uint) -> Outcome<()> {
    let known = flags & !FLAGS == 0 && SCHEDULES.contains(&(flags & SCHEDULE_MASK));
    if known { Ok(()) } else { Err(INVALID_VALUE) }
}

fn handle(handle: usize) -> CUcontext {
    ptr::without_provenance_mut(handle)
}

pub(crate) fn cuDevicePrimaryCtxRetain(
    call: &Call<'_>,
    context: *mut CUcontext,
    device: CUdevice,
) -> Outcome<()> {
    if context.is_null() {
        return Err(INVALID_VALUE);
    }
    let device = call.device(device)?;
    let retained = call.driver.runtime.retain_primary(device, call.site())?;
    call.put(context, handle(retained))
}

pub(crate) fn cuDevicePrimaryCtxRelease(call: &Call<'_>, device: CUdevice) -> Outcome<()> {
    let device = call.device(device)?;
    call.driver.runtime.release_primary(call, device)
}

pub(crate) fn cuDevicePrimaryCtxReset(call: &Call<'_>, device: CUdevice) -> Outcome<()> {
    let device = call.device(device)?;
    call.driver.runtime.reset_primary(call, device)
}

pub(crate) fn cuDevicePrimaryCtxSetFlags(call: &Call<'_>, device: CUdevice, flags: c_uint) -> Outcome<()> {
    let device = call.device(device)?;
    check_flags(flags)?;
    let mut state = call.driver.runtime.lock();
    if let Some(home) = state.active_primary(device) {
        home.context.flags.store(flags, Ordering::Relaxed);
    }
    if let Some(primary) = state.primaries.get_mut(device) {
        primary.flags = flags;
    }
    Ok(())
}

pub(crate) fn cuDevicePrimaryCtxGetState(
    call: &Call<'_>,
    device: CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Outcome<()> {
    let device = call.device(device)?;
    let state = call.driver.runtime.lock();
    let known = state.primaries.get(device).map_or(0, |primary| primary.flags);
    let is_active = state.active_primary(device).is_some();
    drop(state);
    if flags.is_null() || active.is_null() {
        return Err(INVALID_VALUE);
    }
    call.put(flags, known)?;
    call.put(active, c_int::from(is_active))
}

pub(crate) fn cuCtxCreate(
    call: &Call<'_>,
    context: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> Outcome<()> {
    if context.is_null() {
        return Err(INVALID_VALUE);
    }
    let device = call.device(device)?;
    check_flags(flags)?;
    let created = call.driver.runtime.create_context(call, device, flags)?;
    call.put(context, handle(created))
}

pub(crate) fn cuCtxDestroy(call: &Call<'_>, context: CUcontext) -> Outcome<()> {
    call.driver.runtime.destroy_context(call, context.addr())
}

/// Pushes anything: to use what is no context, or one no longer, is what fails.
pub(crate) fn cuCtxPushCurrent(call: &Call<'_>, context: CUcontext) -> Outcome<()> {
    if context.is_null() {
        return Err(INVALID_VALUE);
    }
    call.driver.runtime.lock().thread(call.thread).stack.push(context.addr());
    Ok(())
}

pub(crate) fn cuCtxPopCurrent(call: &Call<'_>, context: *mut CUcontext) -> Outcome<()> {
    let popped = call.driver.runtime.lock().thread(call.thread).stack.pop().ok_or(INVALID_CONTEXT)?;
    call.put_if_wanted(context, handle(popped));
    Ok(())
}

/// Replaces the context on top of the stack, by anything; null takes it off.
pub(crate) fn cuCtxSetCurrent(call: &Call<'_>, context: CUcontext) -> Outcome<()> {
    let mut state = call.driver.runtime.lock();
    let context = context.addr();
    let stack = &mut state.thread(call.thread).stack;
    stack.pop();
    stack.extend((context != 0).then_some(context));
    Ok(())
}

pub(crate) fn cuCtxGetCurrent(call: &Call<'_>, context: *mut CUcontext) -> Outcome<()> {
    let current = call.driver.runtime.lock().thread(call.thread).stack.last().copied().unwrap_or(0);
    call.put(context, handle(current))
}

/// Tells the device also of a context with a sticky error, and of one that has ended.
pub(crate) fn cuCtxGetDevice(call: &Call<'_>, device: *mut CUdevice) -> Outcome<()> {
    let ordinal = call.driver.runtime.lock().current_device(call.thread)?;
    call.put(device, ordinal as CUdevice)
}

pub(crate) fn cuCtxGetFlags(call: &Call<'_>, flags: *mut c_uint) -> Outcome<()> {
    let context = call.driver.runtime.current(call.thread)?;
    call.put(flags, context.flags.load(Ordering::Relaxed) | MAP_HOST)
}

pub(crate) fn cuCtxGetId(call: &Call<'_>, context: CUcontext, id: *mut u64) -> Outcome<()> {
    let context =
        if context.is_null() { call.driver.runtime.current(call.thread)? } else { call.context(context)? };
    call.put(id, context.id)
}

pub(crate) fn cuCtxSynchronize(call: &Call<'_>) -> Outcome<()> {
    let context = call.current()?;
    call.driver.runtime.lock().refuse_capture_in(&context)?;
    call.wait_for_context(&context)
}

pub(crate) fn cuCtxGetStreamPriorityRange(
    call: &Call<'_>,
    least: *mut c_int,
    greatest: *mut c_int,
) -> Outcome<()> {
    call.current()?;
    call.put_if_wanted(least, 0);
    call.put_if_wanted(greatest, GREATEST_PRIORITY);
    Ok(())
}

/// What a limit is unless set, and whether it can be.
fn limit(limit: CUlimit) -> Outcome<(usize, bool)> {
    match limit {
        CUlimit::CU_LIMIT_STACK_SIZE => Ok((1024, true)),
        CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE => Ok((8_650_752, true)),
        CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE => Ok((8_388_608, true)),
        CUlimit::CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT => Ok((2048, true)),
        CUlimit::CU_LIMIT_MAX_L2_FETCH_GRANULARITY => Ok((64, true)),
        CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE => Ok((11_796_480, true)),
        CUlimit::CU_LIMIT_SHMEM_SIZE => Ok((232_448, false)),
        CUlimit::CU_LIMIT_CIG_ENABLED => Ok((0, false)),
        // Devices with compute capability 9.0 do not have these two.
        CUlimit::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH | CUlimit::CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED => {
            Err(CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT)
        }
        _ => Err(INVALID_VALUE),
    }
}

pub(crate) fn cuCtxGetLimit(call: &Call<'_>, value: *mut usize, wanted: CUlimit) -> Outcome<()> {
    let context = call.current()?;
    let (default, _) = limit(wanted)?;
    let state = call.driver.runtime.lock();
    let set = state.contexts.get(&context.handle()).and_then(|home| home.limits.get(&wanted.0)).copied();
    call.put(value, set.unwrap_or(default))
}

pub(crate) fn cuCtxSetLimit(call: &Call<'_>, wanted: CUlimit, value: usize) -> Outcome<()> {
    let context = call.current()?;
    let (_, can_be_set) = limit(wanted)?;
    if !can_be_set {
        return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
    }
    if let Some(home) = call.driver.runtime.lock().contexts.get_mut(&context.handle()) {
        home.limits.insert(wanted.0, value);
    }
    Ok(())
}

pub(crate) fn cuCtxEnablePeerAccess(call: &Call<'_>, peer: CUcontext, flags: c_uint) -> Outcome<()> {
    let context = call.current()?;
    let peer = call.context(peer)?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    if peer.device == context.device {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    if !call.driver.config.peers.reach(context.device, peer.device) {
        return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    let mut state = call.driver.runtime.lock();
    let home = state.contexts.get_mut(&context.handle()).ok_or(INVALID_CONTEXT)?;
    if !home.peers.insert(peer.device) {
        return Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    }
    drop(state);
    call.memory().lock().set_peer_access(context.device, peer.device, true);
    Ok(())
}

pub(crate) fn cuCtxDisablePeerAccess(call: &Call<'_>, peer: CUcontext) -> Outcome<()> {
    let context = call.current()?;
    let peer = call.context(peer)?;
    let mut state = call.driver.runtime.lock();
    let home = state.contexts.get_mut(&context.handle()).ok_or(INVALID_CONTEXT)?;
    if !home.peers.remove(&peer.device) {
        return Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    }
    drop(state);
    call.memory().lock().set_peer_access(context.device, peer.device, false);
    Ok(())
}
