//! Legacy interprocess handles, as far as one process can ask.

use std::ptr;

use cuda_mem_sys::{CUipcMemHandle_v1, CUmemAttach_flags};

use crate::Case;
use crate::questions::{Questions, as_device, ask, cu};

pub(crate) const CASES: &[Case] =
    &[("interprocess handles: of memory, in one process", |m| Questions::answers(m, handles))];

fn handles(q: &mut Questions) {
    let stream = q.stream();
    let (device, pinned, block) = (q.alloc(4 << 20), q.pinned(4096), q.alloc_async(4096, stream));
    let mut handle = CUipcMemHandle_v1::default();
    ask!(q, "cuMemAlloc pointer", cuIpcGetMemHandle(&mut handle, device));
    let mut again = CUipcMemHandle_v1::default();
    ask!(q, "interior pointer", cuIpcGetMemHandle(&mut again, device + 100));
    assert_eq!(handle, again);
    ask!(q, "twice for one allocation: same bytes?", cuIpcGetMemHandle(&mut again, device));
    assert_eq!(handle, again);
    ask!(q, "pinned host pointer", cuIpcGetMemHandle(&mut again, as_device(pinned)));
    let mut byte = 0_u8;
    ask!(q, "pageable pointer", cuIpcGetMemHandle(&mut again, (&raw mut byte).addr() as u64));
    ask!(q, "null", cuIpcGetMemHandle(&mut again, 0));
    ask!(q, "cuMemAllocAsync pointer (default pool)", cuIpcGetMemHandle(&mut again, block));
    let mut managed = 0;
    q.expect(cu!(q, cuMemAllocManaged(&mut managed, 4096, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0)));
    ask!(q, "managed pointer", cuIpcGetMemHandle(&mut again, managed));
    let mut at = 0;
    ask!(q, "own handle, same process", cuIpcOpenMemHandle(&mut at, handle, 1));
    ask!(q, "own handle, flags 0", cuIpcOpenMemHandle(&mut at, handle, 0));
    ask!(q, "zeroed handle", cuIpcOpenMemHandle(&mut at, CUipcMemHandle_v1::default(), 1));
    ask!(q, "unknown pointer", cuIpcCloseMemHandle(0x7f12_3456_0000));
    ask!(q, "own cuMemAlloc pointer", cuIpcCloseMemHandle(device));
    ask!(q, "null", cuIpcCloseMemHandle(0));
    q.expect(cu!(q, cuMemFree(device)));
    ask!(q, "freed pointer", cuIpcGetMemHandle(&mut again, device));
    let mut event = ptr::null_mut();
    q.expect(cu!(q, cuEventCreate(&mut event, 2)));
    let mut of_event = cuda_mem_sys::CUipcEventHandle_v1::default();
    ask!(q, "event without the interprocess flag", cuIpcGetEventHandle(&mut of_event, event));
    let mut opened = ptr::null_mut();
    let zeroed = cuda_mem_sys::CUipcEventHandle_v1::default();
    ask!(q, "zeroed handle", cuIpcOpenEventHandle(&mut opened, zeroed));
    q.expect(cu!(q, cuMemFreeAsync(block, stream)));
    q.expect(cu!(q, cuCtxSynchronize()));
}
