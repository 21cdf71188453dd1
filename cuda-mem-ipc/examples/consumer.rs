//! Receives a buffer from the example `producer`, whose first lines say how to run both, and copies it on the device.
use std::time::Duration;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Stream};
use cuda_mem_ipc::shared::Importer;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "trainer".into());
    let limit = Duration::from_secs(60);
    let context = Driver::system()?.device(0)?.primary_context()?;
    let stream = Stream::new(&context)?;
    let importer = Importer::connect(&name, &context, limit)?;
    let received = importer.recv(limit)?;
    let theirs = received.as_range::<f32>()?;
    let mine = DeviceBuffer::<f32>::uninit(&stream, theirs.len())?;
    mine.whole().copy_from(&stream, &theirs)?; // behind the producer's work
    drop(received); // goes back behind the copy
    assert!(mine.to_vec(&stream)?.iter().all(|value| *value == 1.5));
    Ok(())
}
