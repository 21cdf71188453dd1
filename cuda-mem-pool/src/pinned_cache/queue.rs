//! What waits for points of one stream, in the order of the points.

use std::collections::VecDeque;
use std::sync::Arc;

use super::try_cell::TryCell;
use crate::primitive::{Mutex, lock};

/// Values that become free one after the other. Whoever looks at the head asks the driver without a lock, so that others can
/// still add; one looks at a time.
#[derive(Debug)]
pub(super) struct StreamQueue<P, V> {
    entries: Mutex<VecDeque<(Arc<P>, V)>>,
    looking: TryCell<()>,
}

impl<P, V> StreamQueue<P, V> {
    pub(super) fn new() -> Self {
        Self { entries: Mutex::new(VecDeque::new()), looking: TryCell::new(()) }
    }

    pub(super) fn push(&self, point: P, value: V) {
        lock(&self.entries).push_back((Arc::new(point), value));
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.entries).is_empty()
    }

    /// Hands what is ready to `done`, up to the first that is not. Does nothing while another thread does this.
    pub(super) fn poll(&self, ready: impl Fn(&P) -> bool, mut done: impl FnMut(V)) {
        self.looking.try_with(|()| {
            while let Some(head) = self.head()
                && ready(&head)
                && let Some(value) = self.pop(&head)
            {
                done(value);
            }
        });
    }

    /// Everything, ready or not.
    pub(super) fn take_all(&self) -> Vec<(Arc<P>, V)> {
        std::mem::take(&mut *lock(&self.entries)).into()
    }

    fn head(&self) -> Option<Arc<P>> {
        lock(&self.entries).front().map(|(point, _)| Arc::clone(point))
    }

    /// The head, if it still is the one that was asked about: another thread may have taken everything.
    fn pop(&self, head: &Arc<P>) -> Option<V> {
        let mut entries = lock(&self.entries);
        let same = entries.front().is_some_and(|(point, _)| Arc::ptr_eq(point, head));
        if same { entries.pop_front().map(|(_, value)| value) } else { None }
    }
}
