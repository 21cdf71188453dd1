//! Small blocks that each thread keeps of each heap, so that the common allocation and free meet no lock and no other thread.
//!
//! In a forked child nothing here may be called, as nothing of the allocator; threads that end there leave everything.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use cuda_mem_core::forked;

use super::by_heap::{ByHeap, next_id};
use super::owner_cell::{self, Others, Owner};
use crate::primitive::{Mutex, lock};

/// Class `c` holds blocks of `c` granules; there is no class 0.
pub(super) const CLASSES: usize = 33;
pub(super) const GRANULE: usize = 512;

/// How many blocks of one class a thread keeps of one heap, and how many bytes of all.
const DEPTH: usize = 64;
const LIMIT: usize = 1 << 20;

/// A free block, as its heap knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) record: u32,
}

/// There is no room for the block, or the thread has no magazine of this heap: the caller [makes room](Magazines::take_half),
/// [joins](Magazines::join), or takes the block to the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// Takes the blocks of a thread that ends.
pub(super) trait Home: Send + Sync {
    /// Called without any lock of this module, at a time when the thread's locals are going; also after
    /// [`Magazines::close`].
    fn take_back(&self, heap: u32, blocks: Vec<Block>);
}

/// The magazines of all threads for one heap.
#[derive(Debug)]
pub(super) struct Magazines {
    id: u64,
    heap: u32,
    all: Mutex<All>,
}

#[derive(Debug)]
struct All {
    magazines: Vec<Others<Magazine>>,
    closed: bool,
}

/// What one thread keeps of one heap.
#[derive(Debug)]
struct Magazine {
    /// By class, the last one in the first one out.
    classes: [Vec<Block>; CLASSES],
    /// How many more there may be.
    room: usize,
    /// The heap takes no more.
    closed: bool,
}

/// The calling thread's magazines.
struct Local(RefCell<ByHeap<Mine>>);

struct Mine {
    heap: u32,
    home: Weak<dyn Home>,
    magazine: Owner<Magazine>,
}

thread_local! {
    static LOCAL: Local = const { Local(RefCell::new(ByHeap::new())) };
}

impl Magazines {
    pub(super) fn new(heap: u32) -> Self {
        Self { id: next_id(), heap, all: Mutex::new(All { magazines: Vec::new(), closed: false }) }
    }

    /// A block of this class, if the calling thread has one.
    #[inline]
    pub(super) fn pop(&self, class: u8) -> Option<Block> {
        self.with(|magazine| magazine.pop(class)).flatten()
    }

    /// Leaves a block of this class with the calling thread.
    #[inline]
    pub(super) fn push(&self, class: u8, block: Block) -> Result<(), Full> {
        self.with(|magazine| magazine.push(class, block)).unwrap_or(Err(Full))
    }

    /// Makes room after a refused push: takes the half that has been here longest, of this class if it is full, and else
    /// of each.
    #[cold]
    pub(super) fn take_half(&self, class: u8, out: &mut Vec<Block>) {
        self.with(|magazine| magazine.take_half(class, out));
    }

    /// Makes the calling thread a magazine. False if it has one or can have none.
    #[cold]
    pub(super) fn join(&self, home: &Arc<impl Home + 'static>) -> bool {
        let joined = LOCAL.try_with(|local| {
            let mut mine = local.0.try_borrow_mut().ok()?;
            if mine.get(self.id).is_some() {
                return None;
            }
            mine.retain(|mine| mine.home.strong_count() > 0);
            let mut all = lock(&self.all);
            if all.closed {
                return None;
            }
            let (magazine, others) = owner_cell::new(Magazine::new());
            // A thread that has ended has given its blocks back.
            all.magazines.retain(|magazine| !magazine.is_last());
            all.magazines.push(others);
            let home: Weak<dyn Home> = Arc::downgrade(home) as _;
            mine.add(self.id, Mine { heap: self.heap, home, magazine });
            Some(())
        });
        matches!(joined, Ok(Some(())))
    }

    /// Takes all blocks of all threads. False if the kernel does not let it, and nothing was taken.
    pub(super) fn take_all(&self, out: &mut Vec<Block>) -> bool {
        owner_cell::with_each(&lock(&self.all).magazines, |magazine| magazine.take_all(out))
    }

    /// Takes all blocks of all threads, which keep none from now on. False as in [`take_all`](Self::take_all).
    pub(super) fn close(&self, out: &mut Vec<Block>) -> bool {
        let mut all = lock(&self.all);
        all.closed = true;
        owner_cell::with_each(&all.magazines, |magazine| {
            magazine.closed = true;
            magazine.take_all(out);
        })
    }

    /// Host memory that the magazines take.
    pub(super) fn metadata_bytes(&self) -> usize {
        let mut bytes = size_of::<Self>();
        owner_cell::with_each(&lock(&self.all).magazines, |magazine| bytes += magazine.metadata_bytes());
        bytes
    }

    /// Runs `body` on the calling thread's magazine. None if it has none, is at its end, or another thread wants it.
    #[inline]
    fn with<R>(&self, body: impl FnOnce(&mut Magazine) -> R) -> Option<R> {
        LOCAL
            .try_with(|local| {
                let mut mine = local.0.try_borrow_mut().ok()?;
                mine.get(self.id)?.magazine.try_with(body)
            })
            .ok()
            .flatten()
    }
}

impl Magazine {
    fn new() -> Self {
        Self { classes: [const { Vec::new() }; CLASSES], room: LIMIT, closed: false }
    }

    #[inline]
    fn pop(&mut self, class: u8) -> Option<Block> {
        let block = self.classes.get_mut(usize::from(class))?.pop()?;
        self.room += usize::from(class) * GRANULE;
        Some(block)
    }

    #[inline]
    fn push(&mut self, class: u8, block: Block) -> Result<(), Full> {
        let bytes = usize::from(class) * GRANULE;
        let Some(blocks) = self.classes.get_mut(usize::from(class)) else { return Err(Full) };
        if blocks.len() >= DEPTH || self.room < bytes || self.closed {
            return Err(Full);
        }
        self.room -= bytes;
        blocks.push(block);
        Ok(())
    }

    fn take_half(&mut self, class: u8, out: &mut Vec<Block>) {
        let class = usize::from(class);
        let is_full = self.classes.get(class).is_some_and(|blocks| blocks.len() >= DEPTH);
        for (of, blocks) in self.classes.iter_mut().enumerate() {
            if of == class || !is_full {
                let half = blocks.len().div_ceil(2);
                self.room += half * of * GRANULE;
                out.extend(blocks.drain(..half));
            }
        }
    }

    fn take_all(&mut self, out: &mut Vec<Block>) {
        self.room = LIMIT;
        for blocks in &mut self.classes {
            out.append(blocks);
        }
    }

    fn metadata_bytes(&self) -> usize {
        let blocks: usize = self.classes.iter().map(Vec::capacity).sum();
        blocks * size_of::<Block>() + size_of::<Self>() + size_of::<Mine>()
    }
}

impl Mine {
    /// The thread ends.
    fn end(mut self) {
        let mut blocks = Vec::new();
        self.magazine.with(|magazine| magazine.take_all(&mut blocks));
        // Without the allocator there is nobody to give them to.
        if let Some(home) = self.home.upgrade()
            && !blocks.is_empty()
        {
            home.take_back(self.heap, blocks);
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let mine = self.0.borrow_mut().take_all();
        if forked() {
            // What they hold is the parent's, and the thread that wanted a magazine may not be here.
            let _ = std::mem::ManuallyDrop::new(mine);
            return;
        }
        mine.for_each(Mine::end);
    }
}

#[cfg(test)]
#[path = "magazine/tests.rs"]
mod tests;
