//! Hears of the calls of the driver that the allocator makes: the books, the log and the peaks come from here.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use cuda_mem_core::StreamId;
use cuda_mem_pool::caching::{CallObserver, DriverCall};

use super::super::calls::Call;
use super::super::costs::Kind;
use super::super::driver::Device;
use super::super::machine::Peaks;
use super::super::model::cost;

/// Follows one allocator.
pub(super) struct Watcher {
    device: Arc<Device>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    reserved: u64,
    /// Their first addresses.
    mappings: BTreeSet<u64>,
    peaks: Peaks,
    /// The log's next event when an event of the driver was recorded, by its handle.
    recorded: HashMap<u64, u64>,
    /// What went wrong in here.
    failed: Option<anyhow::Error>,
}

impl Watcher {
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self { device, seen: Mutex::default() }
    }

    /// The most there was at once.
    pub(super) fn peaks(&self) -> Peaks {
        self.seen().peaks
    }

    /// Whether all calls could be followed.
    pub(super) fn result(&self) -> Result<()> {
        self.seen().failed.take().map_or(Ok(()), Err)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self, stream: StreamId) -> Result<u64> {
        self.device.number(stream).context("the allocator uses a stream that the trace has not")
    }

    /// The kind of a call, what it takes by the model, and what the log says of it.
    fn follow(&self, seen: &mut Seen, call: &DriverCall) -> Result<(Kind, u64, Option<Call>)> {
        Ok(match *call {
            DriverCall::Reserve { .. } => (Kind::Reserve, cost::RESERVE, None),
            DriverCall::Create { memory, bytes } => {
                let handle = memory.inspect(|_| {
                    seen.reserved += bytes;
                    seen.peaks.reserved = seen.peaks.reserved.max(seen.reserved);
                });
                (Kind::Create, cost::CREATE, handle.map(|handle| Call::Create { handle, bytes }))
            }
            DriverCall::Map { address, memory, bytes } => {
                seen.mappings.insert(address);
                seen.peaks.mappings = seen.peaks.mappings.max(seen.mappings.len() as u64);
                (Kind::Map, cost::MAP, Some(Call::Map { address, handle: memory, bytes }))
            }
            DriverCall::SetAccess { address, bytes } => {
                let handles = seen.mappings.range(address..address + bytes).count() as u64;
                (Kind::Access, cost::ACCESS * handles, Some(Call::Access { address, bytes }))
            }
            DriverCall::Unmap { address, bytes } => {
                let gone = seen.mappings.range(address..address + bytes).copied().collect::<Vec<_>>();
                gone.iter().for_each(|start| {
                    seen.mappings.remove(start);
                });
                // It is known by now what the device has done.
                self.device.tell_done()?;
                (Kind::Unmap, cost::UNMAP * gone.len() as u64, Some(Call::Unmap { address, bytes }))
            }
            DriverCall::Release { memory, bytes } => {
                seen.reserved = seen.reserved.saturating_sub(bytes);
                (Kind::Release, cost::RELEASE, Some(Call::Release { handle: memory }))
            }
            DriverCall::Record { event, .. } => {
                seen.recorded.extend(event.map(|event| (event, self.device.log().next())));
                (Kind::Record, cost::RECORD, None)
            }
            DriverCall::Query => (Kind::Query, cost::QUERY, None),
            DriverCall::StreamWait { stream, of, event } => {
                let at = event.and_then(|event| seen.recorded.get(&event).copied());
                let order = Call::Order { to: self.number(stream)?, from: self.number(of)?, at };
                (Kind::StreamWait, cost::STREAM_WAIT, Some(order))
            }
            ref other => return Err(anyhow!("{other:?} is not known here")),
        })
    }
}

impl CallObserver for Watcher {
    fn called(&self, call: &DriverCall, took: Duration) {
        let started = Instant::now();
        let mut seen = self.seen();
        match self.follow(&mut seen, call) {
            Ok((kind, modelled, line)) => {
                if let Some(line) = line {
                    self.device.log().note(&line);
                }
                self.device.count(kind, Duration::from_nanos(modelled), took, started);
            }
            Err(error) => seen.failed = Some(error),
        }
    }
}
