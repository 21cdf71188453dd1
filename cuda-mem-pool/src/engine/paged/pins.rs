//! What is behind addresses, and what has to stay there.

use super::backend::Backend;
use super::growth::PageSource;

/// The handle behind an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backing {
    /// No other handle ever has it.
    pub(crate) id: u64,
    /// The backend's number.
    pub(crate) memory: u64,
    /// Where the handle is active.
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    /// The number of the last change; a later one has a higher number, whichever handle it is of.
    pub(crate) generation: u64,
    pub(crate) pins: u32,
}

impl Backing {
    /// The first address behind it.
    pub(crate) const fn end(&self) -> u64 {
        self.address + self.bytes as u64
    }
}

impl<B: Backend> PageSource<B> {
    /// The handle that blocks at this address are in. None if there is no memory, or memory that has left.
    pub(crate) fn backing(&self, address: u64) -> Option<Backing> {
        let (start, _, handle) = self.memory.active_at(address)?;
        Some(Backing {
            id: handle.id,
            memory: handle.memory,
            address: start,
            bytes: handle.bytes,
            generation: handle.generation,
            pins: handle.pins,
        })
    }

    /// Has the handles behind a range stay where they are, until they are unpinned as often. None, and none is pinned, if some
    /// of the range has no memory. Their numbers, which stay theirs meanwhile.
    pub(crate) fn pin(&mut self, from: u64, to: u64) -> Option<Vec<u32>> {
        let mut handles = Vec::new();
        let mut at = from;
        while at < to {
            let (start, number, handle) = self.memory.active_at(at)?;
            handles.push(number);
            at = start + handle.bytes as u64;
        }
        for number in &handles {
            if let Some(handle) = self.memory.handle_mut(*number) {
                handle.pins = handle.pins.saturating_add(1);
            }
        }
        Some(handles)
    }

    pub(crate) fn unpin(&mut self, handles: &[u32]) {
        for number in handles {
            if let Some(handle) = self.memory.handle_mut(*number) {
                handle.pins = handle.pins.saturating_sub(1);
            }
        }
    }

    /// The bytes in pinned handles.
    pub(crate) fn pinned(&self) -> usize {
        self.memory.handles().filter(|(_, handle)| handle.pins > 0).map(|(_, handle)| handle.bytes).sum()
    }
}
