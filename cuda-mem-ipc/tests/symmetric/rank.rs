//! One rank of a test.

use std::sync::Arc;
use std::time::Duration;

use cuda_mem_core::{Context, DeviceBuffer, Driver, Stream};
use cuda_mem_ipc::symmetric::{
    Error, Group, GroupOptions, NativeBackend, PeerBuffer, SymmetricBackend, SymmetricBuffer,
    SymmetricMemory, Why,
};

use crate::common::{World, default_stream, driver};
pub(crate) use crate::crew::{Crew, Seat};

/// How long a rank waits for another. Far longer than any needs: who takes it fails.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Long enough to be no accident, short enough to wait for.
pub(crate) const SOON: Duration = Duration::from_millis(100);

const NAME: &str = "ranks";

pub(crate) struct Rank {
    pub(crate) native: Arc<NativeBackend>,
    pub(crate) group: Group,
    pub(crate) stream: Stream,
    pub(crate) context: Context,
    /// One test at a time in a process.
    pub(crate) _turn: Option<World>,
}

impl Seat {
    /// The device's context of this rank.
    pub(crate) fn context(&self, driver: Driver) -> Context {
        let devices = driver.devices().unwrap();
        let device = devices[self.rank % devices.len()];
        let reaches = |other| other == device || device.can_access_peer(other).unwrap();
        // Without a way between them all are on one.
        let device = if devices.iter().copied().all(reaches) { device } else { devices[0] };
        device.primary_context().unwrap()
    }

    pub(crate) fn join(&self) -> Rank {
        self.join_with(&options())
    }

    pub(crate) fn join_with(&self, options: &GroupOptions) -> Rank {
        // A process that was started has one test anyway.
        let turn = (self.rank == 0).then(World::new);
        let context = self.context(turn.as_ref().map_or_else(driver, |world| world.driver));
        Rank::new(context, self, options, turn)
    }
}

/// Small segments: a test fills more than one.
pub(crate) fn options() -> GroupOptions {
    GroupOptions { timeout: LONG, segment_bytes: 4 << 20, segment_allocations: 16, ..GroupOptions::default() }
}

impl Rank {
    pub(crate) fn new(context: Context, seat: &Seat, options: &GroupOptions, turn: Option<World>) -> Self {
        let group = Group::join(&context, NAME, seat.rank, seat.ranks, &seat.directory, options).unwrap();
        let native = Arc::new(NativeBackend::new());
        native.add_group(&group).unwrap();
        let stream = default_stream(&context);
        Self { native, group, stream, context, _turn: turn }
    }

    pub(crate) fn number(&self) -> usize {
        self.group.rank()
    }

    pub(crate) fn ranks(&self) -> usize {
        self.group.world_size()
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.number();
        (0..self.ranks()).filter(move |&rank| rank != own)
    }

    pub(crate) fn empty(&self, size: usize) -> SymmetricBuffer {
        self.try_empty(size).unwrap()
    }

    pub(crate) fn try_empty(&self, size: usize) -> Result<SymmetricBuffer, Error> {
        let backend: Arc<dyn SymmetricBackend> = self.native.clone();
        SymmetricBuffer::new(&backend, size, self.group.device(), Some(NAME))
    }

    /// New memory on all ranks. What is returned keeps it.
    pub(crate) fn memory(&self, size: usize) -> Arc<dyn SymmetricMemory> {
        self.empty(size).rendezvous(None).unwrap()
    }

    /// All ranks have come here, and what they put into their streams is done.
    pub(crate) fn meet(&self, memory: &dyn SymmetricMemory) {
        memory.barrier(&self.stream, 0, Some(LONG)).unwrap();
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

    /// Its end: nothing that the driver refused.
    pub(crate) fn finish(self) {
        let driver = self.context.driver();
        drop(self);
        assert_eq!(driver.release_failures(), 0);
    }
}

/// The rank that is at fault and why, as numbers.
pub(crate) fn culprit(error: &Error) -> [u64; 2] {
    match error {
        Error::Broken { rank, why, .. } => [*rank as u64, reason(*why)],
        error => panic!("not broken: {error}"),
    }
}

pub(crate) fn reason(why: Why) -> u64 {
    match why {
        Why::Died => 1,
        Why::Left => 2,
        Why::TimedOut => 3,
        _ => 4,
    }
}

/// Asks until the group is broken, and for as long as `LONG`.
pub(crate) fn until_broken(memory: &dyn SymmetricMemory) -> Error {
    let start = std::time::Instant::now();
    loop {
        if let Err(error) = memory.check() {
            return error;
        }
        assert!(start.elapsed() < LONG, "nobody has noticed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for the stream, and for as long as `LONG`.
pub(crate) fn until_idle(stream: &Stream) {
    let start = std::time::Instant::now();
    while !stream.is_idle().unwrap() {
        assert!(start.elapsed() < LONG, "the stream waits for somebody");
        std::thread::sleep(Duration::from_millis(1));
    }
}
