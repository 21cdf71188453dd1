//! Works on the stream and the memory of another binding, such as cudarc. What is promised of its types stands in `binding` alone.
mod binding;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Result, Stream};

fn main() -> Result<()> {
    let context = Driver::system()?.device(0)?.primary_context()?;
    let theirs = binding::CudaStream::new(&context)?;
    let slice = binding::CudaSlice::new(&theirs, 1024)?;
    let found = Stream::borrowed(&theirs, |stream| {
        let ours = DeviceBuffer::from_slice(stream, &[1.5f32; 1024])?;
        slice.as_range()?.copy_from(stream, &ours.whole())?;
        let mut found = vec![0.0; 1024];
        slice.as_range()?.copy_to_slice(stream, &mut found).map(|()| found)
    })??; // from here on their stream may end
    assert_eq!(found, [1.5; 1024]);
    Ok(())
}
