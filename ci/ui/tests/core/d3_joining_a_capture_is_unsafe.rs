//! D3: what draws a stream into a capture is an `unsafe fn`, and a fence is not recorded twice.

use cuda_mem_core::{Event, FenceLine, Stream};

fn main() {}

fn joined(stream: &Stream, event: &Event) {
    stream.join_capture(event).unwrap();
}

fn twice(line: &FenceLine, stream: &Stream) {
    let reserved = line.reserve().unwrap();
    reserved.record(stream).unwrap();
    reserved.record(stream).unwrap();
}
