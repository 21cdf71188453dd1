//! What the integration tests share: a simulator with a context, and calls that check their results.

#![allow(dead_code, unused_imports, unused_macros, reason = "each test uses its part")]
#![allow(clippy::missing_panics_doc, reason = "tests panic")]

use std::ptr;

use cuda_mem_sim::{Builder, Sim};
use cuda_mem_sys::*;

/// Calls a function of a table and gives its result code.
macro_rules! code {
    ($table:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let function = $table.$function().expect(stringify!($function));
        // SAFETY: arguments as the driver's manual asks for them; the tests that break its rules do so on the simulator,
        // which checks.
        let result = unsafe { function($($argument),*) };
        result.0
    }};
}

/// Calls a function of a table, which must succeed.
macro_rules! ok {
    ($table:expr, $function:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(code!($table, $function($($argument),*)), 0, stringify!($function))
    };
}

pub(crate) use {code, ok};

/// A simulator whose primary context of device 0 is current to the thread that made it.
pub(crate) struct Machine {
    pub(crate) sim: Sim,
    pub(crate) table: &'static Table,
    pub(crate) context: CUcontext,
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self::of(Sim::builder())
    }

    pub(crate) fn of(builder: Builder) -> Self {
        let sim = builder.build();
        let table = sim.table();
        ok!(table, cuInit(0));
        let mut context = ptr::null_mut();
        ok!(table, cuDevicePrimaryCtxRetain(&mut context, 0));
        ok!(table, cuCtxSetCurrent(context));
        Self { sim, table, context }
    }

    /// A stream: blocking with flags 0, non-blocking with 1.
    pub(crate) fn stream(&self, flags: u32) -> CUstream {
        let mut stream = ptr::null_mut();
        ok!(self.table, cuStreamCreate(&mut stream, flags));
        stream
    }

    pub(crate) fn event(&self, flags: u32) -> CUevent {
        let mut event = ptr::null_mut();
        ok!(self.table, cuEventCreate(&mut event, flags));
        event
    }

    pub(crate) fn memory(&self, bytes: usize) -> CUdeviceptr {
        let mut pointer = 0;
        ok!(self.table, cuMemAlloc(&mut pointer, bytes));
        pointer
    }

    /// One word of device memory.
    pub(crate) fn word(&self, at: CUdeviceptr) -> u32 {
        let mut word = 0_u32;
        ok!(self.table, cuMemcpyDtoH((&raw mut word).cast(), at, 4));
        word
    }

    /// A stream-ordered barrier that [`open`](Gate::open) opens: what a stream is given behind it waits.
    pub(crate) fn gate(&self, stream: CUstream) -> Gate {
        let mut host = ptr::null_mut();
        ok!(self.table, cuMemHostAlloc(&mut host, 4096, 0));
        let word = host.cast::<u32>();
        // SAFETY: a page of pinned memory that nobody else has yet.
        unsafe { word.write_volatile(0) };
        ok!(self.table, cuStreamWaitValue32(stream, word.addr() as u64, 1, 1));
        Gate { word }
    }

    pub(crate) fn kernel(&self, name: &std::ffi::CStr) -> CUfunction {
        let mut module = ptr::null_mut();
        ok!(self.table, cuModuleLoadData(&mut module, cuda_mem_sim::TEST_KERNELS.as_ptr().cast()));
        let mut function = ptr::null_mut();
        ok!(self.table, cuModuleGetFunction(&mut function, module, name.as_ptr()));
        function
    }

    /// Launches a kernel whose arguments are all of 64 bits, but for the last words given.
    pub(crate) fn launch(&self, function: CUfunction, stream: CUstream, arguments: &[u64]) -> u32 {
        let mut arguments = arguments.to_vec();
        let mut pointers: Vec<*mut std::ffi::c_void> =
            arguments.iter_mut().map(|argument| (&raw mut *argument).cast()).collect();
        code!(
            self.table,
            cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, pointers.as_mut_ptr(), ptr::null_mut())
        )
    }
}

/// See [`Machine::gate`].
pub(crate) struct Gate {
    word: *mut u32,
}

impl Gate {
    pub(crate) fn open(&self) {
        // SAFETY: the page stays allocated for the life of the simulator, and the wait reads it in one piece.
        unsafe { self.word.write_volatile(1) };
    }
}

/// The codes that tests name most.
pub(crate) const NOT_READY: u32 = 600;
