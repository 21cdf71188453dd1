//! What a replay cost.

use std::time::Duration;

/// A kind of driver call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Reserve,
    Create,
    Map,
    Access,
    Unmap,
    Release,
    Malloc,
    MallocFree,
    PoolAlloc,
    PoolFree,
    Record,
    Query,
    StreamWait,
    HostWait,
    Synchronize,
}

impl Kind {
    /// All of them, in the order in which they are shown.
    pub(crate) const ALL: [Self; 15] = [
        Self::Reserve,
        Self::Create,
        Self::Map,
        Self::Access,
        Self::Unmap,
        Self::Release,
        Self::Malloc,
        Self::MallocFree,
        Self::PoolAlloc,
        Self::PoolFree,
        Self::Record,
        Self::Query,
        Self::StreamWait,
        Self::HostWait,
        Self::Synchronize,
    ];

    /// How it is shown.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reserve => "reserve",
            Self::Create => "create",
            Self::Map => "map",
            Self::Access => "access",
            Self::Unmap => "unmap",
            Self::Release => "release",
            Self::Malloc => "malloc",
            Self::MallocFree => "malloc_free",
            Self::PoolAlloc => "pool_alloc",
            Self::PoolFree => "pool_free",
            Self::Record => "record",
            Self::Query => "query",
            Self::StreamWait => "stream_wait",
            Self::HostWait => "host_wait",
            Self::Synchronize => "synchronize",
        }
    }

    /// Whether it makes, maps, unmaps or gives back memory.
    fn is_of_memory(self) -> bool {
        matches!(
            self,
            Self::Create
                | Self::Map
                | Self::Access
                | Self::Unmap
                | Self::Release
                | Self::Malloc
                | Self::MallocFree
        )
    }
}

/// Driver calls by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    counts: [u64; Kind::ALL.len()],
}

impl Calls {
    /// One more of a kind.
    pub(crate) fn add(&mut self, kind: Kind) {
        self.counts[kind as usize] += 1;
    }

    /// Each kind with its count.
    pub(crate) fn by_kind(&self) -> impl Iterator<Item = (Kind, u64)> {
        Kind::ALL.into_iter().map(|kind| (kind, self.counts[kind as usize]))
    }

    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Those that make, map, unmap and give back memory.
    pub(crate) fn of_memory(&self) -> u64 {
        self.by_kind().filter(|(kind, _)| kind.is_of_memory()).map(|(_, count)| count).sum()
    }

    /// Those of one kind.
    pub(crate) fn of(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }
}

/// What a replay cost so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Costs {
    pub(crate) calls: Calls,
    /// The time of those calls: measured on a GPU, elsewhere what they would have taken.
    pub(crate) driver: Duration,
    /// The time that the host stood still for the device.
    pub(crate) host_wait: Duration,
    /// Waits for the whole device.
    pub(crate) syncs: u64,
    /// The host's time that is in an allocator's calls and is not the allocator's own.
    pub(crate) inside: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_kind() {
        let mut calls = Calls::default();
        for kind in [Kind::Map, Kind::Map, Kind::Query, Kind::Synchronize] {
            calls.add(kind);
        }
        assert_eq!((calls.total(), calls.of_memory(), calls.of(Kind::Query)), (4, 2, 1));
        let counted = calls.by_kind().filter(|(_, count)| *count > 0).collect::<Vec<_>>();
        assert_eq!(counted, [(Kind::Map, 2), (Kind::Query, 1), (Kind::Synchronize, 1)]);
    }

    #[test]
    fn each_kind_is_counted_in_its_own_place() {
        assert!(Kind::ALL.iter().enumerate().all(|(place, kind)| *kind as usize == place));
    }
}
