//! S1: the target of a copy is out of everybody's sight until the scope has waited for the copy.

use cuda_mem_core::{Context, DeviceBuffer, Stream, scope};

fn main() {}

fn read_too_early(context: &Context, stream: &Stream, device: &DeviceBuffer<u8>) {
    let mut target = vec![0u8; 100];
    scope(context, |scope| {
        scope.download(stream, &device.whole(), &mut target)?;
        println!("{}", target[0]);
        Ok(())
    })
    .unwrap();
}
