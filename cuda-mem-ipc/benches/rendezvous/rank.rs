//! What a rank has: its device, and, once the ranks have come together, what it allocates from.

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Context, DeviceBuffer, Driver, Stream, copy};
use cuda_mem_ipc::symmetric::{
    Group, GroupOptions, NativeBackend, SymmetricBackend, SymmetricBuffer, SymmetricMemory,
};
use cuda_mem_sim::Sim;

use crate::crew::RANKS;
use crate::timed;

const NAME: &str = "rendezvous";

/// Bytes of a first read, and of what tells allocations apart.
pub(crate) const LEN: usize = 512;

/// An allocation with all ranks' addresses.
pub(crate) type Met = (SymmetricBuffer, Arc<dyn SymmetricMemory>);

pub(crate) struct Rank {
    pub(crate) number: usize,
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    directory: PathBuf,
    native: Arc<NativeBackend>,
    /// Allocations that stay: each of the next ones is new memory.
    pub(crate) kept: Vec<Met>,
    target: DeviceBuffer<u8>,
    sim: Option<&'static Sim>,
}

impl Rank {
    pub(crate) fn new(number: usize, directory: &Path) -> Result<Self, Box<dyn Error>> {
        let (driver, sim) = driver()?;
        let devices = driver.devices()?;
        let device = devices.get(number % devices.len().max(1)).ok_or("there is no device")?;
        let context = device.primary_context()?;
        let stream = Stream::new(&context)?;
        let target = DeviceBuffer::zeroed(&stream, LEN)?;
        stream.synchronize()?;
        let (directory, native) = (directory.to_owned(), Arc::default());
        Ok(Self { number, context, stream, directory, native, kept: Vec::new(), target, sim })
    }

    pub(crate) fn other(&self) -> usize {
        RANKS - 1 - self.number
    }

    /// Comes together with the other rank.
    pub(crate) fn join(&self) -> Result<(), Box<dyn Error>> {
        let options = GroupOptions::default();
        let group = Group::join(&self.context, NAME, self.number, RANKS, &self.directory, &options)?;
        Ok(self.native.add_group(&group)?)
    }

    pub(crate) fn empty(&self, bytes: usize) -> Result<SymmetricBuffer, Box<dyn Error>> {
        let backend: Arc<dyn SymmetricBackend> = self.native.clone();
        Ok(SymmetricBuffer::new(&backend, bytes, self.context.device(), Some(NAME))?)
    }

    /// Reads the beginning of the other rank's memory, and waits until it has come.
    pub(crate) fn read(&self, memory: &dyn SymmetricMemory) -> Result<(), Box<dyn Error>> {
        let source = memory.get_buffer(self.other(), 0..LEN)?;
        let (from, to) = (source.on(&self.stream)?, self.target.on(&self.stream)?);
        // SAFETY: `LEN` bytes on both sides, which know of the stream.
        unsafe { copy::memcpy_async(&self.stream, to.address(), from.address(), LEN) }?;
        Ok(self.stream.synchronize()?)
    }

    /// Writes bytes into a part of this rank's memory, and waits until they are there.
    pub(crate) fn write(
        &self,
        memory: &dyn SymmetricMemory,
        part: Range<usize>,
        stamp: u8,
    ) -> Result<(), Box<dyn Error>> {
        let source = DeviceBuffer::from_slice(&self.stream, &vec![stamp; part.len()])?;
        let target = memory.get_buffer(self.number, part)?;
        let (from, to) = (source.on_read(&self.stream)?, target.on(&self.stream)?);
        // SAFETY: as many bytes on both sides, which know of the stream.
        unsafe { copy::memcpy_async(&self.stream, to.address(), from.address(), source.len()) }?;
        Ok(self.stream.synchronize()?)
    }

    /// Whether the last [`read`](Self::read) has brought the stamp.
    pub(crate) fn expect(&self, stamp: u8) -> Result<(), Box<dyn Error>> {
        expect(&self.target.to_vec(&self.stream)?, stamp)
    }

    /// How often the driver was called, where that can be counted.
    pub(crate) fn driver_calls(&self) -> Option<u64> {
        self.sim.as_ref().map(|sim| sim.log().counts().values().sum())
    }

    /// Bytes of the device that nobody has.
    pub(crate) fn free_memory(&self) -> Result<usize, Box<dyn Error>> {
        Ok(self.context.memory_info()?.free)
    }
}

pub(crate) fn expect(bytes: &[u8], stamp: u8) -> Result<(), Box<dyn Error>> {
    let is_right = bytes.iter().all(|byte| *byte == stamp);
    if is_right { Ok(()) } else { Err("the other rank's bytes are not what it has written".into()) }
}

/// The machine's driver, or a simulated one that counts calls.
fn driver() -> Result<(Driver, Option<&'static Sim>), Box<dyn Error>> {
    if std::env::var("CUDA_MEM_BACKEND").as_deref() == Ok("sim") {
        let sim: &Sim = Box::leak(Box::new(Sim::builder().devices(RANKS).record(true).build()));
        return Ok((Driver::over(timed::table(Some(sim))?)?, Some(sim)));
    }
    Ok((Driver::over(timed::table(None)?)?, None))
}

pub(crate) fn versions() -> Result<BTreeMap<&'static str, String>, Box<dyn Error>> {
    let (driver, _sim) = driver()?;
    Ok([
        ("cuda-mem", env!("CARGO_PKG_VERSION").to_owned()),
        ("driver", driver.version().to_string()),
        ("device", driver.device(0)?.name()?),
        ("devices", driver.device_count()?.to_string()),
    ]
    .into())
}
