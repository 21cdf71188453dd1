//! The report of a request that found no device memory: its figures, its text, and advice chosen from the figures.

use std::fmt;

use cuda_mem_core::nvml::ProcessMemory;
use cuda_mem_core::{Device, StreamId};

use crate::mempool_id::MempoolId;

/// What there was when a request failed for lack of device memory, in bytes. Its text says all of it.
///
/// The figures are of about the same moment: other threads may allocate meanwhile. [`Error`](crate::Error) has an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemoryReport {
    /// The device.
    pub device: Device,
    /// What was asked for.
    pub requested: usize,
    /// What the device had free, if it said so.
    pub free: Option<usize>,
    /// What the device has in all.
    pub total: usize,
    /// The most that this allocator may hold, if [that is limited](crate::caching::CachingAllocator::set_memory_fraction).
    pub limit: Option<usize>,
    /// What it holds.
    pub reserved: usize,
    /// What of this is in allocated blocks. For those of tags that sleep nothing is held.
    pub live: usize,
    /// What is in blocks that were freed and that streams still use.
    pub pending: usize,
    /// What is in no block, by the pool that has it; pools without any, and those that sleep, are left out.
    pub cached: Vec<CachedMemory>,
    /// What has to stay where it is because it is [pinned](crate::caching::CachingAllocator::pin), in use or not.
    pub pinned: usize,
    /// The largest block that this stream would have got, without anything being freed: of the private pool that was asked, or of the default
    /// pool and those that lend in need. What a private pool's own source would have given is not known, and not counted.
    pub largest: usize,
    /// The processes that have a context on the device, this one too, as far as NVIDIA's management library is there and knows.
    pub processes: Option<Vec<ProcessMemory>>,
    /// What would help, chosen from the figures.
    pub advice: Vec<Advice>,
}

/// What a pool has free. [`Error`](crate::Error) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedMemory {
    /// Which private pool; [`MempoolId::NONE`] for the default one.
    pub pool: MempoolId,
    /// Of the default pool, the stream whose part it is.
    pub stream: Option<StreamId>,
    /// The stream's handle, by which the text names it; 0 without a stream.
    pub handle: u64,
    /// The bytes that are in no block.
    pub bytes: usize,
    /// The longest piece without a gap.
    pub largest: usize,
}

impl OutOfMemoryReport {
    /// What is in no block, of all pools.
    #[must_use]
    pub fn cached_bytes(&self) -> usize {
        self.cached.iter().fold(0, |sum, cached| sum.saturating_add(cached.bytes))
    }

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
                Some(bytes) => write!(f, " with {}", bytes_of(bytes))?,
                None => f.write_str(" with memory of unknown size")?,
            }
        }
        f.write_str(if processes.is_empty() { " No process is known to use the device." } else { "." })
    }
}

/// What would help a request that failed. The text says how, and what the field is, in bytes. [`Error`](crate::Error) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each text names its field")]
pub enum Advice {
    /// The device does not have as much memory in all.
    #[error("ask for less: the device has {} in all", bytes_of(*.total))]
    LargerThanDevice { total: usize },
    /// The device has the memory, but this allocator may not hold more.
    #[error("raise the limit or the memory fraction, which allow {}", bytes_of(*.limit))]
    RaiseMemoryFraction { limit: usize },
    /// Much of the device is held by others: processes, libraries, other allocators of this process.
    #[error("free memory of other processes, libraries and allocators, which hold {} of the device", bytes_of(*.bytes))]
    EndOthers { bytes: usize },
    /// Much was freed, but streams still use it.
    #[error("wait for the streams that still use {} of freed blocks, or record fewer streams on blocks", bytes_of(*.bytes))]
    AwaitStreams { bytes: usize },
    /// Private pools hold free memory that others do not get.
    #[error("release private pools or their graphs, which have {} free", bytes_of(*.bytes))]
    ReleasePools { bytes: usize },
    /// There is enough free memory, but moving it is switched off.
    #[error("allow moves (CachingOptions::moves), so that free memory becomes one piece")]
    AllowMoves,
    /// There is enough free memory, but it cannot be moved because segments are pinned.
    #[error("end some of the pins that keep {} where they are", bytes_of(*.bytes))]
    Unpin { bytes: usize },
    /// There is enough free memory, but in pieces between blocks that are in use.
    #[error("free blocks next to the {} that are free in pieces, or allocate large blocks first", bytes_of(*.bytes))]
    FreeNeighbours { bytes: usize },
    /// There is room for a block of the size, but not where it was asked for: the pool's source gave no memory, or its segments are larger.
    #[error("ask again, outside of the private pool if it was for one: a block of {} would have fitted", bytes_of(*.largest))]
    AskElsewhere { largest: usize },
    /// Free this much more, or ask for less.
    #[error("free {} more, or ask for less", bytes_of(*.bytes))]
    FreeMore { bytes: usize },
}

/// What the figures say; the surest help first. `bytes` are what the request needs in one piece, what more memory would be added to for that,
/// which is not what is free in a private pool, and the largest block that the default pool would give.
pub(crate) fn choose_advice(report: &OutOfMemoryReport, moves: bool, bytes: [usize; 3]) -> Vec<Advice> {
    let [needed, together, elsewhere] = bytes;
    let OutOfMemoryReport { requested, total, reserved, pending, .. } = *report;
    if requested > total {
        return vec![Advice::LargerThanDevice { total }];
    }
    if let Some(limit) = report.limit.filter(|limit| needed > *limit) {
        return vec![Advice::RaiseMemoryFraction { limit }];
    }
    let mut advice = Vec::new();
    let missing = needed.saturating_sub(together);
    let free = report.free.unwrap_or(0);
    // Of the limit and the device one leaves less. More of that helps up to what the other leaves, and `together` has the smaller one.
    let left = report.limit.map_or(usize::MAX, |limit| limit.saturating_sub(reserved));
    if let Some(limit) = report.limit.filter(|_| left < free && free - left >= missing) {
        advice.push(Advice::RaiseMemoryFraction { limit });
    }
    if pending > 0 && pending >= missing {
        advice.push(Advice::AwaitStreams { bytes: pending });
    }
    let free_in = |is_counted: fn(MempoolId) -> bool| {
        let counted = report.cached.iter().filter(|cached| is_counted(cached.pool));
        counted.map(|cached| cached.bytes).sum::<usize>()
    };
    // A tag's own pool cannot be released.
    let private = free_in(|pool| pool != MempoolId::NONE && !pool.is_tag_s_own());
    if private > 0 && private >= missing {
        advice.push(Advice::ReleasePools { bytes: private });
    }
    let cached = free_in(|pool| pool == MempoolId::NONE);
    if cached >= needed {
        advice.push(match report.pinned {
            _ if !moves => Advice::AllowMoves,
            0 => Advice::FreeNeighbours { bytes: cached },
            bytes => Advice::Unpin { bytes },
        });
    }
    let others = total.saturating_sub(free).saturating_sub(reserved);
    if report.free.is_some() && missing > 0 && others.min(left.saturating_sub(free)) >= missing {
        advice.push(Advice::EndOthers { bytes: others });
    }
    advice.push(match missing {
        0 => Advice::AskElsewhere { largest: elsewhere },
        bytes => Advice::FreeMore { bytes: bytes.max(requested.saturating_sub(report.largest)) },
    });
    advice
}

/// Bytes in the unit that suits them.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.into_iter().find(|(_, shift)| self.0 >> shift > 0) {
            Some((unit, shift)) => write!(f, "{:.2} {unit}", self.0 as f64 / (1u64 << shift) as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

fn bytes_of(bytes: usize) -> Bytes {
    Bytes(bytes as u64)
}

impl fmt::Display for OutOfMemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.as_raw();
        write!(f, "out of memory on CUDA device {device}: {} were asked for", bytes_of(self.requested))?;
        match self.free {
            Some(free) => write!(f, "; the device has {} free of {}.", bytes_of(free), bytes_of(self.total))?,
            None => write!(f, "; the device has {} and does not say what is free.", bytes_of(self.total))?,
        }
        write!(f, " This allocator holds {}", bytes_of(self.reserved))?;
        if let Some(limit) = self.limit {
            write!(f, " and may hold {}", bytes_of(limit))?;
        }
        write!(f, ": {} in blocks in use, {} in freed blocks", bytes_of(self.live), bytes_of(self.pending))?;
        write!(f, " that streams still use, {} free", bytes_of(self.cached_bytes()))?;
        for (at, cached) in self.cached.iter().enumerate() {
            write!(f, "{}{cached}", if at == 0 { " (" } else { "; " })?;
        }
        f.write_str(if self.cached.is_empty() { "." } else { ")." })?;
        if self.pinned > 0 {
            write!(f, " Pins keep {} where they are.", bytes_of(self.pinned))?;
        }
        write!(f, " The largest block that would have fitted has {}.", bytes_of(self.largest))?;
        self.write_processes(f)?;
        for (at, advice) in self.advice.iter().enumerate() {
            write!(f, "{}{advice}", if at == 0 { " What would help: " } else { "; " })?;
        }
        f.write_str(".")
    }
}

impl fmt::Display for CachedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stream {
            Some(_) if self.handle < 16 => write!(f, "stream {}", self.handle)?,
            Some(_) => write!(f, "stream {:#x}", self.handle)?,
            None if self.pool == MempoolId::NONE => f.write_str("streams that have ended")?,
            None => write!(f, "private pool {}", self.pool)?,
        }
        write!(f, ": {}, the longest piece {}", bytes_of(self.bytes), bytes_of(self.largest))
    }
}
