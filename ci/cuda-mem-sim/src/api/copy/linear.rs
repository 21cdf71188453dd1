//! Copies of one row of bytes.

use std::ffi::c_void;

use cuda_mem_sys::{CUcontext, CUdeviceptr, CUstream};

use super::transfer::{End, Mode, Side, Transfer};
use crate::call::Call;
use crate::runtime::op::Outcome;

/// The address behind a host pointer.
fn address(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

fn copy(call: &Call<'_>, to: End, from: End, len: usize, mode: Mode) -> Outcome<()> {
    Transfer::line(to, from, len).submit(call, mode)
}

pub(crate) fn cuMemcpy(call: &Call<'_>, dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> Outcome<()> {
    copy(call, End::line(dst, Side::Any), End::line(src, Side::Any), bytes, Mode::Synchronous)
}

pub(crate) fn cuMemcpyAsync(
    call: &Call<'_>,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Outcome<()> {
    copy(call, End::line(dst, Side::Any), End::line(src, Side::Any), bytes, Mode::Asynchronous(stream))
}

pub(crate) fn cuMemcpyHtoD(
    call: &Call<'_>,
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
) -> Outcome<()> {
    copy(call, End::line(dst, Side::Device), End::line(address(src), Side::Any), bytes, Mode::Synchronous)
}

pub(crate) fn cuMemcpyHtoDAsync(
    call: &Call<'_>,
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> Outcome<()> {
    let (to, from) = (End::line(dst, Side::Device), End::line(address(src), Side::Any));
    copy(call, to, from, bytes, Mode::Asynchronous(stream))
}

pub(crate) fn cuMemcpyDtoH(call: &Call<'_>, dst: *mut c_void, src: CUdeviceptr, bytes: usize) -> Outcome<()> {
    copy(call, End::line(address(dst), Side::Any), End::line(src, Side::Device), bytes, Mode::Synchronous)
}

pub(crate) fn cuMemcpyDtoHAsync(
    call: &Call<'_>,
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Outcome<()> {
    let (to, from) = (End::line(address(dst), Side::Any), End::line(src, Side::Device));
    copy(call, to, from, bytes, Mode::Asynchronous(stream))
}

pub(crate) fn cuMemcpyDtoD(call: &Call<'_>, dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> Outcome<()> {
    copy(call, End::line(dst, Side::Device), End::line(src, Side::Device), bytes, Mode::Synchronous)
}

pub(crate) fn cuMemcpyDtoDAsync(
    call: &Call<'_>,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Outcome<()> {
    copy(call, End::line(dst, Side::Device), End::line(src, Side::Device), bytes, Mode::Asynchronous(stream))
}

/// Peer copies need no peer access: without it the driver takes a detour.
pub(crate) fn cuMemcpyPeer(
    call: &Call<'_>,
    dst: CUdeviceptr,
    dst_context: CUcontext,
    src: CUdeviceptr,
    src_context: CUcontext,
    bytes: usize,
) -> Outcome<()> {
    call.driver.runtime.context(dst_context.addr())?;
    call.driver.runtime.context(src_context.addr())?;
    copy(call, End::line(dst, Side::Peer), End::line(src, Side::Peer), bytes, Mode::Synchronous)
}

pub(crate) fn cuMemcpyPeerAsync(
    call: &Call<'_>,
    dst: CUdeviceptr,
    dst_context: CUcontext,
    src: CUdeviceptr,
    src_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> Outcome<()> {
    call.driver.runtime.context(dst_context.addr())?;
    call.driver.runtime.context(src_context.addr())?;
    copy(call, End::line(dst, Side::Peer), End::line(src, Side::Peer), bytes, Mode::Asynchronous(stream))
}
