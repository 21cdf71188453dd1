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
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::vmm::{Access, AddressRange, CreateOptions, PhysicalMemory};
use cuda_mem_core::{Context, Device, Error as CoreError, MemorySource, Stream};

use crate::engine::paged::SLAB;
use crate::error::{Error, Result};
use crate::primitive::{Mutex, lock};
use crate::resource::RawResource;

/// The most bytes of a handle. Larger ones save calls, and keep more awake for one range that has to stay.
const PIECE: usize = 16 << 20;

/// The memory of a tag: where its private pools get their segments.
#[derive(Debug)]
pub(super) struct MappedSegments {
    context: Context,
    options: CreateOptions,
    /// Devices that reach the memory: its own, and peers that were let in.
    reached_by: Mutex<Vec<Device>>,
    /// By address. A segment is shared with whoever works at it, so that no call of the driver is made under this lock.
    segments: Mutex<BTreeMap<CUdeviceptr, Arc<Segment>>>,
}

/// A range of addresses, and its pieces.
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
}

impl MappedSegments {
    pub(super) fn new(context: &Context, peers: Vec<Device>) -> Result<Self> {
        let device = context.device();
        Ok(Self {
            context: context.clone(),
            options: CreateOptions::supported_by(device)?,
            reached_by: Mutex::new([device].into_iter().chain(peers).collect()),
            segments: Mutex::default(),
        })
    }

    /// All segments, in the order of their addresses.
    pub(super) fn segments(&self) -> Vec<Arc<Segment>> {
        lock(&self.segments).values().cloned().collect()
    }

    /// Lets a peer reach all that is awake, and what comes.
    pub(super) fn add_peer(&self, peer: Device) -> cuda_mem_core::Result<()> {
        lock(&self.reached_by).push(peer);
        for segment in self.segments() {
            segment.let_in(&[peer])?;
        }
        Ok(())
    }

    /// Makes the memory that sleeping pieces of all these need, which is mapped nowhere yet. None if the driver has not as much.
    pub(super) fn create(&self, sizes: &[usize]) -> cuda_mem_core::Result<Option<Vec<PhysicalMemory>>> {
        let device = self.context.device();
        let made: cuda_mem_core::Result<Vec<_>> =
            sizes.iter().map(|bytes| PhysicalMemory::create(device, *bytes, &self.options)).collect();
        match made {
            Err(error) if Error::from(error.clone()).is_out_of_memory() => Ok(None),
            made => made.map(Some),
        }
    }

    pub(super) fn devices(&self) -> Vec<Device> {
        lock(&self.reached_by).clone()
    }
}

impl Segment {
    pub(super) fn address(&self) -> CUdeviceptr {
        self.range.address()
    }

    fn at(&self, piece: &Piece) -> Range<CUdeviceptr> {
        let start = self.range.address() + piece.offset as u64;
        start..start + piece.bytes as u64
    }

    /// Whether a range lies in it.
    pub(super) fn has(&self, range: &Range<CUdeviceptr>) -> bool {
        let start = self.range.address();
        start <= range.start && range.end <= start + self.range.bytes() as u64
    }

    /// The pieces that are awake, or those that sleep.
    pub(super) fn pieces(&self, is_awake: bool) -> Vec<Range<CUdeviceptr>> {
        let pieces = lock(&self.pieces);
        pieces.iter().filter(|piece| piece.memory.is_some() == is_awake).map(|piece| self.at(piece)).collect()
    }

    /// Unmaps a piece and gives its memory back. False, and nothing is done, if it sleeps already. After an error it is awake, unless the
    /// driver took the mapping and refused the memory, which it keeps then.
    ///
    /// # Safety
    ///
    /// Nothing uses it.
    pub(super) unsafe fn put_to_sleep(&self, at: CUdeviceptr) -> cuda_mem_core::Result<bool> {
        let mut pieces = lock(&self.pieces);
        let found = pieces.iter_mut().find(|piece| self.at(piece).start == at);
        let Some(piece) = found.filter(|piece| piece.memory.is_some()) else { return Ok(false) };
        // SAFETY: the caller's promise.
        unsafe { self.range.unmap(piece.offset, piece.bytes) }?;
        match piece.memory.take().map_or(Ok(()), PhysicalMemory::close) {
            Ok(()) => Ok(true),
            // It is mapped nowhere. Its owner's drop tries again, and counts what the driver refuses.
            Err(refused) => Err(refused.error),
        }
    }

    /// Maps memory, in this order, at pieces that sleep, and lets all devices reach it. After an error all of them sleep, and the memory
    /// is given back.
    pub(super) fn wake(
        &self,
        at: &[CUdeviceptr],
        memory: Vec<PhysicalMemory>,
        devices: &[Device],
    ) -> cuda_mem_core::Result<()> {
        let mut pieces = lock(&self.pieces);
        let mut mapped = Vec::new();
        let mut outcome = Ok(());
        for (at, memory) in at.iter().zip(memory) {
            let found = pieces.iter_mut().find(|piece| self.at(piece).start == *at);
            let Some(piece) = found.filter(|piece| piece.memory.is_none()) else { continue };
            outcome = self.range.map(piece.offset, &memory);
            if outcome.is_err() {
                break;
            }
            outcome = self.range.set_access(piece.offset, piece.bytes, devices, Access::ReadWrite);
            mapped.push(piece.offset);
            piece.memory = Some(memory);
            if outcome.is_err() {
                break;
            }
        }
        if outcome.is_err() {
            for piece in pieces.iter_mut().filter(|piece| mapped.contains(&piece.offset)) {
                // SAFETY: mapped just now: nobody knows of it, since the tag sleeps.
                if unsafe { self.range.unmap(piece.offset, piece.bytes) }.is_ok() {
                    piece.memory = None;
                }
            }
        }
        outcome
    }

    fn let_in(&self, devices: &[Device]) -> cuda_mem_core::Result<()> {
        let pieces = lock(&self.pieces);
        let mut awake = pieces.iter().filter(|piece| piece.memory.is_some());
        awake.try_for_each(|piece| {
            self.range.set_access(piece.offset, piece.bytes, devices, Access::ReadWrite)
        })
    }

    /// Reserves addresses and maps memory there.
    fn new(source: &MappedSegments, bytes: usize) -> cuda_mem_core::Result<Self> {
        let device = source.context.device();
        let range = AddressRange::reserve(device, bytes, SLAB)?;
        let offsets = (0..bytes).step_by(PIECE);
        let piece = |offset| Piece { offset, bytes: PIECE.min(bytes - offset), memory: None };
        let segment = Self { range, pieces: Mutex::new(offsets.map(piece).collect()) };
        let pieces = segment.pieces(false);
        let sizes = pieces.iter().map(|piece| (piece.end - piece.start) as usize);
        let memory: cuda_mem_core::Result<Vec<_>> =
            sizes.map(|bytes| PhysicalMemory::create(device, bytes, &source.options)).collect();
        let at: Vec<_> = pieces.iter().map(|piece| piece.start).collect();
        segment.wake(&at, memory?, &source.devices())?;
        Ok(segment)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let mut pieces = lock(&self.pieces);
        for piece in pieces.iter_mut().filter(|piece| piece.memory.is_some()) {
            // SAFETY: the segment was given back, or its allocator is gone, which has waited for all that used its memory.
            let unmapped = unsafe { self.range.unmap(piece.offset, piece.bytes) };
            if let (Err(_), Some(memory)) = (unmapped, piece.memory.take()) {
                // Mapped yet: the process keeps it, as the range's own drop counts.
                let _ = memory.into_raw();
            }
        }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("range", &self.range).finish_non_exhaustive()
    }
}

// SAFETY: each segment has addresses of its own, mapped for as long as it is in the table and awake.
unsafe impl RawResource for MappedSegments {
    fn allocate(&self, layout: Layout, _stream: &Stream) -> Result<CUdeviceptr> {
        let bytes = layout.size().checked_next_multiple_of(SLAB);
        let bytes = bytes.ok_or(Error::TooLarge { bytes: layout.size() })?;
        let segment = Segment::new(self, bytes)?;
        let address = segment.address();
        lock(&self.segments).insert(address, Arc::new(segment));
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
