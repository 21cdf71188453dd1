//! How memory comes from the program's functions and goes back, and how much may be held of it and private pools together.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, Stream, UsePoint, Uses};
use cuda_mem_ipc::cuda_mem_pool::history::RecordContext;
use cuda_mem_ipc::cuda_mem_pool::snapshot::Action;
use cuda_mem_ipc::cuda_mem_pool::{self as pool, MempoolId};

use super::books::{Block, Freed, State};
use super::{Inner, Program};
use crate::allocator::{CudaAllocator, for_core};
use crate::error::{Error, OutOfMemory, Result, no_panic};
use crate::lock::lock;

/// Requests are smaller, as PyTorch's.
const MOST: usize = 1 << 60;

impl Program {
    /// Asks `alloc`, within the fraction. 0 if there is no memory.
    pub(super) fn alloc(&self, size: usize, device: Device, stream: &Stream) -> Result<CUdeviceptr> {
        let is_ours = lock(&self.hooks).memory_fraction.is_none();
        let total = device.total_memory()?;
        let is_claimed = self.books.with(|state| {
            let of = state.of(device);
            let held = of.held.saturating_add(size);
            let is_limited = of.fraction < 1.0 && is_ours;
            let fits = !is_limited || held <= (of.fraction * total as f64).round() as usize;
            if fits {
                of.held = held;
            }
            fits
        });
        if !is_claimed {
            return Ok(0);
        }
        let asked = catch_unwind(AssertUnwindSafe(|| (self.alloc)(size, device, stream)));
        if matches!(asked, Ok(Ok(0) | Err(_)) | Err(_)) {
            self.unclaim(size, device);
        }
        match asked.unwrap_or_else(|panic| resume_unwind(panic)) {
            Err(error) if error.is_out_of_memory() => Ok(0),
            asked => asked,
        }
    }

    /// Gives memory that nothing uses any more to `free`.
    pub(super) fn free(
        &self,
        address: CUdeviceptr,
        size: usize,
        device: Device,
        stream: &Stream,
    ) -> Result<()> {
        no_panic("free", || (self.free)(address, size, device, stream))?;
        self.unclaim(size, device);
        Ok(())
    }

    fn unclaim(&self, bytes: usize, device: Device) {
        self.books.with(|state| {
            let held = &mut state.of(device).held;
            *held = held.saturating_sub(bytes);
        });
    }
}

impl Inner {
    /// An allocation of the program's function.
    pub(super) fn allocate(&self, size: usize, device: Device, stream: &Stream) -> Result<CUdeviceptr> {
        if size >= MOST {
            return Err(pool::Error::TooLarge { bytes: size }.into());
        }
        // Frees what can be freed by now; the request goes on without the rest.
        let _ = self.poll();
        // Gathered without a lock: it may take long, or allocate.
        let frames = self.native.caches.of(device)?.caching.history().frames(RecordContext::State);
        let mut address = self.program.alloc(size, device, stream)?;
        if address == 0 {
            self.program.books.with(|state| state.of(device).statistics.num_alloc_retries += 1);
            self.reclaim();
            address = self.program.alloc(size, device, stream)?;
        }
        if address == 0 {
            return Err(self.out_of_memory(size, device, stream)?);
        }
        let known = |state: &mut State| {
            let is_freed = state.freed.iter().any(|freed| freed.address == address);
            is_freed || state.blocks.contains_key(&address)
        };
        if self.program.books.with(known) {
            self.program.unclaim(size, device);
            return Err(Error::GivenTwice { address });
        }
        let block = Block { size, device, stream: stream.clone(), uses: Uses::new(), frames };
        // Recorded before its address is returned.
        self.tell(&block, address, &[Action::SegmentAlloc, Action::Alloc]);
        self.program.books.with(|state| {
            state.count_allocated(&block);
            state.blocks.insert(address, block);
        });
        Ok(address)
    }

    /// Tells the history of something that happened to an allocation.
    fn tell(&self, block: &Block, address: CUdeviceptr, actions: &[Action]) {
        // Made before the block.
        let Ok(device) = self.native.caches.of(block.device) else { return };
        let history = device.caching.history();
        if !history.is_listening() {
            return;
        }
        for &action in actions {
            let own = match action {
                Action::FreeRequested | Action::FreeCompleted => history.frames(RecordContext::All),
                _ => None,
            };
            let frames = own.as_ref().or(block.frames.as_ref());
            history.tell(action, address, block.size as u64, block.raw_stream(), MempoolId::NONE, frames);
        }
    }

    /// Takes an allocation back; false if it is none of the program's function.
    pub(super) fn free(&self, address: CUdeviceptr) -> Result<bool> {
        let Some(mut block) = self.program.books.with(|state| state.blocks.remove(&address)) else {
            return Ok(false);
        };
        self.tell(&block, address, &[Action::FreeRequested]);
        if !block.uses.is_empty() {
            let points = block.uses.points().ok();
            self.program.books.with(|state| {
                state.count_free_requested(&block);
                state.freed.push(Freed { address, block, points });
            });
            return Ok(true);
        }
        let freed = self.complete(address, &block);
        if freed.is_err() {
            // It is as it was.
            self.tell(&block, address, &[Action::Alloc]);
        }
        self.program.books.with(|state| match freed {
            Ok(()) => state.count_free_requested(&block),
            Err(_) => _ = state.blocks.insert(address, block),
        });
        freed.map(|()| true)
    }

    /// Gives the program's function memory that nothing uses any more. Refused, it is as it was.
    fn complete(&self, address: CUdeviceptr, block: &Block) -> Result<()> {
        // Recorded before the program's function may give it out again.
        self.tell(block, address, &[Action::FreeCompleted, Action::SegmentFree]);
        let freed = self.program.free(address, block.size, block.device, &block.stream);
        match freed {
            Ok(()) => self.program.books.with(|state| state.count_free_completed(block)),
            Err(_) => self.tell(block, address, &[Action::SegmentAlloc]),
        }
        freed
    }

    /// Gives back what was freed and is not used any more. The first error; what was refused is tried again.
    pub(super) fn poll(&self) -> Result<()> {
        let is_reached = |point: &UsePoint| point.is_reached().unwrap_or(false);
        let is_quiet = |freed: &mut Freed| {
            freed.points = freed.points.take().or_else(|| freed.block.uses.points().ok());
            freed.points.as_ref().is_some_and(|points| points.iter().all(is_reached))
        };
        // Blocks in use stay in the list, where calls that wait for them look.
        let quiet: Vec<_> = self.program.books.with(|state| state.freed.extract_if(.., is_quiet).collect());
        let mut result = Ok(());
        for freed in quiet {
            let given = self.complete(freed.address, &freed.block);
            if given.is_err() {
                self.program.books.with(|state| state.freed.push(freed));
            }
            result = result.and(given);
        }
        result
    }

    /// Gives back what was freed, at the end: waits for the streams that use it. One that captures keeps its memory for ever.
    pub(super) fn give_back_rest(&self) {
        let waiting = self.program.books.with(|state| std::mem::take(&mut state.freed));
        for Freed { address, block, .. } in waiting {
            let complete = || self.complete(address, &block).map_err(|error| for_core(error, address));
            if let Err(error) = block.uses.wait().and_then(|()| complete()) {
                self.native.caches.driver.report_release_failure(&error);
            }
        }
    }

    /// Everything that may help a request: waits for freed blocks, released pools, and what the program's functions cache.
    pub(super) fn reclaim(&self) {
        let points = self.program.books.with(|state| {
            let points = state.freed.iter().filter_map(|freed| freed.points.clone());
            points.flatten().collect::<Vec<_>>()
        });
        // Whatever a wait says, what has not ended is found out by the poll.
        points.iter().for_each(|point| _ = point.wait());
        // The request goes on without what is refused here.
        let _ = self.empty();
    }

    /// Gives back what is cached, here and by the program's functions; how many bytes of pools. The first error, after all of it was tried.
    pub(super) fn empty(&self) -> Result<usize> {
        let polled = self.poll();
        let bytes = self.native.empty_cache(MempoolId::NONE);
        let reset = lock(&self.program.hooks).reset.clone();
        if let Some(reset) = reset {
            reset();
        }
        polled.and(bytes)
    }

    /// The end of a request: the error, of which observers are told.
    fn out_of_memory(&self, requested: usize, device: Device, stream: &Stream) -> Result<Error> {
        let found = self.native.caches.of(device)?;
        let memory = found.context.memory_info().ok();
        let total = device.total_memory()?;
        let (allocated, fraction) = self.program.books.with(|state| {
            let of = state.of(device);
            of.statistics.num_ooms += 1;
            (of.statistics.allocated_bytes.all.current, of.fraction)
        });
        let report = OutOfMemory {
            device,
            requested,
            allowed: (fraction * total as f64).round() as usize,
            total,
            free: memory.map(|memory| memory.free),
            allocated: usize::try_from(allocated).unwrap_or(usize::MAX),
        };
        let free = report.free.unwrap_or(0) as u64;
        let stream = stream.as_raw() as usize as u64;
        found.caching.history().tell(Action::Oom, free, requested as u64, stream, MempoolId::NONE, None);
        let observers = lock(&self.observers).clone();
        observers.iter().for_each(|tell| tell(&report));
        Ok(Error::OutOfMemory(Box::new(report)))
    }
}
