//! Capture of streams into graphs.

use std::collections::BTreeSet;
use std::ffi::c_uint;
use std::ptr;

use cuda_mem_sys::{CUgraph, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus};

use crate::call::Call;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

pub(crate) fn cuStreamBeginCapture(
    call: &Call<'_>,
    stream: CUstream,
    mode: CUstreamCaptureMode,
) -> Outcome<()> {
    let stream = call.stream(stream)?;
    call.driver.runtime.begin_capture(call, &stream, mode)
}

/// Gives a null graph where it fails.
pub(crate) fn cuStreamEndCapture(call: &Call<'_>, stream: CUstream, graph: *mut CUgraph) -> Outcome<()> {
    let stream = call.stream(stream)?;
    if graph.is_null() {
        return Err(INVALID_VALUE);
    }
    let ended = call.driver.runtime.end_capture(call.thread, &stream);
    call.put(graph, ended.map_or(ptr::null_mut(), ptr::without_provenance_mut))?;
    ended.map(drop)
}

pub(crate) fn cuStreamIsCapturing(
    call: &Call<'_>,
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
) -> Outcome<()> {
    let stream = call.stream_to_ask(stream)?;
    let state = call.driver.runtime.lock();
    if !state.captures_beside_legacy(&stream).is_empty() {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    let valid =
        state.capture_of(&stream).and_then(|id| state.captures.get(&id)).map(|capture| capture.is_valid);
    drop(state);
    call.put(status, status_of(valid))
}

fn status_of(capture_is_valid: Option<bool>) -> CUstreamCaptureStatus {
    match capture_is_valid {
        None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        Some(true) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        Some(false) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
    }
}

pub(crate) fn cuStreamGetCaptureInfo(
    call: &Call<'_>,
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    count: *mut usize,
) -> Outcome<()> {
    let stream = call.stream_to_ask(stream)?;
    if status.is_null() {
        return Err(INVALID_VALUE);
    }
    let mut state = call.driver.runtime.lock();
    if !state.captures_beside_legacy(&stream).is_empty() {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    let number = state.capture_of(&stream);
    let capture = number.and_then(|number| state.captures.get_mut(&number));
    call.put(status, status_of(capture.as_ref().map(|capture| capture.is_valid)))?;
    if let (Some(number), Some(capture)) = (number, capture.filter(|capture| capture.is_valid)) {
        call.put_if_wanted(id, number);
        call.put_if_wanted(graph, ptr::without_provenance_mut(capture.graph));
        // The list belongs to the capture: it stays where it is until the stream is given something else.
        let after = capture.after.entry(stream.id).or_default();
        call.put_if_wanted(count, after.len());
        call.put_if_wanted(dependencies, after.as_ptr().cast());
    }
    Ok(())
}

/// Sets, or adds to, what the next node of the stream comes after.
pub(crate) fn cuStreamUpdateCaptureDependencies(
    call: &Call<'_>,
    stream: CUstream,
    dependencies: *mut CUgraphNode,
    count: usize,
    flags: c_uint,
) -> Outcome<()> {
    let stream = call.stream(stream)?;
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let nodes: Vec<usize> =
        call.get_all(dependencies.cast_const(), count)?.iter().map(|node| node.addr()).collect();
    let mut state = call.driver.runtime.lock();
    let id = state.capture_of(&stream).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    let state = &mut *state;
    let capture = state.captures.get_mut(&id).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    if !capture.is_valid {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    if !nodes.iter().all(|&node| state.graphs.get(&capture.graph).is_some_and(|graph| graph.has(node))) {
        return Err(INVALID_VALUE);
    }
    let after = capture.after.entry(stream.id).or_default();
    let replaces = flags == 1;
    let kept: &[usize] = if replaces { &[] } else { after };
    let all: BTreeSet<usize> = kept.iter().chain(&nodes).copied().collect();
    *after = all.into_iter().collect();
    Ok(())
}

/// Takes any value: what is no mode protects as thread-local does.
pub(crate) fn cuThreadExchangeStreamCaptureMode(
    call: &Call<'_>,
    mode: *mut CUstreamCaptureMode,
) -> Outcome<()> {
    let wanted = call.get(mode.cast_const())?;
    let before = std::mem::replace(&mut call.driver.runtime.lock().thread(call.thread).capture_mode, wanted);
    call.put(mode, before)
}
