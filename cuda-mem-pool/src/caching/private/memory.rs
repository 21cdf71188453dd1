//! What segments are made of: memory of the device that is mapped once, or an upstream's.
//!
//! # Safety
//!
//! Relies on the callers' word that nothing uses a segment any more that they give back: it is wholly free, so that by the
//! contract of `free_by_address` what used it came before that free on its stream, which was seen idle since, and so was every
//! stream of the allocator if a graph may use it.

#![allow(unsafe_code, reason = "unmaps memory, and gives memory back to upstreams")]

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::Arc;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::vmm::{Access, AddressRange, CreateOptions, PhysicalMemory};
use cuda_mem_core::{Context, Device, Error as CoreError, Stream};

use super::limit::Claim;
use super::routes::Unrouted;
use super::share::BlockExport;
use crate::engine::paged::SLAB;
use crate::error::{Error, Result};
use crate::primitive::{Mutex, lock, lock_over_calls};
use crate::resource::{DEFAULT_ALIGNMENT, RawResource, ResourceContext};

/// The memory of all segments.
#[derive(Debug)]
pub(super) struct Memory {
    device: Device,
    /// Where upstreams work: a stream that never captures.
    home: ResourceContext,
    mapped: Mutex<Mapped>,
}

#[derive(Debug, Default)]
struct Mapped {
    /// Asked for at the first segment.
    options: Option<CreateOptions>,
    peers: Vec<Device>,
    segments: BTreeMap<u64, Segment>,
}

#[derive(Debug)]
enum Segment {
    Device { range: AddressRange, memory: PhysicalMemory },
    Upstream { source: Arc<dyn RawResource>, layout: Layout, stream: Stream },
}

impl Memory {
    pub(super) fn new(context: &Context) -> Self {
        Self { device: context.device(), home: ResourceContext::new(context), mapped: Mutex::default() }
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
            None => self.map(bytes, claim).map_err(Error::Core),
            Some(source) => self.ask(bytes, source, claim),
        };
        match acquired {
            Ok(acquired) => Ok(Some(acquired)),
            Err(Error::OutOfMemory { .. }) => Ok(None),
            Err(error) if is_out_of_memory(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A claim that is not kept goes behind the lock, as arguments do: it takes that of the page source, in which this one is taken.
    fn map<'s>(&self, bytes: usize, claim: Claim<'s>) -> cuda_mem_core::Result<(u64, Claim<'s>)> {
        let mut mapped = lock_over_calls(&self.mapped);
        let options = match mapped.options {
            Some(options) => options,
            None => *mapped.options.insert(CreateOptions::supported_by(self.device)?),
        };
        let range = AddressRange::reserve(self.device, bytes, SLAB)?;
        let memory = PhysicalMemory::create(self.device, bytes, &options)?;
        range.map(0, &memory)?;
        let address = range.address();
        if let Err(error) = range.set_access(0, bytes, &mapped.all(self.device), Access::ReadWrite) {
            // SAFETY: nobody was told of it yet.
            if unsafe { range.unmap(0, bytes) }.is_err() {
                // It is held until the allocator ends.
                mapped.segments.insert(address, Segment::Device { range, memory });
                claim.keep();
            }
            return Err(error);
        }
        mapped.segments.insert(address, Segment::Device { range, memory });
        Ok((address, claim))
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
        lock(&self.mapped).segments.insert(address, segment);
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
        self.device.driver().in_relaxed_capture_mode(upstream)
    }

    /// Gives a segment back that was never used. If that is refused it stays until the allocator ends, and so does the claim.
    pub(super) fn release_claimed(&self, address: u64, claim: Claim<'_>) -> cuda_mem_core::Result<()> {
        let released = self.release(address);
        match released {
            Ok(()) => drop(claim),
            Err(_) => claim.keep(),
        }
        released
    }

    /// Gives a segment back that nothing uses any more. After an error it is still there.
    pub(super) fn release(&self, address: u64) -> cuda_mem_core::Result<()> {
        let Some(segment) = lock(&self.mapped).segments.remove(&address) else {
            return Err(CoreError::NotAllocated { address });
        };
        let released = match &segment {
            // SAFETY: the caller's promise.
            Segment::Device { range, memory } => unsafe { range.unmap(0, memory.bytes()) },
            Segment::Upstream { source, layout, stream } => {
                // SAFETY: of this source with this layout, taken out of the books and so given back once; nothing uses it.
                self.call(|| unsafe { source.deallocate(address, *layout, stream) }).and_then(|taken| taken)
            }
        };
        if released.is_err() {
            lock(&self.mapped).segments.insert(address, segment);
        }
        // Unmapped, the addresses and the handle go with their owners.
        released
    }

    /// A descriptor of a segment.
    pub(super) fn export(&self, address: u64) -> Result<BlockExport> {
        match lock_over_calls(&self.mapped).segments.get(&address) {
            Some(Segment::Device { memory, .. }) => {
                let descriptor = memory.export_posix_fd()?;
                Ok(BlockExport { base: address, pieces: vec![(memory.bytes(), descriptor)] })
            }
            Some(Segment::Upstream { .. }) => {
                Err(CoreError::NotShareable { what: "a descriptor: another source gave it" }.into())
            }
            None => Err(Error::UnknownAddress { address }),
        }
    }

    /// Lets a peer reach all that the device's own segments have, and will have.
    pub(super) fn add_peer(&self, peer: Device) -> cuda_mem_core::Result<()> {
        let mut mapped = lock_over_calls(&self.mapped);
        for segment in mapped.segments.values() {
            if let Segment::Device { range, memory } = segment {
                range.set_access(0, memory.bytes(), &[peer], Access::ReadWrite)?;
            }
        }
        mapped.peers.push(peer);
        Ok(())
    }

    pub(super) fn close(&self) {
        let addresses: Vec<u64> = lock(&self.mapped).segments.keys().copied().collect();
        for address in addresses {
            // What is refused stays: the driver's calls are counted there, an upstream knows its own.
            let _ = self.release(address);
        }
    }
}

impl Mapped {
    fn all(&self, device: Device) -> Vec<Device> {
        std::iter::once(device).chain(self.peers.iter().copied()).collect()
    }
}

fn is_out_of_memory(error: &Error) -> bool {
    error.driver_error().is_some_and(|error| error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}
