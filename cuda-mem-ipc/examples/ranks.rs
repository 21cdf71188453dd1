//! Ranks in a ring, each of which reads what the next has written: `ranks RANK RANKS DIRECTORY`, once for every
//! rank. The directory is made with mode 0700; one that exists must have it.
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Stream};
use cuda_mem_ipc::symmetric::{Group, GroupOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given = |place| std::env::args().nth(place).ok_or("usage: ranks RANK RANKS DIRECTORY");
    let (rank, ranks, directory) = (given(1)?.parse::<usize>()?, given(2)?.parse()?, given(3)?);
    let devices = Driver::system()?.devices()?;
    let context = devices[rank % devices.len()].primary_context()?;
    let stream = Stream::new(&context)?;
    let group = Group::join(&context, "job", rank, ranks, directory, &GroupOptions::default())?;
    let (buffer, next) = (group.alloc::<f32>(1 << 20)?, (rank + 1) % ranks);
    buffer.of(rank)?.as_range::<f32>()?.copy_from_slice(&stream, &vec![rank as f32; buffer.len()])?;
    group.barrier(&stream)?; // all have written
    let copy = DeviceBuffer::<f32>::uninit(&stream, buffer.len())?;
    copy.whole().copy_from(&stream, &buffer.of(next)?.as_range()?)?;
    group.barrier(&stream)?; // all have read
    assert!(copy.to_vec(&stream)?.iter().all(|value| *value == next as f32));
    Ok(group.check()?)
}
