//! Events.

use std::ffi::{c_char, c_uint};
use std::ptr;

use cuda_mem_sys::{
    CUcontext, CUevent, CUevent_flags, CUevent_record_flags, CUipcEventHandle_v1, CUresult, CUstream,
};

use crate::call::Call;
use crate::memory::wire;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// An event for other processes must not have a time.
pub(crate) fn cuEventCreate(call: &Call<'_>, event: *mut CUevent, flags: c_uint) -> Outcome<()> {
    let context = call.current()?;
    let untimed = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
    let shared = CUevent_flags::CU_EVENT_INTERPROCESS.0;
    let known = untimed | shared | CUevent_flags::CU_EVENT_BLOCKING_SYNC.0;
    if event.is_null() || flags & !known != 0 || (flags & shared != 0 && flags & untimed == 0) {
        return Err(INVALID_VALUE);
    }
    let handle = call.driver.runtime.create_event(call, context, flags)?;
    call.put(event, ptr::without_provenance_mut(handle))
}

pub(crate) fn cuEventDestroy(call: &Call<'_>, event: CUevent) -> Outcome<()> {
    call.driver.runtime.destroy_event(event)
}

pub(crate) fn cuEventRecord(call: &Call<'_>, event: CUevent, stream: CUstream) -> Outcome<()> {
    cuEventRecordWithFlags(call, event, stream, 0)
}

pub(crate) fn cuEventRecordWithFlags(
    call: &Call<'_>,
    event: CUevent,
    stream: CUstream,
    flags: c_uint,
) -> Outcome<()> {
    let stream = call.stream(stream)?;
    let external = CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL.0;
    if flags & !external != 0 {
        return Err(INVALID_VALUE);
    }
    call.driver.runtime.record(&stream, event, flags & external != 0)
}

pub(crate) fn cuEventQuery(call: &Call<'_>, event: CUevent) -> Outcome<()> {
    call.driver.runtime.check_wait_for_event(event)?;
    call.not_capturing()?;
    if call.driver.runtime.event_is_complete(event)? { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
}

pub(crate) fn cuEventSynchronize(call: &Call<'_>, event: CUevent) -> Outcome<()> {
    call.driver.runtime.check_wait_for_event(event)?;
    call.not_capturing()?;
    call.driver.runtime.wait_for_event_on_host(event)?;
    call.memory().after_synchronisation();
    Ok(())
}

pub(crate) fn cuEventElapsedTime(
    call: &Call<'_>,
    milliseconds: *mut f32,
    start: CUevent,
    end: CUevent,
) -> Outcome<()> {
    if milliseconds.is_null() {
        return Err(INVALID_VALUE);
    }
    let elapsed = call.driver.runtime.elapsed(start, end)?;
    call.put(milliseconds, elapsed)
}

pub(crate) fn cuCtxRecordEvent(call: &Call<'_>, context: CUcontext, event: CUevent) -> Outcome<()> {
    let context = call.context(context)?;
    context.check()?;
    call.driver.runtime.record_context(&context, event)
}

pub(crate) fn cuCtxWaitEvent(call: &Call<'_>, context: CUcontext, event: CUevent) -> Outcome<()> {
    let context = call.context(context)?;
    context.check()?;
    call.driver.runtime.context_waits(&context, event)
}

/// Only events that were made for other processes can be exported, and only by who made them.
pub(crate) fn cuIpcGetEventHandle(
    call: &Call<'_>,
    handle: *mut CUipcEventHandle_v1,
    event: CUevent,
) -> Outcome<()> {
    call.current()?;
    let words = call.driver.runtime.export_event(event)?;
    let reserved = wire::to_bytes(words).map(|byte| byte as c_char);
    call.put(handle, CUipcEventHandle_v1 { reserved })
}

pub(crate) fn cuIpcOpenEventHandle(
    call: &Call<'_>,
    event: *mut CUevent,
    handle: CUipcEventHandle_v1,
) -> Outcome<()> {
    let context = call.current()?;
    if event.is_null() {
        return Err(INVALID_VALUE);
    }
    let words = wire::to_words(handle.reserved.map(|byte| byte as u8));
    let opened = call.driver.runtime.open_event(call, context, words)?;
    call.put(event, ptr::without_provenance_mut(opened))
}
