//! Pinned memory that blocks are cut out of.
//!
//! # Safety
//!
//! Relies on a [`HostMapping`] being zeroed memory that stays where it is until it is dropped, and on its owner not being touched between the moment its address is taken and its drop, but to be told of uses.

#![allow(unsafe_code, reason = "shares the address of memory that it owns")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use cuda_mem_core::host::{HostElements, HostMapping, MappingOptions, Pages, RegisterOptions, Registered};
use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{Context, Result, Uses, forked, pointer};

use super::arena::Arena;

/// One piece of pinned memory of one arena.
#[derive(Debug)]
pub(super) struct Segment {
    /// None once it is unpinned.
    memory: Option<Registered<HostMapping>>,
    start: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) arena: Arc<Arena>,
}

impl Segment {
    /// Pins `bytes` bytes on the arena's node. Calls the driver.
    pub(super) fn new(arena: &Arc<Arena>, bytes: usize) -> Result<Self> {
        let shared = &arena.shared;
        let began = Instant::now();
        let mut options = MappingOptions::new().pages(Pages::Transparent);
        if let Some(node) = arena.numa_id {
            options = options.numa_node(node);
        }
        let memory = HostMapping::new(bytes, &options)?;
        let mut memory = Registered::with_options(&shared.context, memory, &RegisterOptions::new())?;
        let start = NonNull::new(memory.as_mut_ptr()).unwrap_or(NonNull::dangling());
        shared.figures.pinned(bytes, began.elapsed());
        Ok(Self { memory: Some(memory), start, bytes, arena: Arc::clone(arena) })
    }

    /// The address of the byte at `offset`, which lies in the segment.
    #[inline]
    pub(super) fn address(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.bytes);
        // SAFETY: the engine hands out offsets of blocks that lie in the segment.
        unsafe { self.start.add(offset) }
    }

    /// The address by which the device of `context` reaches the byte at `offset`.
    pub(super) fn device_address(&self, context: &Context, offset: usize) -> Result<CUdeviceptr> {
        Ok(pointer::device_address(context, self.start.as_ptr())?.wrapping_add(offset as CUdeviceptr))
    }

    /// Has the release wait for uses of a part.
    pub(super) fn absorb(&self, uses: Uses) {
        if let Some(memory) = &self.memory {
            memory.absorb_uses(uses);
        }
    }

    /// Unpins it, and gives its pages back. If the driver refuses, its drop tries again and tells. Calls the driver, and nothing else of
    /// the program's.
    pub(super) fn unpin(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let began = Instant::now();
        match memory.close() {
            Ok(mapping) => {
                drop(mapping);
                self.count_out(began);
            }
            Err(refused) => self.memory = Some(refused.owner),
        }
    }

    fn count_out(&self, began: Instant) {
        self.arena.shared.figures.unpinned(self.bytes, began.elapsed());
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let began = Instant::now();
        if let Some(memory) = self.memory.take() {
            drop(memory);
            self.count_out(began);
        }
    }
}

// SAFETY: the address is that of memory which the value owns; the blocks that are cut out of it share no byte.
unsafe impl Send for Segment {}
// SAFETY: as above; a shared segment only tells the address.
unsafe impl Sync for Segment {}
