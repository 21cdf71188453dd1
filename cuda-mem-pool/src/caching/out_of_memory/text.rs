//! The report as people read it.

use std::fmt;

use super::{CachePool, CachedMemory, OutOfMemoryReport};

/// Bytes in the unit that suits them.
#[derive(Clone, Copy)]
pub(super) struct Bytes(pub(super) usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.into_iter().find(|(_, shift)| self.0 >> shift > 0) {
            Some((unit, shift)) => write!(f, "{:.2} {unit}", self.0 as f64 / (1u64 << shift) as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl fmt::Display for OutOfMemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.as_raw();
        write!(f, "out of memory on CUDA device {device}: {} were asked for", Bytes(self.requested))?;
        match self.free {
            Some(free) => write!(f, "; the device has {} free of {}.", Bytes(free), Bytes(self.total))?,
            None => write!(f, "; the device has {} and does not say what is free.", Bytes(self.total))?,
        }
        write!(f, " This allocator holds {}", Bytes(self.reserved))?;
        if let Some(limit) = self.limit {
            write!(f, " and may hold {}", Bytes(limit))?;
        }
        write!(f, ": {} in blocks in use, {} in freed blocks", Bytes(self.live), Bytes(self.pending))?;
        write!(f, " that streams still use, {} free", Bytes(self.cached_bytes()))?;
        for (at, cached) in self.cached.iter().enumerate() {
            write!(f, "{}{cached}", if at == 0 { " (" } else { "; " })?;
        }
        f.write_str(if self.cached.is_empty() { "." } else { ")." })?;
        if self.pinned > 0 {
            write!(f, " Pins keep {} where they are.", Bytes(self.pinned))?;
        }
        write!(f, " The largest block that would have fitted has {}.", Bytes(self.largest))?;
        self.write_processes(f)?;
        for (at, advice) in self.advice.iter().enumerate() {
            write!(f, "{}{advice}", if at == 0 { " What would help: " } else { "; " })?;
        }
        f.write_str(".")
    }
}

impl OutOfMemoryReport {
    fn write_processes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(processes) = &self.processes else {
            return f.write_str(" Who else uses the device is not known.");
        };
        for (at, process) in processes.iter().enumerate() {
            f.write_str(if at == 0 { " On the device: " } else { ", " })?;
            write!(f, "process {}", process.pid)?;
            if process.pid == std::process::id() {
                f.write_str(" (this one)")?;
            }
            match process.bytes.and_then(|bytes| usize::try_from(bytes).ok()) {
                Some(bytes) => write!(f, " with {}", Bytes(bytes))?,
                None => f.write_str(" with memory of unknown size")?,
            }
        }
        f.write_str(if processes.is_empty() { " No process is known to use the device." } else { "." })
    }
}

impl fmt::Display for CachedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pool {
            CachePool::Stream(stream) => write!(f, "stream {}", stream.as_raw())?,
            CachePool::Private(id) => write!(f, "private pool {id}")?,
        }
        write!(f, ": {}, the longest piece {}", Bytes(self.bytes), Bytes(self.largest))
    }
}
