//! The blocks that are not free, by address.

use std::collections::HashMap;

use crate::mempool_id::MempoolId;
use crate::segments::BlockId;

/// Blocks in somebody's hands, and freed ones that streams still use.
#[derive(Debug, Default)]
pub(super) struct HandedOut {
    live: HashMap<u64, Entry>,
    freed: HashMap<u64, Entry>,
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) pool: MempoolId,
    pub(super) block: BlockId,
    /// The stream that it belongs to, by id.
    pub(super) stream: u64,
}

impl HandedOut {
    pub(super) fn add(&mut self, entry: Entry) {
        self.live.insert(entry.block.address(), entry);
    }

    pub(super) fn get(&self, address: u64) -> Option<Entry> {
        self.live.get(&address).copied()
    }

    /// Takes a block out of its holder's hands. From here on it is who took it that frees it.
    pub(super) fn take(&mut self, address: u64) -> Option<Entry> {
        self.live.remove(&address)
    }

    /// Has a block that was taken out wait for its streams.
    pub(super) fn wait(&mut self, entry: Entry) {
        self.freed.insert(entry.block.address(), entry);
    }

    /// Takes out a block whose streams are done.
    pub(super) fn done(&mut self, address: u64) -> Option<Entry> {
        self.freed.remove(&address)
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.freed.len()
    }

    /// The blocks of a pool that belong to a stream belong to another.
    pub(super) fn adopt(&mut self, pool: MempoolId, from: u64, to: u64) {
        let all = self.live.values_mut().chain(self.freed.values_mut());
        for entry in all.filter(|entry| entry.pool == pool && entry.stream == from) {
            entry.stream = to;
        }
    }

    /// The blocks of a pool that somebody has.
    pub(super) fn of(&self, pool: MempoolId) -> Vec<Entry> {
        self.live.values().filter(|entry| entry.pool == pool).copied().collect()
    }

    /// Host memory that this takes.
    pub(super) fn metadata_bytes(&self) -> usize {
        (self.live.capacity() + self.freed.capacity()) * size_of::<(u64, Entry)>()
    }
}
