//! How much of this process its peers may take up: descriptors, and bytes of pinned memory.
//!
//! A peer alone gets a quarter of what all together get, so that one that takes all it can leaves the others theirs.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, LazyLock};

use rustix::process::{Resource, getrlimit};
use rustix::system::sysinfo;

use super::Counted;
use crate::error::{Error, Result};

/// What is counted. Both are the process's; a connection has a count of its own for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Descriptors that stay open: one for each segment of host memory that is mapped.
    Descriptors,
    /// Bytes of host memory of peers that are pinned.
    PinnedBytes,
}

#[derive(Debug, Default)]
pub(super) struct Budget {
    used: [Arc<AtomicUsize>; 2],
}

/// Some of it, until this is dropped: of the peer's, and of all peers'.
pub(super) type Held = [Counted; 2];

static USED: LazyLock<[Arc<AtomicUsize>; 2]> = LazyLock::new(Default::default);

impl Kind {
    /// The most of all peers together: a quarter of the descriptors that the process may have, half of the machine's memory.
    pub(super) fn most(self) -> u64 {
        match self {
            // It may be changed at any time.
            Self::Descriptors => getrlimit(Resource::Nofile).current.unwrap_or(1 << 20) / 4,
            Self::PinnedBytes => {
                let machine = sysinfo();
                machine.totalram.saturating_mul(machine.mem_unit.into()) / 2
            }
        }
    }

    pub(super) fn most_of_a_peer(self) -> u64 {
        self.most() / 4
    }
}

impl Budget {
    /// Takes some, if there is as much for this peer.
    pub(super) fn take(&self, kind: Kind, amount: u64) -> Result<Held> {
        let amount = usize::try_from(amount).unwrap_or(usize::MAX);
        let what = if kind == Kind::Descriptors { "descriptors" } else { "pinned bytes" };
        let take = |used, most| {
            let (counted, all) = Counted::new(used, amount);
            // Without room it is given back here.
            (all as u64 <= most).then_some(counted).ok_or(Error::OverBudget { what, most })
        };
        // The peer's own first: a peer that may not have it takes nothing of the others', not even for a moment.
        let own = take(&self.used[kind as usize], kind.most_of_a_peer())?;
        Ok([own, take(&USED[kind as usize], kind.most())?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_leaves_the_others_theirs_and_gets_back_what_it_gives_back() {
        let (greedy, honest) = (Budget::default(), Budget::default());
        let most = Kind::PinnedBytes.most_of_a_peer();
        let held = greedy.take(Kind::PinnedBytes, most).unwrap();
        assert!(greedy.take(Kind::PinnedBytes, 1).is_err());
        assert!(honest.take(Kind::PinnedBytes, most).is_ok());
        assert!(greedy.take(Kind::Descriptors, 1).is_ok());
        drop(held);
        assert!(greedy.take(Kind::PinnedBytes, most).is_ok());
        // Refused for the sake of all, it names what all may take.
        let (peers, of_all) = ([(); 5].map(|()| Budget::default()), Kind::PinnedBytes.most());
        let taken = peers.each_ref().map(|peer| peer.take(Kind::PinnedBytes, most));
        assert!(taken[..4].iter().all(Result::is_ok));
        assert!(matches!(taken[4], Err(Error::OverBudget { most, .. }) if most == of_all));
    }
}
