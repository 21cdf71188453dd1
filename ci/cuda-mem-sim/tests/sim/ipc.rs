//! Device memory of another process: the test starts itself again as the importer.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use cuda_mem_sys::{CUipcMemHandle_v1, CUresult};

use crate::gpu::{Gpu, INVALID_VALUE, OK, cu};

const LAZY: u32 = 1;

/// Says to the importer which handle to open; it is not set in the test itself.
const HANDLE: &str = "CUDA_MEM_SIM_TEST_HANDLE";

fn to_text(handle: &CUipcMemHandle_v1) -> String {
    handle.reserved.iter().map(|byte| format!("{:02x}", *byte as u8)).collect()
}

fn from_text(text: &str) -> CUipcMemHandle_v1 {
    let mut handle = CUipcMemHandle_v1::default();
    for (index, byte) in handle.reserved.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap() as _;
    }
    handle
}

fn open(gpu: &Gpu, handle: CUipcMemHandle_v1) -> Result<u64, CUresult> {
    let mut at = 0;
    match cu!(gpu, cuIpcOpenMemHandle(&mut at, handle, LAZY)) {
        OK => Ok(at),
        error => Err(error),
    }
}

/// Does nothing unless the test below started it.
#[test]
fn importer() {
    let Ok(handle) = std::env::var(HANDLE) else { return };
    let handle = from_text(&handle);
    let gpu = Gpu::new();
    let mut line = String::new();
    let mut next = || {
        line.clear();
        std::io::stdin().lock().read_line(&mut line).unwrap();
    };
    let at = open(&gpu, handle).unwrap();
    assert_eq!(open(&gpu, handle), Ok(at), "the same address again");
    let mut bytes = [0_u8; 5];
    assert_eq!(gpu.d2h(&mut bytes, at), OK);
    assert_eq!(&bytes, b"hello");
    assert_eq!(gpu.h2d(at, b"HELLO"), OK);
    assert_eq!(gpu.free(at), INVALID_VALUE);
    println!("\nopened");
    next();
    // The exporter has freed the memory.
    assert_eq!(gpu.d2h(&mut bytes, at), OK);
    assert_eq!(&bytes, b"HELLO");
    assert_eq!(cu!(gpu, cuIpcCloseMemHandle(at)), OK);
    assert_eq!(gpu.d2h(&mut bytes, at), OK, "it is still open once");
    assert_eq!(cu!(gpu, cuIpcCloseMemHandle(at)), OK);
    assert_eq!(cu!(gpu, cuIpcCloseMemHandle(at)), INVALID_VALUE);
    assert_eq!(gpu.d2h(&mut bytes, at), INVALID_VALUE);
    assert_eq!(open(&gpu, handle), Err(INVALID_VALUE), "what was freed cannot be opened");
    println!("\nclosed");
}

fn start_importer(handle: &CUipcMemHandle_v1) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "ipc::importer", "--nocapture"]).env(HANDLE, to_text(handle));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn memory_is_shared_until_both_have_let_go() {
    let gpu = Gpu::new();
    // Not at the start of a page, and not alone in it.
    let neighbour = gpu.alloc(512);
    let at = gpu.alloc(10_000);
    assert_eq!(gpu.h2d(at, b"hello"), OK);
    let mut handle = CUipcMemHandle_v1::default();
    assert_eq!(cu!(gpu, cuIpcGetMemHandle(&mut handle, at + 100)), OK);
    assert_eq!(open(&gpu, handle), Err(CUresult::CUDA_ERROR_INVALID_CONTEXT), "not in the same process");
    let mut importer = start_importer(&handle);
    let mut lines = BufReader::new(importer.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "opened"));
    let mut bytes = [0_u8; 5];
    assert_eq!(gpu.d2h(&mut bytes, at), OK);
    assert_eq!(&bytes, b"HELLO");
    assert_eq!(gpu.free(at), OK);
    let others: Vec<u64> = (0..4).map(|_| gpu.alloc(10_000)).collect();
    importer.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(lines.any(|line| line == "closed"));
    lines.for_each(drop);
    assert!(importer.wait().unwrap().success());
    others.into_iter().chain([neighbour]).for_each(|at| assert_eq!(gpu.free(at), OK));
    gpu.assert_quiet();
}

#[test]
fn only_memory_of_cu_mem_alloc_has_a_handle() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let mut handle = CUipcMemHandle_v1::default();
    let pinned = gpu.pinned(100);
    let mut pooled = 0;
    assert_eq!(cu!(gpu, cuMemAllocAsync(&mut pooled, 100, stream)), OK);
    for at in [pinned.addr() as u64, pooled, 0, 0x1000] {
        assert_eq!(cu!(gpu, cuIpcGetMemHandle(&mut handle, at)), INVALID_VALUE);
    }
    assert_eq!(open(&gpu, CUipcMemHandle_v1::default()), Err(INVALID_VALUE));
    assert_eq!(cu!(gpu, cuMemFreeAsync(pooled, stream)), OK);
    gpu.synchronize(stream);
    gpu.free_pinned(pinned);
    gpu.destroy_stream(stream);
    gpu.assert_quiet();
}
