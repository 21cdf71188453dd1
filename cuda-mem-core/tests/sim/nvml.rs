//! Who uses a device, by libraries that a test makes up: no management library knows a simulated device.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr;
use std::sync::Mutex;

use cuda_mem_core::nvml::{self, Error, ProcessMemory};
use cuda_mem_core::sys::nvml::{LoadError, Table, nvmlDevice_t, nvmlProcessInfo_t, nvmlReturn_t};

use crate::rig::on_simulator;

const OK: nvmlReturn_t = nvmlReturn_t::NVML_SUCCESS;

/// What the library was asked for, and how often it was initialised and not yet shut down.
static ASKED: Mutex<(String, i32)> = Mutex::new((String::new(), 0));

/// One test at a time has the library.
static TURN: Mutex<()> = Mutex::new(());

unsafe extern "C" fn init() -> nvmlReturn_t {
    ASKED.lock().unwrap().1 += 1;
    OK
}

unsafe extern "C" fn not_loaded() -> nvmlReturn_t {
    nvmlReturn_t(9)
}

unsafe extern "C" fn shutdown() -> nvmlReturn_t {
    ASKED.lock().unwrap().1 -= 1;
    OK
}

unsafe extern "C" fn text(_: nvmlReturn_t) -> *const c_char {
    c"as the library says".as_ptr()
}

unsafe extern "C" fn no_text(_: nvmlReturn_t) -> *const c_char {
    ptr::null()
}

unsafe extern "C" fn device(name: *const c_char, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    // SAFETY: the caller's terminated name.
    ASKED.lock().unwrap().0 = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    // SAFETY: the caller's handle.
    unsafe { device.write(ptr::without_provenance_mut(77)) };
    OK
}

unsafe extern "C" fn no_device(_: *const c_char, _: *mut nvmlDevice_t) -> nvmlReturn_t {
    nvmlReturn_t::NVML_ERROR_NOT_FOUND
}

/// Two processes at first, and one more each time that somebody asks, up to ten.
unsafe extern "C" fn growing(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    static THERE: Mutex<u32> = Mutex::new(1);
    assert_eq!(device.addr(), 77);
    let mut there = THERE.lock().unwrap();
    *there = (*there + 1).min(10);
    // SAFETY: the caller's number, read and written.
    let room = unsafe { count.replace(*there) };
    if room < *there {
        return nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for pid in 0..*there {
        let bytes = if pid == 1 { u64::MAX } else { u64::from(pid) << 20 };
        let info = nvmlProcessInfo_t { pid: 100 + pid, usedGpuMemory: bytes, ..nvmlProcessInfo_t::default() };
        // SAFETY: the caller has room for as many.
        unsafe { infos.wrapping_add(pid as usize).write(info) };
    }
    OK
}

/// A library that is never satisfied, and asks for no more than it was given.
unsafe extern "C" fn never(_: nvmlDevice_t, _: *mut c_uint, _: *mut nvmlProcessInfo_t) -> nvmlReturn_t {
    nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE
}

type Init = unsafe extern "C" fn() -> nvmlReturn_t;
type Text = unsafe extern "C" fn(nvmlReturn_t) -> *const c_char;
type Find = unsafe extern "C" fn(*const c_char, *mut nvmlDevice_t) -> nvmlReturn_t;
type List = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t;

fn library(init: Init, text: Text, find: Find, list: List) -> Table {
    let lookup = |symbol: &CStr| -> *const c_void {
        match symbol.to_bytes() {
            b"nvmlInit_v2" => init as *const c_void,
            b"nvmlShutdown" => shutdown as Init as *const c_void,
            b"nvmlErrorString" => text as *const c_void,
            b"nvmlDeviceGetHandleByUUID" => find as *const c_void,
            b"nvmlDeviceGetComputeRunningProcesses_v3" => list as *const c_void,
            _ => ptr::null(),
        }
    };
    // SAFETY: functions of those types.
    unsafe { Table::from_lookup(lookup) }.unwrap()
}

#[test]
fn processes_are_listed_with_what_is_known_of_their_memory() {
    let _turn = TURN.lock().unwrap();
    on_simulator(|_, context| {
        let table = library(init, text, device, growing);
        let processes = nvml::processes_with(&table, context.device()).unwrap();
        // Two when it was first asked, three when there was room.
        let expected = [(100, Some(0)), (101, None), (102, Some(2 << 20))];
        assert_eq!(processes, expected.map(|(pid, bytes)| ProcessMemory { pid, bytes }));
        let (name, sessions) = ASKED.lock().unwrap().clone();
        let uuid: String =
            context.device().uuid().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(name.strip_prefix("GPU-").unwrap().replace('-', ""), uuid);
        let lengths: Vec<_> = name.split('-').map(str::len).collect();
        assert_eq!((lengths, sessions), (vec![3, 8, 4, 4, 4, 12], 0));
    });
}

#[test]
fn what_the_library_refuses_is_an_error_with_its_words() {
    let _turn = TURN.lock().unwrap();
    on_simulator(|_, context| {
        let refused = |table: Table| match nvml::processes_with(&table, context.device()) {
            Err(Error::Refused { call, code, text }) => (call, code, text),
            other => panic!("{other:?}"),
        };
        let said = "as the library says".to_owned();
        assert_eq!(refused(library(not_loaded, text, device, growing)), ("nvmlInit_v2", 9, said.clone()));
        assert_eq!(refused(library(init, text, no_device, growing)), ("nvmlDeviceGetHandleByUUID", 6, said));
        let never = refused(library(init, no_text, device, never));
        assert_eq!(never, ("nvmlDeviceGetComputeRunningProcesses", 7, "unknown".to_owned()));
        assert_eq!(ASKED.lock().unwrap().1, 0, "each initialisation that succeeded was undone");
    });
}

#[test]
fn the_systems_library_is_an_error_or_does_not_know_a_simulated_device() {
    on_simulator(|_, context| {
        let error = nvml::processes(context.device()).unwrap_err();
        match &error {
            Error::Load(load) => {
                assert!(matches!(**load, LoadError::Library { .. }), "{error:?}");
                assert!(error.to_string().contains("libnvidia-ml.so.1"), "{error}");
            }
            Error::Refused { .. } => {}
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_library_that_lacks_a_function_is_an_error_that_names_it() {
    let lookup = |symbol: &CStr| match symbol.to_bytes() {
        b"nvmlDeviceGetComputeRunningProcesses_v3" => ptr::null(),
        // Never called.
        _ => init as Init as *const c_void,
    };
    // SAFETY: no table comes of it.
    let error = unsafe { Table::from_lookup(lookup) }.unwrap_err();
    assert!(error.to_string().ends_with("has no nvmlDeviceGetComputeRunningProcesses_v3"), "{error}");
}
