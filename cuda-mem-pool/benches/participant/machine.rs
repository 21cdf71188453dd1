//! The device that all cases use, and the proof that it reaches what was made for it.

use std::collections::BTreeMap;
use std::error::Error;

use cuda_mem_pool::cuda_mem_core::pointer::{self, MemoryKind};
use cuda_mem_pool::cuda_mem_core::{Context, DeviceBuffer, Driver, Result, Stream, copy};

/// Bytes that travel to prove it.
const PIECE: usize = 1 << 20;

/// The first device.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    scratch: DeviceBuffer<u8>,
}

impl Machine {
    pub(crate) fn new(driver: Driver) -> Result<Self> {
        let context = driver.device(0)?.primary_context()?;
        let stream = Stream::new(&context)?;
        let scratch = DeviceBuffer::zeroed(&stream, PIECE)?;
        Ok(Self { context, stream, scratch })
    }

    pub(crate) fn versions(&self) -> Result<BTreeMap<&'static str, String>> {
        let device = self.context.device();
        Ok([
            ("cuda-mem", env!("CARGO_PKG_VERSION").to_owned()),
            ("driver", device.driver().version().to_string()),
            ("device", device.name()?),
        ]
        .into())
    }

    /// Sends the block's beginning, middle and end to the device and back.
    ///
    /// # Safety
    ///
    /// `bytes` bytes at `start` can be read and written, and nobody else uses them.
    pub(crate) unsafe fn check(
        &self,
        start: *mut u8,
        bytes: usize,
    ) -> std::result::Result<(), Box<dyn Error>> {
        let piece = bytes.min(PIECE);
        for offset in [0, (bytes - piece) / 2, bytes - piece] {
            let pattern = (0..piece).map(|index| (index * 31 + offset + 7) as u8).collect::<Vec<_>>();
            // SAFETY: the piece lies in the block.
            let target = unsafe { start.add(offset) };
            // Pageable memory would travel too.
            if pointer::attributes(&self.context, target.addr() as u64)?.kind == MemoryKind::Unknown {
                return Err(format!("the device does not know the memory at {offset}").into());
            }
            // SAFETY: `piece` bytes of the block, and of a vector.
            unsafe { target.copy_from_nonoverlapping(pattern.as_ptr(), piece) };
            // SAFETY: the block stays until the stream was waited for below; the scratch buffer is as long as any piece.
            unsafe { copy::memcpy_async(&self.stream, self.scratch.as_raw(), target.addr() as u64, piece)? };
            self.stream.synchronize()?;
            if self.scratch.to_vec(&self.stream)?[..piece] != pattern {
                return Err(format!("the device saw other bytes than those at {offset}").into());
            }
        }
        Ok(())
    }
}
