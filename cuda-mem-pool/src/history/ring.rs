//! The last entries.

use std::collections::VecDeque;

use crate::snapshot::TraceEntry;

/// Keeps the newest entries, at least one.
#[derive(Debug, Default)]
pub(super) struct Ring {
    entries: VecDeque<TraceEntry>,
    max_entries: usize,
}

impl Ring {
    pub(super) fn set_max_entries(&mut self, max_entries: usize) {
        self.max_entries = max_entries;
        self.drop_oldest(max_entries.max(1));
        self.entries.shrink_to_fit();
    }

    pub(super) fn push(&mut self, entry: TraceEntry) {
        self.drop_oldest(self.max_entries.max(1) - 1);
        self.entries.push_back(entry);
    }

    pub(super) fn clear(&mut self) {
        self.entries = VecDeque::new();
    }

    pub(super) fn entries(&self) -> Vec<TraceEntry> {
        self.entries.iter().cloned().collect()
    }

    fn drop_oldest(&mut self, down_to: usize) {
        let surplus = self.entries.len().saturating_sub(down_to);
        self.entries.drain(..surplus);
    }
}
