//! Which devices there are and who uses them, as NVIDIA's management library (NVML) knows it.
//!
//! The library is optional: it is looked for when it is first needed, and where there is none that is an error like any other.
//!
//! # Safety
//!
//! Relies on the contract of [`cuda_mem_sys::nvml::Table`], and on `nvmlInit_v2` and `nvmlShutdown` being counted, as their
//! documentation states, so that other users of the library in this process do not notice.

#![allow(unsafe_code, reason = "calls library functions")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_uint};
use std::ptr;
use std::sync::{Arc, OnceLock};

use cuda_mem_sys::nvml::{
    LoadError, NVML_DEVICE_NAME_V2_BUFFER_SIZE, NVML_MEMORY_V2, NVML_VALUE_NOT_AVAILABLE, Table,
    nvmlDevice_t, nvmlMemory_v2_t, nvmlProcessInfo_t, nvmlReturn_t, nvmlUtilization_t,
};
use uuid::Uuid;

use crate::driver::Device;

/// A process that uses a device. [`processes`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessMemory {
    /// Its number, in the process namespace that the library sees: in a container that need not be ours.
    pub pid: u32,
    /// The bytes of the device's memory that it has, where the library is told.
    pub bytes: Option<u64>,
}

/// A device, and who uses it. [`devices`] has an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceUse {
    /// Its number in the library's order, which is that of the bus.
    pub index: u32,
    /// What NVIDIA sells it as.
    pub name: String,
    /// `GPU-` and its UUID as people write it.
    pub uuid: String,
    /// The bytes of memory that it has.
    pub total: u64,
    /// The bytes that processes have.
    pub used: u64,
    /// The share of the time in which a kernel ran lately, in per cent, where the device can tell.
    pub busy: Option<u32>,
    /// Who uses it, for computing or for drawing, in the order of their numbers.
    pub processes: Vec<ProcessMemory>,
}

/// Why it is not known who uses a device. [`processes`] has an example.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no management library, or it is too old.
    #[error(transparent)]
    Load(#[from] Arc<LoadError>),
    /// The library refused a call.
    #[error("{call} failed: {text} ({code})")]
    Refused {
        /// The function.
        call: &'static str,
        /// Its result code.
        code: u32,
        /// The library's text for it.
        text: String,
    },
    /// The driver did not tell which device it is.
    #[error(transparent)]
    Driver(#[from] crate::Error),
}

/// The processes that have a context on a device, this one among them, with the memory that each of them has there.
///
/// Wraps [`nvmlDeviceGetComputeRunningProcesses`](https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html). The
/// device is found by its UUID, because the two libraries number devices differently. The library is initialised for the time
/// of the call, which takes milliseconds.
///
/// ```
/// use cuda_mem_core::{Driver, nvml};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// match nvml::processes(driver.device(0)?) {
///     Ok(processes) => println!("{processes:?}"),
///     Err(error) => println!("it is not known who uses the device: {error}"), // no library knows a simulated one
/// }
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Load`] without the library; [`Error::Refused`]: code 6 for a device that it does not know, such as a part of one (MIG), 3 or 4
/// if it may not tell.
pub fn processes(device: Device) -> Result<Vec<ProcessMemory>, Error> {
    processes_with(system()?, device)
}

/// The system's library, loaded once.
fn system() -> Result<&'static Table, Error> {
    static SYSTEM: OnceLock<Table> = OnceLock::new();
    // Before the library is touched: it does not work in a forked child either.
    crate::driver::refuse_forked()?;
    match SYSTEM.get() {
        Some(table) => Ok(table),
        None => {
            let table = Table::system().map_err(Arc::new)?;
            Ok(SYSTEM.get_or_init(|| table))
        }
    }
}

/// As [`processes`], of another library than the system's.
pub fn processes_with(table: &Table, device: Device) -> Result<Vec<ProcessMemory>, Error> {
    // As the library calls it; there is no zero among these letters.
    let name = CString::new(format!("GPU-{}", Uuid::from_bytes(device.uuid()?))).unwrap_or_default();
    let _session = Session::begin(table)?;
    let mut device: nvmlDevice_t = ptr::null_mut();
    // SAFETY: a terminated name and one handle to write; the library is initialised.
    let found = unsafe { table.nvmlDeviceGetHandleByUUID()(name.as_ptr(), &mut device) };
    check(table, "nvmlDeviceGetHandleByUUID", found)?;
    running(
        table,
        device,
        "nvmlDeviceGetComputeRunningProcesses",
        table.nvmlDeviceGetComputeRunningProcesses_v3(),
    )
}

/// A function that lists processes.
type List = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t;

/// What `list`, which is called `name`, lists of a device that the library gave.
fn running(
    table: &Table,
    device: nvmlDevice_t,
    name: &'static str,
    list: List,
) -> Result<Vec<ProcessMemory>, Error> {
    let mut room = 0;
    loop {
        let mut infos = vec![nvmlProcessInfo_t::default(); room];
        let mut count = u32::try_from(room).unwrap_or(u32::MAX);
        // SAFETY: room for `count` entries, and one number to read and write; a handle that the library gave.
        let listed = unsafe { list(device, &mut count, infos.as_mut_ptr()) };
        let count = count as usize;
        // Asked again only for more than there was room for, so this ends.
        if listed == nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE && count > room {
            // Some more, for processes that have just begun.
            room = count.saturating_add(count / 2 + 4);
            continue;
        }
        check(table, name, listed)?;
        return Ok(infos.iter().take(count).map(ProcessMemory::from_raw).collect());
    }
}

/// All devices that the library knows, each with its memory and the processes that use it.
///
/// No context is made, and the driver is not needed. The library is initialised for the time of the call, which takes milliseconds.
///
/// ```
/// match cuda_mem_core::nvml::devices() {
///     Ok(devices) => devices.iter().for_each(|device| println!("{}: {} bytes used", device.name, device.used)),
///     Err(error) => println!("it is not known which devices there are: {error}"),
/// }
/// ```
///
/// # Errors
///
/// [`Error::Load`] without the library; [`Error::Refused`], such as code 9 if the driver is not loaded.
pub fn devices() -> Result<Vec<DeviceUse>, Error> {
    devices_with(system()?)
}

/// As [`devices`], of another library than the system's.
pub fn devices_with(table: &Table) -> Result<Vec<DeviceUse>, Error> {
    let _session = Session::begin(table)?;
    let mut count = 0;
    // SAFETY: one number to write; the library is initialised.
    check(table, "nvmlDeviceGetCount", unsafe { table.nvmlDeviceGetCount_v2()(&mut count) })?;
    (0..count).map(|index| device_use(table, index)).collect()
}

fn device_use(table: &Table, index: u32) -> Result<DeviceUse, Error> {
    let mut device: nvmlDevice_t = ptr::null_mut();
    // SAFETY: one handle to write; the library is initialised.
    let found = unsafe { table.nvmlDeviceGetHandleByIndex_v2()(index, &mut device) };
    check(table, "nvmlDeviceGetHandleByIndex", found)?;
    let name = text(table, "nvmlDeviceGetName", device, table.nvmlDeviceGetName())?;
    let uuid = text(table, "nvmlDeviceGetUUID", device, table.nvmlDeviceGetUUID())?;
    let mut memory = nvmlMemory_v2_t { version: NVML_MEMORY_V2, ..nvmlMemory_v2_t::default() };
    // SAFETY: a handle that the library gave, and a structure of the version that is in it.
    let asked = unsafe { table.nvmlDeviceGetMemoryInfo_v2()(device, &mut memory) };
    check(table, "nvmlDeviceGetMemoryInfo", asked)?;
    let mut busy = nvmlUtilization_t::default();
    // SAFETY: a handle that the library gave, and one structure to write.
    let asked = unsafe { table.nvmlDeviceGetUtilizationRates()(device, &mut busy) };
    let busy = (asked == nvmlReturn_t::NVML_SUCCESS).then_some(busy.gpu);
    let mut processes = BTreeMap::new();
    let lists: [(&'static str, List); 2] = [
        ("nvmlDeviceGetGraphicsRunningProcesses", table.nvmlDeviceGetGraphicsRunningProcesses_v3()),
        ("nvmlDeviceGetComputeRunningProcesses", table.nvmlDeviceGetComputeRunningProcesses_v3()),
    ];
    for (name, list) in lists {
        match running(table, device, name, list) {
            // A process that is in both has the same memory in both.
            Ok(listed) => processes.extend(listed.into_iter().map(|process| (process.pid, process))),
            // A device in pieces tells nothing of graphics, or a user may not ask: the device is shown without.
            Err(Error::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let processes = processes.into_values().collect();
    Ok(DeviceUse { index, name, uuid, total: memory.total, used: memory.used, busy, processes })
}

/// The text that a function of the library writes about a device that it gave.
fn text(
    table: &Table,
    name: &'static str,
    device: nvmlDevice_t,
    ask: unsafe extern "C" fn(nvmlDevice_t, *mut c_char, c_uint) -> nvmlReturn_t,
) -> Result<String, Error> {
    let mut bytes = [0; NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    // SAFETY: a handle that the library gave, and room for as many bytes.
    let asked = unsafe { ask(device, bytes.as_mut_ptr().cast(), bytes.len() as c_uint) };
    check(table, name, asked)?;
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

impl ProcessMemory {
    fn from_raw(raw: &nvmlProcessInfo_t) -> Self {
        let bytes = raw.usedGpuMemory;
        Self { pid: raw.pid, bytes: (bytes != NVML_VALUE_NOT_AVAILABLE).then_some(bytes) }
    }
}

/// The library is initialised while this lives.
struct Session<'t>(&'t Table);

impl<'t> Session<'t> {
    fn begin(table: &'t Table) -> Result<Self, Error> {
        // SAFETY: may be called at any time, and more than once.
        let begun = unsafe { table.nvmlInit_v2()() };
        check(table, "nvmlInit_v2", begun)?;
        Ok(Self(table))
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: once for the initialisation that succeeded. A failure leaves the library initialised, which harms nobody.
        let _ = unsafe { self.0.nvmlShutdown()() };
    }
}

fn check(table: &Table, call: &'static str, result: nvmlReturn_t) -> Result<(), Error> {
    if result == nvmlReturn_t::NVML_SUCCESS {
        return Ok(());
    }
    // SAFETY: any number may be asked for, also before the library is initialised.
    let text = unsafe { table.nvmlErrorString()(result) };
    let text = if text.is_null() {
        "unknown".into()
    } else {
        // SAFETY: a terminated string that is part of the library, which is never unloaded.
        unsafe { CStr::from_ptr(text) }.to_string_lossy()
    };
    Err(Error::Refused { call, code: result.0, text: text.into_owned() })
}
