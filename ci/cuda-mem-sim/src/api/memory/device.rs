//! Device memory.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_mem_sys::{CUdeviceptr, CUmemRangeHandleType, CUresult};

use crate::call::Call;
use crate::memory::blocks::{Access, Block, Kind};
use crate::memory::misuse::Act;
use crate::memory::vmm::Location;
use crate::runtime::context::Context;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Rows of pitched allocations begin at multiples of this.
const PITCH: usize = 512;

/// A block that is made in a context by a call.
pub(super) fn block_in(
    call: &Call<'_>,
    context: &Context,
    kind: Kind,
    start: u64,
    bytes: usize,
    access: Access,
) -> Block {
    let block = Block::new(kind, start, bytes as u64, access, Act::by_host(call));
    Block { device: context.device, context: context.handle(), ..block }
}

pub(crate) fn cuMemAlloc(call: &Call<'_>, dptr: *mut CUdeviceptr, bytes: usize) -> Outcome<()> {
    let context = call.current()?;
    call.not_capturing()?;
    if dptr.is_null() || bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let block = block_in(call, &context, Kind::Device, 0, bytes, Access::only(context.device));
    let start = call.memory().lock().allocate(block)?;
    call.put(dptr, start)
}

pub(crate) fn cuMemAllocPitch(
    call: &Call<'_>,
    dptr: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> Outcome<()> {
    let row = width.checked_next_multiple_of(PITCH).ok_or(INVALID_VALUE)?;
    let bytes = row.checked_mul(height).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    if pitch.is_null() || !matches!(element, 4 | 8 | 16) {
        call.current()?;
        return Err(INVALID_VALUE);
    }
    cuMemAlloc(call, dptr, bytes)?;
    call.put(pitch, row)
}

/// The current context if there is one. Frees do without; a context that ended or failed refuses them all the same.
pub(super) fn context_if_any(call: &Call<'_>) -> Outcome<Option<Arc<Context>>> {
    match call.current() {
        Ok(context) => Ok(Some(context)),
        Err(CUresult::CUDA_ERROR_INVALID_CONTEXT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits for the work of the context that a block was made in, as the driver does before it frees one. That wait is not
/// promised, so a program that relies on it is reported. Others are held up meanwhile.
pub(super) fn wait_for_users(call: &Call<'_>, at: u64, current: Option<Arc<Context>>) -> Outcome<()> {
    let home = call.memory().lock().known(at).map(|block| (block.context, block.kind));
    let Some((home, kind)) = home else { return Ok(()) };
    let context = if home == 0 { current } else { call.driver.runtime.context(home).ok() };
    // A block of a pool is given back at once on hardware.
    let _held = (!matches!(kind, Kind::Pooled(_))).then(|| call.driver.freeing.begin());
    context.map_or(Ok(()), |context| call.wait_for_context(&context))
}

/// Frees at once, after waiting.
pub(crate) fn cuMemFree(call: &Call<'_>, dptr: CUdeviceptr) -> Outcome<()> {
    let context = context_if_any(call)?;
    call.not_capturing()?;
    if dptr == 0 {
        return Ok(());
    }
    let act = Act::by_host(call);
    wait_for_users(call, dptr, context)?;
    let kind = call.memory().lock().known(dptr).map(|block| block.kind);
    if let Some(Kind::Pooled(_)) = kind {
        return crate::api::pool::free_now(call, dptr, &act);
    }
    let mut state = call.memory().lock();
    state.free(dptr, &act, |kind| matches!(kind, Kind::Device | Kind::Managed))
}

pub(crate) fn cuMemGetAddressRange(
    call: &Call<'_>,
    base: *mut CUdeviceptr,
    size: *mut usize,
    dptr: CUdeviceptr,
) -> Outcome<()> {
    call.current()?;
    let range = call.memory().lock().known(dptr).map(|block| (block.start, block.len));
    let (start, len) = range.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    call.put_if_wanted(base, start);
    call.put_if_wanted(size, len as usize);
    Ok(())
}

pub(crate) fn cuMemGetInfo(call: &Call<'_>, free: *mut usize, total: *mut usize) -> Outcome<()> {
    let device = call.current()?.device;
    let (size, used) = {
        let state = call.memory().lock();
        (state.setup.room_at(Location::Device(device)), state.account.used(device as u64)?)
    };
    // What came without a maker may be more than there is room for.
    call.put(free, size.saturating_sub(used) as usize)?;
    call.put(total, size as usize)
}

/// Memory for other drivers (dma-buf) is not modelled.
pub(crate) fn cuMemGetHandleForAddressRange(
    call: &Call<'_>,
    handle: *mut c_void,
    dptr: CUdeviceptr,
    size: usize,
    _kind: CUmemRangeHandleType,
    _flags: u64,
) -> Outcome<()> {
    call.current()?;
    let known = call.memory().lock().blocks.covering(dptr, size as u64).is_some();
    if handle.is_null() || size == 0 || !known {
        return Err(INVALID_VALUE);
    }
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}
