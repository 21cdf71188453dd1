//! What a rank has after the rendezvous.

use std::sync::Arc;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{Driver, Error as CoreError, Stream, Uses};

use super::Engine;
use super::allocation::{Allocation, Shared};
use crate::primitive::refuse_forked;
use crate::symmetric::memory::{Layout, Used};
use crate::symmetric::{Error, Exchange, Result, SymmetricMemory};

pub(super) struct EngineMemory {
    allocation: Arc<Allocation>,
    exchange: Arc<dyn Exchange>,
    layout: Layout,
}

/// A rank's memory, as this process uses it.
#[derive(Debug)]
struct View {
    allocation: Arc<Allocation>,
    rank: usize,
}

impl Used for View {
    fn driver(&self) -> Driver {
        self.allocation.shared.context.driver()
    }

    fn uses(&self) -> &Uses {
        // As many as ranks, of which this is one.
        &self.allocation.uses[self.rank]
    }
}

impl EngineMemory {
    pub(super) fn new(allocation: Arc<Allocation>, exchange: Arc<dyn Exchange>, offset: usize) -> Self {
        let shared = &allocation.shared;
        let (rank, ranks, size) = (shared.rank, shared.ranks, allocation.size);
        let layout =
            Layout::new(rank, ranks, shared.context.device(), (size, offset), |rank| {
                match allocation.addresses().get(rank) {
                    None | Some(0) => [0; 2],
                    Some(address) => [*address, address + allocation.pad as u64],
                }
            });
        Self { allocation, exchange, layout }
    }

    fn shared(&self) -> &Shared {
        &self.allocation.shared
    }

    /// What must hold before anything is put into a stream.
    fn begin(
        &self,
        call: &'static str,
        stream: &Stream,
        rank: usize,
        channel: usize,
        timeout: Option<Duration>,
    ) -> Result<&dyn Engine> {
        refuse_forked()?;
        let engine = &*self.shared().engine;
        self.layout.begin(call, stream, rank, (channel, engine.channels()))?;
        if timeout.is_some() {
            let what = "timeout of a stream's wait, which only the library could end";
            return Err(Error::NotSupported { backend: engine.name(), what });
        }
        if stream.context() != &self.shared().context {
            return Err(CoreError::ForeignContext { what: "the stream" }.into());
        }
        self.check()?;
        Ok(engine)
    }

    /// Calls the library, as a user of this rank's memory.
    fn enqueue(&self, stream: &Stream, body: impl FnOnce() -> Result<()>) -> Result<()> {
        let open = self.allocation.uses[self.rank()].on(self.allocation.address, stream)?;
        let done = self.shared().context.with_current(body).map_err(Error::from).and_then(|done| done);
        drop(open);
        done
    }
}

impl SymmetricMemory for EngineMemory {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn owner(&self, rank: usize) -> Result<Arc<dyn Used>> {
        Ok(Arc::new(View { allocation: Arc::clone(&self.allocation), rank }))
    }

    fn check(&self) -> Result<()> {
        self.exchange.check()
    }

    fn barrier(&self, stream: &Stream, channel: usize, timeout: Option<Duration>) -> Result<()> {
        let engine = self.begin("barrier", stream, self.rank(), channel, timeout)?;
        self.enqueue(stream, || engine.barrier(&self.allocation.words, stream, channel))
    }

    fn put_signal(&self, stream: &Stream, to: usize, channel: usize) -> Result<()> {
        let engine = self.begin("put_signal", stream, to, channel, None)?;
        self.enqueue(stream, || engine.signal(&self.allocation.words, stream, to, channel))
    }

    fn wait_signal(
        &self,
        stream: &Stream,
        from: usize,
        channel: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let engine = self.begin("wait_signal", stream, from, channel, timeout)?;
        self.enqueue(stream, || engine.wait(&self.allocation.words, stream, from, channel))
    }
}

crate::shown!(EngineMemory, |it| engine: it.shared().engine, allocation: it.allocation.sequence, layout: it.layout);
