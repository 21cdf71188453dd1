//! Keeps one descriptor for each handle that other processes were told of, by where it is mapped.

use std::collections::BTreeMap;
use std::io;
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
    /// Names and descriptors, by address and by the handle's number in its allocator: two allocators have no address in common.
    exported: BTreeMap<(u64, u64), (u64, OwnedFd)>,
}

/// The descriptor of a segment's handle and the handle's name, if it has them.
pub(super) fn find(segment: &Segment) -> Option<(i32, u64)> {
    let table = lock(&TABLE);
    let (name, descriptor) = table.exported.get(&(segment.address, segment.id))?;
    Some((descriptor.as_raw_fd(), *name))
}

/// Keeps the descriptor of a segment's handle, unless another thread was faster.
pub(super) fn add(segment: &Segment, descriptor: OwnedFd) -> (i32, u64) {
    let Table { named, exported } = &mut *lock(&TABLE);
    *named += 1;
    let place = exported.entry((segment.address, segment.id));
    let (name, descriptor) = place.or_insert((*named, descriptor));
    (descriptor.as_raw_fd(), *name)
}

/// Closes the descriptor of a segment, whose handle leaves its address: before it is released, for its memory would stay.
pub(crate) fn close(segment: &Segment) {
    lock(&TABLE).exported.remove(&(segment.address, segment.id));
}

/// Duplicates of the descriptors that have these names; none if one has gone, or is named twice.
pub(super) fn duplicates(names: &[u64]) -> io::Result<Option<Vec<OwnedFd>>> {
    let table = lock(&TABLE);
    let mut named: BTreeMap<_, _> =
        table.exported.values().map(|(name, descriptor)| (name, descriptor)).collect();
    names.iter().map(|name| named.remove(name).map(OwnedFd::try_clone).transpose()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_a_handle_twice_gets_nothing() {
        const NAME: u64 = u64::MAX;
        let descriptor = std::fs::File::open("/dev/null").unwrap().into();
        lock(&TABLE).exported.insert((NAME, NAME), (NAME, descriptor));
        assert_eq!(duplicates(&[NAME]).unwrap().map(|found| found.len()), Some(1));
        assert!(duplicates(&[NAME; 2]).unwrap().is_none());
        assert!(duplicates(&[NAME, NAME - 1]).unwrap().is_none());
    }
}
