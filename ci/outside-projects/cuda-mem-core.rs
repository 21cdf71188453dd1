//! A program whose only dependency is cuda-mem-core: pins a vector in place, copies it to each device and back.

use cuda_mem_core::host::{RegisterFlags, Registered};
use cuda_mem_core::{DeviceBuffer, Driver, Stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for device in Driver::system()?.devices()? {
        let context = device.primary_context()?;
        let stream = Stream::new(&context)?;
        let pinned = Registered::new(&context, vec![42_u8; 1 << 20], RegisterFlags::default())?;
        let buffer = DeviceBuffer::from_slice(&stream, pinned.as_slice()?)?;
        assert_eq!(buffer.to_vec(&stream)?, pinned.as_slice()?);
        println!("1 MiB to {} and back", device.name()?);
    }
    Ok(())
}
