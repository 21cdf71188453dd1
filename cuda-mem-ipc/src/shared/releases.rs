//! Threads that drop what may have to wait for others: streams, and what only the thread that looks after peers can end.
//!
//! One of them is there as long as that thread is, so that nothing is ever dropped on it. Whatever waits has a thread of its own
//! as soon as something else is to be dropped: what it waits for may be that.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::forked;

use super::{lock, reaper};
use crate::error::{Error, Result};

/// How long something may wait for its turn before there is another thread.
const PATIENCE: Duration = Duration::from_millis(10);

type Job = Box<dyn FnOnce() + Send>;

struct Jobs {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Whether one stays when there is nothing to do.
    is_kept: bool,
    /// When a job was begun last, or the first one came.
    moved: Option<Instant>,
}

static JOBS: Mutex<Jobs> =
    Mutex::new(Jobs { queue: VecDeque::new(), threads: 0, idle: 0, is_kept: false, moved: None });
static CAME: Condvar = Condvar::new();

/// Has a thread stay until [`leave`], with nothing to do at first.
pub(super) fn stay() -> Result<()> {
    let mut jobs = lock(&JOBS);
    jobs.is_kept = true;
    if jobs.idle == 0
        && let Err(error) = jobs.start()
    {
        jobs.is_kept = false;
        return Err(error);
    }
    Ok(())
}

/// Lets all go when nothing is left to do.
pub(super) fn leave() {
    lock(&JOBS).is_kept = false;
    CAME.notify_all();
}

/// Drops something whose end waits for others, in a thread of its own.
pub(super) fn bury(what: impl Send + 'static) {
    if forked() {
        // There is nothing to wait for: drops do nothing in a child.
        return drop(what);
    }
    let mut jobs = lock(&JOBS);
    jobs.add(Box::new(move || drop(what)));
    let has_failed = jobs.idle < jobs.queue.len() && jobs.start().is_err();
    if has_failed && jobs.threads == 0 {
        // No peer is looked after: this is no thread that others wait for.
        let job = jobs.queue.pop_back();
        drop(jobs);
        return job.into_iter().for_each(|job| job());
    }
    drop(jobs);
    CAME.notify_one();
    if has_failed {
        // It tries again.
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

/// Whether something waits for its turn. If it has waited for long, it gets a thread.
pub(super) fn is_behind() -> bool {
    let mut jobs = lock(&JOBS);
    if jobs.moved.is_some_and(|at| at.elapsed() >= PATIENCE) && !jobs.queue.is_empty() {
        // If there can be none, it is tried again.
        let _ = jobs.start();
    }
    !jobs.queue.is_empty()
}

impl Jobs {
    fn add(&mut self, job: Job) {
        if self.queue.is_empty() {
            self.moved = Some(Instant::now());
        }
        self.queue.push_back(job);
    }

    fn start(&mut self) -> Result<()> {
        let thread = thread::Builder::new().name("cuda-mem-release".into()).spawn(work);
        thread.map_err(|error| Error::System { call: "clone", source: Arc::new(error) })?;
        self.threads = self.threads.saturating_add(1);
        Ok(())
    }
}

fn work() {
    let mut jobs = lock(&JOBS);
    loop {
        if let Some(job) = jobs.queue.pop_front() {
            jobs.moved = Some(Instant::now());
            drop(jobs);
            // What it drops may run a hook of the program's, which may panic.
            let _ = catch_unwind(AssertUnwindSafe(job));
            jobs = lock(&JOBS);
        } else if jobs.is_kept && jobs.idle == 0 {
            jobs.idle = 1;
            jobs = CAME.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            jobs.idle = 0;
        } else {
            jobs.threads = jobs.threads.saturating_sub(1);
            return;
        }
    }
}
