//! Streams.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;

use cuda_mem_sys::{CUcontext, CUdevice, CUevent, CUevent_wait_flags, CUresult, CUstream, CUstream_flags};

use crate::call::Call;
use crate::runtime::op::Outcome;
use crate::runtime::stream::{Kind, Stream};

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The handles of default streams: null, the legacy and the per-thread one.
const DEFAULT_STREAMS: [usize; 3] = [0, 1, 2];

/// The highest priority; the lowest is 0.
pub(super) const GREATEST_PRIORITY: i32 = -5;

pub(crate) fn cuStreamCreate(call: &Call<'_>, stream: *mut CUstream, flags: c_uint) -> Outcome<()> {
    cuStreamCreateWithPriority(call, stream, flags, 0)
}

/// A priority outside the range is taken as the nearest one inside.
pub(crate) fn cuStreamCreateWithPriority(
    call: &Call<'_>,
    stream: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> Outcome<()> {
    let context = call.current()?;
    let non_blocking = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
    if stream.is_null() || flags & !non_blocking != 0 {
        return Err(INVALID_VALUE);
    }
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    let (non_blocking, made) = (flags & non_blocking != 0, Some(call.site()));
    let new = call.driver.runtime.lock().make_stream(context, Kind::Created, non_blocking, priority, made);
    call.put(stream, ptr::without_provenance_mut(new.handle))
}

/// Streams that wait and are destroyed at once. The next one holds up its caller and, as a free does, others: measured, see
/// docs/measurements.md.
const MOST_THAT_END: usize = 56;

/// Returns at once, unless many streams end already; what the stream was given is still done.
pub(crate) fn cuStreamDestroy(call: &Call<'_>, stream: CUstream) -> Outcome<()> {
    let runtime = &call.driver.runtime;
    if DEFAULT_STREAMS.contains(&stream.addr()) {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let stream = runtime.stream(call.thread, call.per_thread, stream)?;
    let mut state = runtime.lock();
    state.invalidate(&stream);
    state.remove_stream(&stream);
    let ending = state.streams_that_end();
    drop(state);
    if ending > MOST_THAT_END {
        let _held = call.driver.freeing.begin();
        runtime.wait_for_the_end_of(&stream)?;
    }
    // A lost context says so, but has let go of the stream.
    stream.context.check()
}

pub(crate) fn cuStreamSynchronize(call: &Call<'_>, stream: CUstream) -> Outcome<()> {
    let stream = call.stream(stream)?;
    call.not_capturing_or(&stream)?;
    call.wait(&stream)
}

pub(crate) fn cuStreamQuery(call: &Call<'_>, stream: CUstream) -> Outcome<()> {
    let stream = call.stream(stream)?;
    call.not_capturing_or(&stream)?;
    if call.driver.runtime.is_idle(&stream)? { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
}

pub(crate) fn cuStreamGetCtx(call: &Call<'_>, stream: CUstream, context: *mut CUcontext) -> Outcome<()> {
    let stream = call.stream(stream)?;
    call.put(context, ptr::without_provenance_mut(stream.context.handle()))
}

pub(crate) fn cuStreamGetDevice(call: &Call<'_>, stream: CUstream, device: *mut CUdevice) -> Outcome<()> {
    let stream = not_in_capture(call, stream)?;
    call.put(device, stream.context.device as CUdevice)
}

pub(crate) fn cuStreamGetFlags(call: &Call<'_>, stream: CUstream, flags: *mut c_uint) -> Outcome<()> {
    let stream = not_in_capture(call, stream)?;
    call.put(flags, c_uint::from(stream.non_blocking))
}

pub(crate) fn cuStreamGetId(call: &Call<'_>, stream: CUstream, id: *mut u64) -> Outcome<()> {
    let stream = not_in_capture(call, stream)?;
    call.put(id, stream.id)
}

/// The stream of a handle, for calls that end the capture of a stream that they only ask about.
fn not_in_capture(call: &Call<'_>, stream: CUstream) -> Outcome<Arc<Stream>> {
    let stream = call.stream(stream)?;
    call.driver.runtime.lock().refuse_if_capturing(&stream)?;
    Ok(stream)
}

pub(crate) fn cuStreamGetPriority(call: &Call<'_>, stream: CUstream, priority: *mut c_int) -> Outcome<()> {
    let stream = call.stream(stream)?;
    call.put(priority, stream.priority)
}

pub(crate) fn cuStreamWaitEvent(
    call: &Call<'_>,
    stream: CUstream,
    event: CUevent,
    flags: c_uint,
) -> Outcome<()> {
    let stream: Arc<Stream> = call.stream(stream)?;
    let external = CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL.0;
    if flags & !external != 0 {
        return Err(INVALID_VALUE);
    }
    call.driver.runtime.wait_for_event(&stream, event, flags & external != 0)
}
