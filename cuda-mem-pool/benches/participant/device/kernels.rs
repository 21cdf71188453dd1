//! The simulator's test kernels, which run on hardware too, with grids as large as a measure wants.

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::ptr;

use cuda_mem_pool::cuda_mem_core::sys::{CUfunction, CUmodule, CUresult};
use cuda_mem_pool::cuda_mem_core::{Context, Stream};

/// The kernels, loaded for as long as the process lives.
pub(crate) struct Kernels {
    context: Context,
    module: CUmodule,
}

/// A kernel.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(CUfunction);

impl Kernels {
    pub(crate) fn load(context: &Context) -> Result<Self, Box<dyn Error>> {
        let mut module: CUmodule = ptr::null_mut();
        let image = CStr::from_bytes_with_nul(cuda_mem_sim::TEST_KERNELS.as_bytes())?;
        let load = context.driver().table().cuModuleLoadData()?;
        // SAFETY: one handle to write, and a terminated PTX text; the context is current.
        let code = context.with_current(|| unsafe { load(&mut module, image.as_ptr().cast()) })?;
        succeeded("cuModuleLoadData", code)?;
        Ok(Self { context: context.clone(), module })
    }

    pub(crate) fn find(&self, name: &CStr) -> Result<Kernel, Box<dyn Error>> {
        let mut function: CUfunction = ptr::null_mut();
        let get = self.context.driver().table().cuModuleGetFunction()?;
        // SAFETY: one handle to write, a loaded module and a terminated name; the context is current.
        let code = self.context.with_current(|| unsafe { get(&mut function, self.module, name.as_ptr()) })?;
        succeeded("cuModuleGetFunction", code)?;
        Ok(Kernel(function))
    }

    /// # Safety
    ///
    /// The parameters are those of the kernel, and what they point to lives until the stream has run it.
    pub(crate) unsafe fn launch(
        &self,
        stream: &Stream,
        kernel: Kernel,
        grid: [u32; 2],
        parameters: &[u64],
    ) -> Result<(), Box<dyn Error>> {
        let launch = self.context.driver().table().cuLaunchKernel()?;
        let mut parameters =
            parameters.iter().map(|word| ptr::from_ref(word).cast_mut().cast()).collect::<Vec<*mut c_void>>();
        let [blocks, threads] = grid;
        let run = || {
            let (stream, parameters) = (stream.as_raw().cast(), parameters.as_mut_ptr());
            // SAFETY: the caller's promise; a live stream and function of the current context.
            unsafe { launch(kernel.0, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, ptr::null_mut()) }
        };
        succeeded("cuLaunchKernel", self.context.with_current(run)?)
    }
}

fn succeeded(call: &str, code: CUresult) -> Result<(), Box<dyn Error>> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("{call}: {code:?}").into()) }
}
