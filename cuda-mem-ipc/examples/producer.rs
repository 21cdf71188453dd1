//! Hands a buffer to the example `consumer`, and waits until it is back. Run both, each with the same name as its argument or none:
//! `cargo run -p cuda-mem-ipc --example producer & cargo run -p cuda-mem-ipc --example consumer`.
use std::time::Duration;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
use cuda_mem_ipc::shared::{Exporter, SharedPool, SharedPoolOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "trainer".into());
    let limit = Duration::from_secs(60);
    let context = Driver::system()?.device(0)?.primary_context()?;
    let stream = Stream::new(&context)?;
    let pool = SharedPool::new(&context, &SharedPoolOptions::default())?;
    let buffer = pool.allocate(4 << 20, &stream)?;
    buffer.as_range::<f32>()?.copy_from_slice(&stream, &vec![1.5; 1 << 20])?;
    let exporter = Exporter::listen(&name, &context, limit)?;
    exporter.hand_over(&buffer, &stream, limit)?;
    Ok(exporter.returned(limit)?)
}
