//! Threads for work that may block: drops, closings, and looks at memory that streams still use.
//!
//! Each job that waits holds up one thread and nothing else: as soon as the jobs that run have taken longer than [`PATIENCE`], the next one gets
//! another thread. Jobs that are short share one. What waits for streams alone takes no thread: it is looked at again and again.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::{self as core, forked};

use crate::primitive::lock;

/// How long a job runs before the next one gets a thread, for each thread that runs one: on busy processors short jobs take long too.
const PATIENCE: Duration = Duration::from_millis(10);

/// How long a thread without work stays.
const KEPT: Duration = Duration::from_millis(500);

/// How long a job that is not done is left alone between two looks, at first and at most; longer where there are very many.
const PAUSE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(16)];

/// Run again after a pause until it returns true.
type Job = Box<dyn FnMut() -> bool + Send>;

pub(crate) struct Background {
    name: &'static str,
    most_threads: usize,
    state: Mutex<State>,
    came: Condvar,
}

struct State {
    /// By when they are due and their number, with the pause behind the next run.
    jobs: BTreeMap<(Instant, u64), (Duration, Job)>,
    number: u64,
    threads: usize,
    idle: usize,
    /// When each job that runs began.
    running: Vec<Instant>,
}

/// What this process drops behind its own streams. Each job may wait for any stream, so there is no limit.
pub(crate) static DROPS: Background = Background::new("cuda-mem-release", usize::MAX);

/// Drops a value whose end may wait for others.
pub(crate) fn drop_in_background(what: impl Send + 'static) {
    if forked() {
        // Drops do nothing in a child.
        return drop(what);
    }
    DROPS.run(move || drop(what));
}

/// Runs a job soon and then again and again until it returns true, and drops it. It may give streams work, and waits for none.
pub(crate) fn until(job: impl FnMut() -> bool + Send + 'static) {
    if !forked() {
        DROPS.add(Box::new(job));
    }
}

/// Drops an owner of memory once no use of it runs any more. It does not wait for a capture, as in core.
pub(crate) fn drop_behind_uses<T: Send + 'static>(
    mut owner: T,
    mut have_passed: impl FnMut(&mut T) -> core::Result<bool> + Send + 'static,
) {
    until(move || !matches!(have_passed(&mut owner), Ok(false)));
}

impl Background {
    pub(crate) const fn new(name: &'static str, most_threads: usize) -> Self {
        let state = State { jobs: BTreeMap::new(), number: 0, threads: 0, idle: 0, running: Vec::new() };
        Self { name, most_threads, state: Mutex::new(state), came: Condvar::new() }
    }

    /// Runs a job soon. Does not block.
    pub(crate) fn run(&'static self, job: impl FnOnce() + Send + 'static) {
        let mut job = Some(job);
        self.add(Box::new(move || {
            job.take().into_iter().for_each(|job| job());
            true
        }));
    }

    fn add(&'static self, job: Job) {
        let mut state = lock(&self.state);
        state.add(Duration::ZERO, PAUSE[0], job);
        if state.idle == 0 {
            self.start(&mut state);
        }
        drop(state);
        self.came.notify_one();
    }

    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).jobs.len()
    }

    /// Starts the thread that could not be started before, if there was one: those that run may wait for ever. Tells whether there still is one.
    pub(crate) fn is_behind(&'static self) -> bool {
        let mut state = lock(&self.state);
        let is_behind = |state: &State| state.idle == 0 && !state.jobs.is_empty();
        if is_behind(&state) {
            self.start(&mut state);
        }
        is_behind(&state)
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
            let pause = state.pause();
            if pause == Some(Duration::ZERO) {
                state = self.work_once(state);
                continue;
            }
            state.idle += 1;
            let waited = self.came.wait_timeout(state, pause.unwrap_or(KEPT));
            let (guard, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            // One stays beside those that run, for what comes next.
            let is_needed = state.idle == 0 && !state.running.is_empty();
            if waited.timed_out() && !is_needed && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    fn work_once(&'static self, mut state: MutexGuard<'static, State>) -> MutexGuard<'static, State> {
        let Some((_, (pause, mut job))) = state.jobs.pop_first() else { return state };
        let began = Instant::now();
        state.running.push(began);
        if state.idle == 0 {
            self.start(&mut state);
        }
        drop(state);
        // What is dropped may run a hook of the program's, which may panic.
        let left = core::catch_panic(move || (!job()).then_some(job)).flatten();
        let mut state = lock(&self.state);
        if let Some(index) = state.running.iter().position(|at| *at == began) {
            state.running.swap_remove(index);
        }
        if let Some(job) = left {
            // Looks take about a quarter of the thread's time, however many jobs there are. A look that waited counts for 0.1 ms at most.
            let others = u32::try_from(state.jobs.len()).unwrap_or(u32::MAX);
            let least = began.elapsed().min(PAUSE[0] / 10).saturating_mul(others.saturating_mul(3));
            state.add(pause.max(least), (pause * 2).min(PAUSE[1]), job);
        }
        state
    }
}

impl State {
    fn add(&mut self, after: Duration, pause: Duration, job: Job) {
        self.number += 1;
        self.jobs.insert((Instant::now() + after, self.number), (pause, job));
    }

    /// How long until a thread that is free takes the next job: zero for now, none without a job.
    fn pause(&self) -> Option<Duration> {
        let ((due, _), _) = self.jobs.first_key_value()?;
        // The one that began last may end at any moment, and take the next.
        let last = self.running.iter().max().map_or(Duration::MAX, Instant::elapsed);
        let patience = PATIENCE.saturating_mul(u32::try_from(self.running.len()).unwrap_or(u32::MAX));
        Some(due.saturating_duration_since(Instant::now()).max(patience.saturating_sub(last)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Those that run may never end.
    #[test]
    fn a_group_is_behind_when_no_thread_is_free_for_a_job() {
        static GROUP: Background = Background::new("test", 1);
        let (began, ran) = mpsc::channel();
        let (gate, gated) = mpsc::channel::<()>();
        let first = began.clone();
        GROUP.run(move || {
            first.send(1).unwrap();
            // Until the test lets it go.
            let _ = gated.recv();
        });
        assert_eq!(ran.recv_timeout(LIMIT), Ok(1));
        assert!(!GROUP.is_behind());
        GROUP.run(move || began.send(2).unwrap());
        assert!(GROUP.is_behind());
        drop(gate);
        assert_eq!(ran.recv_timeout(LIMIT), Ok(2));
        assert!(!GROUP.is_behind());
    }

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

    /// As buffers do that are to go back while a stream that used them captures, or the driver refuses.
    #[test]
    fn jobs_that_are_not_done_leave_the_processor_to_others() {
        static GROUP: Background = Background::new("test", 1);
        const LOOK: Duration = Duration::from_micros(50);
        let (looks, is_over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        for _ in 0..2000 {
            let (looks, is_over) = (Arc::clone(&looks), Arc::clone(&is_over));
            GROUP.add(Box::new(move || {
                let began = Instant::now();
                while began.elapsed() < LOOK {
                    std::hint::spin_loop();
                }
                looks.fetch_add(1, Ordering::Relaxed);
                is_over.load(Ordering::Relaxed)
            }));
        }
        // At first there are few, and each is looked at soon again.
        while looks.load(Ordering::Relaxed) < 4000 {
            thread::sleep(Duration::from_millis(1));
        }
        let (before, start) = (looks.load(Ordering::Relaxed), Instant::now());
        thread::sleep(Duration::from_millis(500));
        let busy = LOOK * (looks.load(Ordering::Relaxed) - before);
        let of = start.elapsed();
        is_over.store(true, Ordering::Relaxed);
        assert!(busy < of / 2, "{busy:?} of {of:?}");
        let start = Instant::now();
        while GROUP.waiting() > 0 {
            assert!(start.elapsed() < LIMIT, "they are not looked at any more");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_rests_is_dropped_once_it_has_passed() {
        struct Counted(u32, mpsc::Sender<u32>);
        impl Counted {
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
        for counted in [Counted(0, sender.clone()), Counted(3, sender)] {
            let mut counted = counted;
            until(move || counted.has_passed());
        }
        assert_eq!((dropped.recv_timeout(LIMIT), dropped.recv_timeout(LIMIT)), (Ok(6), Ok(6)));
    }
}
