//! The inside of a memory pool: which parts of its segments are free, and after which work.
//!
//! A block goes back to its pool when the program calls the free, but only becomes free in the order of a stream. So every
//! hole remembers the points it must come after, and an allocation takes it at once only where it comes after all of them
//! in any case.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::blocks::Access;
use super::pool_file::PoolFile;
use super::vmm::Location;
use crate::order::Clock;
use crate::site::Site;

/// A pool, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolId(pub(crate) u64);

/// What blocks of a pool are multiples of.
pub(crate) const BLOCK: u64 = 512;

/// What segments are multiples of where the device has room for that.
pub(crate) const SEGMENT: u64 = 32 << 20;

/// A free: the point in a stream's order after which the memory is nobody's.
#[derive(Debug, Clone)]
pub(crate) struct Freed {
    pub(crate) stream: u64,
    pub(crate) clock: Clock,
    /// Set once the stream has it: before that, what another thread gives the same stream may come before it.
    pub(crate) enqueued: Arc<AtomicBool>,
    /// Set once the stream has come to it.
    pub(crate) reached: Arc<AtomicBool>,
}

impl Freed {
    pub(crate) fn is_reached(&self) -> bool {
        self.reached.load(Ordering::Acquire)
    }

    fn is_enqueued(&self) -> bool {
        self.enqueued.load(Ordering::Acquire)
    }
}

/// Who asks for memory, and what comes before it.
#[derive(Debug)]
pub(crate) struct Asker<'a> {
    pub(crate) stream: u64,
    pub(crate) clock: &'a Clock,
}

/// How a pool may reuse what other streams freed, and how much it keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) follow_event_dependencies: bool,
    pub(crate) allow_opportunistic: bool,
    pub(crate) allow_internal_dependencies: bool,
    /// Synchronisation gives free segments back until no more than this is reserved.
    pub(crate) release_threshold: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            follow_event_dependencies: true,
            allow_opportunistic: true,
            allow_internal_dependencies: true,
            release_threshold: 0,
        }
    }
}

/// A number with the highest value it had.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Level {
    pub(crate) current: u64,
    pub(crate) high: u64,
}

impl Level {
    fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.high = self.high.max(self.current);
    }
}

/// One pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) location: Location,
    /// Whether its memory is managed: reachable by the host and all devices from the start.
    pub(crate) managed: bool,
    pub(crate) exportable: bool,
    /// The file that other processes may map, or that this one was given.
    pub(crate) file: Option<PoolFile>,
    /// 0 for no limit of its own.
    pub(crate) max_size: u64,
    pub(crate) policy: Policy,
    pub(crate) access: Access,
    /// None for the driver's own pools.
    pub(crate) made_by: Option<Site>,
    /// Destroyed by the program, and kept only until its last block is freed.
    pub(crate) destroyed: bool,
    pub(crate) reserved: Level,
    pub(crate) used: Level,
    segments: BTreeMap<u64, u64>,
    holes: BTreeMap<u64, Hole>,
}

#[derive(Debug)]
struct Hole {
    len: u64,
    after: Vec<Freed>,
}

impl Hole {
    fn fits(&self, asker: &Asker<'_>, policy: &Policy) -> bool {
        self.after.iter().all(|freed| {
            let comes_after = freed.stream == asker.stream
                || (policy.follow_event_dependencies && freed.clock.happens_before(asker.clock));
            comes_after && freed.is_enqueued() || (policy.allow_opportunistic && freed.is_reached())
        })
    }

    /// Whether two neighbours may become one hole without one of them waiting for the other's streams.
    fn merges_with(&self, other: &Self) -> bool {
        match (&self.after[..], &other.after[..]) {
            ([], []) => true,
            ([one], [another]) => one.stream == another.stream && one.is_enqueued() && another.is_enqueued(),
            _ => false,
        }
    }
}

impl Pool {
    pub(crate) fn new(location: Location, access: Access) -> Self {
        Self {
            location,
            managed: false,
            exportable: false,
            file: None,
            max_size: 0,
            policy: Policy::default(),
            access,
            made_by: None,
            destroyed: false,
            reserved: Level::default(),
            used: Level::default(),
            segments: BTreeMap::new(),
            holes: BTreeMap::new(),
        }
    }

    /// Adds memory to the pool.
    pub(crate) fn grow(&mut self, start: u64, len: u64) {
        self.segments.insert(start, len);
        self.reserved.add(len);
        self.holes.insert(start, Hole { len, after: Vec::new() });
    }

    /// Takes a block of `len` bytes from the smallest hole whose frees all come before the asker; `used` of them count.
    pub(crate) fn take(&mut self, len: u64, used: u64, asker: &Asker<'_>) -> Option<u64> {
        let fits = |hole: &Hole| hole.len >= len && hole.fits(asker, &self.policy);
        let (&start, _) = self
            .holes
            .iter()
            .filter(|(_, hole)| fits(hole))
            .min_by_key(|(start, hole)| (hole.len, **start))?;
        self.cut(start, len);
        self.used.add(used);
        Some(start)
    }

    /// What must be waited for before a block of `len` bytes can be had without growing.
    pub(crate) fn awaited(&self, len: u64) -> Option<Vec<Freed>> {
        let fitting = self.holes.values().filter(|hole| hole.len >= len);
        fitting.min_by_key(|hole| hole.after.len()).map(|hole| hole.after.clone())
    }

    fn cut(&mut self, start: u64, len: u64) {
        let Some(hole) = self.holes.remove(&start) else { return };
        if hole.len > len {
            self.holes.insert(start + len, Hole { len: hole.len - len, after: hole.after });
        }
    }

    /// Takes a block back that nobody uses after `freed`.
    pub(crate) fn give_back(&mut self, start: u64, len: u64, used: u64, freed: Freed) {
        self.used.current -= used;
        self.holes.insert(start, Hole { len, after: vec![freed] });
        self.merge(start);
    }

    /// Forgets the frees that have been reached, and joins what lies side by side.
    pub(crate) fn settle(&mut self) {
        for hole in self.holes.values_mut() {
            hole.after.retain(|freed| !freed.is_reached());
        }
        let starts: Vec<u64> = self.holes.keys().copied().collect();
        starts.into_iter().for_each(|start| self.merge(start));
    }

    /// Joins the hole at `start` with the one behind it and the one before it, within its segment.
    pub(crate) fn merge(&mut self, start: u64) {
        let Some((&before, _)) = self.holes.range(..start).next_back() else {
            self.merge_pair(start);
            return;
        };
        self.merge_pair(start);
        self.merge_pair(before);
    }

    fn merge_pair(&mut self, start: u64) {
        let Some(hole) = self.holes.get(&start) else { return };
        let end = start + hole.len;
        let Some(next) = self.holes.get(&end) else { return };
        if self.segments.contains_key(&end) || !hole.merges_with(next) {
            return;
        }
        let Some(next) = self.holes.remove(&end) else { return };
        if let Some(hole) = self.holes.get_mut(&start) {
            hole.len += next.len;
            // On one stream the later free comes after the earlier one.
            if let ([one], [another]) = (&mut hole.after[..], &next.after[..])
                && one.clock.happens_before(&another.clock)
            {
                *one = another.clone();
            }
        }
    }

    /// Takes segments out of the pool that are free altogether, until no more than `keep` is reserved.
    pub(crate) fn shrink(&mut self, keep: u64) -> Vec<(u64, u64)> {
        self.settle();
        let free = |start: &u64, len: &u64| {
            self.holes.get(start).is_some_and(|hole| hole.len == *len && hole.after.is_empty())
        };
        let spare: Vec<(u64, u64)> = self
            .segments
            .iter()
            .filter(|(start, len)| free(start, len))
            .map(|(&start, &len)| (start, len))
            .collect();
        let mut given = Vec::new();
        for (start, len) in spare {
            if self.reserved.current <= keep {
                break;
            }
            self.segments.remove(&start);
            self.holes.remove(&start);
            self.reserved.current -= len;
            given.push((start, len));
        }
        given
    }

    /// Whether it is another process's: its blocks are that process's to allocate.
    pub(crate) fn is_imported(&self) -> bool {
        self.file.as_ref().is_some_and(PoolFile::is_imported)
    }

    /// Adds the pages of an imported block, `used` bytes of which are the block's.
    pub(crate) fn add_imported(&mut self, start: u64, len: u64, used: u64) {
        self.segments.insert(start, len);
        self.reserved.add(len);
        self.used.add(used);
    }

    /// Takes the pages of an imported block out again that start at `start`.
    pub(crate) fn remove_imported(&mut self, start: u64) -> Option<u64> {
        let len = self.segments.remove(&start)?;
        self.reserved.current -= len;
        Some(len)
    }

    /// Whether one of its segments holds `at .. at + len`, allocated or free.
    pub(crate) fn holds(&self, at: u64, len: u64) -> bool {
        self.segment_around(at)
            .is_some_and(|(start, room)| at.checked_add(len).is_some_and(|end| end <= start + room))
    }

    /// The segment that an address lies in: its start and length.
    pub(crate) fn segment_around(&self, at: u64) -> Option<(u64, u64)> {
        let (&start, &len) = self.segments.range(..=at).next_back()?;
        (at - start < len).then_some((start, len))
    }
}

#[cfg(test)]
mod tests;
