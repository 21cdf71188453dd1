//! Keeps one descriptor for each handle that other processes were told of.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;

use cuda_mem_ipc::cuda_mem_pool::caching::Segment;

use crate::lock::lock;

/// Those of all allocators of this process.
static TABLE: Mutex<Table> = Mutex::new(Table { named: 0, exported: BTreeMap::new() });

#[derive(Debug)]
struct Table {
    /// How many names were given out.
    named: u64,
    /// By exporter and segment.
    exported: BTreeMap<(u64, u64), Exported>,
}

#[derive(Debug)]
struct Exported {
    name: u64,
    /// Where the segment was last shared.
    address: u64,
    descriptor: OwnedFd,
}

impl Table {
    fn new_name(&mut self) -> u64 {
        self.named += 1;
        self.named
    }

    fn find(&mut self, exporter: u64, segment: &Segment) -> Option<(i32, u64)> {
        let exported = self.exported.get_mut(&(exporter, segment.id))?;
        exported.address = segment.address;
        Some((exported.descriptor.as_raw_fd(), exported.name))
    }
}

/// A name for an allocator, which no other has.
pub(super) fn new_exporter() -> u64 {
    lock(&TABLE).new_name()
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
    let (name, number, address) = (table.new_name(), descriptor.as_raw_fd(), segment.address);
    table.exported.insert((exporter, segment.id), Exported { name, address, descriptor });
    (number, name)
}

/// Closes the descriptor of a segment, whose handle leaves an address. A handle that was mapped a second time and shared there leaves
/// its first address later: then it stays open.
pub(super) fn close(exporter: u64, segment: u64, address: u64) {
    let mut table = lock(&TABLE);
    if table.exported.get(&(exporter, segment)).is_some_and(|exported| exported.address == address) {
        table.exported.remove(&(exporter, segment));
    }
}

/// Duplicates of the descriptors that have these names; none if one has gone.
pub(super) fn duplicates(names: &[u64]) -> Option<Vec<OwnedFd>> {
    let table = lock(&TABLE);
    let named: BTreeMap<_, _> = table.exported.values().map(|of| (of.name, &of.descriptor)).collect();
    names.iter().map(|name| named.get(name)?.try_clone().ok()).collect()
}
