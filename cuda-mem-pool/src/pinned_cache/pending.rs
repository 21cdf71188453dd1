//! Keeps blocks that were freed while streams still use them, until they do not.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use cuda_mem_core::{Error, Stream, StreamId, UsePoint, Uses};

use super::block::FreeBlock;
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock, try_lock};

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
            queue.poll(look, |share| ready.extend(self.give_up(share)));
        }
        lock(&self.queues).retain(|_, queue| !queue.is_empty());
        ready
    }

    /// Waits for every block that has a point in each of its streams. All blocks, those without points with their uses.
    pub(super) fn drain(&self) -> Vec<FreeBlock> {
        let mut drained = Vec::new();
        let queues = std::mem::take(&mut *lock(&self.queues));
        for (point, share) in queues.values().flat_map(|queue| queue.take_all()) {
            if let Err(error @ Error::StillInUse { .. }) = point.wait() {
                // Leaked, and its segment with it.
                let _ = std::mem::ManuallyDrop::new(share);
                point.stream().context().driver().report_release_failure(&error);
            } else {
                // Whatever else a wait says: nothing of it runs any more.
                drained.extend(self.give_up(share));
            }
        }
        let unmarked = std::mem::take(&mut *lock(&self.unmarked));
        self.waiting.fetch_sub(unmarked.len(), Ordering::Release);
        drained.extend(unmarked);
        drained
    }

    /// Records the points that a block has to wait for.
    fn mark(&self, mut block: FreeBlock) -> Option<FreeBlock> {
        let Ok(points) = block.uses.points() else {
            // A stream captures, or the driver refused for once.
            lock(&self.unmarked).push(block);
            return None;
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

/// What a look at a point tells.
#[derive(Debug)]
pub(super) enum Look<P> {
    Reached,
    NotYet,
    /// Nothing, and it never will; a later point stands for it.
    Replaced(P),
}

fn look(point: &UsePoint) -> Look<UsePoint> {
    match point.is_reached() {
        Ok(true) => Look::Reached,
        Ok(false) => Look::NotYet,
        // A capture may have had the point that ended before it was noticed: it says nothing then, however often it is asked.
        Err(_) => record(point.stream()).map_or(Look::NotYet, Look::Replaced),
    }
}

/// A point behind all that a stream was given. None while that captures.
fn record(stream: &Stream) -> Option<UsePoint> {
    let mut uses = Uses::new();
    uses.record_stream(stream).ok()?;
    uses.points().ok()?.pop()
}

/// Values that become free one after the other, in the order of a stream's points. Whoever looks at the head asks the driver without
/// the lock, so that others can still add; one looks at a time.
#[derive(Debug)]
pub(super) struct StreamQueue<P, V> {
    entries: Mutex<VecDeque<(Arc<P>, V)>>,
    looking: Mutex<()>,
}

impl<P, V> StreamQueue<P, V> {
    pub(super) fn new() -> Self {
        Self { entries: Mutex::new(VecDeque::new()), looking: Mutex::new(()) }
    }

    pub(super) fn push(&self, point: P, value: V) {
        lock(&self.entries).push_back((Arc::new(point), value));
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.entries).is_empty()
    }

    /// Hands what is ready to `done`, up to the first that is not. Does nothing while another thread does this.
    pub(super) fn poll(&self, look: impl Fn(&P) -> Look<P>, mut done: impl FnMut(V)) {
        let Some(_looking) = try_lock(&self.looking) else { return };
        let mut replaced = 0;
        while let Some((head, count)) = self.head() {
            let later = match look(&head) {
                Look::Reached => None,
                // Once each: of a driver that refuses all none is asked for ever.
                Look::Replaced(point) if replaced < count => Some(point),
                Look::Replaced(_) | Look::NotYet => return,
            };
            let Some(value) = self.pop(&head) else { return };
            match later {
                None => done(value),
                Some(point) => {
                    replaced += 1;
                    // Behind the others, whose points may be of use.
                    self.push(point, value);
                }
            }
        }
    }

    /// Everything, ready or not.
    pub(super) fn take_all(&self) -> Vec<(Arc<P>, V)> {
        std::mem::take(&mut *lock(&self.entries)).into()
    }

    /// The first point, and how many there are.
    fn head(&self) -> Option<(Arc<P>, usize)> {
        let entries = lock(&self.entries);
        entries.front().map(|(point, _)| (Arc::clone(point), entries.len()))
    }

    /// The head, if it still is the one that was asked about: another thread may have taken everything.
    fn pop(&self, head: &Arc<P>) -> Option<V> {
        let mut entries = lock(&self.entries);
        let same = entries.front().is_some_and(|(point, _)| Arc::ptr_eq(point, head));
        if same { entries.pop_front().map(|(_, value)| value) } else { None }
    }
}
