//! S1, B2: memory that is made inside a scope does not live until its end.

use cuda_mem_core::{Context, DeviceBuffer, Stream, scope};

fn main() {}

fn dies_too_early(context: &Context, stream: &Stream, device: &DeviceBuffer<u8>) {
    scope(context, |scope| {
        let source = vec![0u8; 100];
        scope.upload(stream, &source, &device.whole())
    })
    .unwrap();
}
