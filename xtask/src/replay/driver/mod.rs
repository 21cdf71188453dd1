//! A device of a driver: a GPU's, or the simulator's.
//!
//! Here is what any allocator on a real device needs from a replay: streams by the trace's numbers, a device that lags behind
//! ([`gate`]), and the books. An allocator's own file beside [`pool`] makes its driver calls through [`Device::time`], so that
//! they are counted and measured, or tells of them with [`Device::count`]; tells the most it had with [`Device::note_peaks`]; and notes what it creates, maps and waits
//! for in [`Device::log`], with [`Device::tell_done`] before each unmap and after each wait.

mod done;
mod gate;
mod pool;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cuda_mem_core::{Context, Driver, Stream, StreamId};
use cuda_mem_sim::Sim;

use super::calls::{Call, CallLog, Wait};
use super::costs::{Calls, Costs, Kind};
use super::machine::{Machine, Peaks};
use super::plan::{Block, Plan};
use done::Freed;
use gate::Gate;

pub(crate) use pool::DriverPool;

/// The simulated device's memory where no capacity is set: an H200's.
const SIMULATED: u64 = 143_771 << 20;

/// No misuse is looked for, because the trace's work touches nothing.
fn simulator(bytes: u64) -> Sim {
    Sim::builder().memory(bytes).misuse_detection(false).record(false).build()
}

/// What stands behind a replay.
pub(crate) struct Device {
    context: Context,
    streams: HashMap<u64, Stream>,
    gate: Arc<Gate>,
    watcher: Option<JoinHandle<()>>,
    log: Arc<CallLog>,
    /// Whether an allocator has asked the device since the host came to its operation.
    asked: AtomicBool,
    books: Mutex<Books>,
    freed: Mutex<Freed>,
    seconds_per_operation: f64,
    /// Keeps the simulated machine, if it is one; its calls take no time that means anything.
    simulator: Option<Sim>,
}

#[derive(Debug, Default)]
struct Books {
    calls: Calls,
    driver: Duration,
    peaks: Peaks,
    inside: Duration,
}

impl Device {
    /// A device of the simulator, with so many bytes of memory.
    pub(crate) fn simulated(plan: &Plan, lag: u64, capacity: Option<u64>, log: CallLog) -> Result<Self> {
        let sim = simulator(capacity.unwrap_or(SIMULATED));
        Ok(Self::new(Driver::over(sim.table())?, Some(sim), plan, lag, log)?.watched())
    }

    /// As [`Device::simulated`], for tests that stand still.
    #[cfg(test)]
    fn patient(plan: &Plan, lag: u64, log: CallLog) -> Result<Self> {
        let sim = simulator(1 << 30);
        Self::new(Driver::over(sim.table())?, Some(sim), plan, lag, log)
    }

    /// The system's first GPU.
    pub(crate) fn gpu(plan: &Plan, lag: u64, log: CallLog) -> Result<Self> {
        Ok(Self::new(Driver::system()?, None, plan, lag, log)?.watched())
    }

    fn new(driver: Driver, simulator: Option<Sim>, plan: &Plan, lag: u64, log: CallLog) -> Result<Self> {
        let context = driver.device(0)?.primary_context()?;
        let streams = plan.streams().into_iter().map(|number| Ok((number, Stream::new(&context)?)));
        let streams = streams.collect::<Result<_>>()?;
        let gate = Arc::new(Gate::new(&context, lag)?);
        Ok(Self {
            context,
            streams,
            gate,
            watcher: None,
            log: Arc::new(log),
            asked: AtomicBool::new(false),
            books: Mutex::default(),
            freed: Mutex::default(),
            seconds_per_operation: plan.seconds_per_operation(),
            simulator,
        })
    }

    /// Lets the device catch up while the host stands still: the host may be waiting for it.
    fn watched(mut self) -> Self {
        let (gate, log) = (Arc::clone(&self.gate), Arc::clone(&self.log));
        let tell = move || {
            log.note(&Call::Wait { kind: Wait::Device });
        };
        self.watcher = Some(std::thread::spawn(move || gate.watch(tell)));
        self
    }

    /// The stream of a number of the trace.
    pub(crate) fn stream(&self, number: u64) -> Result<&Stream> {
        self.streams.get(&number).with_context(|| format!("the trace has no stream {number}"))
    }

    /// The number that the trace has for a stream.
    pub(crate) fn number(&self, stream: StreamId) -> Option<u64> {
        self.streams.iter().find(|(_, own)| own.id() == stream).map(|(number, _)| *number)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn log(&self) -> &CallLog {
        &self.log
    }

    /// Makes a driver call in the books: its kind, and its time as it is measured; on the simulator as it is `modelled`.
    pub(crate) fn time<R>(&self, kind: Kind, modelled: Duration, call: impl FnOnce() -> R) -> R {
        let started = Instant::now();
        let result = call();
        let measured = started.elapsed();
        let mut books = self.books();
        books.calls.add(kind);
        books.driver += if self.simulator.is_some() { modelled } else { measured };
        result
    }

    /// Notes a call that an allocator made itself, how long it took, and since when it has been dealt with: neither is the
    /// allocator's own time.
    pub(crate) fn count(&self, kind: Kind, modelled: Duration, took: Duration, since: Instant) {
        if kind == Kind::Query {
            self.asked.store(true, Ordering::SeqCst);
        }
        let mut books = self.books();
        books.calls.add(kind);
        books.driver += if self.simulator.is_some() { modelled } else { took };
        books.inside += took + since.elapsed();
    }

    /// Notes how much there was.
    pub(crate) fn note_peaks(&self, peaks: Peaks) {
        let mut books = self.books();
        books.peaks.reserved = books.peaks.reserved.max(peaks.reserved);
        books.peaks.mappings = books.peaks.mappings.max(peaks.mappings);
    }

    /// Notes the blocks whose work is done by now, if there is a log.
    pub(crate) fn tell_done(&self) -> Result<()> {
        if self.log.is_kept() {
            self.freed.lock().unwrap_or_else(PoisonError::into_inner).tell(&self.log)?;
        }
        Ok(())
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine for Device {
    fn begin(&self, operation: u64) -> Result<()> {
        self.gate.begin(operation);
        self.asked.store(false, Ordering::SeqCst);
        self.tell_done()
    }

    fn allocated(&self, block: &Block, address: u64) -> Result<()> {
        let Block { id, size, stream, .. } = *block;
        // It may have found done what was not when the host came here.
        if self.asked.swap(false, Ordering::SeqCst) {
            self.tell_done()?;
        }
        self.log.note(&Call::Alloc { id, address, bytes: size, stream });
        Ok(())
    }

    fn freeing(&self, block: &Block) -> Result<()> {
        let side = block.side.map(|side| side.stream);
        self.log.note(&Call::Free { id: block.id, side });
        let own = self.stream(block.stream)?;
        self.gate.hold(own, 0)?;
        let side = block.side.map(|side| Ok::<_, anyhow::Error>((self.stream(side.stream)?, side.until)));
        let side = side.transpose()?;
        if let Some((stream, until)) = side {
            self.gate.hold(stream, until)?;
        }
        if self.log.is_kept() {
            let streams = std::iter::once(own).chain(side.map(|(stream, _)| stream));
            let mut freed = self.freed.lock().unwrap_or_else(PoisonError::into_inner);
            freed.add(block.id, &self.context, streams)?;
        }
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        self.gate.open();
        self.streams.values().try_for_each(Stream::synchronize)?;
        Ok(self.log.close()?)
    }

    fn peaks(&self) -> Result<Peaks> {
        Ok(self.books().peaks)
    }

    #[expect(clippy::cast_precision_loss, reason = "fewer operations than a float counts exactly")]
    fn costs(&self) -> Costs {
        let (books, caught) = (self.books(), self.gate.caught_up());
        Costs {
            calls: books.calls,
            driver: books.driver,
            host_wait: Duration::from_secs_f64(caught.operations as f64 * self.seconds_per_operation),
            syncs: caught.times,
            inside: books.inside,
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.gate.open();
        if let Some(watcher) = self.watcher.take() {
            watcher.thread().unpark();
            // A thread that panicked has told so.
            let _ = watcher.join();
        }
    }
}
