//! What the tests of memory share: a simulator with its primary context current, and the calls they make most.

#![allow(dead_code, unused_macros, unused_imports, reason = "each test file uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]
#![allow(clippy::macro_metavars_in_unsafe, reason = "the arguments of a call, which hold no unsafe code")]

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

use cuda_mem_sim::{Builder, Sim};
use cuda_mem_sys::{CUcontext, CUdeviceptr, CUresult, CUstream, Table};

pub(crate) const OK: CUresult = CUresult::CUDA_SUCCESS;
pub(crate) const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
pub(crate) const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

/// Calls a function of a simulator and gives its code.
macro_rules! cu {
    ($gpu:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let function = $gpu.table().$name().unwrap();
        // SAFETY: the arguments point where the driver's manual wants them to, or are such that the call refuses them.
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use cu;

/// Bytes in which no two neighbouring pages are equal.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index ^ (index >> 8) ^ (index >> 16)) as u8).collect()
}

/// A simulator whose first device's primary context is current to this thread.
pub(crate) struct Gpu {
    pub(crate) sim: Sim,
    table: &'static Table,
}

impl Gpu {
    pub(crate) fn new() -> Self {
        Self::with(Sim::builder())
    }

    pub(crate) fn with(builder: Builder) -> Self {
        let sim = builder.build();
        let gpu = Self { table: sim.table(), sim };
        let mut context: CUcontext = ptr::null_mut();
        assert_eq!(cu!(gpu, cuInit(0)), OK);
        assert_eq!(cu!(gpu, cuDevicePrimaryCtxRetain(&mut context, 0)), OK);
        assert_eq!(cu!(gpu, cuCtxSetCurrent(context)), OK);
        gpu
    }

    pub(crate) fn table(&self) -> &'static Table {
        self.table
    }

    #[track_caller]
    pub(crate) fn alloc(&self, len: usize) -> CUdeviceptr {
        let mut at = 0;
        assert_eq!(cu!(self, cuMemAlloc(&mut at, len)), OK);
        at
    }

    pub(crate) fn free(&self, at: CUdeviceptr) -> CUresult {
        cu!(self, cuMemFree(at))
    }

    pub(crate) fn h2d(&self, to: CUdeviceptr, from: &[u8]) -> CUresult {
        cu!(self, cuMemcpy(to, from.as_ptr().expose_provenance() as u64, from.len()))
    }

    pub(crate) fn d2h(&self, to: &mut [u8], from: CUdeviceptr) -> CUresult {
        cu!(self, cuMemcpy(to.as_mut_ptr().expose_provenance() as u64, from, to.len()))
    }

    #[track_caller]
    pub(crate) fn pinned(&self, len: usize) -> *mut u8 {
        let mut at: *mut c_void = ptr::null_mut();
        assert_eq!(cu!(self, cuMemHostAlloc(&mut at, len, 0)), OK);
        at.cast()
    }

    #[track_caller]
    pub(crate) fn free_pinned(&self, at: *mut u8) {
        assert_eq!(cu!(self, cuMemFreeHost(at.cast())), OK);
    }

    pub(crate) fn register(&self, at: *mut c_void, len: usize, flags: u32) -> CUresult {
        cu!(self, cuMemHostRegister(at, len, flags))
    }

    pub(crate) fn unregister(&self, at: *mut c_void) -> CUresult {
        cu!(self, cuMemHostUnregister(at))
    }

    /// A stream that ignores the null stream.
    #[track_caller]
    pub(crate) fn stream(&self) -> CUstream {
        let mut stream = ptr::null_mut();
        assert_eq!(cu!(self, cuStreamCreate(&mut stream, 1)), OK);
        stream
    }

    #[track_caller]
    pub(crate) fn synchronize(&self, stream: CUstream) {
        assert_eq!(cu!(self, cuStreamSynchronize(stream)), OK);
    }

    #[track_caller]
    pub(crate) fn destroy_stream(&self, stream: CUstream) {
        assert_eq!(cu!(self, cuStreamDestroy(stream)), OK);
    }

    #[track_caller]
    pub(crate) fn assert_no_misuse(&self) {
        let misuse = self.sim.misuse();
        assert!(misuse.is_empty(), "{misuse:#?}");
    }

    /// Nothing was misused, and nothing but the primary context is left.
    #[track_caller]
    pub(crate) fn assert_quiet(&self) {
        self.assert_no_misuse();
        let leaks = self.sim.leaks();
        assert!(leaks.iter().all(|leak| leak.what == "retained primary context"), "{leaks:#?}");
    }
}

/// Pages of the program, unmapped when dropped.
pub(crate) struct Mapping {
    at: *mut c_void,
    len: usize,
}

impl Mapping {
    pub(crate) fn anonymous(len: usize) -> Self {
        Self::new(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// A new file of `len` bytes on disk, mapped with a protection.
    pub(crate) fn file(len: usize, protection: i32) -> (File, Self) {
        // Beside the program, because the directory for temporary files may lie in memory.
        let folder = env!("CARGO_TARGET_TMPDIR");
        let thread = std::thread::current().id();
        let path = format!("{folder}/cuda-mem-sim-{}-{thread:?}", std::process::id());
        std::fs::write(&path, pattern(len)).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let map = Self::new(len, protection, libc::MAP_SHARED, file.as_raw_fd());
        (file, map)
    }

    fn new(len: usize, protection: i32, flags: i32, fd: i32) -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at, len }
    }

    pub(crate) fn at(&self, offset: usize) -> *mut c_void {
        self.at.wrapping_byte_add(offset)
    }

    pub(crate) fn protect(&self, offset: usize, len: usize, protection: i32) {
        // SAFETY: pages of this mapping, to which no reference exists.
        assert_eq!(unsafe { libc::mprotect(self.at(offset), len, protection) }, 0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, to which no reference exists.
        unsafe { libc::munmap(self.at, self.len) };
    }
}
