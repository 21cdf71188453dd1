//! The test kernels, launched through the raw table as a user's kernels are.

use std::ffi::{CStr, c_void};
use std::ptr;

use cuda_mem_core::sys::{CUdeviceptr, CUfunction, CUmodule, CUresult};
use cuda_mem_core::{Context, Stream};

/// The test kernels, loaded into a context.
pub(crate) struct Kernels {
    context: Context,
    module: CUmodule,
}

impl Kernels {
    pub(crate) fn load(context: &Context) -> Self {
        let mut module: CUmodule = ptr::null_mut();
        let image =
            CStr::from_bytes_with_nul(cuda_mem_sim::TEST_KERNELS.as_bytes()).expect("a terminated text");
        let load = context.driver().table().cuModuleLoadData().expect("cuModuleLoadData");
        // SAFETY: one handle to write, and a terminated PTX text; the context is current.
        let result = context.with_current(|| unsafe { load(&mut module, image.as_ptr().cast()) });
        assert_eq!(result.expect("a current context"), CUresult::CUDA_SUCCESS);
        Self { context: context.clone(), module }
    }

    /// Sets `count` words to `value`.
    ///
    /// # Safety
    ///
    /// `address` is that of `count` words of device memory, which live until the stream has run this.
    pub(crate) unsafe fn fill_u32(&self, stream: &Stream, address: CUdeviceptr, count: u64, value: u32) {
        // SAFETY: the kernel's own parameters, and the caller's promise.
        unsafe { self.launch(stream, c"fill_u32", &[address, count, value.into()]) };
    }

    /// Adds one to each of `count` words.
    ///
    /// # Safety
    ///
    /// As [`Kernels::fill_u32`].
    pub(crate) unsafe fn add_one_u32(&self, stream: &Stream, address: CUdeviceptr, count: u64) {
        // SAFETY: as in `fill_u32`.
        unsafe { self.launch(stream, c"add_one_u32", &[address, count]) };
    }

    /// Copies `count` bytes.
    ///
    /// # Safety
    ///
    /// As [`Kernels::fill_u32`], of both sides.
    pub(crate) unsafe fn copy_u8(
        &self,
        stream: &Stream,
        target: CUdeviceptr,
        source: CUdeviceptr,
        count: u64,
    ) {
        // SAFETY: as in `fill_u32`.
        unsafe { self.launch(stream, c"copy_u8", &[target, source, count]) };
    }

    /// Keeps the stream busy for a time.
    pub(crate) fn spin(&self, stream: &Stream, time: std::time::Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).expect("a short time");
        // SAFETY: the kernel's own parameter; it touches no memory.
        unsafe { self.launch(stream, c"spin_ns", &[nanoseconds]) };
    }

    /// Keeps the stream busy until a word has a value.
    ///
    /// # Safety
    ///
    /// `address` is that of a word that the device can read, which lives until the stream has run this.
    pub(crate) unsafe fn spin_until_u32(&self, stream: &Stream, address: CUdeviceptr, value: u32) {
        // SAFETY: as in `fill_u32`.
        unsafe { self.launch(stream, c"spin_until_u32", &[address, value.into()]) };
    }

    /// # Safety
    ///
    /// The parameters are those of the kernel, and what they point to lives until the stream has run it.
    unsafe fn launch(&self, stream: &Stream, name: &CStr, parameters: &[u64]) {
        let table = self.context.driver().table();
        let get = table.cuModuleGetFunction().expect("cuModuleGetFunction");
        let launch = table.cuLaunchKernel().expect("cuLaunchKernel");
        // A parameter of 32 bits is read from the first half of its word, its low one on every host that CUDA has.
        let mut parameters: Vec<*mut c_void> =
            parameters.iter().map(|word| ptr::from_ref(word).cast_mut().cast()).collect();
        let run = || {
            let mut function: CUfunction = ptr::null_mut();
            // SAFETY: one handle to write, a loaded module and a terminated name.
            let result = unsafe { get(&mut function, self.module, name.as_ptr()) };
            assert_eq!(result, CUresult::CUDA_SUCCESS, "{name:?}");
            let (stream, parameters) = (stream.as_raw().cast(), parameters.as_mut_ptr());
            // SAFETY: the caller's promise; a live stream and function of the current context.
            unsafe { launch(function, 1, 1, 1, 128, 1, 1, 0, stream, parameters, ptr::null_mut()) }
        };
        let result = self.context.with_current(run).expect("a current context");
        assert_eq!(result, CUresult::CUDA_SUCCESS, "{name:?}");
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let unload = self.context.driver().table().cuModuleUnload().expect("cuModuleUnload");
        // SAFETY: loaded here and unloaded once; the context is current.
        let _ = self.context.with_current(|| unsafe { unload(self.module) });
    }
}
