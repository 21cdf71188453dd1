//! The memory of segments: of `cuMemAlloc`, or an upstream's, and how much of it may be held.
//!
//! # Safety
//!
//! Relies on the callers' word that nothing uses a segment any more that they give back: it is wholly free, so that by the
//! contract of `free_by_address` what used it came before that free on its stream, which was seen idle since, and so was every
//! stream of the allocator if a graph may use it.

#![allow(unsafe_code, reason = "gives memory back to upstreams, names it for others, and unmaps a page")]

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cuda_mem_core::ipc::{DeviceAllocation, MemoryHandle};
use cuda_mem_core::sys::{CUdevice_attribute, CUresult};
use cuda_mem_core::vmm::{Access, AddressRange, CreateOptions, PhysicalMemory};
use cuda_mem_core::{Context, Device, Error as CoreError, Stream, catch_panic};

use super::blocks::Unrouted;
use crate::caching::shared::Shared;
use crate::engine::paged::SLAB;
use crate::error::{Error, Result};
use crate::primitive::{Mutex, Ordering, lock};

use crate::resource::{DEFAULT_ALIGNMENT, RawResource, ResourceContext};

/// The memory of all segments.
#[derive(Debug)]
pub(super) struct SegmentMemory {
    context: Context,
    /// Where upstreams work: a stream that never captures.
    home: ResourceContext,
    /// By address.
    segments: Mutex<BTreeMap<u64, Segment>>,
    /// The primary contexts of the devices that reach memory of `cuMemAlloc` here. They keep that setting.
    peers: Mutex<Vec<Context>>,
}

#[derive(Debug)]
enum Segment {
    /// Not freed by a drop: work may use what the allocator could not give back.
    Device(ManuallyDrop<DeviceAllocation>),
    Upstream {
        source: Arc<dyn RawResource>,
        layout: Layout,
        stream: Stream,
    },
}

impl SegmentMemory {
    pub(super) fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            home: ResourceContext::new(context),
            segments: Mutex::default(),
            peers: Mutex::default(),
        }
    }

    /// Memory of `bytes` bytes, whole pages without a source, with the claim to them; None if there is not as much. The claim is kept if there is memory that
    /// cannot be had, nor given back.
    pub(super) fn acquire<'s>(
        &self,
        bytes: usize,
        source: Option<&Arc<dyn RawResource>>,
        claim: Claim<'s>,
    ) -> Result<Option<(u64, Claim<'s>)>> {
        let acquired = match source {
            None => self.allocate(bytes).map(|address| (address, claim)).map_err(Error::Core),
            Some(source) => self.ask(bytes, source, claim),
        };
        match acquired {
            Ok(acquired) => Ok(Some(acquired)),
            Err(Error::OutOfMemory { .. }) => Ok(None),
            Err(error) if is_out_of_memory(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn allocate(&self, bytes: usize) -> cuda_mem_core::Result<u64> {
        let memory = DeviceAllocation::new(&self.context, bytes)?;
        let address = memory.as_raw();
        lock(&self.segments).insert(address, Segment::Device(ManuallyDrop::new(memory)));
        Ok(address)
    }

    /// Every resource aligns as much as is asked for here; the books refuse what is not aligned as they need it.
    ///
    /// The host waits for the upstream's stream, which has nothing else to do: the memory is for all streams, and one that
    /// captures could not wait.
    fn ask<'s>(
        &self,
        bytes: usize,
        source: &Arc<dyn RawResource>,
        claim: Claim<'s>,
    ) -> Result<(u64, Claim<'s>)> {
        let layout =
            Layout::from_size_align(bytes, DEFAULT_ALIGNMENT).map_err(|_| Error::TooLarge { bytes })?;
        let stream = self.home.stream()?;
        let address = self.call(|| source.allocate(layout, stream))??;
        let segment = Segment::Upstream { source: Arc::clone(source), layout, stream: stream.clone() };
        lock(&self.segments).insert(address, segment);
        if let Err(error) = stream.synchronize() {
            // The first error is the one to tell.
            let _ = self.release_claimed(address, claim);
            return Err(error.into());
        }
        Ok((address, claim))
    }

    /// Calls an upstream, which may call what a capture under way, the requesting stream's own or another, would be lost by.
    fn call<R>(&self, upstream: impl FnOnce() -> R) -> cuda_mem_core::Result<R> {
        let _unrouted = Unrouted::enter();
        self.context.driver().in_relaxed_capture_mode(upstream)
    }

    /// Gives a segment back that was never used. If that is refused it stays until the allocator ends, and so does the claim.
    pub(super) fn release_claimed(&self, address: u64, claim: Claim<'_>) -> Result<()> {
        let released = self.release(address);
        match released {
            Ok(()) => drop(claim),
            Err(_) => claim.keep(),
        }
        released
    }

    /// Gives a segment back that nothing uses any more. After an error it is still there.
    ///
    /// `cuMemFree` waits for all work of the context, so no lock is held.
    pub(super) fn release(&self, address: u64) -> Result<()> {
        let Some(segment) = lock(&self.segments).remove(&address) else {
            return Err(CoreError::NotAllocated { address }.into());
        };
        let (kept, error) = match segment {
            Segment::Device(memory) => match ManuallyDrop::into_inner(memory).close() {
                Ok(()) => return Ok(()),
                Err(refused) => (Segment::Device(ManuallyDrop::new(refused.owner)), refused.error.into()),
            },
            Segment::Upstream { source, layout, stream } => {
                // SAFETY: of this source with this layout, taken out of the books and so given back once; nothing uses it.
                let give = || self.call(|| unsafe { source.deallocate(address, layout, &stream) });
                let error = match catch_panic(give) {
                    Some(Ok(Ok(()))) => return Ok(()),
                    Some(Ok(Err(error)) | Err(error)) => error.into(),
                    None => Error::SourcePanicked { address },
                };
                (Segment::Upstream { source, layout, stream }, error)
            }
        };
        lock(&self.segments).insert(address, kept);
        Err(error)
    }

    /// The legacy handle of a block in a segment.
    ///
    /// # Safety
    ///
    /// No other process has the memory open by it when the segment is freed.
    pub(super) unsafe fn ipc_handle(&self, segment: u64, address: u64, bytes: usize) -> Result<MemoryHandle> {
        match lock(&self.segments).get(&segment) {
            Some(Segment::Device(memory)) => {
                let offset = (address - segment) as usize;
                // SAFETY: the caller's promise.
                Ok(unsafe { memory.handle(offset..offset.saturating_add(bytes)) }?)
            }
            Some(Segment::Upstream { .. }) => {
                // SAFETY: the driver makes handles of memory of `cuMemAlloc` alone, of which nobody has a slice; the caller's
                // promise.
                Ok(unsafe { MemoryHandle::of_address(&self.context, address, bytes as u64) }?)
            }
            None => Err(Error::UnknownAddress { address }),
        }
    }

    /// Lets the primary context of a peer reach all that the device's own segments have, and will have.
    pub(super) fn add_peer(&self, peer: Device) -> cuda_mem_core::Result<()> {
        let context = peer.primary_context()?;
        context.enable_peer_access(&self.context)?;
        lock(&self.peers).push(context);
        Ok(())
    }

    pub(super) fn close(&self) {
        let addresses: Vec<u64> = lock(&self.segments).keys().copied().collect();
        for address in addresses {
            // What is refused stays: the driver's calls are counted there, an upstream knows its own.
            let _ = self.release(address);
        }
    }
}

fn is_out_of_memory(error: &Error) -> bool {
    error.driver_error().is_some_and(|error| error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

/// Whether memory can be mapped: the device says that it can, and the driver maps a page as a trial. Some drivers of virtual
/// machines refuse calls for mapping though the device says that it can.
///
/// # Errors
///
/// Of a device that is lost, where nothing helps.
pub(in crate::caching) fn can_map(context: &Context) -> cuda_mem_core::Result<bool> {
    let device = context.device();
    if !device.supports(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? {
        return Ok(false);
    }
    match map_page(device) {
        // A full device says nothing about mapping.
        Err(CoreError::Driver(error)) if error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(true),
        Err(CoreError::Driver(error)) if !error.context_is_lost() => Ok(false),
        mapped => mapped.map(|()| true),
    }
}

/// Maps a page, and takes it away again.
fn map_page(device: Device) -> cuda_mem_core::Result<()> {
    let memory = PhysicalMemory::create(device, SLAB, &CreateOptions::supported_by(device)?)?;
    let range = AddressRange::reserve(device, SLAB, SLAB)?;
    range.map(0, &memory)?;
    let access = range.set_access(0, SLAB, &[device], Access::ReadWrite);
    // SAFETY: nobody was told of it.
    let unmap = || unsafe { range.unmap(0, SLAB) };
    // Once more, because the driver reports older errors of others in any call.
    access.and(unmap().or_else(|_| unmap()))
}

/// Bytes of the limit that are set aside for a segment, until they are kept.
#[derive(Debug)]
#[must_use]
pub(super) struct Claim<'s> {
    shared: &'s Shared,
    bytes: usize,
}

impl<'s> Claim<'s> {
    /// Sets the bytes aside, if the limit has as many left.
    pub(super) fn new(shared: &'s Shared, bytes: usize) -> Result<Option<Self>> {
        let mut source = shared.source()?;
        let private = &shared.private;
        let reserved = private.reserved().saturating_add(bytes);
        if source.reserved().saturating_add(reserved) > private.limit() {
            return Ok(None);
        }
        private.reserved.store(reserved, Ordering::Relaxed);
        source.set_limit(share_of_default(shared, reserved));
        Ok(Some(Self { shared, bytes }))
    }

    /// There is a segment of them now, or memory that cannot be given back.
    pub(super) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            unclaim(self.shared, self.bytes);
        }
    }
}

/// Makes a segment's bytes the limit's again.
pub(super) fn unclaim(shared: &Shared, bytes: usize) {
    let mut source = shared.source_unchecked();
    let reserved = shared.private.reserved().saturating_sub(bytes);
    shared.private.reserved.store(reserved, Ordering::Relaxed);
    source.set_limit(share_of_default(shared, reserved));
}

fn share_of_default(shared: &Shared, reserved: usize) -> usize {
    match shared.private.limit() {
        usize::MAX => usize::MAX,
        limit => limit.saturating_sub(reserved),
    }
}

/// Sets the most that may be held, by the default pool and private ones together.
pub(in crate::caching) fn set_limit(shared: &Shared, limit: usize) -> Result<()> {
    let mut source = shared.source()?;
    shared.private.limit.store(limit, Ordering::Relaxed);
    source.set_limit(share_of_default(shared, shared.private.reserved()));
    drop(source);
    let threshold = lock(&shared.private.state).pools.options().garbage_collection_threshold();
    set_garbage_threshold(shared, threshold);
    Ok(())
}

/// Sets from which part of the limit on free memory is given back.
pub(super) fn set_garbage_threshold(shared: &Shared, threshold: Option<f64>) {
    let bytes = match (threshold, shared.private.limit()) {
        (None, _) | (_, usize::MAX) => usize::MAX,
        (Some(part), limit) => (part * limit as f64) as usize,
    };
    shared.private.garbage_threshold.store(bytes, Ordering::Relaxed);
}

/// Gives free memory back when more is held than the threshold of garbage collection allows.
pub(in crate::caching) fn collect_garbage(shared: &Shared) {
    let most = shared.private.garbage_threshold.load(Ordering::Relaxed);
    if most == usize::MAX {
        return;
    }
    let reserved = shared.source.held().saturating_add(shared.private.reserved());
    if reserved > most {
        // What the driver refuses stays; whoever asks for memory goes on without.
        let _ = shared.empty_cache();
    }
}
