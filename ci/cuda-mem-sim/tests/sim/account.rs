//! Memory of several processes in one account: the test starts itself again as the other one.

use std::ffi::c_void;
use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr;
use std::time::{Duration, Instant};

use cuda_mem_sim::Sim;
use cuda_mem_sys::{
    CUipcMemHandle_v1, CUmemAllocationHandleType, CUmemAllocationProp_v1, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUresult, Table,
};

use crate::gpu::{Gpu, OK, OUT_OF_MEMORY, cu};

const MIB: usize = 1 << 20;
const ALL: usize = 64 * MIB;
const FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Set in the other process alone.
const MARK: &str = "CUDA_MEM_SIM_TEST_ACCOUNT";

/// The driver of a table, whose first context is current.
struct Begun(&'static Table);

impl Begun {
    fn of(table: &'static Table) -> Self {
        let driver = Self(table);
        let mut context = ptr::null_mut();
        assert_eq!(cu!(driver, cuInit(0)), OK);
        assert_eq!(cu!(driver, cuDevicePrimaryCtxRetain(&mut context, 0)), OK);
        assert_eq!(cu!(driver, cuCtxSetCurrent(context)), OK);
        driver
    }

    fn table(&self) -> &'static Table {
        self.0
    }
}

macro_rules! free {
    ($gpu:expr) => {{
        let (mut free, mut total) = (0, 0);
        assert_eq!(cu!($gpu, cuMemGetInfo(&mut free, &mut total)), OK);
        assert_eq!(total, ALL);
        free
    }};
}

macro_rules! create {
    ($gpu:expr, $bytes:expr) => {{
        let properties = CUmemAllocationProp_v1 {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: FD,
            location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
            ..CUmemAllocationProp_v1::default()
        };
        let mut handle = 0;
        match cu!($gpu, cuMemCreate(&mut handle, $bytes, &properties, 0)) {
            OK => Ok(handle),
            error => Err(error),
        }
    }};
}

fn import(gpu: &Gpu, file: &File) -> u64 {
    let (mut handle, number) = (0, ptr::without_provenance_mut::<c_void>(file.as_raw_fd() as usize));
    assert_eq!(cu!(gpu, cuMemImportFromShareableHandle(&mut handle, number, FD)), OK);
    handle
}

/// Does what it is told, line by line. Does nothing unless a test below started it.
#[test]
fn other() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    let driver = Begun::of(cuda_mem_sim::table());
    let (mut at, mut handle) = (0, 0);
    for line in std::io::stdin().lock().lines().map(Result::unwrap) {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match word {
            "free" => free!(driver).to_string(),
            "alloc" => cu!(driver, cuMemAlloc(&mut at, rest.parse::<usize>().unwrap())).0.to_string(),
            "create" => match create!(driver, rest.parse().unwrap()) {
                Ok(made) => {
                    handle = made;
                    let mut number = -1_i32;
                    let place = (&raw mut number).cast();
                    assert_eq!(cu!(driver, cuMemExportToShareableHandle(place, handle, FD, 0)), OK);
                    format!("/proc/{}/fd/{number}", std::process::id())
                }
                Err(error) => error.0.to_string(),
            },
            "release" => cu!(driver, cuMemRelease(handle)).0.to_string(),
            "open" => {
                let mut opened = CUipcMemHandle_v1::default();
                for (byte, text) in opened.reserved.iter_mut().zip(rest.split(' ')) {
                    *byte = text.parse().unwrap();
                }
                cu!(driver, cuIpcOpenMemHandle(&mut at, opened, 1)).0.to_string()
            }
            word => panic!("{word}"),
        };
        println!("\nanswer {answer}");
    }
}

struct Other {
    child: Child,
    tell: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn of(gpu: &Gpu) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "account::other", "--nocapture"]).env(MARK, "1");
        command.env("CUDA_MEM_SIM", format!("memory=64MiB,account={}", gpu.sim.account().display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (tell, said) =
            (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        Self { child, tell, said }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.tell, "{line}").unwrap();
        let answer = self.said.find_map(|line| Some(line.unwrap().strip_prefix("answer ")?.to_owned()));
        answer.unwrap()
    }

    fn free(&mut self) -> usize {
        self.ask("free").parse().unwrap()
    }

    fn kill(self) {}
}

impl Drop for Other {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn gpu() -> Gpu {
    Gpu::with(Sim::builder().memory(ALL as u64))
}

#[test]
fn what_one_has_the_other_has_not() {
    let gpu = gpu();
    let at = gpu.alloc(40 * MIB);
    let mut other = Other::of(&gpu);
    assert_eq!(other.free(), 24 * MIB);
    let out_of_memory = OUT_OF_MEMORY.0.to_string();
    assert_eq!(other.ask(&format!("alloc {}", 25 * MIB)), out_of_memory);
    assert_eq!(other.ask(&format!("create {}", 26 * MIB)), out_of_memory);
    assert_eq!(other.ask(&format!("alloc {}", 20 * MIB)), "0");
    assert_eq!((free!(gpu), other.free()), (4 * MIB, 4 * MIB));
    assert_eq!(create!(gpu, 6 * MIB), Err(OUT_OF_MEMORY));
    assert_eq!(cu!(gpu, cuMemAlloc(&mut 0, 5 * MIB)), OUT_OF_MEMORY);
    assert_eq!(gpu.free(at), OK);
    assert_eq!(other.free(), 44 * MIB);
    // A third one, of a process that has one already.
    let third = Gpu::with(Sim::builder().memory(ALL as u64).account(gpu.sim.account()));
    third.alloc(4 * MIB);
    assert_eq!(other.free(), 40 * MIB);
    drop(third);
    other.kill();
    // A process that another test is just starting has the third one's files for a moment.
    let until = Instant::now() + Duration::from_secs(10);
    while free!(gpu) != ALL && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(free!(gpu), ALL);
}

#[test]
fn a_forked_child_that_is_the_first_to_begin_counts_for_itself() {
    // What a process makes once is there before the fork: a child would wait for the thread that makes it.
    drop(gpu());
    let sim = Sim::builder().memory(ALL as u64).build();
    let path = sim.account();
    // SAFETY: the child makes driver calls alone, whose locks nobody had in the parent, and then ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let driver = Begun::of(sim.table());
        let done = cu!(driver, cuMemAlloc(&mut 0, 40 * MIB)) == OK && free!(driver) == 24 * MIB;
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above; one status to write.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "what it allocated is counted");
    let driver = Begun::of(sim.table());
    assert_eq!((free!(driver), sim.account()), (ALL, path));
}

#[test]
fn what_only_an_importer_has_counts_once() {
    let gpu = gpu();
    let mut other = Other::of(&gpu);
    let make = |other: &mut Other| {
        File::options().read(true).write(true).open(other.ask(&format!("create {}", 16 * MIB)))
    };
    let first = make(&mut other).unwrap();
    let imported = [import(&gpu, &first), import(&gpu, &first)];
    assert_eq!((free!(gpu), other.free()), (48 * MIB, 48 * MIB));
    assert_eq!(other.ask("release"), "0");
    assert_eq!((free!(gpu), other.free()), (48 * MIB, 48 * MIB));
    let second = import(&gpu, &make(&mut other).unwrap());
    assert_eq!(other.ask(&format!("alloc {}", 10 * MIB)), "0");
    assert_eq!(free!(gpu), 22 * MIB);
    other.kill();
    assert_eq!(free!(gpu), 32 * MIB);
    assert_eq!(cu!(gpu, cuMemRelease(imported[0])), OK);
    assert_eq!(free!(gpu), 32 * MIB);
    for handle in [imported[1], second] {
        assert_eq!(cu!(gpu, cuMemRelease(handle)), OK);
    }
    assert_eq!(free!(gpu), ALL);
}

#[test]
fn what_is_freed_while_another_has_it_open_counts_until_that_is_killed() {
    let gpu = gpu();
    let mut other = Other::of(&gpu);
    let (at, mut handle) = (gpu.alloc(16 * MIB), CUipcMemHandle_v1::default());
    assert_eq!(cu!(gpu, cuIpcGetMemHandle(&mut handle, at)), OK);
    let text: Vec<_> = handle.reserved.iter().map(ToString::to_string).collect();
    assert_eq!(other.ask(&format!("open {}", text.join(" "))), "0");
    assert_eq!((free!(gpu), other.free()), (48 * MIB, 48 * MIB));
    assert_eq!(gpu.free(at), OK);
    assert_eq!(free!(gpu), 48 * MIB);
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE.0.to_string();
    let mut late = Other::of(&gpu);
    assert_eq!(late.ask(&format!("open {}", text.join(" "))), invalid, "it was freed");
    other.kill();
    assert_eq!(free!(gpu), ALL);
}
