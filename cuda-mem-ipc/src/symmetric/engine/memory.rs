//! What a rank has after the rendezvous.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{Device, Driver, Error as CoreError, Stream, Uses};

use super::allocation::{Allocation, Shared};
use super::{Engine, refuse_forked};
use crate::symmetric::memory::{Used, part_len};
use crate::symmetric::{Error, Exchange, PeerBuffer, Result, SIGNAL_PAD_BYTES, SymmetricMemory};

pub(super) struct EngineMemory {
    allocation: Arc<Allocation>,
    exchange: Arc<dyn Exchange>,
    pads: Vec<CUdeviceptr>,
    offset: usize,
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
        let pad = |address: &CUdeviceptr| match address {
            0 => 0,
            address => address + allocation.pad as u64,
        };
        let pads = allocation.addresses().iter().map(pad).collect();
        Self { allocation, exchange, pads, offset }
    }

    fn shared(&self) -> &Shared {
        &self.allocation.shared
    }

    fn expect_rank(&self, rank: usize) -> Result<()> {
        let ranks = self.world_size();
        if rank < ranks {
            return Ok(());
        }
        Err(Error::NotAccepted { what: "the rank", value: rank, accepted: 0..=ranks - 1 })
    }

    /// A part of a rank's memory, from its beginning on.
    fn part(&self, rank: usize, at: usize, bytes: usize) -> Result<PeerBuffer> {
        let address = self.allocation.addresses().get(rank).copied().filter(|address| *address != 0);
        let address = address.ok_or(Error::NotReachable { rank })?;
        let view = View { allocation: Arc::clone(&self.allocation), rank };
        Ok(PeerBuffer::new(address + at as u64, bytes, Arc::new(view)))
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
        self.expect_rank(rank)?;
        let engine = &*self.shared().engine;
        let channels = engine.channels();
        if channel >= channels {
            let accepted = 0..=channels - 1;
            return Err(Error::NotAccepted { what: "the channel", value: channel, accepted });
        }
        if timeout.is_some() {
            let what = "timeout of a stream's wait, which only the library could end";
            return Err(Error::NotSupported { backend: engine.name(), what });
        }
        if stream.context() != &self.shared().context {
            return Err(CoreError::ForeignContext { what: "the stream" }.into());
        }
        if stream.is_capturing()? {
            return Err(CoreError::Capturing { call }.into());
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
    fn rank(&self) -> usize {
        self.shared().rank
    }

    fn world_size(&self) -> usize {
        self.shared().ranks
    }

    fn device(&self) -> Device {
        self.shared().context.device()
    }

    /// 0 for a rank whose memory cannot be reached by an address, on another host.
    fn buffer_ptrs(&self) -> &[CUdeviceptr] {
        self.allocation.addresses()
    }

    fn signal_pad_ptrs(&self) -> &[CUdeviceptr] {
        &self.pads
    }

    fn buffer_size(&self) -> usize {
        self.allocation.size
    }

    fn signal_pad_size(&self) -> usize {
        SIGNAL_PAD_BYTES
    }

    fn offset(&self) -> usize {
        self.offset
    }

    /// # Errors
    ///
    /// [`Error::NotReachable`] besides.
    fn get_buffer(&self, rank: usize, bytes: Range<usize>) -> Result<PeerBuffer> {
        self.expect_rank(rank)?;
        let start = bytes.start;
        let len = part_len(rank, bytes, self.allocation.size - self.offset)?;
        self.part(rank, self.offset + start, len)
    }

    fn get_signal_pad(&self, rank: usize) -> Result<PeerBuffer> {
        self.expect_rank(rank)?;
        self.part(rank, self.allocation.pad, SIGNAL_PAD_BYTES)
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

impl fmt::Debug for EngineMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineMemory")
            .field("engine", &self.shared().engine)
            .field("allocation", &self.allocation.sequence)
            .field("bytes", &self.allocation.size)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}
