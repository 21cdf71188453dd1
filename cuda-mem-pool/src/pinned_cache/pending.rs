//! Keeps blocks that were freed while streams still use them, until they do not.

use cuda_mem_core::{UsePoint, Uses};

use super::block::FreeBlock;
use crate::primitive::{Mutex, are_over, lock};

/// The freed blocks of all streams, in the order of their frees.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<Vec<Waiting>>);

/// A block and the points that it waits for, behind all of its uses. None before they could be recorded, because a stream captures.
#[derive(Debug)]
struct Waiting {
    block: FreeBlock,
    points: Option<Vec<UsePoint>>,
}

impl Pending {
    /// Has `block` wait until no use runs any more. It comes back if it has none.
    pub(super) fn push(&self, mut block: FreeBlock) -> Option<FreeBlock> {
        let points = block.uses.points().ok();
        if points.as_ref().is_some_and(Vec::is_empty) {
            return Some(block);
        }
        lock(&self.0).push(Waiting { block, points });
        None
    }

    /// The blocks that nothing uses any more. Asks the driver, of each stream until it has not come far enough: one that is slow
    /// holds up its own blocks alone. Another thread that asks meanwhile finds none of these, and none waits for the driver's answers.
    /// Only who `gives_back` is to get those of pools that have ended, which the driver then waits for.
    pub(super) fn poll(&self, gives_back: bool) -> Vec<FreeBlock> {
        let mut waiting = std::mem::take(&mut *lock(&self.0));
        let mut behind = Vec::new();
        let may_come = |waiting: &Waiting| gives_back || !waiting.block.arena().is_closed();
        let mut is_over = |Waiting { block, points }: &mut Waiting| {
            are_over(points, &mut behind, || block.uses.points(), UsePoint::is_reached)
        };
        let over =
            waiting.extract_if(.., |waiting| may_come(waiting) && is_over(waiting)).collect::<Vec<_>>();
        if !waiting.is_empty() {
            let mut added = lock(&self.0);
            waiting.append(&mut added);
            *added = waiting;
        }
        let unused = |Waiting { mut block, .. }: Waiting| {
            block.uses = Uses::new();
            block
        };
        over.into_iter().map(unused).collect()
    }

    /// The points that blocks wait for; of a block that waits for a capture there are none.
    pub(super) fn points(&self) -> Vec<UsePoint> {
        lock(&self.0).iter().filter_map(|waiting| waiting.points.clone()).flatten().collect()
    }

    /// All blocks, with their uses. Nobody polls any more.
    pub(super) fn drain(&self) -> Vec<FreeBlock> {
        std::mem::take(&mut *lock(&self.0)).into_iter().map(|waiting| waiting.block).collect()
    }
}
