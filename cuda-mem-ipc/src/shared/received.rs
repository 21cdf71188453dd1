//! Buffers of another process.
//!
//! # Safety
//!
//! Relies on imported segments staying mapped while a share lives, and behind the uses that they took over.

#![allow(unsafe_code, reason = "makes ranges of addresses")]

use std::sync::Arc;

use cuda_mem_pool::cuda_mem_core::host::SharedMapping;
use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{
    self as core, DeviceCopy, DeviceRange, Stream, StreamUse, UsedElsewhere, Uses,
};

use super::importer::{ImportLink, Returned};
use super::segment::Segment;
use super::wire::HandOver;
use super::{expect_host, until, until_unused};
use crate::error::Result;
use crate::primitive::refuse_forked;
use crate::transport::Deadline;

/// Memory of another process that was handed over. Clones are handles to the same memory.
///
/// It remembers every stream that uses it. When its last handle is dropped, it goes back behind all of them: its owner uses
/// the memory again in stream order, and no host waits. It is not handed on: who else is to have it makes a connection of its own to the
/// owner. [`Exporter::listen`](super::Exporter::listen) has an example.
#[derive(Clone)]
pub struct ReceivedBuffer {
    pub(super) received: Arc<Received>,
}

pub(super) struct Received {
    pub(super) link: Arc<ImportLink>,
    pub(super) segment: Arc<Segment>,
    pub(super) offset: usize,
    pub(super) len: usize,
    /// As the exporter said it.
    pub(super) said: HandOver,
    pub(super) uses: Uses,
}

impl ReceivedBuffer {
    /// The number that [`Exporter::hand_over`](super::Exporter::hand_over) returned.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.received.said.sequence
    }

    /// Its size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.received.len
    }

    /// Its address here. Work that is put into a stream by it is ordered behind nothing, the exporter's work neither, and nothing
    /// behind it: see [`ReceivedBuffer::on`].
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.received.segment.address(self.received.offset)
    }

    /// Says that work which reads or writes the memory is about to be put into `stream`, and gives its address. The stream waits
    /// until the exporter's work is done, and the host for nothing.
    ///
    /// If the exporter dies after this, the stream goes on: ask [`ReceivedBuffer::is_ready`] before results are used.
    ///
    /// # Capture
    ///
    /// [`core::Error::Capturing`] if the stream captures and the exporter's work is not done.
    ///
    /// # Errors
    ///
    /// [`Error::PeerDied`](crate::Error::PeerDied) if the exporter died before its work was done;
    /// [`Error::TooManyWaits`](crate::Error::TooManyWaits) if eight other streams wait for work of this exporter: a peer need not reach its fences,
    /// and streams that wait hold up others. [`synchronize`](Self::synchronize) with a deadline takes none;
    /// [`Error::Core`](crate::Error::Core), as [`DeviceBuffer::on`](core::DeviceBuffer::on).
    pub fn on<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>> {
        refuse_forked()?;
        let received = &*self.received;
        received.link.context.driver().expect_same(stream.context().driver(), "the stream")?;
        received.order(stream)?;
        Ok(received.uses.on(self.as_raw(), stream)?)
    }

    /// Its memory as elements, as many as fit, for copies. They are ordered, and refused, as with [`ReceivedBuffer::on`]: an error of this
    /// crate is the core's [`Owner`](core::Error::Owner), and itself again by `From`.
    pub fn as_range<T: DeviceCopy>(&self) -> core::Result<DeviceRange<'_, T>> {
        refuse_forked()?;
        let (received, driver) = (&*self.received, self.received.link.context.driver());
        // SAFETY: as many bytes of a segment that stays mapped while this is borrowed, and until the uses are over, which it gets in the end.
        unsafe { DeviceRange::<u8>::from_mapped(&received.uses, driver, self.as_raw(), received.len) }?
            .behind(received)
            .cast()
    }

    /// Whether the exporter's work is done, and the bytes are there.
    ///
    /// # Errors
    ///
    /// [`Error::PeerDied`](crate::Error::PeerDied), as [`ReceivedBuffer::on`]; [`Error::Core`](crate::Error::Core).
    pub fn is_ready(&self) -> Result<bool> {
        refuse_forked()?;
        self.received.link.words.is_reached(self.received.said.fence)
    }

    /// Has the calling thread wait until the bytes are there.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`](crate::Error::Timeout); as [`ReceivedBuffer::is_ready`].
    pub fn synchronize(&self, deadline: impl Into<Deadline>) -> Result<()> {
        until(deadline.into(), "the exporter's work was done", || self.is_ready())
    }

    /// Copies bytes of a buffer in host memory out, from `offset` on, once the exporter's work and the uses of this process are done. Waits.
    ///
    /// # Errors
    ///
    /// [`Error::NotOnHost`](crate::Error::NotOnHost), [`core::Error::OutOfRange`]; those of [`ReceivedBuffer::synchronize`].
    pub fn read(&self, offset: usize, into: &mut [u8], deadline: impl Into<Deadline>) -> Result<()> {
        let (host, at) = self.host(offset, into.len(), deadline.into())?;
        Ok(host.read(at, into)?)
    }

    /// Copies bytes into a buffer in host memory, from `offset` on, behind the same as [`ReceivedBuffer::read`].
    /// Errors: as [`ReceivedBuffer::read`].
    pub fn write(&self, offset: usize, from: &[u8], deadline: impl Into<Deadline>) -> Result<()> {
        let (host, at) = self.host(offset, from.len(), deadline.into())?;
        Ok(host.write(at, from)?)
    }

    fn host(&self, offset: usize, len: usize, deadline: Deadline) -> Result<(&SharedMapping, usize)> {
        let received = &*self.received;
        let host = expect_host(&received.segment, received.offset, received.len, offset, len)?;
        self.synchronize(deadline)?;
        until_unused(&received.uses, None, deadline).map(|()| host)
    }
}

crate::impl_debug!(Received, |it| said: it.said);

impl UsedElsewhere for Received {
    fn order(&self, stream: &Stream) -> core::Result<()> {
        Ok(self.link.words.make_wait(self.said.fence, stream)?)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if core::forked() {
            // Before any lock: the memory is the parent's.
            return;
        }
        let (segment, uses) = (Arc::clone(&self.segment), std::mem::take(&mut self.uses));
        self.link.give_back(Returned::new(self.said.sequence, Some(segment), uses));
    }
}

crate::impl_debug!(ReceivedBuffer, |it|
    sequence: it.sequence(), address: format_args!("{:#x}", it.as_raw()), len: it.len()
);
