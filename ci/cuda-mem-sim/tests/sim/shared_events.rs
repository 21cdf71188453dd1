//! Events of another process: the test starts itself again as the importer.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::ptr;

use cuda_mem_sys::CUipcEventHandle_v1;

use crate::common::{Machine, NOT_READY, code, ok};

/// Says to the importer which handle to open; it is not set in the test itself.
const HANDLE: &str = "CUDA_MEM_SIM_TEST_EVENT";

/// Without a time, for other processes.
const SHARED: u32 = 2 | 4;

fn to_text(handle: &CUipcEventHandle_v1) -> String {
    handle.reserved.iter().map(|byte| format!("{:02x}", *byte as u8)).collect()
}

fn from_text(text: &str) -> CUipcEventHandle_v1 {
    let mut handle = CUipcEventHandle_v1::default();
    for (index, byte) in handle.reserved.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).expect("two digits") as _;
    }
    handle
}

/// Does nothing unless the test below started it.
#[test]
fn importer() {
    let Ok(handle) = std::env::var(HANDLE) else { return };
    let machine = Machine::new();
    let next = || std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    let (mut event, stream, at) = (ptr::null_mut(), machine.stream(1), machine.memory(4));
    ok!(machine.table, cuIpcOpenEventHandle(&mut event, from_text(&handle)));
    assert_eq!(code!(machine.table, cuEventQuery(event)), NOT_READY);
    ok!(machine.table, cuStreamWaitEvent(stream, event, 0));
    ok!(machine.table, cuMemsetD32Async(at, 1, 1, stream));
    assert_eq!(code!(machine.table, cuStreamQuery(stream)), NOT_READY);
    println!("\nwaiting");
    next();
    ok!(machine.table, cuEventSynchronize(event));
    ok!(machine.table, cuStreamSynchronize(stream));
    assert_eq!(code!(machine.table, cuIpcGetEventHandle(&mut CUipcEventHandle_v1::default(), event)), 400);
    let gate = machine.gate(stream);
    ok!(machine.table, cuEventRecord(event, stream));
    println!("\nrecorded");
    next();
    gate.open();
    ok!(machine.table, cuStreamSynchronize(stream));
    ok!(machine.table, cuEventDestroy(event));
    println!("\ndone");
}

#[test]
fn an_event_orders_the_work_of_two_processes() {
    let machine = Machine::new();
    let (event, stream) = (machine.event(SHARED), machine.stream(1));
    let mut handle = CUipcEventHandle_v1::default();
    ok!(machine.table, cuIpcGetEventHandle(&mut handle, event));
    let gate = machine.gate(stream);
    ok!(machine.table, cuEventRecord(event, stream));

    let mut importer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "shared_events::importer", "--nocapture"])
        .env(HANDLE, to_text(&handle))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(importer.stdout.take().unwrap()).lines();
    let mut until =
        |word: &str| assert!(said.any(|line| line.unwrap() == word), "the importer never said {word}");
    let mut tell = importer.stdin.take().unwrap();
    until("waiting");
    gate.open();
    writeln!(tell).unwrap();
    until("recorded");
    assert_eq!(code!(machine.table, cuEventQuery(event)), NOT_READY);
    writeln!(tell).unwrap();
    ok!(machine.table, cuEventSynchronize(event));
    until("done");
    assert!(importer.wait().unwrap().success());
}

#[test]
fn handles_are_checked() {
    let machine = Machine::new();
    let mut handle = CUipcEventHandle_v1::default();
    let mut opened = ptr::null_mut();
    assert_eq!(code!(machine.table, cuIpcOpenEventHandle(&mut opened, handle)), 205);
    assert_eq!(code!(machine.table, cuIpcGetEventHandle(&mut handle, machine.event(2))), 400);
    ok!(machine.table, cuIpcGetEventHandle(&mut handle, machine.event(SHARED)));
    assert_eq!(code!(machine.table, cuIpcOpenEventHandle(&mut opened, handle)), 201);
}
