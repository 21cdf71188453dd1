//! One rank of a test.

use std::sync::Arc;
use std::time::Duration;

use cuda_mem_core::{Context, DeviceBuffer, Driver, Stream};
use cuda_mem_ipc::symmetric::{
    EngineBackend, Exchange, Group, GroupOptions, PeerBuffer, Result, SymmetricBackend, SymmetricMemory,
};

use crate::common::{Backend, World, backend, default_stream, driver};
pub(crate) use crate::crew::{Crew, Seat};
use crate::fake;

/// How long a rank waits for another. Far longer than any needs: who takes it fails.
pub(crate) const LONG: Duration = Duration::from_secs(60);

const NAME: &str = "engines";

/// Which library, and as what version the stand-in passes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Library {
    #[cfg(feature = "nvshmem")]
    Nvshmem { minor: i32 },
    #[cfg(feature = "nccl")]
    Nccl { code: i32 },
}

/// Whether the machine's own library is used.
pub(crate) fn is_real() -> bool {
    backend() == Backend::Gpu
}

impl Library {
    pub(crate) fn start(
        self,
        context: &Context,
        exchange: Arc<dyn Exchange>,
        timeout: Duration,
    ) -> Result<EngineBackend> {
        match self {
            #[cfg(feature = "nvshmem")]
            Self::Nvshmem { minor } => {
                let real = || cuda_mem_core::sys::nvshmem::Table::system().unwrap();
                let table = if is_real() { real() } else { fake::nvshmem::table(minor) };
                EngineBackend::nvshmem(table, context, exchange, timeout)
            }
            #[cfg(feature = "nccl")]
            Self::Nccl { code } => {
                let real = || cuda_mem_core::sys::nccl::Table::system().unwrap();
                let table = if is_real() { real() } else { fake::nccl::table(code) };
                EngineBackend::nccl(table, context, exchange, timeout)
            }
        }
    }
}

impl Seat {
    /// Each rank has a device of its own where there are enough: the libraries want that.
    fn context(&self, driver: Driver) -> Context {
        let devices = driver.devices().unwrap();
        devices[self.rank % devices.len()].primary_context().unwrap()
    }

    /// A rank whose group has joined, and whose library has not started.
    pub(crate) fn join(&self) -> Joined {
        // A process that was started has one test anyway.
        let turn = (self.rank == 0).then(World::new);
        let context = self.context(turn.as_ref().map_or_else(driver, |world| world.driver));
        let options = GroupOptions { timeout: LONG, ..GroupOptions::default() };
        let group = Group::join(&context, NAME, self.rank, self.ranks, &self.directory, &options).unwrap();
        Joined { group: Arc::new(group), context, timeout: Duration::from_secs(60), turn }
    }
}

pub(crate) struct Joined {
    pub(crate) group: Arc<Group>,
    pub(crate) context: Context,
    pub(crate) timeout: Duration,
    turn: Option<World>,
}

impl Joined {
    pub(crate) fn start(&self, library: Library) -> Result<EngineBackend> {
        library.start(&self.context, self.group.clone(), self.timeout)
    }
}

pub(crate) struct Rank {
    pub(crate) backend: Arc<EngineBackend>,
    pub(crate) stream: Stream,
    pub(crate) joined: Joined,
}

impl Rank {
    pub(crate) fn of(seat: &Seat, library: Library) -> Self {
        let joined = seat.join();
        let backend = joined.start(library).unwrap();
        Self::new(joined, backend)
    }

    pub(crate) fn new(joined: Joined, backend: EngineBackend) -> Self {
        let backend = Arc::new(backend);
        let stream = default_stream(&joined.context);
        Self { backend, stream, joined }
    }

    /// The turn, for a test that looks at what the stand-ins of this process were called for when the rank has ended: without it, other
    /// tests call them by then.
    pub(crate) fn take_turn(&mut self) -> Option<World> {
        self.joined.turn.take()
    }

    pub(crate) fn number(&self) -> usize {
        self.joined.group.rank()
    }

    pub(crate) fn other(&self) -> usize {
        1 - self.number()
    }

    pub(crate) fn alloc(&self, size: usize) -> Result<u64> {
        self.backend.alloc(size, self.joined.context.device(), None).map(|allocated| allocated.address)
    }

    /// New memory on all ranks. Freed when what is returned goes.
    pub(crate) fn memory(&self, size: usize) -> Arc<dyn SymmetricMemory> {
        let address = self.alloc(size).unwrap();
        let memory = self.backend.rendezvous(address, None).unwrap();
        self.free(address).unwrap();
        memory
    }

    /// Gives back what the test has allocated, and uses by no address any more.
    pub(crate) fn free(&self, address: u64) -> Result<()> {
        let allocated = self.backend.find(address)?;
        // SAFETY: it is the test's.
        unsafe { self.backend.free(allocated) }
    }

    /// All ranks have come here, and what they put into their streams is done.
    pub(crate) fn meet(&self, memory: &dyn SymmetricMemory) {
        memory.barrier(&self.stream, 0, None).unwrap();
        self.stream.synchronize().unwrap();
        memory.check().unwrap();
    }

    pub(crate) fn upload(&self, buffer: &PeerBuffer, bytes: &[u8]) {
        let source = DeviceBuffer::from_slice(&self.stream, bytes).unwrap();
        let target = buffer.as_range::<u8>().unwrap().range(..bytes.len()).unwrap();
        target.copy_from(&self.stream, &source.whole()).unwrap();
    }

    pub(crate) fn download(&self, buffer: &PeerBuffer) -> Vec<u8> {
        let target = DeviceBuffer::<u8>::zeroed(&self.stream, buffer.bytes()).unwrap();
        target.whole().copy_from(&self.stream, &buffer.as_range().unwrap()).unwrap();
        target.to_vec(&self.stream).unwrap()
    }

    /// Its end: the library's too, and nothing that the driver refused.
    pub(crate) fn finish(self) {
        self.backend.close().unwrap();
        let driver = self.joined.context.driver();
        drop(self);
        assert_eq!(driver.release_failures(), 0);
    }
}
