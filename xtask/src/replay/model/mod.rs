//! A device that is a model: it counts bytes, calls and time, and holds nothing.
//!
//! What an allocator under replay may ask of its driver is here, one function a call. Misuse that the driver would refuse is
//! refused; whether memory is used rightly is the business of the checker of `--calls`, which shares nothing with this.

mod clock;
pub(crate) mod cost;
mod memory;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::calls::{Call, CallLog, Wait};
use super::costs::{Calls, Costs, Kind};
use super::machine::{Machine, Peaks};
use super::plan::{Block, Plan};
use clock::Clock;
use memory::Memory;

pub(crate) use clock::Fence;

/// Why the model did not do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    OutOfMemory,
    /// What a driver refuses with `CUDA_ERROR_INVALID_VALUE`: the allocator is wrong.
    Invalid(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfMemory => "out of memory",
            Self::Invalid(what) => what,
        })
    }
}

impl std::error::Error for Refusal {}

/// The device.
#[derive(Debug)]
pub(crate) struct Model {
    state: Mutex<State>,
    log: CallLog,
}

#[derive(Debug)]
struct State {
    memory: Memory,
    clock: Clock,
    calls: Calls,
    /// What the calls would have taken.
    driver: Duration,
    /// Operations that the host waited for.
    waited: u64,
    syncs: u64,
    seconds_per_operation: f64,
    /// The number of the log's last free.
    last_free: Option<u64>,
    /// The host's time in here, which no allocator has to answer for.
    inside: Duration,
}

impl Model {
    /// A device with so many bytes, that runs `lag` operations behind the host.
    pub(crate) fn new(plan: &Plan, lag: u64, capacity: u64, log: CallLog) -> Self {
        let state = State {
            memory: Memory::new(capacity),
            clock: Clock::new(lag),
            calls: Calls::default(),
            driver: Duration::ZERO,
            waited: 0,
            syncs: 0,
            seconds_per_operation: plan.seconds_per_operation(),
            last_free: None,
            inside: Duration::ZERO,
        };
        Self { state: Mutex::new(state), log }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something in the allocator's name, whose time is not its own.
    fn call<R>(&self, body: impl FnOnce(&mut State, &CallLog) -> R) -> R {
        let started = Instant::now();
        let mut state = self.state();
        let result = body(&mut state, &self.log);
        state.inside += started.elapsed();
        result
    }

    /// The time that the program has taken so far.
    #[expect(clippy::cast_precision_loss, reason = "fewer operations than a float counts exactly")]
    pub(crate) fn now(&self) -> Duration {
        let state = self.state();
        Duration::from_secs_f64(state.clock.now() as f64 * state.seconds_per_operation)
    }

    /// The most bytes there may be.
    pub(crate) fn capacity(&self) -> u64 {
        self.state().memory.capacity()
    }

    /// Reserves addresses: `cuMemAddressReserve`. They are multiples of 1 GiB.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<u64, Refusal> {
        self.call(|state, _| {
            state.calls.add(Kind::Reserve);
            state.spend(cost::RESERVE);
            state.memory.reserve(bytes)
        })
    }

    /// Creates physical memory: `cuMemCreate`.
    pub(crate) fn create(&self, bytes: u64) -> Result<u64, Refusal> {
        self.call(|state, log| {
            state.calls.add(Kind::Create);
            state.spend(cost::CREATE);
            let handle = state.memory.create(bytes)?;
            log.note(&Call::Create { handle, bytes });
            Ok(handle)
        })
    }

    /// Maps a whole handle: `cuMemMap`.
    pub(crate) fn map(&self, address: u64, handle: u64) -> Result<(), Refusal> {
        self.call(|state, log| {
            state.calls.add(Kind::Map);
            state.spend(cost::MAP);
            let bytes = state.memory.map(address, handle)?;
            log.note(&Call::Map { address, handle, bytes });
            Ok(())
        })
    }

    /// Lets the device in: `cuMemSetAccess`, over whole mappings.
    pub(crate) fn set_access(&self, address: u64, bytes: u64) -> Result<(), Refusal> {
        self.call(|state, log| {
            state.calls.add(Kind::Access);
            let handles = state.memory.handles_in(address, bytes)?;
            state.spend(cost::ACCESS * handles);
            log.note(&Call::Access { address, bytes });
            Ok(())
        })
    }

    /// Unmaps whole mappings: `cuMemUnmap`. It waits for nobody.
    pub(crate) fn unmap(&self, address: u64, bytes: u64) -> Result<(), Refusal> {
        self.call(|state, log| {
            state.calls.add(Kind::Unmap);
            let handles = state.memory.unmap(address, bytes)?;
            state.spend(cost::UNMAP * handles);
            log.note(&Call::Unmap { address, bytes });
            Ok(())
        })
    }

    /// Gives physical memory back: `cuMemRelease`, of a handle that is mapped nowhere.
    pub(crate) fn release(&self, handle: u64) -> Result<(), Refusal> {
        self.call(|state, log| {
            state.calls.add(Kind::Release);
            state.spend(cost::RELEASE);
            state.memory.release(handle)?;
            log.note(&Call::Release { handle });
            Ok(())
        })
    }

    /// `cuMemAlloc`.
    pub(crate) fn malloc(&self, bytes: u64) -> Result<u64, Refusal> {
        self.call(|state, log| {
            state.calls.add(Kind::Malloc);
            state.spend(cost::malloc(bytes));
            let address = state.memory.malloc(bytes)?;
            log.note(&Call::Malloc { address, bytes });
            Ok(address)
        })
    }

    /// `cuMemFree`, which waits for the device.
    pub(crate) fn malloc_free(&self, address: u64) -> Result<(), Refusal> {
        self.call(|state, log| {
            state.calls.add(Kind::MallocFree);
            state.wait_for_all(log);
            let bytes = state.memory.malloc_free(address)?;
            state.spend(cost::malloc_free(bytes));
            log.note(&Call::MallocFree { address });
            Ok(())
        })
    }

    /// The point that a stream has reached when all it was given so far is done: `cuEventRecord`.
    pub(crate) fn record(&self, stream: u64) -> Fence {
        self.call(|state, log| {
            state.calls.add(Kind::Record);
            state.spend(cost::RECORD);
            Fence { stream, due: state.clock.due(stream), at: log.next() }
        })
    }

    /// Whether the device has come to the point: `cuEventQuery`.
    pub(crate) fn is_complete(&self, fence: &Fence) -> bool {
        self.call(|state, _| {
            state.calls.add(Kind::Query);
            state.spend(cost::QUERY);
            state.clock.is_past(fence.due)
        })
    }

    /// Has a stream's later work wait for the point: `cuStreamWaitEvent`.
    pub(crate) fn make_wait(&self, stream: u64, fence: &Fence) {
        self.call(|state, log| {
            state.calls.add(Kind::StreamWait);
            state.spend(cost::STREAM_WAIT);
            state.clock.make_wait(stream, fence.due.operation);
            // Frees since then are not covered.
            let at = state.last_free.filter(|free| fence.at <= *free).map(|_| fence.at);
            log.note(&Call::Order { to: stream, from: fence.stream, at });
        });
    }

    /// Has the host wait for the point: `cuEventSynchronize`.
    pub(crate) fn wait(&self, fence: &Fence) {
        self.call(|state, log| {
            state.calls.add(Kind::HostWait);
            state.waited += state.clock.wait(fence.due);
            log.note(&Call::Wait { kind: Wait::Event });
            state.tell_done(log);
        });
    }

    /// Has the host wait for all of the device: `cuCtxSynchronize`.
    #[cfg(test)]
    pub(crate) fn synchronize(&self) {
        self.call(|state, log| {
            state.calls.add(Kind::Synchronize);
            state.wait_for_all(log);
        });
    }
}

impl State {
    fn spend(&mut self, nanoseconds: u64) {
        self.driver += Duration::from_nanos(nanoseconds);
    }

    fn wait_for_all(&mut self, log: &CallLog) {
        self.syncs += 1;
        self.waited += self.clock.wait(self.clock.all_due());
        log.note(&Call::Wait { kind: Wait::Device });
        self.tell_done(log);
    }

    fn tell_done(&mut self, log: &CallLog) {
        while let Some(id) = self.clock.next_done() {
            log.note(&Call::Done { id });
        }
    }
}

impl Machine for Model {
    fn begin(&self, operation: u64) -> Result<()> {
        let mut state = self.state();
        state.clock.begin(operation);
        state.tell_done(&self.log);
        Ok(())
    }

    fn allocated(&self, block: &Block, address: u64) -> Result<()> {
        let Block { id, size, stream, .. } = *block;
        self.log.note(&Call::Alloc { id, address, bytes: size, stream });
        Ok(())
    }

    fn freeing(&self, block: &Block) -> Result<()> {
        let mut state = self.state();
        let side = block.side.map(|side| side.stream);
        state.last_free = Some(self.log.note(&Call::Free { id: block.id, side }));
        let mut due = state.clock.due(block.stream);
        if let Some(side) = block.side {
            state.clock.make_wait(side.stream, side.until);
            due = due.max(state.clock.due(side.stream));
        }
        state.clock.free(block.id, due);
        state.tell_done(&self.log);
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        Ok(self.log.close()?)
    }

    fn peaks(&self) -> Result<Peaks> {
        let state = self.state();
        Ok(Peaks { reserved: state.memory.peak_reserved, mappings: state.memory.peak_mappings })
    }

    #[expect(clippy::cast_precision_loss, reason = "fewer operations than a float counts exactly")]
    fn costs(&self) -> Costs {
        let state = self.state();
        Costs {
            calls: state.calls,
            driver: state.driver,
            host_wait: Duration::from_secs_f64(state.waited as f64 * state.seconds_per_operation),
            syncs: state.syncs,
            inside: state.inside,
        }
    }
}
