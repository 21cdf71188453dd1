//! Legacy handles of memory for other processes.

use std::ffi::c_char;

use cuda_mem_sys::{CUdeviceptr, CUipcMem_flags, CUipcMemHandle_v1, CUresult};

use crate::call::Call;
use crate::memory::ipc::Ticket;
use crate::memory::misuse::Act;
use crate::memory::wire;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

pub(crate) fn cuIpcGetMemHandle(
    call: &Call<'_>,
    handle: *mut CUipcMemHandle_v1,
    dptr: CUdeviceptr,
) -> Outcome<()> {
    call.current()?;
    if handle.is_null() {
        return Err(INVALID_VALUE);
    }
    let ticket = call.memory().lock().export_block(dptr)?;
    call.put(
        handle,
        CUipcMemHandle_v1 { reserved: wire::to_bytes(ticket.to_words()).map(|byte| byte as c_char) },
    )
}

pub(crate) fn cuIpcOpenMemHandle(
    call: &Call<'_>,
    dptr: *mut CUdeviceptr,
    handle: CUipcMemHandle_v1,
    flags: u32,
) -> Outcome<()> {
    let context = call.current()?;
    let lazy = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
    let ticket = Ticket::from_words(wire::to_words(handle.reserved.map(|byte| byte as u8)));
    let ticket = ticket.filter(|_| flags == lazy && !dptr.is_null()).ok_or(INVALID_VALUE)?;
    if ticket.is_own() {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    let by = Act::by_host(call);
    let start = call.memory().lock().open_ticket(ticket, context.device, context.handle(), by)?;
    call.put(dptr, start)
}

pub(crate) fn cuIpcCloseMemHandle(call: &Call<'_>, dptr: CUdeviceptr) -> Outcome<()> {
    call.current()?;
    let by = Act::by_host(call);
    call.memory().lock().close_opened(dptr, &by)
}
