//! The memory that blocks lie in, for code that shares or registers it: segments, pins that keep them where they are, handles for other
//! processes, and peers.
//!
//! # Safety
//!
//! Declares an unsafe function, whose promise it passes on.

#![allow(unsafe_code, reason = "names memory for other processes")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cuda_mem_core::ipc::MemoryHandle;
use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{Device, forked};

use super::allocator::{CachingAllocator, Inner};
use super::shared::number_of;
use super::source::Source;
use crate::engine::paged::{SLAB, Segment};
use crate::error::{Error, Result, refuse_forked};
use crate::primitive::{lock, unique};

/// A need of memory to stay where it is. [`Pinned`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pin {
    /// Another process maps it.
    Exported,
    /// It is registered with a library or an adapter.
    Registered,
    /// A graph has its addresses.
    Graph,
    /// A tensor of another library, handed over by DLPack.
    DlPack,
}

/// Keeps the memory behind a range where it is until this is dropped: it is not moved, not unmapped, not given back and not
/// mapped a second time, also when the block there was freed. Free parts of it serve new blocks at their addresses.
///
/// Keeps the allocator alive. Forgotten, it pins for ever and does no other harm.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::MemoryResource;
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions, Pin};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// let block = allocator.allocate(10 << 20, &stream)?;
/// let pinned = allocator.pin(block.address(), block.len(), Pin::Exported)?;
/// let descriptors = pinned.export_posix_fds()?; // one for each segment
/// assert_eq!(descriptors.len(), pinned.segments()?.len());
/// assert_eq!(allocator.segment(block.address())?.pins, 1);
///
/// drop(block);
/// stream.synchronize()?;
/// allocator.empty_cache()?;
/// assert!(allocator.reserved_bytes() >= 10 << 20); // the other process still has it
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
pub struct Pinned {
    inner: Arc<Inner>,
    id: u64,
    range: Range<CUdeviceptr>,
    pin: Pin,
    handles: Vec<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Pins {
    ranges: BTreeMap<u64, (Range<CUdeviceptr>, Pin)>,
    /// Handles of pins that were dropped, which the page source is yet to be told of: a drop waits for nobody.
    pub(super) dropped: Vec<u32>,
}

/// The memory behind addresses. What makes no driver call may be called while streams capture, and so may exports.
impl CachingAllocator {
    /// The segment that an address lies in.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`] if there is no memory of the default pool.
    pub fn segment(&self, address: CUdeviceptr) -> Result<Segment> {
        self.shared().source.lock()?.segment(address).ok_or(Error::UnknownAddress { address })
    }

    /// The number of the last change of what is behind a range of addresses. Code that registered the range compares it: as long as
    /// the number is the same, so is the memory. The number may also change while the memory stays.
    pub fn generation(&self, address: CUdeviceptr, bytes: usize) -> Result<u64> {
        let segments = self.shared().source.lock()?.segments(&(address..end_of(address, bytes)?))?;
        Ok(segments.iter().map(|segment| segment.generation).max().unwrap_or(0))
    }

    /// The address and the bytes of what a block lies in: its segment, for a block of a private pool, else the whole pages of 2 MiB.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`] if no block begins there.
    pub fn base_allocation(&self, address: CUdeviceptr) -> Result<(CUdeviceptr, usize)> {
        let (bytes, segment) = self.block_at(address)?;
        Ok(segment.unwrap_or_else(|| {
            let before = (address % SLAB as u64) as usize;
            (address - before as u64, before.saturating_add(bytes).next_multiple_of(SLAB))
        }))
    }

    /// The bytes of a block, at least those asked for, as in [`allocated_bytes`](crate::statistics::DeviceStatistics::allocated_bytes).
    pub fn block_bytes(&self, address: CUdeviceptr) -> Result<usize> {
        Ok(self.block_at(address)?.0)
    }

    /// The bytes of a block, and the segment that it lies in if it is a private pool's.
    fn block_at(&self, address: CUdeviceptr) -> Result<(usize, Option<(CUdeviceptr, usize)>)> {
        refuse_forked()?;
        let shared = self.shared();
        let found = match shared.map.find(address) {
            Some(found) => {
                let slot = shared.slots.get(found.owner);
                let sizes =
                    slot.and_then(|slot| shared.with_drained(slot, |heap, _| heap.sizes(number_of(found))));
                sizes.map(|(size, _)| (size, None))
            }
            None => {
                let found = shared.private.block_at(address);
                found.map(|(block, segment, bytes)| (block.size as usize, Some((segment, bytes))))
            }
        };
        found.ok_or(Error::UnknownAddress { address })
    }

    /// Has the memory behind a range, usually that of a block, stay where it is while the result lives. A range of no bytes is
    /// taken for one byte. What is pinned is whole segments.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`] if a part of the range has no memory of the default pool, [`Error::TooLarge`]. Nothing is pinned then.
    pub fn pin(&self, address: CUdeviceptr, bytes: usize, pin: Pin) -> Result<Pinned> {
        let shared = self.shared();
        let end = end_of(address, bytes)?;
        let handles = shared.source.lock()?.pin(address, end).ok_or(Error::UnknownAddress { address })?;
        let range = address..address.saturating_add(bytes as u64);
        let id = unique();
        lock(&shared.source.pins).ranges.insert(id, (range.clone(), pin));
        Ok(Pinned { inner: Arc::clone(&self.inner), id, range, pin, handles })
    }

    /// All ranges that are pinned now, each with its reason, in the order in which they were pinned.
    #[must_use]
    pub fn pins(&self) -> Vec<(Range<CUdeviceptr>, Pin)> {
        let pins = || lock(&self.shared().source.pins).ranges.values().cloned().collect();
        if forked() { Vec::new() } else { pins() }
    }

    /// The legacy handle of a block of a private pool, as `cudaIpcGetMemHandle` gives it, with the block's place in its segment.
    /// [`CachingAllocator::private_pool`] has an example.
    ///
    /// A process that opens it reads and writes the whole segment, and must close it before the block is freed: the segment then serves others.
    ///
    /// Wraps [`cuIpcGetMemHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Errors
    ///
    /// [`Error::NoLegacyHandle`] for memory of the default pool; [`Error::UnknownAddress`] if no block begins there; [`Error::Core`]: code 1
    /// if the pool's own source gave memory that is not of `cuMemAlloc`.
    ///
    /// # Safety
    ///
    /// No other process has the memory open by it when its segment is freed, at the earliest with all its blocks: CUDA does not say what comes of that.
    pub unsafe fn ipc_handle(&self, address: CUdeviceptr) -> Result<MemoryHandle> {
        let (bytes, segment) = self.block_at(address)?;
        let (segment, _) = segment.ok_or(Error::NoLegacyHandle { address })?;
        // SAFETY: the caller's promise.
        unsafe { self.shared().private.memory.ipc_handle(segment, address, bytes) }
    }

    /// Lets another device reach all memory of this allocator, what it has and what it gets. Memory of private pools is in reach of the
    /// device's primary context alone, which this makes if there is none yet; an upstream's memory is the upstream's to share.
    ///
    /// Wraps [`cuMemSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html) for each mapping, and
    /// [`cuCtxEnablePeerAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PEER__ACCESS.html).
    ///
    /// # Errors
    ///
    /// [`Error::NoPeerAccess`] if the device cannot; [`Error::Core`] of the driver, after which it may reach some of the memory.
    pub fn enable_peer_access(&self, peer: Device) -> Result<()> {
        refuse_forked()?;
        let shared = self.shared();
        let owner = shared.context.device();
        owner.driver().expect_same(peer.driver(), "the peer device")?;
        let mut source = shared.source.lock()?;
        if source.backend.reached_by.contains(&peer) {
            return Ok(());
        }
        if !peer.can_access_peer(owner)? {
            return Err(Error::NoPeerAccess { device: peer, owner });
        }
        for (address, bytes) in source.mapped() {
            source.backend.set_access(&[peer], address, bytes)?;
        }
        // For memory of `cuMemAlloc`, what there is and what comes.
        let context = peer.primary_context()?;
        context.enable_peer_access(&shared.context)?;
        shared.tags.add_peer(&context)?;
        // Last: it says that all is done.
        source.backend.reached_by.push(peer);
        Ok(())
    }
}

impl Pinned {
    /// The segments behind it, in the order of their addresses.
    pub fn segments(&self) -> Result<Vec<Segment>> {
        self.inner.shared.source.lock()?.segments(&self.range)
    }

    /// Exports a descriptor of each segment for other processes, which see all of the segment: blocks beside the range, too.
    ///
    /// Wraps [`cuMemExportToShareableHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). A descriptor
    /// keeps the memory, this value that it stays this range's.
    ///
    /// # Errors
    ///
    /// [`Error::Core`]: code 1 if memory of the device cannot be shared this way.
    pub fn export_posix_fds(&self) -> Result<Vec<(Segment, OwnedFd)>> {
        let source = self.inner.shared.source.lock()?;
        let export = |segment: Segment| {
            let descriptor = source.backend.export(segment.memory, segment.bytes)?;
            Ok((segment, descriptor))
        };
        source.segments(&self.range)?.into_iter().map(export).collect()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if forked() {
            // All of it is the parent's.
            return;
        }
        let mut pins = lock(&self.inner.shared.source.pins);
        pins.ranges.remove(&self.id);
        pins.dropped.append(&mut self.handles);
    }
}

crate::impl_debug!(Pinned, |it| range: format_args!("{:#x?}", it.range), pin: it.pin);

impl Source<'_> {
    /// The handles behind a range, of which an empty one has that of its address.
    fn segments(&self, range: &Range<u64>) -> Result<Vec<Segment>> {
        let (mut segments, mut at) = (Vec::new(), range.start);
        while at < range.end.max(range.start.saturating_add(1)) {
            let segment = self.segment(at).ok_or(Error::UnknownAddress { address: at })?;
            at = segment.address + segment.bytes as u64;
            segments.push(segment);
        }
        Ok(segments)
    }
}

/// The first address behind a range, which has at least one.
fn end_of(address: u64, bytes: usize) -> Result<u64> {
    address.checked_add(bytes.max(1) as u64).ok_or(Error::TooLarge { bytes })
}
