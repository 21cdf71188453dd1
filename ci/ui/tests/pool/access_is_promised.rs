//! Who says that the host reaches a resource's memory answers for it: a resource over device memory that claimed so would make
//! slices of it.

use std::sync::Arc;

use cuda_mem_pool::{DeviceMemoryResource, ResourceContext, HostDeviceAccessible, MemoryResource, RawResource};

fn main() {}

#[derive(Clone)]
struct Liar(DeviceMemoryResource);

impl MemoryResource for Liar {
    type Access = HostDeviceAccessible;

    fn raw(&self) -> Arc<dyn RawResource> {
        self.0.raw()
    }

    fn resource_context(&self) -> &ResourceContext {
        self.0.resource_context()
    }
}
