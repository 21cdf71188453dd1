//! Sleep without `unsafe`: by code that owns all blocks that sleep.
//!
//! # Safety
//!
//! Relies on allocations being used on streams by borrows alone: while a call owns one, no work that uses it is queued.

#![allow(unsafe_code, reason = "puts to sleep what it owns")]

use std::collections::HashSet;

use super::{Backup, Restore, Slept, Tag};
use crate::caching::CachingAllocator;
use crate::error::{Error, SleepError, refuse_forked};
use crate::resource::{Allocation, DeviceAccessible};

/// Allocations whose tags sleep.
///
/// It owns them, so nothing can use them before they wake. Dropped, it frees them, and their tags sleep on.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::MemoryResource;
/// use cuda_mem_pool::caching::{Asleep, Backup, CachingAllocator, CachingOptions, Restore};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// let tag = allocator.tag("activations")?;
/// let scope = tag.enter()?;
/// let buffers = vec![allocator.allocate(10 << 20, &stream)?, allocator.allocate(1000, &stream)?];
/// drop(scope);
///
/// let asleep = Asleep::new(&allocator, buffers, Backup::Pinned).map_err(|(error, _buffers)| error)?;
/// assert_eq!((asleep.slept().freed, allocator.reserved_bytes()), (12 << 20, 0));
/// let buffers = asleep.wake(Restore::Backup).map_err(|(error, _asleep)| error)?;
/// assert_eq!(buffers.len(), 2);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug)]
pub struct Asleep {
    tags: Vec<Tag>,
    slept: Slept,
    buffers: Vec<Allocation<DeviceAccessible>>,
}

impl Asleep {
    /// Puts the tags of these allocations to sleep. They must be all that the tags have.
    ///
    /// # Errors
    ///
    /// [`SleepError::NotOfTag`] for one that is of no tag of this allocator; [`SleepError::NotOwned`] if a tag has a block that is not
    /// among them, also one that was freed and that a stream still uses, or a pool that a capturing stream has asked and that is not released;
    /// those of [`Tag::sleep`]. The allocations come back with the error, awake.
    pub fn new(
        allocator: &CachingAllocator,
        buffers: Vec<Allocation<DeviceAccessible>>,
        backup: Backup,
    ) -> Result<Self, (Error, Vec<Allocation<DeviceAccessible>>)> {
        match Self::put_to_sleep(allocator, &buffers, backup) {
            Ok((tags, slept)) => Ok(Self { tags, slept, buffers }),
            Err(error) => Err((error, buffers)),
        }
    }

    fn put_to_sleep(
        allocator: &CachingAllocator,
        buffers: &[Allocation<DeviceAccessible>],
        backup: Backup,
    ) -> Result<(Vec<Tag>, Slept), Error> {
        refuse_forked()?;
        let addresses = buffers.iter().map(Allocation::address);
        // Those of no bytes have none.
        let owned: HashSet<u64> = addresses.filter(|address| *address != 0).collect();
        let mut tags = allocator.tags();
        if let Some(&address) = owned.iter().find(|address| !tags.iter().any(|tag| tag.has(**address))) {
            return Err(SleepError::NotOfTag { tag: None, address }.into());
        }
        tags.retain(|tag| owned.iter().any(|address| tag.has(*address)));
        // Streams of any context may use them: of those that the allocator does not know, the buffers do.
        buffers.iter().try_for_each(|buffer| buffer.synchronize())?;
        let borrowed: Vec<&Tag> = tags.iter().collect();
        // SAFETY: every block of these tags is one of the buffers, which `put_to_sleep` looks after before it waits: what was freed by then
        // has its work queued, and it refuses what a stream uses after the waits. All uses of the buffers are over, since this has waited
        // for them and no other code can queue work with what it owns.
        let slept = unsafe { Tag::put_to_sleep(&borrowed, backup, Some(&owned)) }?;
        Ok((tags, slept))
    }

    /// What came of it.
    #[must_use]
    pub fn slept(&self) -> &Slept {
        &self.slept
    }

    /// Wakes the tags, and gives the allocations back.
    ///
    /// # Errors
    ///
    /// Those of [`Tag::wake`], with what sleeps on.
    pub fn wake(self, restore: Restore) -> Result<Vec<Allocation<DeviceAccessible>>, (Error, Self)> {
        let tags: Vec<&Tag> = self.tags.iter().collect();
        match Tag::wake(&tags, restore) {
            Ok(_) => Ok(self.buffers),
            Err(error) => Err((error, self)),
        }
    }
}
