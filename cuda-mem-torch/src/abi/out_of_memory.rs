//! The text of an out-of-memory error: PyTorch's words, then the allocator's report, which ends with what would help.

use std::ffi::c_int;
use std::fmt::Write as _;

use cuda_mem_ipc::cuda_mem_pool::Error;
use cuda_mem_ipc::cuda_mem_pool::caching::OutOfMemoryReport;

use super::devices::DEVICES;
use super::error::{CUDA_MEM_TORCH_OUT_OF_MEMORY, Failure};
use crate::error::{Bytes, out_of_memory};

/// Why an allocation failed. A lack of memory is told in PyTorch's words first, which programs look for.
#[cold]
pub(super) fn failure(device: c_int, bytes: usize, error: Error) -> Failure {
    match error {
        Error::DeviceOutOfMemory(report) => of_report(&report),
        Error::TooLarge { .. } => without_report(device, bytes, &error),
        error if error.is_out_of_memory() => without_report(device, bytes, &error),
        error => error.into(),
    }
}

fn of_report(report: &OutOfMemoryReport) -> Failure {
    let (device, free) = (report.device.as_raw(), report.free.unwrap_or(0));
    let mut text = out_of_memory(device, report.requested, report.total, Some(free));
    let own = std::process::id();
    for process in report.processes.iter().flatten() {
        let Some(used) = process.bytes.and_then(|used| usize::try_from(used).ok()) else { continue };
        // Text that goes into a String cannot fail.
        let _ = if process.pid == own {
            write!(text, "Including non-PyTorch memory, this process has {} memory in use. ", Bytes(used))
        } else {
            write!(text, "Process {} has {} memory in use. ", process.pid, Bytes(used))
        };
    }
    if let Some(limit) = report.limit {
        let _ = write!(text, "{} allowed; ", Bytes(limit));
    }
    let unallocated = report.reserved.saturating_sub(report.live);
    let _ = write!(
        text,
        "Of the allocated memory {} is allocated by PyTorch, and {} is reserved by PyTorch but unallocated.",
        Bytes(report.live),
        Bytes(unallocated)
    );
    let _ = write!(text, "\ncuda-mem: {report}");
    Failure::new(CUDA_MEM_TORCH_OUT_OF_MEMORY, text)
}

fn without_report(device: c_int, bytes: usize, error: &Error) -> Failure {
    let memory = DEVICES.get(device).and_then(|device| device.context.memory_info().ok());
    let (free, total) = memory.map_or((0, 0), |memory| (memory.free, memory.total));
    let text = out_of_memory(device, bytes, total, Some(free));
    Failure::new(CUDA_MEM_TORCH_OUT_OF_MEMORY, format!("{text}\ncuda-mem: {error}"))
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn sizes_are_written_as_pytorch_does() {
        let sizes = [1024, 1025, 1 << 20, (1 << 20) + 1, 1 << 30, (1 << 30) + (1 << 29)]
            .map(|bytes| Bytes(bytes).to_string());
        assert_eq!(sizes, ["1024 bytes", "1.00 KiB", "1024.00 KiB", "1.00 MiB", "1024.00 MiB", "1.50 GiB"]);
    }
}
