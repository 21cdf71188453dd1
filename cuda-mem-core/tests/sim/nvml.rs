//! Who uses a device, by libraries that a test makes up: no management library knows a simulated device.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr;
use std::sync::Mutex;

use cuda_mem_core::nvml::{self, Error, ProcessMemory};
use cuda_mem_core::sys::nvml::{
    LoadError, Table, nvmlDevice_t, nvmlMemory_v2_t, nvmlProcessInfo_t, nvmlReturn_t, nvmlUtilization_t,
};

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

unsafe extern "C" fn count(count: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: the caller's number.
    unsafe { count.write(2) };
    OK
}

unsafe extern "C" fn by_index(index: c_uint, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    // SAFETY: the caller's handle.
    unsafe { device.write(ptr::without_provenance_mut(77 + 11 * index as usize)) };
    OK
}

unsafe extern "C" fn name(device: nvmlDevice_t, text: *mut c_char, room: c_uint) -> nvmlReturn_t {
    write(text, room, &format!("a device at {}", device.addr()))
}

unsafe extern "C" fn uuid(device: nvmlDevice_t, text: *mut c_char, room: c_uint) -> nvmlReturn_t {
    write(text, room, &format!("GPU-{}", device.addr()))
}

fn write(target: *mut c_char, room: c_uint, text: &str) -> nvmlReturn_t {
    assert_eq!(room, 96);
    for (place, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the caller has room for 96.
        unsafe { target.wrapping_add(place).write(c_char::from_ne_bytes([byte])) };
    }
    OK
}

unsafe extern "C" fn memory(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) -> nvmlReturn_t {
    // SAFETY: the caller's structure.
    let memory = unsafe { &mut *memory };
    assert_eq!(memory.version, 40 | 2 << 24);
    (memory.total, memory.reserved, memory.free, memory.used) = (80 << 30, 1 << 30, 39 << 30, 40 << 30);
    memory.used += device.addr() as u64;
    OK
}

/// The second device cannot tell.
unsafe extern "C" fn busy(device: nvmlDevice_t, busy: *mut nvmlUtilization_t) -> nvmlReturn_t {
    if device.addr() != 77 {
        return nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED;
    }
    // SAFETY: the caller's structure.
    unsafe { busy.write(nvmlUtilization_t { gpu: 37, memory: 5 }) };
    OK
}

/// A process that computes, and draws too; and one that only draws. Of the second device it may not be told.
unsafe extern "C" fn drawing(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    if device.addr() != 77 {
        return nvmlReturn_t(4);
    }
    // SAFETY: the caller's number, read and written.
    if unsafe { count.replace(2) } < 2 {
        return nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (place, pid) in [300, 200].into_iter().enumerate() {
        let info = nvmlProcessInfo_t { pid, usedGpuMemory: 5, ..nvmlProcessInfo_t::default() };
        // SAFETY: the caller has room for both.
        unsafe { infos.wrapping_add(place).write(info) };
    }
    OK
}

/// One process, on the first device.
unsafe extern "C" fn computing(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    let there = u32::from(device.addr() == 77);
    // SAFETY: the caller's number, read and written.
    if unsafe { count.replace(there) } < there {
        return nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE;
    }
    if there == 1 {
        let info = nvmlProcessInfo_t { pid: 200, usedGpuMemory: 5, ..nvmlProcessInfo_t::default() };
        // SAFETY: the caller has room for it.
        unsafe { infos.write(info) };
    }
    OK
}

unsafe extern "C" fn no_count(_: *mut c_uint) -> nvmlReturn_t {
    nvmlReturn_t(15)
}

type Count = unsafe extern "C" fn(*mut c_uint) -> nvmlReturn_t;
type ByIndex = unsafe extern "C" fn(c_uint, *mut nvmlDevice_t) -> nvmlReturn_t;
type Write = unsafe extern "C" fn(nvmlDevice_t, *mut c_char, c_uint) -> nvmlReturn_t;
type Memory = unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_v2_t) -> nvmlReturn_t;
type Busy = unsafe extern "C" fn(nvmlDevice_t, *mut nvmlUtilization_t) -> nvmlReturn_t;
type Init = unsafe extern "C" fn() -> nvmlReturn_t;
type Text = unsafe extern "C" fn(nvmlReturn_t) -> *const c_char;
type Find = unsafe extern "C" fn(*const c_char, *mut nvmlDevice_t) -> nvmlReturn_t;
type List = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t;

fn library(init: Init, text: Text, find: Find, list: List) -> Table {
    library_that_counts(init, text, find, list, count)
}

fn library_that_counts(init: Init, text: Text, find: Find, list: List, count: Count) -> Table {
    let lookup = |symbol: &CStr| -> *const c_void {
        match symbol.to_bytes() {
            b"nvmlInit_v2" => init as *const c_void,
            b"nvmlShutdown" => shutdown as Init as *const c_void,
            b"nvmlErrorString" => text as *const c_void,
            b"nvmlDeviceGetHandleByUUID" => find as *const c_void,
            b"nvmlDeviceGetComputeRunningProcesses_v3" => list as *const c_void,
            b"nvmlDeviceGetGraphicsRunningProcesses_v3" => drawing as List as *const c_void,
            b"nvmlDeviceGetCount_v2" => count as *const c_void,
            b"nvmlDeviceGetHandleByIndex_v2" => by_index as ByIndex as *const c_void,
            b"nvmlDeviceGetName" => name as Write as *const c_void,
            b"nvmlDeviceGetUUID" => uuid as Write as *const c_void,
            b"nvmlDeviceGetMemoryInfo_v2" => memory as Memory as *const c_void,
            b"nvmlDeviceGetUtilizationRates" => busy as Busy as *const c_void,
            other => panic!("{}", String::from_utf8_lossy(other)),
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
fn devices_are_listed_with_their_memory_and_who_uses_them() {
    let _turn = TURN.lock().unwrap();
    let devices = nvml::devices_with(&library(init, text, device, computing)).unwrap();
    let told: Vec<_> =
        devices.iter().map(|one| (one.index, &*one.name, &*one.uuid, one.used, one.busy)).collect();
    let expected = [
        (0, "a device at 77", "GPU-77", (40 << 30) + 77, Some(37)),
        (1, "a device at 88", "GPU-88", (40 << 30) + 88, None),
    ];
    assert_eq!(told, expected);
    let of_first: Vec<_> = devices[0].processes.iter().map(|process| process.pid).collect();
    assert_eq!(
        (of_first, devices[1].processes.len()),
        (vec![200, 300], 0),
        "each once, though one draws too"
    );
    let failing = library_that_counts(init, text, device, computing, no_count);
    match nvml::devices_with(&failing) {
        Err(Error::Refused { call: "nvmlDeviceGetCount", code: 15, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(ASKED.lock().unwrap().1, 0, "each initialisation was undone");
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
