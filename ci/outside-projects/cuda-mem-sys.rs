//! A program whose only dependency is cuda-mem-sys: counts the devices.

use cuda_mem_sys::{CUresult, Table};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let table = Table::system()?;
    let (init, get_count) = (table.cuInit()?, table.cuDeviceGetCount()?);
    // SAFETY: cuInit may be called at any time, from any thread, with flags 0.
    assert_eq!(unsafe { init(0) }, CUresult::CUDA_SUCCESS);
    let mut count = 0;
    // SAFETY: the function writes one int.
    assert_eq!(unsafe { get_count(&mut count) }, CUresult::CUDA_SUCCESS);
    assert!(count > 0, "a driver without devices");
    println!("driver {} with {count} devices", table.version());
    Ok(())
}
