//! Where the engine gets memory: the model.

use std::sync::Arc;
use std::time::Duration;

use cuda_mem_pool::paged::Backend;

use super::super::model::{Fence, Model, Refusal};

/// The model as the engine sees it.
pub(super) struct Pages {
    pub(super) model: Arc<Model>,
    /// The stream of each heap, by its number.
    pub(super) streams: Vec<u64>,
}

impl Pages {
    pub(super) fn stream(&self, heap: u32) -> Result<u64, Refusal> {
        self.streams.get(heap as usize).copied().ok_or(Refusal::Invalid("a heap without a stream"))
    }
}

impl Backend for Pages {
    type Error = Refusal;
    type Point = Fence;

    fn is_out_of_memory(refusal: &Refusal) -> bool {
        *refusal == Refusal::OutOfMemory
    }

    fn now(&mut self) -> Duration {
        self.model.now()
    }

    fn reserve(&mut self, bytes: u64) -> Result<Option<u64>, Refusal> {
        self.model.reserve(bytes).map(Some)
    }

    fn create(&mut self, bytes: usize) -> Result<Option<u64>, Refusal> {
        match self.model.create(bytes as u64) {
            Ok(handle) => Ok(Some(handle)),
            Err(Refusal::OutOfMemory) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    fn map(&mut self, address: u64, bytes: usize, row: &[u64]) -> (usize, Result<(), Refusal>) {
        let mut end = address;
        for (done, memory) in row.iter().enumerate() {
            if let Err(refusal) = self.model.map(end, *memory) {
                return (done, Err(refusal));
            }
            end += bytes as u64;
        }
        if row.is_empty() {
            return (0, Ok(()));
        }
        match self.model.set_access(address, end - address) {
            Ok(()) => (row.len(), Ok(())),
            // What nobody can reach is not mapped.
            Err(refusal) => (0, self.model.unmap(address, end - address).and(Err(refusal))),
        }
    }

    fn unmap(&mut self, address: u64, bytes: usize) -> Result<(), Refusal> {
        self.model.unmap(address, bytes as u64)
    }

    fn release(&mut self, memory: u64, _bytes: usize) -> Result<(), Refusal> {
        self.model.release(memory)
    }

    fn point(&mut self, heap: u32) -> Result<Option<Fence>, Refusal> {
        Ok(Some(self.model.record(self.stream(heap)?)))
    }

    fn is_done(&mut self, point: &Fence) -> Result<bool, Refusal> {
        Ok(self.model.is_complete(point))
    }

    fn wait(&mut self, waiter: u32, _of: u32, point: &Fence) -> Result<bool, Refusal> {
        self.model.make_wait(self.stream(waiter)?, point);
        Ok(true)
    }
}
