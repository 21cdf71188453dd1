//! N3: what takes an address or a handle of others is an `unsafe fn`.

use cuda_mem_core::stream_mem::{self, WaitFlags};
use cuda_mem_core::vmm::{AddressRange, PhysicalMemory};
use cuda_mem_core::{Context, Device, Stream, copy};

fn main() {}

fn addresses(stream: &Stream) {
    copy::memcpy_async(stream, 1, 2, 3).unwrap();
    stream_mem::write_value64(stream, 1, 2).unwrap();
    stream_mem::wait_value64(stream, 1, 2, WaitFlags::EQUAL).unwrap();
}

fn handles(device: Device, context: &Context) {
    Context::borrow_raw(device, std::ptr::null_mut());
    Stream::borrow_raw(context, std::ptr::null_mut()).unwrap();
}

fn mappings(device: Device, range: &AddressRange) {
    range.unmap(0, 2 << 20).unwrap();
    PhysicalMemory::from_raw(device.driver(), 1, 2 << 20);
}
