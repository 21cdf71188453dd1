//! What the driver of this machine says of itself, as one line of JSON: the raw bindings in use, and what
//! `cargo xtask gpu-test` asks, in a process of its own, before it decides what can run.

use std::error::Error;
use std::ffi::{CStr, c_char};

use cuda_mem_sys::{CUdevice, CUdevice_attribute, CUresult, Table};

fn main() {
    match probe() {
        Ok(found) => println!("{found}"),
        Err(error) => println!("{{\"error\":{}}}", quoted(&error.to_string())),
    }
}

fn probe() -> Result<String, Box<dyn Error>> {
    let table = Table::system()?;
    let init = table.cuInit()?;
    // SAFETY: cuInit may be called at any time, from any thread, with flags 0.
    check(table, "cuInit", unsafe { init(0) })?;
    let get_count = table.cuDeviceGetCount()?;
    let mut count = 0;
    // SAFETY: the function writes one int.
    check(table, "cuDeviceGetCount", unsafe { get_count(&mut count) })?;
    if count == 0 {
        return Err("the driver has no device".into());
    }
    let devices = (0..count).map(|ordinal| device(table, ordinal)).collect::<Result<Vec<_>, _>>()?;
    Ok(format!("{{\"driver\":{},\"devices\":[{}]}}", table.version(), devices.join(",")))
}

fn device(table: &Table, ordinal: i32) -> Result<String, Box<dyn Error>> {
    let mut device: CUdevice = 0;
    let get = table.cuDeviceGet()?;
    // SAFETY: the function writes one device number.
    check(table, "cuDeviceGet", unsafe { get(&mut device, ordinal) })?;

    let get_name = table.cuDeviceGetName()?;
    let name = text(|buffer, length| {
        // SAFETY: the buffer holds `length` bytes, into which the function writes a terminated string.
        check(table, "cuDeviceGetName", unsafe { get_name(buffer, length, device) })
    })?;
    let get_bus = table.cuDeviceGetPCIBusId()?;
    let bus = text(|buffer, length| {
        // SAFETY: as above.
        check(table, "cuDeviceGetPCIBusId", unsafe { get_bus(buffer, length, device) })
    })?;

    let mut memory = 0;
    let total = table.cuDeviceTotalMem()?;
    // SAFETY: the function writes one size.
    check(table, "cuDeviceTotalMem", unsafe { total(&mut memory, device) })?;

    let mut node = -1;
    let get_attribute = table.cuDeviceGetAttribute()?;
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID;
    // SAFETY: the function writes one int. A driver older than the attribute refuses it, and the node stays unknown.
    let _ = unsafe { get_attribute(&mut node, attribute, device) };

    let (name, bus) = (quoted(&name), quoted(&bus));
    Ok(format!("{{\"name\":{name},\"bus\":{bus},\"memory\":{memory},\"numa_node\":{node}}}"))
}

/// The terminated string that a driver function writes into a buffer.
fn text(
    write: impl FnOnce(*mut c_char, i32) -> Result<(), Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    let mut buffer = [0_u8; 256];
    write(buffer.as_mut_ptr().cast(), 256)?;
    Ok(CStr::from_bytes_until_nul(&buffer)?.to_string_lossy().into_owned())
}

/// An error that names the call and the code.
fn check(table: &Table, call: &str, result: CUresult) -> Result<(), Box<dyn Error>> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = std::ptr::null();
    let get_name = table.cuGetErrorName()?;
    // SAFETY: the function writes one pointer: to a static string, or null for a code that it does not know.
    let _ = unsafe { get_name(result, &mut name) };
    if name.is_null() {
        return Err(format!("{call} gave {}", result.0).into());
    }
    // SAFETY: not null, so a terminated string that lives as long as the driver, which is never unloaded.
    let name = unsafe { CStr::from_ptr(name) };
    Err(format!("{call} gave {} ({})", name.to_string_lossy(), result.0).into())
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => quoted.push(' '),
            other => quoted.push(other),
        }
    }
    quoted + "\""
}
