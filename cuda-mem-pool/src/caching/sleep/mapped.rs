//! The memory of a tag: segments whose pages can go and come back at the same addresses.
//!
//! A segment is a reserved range of addresses and the handles that are mapped in it, in pieces. While a piece sleeps its addresses
//! stay reserved and have no memory.
//!
//! # Safety
//!
//! Relies on the callers' word that nothing uses a segment that they give back, nor a piece that they put to sleep.

#![allow(unsafe_code, reason = "unmaps memory")]

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::vmm::{Access, AddressRange, CreateOptions, PhysicalMemory};
use cuda_mem_core::{Context, Device, Error as CoreError, MemorySource, Stream};

use crate::engine::paged::SLAB;
use crate::error::{Error, Result};
use crate::primitive::{Mutex, lock, lock_over_calls};
use crate::resource::RawResource;

/// The most bytes of a handle. Larger ones save calls, and keep more awake for one range that has to stay.
const PIECE: usize = 64 << 20;

/// The memory of a tag: where its private pools get their segments.
#[derive(Debug)]
pub(super) struct MappedSegments {
    context: Context,
    options: CreateOptions,
    /// Devices that reach the memory beside its own, as all tags have them.
    peers: Arc<Mutex<Vec<Device>>>,
    /// By address. A segment is shared with whoever works at it, so that no call of the driver is made under this lock.
    segments: Mutex<BTreeMap<CUdeviceptr, Arc<Segment>>>,
}

#[derive(Debug)]
pub(super) struct Segment {
    range: AddressRange,
    pieces: Mutex<Vec<Piece>>,
}

#[derive(Debug)]
struct Piece {
    offset: usize,
    bytes: usize,
    /// None while it sleeps.
    memory: Option<PhysicalMemory>,
    /// Mapped by a wake that is not done, or failed and could not unmap it: nobody may use it before it is filled.
    is_stale: bool,
}

impl MappedSegments {
    pub(super) fn new(context: &Context, peers: &Arc<Mutex<Vec<Device>>>) -> Result<Self> {
        Ok(Self {
            context: context.clone(),
            options: CreateOptions::supported_by(context.device())?,
            peers: Arc::clone(peers),
            segments: Mutex::default(),
        })
    }

    pub(super) fn segments(&self) -> Vec<Arc<Segment>> {
        lock(&self.segments).values().cloned().collect()
    }

    pub(super) fn segment_of(&self, address: CUdeviceptr) -> Option<Arc<Segment>> {
        let segments = lock(&self.segments);
        let (_, segment) = segments.range(..=address).next_back()?;
        (address < segment.end()).then(|| Arc::clone(segment))
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
        [self.context.device()].into_iter().chain(peers.iter().copied()).collect()
    }
}

impl Segment {
    pub(super) fn address(&self) -> CUdeviceptr {
        self.range.address()
    }

    pub(super) fn bytes(&self) -> usize {
        self.range.bytes()
    }

    pub(super) fn end(&self) -> CUdeviceptr {
        self.address() + self.bytes() as u64
    }

    fn at(&self, piece: &Piece) -> Range<CUdeviceptr> {
        let start = self.range.address() + piece.offset as u64;
        start..start + piece.bytes as u64
    }

    /// The pieces that can be used, or those that cannot.
    pub(super) fn pieces(&self, is_awake: bool) -> Vec<Range<CUdeviceptr>> {
        let is_usable = |piece: &&Piece| (piece.memory.is_some() && !piece.is_stale) == is_awake;
        lock(&self.pieces).iter().filter(is_usable).map(|piece| self.at(piece)).collect()
    }

    /// The sizes of the pieces without memory, in the order of their addresses.
    pub(super) fn lacking(&self) -> Vec<usize> {
        let pieces = lock(&self.pieces);
        pieces.iter().filter(|piece| piece.memory.is_none()).map(|piece| piece.bytes).collect()
    }

    /// The pieces that a failed wake left mapped.
    pub(super) fn stale(&self) -> Vec<Range<CUdeviceptr>> {
        let pieces = lock(&self.pieces);
        pieces.iter().filter(|piece| piece.is_stale).map(|piece| self.at(piece)).collect()
    }

    /// Unmaps a piece that has memory, and gives that back. After an error of the first it is as it was, after one of the second it sleeps.
    ///
    /// # Safety
    ///
    /// Nothing uses it.
    pub(super) unsafe fn put_to_sleep(&self, at: CUdeviceptr) -> cuda_mem_core::Result<()> {
        let mut pieces = lock_over_calls(&self.pieces);
        let found = pieces.iter_mut().find(|piece| self.at(piece).start == at && piece.memory.is_some());
        let piece = found.ok_or(CoreError::NotAllocated { address: at })?;
        // SAFETY: the caller's promise.
        unsafe { self.range.unmap(piece.offset, piece.bytes) }?;
        piece.is_stale = false;
        let Some(memory) = piece.memory.take() else { return Ok(()) };
        // Once more, because the driver reports older errors of others in any call. The owner's drop counts what the driver refuses.
        memory.close().or_else(|refused| refused.owner.close()).map_err(|refused| refused.error)
    }

    /// Maps memory at the pieces that have none, and lets all devices reach it. Nobody may use them before [`Segment::settle`]; what an error
    /// leaves mapped is among [`Segment::stale`].
    pub(super) fn wake(
        &self,
        source: &MappedSegments,
        memory: &mut impl Iterator<Item = PhysicalMemory>,
    ) -> cuda_mem_core::Result<()> {
        let mut pieces = lock_over_calls(&self.pieces);
        // Under the lock: a peer that comes later finds what is mapped here.
        let devices = source.devices();
        for piece in pieces.iter_mut().filter(|piece| piece.memory.is_none() || piece.is_stale) {
            if piece.memory.is_none() {
                let Some(memory) = memory.next() else { break };
                self.range.map(piece.offset, &memory)?;
                (piece.memory, piece.is_stale) = (Some(memory), true);
            }
            self.range.set_access(piece.offset, piece.bytes, &devices, Access::ReadWrite)?;
        }
        Ok(())
    }

    pub(super) fn settle(&self) {
        lock(&self.pieces).iter_mut().for_each(|piece| piece.is_stale = false);
    }

    fn let_in(&self, devices: &[Device]) -> cuda_mem_core::Result<()> {
        let pieces = lock_over_calls(&self.pieces);
        let mut awake = pieces.iter().filter(|piece| piece.memory.is_some());
        awake.try_for_each(|piece| {
            self.range.set_access(piece.offset, piece.bytes, devices, Access::ReadWrite)
        })
    }

    fn new(source: &MappedSegments, bytes: usize) -> cuda_mem_core::Result<Self> {
        let range = AddressRange::reserve(source.context.device(), bytes, SLAB)?;
        let offsets = (0..bytes).step_by(PIECE);
        let piece =
            |offset| Piece { offset, bytes: PIECE.min(bytes - offset), memory: None, is_stale: false };
        let segment = Self { range, pieces: Mutex::new(offsets.map(piece).collect()) };
        let memory = source.create(&segment.lacking())?;
        segment.wake(source, &mut memory.into_iter())?;
        segment.settle();
        Ok(segment)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Without a lock, which in a forked child a thread of the parent may have.
        let pieces = self.pieces.get_mut().unwrap_or_else(PoisonError::into_inner);
        for piece in pieces.iter_mut().filter(|piece| piece.memory.is_some()) {
            // SAFETY: the segment was given back, or its allocator is gone, which has waited for all that used its memory.
            let unmap = || unsafe { self.range.unmap(piece.offset, piece.bytes) };
            // Once more, because the driver reports older errors of others in any call.
            let unmapped = unmap().or_else(|_| unmap());
            if let (Err(_), Some(memory)) = (unmapped, piece.memory.take()) {
                // Mapped yet: the process keeps it, as the range's own drop counts.
                let _ = memory.into_raw();
            }
        }
    }
}

// SAFETY: each segment has addresses of its own, mapped for as long as it is in the table and awake.
unsafe impl RawResource for MappedSegments {
    fn allocate(&self, layout: Layout, _stream: &Stream) -> Result<CUdeviceptr> {
        let bytes = layout.size().checked_next_multiple_of(SLAB);
        let bytes = bytes.ok_or(Error::TooLarge { bytes: layout.size() })?;
        let before = self.devices();
        let segment = Arc::new(Segment::new(self, bytes)?);
        let address = segment.address();
        lock(&self.segments).insert(address, Arc::clone(&segment));
        // Peers that came before it was in the table.
        let missed: Vec<_> = self.devices().into_iter().filter(|device| !before.contains(device)).collect();
        if let Err(error) = segment.let_in(&missed) {
            lock(&self.segments).remove(&address);
            return Err(error.into());
        }
        Ok(address)
    }
}

// SAFETY: the memory is the caller's from `allocate` on until it is given back here, once.
unsafe impl MemorySource for MappedSegments {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        _layout: Layout,
        _stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        let segment = lock(&self.segments).remove(&address).ok_or(CoreError::NotAllocated { address })?;
        drop(segment);
        Ok(())
    }
}
