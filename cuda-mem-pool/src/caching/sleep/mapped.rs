//! The memory of a tag: segments whose memory can go and come back at the same addresses.
//!
//! A segment is a reserved range of addresses and the handle that is mapped there. Asleep, its addresses are reserved without memory.
//!
//! # Safety
//!
//! Relies on the callers' word that nothing uses a segment that they give back or put to sleep.

#![allow(unsafe_code, reason = "unmaps memory")]

use std::alloc::Layout;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::vmm::{Access, AddressRange, PhysicalMemory};
use cuda_mem_core::{Device, Error as CoreError, MemorySource, Stream};

use super::TagShared;
use crate::engine::paged::SLAB;
use crate::error::Result;
use crate::primitive::{Mutex, lock, lock_over_calls};
use crate::resource::RawResource;

#[derive(Debug)]
pub(super) struct Segment {
    range: AddressRange,
    backing: Mutex<Backing>,
}

#[derive(Debug, Default)]
struct Backing {
    /// None while it sleeps.
    memory: Option<PhysicalMemory>,
    /// Mapped by a wake that is not done, or failed and could not unmap it: it may not be used before it is filled.
    is_stale: bool,
    /// Copies whose end could not be waited for may use it: it stays mapped when it is given back.
    is_kept: bool,
    /// Given back, while others look at it: it neither sleeps nor is filled again.
    is_gone: bool,
}

impl TagShared {
    pub(super) fn segments(&self) -> Vec<Arc<Segment>> {
        lock(&self.segments).values().cloned().collect()
    }

    pub(super) fn segment_of(&self, address: CUdeviceptr) -> Option<Arc<Segment>> {
        let segments = lock(&self.segments);
        let (_, segment) = segments.range(..=address).next_back()?;
        segment.addresses().contains(&address).then(|| Arc::clone(segment))
    }

    /// Lets a peer reach all that is mapped.
    pub(super) fn let_in(&self, peer: Device) -> cuda_mem_core::Result<()> {
        self.segments().iter().try_for_each(|segment| segment.let_in(&[peer]))
    }

    /// Makes memory of these sizes, which is mapped nowhere yet.
    pub(super) fn create(&self, sizes: &[usize]) -> cuda_mem_core::Result<Vec<PhysicalMemory>> {
        let device = self.context.device();
        sizes.iter().map(|bytes| PhysicalMemory::create(device, *bytes, &self.options)).collect()
    }

    fn devices(&self) -> Vec<Device> {
        let peers = lock(&self.peers);
        let let_in = peers.iter().filter(|(_, is_let_in)| *is_let_in).map(|(peer, _)| peer.device());
        [self.context.device()].into_iter().chain(let_in).collect()
    }
}

impl Segment {
    pub(super) fn address(&self) -> CUdeviceptr {
        self.range.address()
    }

    pub(super) fn bytes(&self) -> usize {
        self.range.bytes()
    }

    pub(super) fn addresses(&self) -> Range<CUdeviceptr> {
        self.address()..self.address() + self.bytes() as u64
    }

    /// Whether it cannot be used before a wake. One that is gone does not sleep.
    pub(super) fn is_asleep(&self) -> bool {
        let backing = lock(&self.backing);
        !backing.is_gone && (backing.memory.is_none() || backing.is_stale)
    }

    pub(super) fn is_stale(&self) -> bool {
        lock(&self.backing).is_stale
    }

    /// The bytes that have no memory: all or none.
    pub(super) fn lacking(&self) -> usize {
        let backing = lock(&self.backing);
        if backing.memory.is_some() || backing.is_gone { 0 } else { self.bytes() }
    }

    /// Unmaps its memory, and gives that back. After an error of the first it is as it was, after one of the second it sleeps.
    ///
    /// # Safety
    ///
    /// Nothing uses it.
    pub(super) unsafe fn put_to_sleep(&self) -> cuda_mem_core::Result<()> {
        let mut backing = lock_over_calls(&self.backing);
        if backing.memory.is_none() {
            return Ok(());
        }
        // SAFETY: the caller's promise; it is mapped, as a whole.
        unsafe { self.range.unmap(0, self.bytes()) }?;
        let Some(memory) = std::mem::take(&mut *backing).memory else { return Ok(()) };
        // Once more, because the driver reports older errors of others in any call. The owner's drop counts what the driver refuses.
        memory.close().or_else(|refused| refused.owner.close()).map_err(|refused| refused.error)
    }

    /// Maps memory where there is none, for all devices. It may not be used before [`Segment::settle`]; what an error leaves is stale.
    pub(super) fn wake(
        &self,
        tag: &TagShared,
        memory: &mut impl Iterator<Item = PhysicalMemory>,
    ) -> cuda_mem_core::Result<()> {
        let mut backing = lock_over_calls(&self.backing);
        // Under the lock: a peer that comes later finds what is mapped here.
        let devices = tag.devices();
        if backing.memory.is_none()
            && let Some(memory) = memory.next()
        {
            self.range.map(0, &memory)?;
            (backing.memory, backing.is_stale) = (Some(memory), true);
        }
        self.range.set_access(0, self.bytes(), &devices, Access::ReadWrite)
    }

    pub(super) fn settle(&self) {
        lock(&self.backing).is_stale = false;
    }

    /// Keeps it mapped until the process ends, for copies whose end could not be waited for.
    pub(super) fn keep_for_ever(self: Arc<Self>) {
        lock(&ManuallyDrop::new(self).backing).is_kept = true;
    }

    fn let_in(&self, devices: &[Device]) -> cuda_mem_core::Result<()> {
        let backing = lock_over_calls(&self.backing);
        match backing.memory {
            Some(_) => self.range.set_access(0, self.bytes(), devices, Access::ReadWrite),
            None => Ok(()),
        }
    }

    fn new(tag: &TagShared, bytes: usize) -> cuda_mem_core::Result<Self> {
        let range = AddressRange::reserve(tag.context.device(), bytes, SLAB)?;
        let segment = Self { range, backing: Mutex::default() };
        segment.wake(tag, &mut tag.create(&[bytes])?.into_iter())?;
        segment.settle();
        Ok(segment)
    }

    /// Unmaps the memory of a segment that was given back, or whose allocator is gone, and gives that back. After an error it is as it was.
    fn end(&self, backing: &mut Backing) -> cuda_mem_core::Result<()> {
        if backing.memory.is_some() && !backing.is_kept {
            // SAFETY: the pool that gave it back, or the allocator at its end, has waited for all that used its memory.
            let unmap = || unsafe { self.range.unmap(0, self.range.bytes()) };
            // Once more, because the driver reports older errors of others in any call.
            unmap().or_else(|_| unmap())?;
            backing.memory = None;
        }
        backing.is_gone = true;
        Ok(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Without the lock, which in a forked child a thread of the parent may have.
        let mut backing = std::mem::take(self.backing.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.end(&mut backing).is_err() {
            // Mapped yet: the process keeps it, as the range's own drop counts.
            let _ = backing.memory.take().map(PhysicalMemory::into_raw);
        }
    }
}

// SAFETY: each segment has addresses of its own, mapped for as long as it is in the table and awake.
unsafe impl RawResource for TagShared {
    fn allocate(&self, layout: Layout, _stream: &Stream) -> Result<CUdeviceptr> {
        let before = self.devices();
        // No layout has so many bytes that this overflows.
        let segment = Arc::new(Segment::new(self, layout.size().next_multiple_of(SLAB))?);
        let address = segment.address();
        lock(&self.segments).insert(address, Arc::clone(&segment));
        // Peers that came before it was in the table.
        let missed: Vec<_> = self.devices().into_iter().filter(|device| !before.contains(device)).collect();
        segment.let_in(&missed).inspect_err(|_| _ = lock(&self.segments).remove(&address))?;
        Ok(address)
    }
}

// SAFETY: the memory is the caller's from `allocate` on until it is given back here, once.
unsafe impl MemorySource for TagShared {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        _layout: Layout,
        _stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        let segment = lock(&self.segments).get(&address).cloned();
        let segment = segment.ok_or(CoreError::NotAllocated { address })?;
        // After an error it stays in the table, where it was all the time: also peers that came meanwhile have been let in.
        let mut backing = lock_over_calls(&segment.backing);
        segment.end(&mut backing)?;
        // Before anybody hears of a release that failed.
        lock(&self.segments).remove(&address);
        Ok(())
    }
}
