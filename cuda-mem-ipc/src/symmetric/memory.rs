//! What a rank has after the rendezvous.
//!
//! # Safety
//!
//! Relies on [`Used`] owners, which are made here alone, keeping their memory until the uses that they know of are over.

#![allow(unsafe_code, reason = "makes ranges of addresses")]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{
    self as core, Device, DeviceCopy, DeviceRange, Driver, Stream, StreamUse, Uses,
};

use super::{CHANNELS, Error, Result, SIGNAL_PAD_BYTES};

/// An allocation on every rank of a group. The [module](crate::symmetric) has an example.
///
/// Addresses are valid on this rank's device for as long as this lives. What is enqueued by address alone is its author's `unsafe`
/// responsibility; [`PeerBuffer`] has the memory outlive the work.
pub trait SymmetricMemory: fmt::Debug + Send + Sync {
    /// Where it lies.
    fn layout(&self) -> &Layout;

    /// What keeps the memory, and knows its uses in this process.
    #[doc(hidden)]
    fn owner(&self) -> Arc<dyn Used>;

    /// This process's rank.
    fn rank(&self) -> usize {
        self.layout().rank
    }

    /// How many ranks there are.
    fn world_size(&self) -> usize {
        self.layout().ranks
    }

    /// This rank's device.
    fn device(&self) -> Device {
        self.layout().device
    }

    /// Where each rank's allocation begins, as addresses of this process: 0 for one of another host, which no address reaches.
    fn buffer_ptrs(&self) -> &[CUdeviceptr] {
        &self.layout().all[..self.world_size()]
    }

    /// Where each rank's signal pad begins, for kernels: `u32` slots, zero when no rank signals. Slot `world_size * channel + source` belongs to
    /// rank `source`; the sender sets it from 0 to 1 and the receiver back, both by compare-and-swap at system scope.
    fn signal_pad_ptrs(&self) -> &[CUdeviceptr] {
        &self.layout().all[self.world_size()..]
    }

    /// Bytes of the allocation, from its beginning.
    fn buffer_size(&self) -> usize {
        self.layout().size
    }

    /// Bytes of a signal pad.
    fn signal_pad_size(&self) -> usize {
        SIGNAL_PAD_BYTES
    }

    /// How many bytes behind the allocation's beginning the address of the rendezvous was.
    fn offset(&self) -> usize {
        self.layout().offset
    }

    /// Bytes of a rank's buffer, counted from [`offset`](Self::offset).
    ///
    /// # Errors
    ///
    /// [`Error::NotAccepted`] for a rank that there is not, [`Error::BeyondBuffer`], [`Error::NotReachable`].
    fn get_buffer(&self, rank: usize, bytes: Range<usize>) -> Result<PeerBuffer> {
        let layout = self.layout();
        layout.expect_rank(rank)?;
        let (Range { start, end }, there) = (bytes, layout.size - layout.offset);
        let len = end.checked_sub(start).filter(|_| end <= there);
        let len = len.ok_or(Error::BeyondBuffer { rank, start, end, bytes: there })?;
        PeerBuffer::new(self.buffer_ptrs()[rank], rank, layout.offset + start, len, self.owner())
    }

    /// A rank's signal pad.
    ///
    /// # Errors
    ///
    /// [`Error::NotAccepted`], [`Error::NotReachable`].
    fn get_signal_pad(&self, rank: usize) -> Result<PeerBuffer> {
        self.layout().expect_rank(rank)?;
        PeerBuffer::new(self.signal_pad_ptrs()[rank], rank, 0, SIGNAL_PAD_BYTES, self.owner())
    }

    /// Whether all ranks are sound so far. Results of work behind a [`wait_signal`](Self::wait_signal) or a
    /// [`barrier`](Self::barrier) are used after the stream was waited for and this has said so.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`], which names the rank.
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
    /// [`Error::Broken`], [`Error::Left`], [`Error::NotAccepted`] for a channel that there is not, [`Error::Core`].
    fn barrier(&self, stream: &Stream, channel: usize, timeout: Option<Duration>) -> Result<()>;

    /// Signals rank `to` when all that `stream` was given so far is done and visible there. Signals of a channel are counted: each lets one
    /// [`wait_signal`](Self::wait_signal) go. Failing though it counts, it breaks the group. Captures, errors: as [`barrier`](Self::barrier).
    fn put_signal(&self, stream: &Stream, to: usize, channel: usize) -> Result<()>;

    /// Has the later work in `stream` wait for the next signal of rank `from`. The host waits for nothing. Captures and errors: as
    /// [`barrier`](Self::barrier).
    fn wait_signal(
        &self,
        stream: &Stream,
        from: usize,
        channel: usize,
        timeout: Option<Duration>,
    ) -> Result<()>;
}

/// Where an allocation lies on each rank: what [`SymmetricMemory`] answers by.
#[derive(Debug)]
pub struct Layout {
    rank: usize,
    pub(super) ranks: usize,
    device: Device,
    size: usize,
    offset: usize,
    /// Each rank's buffer, and then each rank's pad.
    all: Vec<CUdeviceptr>,
}

impl Layout {
    pub(super) fn new(
        rank: usize,
        ranks: usize,
        device: Device,
        (size, offset): (usize, usize),
        place: impl Fn(usize) -> [CUdeviceptr; 2],
    ) -> Self {
        let mut all = vec![0; 2 * ranks];
        for rank in 0..ranks {
            [all[rank], all[ranks + rank]] = place(rank);
        }
        Self { rank, ranks, device, size, offset, all }
    }

    pub(super) fn expect_rank(&self, rank: usize) -> Result<()> {
        Error::check("the rank", rank, 0..=self.ranks - 1)
    }

    /// What must hold before a signal is put into a stream.
    pub(super) fn begin(
        &self,
        call: &'static str,
        stream: &Stream,
        rank: usize,
        (channel, channels): (usize, usize),
    ) -> Result<()> {
        self.expect_rank(rank)?;
        Error::check("the channel", channel, 0..=channels - 1)?;
        self.device.driver().expect_same(stream.context().driver(), "the stream")?;
        if stream.is_capturing()? { Err(core::Error::Capturing { call }.into()) } else { Ok(()) }
    }
}

/// Operations do not meet each other's signals.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operation {
    Barrier,
    Signal,
}

impl Operation {
    /// Words that an allocation has, for each operation, channel and sender.
    pub(super) fn words(ranks: usize) -> usize {
        2 * CHANNELS * ranks
    }

    /// The number of one of them: it has one writer, `source`.
    pub(super) fn word(self, channel: usize, ranks: usize, source: usize) -> usize {
        (self as usize * CHANNELS + channel) * ranks + source
    }
}

/// A part of a rank's memory, which stays mapped while this lives and until the work is done that was enqueued under
/// [`on`](Self::on). The [module](crate::symmetric) has an example.
#[derive(Debug, Clone)]
pub struct PeerBuffer {
    address: CUdeviceptr,
    bytes: usize,
    rank: usize,
    owner: Arc<dyn Used>,
}

/// What knows the uses of each rank's memory and keeps it until they are over.
pub trait Used: fmt::Debug + Send + Sync {
    fn driver(&self) -> Driver;

    fn uses(&self, rank: usize) -> &Uses;
}

impl PeerBuffer {
    fn new(
        first: CUdeviceptr,
        rank: usize,
        offset: usize,
        bytes: usize,
        owner: Arc<dyn Used>,
    ) -> Result<Self> {
        if first == 0 {
            return Err(Error::NotReachable { rank });
        }
        Ok(Self { address: first + offset as u64, bytes, rank, owner })
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

    /// Its memory as elements, as many as fit, for copies. They are ordered as with [`on`](Self::on).
    ///
    /// # Errors
    ///
    /// [`Misaligned`](core::Error::Misaligned).
    pub fn as_range<T: DeviceCopy>(&self) -> Result<DeviceRange<'_, T>, core::Error> {
        // SAFETY: the owner keeps as many bytes mapped while it lives, which is longer than this borrow, and until its uses are over.
        unsafe {
            DeviceRange::<u8>::from_mapped(
                self.owner.uses(self.rank),
                self.owner.driver(),
                self.address,
                self.bytes,
            )
        }?
        .cast()
    }

    /// Says that work with the memory is about to be put into `stream`, and gives its address. It is ordered behind uses of
    /// this process's other streams, and not behind other ranks: that takes a signal.
    ///
    /// # Errors
    ///
    /// As [`Uses::on`]; [`ForeignContext`](core::Error::ForeignContext) for another driver's stream.
    pub fn on<'m>(&'m self, stream: &'m Stream) -> Result<StreamUse<'m>, core::Error> {
        self.owner.driver().expect_same(stream.context().driver(), "the stream")?;
        self.owner.uses(self.rank).on(self.address, stream)
    }
}
