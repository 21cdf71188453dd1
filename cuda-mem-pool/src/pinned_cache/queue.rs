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

#[cfg(all(loom, test))]
mod models {
    use super::*;
    use loom::sync::Mutex;
    use loom::thread;

    /// While one thread adds, one polls and one takes everything, each value comes out once, and none before it is ready.
    #[test]
    fn each_value_comes_out_once() {
        loom::model(|| {
            let queue = loom::sync::Arc::new(StreamQueue::<u32, u32>::new());
            let out = loom::sync::Arc::new(Mutex::new(Vec::new()));
            queue.push(1, 1);
            let adding = thread::spawn({
                let queue = queue.clone();
                move || queue.push(0, 2)
            });
            let polling = thread::spawn({
                let (queue, out) = (queue.clone(), out.clone());
                move || {
                    queue.poll(
                        |&ready| ready == 1,
                        |value| {
                            assert_eq!(value, 1, "came out before its point");
                            out.lock().unwrap().push(value);
                        },
                    );
                }
            });
            let taken: Vec<u32> = queue.take_all().into_iter().map(|(_, value)| value).collect();
            out.lock().unwrap().extend(taken);
            adding.join().unwrap();
            polling.join().unwrap();
            let mut out = out.lock().unwrap().clone();
            out.extend(queue.take_all().into_iter().map(|(_, value)| value));
            out.sort_unstable();
            assert_eq!(out, [1, 2]);
        });
    }

    /// Two that poll at once do not both get the head.
    #[test]
    fn one_looks_at_a_time() {
        loom::model(|| {
            let queue = loom::sync::Arc::new(StreamQueue::<(), u32>::new());
            queue.push((), 1);
            queue.push((), 2);
            let poll = |queue: &StreamQueue<(), u32>| {
                let mut out = Vec::new();
                queue.poll(|()| true, |value| out.push(value));
                out
            };
            let other = thread::spawn({
                let queue = queue.clone();
                move || poll(&queue)
            });
            let mut out = poll(&queue);
            out.extend(other.join().unwrap());
            out.sort_unstable();
            assert_eq!(out, [1, 2]);
        });
    }
}
