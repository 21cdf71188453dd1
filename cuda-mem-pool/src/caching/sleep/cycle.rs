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
use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_mem_core::copy::memset_async;
use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::vmm::PhysicalMemory;
use cuda_mem_core::{Context, Error as CoreError, Stream, catch_panic};

use super::backup::{BackupMemory, joined, len};
use super::mapped::Segment;
use super::{ASLEEP, AWAKE, BUSY, BackingEvent, Backup, Kept, Notice, Restore, Slept, Tag, TagShared};
use crate::caching::CachingAllocator;
use crate::caching::callbacks::{Registrant, refuse_watchers};
use crate::caching::grow::unless_lost;
use crate::caching::owner::wait_for;
use crate::caching::shared::DeviceCache;
use crate::caching::source::Claim;
use crate::engine::paged::SLAB;
use crate::engine::segments::Block;
use crate::error::{Error, Result, SleepError, refuse_forked};
use crate::primitive::{Ordering, lock, lock_over_calls};
use crate::snapshot::BlockState;
use crate::statistics::PoolSize;

/// How long the driver may take to show memory as free.
const SHOWN_WITHIN: Duration = Duration::from_millis(200);

impl Tag {
    /// Puts tags to sleep: their memory goes back to the driver, and their addresses stay.
    ///
    /// Waits for the whole device first, because streams that were not recorded may use the memory: other threads' launches wait meanwhile, and a
    /// capture that the allocator does not know of goes on. What has to stay ([`Tag::keep`]) is named. A tag that sleeps already sleeps as far
    /// as it stayed awake. [`Tag`] has an example.
    ///
    /// # Errors
    ///
    /// Nothing is changed: [`CoreError::Capturing`] if a stream captures that the allocator knows; [`SleepError::NoBackup`];
    /// [`SleepError::Busy`]; [`SleepError::OtherAllocator`]. What fails later is in [`Slept::refused`].
    ///
    /// # Safety
    ///
    /// From the call until the tags wake nothing is queued that uses their memory, on any stream, and no graph is launched that does. What was
    /// queued before in contexts other than the allocator's own and those of [its peers](CachingAllocator::enable_peer_access) is done.
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
        shared.streams.refuse_captures("putting a tag to sleep")?;
        let mut cycles = Self::begin_all(tags, shared)?;
        cycles.iter().for_each(|cycle| shared.private.set_asleep(cycle.tag, true));
        let refuse_others = |states: &[BlockState]| {
            let Some(owned) = owned else { return Ok(()) };
            let is_other = |block: &Block| states.contains(&block.state) && !owned.contains(&block.address);
            let other = cycles.iter().find_map(|cycle| shared.private.find(cycle.tag, is_other));
            other.map_or(Ok(()), |address| Err(SleepError::NotOwned { address }))
        };
        // Before the waits: what is freed later may have been given work that they miss.
        refuse_others(&[BlockState::ActiveAllocated])?;
        let peers = lock(&shared.tags.peers).clone();
        // What peers run may use the memory too.
        for context in iter::once(&shared.context).chain(peers.iter().map(|(peer, _)| peer)) {
            // Of those that are known none may capture. Once more, because the driver reports older errors of others in any call.
            context.wait_beside_captures().or_else(|_| context.wait_beside_captures())?;
        }
        shared.context.driver().reclaim();
        shared.poll();
        refuse_others(&[BlockState::ActiveAllocated, BlockState::ActivePendingFree])?;
        let plans: Vec<Plan> = cycles.iter().map(|cycle| cycle.tag.plan(shared)).collect();
        let mut slept = Slept::default();
        if backup == Backup::Pinned {
            // SAFETY: awake, and nothing runs that could write it, by the caller's promise and the waits above.
            unsafe { save_all(&shared.context, &cycles, &plans) }?;
            slept.saved = plans.iter().map(Plan::saved_bytes).sum();
        }
        // From here on what fails is told.
        for (cycle, plan) in cycles.iter().zip(&plans) {
            slept.kept.extend(plan.kept.iter().cloned());
            let leaving: Vec<_> = plan.leaving.iter().map(|segment| segment.addresses()).collect();
            slept.notices.extend(tell(shared, cycle.tag, true, &leaving));
        }
        let before = shared.context.memory_info().map(|memory| memory.free);
        for (cycle, plan) in cycles.iter_mut().zip(&plans) {
            // SAFETY: saved or not wanted, nothing uses it, by the caller's promise and the waits above.
            slept.freed += unsafe { plan.unmap(shared, cycle.tag, &mut slept.refused) };
            cycle.end = ASLEEP;
            let stayed = plan.leaving.iter().filter(|segment| !segment.is_asleep());
            let stayed: Vec<_> = stayed.map(|segment| segment.addresses()).collect();
            // Registrants took it for gone.
            slept.notices.extend(tell(shared, cycle.tag, false, &stayed));
        }
        slept.missing = before.map_or(0, |before| missing(&shared.context, before, slept.freed));
        Ok(slept)
    }

    /// Wakes tags: their memory comes back at the same addresses, for all devices that had it, all of them or none. Takes what the allocator has
    /// free if there is no other. What registrants did, who are told when all of it is there. [`Tag`] has an example.
    ///
    /// # Errors
    ///
    /// [`SleepError::NoMemory`] if the device or the limit has not enough: all of them sleep on, with their backups, and it can be tried
    /// again. [`SleepError::Busy`]; [`SleepError::OtherAllocator`].
    pub fn wake(tags: &[&Self], restore: Restore) -> Result<Vec<Notice>> {
        refuse_watchers()?;
        let Some(allocator) = Self::allocator_of(tags)? else { return Ok(Vec::new()) };
        let shared = allocator.shared();
        let mut cycles = Self::begin_all(tags, shared)?;
        cycles.retain(|cycle| cycle.began == ASLEEP);
        if cycles.is_empty() {
            return Ok(Vec::new());
        }
        if segments_of(&cycles).any(|segment| segment.is_stale()) {
            // Copies of a wake that failed may run yet.
            shared.context.point()?.synchronize()?;
        }
        let stream = Stream::new(&shared.context)?;
        let (claim, memory) = obtain(shared, &cycles)?;
        let mapped = map_all(&cycles, memory, restore, &stream);
        let woken = mapped.and_then(|woken| Ok(stream.synchronize().map(|()| woken)?));
        if woken.is_ok() {
            segments_of(&cycles).for_each(|segment| segment.settle());
        } else if end_copies(&cycles, &stream).is_ok() {
            // Copies were under way: what cannot be waited for stays, and is filled when the tag wakes.
            for segment in segments_of(&cycles).filter(|segment| segment.is_stale()) {
                // SAFETY: the copies are done: nobody else uses it while the tag is busy.
                let _ = unsafe { segment.put_to_sleep() };
            }
        }
        claim.keep();
        let lacking = cycles.iter().map(|cycle| cycle.tag.count_lacking(shared).1);
        shared.source.unclaim(lacking.sum());
        let mut told = Vec::new();
        for (cycle, ranges) in cycles.iter_mut().zip(&woken?) {
            // One host memory is kept for the next sleep.
            let backups = std::mem::take(&mut *lock(&cycle.tag.backups));
            let largest = backups.into_iter().max_by_key(BackupMemory::bytes);
            lock(&cycle.tag.backups).extend(largest.map(BackupMemory::emptied));
            shared.private.set_asleep(cycle.tag, false);
            cycle.end = AWAKE;
            told.extend(tell(shared, cycle.tag, false, ranges));
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

    /// Makes these tags busy, each once however often it is named.
    fn begin_all<'t>(tags: &[&'t Self], shared: &'t DeviceCache) -> Result<Vec<Cycle<'t>>> {
        let mut seen = HashSet::new();
        let each = tags.iter().filter(|tag| seen.insert(Arc::as_ptr(&tag.shared)));
        each.map(|tag| tag.shared.begin(shared)).collect()
    }
}

/// A tag that somebody puts to sleep, wakes or looks at. When it ends the tag has the phase `end`, and awake its pools hand memory out.
#[derive(Debug)]
pub(super) struct Cycle<'t> {
    shared: &'t DeviceCache,
    tag: &'t TagShared,
    began: u32,
    end: u32,
}

impl Drop for Cycle<'_> {
    fn drop(&mut self) {
        if self.end == AWAKE {
            self.shared.private.set_asleep(self.tag, false);
        }
        // Release: what was done to the tag is done for whoever begins next.
        self.tag.phase.store(self.end, Ordering::Release);
    }
}

#[derive(Debug)]
pub(super) struct Plan {
    leaving: Vec<Arc<Segment>>,
    /// What a wake that failed left mapped: it goes too, and has nothing to be saved.
    stale: Vec<Arc<Segment>>,
    /// What of those that leave is saved.
    saved: Vec<Range<CUdeviceptr>>,
    kept: Vec<Kept>,
}

impl Plan {
    /// The bytes that a backup of it takes.
    pub(super) fn saved_bytes(&self) -> usize {
        self.saved.iter().map(len).sum()
    }

    /// Unmaps the segments; the bytes that the driver took back. What it refused is in `refused`.
    ///
    /// # Safety
    ///
    /// Nothing uses them before they wake.
    unsafe fn unmap(
        &self,
        shared: &DeviceCache,
        tag: &TagShared,
        refused: &mut Vec<(Range<CUdeviceptr>, Error)>,
    ) -> usize {
        let mut freed = 0;
        for segment in self.leaving.iter().chain(&self.stale) {
            // SAFETY: the caller's promise.
            match unsafe { segment.put_to_sleep() } {
                Ok(()) => freed += segment.bytes(),
                Err(error) => refused.push((segment.addresses(), error.into())),
            }
        }
        let (before, now) = tag.count_lacking(shared);
        shared.source.unclaim(now.saturating_sub(before));
        freed
    }
}

impl TagShared {
    /// Makes the tag busy, unless somebody else has.
    pub(super) fn begin<'t>(&'t self, shared: &'t DeviceCache) -> Result<Cycle<'t>> {
        refuse_forked()?;
        for began in [AWAKE, ASLEEP] {
            // Acquire: what was done to it before is seen.
            if self.phase.compare_exchange(began, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(Cycle { shared, tag: self, began, end: began });
            }
        }
        Err(SleepError::Busy { tag: self.name.clone() }.into())
    }

    /// As [`TagShared::begin`], of a tag in this phase.
    pub(super) fn begin_in<'t>(&'t self, shared: &'t DeviceCache, phase: u32) -> Result<Cycle<'t>> {
        let cycle = self.begin(shared)?;
        if cycle.began == phase {
            return Ok(cycle);
        }
        let tag = self.name.clone();
        Err(if phase == AWAKE { SleepError::Asleep { tag } } else { SleepError::Awake { tag } }.into())
    }

    /// Refuses a range of which a part is no memory of the tag, or sleeps.
    pub(super) fn expect_awake(&self, range: &Range<CUdeviceptr>) -> Result<()> {
        let mut address = range.start;
        loop {
            let Some(segment) = self.segment_of(address) else {
                return Err(SleepError::NotOfTag { tag: Some(self.name.clone()), address }.into());
            };
            if segment.is_asleep() {
                return Err(SleepError::Asleep { tag: self.name.clone() }.into());
            }
            address = segment.addresses().end;
            if address >= range.end {
                return Ok(());
            }
        }
    }

    /// Counts what has no memory now; the bytes of that before, and now.
    fn count_lacking(&self, shared: &DeviceCache) -> (usize, usize) {
        let mut now = [0; 2];
        for segment in self.segments() {
            // Small segments are single pages.
            let kind = if segment.bytes() > SLAB { PoolSize::Large } else { PoolSize::Small };
            now[kind as usize] += segment.lacking();
        }
        let before = std::mem::replace(&mut *lock(&self.lacking), now);
        let (had, has) = (before.iter().sum(), now.iter().sum());
        shared.figures.change(|counts| {
            for pool in [PoolSize::Small, PoolSize::Large] {
                let (before, now) = (before[pool as usize] as u64, now[pool as usize] as u64);
                counts.reserved_bytes.decrease(pool, now.saturating_sub(before));
                counts.reserved_bytes.increase(pool, before.saturating_sub(now));
            }
            counts.asleep_bytes = (counts.asleep_bytes + has as u64).saturating_sub(had as u64);
        });
        (had, has)
    }

    /// What would go, and what would stay.
    pub(super) fn plan(&self, shared: &DeviceCache) -> Plan {
        let (live, segments) = shared.private.live(self);
        let mut kept: Vec<_> = lock(&self.keeps)
            .values()
            .map(|(range, reason)| Kept { range: range.clone(), bytes: 0, reason: reason.clone() })
            .collect();
        kept.sort_by_key(|kept| kept.range.start);
        let (mut leaving, mut stale) = (Vec::new(), Vec::new());
        for segment in self.segments().into_iter().filter(|segment| segments.contains(&segment.address())) {
            if segment.is_stale() {
                stale.push(segment);
            } else if !segment.is_asleep() {
                let (Range { start, end }, mut stays) = (segment.addresses(), false);
                for keep in kept.iter_mut().filter(|keep| keep.range.start < end && start < keep.range.end) {
                    (stays, keep.bytes) = (true, keep.bytes + segment.bytes());
                }
                if !stays {
                    leaving.push(segment);
                }
            }
        }
        kept.retain(|keep| keep.bytes > 0);
        let saved = joined(&live, leaving.iter().map(|segment| segment.addresses()));
        Plan { leaving, stale, saved, kept }
    }
}

/// Copies what is live of each plan to host memory that its tag keeps. What was saved when a tag was put to sleep before stays. After an error
/// the tags are as they were, but for memory that was kept for this and was too small.
///
/// # Safety
///
/// The segments are awake, and have their memory until this has returned.
unsafe fn save_all(context: &Context, cycles: &[Cycle<'_>], plans: &[Plan]) -> Result<()> {
    let stream = Stream::new(context)?;
    let mut backups = Vec::new();
    let mut each = cycles.iter().zip(plans).filter(|(_, plan)| plan.saved_bytes() > 0);
    let saved: Result<()> = each.try_for_each(|(cycle, plan)| {
        let bytes = plan.saved_bytes();
        let spare = lock(&cycle.tag.backups).pop_if(|last| last.ranges.is_empty());
        let spare = spare.filter(|spare| spare.bytes() >= bytes);
        let was_spare = spare.is_some();
        let mut backup = spare.map_or_else(|| BackupMemory::new(context, bytes), Ok)?;
        // SAFETY: the caller's promise; `end_copies` waits, whatever failed.
        let saved = unsafe { backup.save(&plan.saved, &stream) };
        backups.push((cycle.tag, backup, was_spare));
        saved
    });
    let saved = end_copies(cycles, &stream).map_err(Error::from).and(saved);
    for (tag, backup, was_spare) in backups {
        let kept = if saved.is_ok() { Some(backup) } else { was_spare.then(|| backup.emptied()) };
        // What is not kept is dropped by now: the program may be called then, so without the lock.
        lock(&tag.backups).extend(kept);
    }
    saved
}

/// Waits for what a cycle has copied, whatever failed. What the driver refuses to wait for stays mapped for ever, and counts.
fn end_copies(cycles: &[Cycle<'_>], stream: &Stream) -> cuda_mem_core::Result<()> {
    let ended = wait_for(stream);
    if let Err(error @ CoreError::StillInUse { .. }) = &ended {
        stream.context().driver().report_release_failure(error);
        segments_of(cycles).for_each(Segment::keep_for_ever);
    }
    ended
}

/// The memory that tags lack, with its part of the limit. Takes what the allocator has free, of all streams and pools, if there is no other.
fn obtain<'s>(shared: &'s DeviceCache, cycles: &[Cycle<'_>]) -> Result<(Claim<'s>, Vec<PhysicalMemory>)> {
    let sizes = segments_of(cycles).map(|segment| segment.lacking()).filter(|bytes| *bytes > 0);
    let sizes: Vec<usize> = sizes.collect();
    let needed = sizes.iter().sum::<usize>();
    let mut missing = 0;
    // What the driver does not take back stays: there may be room without it.
    for attempt in 0..3 {
        match attempt {
            0 => {}
            1 => {
                unless_lost(shared.trim_to(shared.figures.reserved().saturating_sub(missing)))?;
            }
            _ => {
                shared.pools().wait_for_others();
                shared.pools().wait_for_streams()?;
                shared.wait_for_lost_streams();
                unless_lost(shared.trim_to(0))?;
            }
        }
        let claim = match shared.source.claim(needed)? {
            Ok(claim) => claim,
            Err(lacks) => {
                missing = lacks;
                continue;
            }
        };
        // Any of them: all make memory of the same kind.
        let made = cycles.first().map_or(Ok(Vec::new()), |cycle| cycle.tag.create(&sizes));
        match made.map_err(Error::from) {
            Err(error) if error.is_out_of_memory() => {}
            made => return Ok((claim, made?)),
        }
        let free = shared.context.memory_info().map_or(0, |memory| memory.free);
        missing = needed.saturating_sub(free).max(1);
    }
    Err(SleepError::NoMemory { needed, missing, held: shared.figures.reserved() }.into())
}

fn segments_of(cycles: &[Cycle<'_>]) -> impl Iterator<Item = Arc<Segment>> {
    cycles.iter().flat_map(|cycle| cycle.tag.segments())
}

/// Maps the memory, and puts the copies into the stream; what came back of each tag. What an error leaves mapped is stale.
fn map_all(
    cycles: &[Cycle<'_>],
    memory: Vec<PhysicalMemory>,
    restore: Restore,
    stream: &Stream,
) -> Result<Vec<Vec<Range<CUdeviceptr>>>> {
    let mut memory = memory.into_iter();
    let of_tag = |cycle: &Cycle<'_>| {
        let mut woken = Vec::new();
        for segment in cycle.tag.segments().iter().filter(|segment| segment.is_asleep()) {
            segment.wake(cycle.tag, &mut memory)?;
            fill(cycle.tag, &segment.addresses(), restore, stream)?;
            woken.push(segment.addresses());
        }
        Ok(woken)
    };
    cycles.iter().map(of_tag).collect()
}

fn fill(tag: &TagShared, segment: &Range<CUdeviceptr>, restore: Restore, stream: &Stream) -> Result<()> {
    match restore {
        Restore::Nothing => Ok(()),
        // SAFETY: mapped just now, and nobody uses it while the tag is busy.
        Restore::Filled(byte) => Ok(unsafe { memset_async(stream, segment.start, byte, len(segment)) }?),
        Restore::Backup => {
            let backups = lock_over_calls(&tag.backups);
            // SAFETY: as above. What was saved last comes last.
            backups.iter().try_for_each(|backup| unsafe { backup.restore(segment, stream) })
        }
    }
}

fn tell(cache: &DeviceCache, tag: &TagShared, leaves: bool, ranges: &[Range<CUdeviceptr>]) -> Vec<Notice> {
    if ranges.is_empty() {
        return Vec::new();
    }
    let registrants = cache.callbacks.registrants.all();
    let tell = |(id, registrant): &(_, Arc<Registrant>)| {
        let began = Instant::now();
        let event = BackingEvent { tag: &tag.name, is_leaving: leaves, ranges };
        let outcome = catch_panic(|| registrant(&event)).unwrap_or_else(|| Err("it panicked".to_owned()));
        Notice { id: *id, took: began.elapsed(), error: outcome.err() }
    };
    let told = registrants.iter().map(tell).collect();
    // One may have been detached meanwhile, and ends here.
    let _ = catch_panic(|| drop(registrants));
    told
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
