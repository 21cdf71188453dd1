//! What a thread has for each heap that it uses.

use std::sync::atomic::{AtomicU64, Ordering};

/// Names one heap's part in thread-locals; no two get the same.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Values by heap. The heap that was asked for last is found with one comparison.
#[derive(Debug)]
pub(super) struct ByHeap<T> {
    recent: usize,
    entries: Vec<Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    id: u64,
    value: T,
}

impl<T> ByHeap<T> {
    pub(super) const fn new() -> Self {
        Self { recent: 0, entries: Vec::new() }
    }

    #[inline]
    pub(super) fn get(&mut self, id: u64) -> Option<&mut T> {
        if self.entries.get(self.recent).is_none_or(|entry| entry.id != id) {
            self.recent = self.position(id)?;
        }
        self.entries.get_mut(self.recent).map(|entry| &mut entry.value)
    }

    /// Not inlined: a thread that stays with one heap does not come here.
    #[inline(never)]
    fn position(&self, id: u64) -> Option<usize> {
        self.entries.iter().position(|entry| entry.id == id)
    }

    /// Adds the value of a heap that has none here.
    pub(super) fn add(&mut self, id: u64, value: T) {
        self.recent = self.entries.len();
        self.entries.push(Entry { id, value });
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        self.entries.retain_mut(|entry| keep(&mut entry.value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_heap_has_its_own() {
        let mut values = ByHeap::new();
        assert_eq!(values.get(1), None);
        values.add(1, 'a');
        values.add(2, 'b');
        values.add(3, 'c');
        for (id, value) in [(1, 'a'), (1, 'a'), (3, 'c'), (2, 'b'), (1, 'a')] {
            assert_eq!(values.get(id).copied(), Some(value));
        }
        assert_eq!(values.get(4), None);
        values.retain(|value| *value != 'a');
        assert_eq!(values.get(1), None);
        assert_eq!(values.get(3).copied(), Some('c'));
    }

    #[test]
    fn no_two_heaps_have_the_same_name() {
        assert_ne!(next_id(), next_id());
    }
}
