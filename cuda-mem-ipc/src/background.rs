//! Threads for whatever may wait for somebody else: drops, closings, and looks at memory that streams still use.
//!
//! Each job that waits holds up one thread and nothing else: as soon as the jobs that run have taken longer than [`PATIENCE`], the next one gets
//! another thread. Jobs that are short share one. What waits for streams alone takes no thread: it is looked at again and again.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::forked;

use crate::primitive::lock;

/// How long a job runs before the next one gets a thread of its own, for each thread that runs one.
const PATIENCE: Duration = Duration::from_millis(10);

/// How long a thread without work stays.
const KEPT: Duration = Duration::from_millis(500);

/// How long memory that streams use is left alone between two looks, at first and at most.
const PAUSE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(16)];

type Job = Box<dyn FnOnce() + Send>;

/// Something whose end waits for streams.
pub(crate) trait Resting: Send {
    /// Whether it waits no longer. It may give streams work when it is asked first, and waits for none.
    fn has_passed(&mut self) -> bool;
}

/// A group of threads.
pub(crate) struct Background {
    name: &'static str,
    most_threads: usize,
    state: Mutex<State>,
    came: Condvar,
}

struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// When each job that runs began.
    running: Vec<Instant>,
    resting: Vec<Box<dyn Resting>>,
    /// When those are looked at next, and how long after the look before.
    due: Option<Instant>,
    pause: Duration,
}

/// What this process drops behind its own streams. Each job may wait for any stream, so there is no limit.
static DROPS: Background = Background::new("cuda-mem-release", usize::MAX);

/// Runs a job soon. Never waits for anybody.
pub(crate) fn run(job: impl FnOnce() + Send + 'static) {
    DROPS.run(job);
}

/// Drops a value whose end may wait for others.
pub(crate) fn drop_in_background(what: impl Send + 'static) {
    if forked() {
        // Drops do nothing in a child.
        return drop(what);
    }
    DROPS.run(move || drop(what));
}

/// Drops a value as soon as streams have passed it.
pub(crate) fn drop_when_passed(what: impl Resting + 'static) {
    if forked() {
        return drop(what);
    }
    DROPS.run(move || {
        let mut what = what;
        if !what.has_passed() {
            DROPS.set_aside(Box::new(what));
        }
    });
}

/// Starts the thread that could not be started before, if there was one. Tells whether there still is one.
pub(crate) fn is_behind() -> bool {
    DROPS.is_behind()
}

impl Background {
    pub(crate) const fn new(name: &'static str, most_threads: usize) -> Self {
        let state = State {
            queue: VecDeque::new(),
            threads: 0,
            idle: 0,
            running: Vec::new(),
            resting: Vec::new(),
            due: None,
            pause: PAUSE[0],
        };
        Self { name, most_threads, state: Mutex::new(state), came: Condvar::new() }
    }

    pub(crate) fn run(&'static self, job: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        state.queue.push_back(Box::new(job));
        if state.idle == 0 {
            self.start(&mut state);
        }
        drop(state);
        self.came.notify_one();
    }

    /// How many jobs have not begun.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).queue.len()
    }

    fn is_behind(&'static self) -> bool {
        let mut state = lock(&self.state);
        if state.threads == 0 && (!state.queue.is_empty() || state.due.is_some()) {
            self.start(&mut state);
        }
        state.threads == 0 && !state.queue.is_empty()
    }

    fn set_aside(&self, what: Box<dyn Resting>) {
        let mut state = lock(&self.state);
        state.resting.push(what);
        state.pause = PAUSE[0];
        let soon = Instant::now() + state.pause;
        state.due = Some(state.due.map_or(soon, |due| due.min(soon)));
        drop(state);
        self.came.notify_one();
    }

    /// Starts a thread unless the running ones will take the next job. One that cannot be started is tried again with the next job.
    fn start(&'static self, state: &mut State) {
        if state.threads >= self.most_threads || state.idle > 0 {
            return;
        }
        let thread = thread::Builder::new().name(self.name.into());
        if thread.spawn(|| self.work()).is_ok() {
            state.threads += 1;
            // Until it looks for itself.
            state.idle += 1;
        }
    }

    fn work(&'static self) {
        let mut state = lock(&self.state);
        state.idle -= 1;
        loop {
            let pause = match state.next_pause() {
                Some(Duration::ZERO) => {
                    state = self.work_once(state);
                    continue;
                }
                pause => pause,
            };
            state.idle += 1;
            let waited = self.came.wait_timeout(state, pause.unwrap_or(KEPT));
            let is_over;
            (state, is_over) = {
                let (state, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
                (state, timed_out.timed_out())
            };
            state.idle -= 1;
            // One stays beside those that run, for what comes next.
            let is_needed = state.idle == 0 && !state.running.is_empty();
            if is_over && !is_needed && state.next_pause().is_none() {
                state.threads -= 1;
                return;
            }
        }
    }

    /// Runs a job, or looks at what rests.
    fn work_once(
        &'static self,
        mut state: std::sync::MutexGuard<'static, State>,
    ) -> std::sync::MutexGuard<'static, State> {
        let began = Instant::now();
        // A look that is due says nothing of the patience with the jobs that run.
        let job = if state.job_pause() == Some(Duration::ZERO) { state.queue.pop_front() } else { None };
        let resting =
            if job.is_none() { state.due.take().map(|_| mem::take(&mut state.resting)) } else { None };
        state.running.push(began);
        if state.idle == 0 {
            self.start(&mut state);
        }
        drop(state);
        // What is dropped may run a hook of the program's, which may panic.
        let _ = catch_unwind(AssertUnwindSafe(|| job.into_iter().for_each(|job| job())));
        let left = resting.map(|resting| (resting.len(), look_again(resting)));
        let mut state = lock(&self.state);
        if let Some(index) = state.running.iter().position(|at| *at == began) {
            state.running.swap_remove(index);
        }
        if let Some((before, mut left)) = left {
            let [first, most] = PAUSE;
            state.pause = if left.len() < before { first } else { (state.pause * 2).min(most) };
            state.resting.append(&mut left);
            if !state.resting.is_empty() {
                state.due = Some(Instant::now() + state.pause);
            }
        }
        state
    }
}

impl State {
    /// How long until there is something to do for a thread that is free: zero for now, none if nothing is known.
    fn next_pause(&self) -> Option<Duration> {
        let look = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        self.job_pause().into_iter().chain(look).min()
    }

    /// How long until a thread that is free takes the next job; none if there is no job.
    fn job_pause(&self) -> Option<Duration> {
        // The one that began last may end at any moment, and take the next.
        let last = self.running.iter().max().map_or(Duration::MAX, Instant::elapsed);
        // With each thread more it takes longer until there is another one: where processors are busy, short jobs take long too.
        let patience = PATIENCE.saturating_mul(u32::try_from(self.running.len()).unwrap_or(u32::MAX));
        (!self.queue.is_empty()).then(|| patience.saturating_sub(last))
    }
}

/// Drops what has passed, and returns what has not.
fn look_again(resting: Vec<Box<dyn Resting>>) -> Vec<Box<dyn Resting>> {
    let look = |mut what: Box<dyn Resting>| {
        let passed = catch_unwind(AssertUnwindSafe(|| if what.has_passed() { None } else { Some(what) }));
        passed.ok().flatten()
    };
    resting.into_iter().filter_map(look).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_job_that_waits_holds_up_no_other() {
        static GROUP: Background = Background::new("test", usize::MAX);
        let (gates, gated): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::channel::<()>()).unzip();
        let (done, ended) = mpsc::channel();
        for (number, gate) in gated.into_iter().enumerate() {
            let done = done.clone();
            GROUP.run(move || {
                // Until the test lets it go.
                let _ = gate.recv();
                done.send(number).unwrap();
            });
        }
        GROUP.run(move || done.send(7).unwrap());
        assert_eq!(ended.recv_timeout(LIMIT), Ok(7), "the others wait");
        drop(gates);
        let mut others: Vec<_> = (0..3).map(|_| ended.recv_timeout(LIMIT).unwrap()).collect();
        others.sort_unstable();
        assert_eq!(others, [0, 1, 2]);
    }

    #[test]
    fn what_rests_is_dropped_once_it_has_passed() {
        struct Counted(u32, mpsc::Sender<u32>);
        impl Resting for Counted {
            fn has_passed(&mut self) -> bool {
                self.0 += 1;
                self.0 > 5
            }
        }
        impl Drop for Counted {
            fn drop(&mut self) {
                self.1.send(self.0).unwrap();
            }
        }
        let (sender, dropped) = mpsc::channel();
        drop_when_passed(Counted(0, sender.clone()));
        drop_when_passed(Counted(3, sender));
        assert_eq!((dropped.recv_timeout(LIMIT), dropped.recv_timeout(LIMIT)), (Ok(6), Ok(6)));
    }
}
