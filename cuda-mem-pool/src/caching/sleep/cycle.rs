//! How tags are put to sleep, and how they wake.
//!
//! To sleep: refuse captures, stop allocations, wait for the device, copy everything, tell registrants, unmap. A failure before the first
//! unmapping changes nothing. To wake: make all memory, map it, copy while the next segment is mapped, tell registrants. A failure anywhere
//! leaves all of it asleep, with its backup.
//!
//! # Safety
//!
//! Relies on the promise of whoever puts a tag to sleep that nothing that uses it is queued before it wakes. While a tag is busy nobody
//! else changes its segments: its pools hand nothing out and give nothing back.

#![allow(unsafe_code, reason = "unmaps and copies memory that others may use")]

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_mem_core::copy::memset_async;
use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{Context, Stream, catch_panic};

use super::backup::{BackupMemory, joined, len};
use super::mapped::Segment;
use super::{ASLEEP, AWAKE, BUSY, BackingEvent, Backup, Kept, Restore, Slept, Tag, TagShared, Told};
use crate::caching::CachingAllocator;
use crate::caching::callbacks::refuse_watchers;
use crate::caching::shared::DeviceCache;
use crate::error::{Error, Result, SleepError};
use crate::primitive::{Ordering, lock};
use crate::statistics::PoolSize;

/// How long the driver may take to show memory as free.
const SHOWN_WITHIN: Duration = Duration::from_millis(200);

impl Tag {
    /// Puts tags to sleep: their memory goes back to the driver, and their addresses stay.
    ///
    /// Waits for the whole device first, because memory that is in use may be used by streams that nobody recorded. That ends a capture that
    /// the allocator does not know of. What has to stay ([`Tag::keep`]) is named. Memory in a tag that sleeps already is put to sleep as
    /// far as it stayed awake. [`Tag`] has an example.
    ///
    /// # Errors
    ///
    /// Nothing is changed: [`Error::Capturing`] if a stream captures that the allocator knows; [`SleepError::NoBackup`]; [`SleepError::Busy`];
    /// [`SleepError::OtherAllocator`]; [`Error::InCallback`]; [`Error::Core`]. What fails later is in [`Slept::refused`].
    ///
    /// # Safety
    ///
    /// From the call until the tags wake nothing is queued that uses their memory, on any stream, and no graph is launched that does.
    pub unsafe fn sleep(tags: &[&Self], backup: Backup) -> Result<Slept> {
        // SAFETY: the caller's promise.
        unsafe { Self::put_to_sleep(tags, backup, None) }
    }

    /// As [`Tag::sleep`]; with the addresses of the only blocks that there may be, if some are passed.
    ///
    /// # Safety
    ///
    /// As [`Tag::sleep`].
    pub(super) unsafe fn put_to_sleep(
        tags: &[&Self],
        backup: Backup,
        owned: Option<&HashSet<CUdeviceptr>>,
    ) -> Result<Slept> {
        refuse_watchers()?;
        let Some(allocator) = Self::allocator_of(tags)? else { return Ok(Slept::default()) };
        let shared = allocator.shared();
        for stream in shared.known_streams() {
            if stream.is_capturing()? {
                return Err(Error::Capturing);
            }
        }
        let mut cycles = tags.iter().map(|tag| tag.shared.begin()).collect::<Result<Vec<_>>>()?;
        let quiet = cycles.iter().map(|cycle| Quiet::new(shared, cycle)).collect::<Result<Vec<_>>>()?;
        shared.context.synchronize()?;
        shared.context.driver().reclaim();
        shared.poll();
        let plans: Vec<Plan> = cycles.iter().map(|cycle| cycle.tag.plan(shared)).collect();
        if let Some(owned) = owned
            && let Some(address) =
                plans.iter().flat_map(|plan| &plan.blocks).find(|block| !owned.contains(block))
        {
            return Err(SleepError::NotOwned { address: *address }.into());
        }
        let mut slept = Slept::default();
        if backup == Backup::Pinned {
            let stream = Stream::new(&shared.context)?;
            for (cycle, plan) in cycles.iter().zip(&plans) {
                // SAFETY: awake, and nothing runs that could write it, by the caller's promise and the wait above.
                slept.saved += unsafe { cycle.tag.save(&shared.context, plan, &stream) }?;
            }
        }
        // From here on what fails is told.
        for (cycle, plan) in cycles.iter().zip(&plans) {
            slept.kept.extend(plan.kept.iter().cloned());
            slept.told.extend(tell(shared, cycle.tag, true, &plan.ranges()));
        }
        let before = shared.context.memory_info().map(|memory| memory.free);
        for (cycle, plan) in cycles.iter_mut().zip(&plans) {
            // SAFETY: saved or not wanted, nothing uses it, by the caller's promise and the wait above.
            slept.freed += unsafe { plan.unmap(shared, &mut slept.refused) };
            cycle.end = ASLEEP;
        }
        quiet.into_iter().for_each(Quiet::stay);
        slept.missing = before.map_or(0, |before| missing(&shared.context, before, slept.freed));
        Ok(slept)
    }

    /// Wakes tags: their memory comes back at the same addresses, for all devices that had it. All of them or none. Takes what the allocator
    /// has free first. Nothing of a tag that is awake. [`Tag`] has an example.
    ///
    /// What registrants did, who are told when all of it is there.
    ///
    /// # Errors
    ///
    /// [`SleepError::NoMemory`] if the device or the limit has not enough: all of them sleep on, with their backups, and it can be tried
    /// again. [`SleepError::Busy`]; [`SleepError::OtherAllocator`]; [`Error::InCallback`]; [`Error::Core`].
    pub fn wake(tags: &[&Self], restore: Restore) -> Result<Vec<Told>> {
        refuse_watchers()?;
        let Some(allocator) = Self::allocator_of(tags)? else { return Ok(Vec::new()) };
        let shared = allocator.shared();
        let mut cycles = tags.iter().map(|tag| tag.shared.begin()).collect::<Result<Vec<_>>>()?;
        cycles.retain(|cycle| cycle.began == ASLEEP);
        let stream = Stream::new(&shared.context)?;
        let mut waking = Waking { shared, stream: &stream, woken: Vec::new() };
        let needed: usize =
            cycles.iter().map(|cycle| cycle.tag.asleep().iter().map(len).sum::<usize>()).sum();
        let Some(claim) = shared.source.claim(needed)? else {
            let room = shared.source.limit().saturating_sub(shared.source.reserved());
            return Err(no_memory(shared, needed, needed.saturating_sub(room)));
        };
        waking.map(&cycles, restore)?;
        stream.synchronize()?;
        let woken = std::mem::take(&mut waking.woken);
        claim.keep();
        shared.figures.change(|counts| {
            counts.reserved_bytes.increase(PoolSize::Large, needed as u64);
            counts.asleep_bytes = counts.asleep_bytes.saturating_sub(needed as u64);
        });
        let mut told = Vec::new();
        for cycle in &mut cycles {
            cycle.tag.keep_largest_backup();
            shared.private.set_asleep(&cycle.tag.pools(), false);
            cycle.end = AWAKE;
            let of_tag = cycle.tag.memory.segments();
            let is_its = |at: &Range<CUdeviceptr>| of_tag.iter().any(|segment| segment.has(at));
            let ranges: Vec<_> = woken.iter().map(|(_, piece)| piece.clone()).filter(is_its).collect();
            told.extend(tell(shared, cycle.tag, false, &ranges));
        }
        Ok(told)
    }

    /// The allocator of all these tags; none of no tags.
    fn allocator_of<'t>(tags: &[&'t Self]) -> Result<Option<&'t CachingAllocator>> {
        let Some(first) = tags.first() else { return Ok(None) };
        match tags.iter().find(|tag| !Arc::ptr_eq(&tag.allocator.inner, &first.allocator.inner)) {
            Some(tag) => Err(SleepError::OtherAllocator { tag: tag.name().to_owned() }.into()),
            None => Ok(Some(&first.allocator)),
        }
    }
}

/// A tag that somebody puts to sleep, wakes or looks at. When it ends the tag has the phase `end`.
#[derive(Debug)]
pub(super) struct Cycle<'t> {
    tag: &'t TagShared,
    began: u32,
    end: u32,
}

impl Drop for Cycle<'_> {
    fn drop(&mut self) {
        // Release: what was done to the tag is done for whoever begins next.
        self.tag.phase.store(self.end, Ordering::Release);
    }
}

/// The pools of a tag hand nothing out. Unless they stay so they do again when this is dropped, if the tag was awake.
#[derive(Debug)]
struct Quiet<'s> {
    shared: &'s DeviceCache,
    tag: &'s TagShared,
    was_asleep: bool,
}

impl<'s> Quiet<'s> {
    fn new(shared: &'s DeviceCache, cycle: &Cycle<'s>) -> Result<Self> {
        shared.private.set_asleep(&cycle.tag.pools(), true);
        let quiet = Self { shared, tag: cycle.tag, was_asleep: cycle.began == ASLEEP };
        match shared.private.are_leaving(&cycle.tag.pools()) {
            // Another thread gives segments of it back right now.
            true => Err(SleepError::Busy { tag: cycle.tag.name.clone() }.into()),
            false => Ok(quiet),
        }
    }

    fn stay(mut self) {
        self.was_asleep = true;
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        if !self.was_asleep {
            self.shared.private.set_asleep(&self.tag.pools(), false);
        }
    }
}

/// What is to be done with a tag.
#[derive(Debug)]
pub(super) struct Plan {
    /// The pieces that go, each with its segment.
    pieces: Vec<(Arc<Segment>, Range<CUdeviceptr>)>,
    /// What of them is live.
    live: Vec<Range<CUdeviceptr>>,
    /// Where each live block begins.
    blocks: Vec<CUdeviceptr>,
    kept: Vec<Kept>,
}

impl Plan {
    fn ranges(&self) -> Vec<Range<CUdeviceptr>> {
        self.pieces.iter().map(|(_, piece)| piece.clone()).collect()
    }

    /// The bytes that a backup of it takes.
    pub(super) fn saved_bytes(&self) -> usize {
        joined(&self.live, &self.ranges()).iter().map(len).sum()
    }

    /// Unmaps the pieces; the bytes that went. The others are in `refused`.
    ///
    /// # Safety
    ///
    /// Nothing uses them before they wake.
    unsafe fn unmap(&self, shared: &DeviceCache, refused: &mut Vec<(Range<CUdeviceptr>, Error)>) -> usize {
        let mut freed = 0;
        for (segment, piece) in &self.pieces {
            // SAFETY: the caller's promise.
            match unsafe { segment.put_to_sleep(piece.start) } {
                Ok(true) => freed += len(piece),
                Ok(false) => {}
                Err(error) => refused.push((piece.clone(), error.into())),
            }
        }
        shared.source.unclaim(freed);
        shared.figures.change(|counts| {
            counts.reserved_bytes.decrease(PoolSize::Large, freed as u64);
            counts.asleep_bytes += freed as u64;
        });
        freed
    }
}

impl TagShared {
    /// Makes the tag busy, unless somebody else has.
    pub(super) fn begin(&self) -> Result<Cycle<'_>> {
        for began in [AWAKE, ASLEEP] {
            // Acquire: what was done to it before is seen.
            if self.phase.compare_exchange(began, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(Cycle { tag: self, began, end: began });
            }
        }
        Err(SleepError::Busy { tag: self.name.clone() }.into())
    }

    pub(super) fn begin_awake(&self) -> Result<Cycle<'_>> {
        let cycle = self.begin()?;
        if cycle.began == AWAKE {
            Ok(cycle)
        } else {
            Err(SleepError::Asleep { tag: self.name.clone() }.into())
        }
    }

    pub(super) fn begin_asleep(&self) -> Result<Cycle<'_>> {
        let cycle = self.begin()?;
        if cycle.began == ASLEEP {
            Ok(cycle)
        } else {
            Err(SleepError::Awake { tag: self.name.clone() }.into())
        }
    }

    /// Refuses a range of which a part is no memory of the tag, or sleeps.
    pub(super) fn expect_awake(&self, range: &Range<CUdeviceptr>) -> Result<()> {
        let segments = self.memory.segments();
        let Some(segment) = segments.iter().find(|segment| segment.has(range)) else {
            return Err(SleepError::NotOfTag { tag: Some(self.name.clone()), address: range.start }.into());
        };
        let overlaps = |piece: &Range<CUdeviceptr>| piece.start < range.end && range.start < piece.end;
        match segment.pieces(false).iter().any(overlaps) {
            true => Err(SleepError::Asleep { tag: self.name.clone() }.into()),
            false => Ok(()),
        }
    }

    /// The pieces that sleep.
    fn asleep(&self) -> Vec<Range<CUdeviceptr>> {
        self.memory.segments().iter().flat_map(|segment| segment.pieces(false)).collect()
    }

    /// What would go, and what would stay.
    pub(super) fn plan(&self, shared: &DeviceCache) -> Plan {
        let (live, blocks) = shared.private.live(&self.pools());
        let keeps: Vec<_> = lock(&self.keeps).values().cloned().collect();
        let (mut pieces, mut kept) = (Vec::new(), Vec::<Kept>::new());
        for segment in self.memory.segments() {
            for piece in segment.pieces(true) {
                let found =
                    keeps.iter().find(|(range, _)| range.start < piece.end && piece.start < range.end);
                let Some((range, reason)) = found else {
                    pieces.push((Arc::clone(&segment), piece));
                    continue;
                };
                match kept.last_mut().filter(|last| last.range == *range) {
                    Some(last) => last.bytes += len(&piece),
                    None => {
                        let (range, reason) = (range.clone(), reason.clone());
                        kept.push(Kept { range, bytes: len(&piece), reason });
                    }
                }
            }
        }
        Plan { pieces, live, blocks, kept }
    }

    /// Has host memory of so many bytes at hand for the next sleep.
    pub(super) fn reserve_backup(&self, context: &Context, bytes: usize) -> Result<()> {
        let mut backups = lock(&self.backups);
        if backups.iter().any(|backup| backup.bytes() == bytes) {
            return Ok(());
        }
        // The old one goes first: there may not be room for both.
        backups.clear();
        if bytes > 0 {
            backups.push(BackupMemory::new(context, bytes)?);
        }
        Ok(())
    }

    /// Copies what is live of a plan; how many bytes. What was saved when the tag was put to sleep before stays.
    ///
    /// # Safety
    ///
    /// The pieces are awake, and nobody writes them meanwhile.
    unsafe fn save(&self, context: &Context, plan: &Plan, stream: &Stream) -> Result<usize> {
        let ranges = joined(&plan.live, &plan.ranges());
        let bytes = ranges.iter().map(len).sum();
        if bytes == 0 {
            return Ok(0);
        }
        let is_first = self.asleep().is_empty();
        let mut backups = lock(&self.backups);
        let spare = if is_first { backups.pop() } else { None };
        let mut backup = match spare.filter(|spare| spare.bytes() >= bytes) {
            Some(spare) => spare,
            None => BackupMemory::new(context, bytes)?,
        };
        // SAFETY: the caller's promise.
        unsafe { backup.save(&ranges, stream) }?;
        backups.push(backup);
        Ok(bytes)
    }

    /// Keeps one host memory for the next sleep, of those that a tag had which is awake now.
    fn keep_largest_backup(&self) {
        let mut backups = lock(&self.backups);
        let largest = backups.drain(..).max_by_key(BackupMemory::bytes);
        backups.extend(largest.map(BackupMemory::emptied));
    }
}

/// Tags on their way back. What is mapped goes again when this is dropped, unless it was taken out.
struct Waking<'s> {
    shared: &'s DeviceCache,
    stream: &'s Stream,
    woken: Vec<(Arc<Segment>, Range<CUdeviceptr>)>,
}

impl Waking<'_> {
    /// Makes the memory of all tags, maps it, and puts the copies into the stream.
    fn map(&mut self, cycles: &[Cycle<'_>], restore: Restore) -> Result<()> {
        let mut all = Vec::new();
        for cycle in cycles {
            let memory = &cycle.tag.memory;
            let sizes: Vec<usize> = cycle.tag.asleep().iter().map(len).collect();
            let made = match memory.create(&sizes)? {
                Some(made) => made,
                None => {
                    // What the allocator has free, of all streams and pools.
                    self.shared.empty_cache()?;
                    memory.create(&sizes)?.ok_or_else(|| self.refuse(cycles))?
                }
            };
            all.push((cycle, made.into_iter()));
        }
        for (cycle, mut made) in all {
            let devices = cycle.tag.memory.devices();
            for segment in cycle.tag.memory.segments() {
                let pieces = segment.pieces(false);
                let at: Vec<_> = pieces.iter().map(|piece| piece.start).collect();
                segment.wake(&at, made.by_ref().take(at.len()).collect(), &devices)?;
                let first = self.woken.len();
                self.woken.extend(pieces.into_iter().map(|piece| (Arc::clone(&segment), piece)));
                for (_, piece) in &self.woken[first..] {
                    self.fill(cycle.tag, piece, restore)?;
                }
            }
        }
        Ok(())
    }

    fn fill(&self, tag: &TagShared, piece: &Range<CUdeviceptr>, restore: Restore) -> Result<()> {
        match restore {
            Restore::Nothing => Ok(()),
            // SAFETY: mapped just now, and nobody uses it while the tag is busy.
            Restore::Filled(byte) => Ok(unsafe { memset_async(self.stream, piece.start, byte, len(piece)) }?),
            Restore::Backup => {
                let backups = lock(&tag.backups);
                // SAFETY: as above.
                backups.iter().try_for_each(|backup| unsafe { backup.restore(piece, self.stream) })
            }
        }
    }

    fn refuse(&self, cycles: &[Cycle<'_>]) -> Error {
        let needed: usize =
            cycles.iter().map(|cycle| cycle.tag.asleep().iter().map(len).sum::<usize>()).sum();
        let free = self.shared.context.memory_info().map_or(0, |memory| memory.free);
        no_memory(self.shared, needed, needed.saturating_sub(free))
    }
}

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        if self.woken.is_empty() {
            return;
        }
        // Copies may be under way. What cannot be waited for stays mapped.
        if self.stream.synchronize().is_err() {
            return;
        }
        for (segment, piece) in &self.woken {
            // SAFETY: mapped by this, and the copies are done: nobody else uses it while the tag is busy.
            let _ = unsafe { segment.put_to_sleep(piece.start) };
        }
    }
}

/// Tells all registrants of a change, one after the other.
fn tell(cache: &DeviceCache, tag: &TagShared, is_leaving: bool, ranges: &[Range<CUdeviceptr>]) -> Vec<Told> {
    if ranges.is_empty() {
        return Vec::new();
    }
    let registrants = cache.tags.registrants.all();
    let tell = |(id, registrant): &(_, Arc<super::Registrant>)| {
        let began = Instant::now();
        let event = BackingEvent { tag: &tag.name, is_leaving, ranges };
        let error = match catch_panic(|| registrant(&event)) {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(error),
            None => Some("it panicked".to_owned()),
        };
        Told { id: *id, took: began.elapsed(), error }
    };
    registrants.iter().map(tell).collect()
}

/// Of so many bytes that were given back, those that the driver does not show as free, when it had that much before.
fn missing(context: &Context, before: usize, freed: usize) -> usize {
    let until = Instant::now() + SHOWN_WITHIN;
    loop {
        let now = context.memory_info().map_or(before, |memory| memory.free);
        let missing = before.saturating_add(freed).saturating_sub(now);
        if missing == 0 || Instant::now() >= until {
            return missing.min(freed);
        }
        std::thread::yield_now();
    }
}

fn no_memory(cache: &DeviceCache, needed: usize, missing: usize) -> Error {
    SleepError::NoMemory { needed, missing, held: cache.source.reserved() }.into()
}
