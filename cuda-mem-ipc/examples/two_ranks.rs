//! Reads what the other rank has written: `two_ranks 0 DIRECTORY` beside `two_ranks 1 DIRECTORY`.
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Stream};
use cuda_mem_ipc::symmetric::{Group, GroupOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (rank, directory) = (std::env::args().nth(1), std::env::args().nth(2));
    let (rank, directory) = (rank.ok_or("which rank?")?.parse()?, directory.ok_or("which directory?")?);
    let context = Driver::system()?.device(0)?.primary_context()?;
    let stream = Stream::new(&context)?;
    let group = Group::join(&context, "job", rank, 2, directory, &GroupOptions::default())?;
    let buffer = group.alloc::<f32>(1 << 20)?;
    buffer.of(rank)?.as_range()?.copy_from_slice(&stream, &vec![rank as f32; 1 << 20])?;
    group.barrier(&stream)?; // both have written
    let theirs = DeviceBuffer::<f32>::uninit(&stream, buffer.len())?;
    theirs.whole().copy_from(&stream, &buffer.of(1 - rank)?.as_range()?)?;
    group.barrier(&stream)?; // both have read
    assert!(theirs.to_vec(&stream)?.iter().all(|value| *value == (1 - rank) as f32));
    Ok(group.check()?)
}
