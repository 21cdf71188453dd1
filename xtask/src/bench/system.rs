//! What the figures were measured on, as far as it moves them.

use std::fs;

use serde::Serialize;

use crate::gpu_test::Machine;

/// The state of the machine before the first round.
#[derive(Debug, Serialize)]
pub(crate) struct State {
    #[serde(flatten)]
    pub(crate) machine: Machine,
    /// The version of the kernel module, which tells more than the CUDA version.
    pub(crate) driver_module: Option<String>,
    pub(crate) processor: Option<String>,
    pub(crate) transparent_huge_pages_defrag: Option<String>,
    /// Pages that are set aside for mappings that ask for huge pages by name.
    pub(crate) reserved_huge_pages: Option<u64>,
    pub(crate) memory_total: Option<u64>,
    pub(crate) memory_available: Option<u64>,
    /// Bytes that may be locked, or `unlimited`.
    pub(crate) locked_memory_limit: Option<String>,
}

impl State {
    pub(crate) fn read(machine: Machine) -> Self {
        Self {
            machine,
            driver_module: read("/proc/driver/nvidia/version").and_then(|text| after_colon(&text)),
            processor: read("/proc/cpuinfo").and_then(|text| {
                let line = text.lines().find(|line| line.starts_with("model name"))?;
                after_colon(line)
            }),
            transparent_huge_pages_defrag: read("/sys/kernel/mm/transparent_hugepage/defrag")
                .and_then(|text| text.split(['[', ']']).nth(1).map(str::to_owned)),
            reserved_huge_pages: meminfo("HugePages_Total"),
            memory_total: meminfo("MemTotal").map(|kib| kib << 10),
            memory_available: available_memory(),
            locked_memory_limit: read("/proc/self/limits").and_then(|text| lock_limit(&text)),
        }
    }
}

/// Bytes that programs can have without the kernel taking them from others.
pub(crate) fn available_memory() -> Option<u64> {
    meminfo("MemAvailable").map(|kib| kib << 10)
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn meminfo(name: &str) -> Option<u64> {
    number(&read("/proc/meminfo")?, name)
}

/// The number in the line `name: number ...`.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn after_colon(text: &str) -> Option<String> {
    let (_, rest) = text.lines().next()?.split_once(':')?;
    Some(rest.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The soft limit, which is the one that counts.
fn lock_limit(limits: &str) -> Option<String> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_files_are_understood() {
        let meminfo = "MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\nHugePages_Total:       3\n";
        assert_eq!(number(meminfo, "MemAvailable"), Some(20_000_000));
        assert_eq!(number(meminfo, "HugePages_Total"), Some(3));
        assert_eq!(number(meminfo, "Mem"), None);
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608   unlimited   bytes\n";
        assert_eq!(lock_limit(limits), Some("8388608".to_owned()));
        let module = "NVRM version: NVIDIA UNIX  580.1  Release\nGCC version: 1\n";
        assert_eq!(after_colon(module), Some("NVIDIA UNIX 580.1 Release".to_owned()));
    }
}
