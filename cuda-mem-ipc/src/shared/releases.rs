//! Threads that drop what may have to wait for others: streams, and what only the thread that looks after peers can end.
//!
//! One of them is there as long as that thread is, so that nothing is ever dropped on it. Whatever waits has a thread of its own
//! as soon as something else is to be dropped: what it waits for may be that. What waits for streams alone takes no thread: it is looked at
//! again and again, all of it by one.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::forked;

use super::{lock, reaper};
use crate::error::{Error, Result};

/// How long something may wait for its turn before there is another thread.
const PATIENCE: Duration = Duration::from_millis(10);

/// How long what streams have not passed is left alone, at first and at most.
const PAUSE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(16)];

type Job = Box<dyn FnOnce() + Send>;

/// Something whose end waits for streams.
pub(super) trait Resting: Send {
    /// Whether it waits no longer. Waits for no stream, but may give them work when it is asked first.
    fn has_passed(&mut self) -> bool;
}

/// When a thread begins with what waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    AtOnce,
    /// If nobody has begun with anything for a while.
    Patiently,
}

struct Jobs {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// How many are at something that may take long.
    busy: usize,
    /// Whether one stays when there is nothing to do, and somebody looks whether anything has waited for long.
    is_kept: bool,
    /// When a job was begun last, the first one came or a thread was started.
    moved: Option<Instant>,
    /// What was looked at and has not passed, when it is looked at again, and how long before that it was left alone.
    resting: Vec<Box<dyn Resting>>,
    due: Option<Instant>,
    pause: Duration,
}

static JOBS: Mutex<Jobs> = Mutex::new(Jobs {
    queue: VecDeque::new(),
    threads: 0,
    idle: 0,
    busy: 0,
    is_kept: false,
    moved: None,
    resting: Vec::new(),
    due: None,
    pause: PAUSE[0],
});
static CAME: Condvar = Condvar::new();

/// Has a thread stay until [`leave`], with nothing to do at first.
pub(super) fn stay() -> Result<()> {
    let mut jobs = lock(&JOBS);
    jobs.is_kept = true;
    if jobs.idle == 0
        && let Err(error) = jobs.start(Start::AtOnce)
    {
        jobs.is_kept = false;
        return Err(error);
    }
    Ok(())
}

/// Lets all go when nothing is left to do.
pub(super) fn leave() {
    let mut jobs = lock(&JOBS);
    jobs.is_kept = false;
    jobs.see_to_it();
    drop(jobs);
    CAME.notify_all();
}

/// Drops something whose end waits for others, in a thread of its own.
pub(super) fn bury(what: impl Send + 'static) {
    if forked() {
        // There is nothing to wait for: drops do nothing in a child.
        return drop(what);
    }
    // One may be needed for what rests, while others wait.
    give(Box::new(move || drop(what)), Start::AtOnce);
}

/// Drops something that seldom waits, behind others of its kind unless one does.
pub(super) fn bury_in_turn(what: impl Send + 'static) {
    if forked() {
        return drop(what);
    }
    give(Box::new(move || drop(what)), Start::Patiently);
}

/// Drops something as soon as streams have passed it.
pub(super) fn rest(what: impl Resting + 'static) {
    if forked() {
        return drop(what);
    }
    let look = move || {
        let mut what = what;
        if !what.has_passed() {
            lock(&JOBS).set_aside(Box::new(what));
            CAME.notify_one();
        }
    };
    give(Box::new(look), Start::Patiently);
}

fn give(job: Job, start: Start) {
    let mut jobs = lock(&JOBS);
    jobs.add(job);
    let is_needed = match start {
        Start::AtOnce => jobs.idle < jobs.queue.len() + usize::from(jobs.due.is_some()),
        Start::Patiently => jobs.needs_another(),
    };
    // What has waited long enough does not do so once more.
    let start = if jobs.is_stuck() { start } else { Start::AtOnce };
    let has_failed = is_needed && jobs.start(start).is_err();
    if has_failed && jobs.threads == 0 {
        // No peer is looked after: this is no thread that others wait for.
        let job = jobs.queue.pop_back();
        drop(jobs);
        return job.into_iter().for_each(|job| job());
    }
    let is_to_wait = !is_needed && jobs.idle == 0;
    drop(jobs);
    CAME.notify_one();
    if has_failed || is_to_wait {
        // It tries again, or starts a thread if this has waited for long.
        reaper::wake();
    }
}

/// Does things that seldom wait, one after the other unless one does. Only while a thread stays, which [`is_behind`] looks after.
pub(super) fn queue(work: impl IntoIterator<Item = impl FnOnce() + Send + 'static>) {
    let mut jobs = lock(&JOBS);
    work.into_iter().for_each(|job| jobs.add(Box::new(job)));
    drop(jobs);
    CAME.notify_one();
}

/// Whether something waits for its turn, or rests and nobody is about to look at it. If it has waited for long, it gets a thread.
pub(super) fn is_behind() -> bool {
    let mut jobs = lock(&JOBS);
    if jobs.moved.is_some_and(|at| at.elapsed() >= PATIENCE) && jobs.has_work_left() {
        // If there can be none, it is tried again.
        let _ = jobs.start(Start::AtOnce);
    }
    jobs.has_work_left()
}

impl Jobs {
    fn add(&mut self, job: Job) {
        if self.queue.is_empty() {
            self.moved = Some(Instant::now());
        }
        self.queue.push_back(job);
    }

    /// Whether nobody would do what has just come, as far as that is known now.
    fn needs_another(&self) -> bool {
        let has_waited = self.moved.is_some_and(|at| at.elapsed() >= PATIENCE);
        self.idle == 0 && (self.threads == 0 || has_waited) || self.is_stuck()
    }

    /// Whether what waits for its turn may wait for ever: each thread may be held up, and nobody looks.
    fn is_stuck(&self) -> bool {
        !self.is_kept && self.busy == self.threads && self.has_work_left()
    }

    fn see_to_it(&mut self) {
        if self.is_stuck() {
            // If there can be none, whoever is free first does it.
            let _ = self.start(Start::Patiently);
        }
    }

    /// Whether there is something that no thread is free for.
    fn has_work_left(&self) -> bool {
        !self.queue.is_empty() || self.idle == 0 && self.due.is_some()
    }

    fn set_aside(&mut self, what: Box<dyn Resting>) {
        self.resting.push(what);
        self.pause = PAUSE[0];
        let soon = Instant::now() + self.pause;
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    /// What is to be looked at now.
    fn awoken(&mut self) -> Option<Vec<Box<dyn Resting>>> {
        self.due.take_if(|due| *due <= Instant::now())?;
        Some(mem::take(&mut self.resting))
    }

    /// What has not passed of those that were looked at.
    fn set_aside_again(&mut self, mut left: Vec<Box<dyn Resting>>, has_any_passed: bool) {
        let [first, most] = PAUSE;
        self.pause = if has_any_passed { first } else { (self.pause * 2).min(most) };
        self.resting.append(&mut left);
        if !self.resting.is_empty() {
            self.due = Some(Instant::now() + self.pause);
        }
    }

    /// How long whoever came for what waits leaves it to the others, who may not be held up.
    fn patience(&self) -> Option<Duration> {
        let is_left_to_others = self.busy > 0 && self.idle == 0 && !self.queue.is_empty();
        let patience = PATIENCE.checked_sub(self.moved?.elapsed())?;
        (is_left_to_others && !patience.is_zero()).then_some(patience)
    }

    fn start(&mut self, start: Start) -> Result<()> {
        let thread = thread::Builder::new().name("cuda-mem-release".into()).spawn(move || work(start));
        thread.map_err(|error| Error::System { call: "clone", source: Arc::new(error) })?;
        self.threads = self.threads.saturating_add(1);
        self.moved = Some(Instant::now());
        Ok(())
    }
}

fn work(mut start: Start) {
    let mut jobs = lock(&JOBS);
    loop {
        if start == Start::Patiently
            && let Some(patience) = jobs.patience()
        {
            jobs.idle = 1;
            jobs = CAME.wait_timeout(jobs, patience).unwrap_or_else(PoisonError::into_inner).0;
            jobs.idle = 0;
        } else if let Some(job) = jobs.queue.pop_front() {
            start = Start::AtOnce;
            jobs.moved = Some(Instant::now());
            jobs.busy += 1;
            jobs.see_to_it();
            let leaves_work = jobs.has_work_left();
            drop(jobs);
            if leaves_work {
                // This one may take long.
                reaper::wake();
            }
            // What it drops may run a hook of the program's, which may panic.
            let _ = catch_unwind(AssertUnwindSafe(job));
            jobs = lock(&JOBS);
            jobs.busy -= 1;
        } else if let Some(resting) = jobs.awoken() {
            jobs.busy += 1;
            drop(jobs);
            let count = resting.len();
            let left = look_again(resting);
            jobs = lock(&JOBS);
            jobs.busy -= 1;
            let has_any_passed = left.len() < count;
            jobs.set_aside_again(left, has_any_passed);
            // Another one may have gone to sleep meanwhile, with nothing to look at.
            CAME.notify_one();
        } else if jobs.idle == 0 && (jobs.is_kept || jobs.due.is_some()) {
            jobs.idle = 1;
            jobs = match jobs.due {
                Some(due) => {
                    let pause = due.saturating_duration_since(Instant::now());
                    CAME.wait_timeout(jobs, pause).unwrap_or_else(PoisonError::into_inner).0
                }
                None => CAME.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            };
            jobs.idle = 0;
        } else {
            jobs.threads = jobs.threads.saturating_sub(1);
            return;
        }
    }
}

/// Drops what has passed, and tells what has not.
fn look_again(resting: Vec<Box<dyn Resting>>) -> Vec<Box<dyn Resting>> {
    let look = |mut what: Box<dyn Resting>| {
        // As above.
        let passed = catch_unwind(AssertUnwindSafe(|| if what.has_passed() { None } else { Some(what) }));
        passed.ok().flatten()
    };
    resting.into_iter().filter_map(look).collect()
}

#[cfg(test)]
mod tests;
