//! S1: the source of a copy stays as it is until the scope has waited for the copy.

use cuda_mem_core::{Context, DeviceBuffer, Stream, scope};

fn main() {}

fn write_too_early(context: &Context, stream: &Stream, device: &DeviceBuffer<u8>) {
    let mut source = vec![0u8; 100];
    scope(context, |scope| {
        scope.upload(stream, &source, &device.whole())?;
        source[0] = 1;
        Ok(())
    })
    .unwrap();
}
