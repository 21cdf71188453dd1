//! Who uses a device. No management library knows a simulated one, and not every host with a GPU has the library.

use cuda_mem_core::nvml::{self, Error};

use crate::common::{Backend, World, backend};

#[test]
fn processes_have_no_more_than_the_device() {
    let world = World::new();
    let device = world.context.device();
    match nvml::processes(device) {
        Ok(processes) => {
            assert_eq!(backend(), Backend::Gpu);
            assert!(processes.iter().all(|process| process.pid != 0), "{processes:?}");
            let bytes: u64 = processes.iter().filter_map(|process| process.bytes).sum();
            assert!(bytes <= device.total_memory().unwrap() as u64, "{processes:?}");
        }
        Err(Error::Load(_) | Error::Refused { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}
