//! A program whose only dependency is cuda-mem-torch: reaches each device through the layers below.

use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for device in Driver::system()?.devices()? {
        let stream = Stream::new(&device.primary_context()?)?;
        let buffer = DeviceBuffer::from_slice(&stream, &[1.5_f32; 1024])?;
        assert_eq!(buffer.to_vec(&stream)?, [1.5; 1024]);
        println!("4 KiB to {} and back", device.name()?);
    }
    Ok(())
}
