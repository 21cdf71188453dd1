//! Memory of a device.

mod bytes;
mod device;
mod managed;
mod range;

pub use device::DeviceBuffer;
pub use managed::ManagedBuffer;
pub use range::DeviceRange;

pub(crate) use bytes::{DeviceBytes, Enqueued};
pub(crate) use range::expect_equal;

use std::marker::PhantomData;

use cuda_mem_sys::CUdeviceptr;

use crate::error::Result;
use crate::stream::Stream;
use crate::uses::{Access, OpenUse, Uses};

/// A use of memory on a stream, from [`DeviceBuffer::on`] and its like: the address to hand to a kernel.
///
/// The stream is ordered behind the uses that came before, and later uses, the release among them, are ordered behind what
/// the stream is given while this lives. [`Uses`] has an example.
#[derive(Debug)]
#[must_use = "drop it after the work was enqueued"]
pub struct StreamUse<'b> {
    address: CUdeviceptr,
    /// Ends the use when it is dropped.
    _open: OpenUse<'b>,
    /// The end is marked in the thread that enqueued the work.
    _not_send: PhantomData<*mut ()>,
}

impl<'b> StreamUse<'b> {
    pub(crate) fn begin(
        address: CUdeviceptr,
        uses: &'b Uses,
        stream: &'b Stream,
        access: Access,
    ) -> Result<Self> {
        Ok(Self { address, _open: uses.begin(stream, access)?, _not_send: PhantomData })
    }

    /// The address on the device.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}
