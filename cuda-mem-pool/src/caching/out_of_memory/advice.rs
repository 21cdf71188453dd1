//! What would help.

use std::fmt;

use super::text::Bytes;
use super::{CachePool, OutOfMemoryReport};

/// What would help a request that failed. The text says how.
/// [`OutOfMemoryReport`](super::OutOfMemoryReport) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// The device does not have as much memory in all.
    LargerThanDevice {
        /// What it has.
        total: usize,
    },
    /// The device has the memory, but this allocator may not hold more.
    RaiseMemoryFraction {
        /// What it may hold.
        limit: usize,
    },
    /// Much of the device is held by others: processes, libraries, other allocators of this process.
    EndOthers {
        /// How much.
        bytes: usize,
    },
    /// Much was freed, but streams still use it.
    AwaitStreams {
        /// How much.
        bytes: usize,
    },
    /// Private pools hold free memory that others do not get.
    ReleasePools {
        /// How much.
        bytes: usize,
    },
    /// There is enough free memory, but moving it is switched off.
    AllowMoves,
    /// There is enough free memory, but it cannot be moved because segments are pinned.
    Unpin {
        /// How much is pinned.
        bytes: usize,
    },
    /// There is enough free memory, but in pieces between blocks that are in use.
    FreeNeighbours {
        /// How much.
        bytes: usize,
    },
    /// There is room for a block of the size, but not where it was asked for: the pool's source gave no memory, or the pool's segments are
    /// larger.
    AskElsewhere {
        /// How large a block would have fitted.
        largest: usize,
    },
    /// Free this much more, or ask for less.
    FreeMore {
        /// How much is missing.
        bytes: usize,
    },
}

/// What the figures say; the surest help first. What more memory would be added to is `together`: not what is free in a private pool.
pub(super) fn choose(report: &OutOfMemoryReport, moves: bool, together: usize) -> Vec<Advice> {
    let OutOfMemoryReport { requested, total, reserved, pending, .. } = *report;
    if requested > total {
        return vec![Advice::LargerThanDevice { total }];
    }
    let mut advice = Vec::new();
    let missing = requested.saturating_sub(together);
    let free = report.free.unwrap_or(0);
    if let Some(limit) = report.limit
        && free >= missing
    {
        advice.push(Advice::RaiseMemoryFraction { limit });
    }
    if pending > 0 && pending >= missing {
        advice.push(Advice::AwaitStreams { bytes: pending });
    }
    let private = report.cached.iter().filter(|cached| matches!(cached.pool, CachePool::Private(_)));
    let private: usize = private.map(|cached| cached.bytes).sum();
    if private > 0 && private >= missing {
        advice.push(Advice::ReleasePools { bytes: private });
    }
    let cached = report.cached_bytes() - private;
    if cached >= requested {
        advice.push(match report.pinned {
            _ if !moves => Advice::AllowMoves,
            0 => Advice::FreeNeighbours { bytes: cached },
            bytes => Advice::Unpin { bytes },
        });
    }
    let others = total.saturating_sub(free).saturating_sub(reserved);
    if report.free.is_some() && missing > 0 && others >= missing {
        advice.push(Advice::EndOthers { bytes: others });
    }
    advice.push(match missing {
        0 => Advice::AskElsewhere { largest: together },
        bytes => Advice::FreeMore { bytes },
    });
    advice
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::LargerThanDevice { total } => {
                write!(f, "ask for less: the device has {} in all", Bytes(total))
            }
            Self::RaiseMemoryFraction { limit } => {
                write!(f, "set a larger memory fraction: it allows {}, and the device has more", Bytes(limit))
            }
            Self::EndOthers { bytes } => {
                write!(f, "have others on the device hold less than {}", Bytes(bytes))
            }
            Self::AwaitStreams { bytes } => write!(
                f,
                "wait for the streams that still use {} of freed blocks, or record fewer streams on blocks",
                Bytes(bytes)
            ),
            Self::ReleasePools { bytes } => {
                write!(f, "release private pools or their graphs, which have {} free", Bytes(bytes))
            }
            Self::AllowMoves => f.write_str("allow moves, so that free memory becomes one piece"),
            Self::Unpin { bytes } => {
                write!(f, "end some of the pins that keep {} where they are", Bytes(bytes))
            }
            Self::FreeNeighbours { bytes } => write!(
                f,
                "free blocks next to the {} that are free in pieces, or allocate large blocks first",
                Bytes(bytes)
            ),
            Self::AskElsewhere { largest } => write!(
                f,
                "ask again, outside of the private pool if it was for one: a block of {} would have fitted",
                Bytes(largest)
            ),
            Self::FreeMore { bytes } => write!(f, "free {} more, or ask for that much less", Bytes(bytes)),
        }
    }
}
