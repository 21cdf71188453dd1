//! The simulator as a tool: several at a time, faults, the log, missing functions, leaks, forks, the shared library.

use std::path::PathBuf;
use std::process::Command;
use std::ptr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cuda_mem_sim::Sim;
use cuda_mem_sys::*;

use crate::common::{Machine, code, ok};

#[test]
fn nothing_works_before_cu_init() {
    let sim = Sim::builder().build();
    let table = sim.table();
    let mut count = 0;
    assert_eq!(code!(table, cuDeviceGetCount(&mut count)), 3);
    assert_eq!(code!(table, cuMemFree(0)), 3);
    let mut name = ptr::null();
    ok!(table, cuGetErrorName(CUresult::CUDA_ERROR_NOT_READY, &mut name));
    // SAFETY: the name of a known code, which is never freed.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(name) }, c"CUDA_ERROR_NOT_READY");
    assert_eq!(code!(table, cuGetErrorString(CUresult(12345), &mut name)), 1);
    assert!(name.is_null());
    assert_eq!(code!(table, cuInit(1)), 1);
    ok!(table, cuInit(0));
    ok!(table, cuInit(0));
    ok!(table, cuDeviceGetCount(&mut count));
    let none = Sim::builder().devices(0).build();
    assert_eq!(code!(none.table(), cuInit(0)), 100);
}

#[test]
fn two_simulators_know_nothing_of_each_other() {
    let (one, two) = (Machine::new(), Machine::of(Sim::builder().driver(12020)));
    assert_eq!((one.table.version(), two.table.version()), (13000, 12020));
    let stream = one.stream(1);
    ok!(one.table, cuStreamQuery(stream));
    assert_eq!(code!(two.table, cuStreamQuery(stream)), 400);
    assert!(two.table.cuCtxRecordEvent().is_err());
    assert!(one.table.cuCtxRecordEvent().is_ok());
}

#[test]
fn a_stale_table_says_that_the_driver_is_gone() {
    let machine = Machine::new();
    let table = machine.table;
    let stream = machine.stream(1);
    // Another test's simulator may have moved into the slot by then; it does not know the stream either.
    drop(machine);
    let code = code!(table, cuStreamQuery(stream));
    assert!(code == 4 || code == 3 || code == 400, "{code}");
}

#[test]
fn building_waits_for_a_free_slot() {
    let all: Vec<Sim> = std::iter::repeat_with(|| {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(Sim::builder().build()));
        receiver.recv_timeout(Duration::from_millis(300)).ok()
    })
    .take(15)
    .map_while(|sim| sim)
    .collect();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(Sim::builder().build().table().version()));
    drop(all);
    assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(13000));
}

#[test]
fn a_chosen_call_fails_and_does_nothing() {
    let machine = Machine::new();
    machine.sim.fail_call("cuMemAlloc", 2, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let first = machine.memory(16);
    let mut pointer = 7;
    assert_eq!(code!(machine.table, cuMemAlloc(&mut pointer, 16)), 2);
    assert_eq!(pointer, 7);
    let third = machine.memory(16);
    machine.sim.fail_nth_call_overall(2, CUresult(918));
    ok!(machine.table, cuMemFree(first));
    assert_eq!(code!(machine.table, cuMemFree(third)), 918);
    let struck: Vec<_> = machine.sim.struck().iter().map(|fault| (fault.function, fault.code.0)).collect();
    assert_eq!(struck, [("cuMemAlloc", 2), ("cuMemFree", 918)]);
    ok!(machine.table, cuMemFree(third));
}

#[test]
fn a_delayed_call_takes_longer() {
    let machine = Machine::new();
    machine.sim.delay("cuMemGetInfo", Duration::from_millis(30));
    let begun = Instant::now();
    ok!(machine.table, cuMemGetInfo(&mut 0, &mut 0));
    assert!(begun.elapsed() >= Duration::from_millis(30));
}

#[test]
fn the_log_tells_calls_arguments_streams_and_results() {
    let machine = Machine::new();
    let log = machine.sim.log();
    assert!(log.names().is_empty());
    machine.sim.record(true);
    let stream = machine.stream(1);
    let at = machine.memory(16);
    ok!(machine.table, cuMemsetD32Async(at, 9, 4, stream));
    assert_eq!(code!(machine.table, cuMemFree(1)), 1);
    assert_eq!(log.names(), ["cuStreamCreate", "cuMemAlloc", "cuMemsetD32Async", "cuMemFree"]);
    let records = log.filter(|record| record.function == "cuMemsetD32Async");
    let (id, arguments) = (records[0].stream, &records[0].arguments);
    assert_ne!(id, 0);
    assert!(arguments.contains(&format!("{at:#x}")) && arguments.contains("n=4"), "{arguments}");
    assert_eq!(log.records().last().unwrap().result.0, 1);
    assert_eq!(log.count("cuMemFree"), 1);
    log.clear();
    machine.sim.record(false);
    ok!(machine.table, cuMemFree(at));
    assert!(log.records().is_empty() && log.counts().is_empty());
}

#[test]
fn functions_can_be_missing_by_version_or_by_name() {
    let sim = Sim::builder().driver(12020).missing("cuMemAllocAsync").build();
    let table = sim.table();
    assert!(table.cuMemGetMemPool().is_err());
    let error = table.cuMemAllocAsync().unwrap_err();
    assert!(error.to_string().contains("has CUDA 12.2 but no cuMemAllocAsync"), "{error}");
    assert!(table.cuStreamGetId().is_ok());
    // The library has the export, which a program looks for where the driver knows no such name.
    let known = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    let (mut address, mut status) = (ptr::null_mut(), CUdriverProcAddressQueryResult(9));
    // SAFETY: a terminated name, one address and one status to write.
    let asked = unsafe { look_up(&sim)(c"cuMemAllocAsync".as_ptr(), &mut address, 12000, 0, &mut status) };
    assert_eq!((asked, status, address.is_null()), (CUresult::CUDA_SUCCESS, known, true));
    let old = Sim::builder().driver(12010).build();
    let error = old.new_table().unwrap_err().to_string();
    assert!(error.contains("12.2 is needed, this driver has CUDA 12.1"), "{error}");
}

/// The simulator's own look-up function.
fn look_up(sim: &Sim) -> PFN_cuGetProcAddress_v12000 {
    let address = sim.symbol(c"cuGetProcAddress_v2");
    // SAFETY: the simulator's function of exactly this name, which is this ABI.
    unsafe { std::mem::transmute::<*const std::ffi::c_void, PFN_cuGetProcAddress_v12000>(address) }
}

#[test]
fn look_up_answers_as_the_driver_does() {
    let sim = Sim::builder().build();
    let look_up = look_up(&sim);
    let found = |name: &std::ffi::CStr, version: i32, flags: u64| {
        let untouched = 9;
        let (mut address, mut status) = (ptr::null_mut(), CUdriverProcAddressQueryResult(untouched));
        // SAFETY: a terminated name, one address and one status to write.
        let result = unsafe { look_up(name.as_ptr(), &mut address, version, flags, &mut status) };
        (result.0, status.0, !address.is_null())
    };
    assert_eq!(found(c"cuMemAlloc", 13000, 0), (0, 0, true));
    assert_eq!(found(c"cuMemAlloc", -1, 0), (0, 0, true));
    assert_eq!(found(c"cuMemAlloc", 1000, 0), (0, 2, false));
    assert_eq!(found(c"cuMemAlloc", 13010, 0), (1, 9, false));
    assert_eq!(found(c"cuMemAlloc", 13000, 4), (1, 9, false));
    assert_eq!(found(c"cuMemAlloc", 13000, 3), (0, 0, true));
    assert_eq!(found(c"cuMemAlloc_v2", 13000, 0), (0, 1, false));
    assert_eq!(found(c"cuNoSuchThing", 13000, 0), (0, 1, false));
    assert_eq!(found(c"cuStreamGetId", 11080, 0), (0, 2, false));
    assert_eq!(found(c"cuGetProcAddress", 12000, 0), (0, 0, true));
}

#[test]
fn every_bound_function_is_there() {
    let sim = Sim::builder().build();
    let look_up = look_up(&sim);
    for function in FUNCTIONS {
        let (mut address, mut status) = (ptr::null_mut(), CUdriverProcAddressQueryResult(9));
        // SAFETY: a terminated name, one address and one status to write.
        unsafe { look_up(function.name.as_ptr(), &mut address, function.version, 0, &mut status) };
        assert!(!address.is_null(), "{:?}", function.name);
    }
}

#[test]
fn what_was_not_released_is_named_with_its_call() {
    let machine = Machine::new();
    machine.stream(1);
    machine.event(0);
    let at = machine.memory(64);
    let leaks = machine.sim.leaks();
    let whats: Vec<_> = leaks.iter().map(|leak| leak.what).collect();
    for what in ["stream", "event", "device memory", "retained primary context"] {
        assert!(whats.contains(&what), "{whats:?}");
    }
    let memory = leaks.iter().find(|leak| leak.what == "device memory").unwrap();
    assert_eq!(memory.range, at..at + 64);
    assert_eq!(memory.made.as_ref().unwrap().function, "cuMemAlloc");
}

#[test]
fn a_forked_child_is_told_so() {
    let machine = Machine::new();
    let stream = machine.stream(1);
    let gate = machine.gate(stream);
    // SAFETY: the child only calls the simulator, which takes no lock there, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut version = 0;
        let codes = [
            code!(machine.table, cuInit(0)),
            code!(machine.table, cuMemAlloc(&mut 0, 16)),
            code!(machine.table, cuStreamSynchronize(stream)),
            code!(machine.table, cuCtxSetCurrent(ptr::null_mut())),
        ];
        let is_told = codes == [3; 4] && code!(machine.table, cuDriverGetVersion(&mut version)) == 0;
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!is_told)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child that was just made.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    gate.open();
    ok!(machine.table, cuStreamSynchronize(stream));
}

/// The shared library: the one that the environment names, else one built now.
fn library() -> PathBuf {
    if let Some(named) = std::env::var_os("CUDA_MEM_SIM_LIBRARY") {
        return PathBuf::from(named);
    }
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--offline", "--package", "cuda-mem-sim-library"]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo").success());
    let test = std::env::current_exe().expect("the path of the test");
    // Beside the folder of the tests.
    test.ancestors().nth(2).expect("the folder of the profile").join("libcuda_mem_sim.so")
}

#[test]
fn the_shared_library_is_a_driver() {
    let path = library();
    let report = std::env::temp_dir().join(format!("cuda-mem-sim-report-{}", std::process::id()));
    let test = std::env::current_exe().unwrap();
    let run = |configuration: String| {
        Command::new(&test)
            .args(["--exact", "simulator::inside_a_process_of_its_own", "--ignored", "--nocapture"])
            .env("CUDA_MEM_DRIVER", &path)
            .env("CUDA_MEM_SIM", configuration)
            .output()
            .unwrap()
    };
    let output = run(format!("devices=3,report={}", report.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told = std::fs::read_to_string(&report).unwrap();
    std::fs::remove_file(&report).unwrap();
    assert!(told.contains("leak: stream"), "{told}");
    let output = run("devices=some".to_owned());
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("a number from 0 to 64"));
}

#[test]
#[ignore = "run by the test of the shared library, in a process of its own"]
fn inside_a_process_of_its_own() {
    let table = Table::system().unwrap();
    ok!(table, cuInit(0));
    let (mut count, mut context, mut stream) = (0, ptr::null_mut(), ptr::null_mut());
    ok!(table, cuDeviceGetCount(&mut count));
    assert_eq!(count, 3);
    ok!(table, cuDevicePrimaryCtxRetain(&mut context, 2));
    ok!(table, cuCtxSetCurrent(context));
    ok!(table, cuStreamCreate(&mut stream, 1));
    let mut pointer = 0;
    ok!(table, cuMemAlloc(&mut pointer, 1 << 20));
    ok!(table, cuMemsetD8Async(pointer, 5, 1 << 20, stream));
    let mut byte = 0_u8;
    ok!(table, cuStreamSynchronize(stream));
    ok!(table, cuMemcpyDtoH((&raw mut byte).cast(), pointer, 1));
    assert_eq!(byte, 5);
}

#[test]
fn the_table_without_asking_is_a_driver_of_its_own() {
    let table = cuda_mem_sim::table();
    ok!(table, cuInit(0));
    assert!(ptr::eq(table, cuda_mem_sim::table()));
    let machine = Machine::new();
    let stream = machine.stream(1);
    assert_eq!(code!(table, cuStreamQuery(stream)), 400);
}

#[test]
fn threads_leave_nothing_behind() {
    let machine = Machine::new();
    let (table, context) = (machine.table, machine.context.addr());
    let at = machine.memory(4);
    for value in 0..20 {
        let there = std::thread::spawn(move || {
            ok!(table, cuCtxSetCurrent(ptr::without_provenance_mut(context)));
            ok!(table, cuMemsetD32Async(at, value, 1, CU_STREAM_PER_THREAD));
        });
        there.join().unwrap();
        ok!(table, cuCtxSynchronize());
        assert_eq!(machine.word(at), value);
    }
    // Thread numbers are not used again, so a new thread begins with nothing.
    let there = std::thread::spawn(move || {
        let mut current = ptr::null_mut();
        ok!(table, cuCtxGetCurrent(&mut current));
        current.is_null()
    });
    assert!(there.join().unwrap());
}
