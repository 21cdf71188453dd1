//! Blocks that were freed while streams still use them.

use std::collections::HashMap;
use std::sync::Arc;

use cuda_mem_core::{StreamId, UsePoint};

use super::body::FreeBlock;
use super::queue::StreamQueue;
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock};

/// A block waits in the queue of each stream that used it; it is free when the last of them lets it go. One slow stream
/// holds up its own queue alone.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// How many blocks wait, so that the usual case costs one load.
    waiting: AtomicUsize,
    queues: Mutex<HashMap<StreamId, Arc<Queue>>>,
    /// Blocks whose streams capture: no point can be recorded in them yet.
    unmarked: Mutex<Vec<FreeBlock>>,
}

type Queue = StreamQueue<UsePoint, Arc<FreeBlock>>;

impl Pending {
    /// Has `block` wait until no use runs any more. It comes back if none does.
    pub(super) fn push(&self, block: FreeBlock) -> Option<FreeBlock> {
        self.waiting.fetch_add(1, Ordering::Release);
        self.mark(block)
    }

    /// The blocks that nothing uses any more. Asks the driver, once a stream if nothing is ready.
    pub(super) fn poll(&self) -> Vec<FreeBlock> {
        let mut ready = Vec::new();
        if self.waiting.load(Ordering::Acquire) == 0 {
            return ready;
        }
        // Taken in a statement of its own, so that the lock is free when a block goes back into the list.
        let unmarked = std::mem::take(&mut *lock(&self.unmarked));
        ready.extend(unmarked.into_iter().filter_map(|block| self.mark(block)));
        let queues: Vec<Arc<Queue>> = lock(&self.queues).values().cloned().collect();
        for queue in &queues {
            // After an error nothing is known: the next poll asks again.
            let reached = |point: &UsePoint| point.is_reached().unwrap_or(false);
            queue.poll(reached, |share| ready.extend(self.give_up(share)));
        }
        lock(&self.queues).retain(|_, queue| !queue.is_empty());
        ready
    }

    /// Waits for every block that has a point in each of its streams. All blocks, those without points with their uses.
    pub(super) fn drain(&self) -> Vec<FreeBlock> {
        let mut drained = Vec::new();
        let queues = std::mem::take(&mut *lock(&self.queues));
        for (point, share) in queues.values().flat_map(|queue| queue.take_all()) {
            // Whatever a wait says: nothing of it runs any more.
            let _ = point.wait();
            drained.extend(self.give_up(share));
        }
        let unmarked = std::mem::take(&mut *lock(&self.unmarked));
        self.waiting.fetch_sub(unmarked.len(), Ordering::Release);
        drained.extend(unmarked);
        drained
    }

    /// Records the points that a block has to wait for.
    fn mark(&self, mut block: FreeBlock) -> Option<FreeBlock> {
        let points = match block.uses.points() {
            Ok(points) => points,
            // A stream captures, or the driver refused for once.
            Err(_) => {
                lock(&self.unmarked).push(block);
                return None;
            }
        };
        // The points stand for them from here on.
        let forgotten = std::mem::take(&mut block.uses);
        let share = Arc::new(block);
        let mut queues = lock(&self.queues);
        for point in points {
            let queue = queues.entry(point.stream().id()).or_insert_with(|| Arc::new(Queue::new()));
            queue.push(point, Arc::clone(&share));
        }
        drop(queues);
        drop(forgotten);
        self.give_up(share)
    }

    /// One stream fewer has the block: the block, if it was the last.
    fn give_up(&self, share: Arc<FreeBlock>) -> Option<FreeBlock> {
        let block = Arc::into_inner(share)?;
        self.waiting.fetch_sub(1, Ordering::Release);
        Some(block)
    }
}
