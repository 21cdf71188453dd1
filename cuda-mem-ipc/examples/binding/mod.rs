//! Stands for another binding of CUDA, such as cudarc: its stream and its memory, with the `unsafe` promises about both.

use std::ffi::c_void;
use std::mem::ManuallyDrop;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{
    Context, DeviceBuffer, DeviceRange, ForeignStream, Result, Stream, Uses,
};

pub(crate) struct CudaStream(Stream);

impl CudaStream {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        Stream::new(context).map(Self)
    }
}

// SAFETY: the handle is a stream of the context, and lives as long as this.
unsafe impl ForeignStream for CudaStream {
    fn context(&self) -> &Context {
        self.0.context()
    }

    fn as_raw(&self) -> *mut c_void {
        self.0.as_raw()
    }
}

pub(crate) struct CudaSlice {
    memory: ManuallyDrop<DeviceBuffer<f32>>,
    uses: Uses,
}

impl CudaSlice {
    pub(crate) fn new(stream: &CudaStream, len: usize) -> Result<Self> {
        let memory = ManuallyDrop::new(DeviceBuffer::zeroed(&stream.0, len)?);
        stream.0.synchronize()?;
        Ok(Self { memory, uses: Uses::new() })
    }

    pub(crate) fn as_range(&self) -> Result<DeviceRange<'_, f32>> {
        let (address, len) = (self.memory.as_raw(), self.memory.len());
        // SAFETY: the memory lives while the uses are borrowed, and is freed once a wait for them has succeeded, or never.
        unsafe { DeviceRange::from_raw_parts(&self.uses, self.memory.context(), address, len) }
    }
}

impl Drop for CudaSlice {
    fn drop(&mut self) {
        // Refused, as beside a capture of a stream that used it, the memory is leaked: work may still use it.
        if self.uses.wait().is_ok() {
            // SAFETY: dropped here alone.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
