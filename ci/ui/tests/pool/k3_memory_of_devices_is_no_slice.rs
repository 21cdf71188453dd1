//! K3: memory that only devices reach is no slice, nor the source or target of a host's copy.

use cuda_mem_core::host::HostMemory;
use cuda_mem_pool::{Allocation, DeviceAccessible, HostDeviceAccessible, MemoryResource};

fn main() {}

fn read(block: &Allocation<DeviceAccessible>) -> u8 {
    block.as_slice().unwrap()[0]
}

fn write(block: &mut Allocation<DeviceAccessible>) {
    block.as_mut_slice().unwrap()[0] = 1;
}

fn copied(_memory: impl HostMemory) {}

fn copies(block: Allocation<DeviceAccessible>) {
    copied(block);
}

fn takes_what_the_host_reaches(_resource: &impl MemoryResource<Access = HostDeviceAccessible>) {}

fn gives_what_it_does_not(resource: &cuda_mem_pool::TrackingAdaptor<cuda_mem_pool::DeviceMemoryResource>) {
    takes_what_the_host_reaches(resource);
}
