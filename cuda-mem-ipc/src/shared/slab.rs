//! Blocks of driver pools that whole segments are made of.
//!
//! # Safety
//!
//! Relies on the importer's free of a block coming before the exporter's. An importer says that its free was reached
//! ([`LetGo`](super::wire::Message::LetGo)), and each [`Exporter`](super::Exporter) that told of a slab keeps a share in it until
//! then, or until the peer's process has ended, whatever becomes of the connection. A block is imported once at a time, by whichever
//! peer's message and for whichever device: the driver gives a second import the first one's memory, and the first free takes it from
//! both. Its 64 bytes are entered in a set before it is imported, and leave it when its free was reached.

#![allow(unsafe_code, reason = "exports and imports blocks of pools")]

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock, Mutex, Weak};

use cuda_mem_pool::cuda_mem_core::raw_pool::{
    AllocationType, ImportedBlock, MemoryLocation, MemoryPool, PointerExport, PoolBlock, PoolProperties,
};
use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{Context, Driver, Stream, Uses, forked};

use super::importer::ImportLink;
use crate::background::drop_behind_uses;
use crate::error::{Error, Result};
use crate::import::Departure;
use crate::primitive::lock;

/// A driver pool that other processes can be given.
#[derive(Debug)]
pub(super) struct Slabs {
    pool: Arc<MemoryPool>,
    descriptor: OwnedFd,
}

/// A block of such a pool, of this process or another one's. Dropping it does not block: it is freed in another thread once no use
/// runs any more. The driver would free it behind them, but not destroy its stream before: of streams that wait it destroys 56, and from
/// then on has all of the process wait until one ends (seen on hardware).
#[derive(Debug)]
pub(super) struct Slab {
    /// There until the drop.
    block: Option<Block>,
    /// What it is imported by.
    pub(super) export: [u8; 64],
}

#[derive(Debug)]
enum Block {
    Own(PoolBlock, Arc<Slabs>),
    Imported(ImportedBlock, Arc<Subscribers>),
}

/// Links whose exporters have to hear that a block is gone, with their numbers for it.
#[derive(Debug, Default)]
struct Subscribers(Mutex<Vec<(Weak<ImportLink>, u64)>>);

impl Drop for Subscribers {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        for (link, segment) in lock(&self.0).drain(..) {
            if let Some(link) = link.upgrade() {
                link.slab_is_gone(segment);
            }
        }
    }
}

/// The blocks that this process has imported.
static IMPORTED: LazyLock<Mutex<HashSet<Name>>> = LazyLock::new(Mutex::default);

/// What a block is imported by.
type Name = (Driver, [u8; 64]);

/// The only import of a block.
#[derive(Debug)]
struct Only(Name);

impl Only {
    fn of(block: Name) -> Result<Self> {
        if lock(&IMPORTED).insert(block) { Ok(Self(block)) } else { Err(Error::BlockImported) }
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        // Before the lock: what a child's parent has imported is the parent's.
        if !forked() {
            lock(&IMPORTED).remove(&self.0);
        }
    }
}

impl Slabs {
    pub(super) fn new(context: &Context) -> Result<Self> {
        let location = MemoryLocation::Device(context.device().as_raw());
        let allocation_type = AllocationType::Pinned;
        let properties = PoolProperties { allocation_type, location, shareable: true, max_size: 0 };
        let pool = MemoryPool::create(context.driver(), &properties)?;
        reach(&pool, context)?;
        // Before any block of it can be exported.
        let descriptor = pool.export()?;
        Ok(Self { pool: Arc::new(pool), descriptor })
    }
}

/// Lets the context's device reach the memory, if it does not.
fn reach(pool: &MemoryPool, context: &Context) -> Result<()> {
    if !pool.is_accessible_from(context.device())? {
        pool.set_access(&[context.device()], true)?;
    }
    Ok(())
}

impl Slab {
    pub(super) fn allocate(context: &Context, slabs: &Arc<Slabs>, bytes: usize) -> Result<Self> {
        let stream = Stream::new(context)?;
        let block = PoolBlock::allocate(&slabs.pool, bytes, &stream)?;
        // It is for all streams.
        stream.synchronize()?;
        // SAFETY: the slab outlives what is imported: see the module.
        let export = *unsafe { block.export() }?.as_bytes();
        Ok(Self { block: Some(Block::Own(block, Arc::clone(slabs))), export })
    }

    pub(super) fn import(
        context: &Context,
        descriptor: BorrowedFd<'_>,
        export: [u8; 64],
        bytes: usize,
        departure: Departure,
    ) -> Result<Self> {
        // Before anything is imported: of a block that is here already, the pool is, too.
        let only = Only::of((context.driver(), export))?;
        let pool = Arc::new(MemoryPool::import(context.driver(), descriptor)?);
        reach(&pool, context)?;
        let stream = Stream::new(context)?;
        let data = PointerExport::from_bytes(export);
        // SAFETY: no other code of this process has it, nor gets it until its free was reached; the peer frees it after this process said so.
        let imported = unsafe { ImportedBlock::import(&pool, &data, bytes, &stream) };
        if imported.is_err() {
            // A block that is too small was freed on it.
            stream.synchronize()?;
        }
        let mut block = imported?;
        let told = Arc::new(Subscribers::default());
        // In this order: a call that waits for the departure imports the block anew.
        block.drop_after_free((only, departure, Arc::clone(&told)));
        Ok(Self { block: Some(Block::Imported(block, told)), export })
    }

    /// Has the exporter of a link be told when it is gone here, by its number there.
    pub(super) fn tell(&self, link: Weak<ImportLink>, segment: u64) {
        if let Some(Block::Imported(_, told)) = &self.block {
            lock(&told.0).push((link, segment));
        }
    }

    /// Takes a link off those whose exporters are told when it is gone here, unless it is the last; whether it did.
    pub(super) fn leave(&self, link: &Weak<ImportLink>, segment: u64) -> bool {
        let Some(Block::Imported(_, told)) = &self.block else { return false };
        let mut told = lock(&told.0);
        let own = told.iter().position(|(other, number)| other.ptr_eq(link) && *number == segment);
        own.filter(|_| told.len() > 1).map(|own| told.swap_remove(own)).is_some()
    }

    pub(super) fn address(&self) -> CUdeviceptr {
        match &self.block {
            Some(Block::Own(block, _)) => block.as_raw(),
            Some(Block::Imported(block, _)) => block.as_raw(),
            None => 0,
        }
    }

    /// The pool's, if it is of this process.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        if let Some(Block::Own(_, slabs)) = &self.block { Some(slabs.descriptor.as_fd()) } else { None }
    }

    /// Takes over the uses of a part of it.
    pub(super) fn absorb(&self, others: Uses) {
        match &self.block {
            Some(Block::Own(block, _)) => block.absorb_uses(others),
            Some(Block::Imported(block, _)) => block.absorb_uses(others),
            None => {}
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            drop_behind_uses(block, |block| match block {
                Block::Own(block, _) => block.have_uses_passed(),
                Block::Imported(block, _) => block.have_uses_passed(),
            });
        }
    }
}
