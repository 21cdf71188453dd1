//! A block with all that belongs to it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cuda_mem_core::Uses;

use super::arena::Arena;
use super::segment::Segment;
use crate::engine::{BlockId, Grant};

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
    /// The streams that use it since it was handed out.
    pub(super) uses: Uses,
    /// Whether a graph was told of it.
    pub(super) captured: AtomicBool,
}

impl FreeBlock {
    pub(super) fn new(grant: &Grant<'_, Arc<Segment>>, size: usize) -> Self {
        Self(Box::new(Body {
            segment: Arc::clone(grant.segment),
            id: grant.block,
            offset: grant.offset,
            capacity: size,
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
