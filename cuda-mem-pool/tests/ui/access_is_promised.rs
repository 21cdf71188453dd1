//! Who says that the host reaches a resource's memory answers for it: a resource over device memory that claimed so would make
//! slices of it.

use std::sync::Arc;

use cuda_mem_pool::{DeviceMemoryResource, Home, HostDeviceAccessible, MemoryResource, RawResource};

fn main() {}

#[derive(Clone)]
struct Liar(DeviceMemoryResource);

impl MemoryResource for Liar {
    type Access = HostDeviceAccessible;

    fn raw(&self) -> Arc<dyn RawResource> {
        self.0.raw()
    }

    fn home(&self) -> &Home {
        self.0.home()
    }
}

struct Everybody;

impl cuda_mem_pool::Accessibility for Everybody {
    const HOST: bool = true;
    const DEVICE: bool = true;
}
