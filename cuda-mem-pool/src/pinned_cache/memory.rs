//! Memory that is pinned for a segment: registered, or where the driver refuses that, allocated by it.

use std::ptr::NonNull;

use cuda_mem_core::host::{
    HostElements, HostMapping, MappingOptions, Pages, PinnedFlags, RegisterOptions, Registered,
};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Error, PinnedBuffer, Result, Uses};

use crate::primitive::{AtomicBool, Ordering};

/// Pinned memory and its owner.
#[derive(Debug)]
pub(super) enum Memory {
    Registered(Registered<HostMapping>),
    Allocated(PinnedBuffer<u8>),
}

impl Memory {
    /// Pins `bytes` zeroed bytes on a NUMA node. Calls the driver.
    ///
    /// Under confidential computing registration is `CUDA_ERROR_NOT_SUPPORTED` for every size, and allocation by the driver is not; that is
    /// what `refused` says from then on. Memory of the driver lies on a node of its choice.
    pub(super) fn new(
        context: &Context,
        bytes: usize,
        numa_id: Option<u32>,
        refused: &AtomicBool,
    ) -> Result<Self> {
        if !refused.load(Ordering::Relaxed) {
            let mut options = MappingOptions::new().pages(Pages::Transparent);
            if let Some(node) = numa_id {
                options = options.numa_node(node);
            }
            let memory = HostMapping::new(bytes, &options)?;
            match Registered::with_options(context, memory, &RegisterOptions::new()) {
                Ok(registered) => return Ok(Self::Registered(registered)),
                Err(refusal) if is_unsupported(&refusal.error) => refused.store(true, Ordering::Relaxed),
                Err(refusal) => return Err(refusal.error),
            }
        }
        PinnedBuffer::zeroed(context, bytes, PinnedFlags::default()).map(Self::Allocated)
    }

    /// Where it begins.
    pub(super) fn start(&mut self) -> NonNull<u8> {
        let start = match self {
            Self::Registered(memory) => memory.as_mut_ptr(),
            Self::Allocated(memory) => memory.as_mut_ptr(),
        };
        NonNull::new(start).unwrap_or(NonNull::dangling())
    }

    /// Has the release wait for uses of a part.
    pub(super) fn absorb(&self, uses: Uses) {
        match self {
            Self::Registered(memory) => memory.absorb_uses(uses),
            Self::Allocated(memory) => memory.absorb_uses(uses),
        }
    }

    /// Unpins it and gives its pages back; what the driver refuses stays.
    pub(super) fn close(self) -> Option<Self> {
        match self {
            Self::Registered(memory) => memory.close().err().map(|refusal| Self::Registered(refusal.owner)),
            Self::Allocated(memory) => memory.close().err().map(|refusal| Self::Allocated(refusal.owner)),
        }
    }
}

fn is_unsupported(error: &Error) -> bool {
    error.code() == Some(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}
