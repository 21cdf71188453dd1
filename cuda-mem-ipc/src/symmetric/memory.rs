//! What a rank has after the rendezvous.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{self as core, Device, Driver, Stream, StreamUse, Uses};

use super::{Error, Result};

/// An allocation on every rank of a group. The [module](crate::symmetric) has an example.
///
/// Addresses are valid on this rank's device for as long as this lives. What is enqueued by address alone is its author's `unsafe`
/// responsibility; [`PeerBuffer::on`] has the memory outlive the work.
pub trait SymmetricMemory: fmt::Debug + Send + Sync {
    /// This process's rank.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// This rank's device.
    fn device(&self) -> Device;

    /// Where each rank's allocation begins, as addresses of this process.
    fn buffer_ptrs(&self) -> &[CUdeviceptr];

    /// Where each rank's signal pad begins, for kernels: `u32` slots, zero when nobody signals. Slot
    /// `world_size * channel + source` belongs to rank `source`; whoever signals sets it from 0 to 1 and whoever waits sets it back,
    /// both by compare-and-swap at system scope.
    fn signal_pad_ptrs(&self) -> &[CUdeviceptr];

    /// Bytes of the allocation, from its beginning.
    fn buffer_size(&self) -> usize;

    /// Bytes of a signal pad.
    fn signal_pad_size(&self) -> usize;

    /// How many bytes behind the allocation's beginning the address of the rendezvous was.
    fn offset(&self) -> usize;

    /// Bytes of a rank's buffer, counted from [`offset`](Self::offset).
    ///
    /// # Errors
    ///
    /// [`Error::NotAccepted`](super::Error::NotAccepted) for a rank that there is not,
    /// [`Error::BeyondBuffer`](super::Error::BeyondBuffer).
    fn get_buffer(&self, rank: usize, bytes: Range<usize>) -> Result<PeerBuffer>;

    /// A rank's signal pad.
    ///
    /// # Errors
    ///
    /// [`Error::NotAccepted`](super::Error::NotAccepted).
    fn get_signal_pad(&self, rank: usize) -> Result<PeerBuffer>;

    /// Whether all ranks are sound so far. Results of work behind a [`wait_signal`](Self::wait_signal) or a
    /// [`barrier`](Self::barrier) are used after the stream was waited for and this has said so.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`](super::Error::Broken), which names the rank.
    fn check(&self) -> Result<()>;

    /// Has the later work in `stream` wait for the earlier work of all ranks that call it on the same channel. The host waits for
    /// nothing. With a timeout, counted from this call, the group is broken when a rank is not there by then.
    ///
    /// # Capture
    ///
    /// [`Capturing`](core::Error::Capturing) if the stream captures: a graph would wait for the same number at each launch.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`](super::Error::Broken), [`Error::Left`](super::Error::Left),
    /// [`Error::NotAccepted`](super::Error::NotAccepted) for a channel that there is not, [`Error::Core`](super::Error::Core).
    fn barrier(&self, stream: &Stream, channel: usize, timeout: Option<Duration>) -> Result<()>;

    /// Signals rank `to` when everything that `stream` was given so far is done and visible there. Signals of one channel are
    /// counted: each lets one [`wait_signal`](Self::wait_signal) of that rank go.
    ///
    /// # Capture
    ///
    /// As [`barrier`](Self::barrier).
    ///
    /// # Errors
    ///
    /// As [`barrier`](Self::barrier).
    fn put_signal(&self, stream: &Stream, to: usize, channel: usize) -> Result<()>;

    /// Has the later work in `stream` wait for the next signal of rank `from`. The host waits for nothing.
    ///
    /// # Capture
    ///
    /// As [`barrier`](Self::barrier).
    ///
    /// # Errors
    ///
    /// As [`barrier`](Self::barrier).
    fn wait_signal(
        &self,
        stream: &Stream,
        from: usize,
        channel: usize,
        timeout: Option<Duration>,
    ) -> Result<()>;
}

/// A part of a rank's memory, which stays mapped while this lives and until the work is done that was enqueued under
/// [`on`](Self::on). The [module](crate::symmetric) has an example.
#[derive(Debug, Clone)]
pub struct PeerBuffer {
    address: CUdeviceptr,
    bytes: usize,
    owner: Arc<dyn Used>,
}

/// How many bytes a part of a rank's buffer has, which has `bytes` bytes from the offset on.
pub(super) fn part_len(rank: usize, part: Range<usize>, bytes: usize) -> Result<usize> {
    let Range { start, end } = part;
    let len = end.checked_sub(start).filter(|_| end <= bytes);
    len.ok_or(Error::BeyondBuffer { rank, start, end, bytes })
}

/// What knows the uses of memory and keeps it until they are over.
pub(super) trait Used: fmt::Debug + Send + Sync {
    fn driver(&self) -> Driver;

    fn uses(&self) -> &Uses;
}

impl PeerBuffer {
    pub(super) fn new(address: CUdeviceptr, bytes: usize, owner: Arc<dyn Used>) -> Self {
        Self { address, bytes, owner }
    }

    /// Where it begins.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.address
    }

    /// How many bytes there are.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Says that work with the memory is about to be put into `stream`, and gives its address. It is ordered behind uses of
    /// this process's other streams, and not behind other ranks: that takes a signal.
    ///
    /// # Capture
    ///
    /// As [`Uses::on`].
    ///
    /// # Errors
    ///
    /// As [`Uses::on`]; [`ForeignContext`](core::Error::ForeignContext) for another driver's stream.
    pub fn on<'m>(&'m self, stream: &'m Stream) -> Result<StreamUse<'m>, core::Error> {
        if stream.context().driver() != self.owner.driver() {
            return Err(core::Error::ForeignContext { what: "the stream" });
        }
        self.owner.uses().on(self.address, stream)
    }
}
