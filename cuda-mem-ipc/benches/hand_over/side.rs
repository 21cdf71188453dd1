//! What either process has: the device, a stream, and the words that both see.

use std::collections::BTreeMap;
use std::error::Error;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::host::{RegisterFlags, Registered, SharedMapping};
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUresult;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Context, DeviceBuffer, Driver, Stream, copy};

use crate::table::{Table, now};

/// Bytes of a buffer that is handed over, all of them the number of its round.
pub(crate) const LEN: usize = 512;

/// Numbers of rounds, as far as a byte tells them apart.
const STAMPS: usize = 256;

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    pub(crate) table: Table,
    /// `LEN` bytes of each number.
    stamps: DeviceBuffer<u8>,
    seen: DeviceBuffer<u8>,
    /// Begins with a word for bare calls: 0, and nobody waits for more.
    words: Registered<SharedMapping>,
    is_quiet: bool,
}

impl Side {
    pub(crate) fn new(table: Table) -> Result<Self, Box<dyn Error>> {
        let driver = match std::env::var("CUDA_MEM_BACKEND").as_deref() {
            Ok("sim") => Driver::over(cuda_mem_sim::table()),
            Ok("quiet") => Driver::over(crate::quiet::table()?),
            _ => Driver::system(),
        }?;
        let context = driver.device(0)?.primary_context()?;
        let stream = Stream::new(&context)?;
        let numbers = (0..STAMPS * LEN).map(|index| stamp(index / LEN)).collect::<Vec<_>>();
        let stamps = DeviceBuffer::from_slice(&stream, &numbers)?;
        let seen = DeviceBuffer::zeroed(&stream, LEN)?;
        let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
        let words =
            Registered::new(&context, SharedMapping::create(1)?, flags).map_err(|refused| refused.error)?;
        stream.synchronize()?;
        let is_quiet = std::env::var("CUDA_MEM_BACKEND").is_ok_and(|name| name == "quiet");
        Ok(Self { context, stream, table, stamps, seen, words, is_quiet })
    }

    pub(crate) fn versions(&self) -> Result<BTreeMap<&'static str, String>, Box<dyn Error>> {
        let device = self.context.device();
        Ok([
            ("cuda-mem", env!("CARGO_PKG_VERSION").to_owned()),
            ("driver", device.driver().version().to_string()),
            ("device", device.name()?),
        ]
        .into())
    }

    /// Puts into the stream what makes a buffer a round's.
    pub(crate) fn write(&self, address: u64, round: usize) -> Result<(), Box<dyn Error>> {
        let source = self.stamps.as_raw() + (round % STAMPS * LEN) as u64;
        // SAFETY: `LEN` bytes of a buffer that is kept or handed over behind this, and as many inside the stamps, which stay.
        unsafe { copy::memcpy_async(&self.stream, address, source, LEN) }?;
        if self.is_quiet {
            // Nothing orders the bytes.
            self.stream.synchronize()?;
        }
        Ok(())
    }

    /// Nanoseconds of the driver's call that has the stream write a word, and of nothing else.
    pub(crate) fn bare_write(&self) -> Result<u64, Box<dyn Error>> {
        let write = self.context.driver().table().cuStreamWriteValue64()?;
        let address = self.words.device_address()?;
        // SAFETY: a live stream, the context current, and a word that only such calls touch and that outlives the stream's work.
        self.bare(|| unsafe { write(self.stream.as_raw().cast(), address, 0, 0) })
    }

    /// As [`Side::bare_write`], for a wait which is over as soon as the stream comes to it.
    pub(crate) fn bare_wait(&self) -> Result<u64, Box<dyn Error>> {
        let wait = self.context.driver().table().cuStreamWaitValue64()?;
        let address = self.words.device_address()?;
        // SAFETY: as above.
        self.bare(|| unsafe { wait(self.stream.as_raw().cast(), address, 0, 0) })
    }

    fn bare(&self, call: impl FnOnce() -> CUresult) -> Result<u64, Box<dyn Error>> {
        let (code, taken) = self.context.with_current(|| {
            let start = now();
            (call(), now() - start)
        })?;
        if code == CUresult::CUDA_SUCCESS {
            Ok(taken)
        } else {
            Err(format!("the driver says {}", code.0).into())
        }
    }

    /// Waits for the stream, behind which the buffer must hold its round's bytes.
    pub(crate) fn check(&self, address: u64, round: usize) -> Result<(), Box<dyn Error>> {
        // SAFETY: `LEN` bytes of a buffer that the caller keeps until the stream was waited for below; nobody else uses `seen`.
        unsafe { copy::memcpy_async(&self.stream, self.seen.as_raw(), address, LEN) }?;
        let seen = self.seen.to_vec(&self.stream)?;
        if seen.iter().any(|byte| *byte != stamp(round)) {
            return Err(format!("round {round} came with the bytes of another").into());
        }
        Ok(())
    }
}

fn stamp(round: usize) -> u8 {
    // Of the remainder nothing is cut off.
    (round % STAMPS) as u8
}

/// Work that keeps a stream busy: copies on the device.
#[derive(Debug)]
pub(crate) struct Work {
    from: DeviceBuffer<u8>,
    to: DeviceBuffer<u8>,
}

impl Work {
    pub(crate) fn new(side: &Side, bytes: usize) -> Result<Self, Box<dyn Error>> {
        let buffer = || DeviceBuffer::zeroed(&side.stream, bytes);
        Ok(Self { from: buffer()?, to: buffer()? })
    }

    pub(crate) fn enqueue(&self, side: &Side) -> Result<(), Box<dyn Error>> {
        // SAFETY: two buffers of one size, used on this stream alone, and freed in its order.
        unsafe { copy::memcpy_async(&side.stream, self.to.as_raw(), self.from.as_raw(), self.from.len()) }?;
        Ok(())
    }
}
