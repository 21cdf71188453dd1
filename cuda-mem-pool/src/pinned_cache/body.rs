//! A block with all that belongs to it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cuda_mem_core::Uses;

use super::arena::Arena;
use super::segment::Segment;
use crate::engine::{BlockId, Grant, classes};

/// A block that belongs to nobody, or to the [`PinnedBlock`](super::PinnedBlock) around it.
///
/// One pointer, because it is moved several times on the way between a thread cache and its user, and back.
#[derive(Debug)]
pub(super) struct FreeBlock(Box<Body>);

#[derive(Debug)]
pub(super) struct Body {
    pub(super) segment: Arc<Segment>,
    pub(super) id: BlockId,
    pub(super) offset: usize,
    pub(super) capacity: usize,
    /// The size class that `capacity` is or is in.
    pub(super) class: usize,
    /// The allocator, if threads may keep the block: not those of private pools and other nodes.
    pub(super) kept_by: Option<u64>,
    /// The streams that use it since it was handed out.
    pub(super) uses: Uses,
    /// Whether a graph was told of it.
    pub(super) captured: AtomicBool,
}

impl FreeBlock {
    pub(super) fn new(grant: &Grant<'_, Arc<Segment>>, size: usize) -> Self {
        let arena = grant.segment.arena();
        Self(Box::new(Body {
            segment: Arc::clone(grant.segment),
            id: grant.block,
            offset: grant.offset,
            capacity: size,
            class: classes::floor(size),
            kept_by: arena.is_home().then(|| arena.shared().id()),
            uses: Uses::new(),
            captured: AtomicBool::new(false),
        }))
    }
}

impl Body {
    #[inline]
    pub(super) fn arena(&self) -> &Arc<Arena> {
        self.segment.arena()
    }
}

impl Deref for FreeBlock {
    type Target = Body;

    #[inline]
    fn deref(&self) -> &Body {
        &self.0
    }
}

impl DerefMut for FreeBlock {
    #[inline]
    fn deref_mut(&mut self) -> &mut Body {
        &mut self.0
    }
}
