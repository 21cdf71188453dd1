//! The threads that do the work of streams, and the callers that wait for it.

use std::sync::{MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_sys::CUresult;

use super::op::{Outcome, Run};
use super::queue::Mark;
use super::{Runtime, State};
use crate::dispatch::HostFunction;
use crate::driver::Driver;

/// How long it takes to ask again whether something is complete: first, and at most.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// How many workers there are.
#[derive(Debug, Default)]
pub(super) struct Count {
    all: usize,
    idle: usize,
    /// Those in a function of the program, which may never return.
    in_host_functions: usize,
    /// Whether the simulator ends.
    stopping: bool,
}

/// What there is to do.
enum Pick {
    /// The first task of this stream.
    Task(u64),
    /// Nothing before then.
    At(Instant),
    Nothing,
}

impl Runtime {
    /// Makes sure that somebody does what can be done.
    pub(super) fn wake_workers(&self, state: &mut State) {
        self.completed.notify_all();
        if matches!(state.pick(Instant::now()), Pick::Nothing) {
            return;
        }
        if state.workers.idle > 0 {
            self.work.notify_one();
        } else if state.workers.all < self.max_workers && !state.workers.stopping {
            let Some(driver) = self.driver.upgrade() else { return };
            let spawned = thread::Builder::new()
                .name("cuda-mem-sim".to_owned())
                .spawn(move || driver.runtime.work(&driver));
            // Without another thread the ones that are there do the work, and callers that wait for it.
            state.workers.all += usize::from(spawned.is_ok());
        }
    }

    /// The life of a worker.
    fn work(&self, driver: &Driver) {
        let mut state = self.lock();
        while !state.workers.stopping {
            let pick = state.pick(Instant::now());
            if let Pick::Task(stream) = pick {
                state = self.run_first(state, driver, stream);
                continue;
            }
            state.workers.idle += 1;
            state = match pick {
                Pick::At(when) => {
                    let pause = when.saturating_duration_since(Instant::now());
                    self.work.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
                }
                _ => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.workers.idle -= 1;
        }
        state.workers.all -= 1;
        self.completed.notify_all();
    }

    /// Runs the first task of a stream, which may run, with the lock released.
    fn run_first<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        driver: &Driver,
        stream: u64,
    ) -> MutexGuard<'a, State> {
        let Some(queue) = state.queues.get_mut(&stream) else { return state };
        let Some(task) = queue.tasks.front_mut() else { return state };
        queue.is_running = true;
        let run = task.run.clone();
        let begun = *task.begun.get_or_insert_with(Instant::now);
        let is_host_function = matches!(run, Run::Host(_));
        state.workers.in_host_functions += usize::from(is_host_function);
        // What runs now may block, unless it is a question: others must go on meanwhile.
        if !matches!(run, Run::Poll(_)) {
            self.wake_workers(&mut state);
        }
        drop(state);
        let outcome = self.perform(driver, &run, begun);
        let mut state = self.lock();
        state.workers.in_host_functions -= usize::from(is_host_function);
        if let Some(queue) = state.queues.get_mut(&stream) {
            queue.is_running = false;
            if outcome == Ok(false)
                && queue.stream.context.check().is_ok()
                && let Some(task) = queue.tasks.front_mut()
            {
                // It is asked again after a pause that grows with its age. If its context was lost meanwhile, it counts as done.
                let pause = (begun.elapsed() / 8).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                task.not_before = Some(Instant::now() + pause);
                return state;
            }
            queue.tasks.pop_front();
            queue.done += 1;
        }
        if let Err(code) = outcome {
            state.lose_device_of(stream, code);
        }
        state.drop_empty_queue(stream);
        state.settle();
        self.wake_workers(&mut state);
        state
    }

    /// Whether the operation is complete.
    fn perform(&self, driver: &Driver, run: &Run, begun: Instant) -> Outcome<bool> {
        match run {
            Run::Once(run) => run(driver).map(|()| true),
            Run::Poll(poll) => poll(driver, begun.elapsed()),
            Run::Host(host) => {
                let _in_host_function = HostFunction::begin(self.slot);
                host.call();
                Ok(true)
            }
            Run::Reach(_) | Run::Nothing => Ok(true),
        }
    }

    /// Waits until streams have come to places. A caller that waits lends a hand instead of switching threads.
    pub(super) fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        marks: &[Mark],
    ) -> Outcome<MutexGuard<'a, State>> {
        while let Some(mark) = marks.iter().find(|&&mark| !state.is_reached(mark)) {
            if state.workers.stopping {
                return Err(CUresult::CUDA_ERROR_DEINITIALIZED);
            }
            let driver = self.driver.upgrade().filter(|_| state.can_lend_a_hand(mark.stream));
            state = match driver {
                Some(driver) => self.run_first(state, &driver, mark.stream),
                None => self.completed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        Ok(state)
    }

    /// Ends the workers. What they run is finished, what they have not begun is not.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.workers.stopping = true;
        self.work.notify_all();
        self.completed.notify_all();
        while state.workers.all > state.workers.in_host_functions {
            state = self.completed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.queues.clear();
    }
}

impl State {
    /// The task to run now: of the streams that could go on, the one with the highest priority, then the oldest.
    fn pick(&self, now: Instant) -> Pick {
        let mut best: Option<((i32, u64), u64)> = None;
        let mut next: Option<Instant> = None;
        for (&id, queue) in &self.queues {
            let Some(task) = queue.tasks.front().filter(|_| !queue.is_running) else { continue };
            if !self.may_run(task) {
                continue;
            }
            if let Some(when) = task.not_before.filter(|&when| when > now) {
                next = Some(next.map_or(when, |next| next.min(when)));
                continue;
            }
            let rank = (queue.stream.priority, task.ticket);
            if best.is_none_or(|(best, _)| rank < best) {
                best = Some((rank, id));
            }
        }
        match (best, next) {
            (Some((_, id)), _) => Pick::Task(id),
            (None, Some(when)) => Pick::At(when),
            (None, None) => Pick::Nothing,
        }
    }

    /// Whether a caller that waits for a stream can run its first task itself: it must not block.
    fn can_lend_a_hand(&self, stream: u64) -> bool {
        self.queues.get(&stream).is_some_and(|queue| {
            !queue.is_running
                && queue
                    .tasks
                    .front()
                    .is_some_and(|task| matches!(task.run, Run::Once(_)) && self.may_run(task))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::context::Context;
    use super::super::stream::Kind;
    use super::*;
    use crate::sim::Sim;
    use crate::site::Site;

    /// A stream that waits for what `poll` tells, and its end.
    fn waiting(poll: fn(&Context) -> Outcome<bool>) -> (Arc<Driver>, Mark) {
        let driver = Sim::builder().into_driver(1);
        let runtime = &driver.runtime;
        let context = runtime.retain_primary(0, Site::for_test(1)).unwrap();
        let context = runtime.context(context).unwrap();
        let mut state = runtime.lock();
        let stream = state.make_stream(Arc::clone(&context), Kind::Created, true, 0, None);
        let run = Run::Poll(Arc::new(move |_: &Driver, _| poll(&context)));
        let (end, _) = state.push(&stream, run, &[], None);
        runtime.wake_workers(&mut state);
        drop(state);
        (driver, end)
    }

    /// The one that asks goes on asking: nobody else is woken, or made, for each question.
    #[test]
    fn a_stream_that_waits_has_one_worker() {
        let (driver, _) = waiting(|_| Ok(false));
        thread::sleep(Duration::from_millis(50));
        assert_eq!(driver.runtime.lock().workers.all, 1);
        driver.runtime.stop();
    }

    /// Other work has lost the context while the question was asked: nobody would ask it for the end of the stream any more.
    #[test]
    fn what_is_asked_while_its_context_is_lost_counts_as_done() {
        let (driver, end) = waiting(|context| {
            context.fail(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
            Ok(false)
        });
        let begun = Instant::now();
        while !driver.runtime.lock().is_reached(end) {
            assert!(begun.elapsed() < Duration::from_secs(20), "the stream comes to its end");
            thread::sleep(Duration::from_millis(1));
        }
        driver.runtime.stop();
    }
}
