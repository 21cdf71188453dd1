//! Keeps one descriptor for each handle that other processes were told of.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;

use cuda_mem_ipc::cuda_mem_pool::caching::Segment;

use crate::lock::lock;

/// Those of all allocators of this process.
static TABLE: Mutex<Table> =
    Mutex::new(Table { exporters: 0, named: 0, names: BTreeMap::new(), descriptors: BTreeMap::new() });

#[derive(Debug)]
struct Table {
    /// How many exporters and names were given out.
    exporters: u64,
    named: u64,
    /// By exporter and segment, with the address where the segment was last shared.
    names: BTreeMap<(u64, u64), (u64, u64)>,
    descriptors: BTreeMap<u64, OwnedFd>,
}

impl Table {
    fn find(&mut self, exporter: u64, segment: &Segment) -> Option<(i32, u64)> {
        let (name, address) = self.names.get_mut(&(exporter, segment.id))?;
        *address = segment.address;
        Some((self.descriptors.get(name)?.as_raw_fd(), *name))
    }
}

/// A name for an allocator, which no other has.
pub(super) fn new_exporter() -> u64 {
    let mut table = lock(&TABLE);
    table.exporters += 1;
    table.exporters
}

/// The descriptor of a segment's handle and the handle's name, if it has them.
pub(super) fn find(exporter: u64, segment: &Segment) -> Option<(i32, u64)> {
    lock(&TABLE).find(exporter, segment)
}

/// Keeps the descriptor of a segment's handle, unless another thread was faster.
pub(super) fn add(exporter: u64, segment: &Segment, descriptor: OwnedFd) -> (i32, u64) {
    let mut table = lock(&TABLE);
    if let Some(known) = table.find(exporter, segment) {
        return known;
    }
    table.named += 1;
    let (name, number) = (table.named, descriptor.as_raw_fd());
    table.names.insert((exporter, segment.id), (name, segment.address));
    table.descriptors.insert(name, descriptor);
    (number, name)
}

/// Closes the descriptor of a segment, whose handle leaves an address. A handle that was mapped a second time and shared there leaves
/// its first address later: then it stays open.
pub(super) fn close(exporter: u64, segment: u64, address: u64) {
    let mut table = lock(&TABLE);
    if let Some(&(name, shared_at)) = table.names.get(&(exporter, segment))
        && shared_at == address
    {
        table.names.remove(&(exporter, segment));
        table.descriptors.remove(&name);
    }
}

/// Duplicates of the descriptors that have these names; none if one has gone.
pub(super) fn duplicates(names: &[u64]) -> Option<Vec<OwnedFd>> {
    let table = lock(&TABLE);
    names.iter().map(|name| table.descriptors.get(name)?.try_clone().ok()).collect()
}
