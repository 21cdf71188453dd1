//! What the kernel counts: this process's resident and pinned pages, and what is left for others.

use std::error::Error;
use std::fs;

/// A reading, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    resident: u64,
    pinned: u64,
    available: u64,
}

impl Reading {
    pub(crate) fn now() -> Result<Self, Box<dyn Error>> {
        let status = fs::read_to_string("/proc/self/status")?;
        let machine = fs::read_to_string("/proc/meminfo")?;
        Ok(Self {
            resident: kib(&status, "VmRSS:").ok_or("the kernel tells no VmRSS")? << 10,
            // Counted by few drivers.
            pinned: kib(&status, "VmPin:").unwrap_or(0) << 10,
            available: kib(&machine, "MemAvailable:").ok_or("the kernel tells no MemAvailable")? << 10,
        })
    }

    /// What has come since, over `requested` bytes: as pages of this process, and as memory that others lack.
    ///
    /// A page may be resident and pinned, so the larger count is taken and not their sum. A driver's own pages are in neither.
    pub(crate) fn since(self, before: Self, requested: u64) -> Vec<(&'static str, f64)> {
        let resident = self.resident.saturating_sub(before.resident);
        let pinned = self.pinned.saturating_sub(before.pinned);
        let taken = before.available.saturating_sub(self.available);
        vec![
            ("resident", resident.max(pinned) as f64 / requested as f64),
            ("taken", taken as f64 / requested as f64),
        ]
    }
}

fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
