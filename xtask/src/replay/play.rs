//! Replays a plan.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::candidate::{Candidate, Refused, Tally};
use super::costs::Costs;
use super::machine::{Machine, Peaks};
use super::plan::{Operation, Plan};
use super::progress::Progress;

/// What a replay found.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// The most bytes that were live, and active, at once: as the plan's, without the blocks that were refused.
    pub(crate) peak_live: u64,
    pub(crate) peak_active: u64,
    pub(crate) peaks: Peaks,
    pub(crate) costs: Costs,
    pub(crate) tally: Tally,
    /// Nanoseconds of the allocator itself for each of its calls: without the driver and the model.
    pub(crate) nanoseconds: f64,
    /// Allocations that were refused for want of memory.
    pub(crate) oom: u64,
    /// Calls for memory in the second half of the allocations, for each 10,000 of those.
    pub(crate) late_calls: f64,
    /// The time of all calls and of host waits in the second half.
    pub(crate) late_time: Duration,
}

/// Has the allocator do what the program did; frees from another thread if there are to be two.
pub(crate) fn play(
    plan: &Plan,
    candidate: &dyn Candidate,
    machine: &dyn Machine,
    threads: u32,
    progress: &Progress,
) -> Result<Outcome> {
    thread::scope(|scope| {
        let second = (threads > 1).then(|| {
            // Without room in the channels each side waits for the other, so that the trace's order holds.
            let (to, requests) = sync_channel(0);
            let (answers, from) = sync_channel(0);
            scope.spawn(move || serve(candidate, &requests, &answers));
            Second { to, from }
        });
        Player { candidate, machine, second, own: Duration::ZERO, calls: 0, oom: 0 }.play(plan, progress)
    })
}

/// A block's address and its side stream.
type Request = (u64, Option<u64>);
type Answer = (Result<(), Refused>, Duration);

/// The way to the thread that frees.
struct Second {
    to: SyncSender<Request>,
    from: Receiver<Answer>,
}

fn serve(candidate: &dyn Candidate, requests: &Receiver<Request>, answers: &SyncSender<Answer>) {
    for (address, side) in requests {
        if answers.send(timed(|| candidate.free(address, side))).is_err() {
            return;
        }
    }
}

fn timed<R>(body: impl FnOnce() -> R) -> (R, Duration) {
    let started = Instant::now();
    let result = body();
    (result, started.elapsed())
}

struct Player<'a> {
    candidate: &'a dyn Candidate,
    machine: &'a dyn Machine,
    second: Option<Second>,
    /// Time in the allocator's calls.
    own: Duration,
    calls: u32,
    oom: u64,
}

impl Player<'_> {
    fn play(mut self, plan: &Plan, progress: &Progress) -> Result<Outcome> {
        let mut addresses: Vec<Option<u64>> = vec![None; plan.blocks.len()];
        let mut first_half = Costs::default();
        for (now, operation) in plan.operations.iter().enumerate() {
            self.machine.begin(now as u64)?;
            progress.show(now);
            match *operation {
                Operation::Allocate(place) => {
                    if place == plan.blocks.len() / 2 {
                        first_half = self.machine.costs();
                    }
                    addresses[place] = self.allocate(plan, place)?;
                }
                // What was refused is not there to be freed.
                Operation::Free(place) => {
                    if let Some(address) = addresses[place] {
                        self.free(plan, place, address)?;
                    }
                }
            }
        }
        self.machine.begin(plan.operations.len() as u64)?;
        let costs = self.machine.costs();
        let tally = self.candidate.tally()?;
        self.machine.finish()?;
        let late = (plan.blocks.len() - plan.blocks.len() / 2).max(1);
        let late_time =
            (costs.driver + costs.host_wait).saturating_sub(first_half.driver + first_half.host_wait);
        #[expect(clippy::cast_precision_loss, reason = "fewer calls than a float counts exactly")]
        let late_calls = (costs.calls.of_memory() - first_half.calls.of_memory()) as f64 * 1e4 / late as f64;
        let clock = clock_cost() * self.calls;
        let own = self.own.saturating_sub(costs.inside).saturating_sub(clock);
        let served = |place: usize| addresses.get(place).is_some_and(Option::is_some);
        let (peak_live, peak_active) = plan.peaks(served)?;
        Ok(Outcome {
            peak_live,
            peak_active,
            peaks: self.machine.peaks()?,
            costs,
            tally,
            nanoseconds: own.as_secs_f64() * 1e9 / f64::from(self.calls.max(1)),
            oom: self.oom,
            late_calls,
            late_time,
        })
    }

    fn allocate(&mut self, plan: &Plan, place: usize) -> Result<Option<u64>> {
        let block = &plan.blocks[place];
        let (result, time) = timed(|| self.candidate.allocate(block.size, block.stream));
        self.own += time;
        self.calls += 1;
        match result {
            Ok(address) => {
                self.machine.allocated(block, address)?;
                Ok(Some(address))
            }
            Err(Refused::OutOfMemory) => {
                self.oom += 1;
                Ok(None)
            }
            Err(Refused::Failed(error)) => {
                Err(error.context(format!("allocating block {} of {} bytes", block.id, block.size)))
            }
        }
    }

    fn free(&mut self, plan: &Plan, place: usize, address: u64) -> Result<()> {
        let block = &plan.blocks[place];
        self.machine.freeing(block)?;
        let side = block.side.map(|side| side.stream);
        let (result, time) = match &self.second {
            None => timed(|| self.candidate.free(address, side)),
            Some(second) => {
                let gone = || "the thread that frees has ended";
                second.to.send((address, side)).ok().with_context(gone)?;
                second.from.recv().ok().with_context(gone)?
            }
        };
        self.own += time;
        self.calls += 1;
        result.map_err(|refused| match refused {
            Refused::OutOfMemory => anyhow!("freeing block {}: out of memory", block.id),
            Refused::Failed(error) => error.context(format!("freeing block {}", block.id)),
        })
    }
}

/// What measuring a call adds to its time.
fn clock_cost() -> Duration {
    (0..1000).map(|_| timed(|| ()).1).min().unwrap_or_default()
}
