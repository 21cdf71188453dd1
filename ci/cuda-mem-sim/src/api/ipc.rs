//! Legacy handles of memory for other processes.

use std::ffi::c_char;

use cuda_mem_sys::{CUdeviceptr, CUipcMem_flags, CUipcMemHandle_v1, CUresult};

use crate::call::Call;
use crate::memory::ipc::Ticket;
use crate::memory::misuse::Act;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

fn to_bytes(ticket: Ticket) -> [c_char; 64] {
    let mut bytes = [0; 64];
    let words = ticket.to_words();
    for (byte, from) in bytes.iter_mut().zip(words.iter().flat_map(|word| word.to_le_bytes())) {
        *byte = from as c_char;
    }
    bytes
}

fn from_bytes(bytes: &[c_char; 64]) -> Option<Ticket> {
    let mut words = [0_u64; 8];
    for (index, &byte) in bytes.iter().enumerate() {
        words[index / 8] |= u64::from(byte as u8) << (index % 8 * 8);
    }
    Ticket::from_words(words)
}

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
    call.put(handle, CUipcMemHandle_v1 { reserved: to_bytes(ticket) })
}

pub(crate) fn cuIpcOpenMemHandle(
    call: &Call<'_>,
    dptr: *mut CUdeviceptr,
    handle: CUipcMemHandle_v1,
    flags: u32,
) -> Outcome<()> {
    let context = call.current()?;
    let lazy = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
    let ticket = from_bytes(&handle.reserved).filter(|_| flags == lazy && !dptr.is_null());
    let ticket = ticket.ok_or(INVALID_VALUE)?;
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
