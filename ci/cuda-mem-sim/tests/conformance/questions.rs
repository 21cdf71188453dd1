//! Many questions about memory in one case, each answered with one code.

use std::ffi::c_void;
use std::fmt::{Display, Write as _};
use std::ptr;

use cuda_mem_sys::{CUdeviceptr, CUresult, CUstream, Table};

use crate::machine::Machine;

/// Calls a function of the driver that is asked, and gives its code.
macro_rules! cu {
    ($questions:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let function = $questions.table.$name().unwrap();
        // SAFETY: the arguments point where the driver's manual wants them to, or are such that the call refuses them.
        #[allow(clippy::macro_metavars_in_unsafe, reason = "arguments of a call, which hold no unsafe code")]
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use cu;

/// Asks one question: the code of a call in a situation.
macro_rules! ask {
    ($questions:expr, $situation:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let code = $crate::questions::cu!($questions, $name($($argument),*));
        $questions.note(stringify!($name), $situation, code);
    }};
}
pub(crate) use ask;

/// What a driver has answered to a family of questions.
pub(crate) struct Questions {
    pub(crate) table: &'static Table,
    answers: String,
}

impl Questions {
    /// Asks a family of questions: `call (situation) code; …`.
    pub(crate) fn answers(machine: &Machine, ask: fn(&mut Self)) -> String {
        let mut questions = Self::new(machine);
        ask(&mut questions);
        questions.answers
    }

    pub(crate) fn new(machine: &Machine) -> Self {
        Self { table: machine.table(), answers: String::new() }
    }

    pub(crate) fn note(&mut self, call: &str, situation: &str, code: CUresult) {
        let separator = if self.answers.is_empty() { "" } else { "; " };
        write!(self.answers, "{separator}{call} ({situation}) {}", code.0).unwrap();
    }

    /// What a driver says where it is more than a code.
    pub(crate) fn fact(&mut self, what: &str, value: impl Display) {
        let separator = if self.answers.is_empty() { "" } else { "; " };
        write!(self.answers, "{separator}{what} {value}").unwrap();
    }

    /// What has to succeed for a question to be asked at all.
    #[track_caller]
    pub(crate) fn expect(&self, code: CUresult) {
        assert_eq!(code, CUresult::CUDA_SUCCESS);
    }

    #[track_caller]
    pub(crate) fn alloc(&self, len: usize) -> CUdeviceptr {
        let mut at = 0;
        self.expect(cu!(self, cuMemAlloc(&mut at, len)));
        at
    }

    #[track_caller]
    pub(crate) fn alloc_async(&self, len: usize, stream: CUstream) -> CUdeviceptr {
        let mut at = 0;
        self.expect(cu!(self, cuMemAllocAsync(&mut at, len, stream)));
        at
    }

    #[track_caller]
    pub(crate) fn pinned(&self, len: usize) -> *mut c_void {
        let mut at = ptr::null_mut();
        self.expect(cu!(self, cuMemHostAlloc(&mut at, len, 0)));
        at
    }

    /// A stream that ignores the null stream.
    #[track_caller]
    pub(crate) fn stream(&self) -> CUstream {
        let mut stream = ptr::null_mut();
        self.expect(cu!(self, cuStreamCreate(&mut stream, 1)));
        stream
    }
}

/// Pages of the program, which stay mapped: the driver may remember them.
pub(crate) fn pages(len: usize, protection: i32) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at
}

/// A device pointer that stands for a host pointer.
pub(crate) fn as_device(at: *mut c_void) -> CUdeviceptr {
    at.addr() as u64
}

/// A host pointer that is the number of a device pointer.
pub(crate) fn as_host(at: CUdeviceptr) -> *mut c_void {
    ptr::without_provenance_mut(at as usize)
}
