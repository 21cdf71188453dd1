//! Fills one pinned buffer while the other one is copied to the device.
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::host::PinnedFlags;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{
    DeviceBuffer, Driver, PinnedBuffer, Result, Stream, Transfer,
};

const PART: usize = 1 << 18;

fn main() -> Result<()> {
    let context = Driver::system()?.device(0)?.primary_context()?;
    let stream = Stream::new(&context)?;
    let device = DeviceBuffer::<f32>::uninit(&stream, 8 * PART)?;
    let pinned = || PinnedBuffer::<f32>::zeroed(&context, PART, PinnedFlags::default());
    let (mut upload, mut spare) = (Transfer::upload(&stream, pinned()?, &device.range(..PART)?)?, pinned()?);
    for part in 1..8 {
        spare.as_mut_slice()?.fill(part as f32); // while the copy before runs
        let next = Transfer::upload(&stream, spare, &device.range(part * PART..(part + 1) * PART)?)?;
        spare = std::mem::replace(&mut upload, next).wait()?; // or `.await`
    }
    upload.wait().map(drop)?;
    assert_eq!(device.to_vec(&stream)?.last(), Some(&7.0));
    Ok(())
}
