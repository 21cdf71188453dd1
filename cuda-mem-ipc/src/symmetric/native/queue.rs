//! What another rank has sent and this one has not used yet.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use super::state::SLICE;
use crate::primitive::lock;

#[derive(Debug)]
pub(super) struct Queue<T> {
    most: usize,
    kept: Mutex<VecDeque<T>>,
    came: Condvar,
}

impl<T> Queue<T> {
    /// One that keeps no more than so many.
    pub(super) fn new(most: usize) -> Self {
        Self { most, kept: Mutex::default(), came: Condvar::new() }
    }

    /// Keeps one more; `false` when there are too many.
    pub(super) fn push(&self, one: T) -> bool {
        let mut kept = lock(&self.kept);
        if kept.len() >= self.most {
            return false;
        }
        kept.push_back(one);
        drop(kept);
        self.came.notify_all();
        true
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.kept).len()
    }

    /// The next, if there is one within a moment.
    pub(super) fn next(&self) -> Option<T> {
        let kept = lock(&self.kept);
        let waited = self.came.wait_timeout_while(kept, SLICE, |kept| kept.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }
}
