//! A driver with a current context, whichever it is.

use std::ptr;

use cuda_mem_sim::Sim;
use cuda_mem_sys::*;

/// Calls a function and gives its result code.
macro_rules! code {
    ($machine:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let function = $machine.table().$function().unwrap();
        // SAFETY: the arguments point where the driver's manual wants them to, or are such that it was measured to refuse
        // them.
        unsafe { function($($argument),*) }.0
    }};
}
pub(crate) use code;

/// A driver with the primary context of device 0 current to this thread.
pub(crate) struct Machine {
    table: &'static Table,
    pub(crate) context: CUcontext,
    _sim: Option<Sim>,
}

impl Machine {
    pub(crate) fn simulated() -> Self {
        let sim = Sim::builder().build();
        Self::begin(sim.table(), Some(sim))
    }

    pub(crate) fn real() -> Self {
        Self::begin(Table::system().expect("a driver"), None)
    }

    fn begin(table: &'static Table, sim: Option<Sim>) -> Self {
        let mut machine = Self { table, context: ptr::null_mut(), _sim: sim };
        assert_eq!(code!(machine, cuInit(0)), 0);
        let mut context = ptr::null_mut();
        assert_eq!(code!(machine, cuDevicePrimaryCtxRetain(&mut context, 0)), 0);
        assert_eq!(code!(machine, cuCtxSetCurrent(context)), 0);
        machine.context = context;
        machine
    }

    pub(crate) fn table(&self) -> &'static Table {
        self.table
    }

    pub(crate) fn stream(&self, flags: u32) -> CUstream {
        let mut stream = ptr::null_mut();
        assert_eq!(code!(self, cuStreamCreate(&mut stream, flags)), 0);
        stream
    }

    pub(crate) fn event(&self, flags: u32) -> CUevent {
        let mut event = ptr::null_mut();
        assert_eq!(code!(self, cuEventCreate(&mut event, flags)), 0);
        event
    }

    /// An event without a time that is complete.
    pub(crate) fn done_event(&self) -> CUevent {
        let (event, stream) = (self.event(2), self.stream(1));
        assert_eq!(code!(self, cuEventRecord(event, stream)), 0);
        assert_eq!(code!(self, cuEventSynchronize(event)), 0);
        event
    }

    pub(crate) fn memory(&self, bytes: usize) -> CUdeviceptr {
        let mut pointer = 0;
        assert_eq!(code!(self, cuMemAlloc(&mut pointer, bytes)), 0);
        pointer
    }

    /// A page of pinned memory, as words of zero.
    pub(crate) fn pinned(&self) -> *mut u64 {
        let mut pointer = ptr::null_mut();
        assert_eq!(code!(self, cuMemHostAlloc(&mut pointer, 4096, 0)), 0);
        // SAFETY: a page that was allocated one line above and that nobody else has.
        unsafe { pointer.write_bytes(0, 4096) };
        pointer.cast()
    }

    /// Has a stream wait for the word to be 1.
    pub(crate) fn hold(&self, stream: CUstream, word: *mut u64) {
        assert_eq!(code!(self, cuStreamWaitValue32(stream, word.addr() as u64, 1, 1)), 0);
    }

    /// Lets go of what waits for the word.
    pub(crate) fn release(&self, word: *mut u64) {
        set(word, 1);
    }

    pub(crate) fn kernel(&self, name: &std::ffi::CStr) -> CUfunction {
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(code!(self, cuModuleLoadData(&mut module, cuda_mem_sim::TEST_KERNELS.as_ptr().cast())), 0);
        assert_eq!(code!(self, cuModuleGetFunction(&mut function, module, name.as_ptr())), 0);
        function
    }

    /// Launches a kernel with arguments of 64 bits; shorter ones are their low words.
    pub(crate) fn launch(&self, function: CUfunction, stream: CUstream, arguments: &[u64]) -> u32 {
        let mut arguments = arguments.to_vec();
        let mut pointers: Vec<*mut std::ffi::c_void> =
            arguments.iter_mut().map(|argument| (&raw mut *argument).cast()).collect();
        let none = ptr::null_mut();
        code!(self, cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, pointers.as_mut_ptr(), none))
    }

    /// Runs something on another thread, with the context current there or none.
    pub(crate) fn elsewhere<R: Send>(&self, current: bool, run: impl FnOnce(&Self) -> R + Send) -> R {
        let (table, context) = (self.table, self.context.addr());
        std::thread::scope(|scope| {
            let there = scope.spawn(move || {
                let context = ptr::without_provenance_mut(context);
                let machine = Self { table, context, _sim: None };
                if current {
                    assert_eq!(code!(machine, cuCtxSetCurrent(context)), 0);
                }
                run(&machine)
            });
            there.join().unwrap()
        })
    }
}

/// Writes a word that the device may be watching.
pub(crate) fn set(word: *mut u64, value: u64) {
    // SAFETY: the word lies in a page of pinned memory that is never freed.
    unsafe { word.write_volatile(value) };
}

/// Results as one text.
pub(crate) fn codes(codes: &[u32]) -> String {
    codes.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}
