//! Blocks of pools, of this process and of others, with what frees them.
//!
//! # Safety
//!
//! Relies on `cuMemPoolImportPointer` giving an address that is valid until its free, and on every use of it being in its
//! [`Uses`]: work that is put into a stream without [`PoolBlock::on`] or [`ImportedBlock::on`] is its author's `unsafe` responsibility.

#![allow(unsafe_code, reason = "frees memory")]

use std::sync::Arc;
use std::time::Duration;

use cuda_mem_sys::CUdeviceptr;

use super::{MemoryPool, PointerExport, free};
use crate::buffer::{Borrowed, used_memory};
use crate::driver::deferred::{Guards, Held, Owned, Release};
use crate::driver::{Driver, refuse_forked};
use crate::error::{Error, Refused, Result, expect_lost};
use crate::fence::Fence;
use crate::pointer;
use crate::stream::Stream;
use crate::uses::Uses;

/// A block of another process's pool, freed here once, behind all uses that it knows of and without the host waiting. (Only the free of a
/// block whose stream was disowned, is a guest, or is another thread's default stream, waits there: the stream has no name.)
///
/// The exporter's own free comes after that: it is told by a fence that is recorded on [`ImportedBlock::stream`] behind
/// [`ImportedBlock::close`].
///
/// ```
/// use std::os::fd::AsFd;
/// use std::sync::Arc;
///
/// use cuda_mem_core::raw_pool::{
///     self, AllocationType, ImportedBlock, MemoryLocation, MemoryPool, PointerExport, PoolProperties,
/// };
/// use cuda_mem_core::{Driver, Stream};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let stream = Stream::new(&driver.device(0)?.primary_context()?)?;
/// let properties = PoolProperties {
///     allocation_type: AllocationType::Pinned,
///     location: MemoryLocation::Device(0),
///     shareable: true,
///     max_size: 0,
/// };
/// let pool = MemoryPool::create(driver, &properties)?;
/// let address = pool.allocate(4096, &stream)?;
/// let descriptor = pool.export()?;
/// // SAFETY: nothing here borrows the memory; it is freed after the importer's use of it.
/// let export = unsafe { MemoryPool::export_pointer(driver, address) }?;
///
/// // In the other process, which received the pool's descriptor and the 64 bytes (here the same one).
/// let theirs = Arc::new(MemoryPool::import(driver, descriptor.as_fd())?);
/// // SAFETY: imported once, from the process that exported the pool; the free below comes after it.
/// let block = unsafe { ImportedBlock::import(&theirs, &export, 4096, &stream) }?;
/// block.close()?;
/// // SAFETY: no work uses it.
/// unsafe { raw_pool::free(address, &stream) }?;
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug)]
pub struct ImportedBlock {
    /// Taken out when the block is freed or dropped.
    block: Owned<Block>,
    bytes: usize,
}

/// What there is to free.
#[derive(Debug)]
pub(super) struct Block {
    /// 0 once it is freed.
    pub(super) address: CUdeviceptr,
    /// The stream that it is freed on.
    pub(super) home: Stream,
    pub(super) uses: Uses,
    guards: Guards,
    /// Whether its uses have all that its stream was given: they take it once, or each attempt to free it would wait for more.
    has_home_uses: bool,
    /// Whether the loss of its context counts as the free: what is here of another process's memory goes with it.
    is_freed_with_context: bool,
    /// Let go right after the driver has taken the free. Not before: the driver refuses to destroy an imported pool while a block of it is
    /// not freed (code 1). And not later: once a thread has waited for the last free, the end of an imported pool of host memory leaves
    /// addresses where nothing can be mapped any more, whosever it is (code 208). Both were seen on hardware.
    pool: Option<Arc<MemoryPool>>,
}

impl Block {
    pub(super) fn new(address: CUdeviceptr, home: &Stream, pool: &Arc<MemoryPool>) -> Self {
        let (home, uses, guards, pool) =
            (home.clone(), Uses::new(), Guards::default(), Some(Arc::clone(pool)));
        Self { address, home, uses, guards, has_home_uses: false, is_freed_with_context: false, pool }
    }

    /// The error, unless the context that it tells the loss of has made the free.
    fn expect_lost(&self, error: Error) -> Result<()> {
        if self.is_freed_with_context { expect_lost(error) } else { Err(error) }
    }

    pub(super) fn borrowed(&self) -> Borrowed<'_> {
        Borrowed::of(&self.uses, self.home.context())
    }
}

impl ImportedBlock {
    /// The allocation behind an export, if it has at least `bytes` bytes, to be freed on `stream`.
    ///
    /// Wraps [`cuMemPoolImportPointer`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html), and
    /// [`cuPointerGetAttributes`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__UNIFIED.html), with which the size is
    /// checked. Not ordered behind the allocation: that takes a fence.
    ///
    /// # Errors
    ///
    /// [`Error::NotAsDeclared`] if it has fewer bytes, after it was freed again; those of [`MemoryPool::import_pointer`].
    ///
    /// # Safety
    ///
    /// As for [`MemoryPool::import_pointer`]. The exporter's free comes after the one here.
    pub unsafe fn import(
        pool: &Arc<MemoryPool>,
        export: &PointerExport,
        bytes: usize,
        stream: &Stream,
    ) -> Result<Self> {
        pool.driver().expect_same(stream.driver(), "the stream")?;
        pool.driver().reclaim();
        // SAFETY: the caller's promise.
        let address = unsafe { pool.import_pointer(export) }?;
        let block = Block { is_freed_with_context: true, ..Block::new(address, stream, pool) };
        let imported = Self { block: Owned::new(block), bytes };
        let found = pointer::attributes(stream.context(), address)?.range_size;
        if found < bytes {
            return Err(Error::NotAsDeclared {
                what: "the size",
                declared: bytes as u64,
                found: found as u64,
            });
        }
        Ok(imported)
    }

    /// The stream that it is freed on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.block.home
    }

    /// Takes over the uses of a part of the memory, whose own owner is gone: the free comes after them too.
    pub fn absorb_uses(&self, uses: Uses) {
        self.block.uses.absorb(uses);
    }

    /// Whether no use of the memory runs any more that it knows of, so that its free is reached at once: [`Uses::have_passed`].
    /// Errors: as there.
    pub fn have_uses_passed(&mut self) -> Result<bool> {
        self.block.uses.have_passed()
    }

    /// Has `guard` dropped once the free was reached on its stream, by a later call that allocates or releases or by
    /// [`Driver::reclaim`](crate::Driver::reclaim): only then the allocation may be imported anew, because on some drivers the free
    /// takes the memory from a second import. A lost context counts as the free, once no use runs in any other. If the driver refuses the
    /// free for another reason, `guard` is never dropped.
    pub fn drop_after_free(&mut self, guard: impl Send + Sync + 'static) {
        self.block.guards.add(guard);
    }

    /// Frees the block behind all its uses, and tells whether the driver took it. Ordered on [`ImportedBlock::stream`].
    ///
    /// Wraps [`cuMemFreeAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html), on a stream of its own, which
    /// is waited for, where that stream cannot be named.
    ///
    /// # Errors
    ///
    /// The block comes back with the error. [`Error::Timeout`] if a context was lost, so that the free cannot be ordered behind uses that
    /// run in others.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        self.block.release(true).map_err(|error| Refused::new(error, self))
    }
}

used_memory!(ImportedBlock, |this| this.block.address, this.bytes, this.block.borrowed());

/// How a block was freed.
enum Free {
    /// Behind all its uses, on its stream.
    Ordered,
    /// With the context that was lost.
    Lost,
}

impl Held for Block {
    fn driver(&self) -> Driver {
        self.home.driver()
    }

    fn is_released(&self) -> bool {
        self.address == 0
    }
}

impl Release for Block {
    fn release(&mut self, waits: bool) -> Result<()> {
        refuse_forked()?;
        if self.address == 0 {
            return Ok(());
        }
        let freed = match self.home.refuse_other_threads().and_then(|()| self.free_in_order()) {
            // Another thread's default stream has no name here, nor one that its owner may have destroyed.
            Err(Error::WrongThread | Error::Disowned) => self.free_waited(waits)?,
            freed => freed?,
        };
        self.address = 0;
        if let Some(pool) = self.pool.take().and_then(Arc::into_inner) {
            pool.go_with_context();
        }
        if !self.guards.is_empty() {
            let guards = std::mem::take(&mut self.guards);
            let mut uses = std::mem::take(&mut self.uses);
            let mut reached = None;
            if let Free::Ordered = freed {
                reached = Fence::record(&self.home).ok();
                // Without a point to ask for, the stream is waited for: the free was behind them all.
                if reached.is_none() && self.home.drain().result().is_ok() {
                    uses = Uses::new();
                }
            }
            self.home.driver().release_or_defer(Freed { freed: reached, uses, _guards: guards });
        }
        Ok(())
    }
}

impl Block {
    /// Frees it on its stream.
    fn free_in_order(&mut self) -> Result<Free> {
        if let Err(error) = self.uses.order(&self.home) {
            self.expect_lost(error)?;
            // What ran in a lost context is gone. What runs in others cannot be ordered any more: its end is asked for.
            self.uses.expect_over()?;
        }
        // SAFETY: allocated or imported once by this value and freed once, on a stream that is behind every use or when none runs.
        match unsafe { free(self.address, &self.home) } {
            Ok(()) => {
                // No call comes between: see the field.
                self.pool = None;
                Ok(Free::Ordered)
            }
            // With the context the import is gone, and the code may be that of earlier work, of a free that was done.
            Err(error) => self.expect_lost(error).map(|()| Free::Lost),
        }
    }

    /// Waits until it is not used any more, frees it on a stream of its own, and waits for that.
    fn free_waited(&mut self, waits: bool) -> Result<Free> {
        if !self.home.is_per_thread() && !self.has_home_uses {
            // What its own stream was given, if there is a point behind that: the waits for its allocation are there. Those of a
            // thread's default stream came to its uses in that thread.
            self.uses.absorb(Uses::starting_on(&self.home)?);
            self.has_home_uses = true;
        }
        self.uses.settle(waits)?;
        match Stream::new(self.home.context()) {
            Ok(own) => self.home = own,
            Err(error) => return self.expect_lost(error).map(|()| Free::Lost),
        }
        let freed = self.free_in_order()?;
        // It was taken. Whether it is over is asked for again, if somebody wants to know.
        let _ = self.home.drain();
        Ok(freed)
    }
}

/// A free that was enqueued, or that the lost context has made. What waits for it is dropped with this.
struct Freed {
    freed: Option<Fence>,
    /// Those that the free was behind. A lost context orders nothing: then they are asked for.
    uses: Uses,
    _guards: Guards,
}

impl Release for Freed {
    fn release(&mut self, _waits: bool) -> Result<()> {
        if let Some(freed) = &self.freed {
            let reached = freed.synchronize(Some(Duration::ZERO));
            if reached.is_ok() {
                return Ok(());
            }
            reached.or_else(expect_lost)?;
        }
        self.uses.expect_over()
    }
}

/// A block of a [`MemoryPool`], freed once, behind all uses that it knows of and without the host waiting. It keeps the pool. (Only the free
/// of a block whose stream was disowned, is a guest, or is another thread's default stream, waits there: the stream has no name.)
///
/// ```
/// use std::sync::Arc;
///
/// use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolBlock, PoolProperties};
/// use cuda_mem_core::{Driver, Stream};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let stream = Stream::new(&driver.device(0)?.primary_context()?)?;
/// let properties = PoolProperties {
///     allocation_type: AllocationType::Pinned,
///     location: MemoryLocation::Device(0),
///     shareable: false,
///     max_size: 0,
/// };
/// let pool = Arc::new(MemoryPool::create(driver, &properties)?);
/// let block = PoolBlock::allocate(&pool, 4096, &stream)?;
/// assert_eq!(block.on(&stream)?.address(), block.as_raw());
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PoolBlock {
    /// Taken out when the block is dropped.
    block: Owned<Block>,
    bytes: usize,
}

impl PoolBlock {
    /// Memory of the pool, allocated and to be freed on `stream`: [`MemoryPool::allocate`].
    /// Errors: as there.
    pub fn allocate(pool: &Arc<MemoryPool>, bytes: usize, stream: &Stream) -> Result<Self> {
        let address = pool.allocate(bytes, stream)?;
        let block = Owned::new(Block::new(address, stream, pool));
        let allocated = Self { block, bytes };
        // Others wait for the allocation.
        allocated.block.uses.record_stream(stream)?;
        Ok(allocated)
    }

    /// The stream that it was allocated on and is freed on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.block.home
    }

    /// What another process needs to find it: [`MemoryPool::export_pointer`].
    /// Errors: as there.
    ///
    /// # Safety
    ///
    /// This value outlives what the other process has imported, up to its free.
    pub unsafe fn export(&self) -> Result<PointerExport> {
        // SAFETY: no slice of it exists; the caller's promise.
        unsafe { MemoryPool::export_pointer(self.block.home.driver(), self.block.address) }
    }

    /// Takes over the uses of a part of the memory, whose own owner is gone: the free comes after them too.
    pub fn absorb_uses(&self, uses: Uses) {
        self.block.uses.absorb(uses);
    }

    /// Whether no use of the memory runs any more that it knows of, so that its free is reached at once: [`Uses::have_passed`].
    /// Errors: as there.
    pub fn have_uses_passed(&mut self) -> Result<bool> {
        self.block.uses.have_passed()
    }
}

used_memory!(PoolBlock, |this| this.block.address, this.bytes, this.block.borrowed());
