//! The memory of segments: of `cuMemAlloc`, or an upstream's, and how much of it may be held.
//!
//! # Safety
//!
//! Relies on the callers' word that nothing uses a segment any more that they give back: it is wholly free, so that by the
//! contract of `free_by_address` what used it came before that free on its stream, which was seen idle since, and so was every
//! stream of the allocator if a graph may use it.

#![allow(unsafe_code, reason = "gives memory back to upstreams, and names it for others")]

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cuda_mem_core::ipc::{DeviceAllocation, MemoryHandle};
use cuda_mem_core::{Context, Error as CoreError, Stream, catch_panic};

use super::blocks::in_foreign_code;
use crate::error::{Error, Result};
use crate::primitive::{Mutex, lock, lock_over_calls};
use crate::resource::{RawResource, ResourceContext, layout};

#[derive(Debug)]
pub(in crate::caching) struct SegmentMemory {
    /// Where upstreams work: a stream that never captures.
    home: ResourceContext,
    /// By address.
    segments: Mutex<BTreeMap<u64, Segment>>,
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
        Self { home: ResourceContext::new(context), segments: Mutex::default() }
    }

    /// Gets memory of `bytes` bytes: whole pages without a source, else memory to be [settled](Self::settle). None if there is not as much.
    /// A source's memory goes back to it if `expect` refuses its address.
    pub(super) fn acquire(
        &self,
        bytes: usize,
        source: Option<&Arc<dyn RawResource>>,
        expect: impl FnOnce(u64) -> Result<()>,
    ) -> Result<Option<u64>> {
        let acquired = match source {
            None => self.allocate(bytes).map_err(Error::Core),
            Some(source) => self.ask(bytes, source, expect),
        };
        match acquired {
            Err(error) if error.is_out_of_memory() => Ok(None),
            acquired => acquired.map(Some),
        }
    }

    /// Waits for the upstreams' stream, which has nothing else to do: memory is for all streams, and one that captures could not wait.
    pub(super) fn settle(&self) -> Result<()> {
        Ok(self.home.stream()?.synchronize()?)
    }

    fn allocate(&self, bytes: usize) -> cuda_mem_core::Result<u64> {
        let memory = DeviceAllocation::new(self.home.context(), bytes)?;
        let address = memory.as_raw();
        lock(&self.segments).insert(address, Segment::Device(ManuallyDrop::new(memory)));
        Ok(address)
    }

    /// Every resource aligns as much as is asked for here; the books refuse what is not aligned as they need it.
    fn ask(
        &self,
        bytes: usize,
        source: &Arc<dyn RawResource>,
        expect: impl FnOnce(u64) -> Result<()>,
    ) -> Result<u64> {
        let layout = layout(bytes)?;
        let stream = self.home.stream()?;
        let address = self.call(|| source.allocate(layout, stream))??;
        if let Err(refused) = expect(address) {
            // SAFETY: of this source with this layout, and not used.
            self.call(|| unsafe { source.deallocate(address, layout, stream) })??;
            return Err(refused);
        }
        let segment = Segment::Upstream { source: Arc::clone(source), layout, stream: stream.clone() };
        lock(&self.segments).insert(address, segment);
        Ok(address)
    }

    /// Calls an upstream, which may call what a capture under way, the requesting stream's own or another, would be lost by.
    fn call<R>(&self, upstream: impl FnOnce() -> R) -> cuda_mem_core::Result<R> {
        let _inside = in_foreign_code();
        self.home.context().driver().in_relaxed_capture_mode(upstream)
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
    pub(in crate::caching) unsafe fn ipc_handle(
        &self,
        segment: u64,
        address: u64,
        bytes: usize,
    ) -> Result<MemoryHandle> {
        match lock_over_calls(&self.segments).get(&segment) {
            Some(Segment::Device(memory)) => {
                let offset = (address - segment) as usize;
                // SAFETY: the caller's promise.
                Ok(unsafe { memory.handle(offset..offset.saturating_add(bytes)) }?)
            }
            Some(Segment::Upstream { .. }) => {
                // SAFETY: the driver makes handles of memory of `cuMemAlloc` alone, of which nobody has a slice; the caller's promise.
                Ok(unsafe { MemoryHandle::of_address(self.home.context(), address, bytes as u64) }?)
            }
            None => Err(Error::UnknownAddress { address }),
        }
    }

    /// Keeps all of it until the process ends, and with it the sources that it came from: their end would take it back.
    pub(in crate::caching) fn leak(&self) {
        let _ = ManuallyDrop::new(std::mem::take(&mut *lock(&self.segments)));
    }

    pub(in crate::caching) fn close(&self) {
        let addresses: Vec<u64> = lock(&self.segments).keys().copied().collect();
        for address in addresses {
            // What is refused stays: the driver's calls are counted there, an upstream knows its own.
            let _ = self.release(address);
        }
    }
}
