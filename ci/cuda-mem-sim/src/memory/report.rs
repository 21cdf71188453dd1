//! What a simulator has to say about the program: misuse of memory, and things never released, with the calls behind them.

use std::fmt;
use std::ops::Range;

use crate::site::Site;

/// What was done wrong with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MisuseKind {
    /// It was used by work that is not ordered after its allocation.
    UseBeforeAllocation,
    /// It was freed without being ordered after work that uses it.
    UseUnorderedWithFree,
    /// It was used by work that comes after its free.
    UseAfterFree,
    /// It was freed twice.
    DoubleFree,
    /// It was unregistered while work that uses it was not known to be complete.
    UnregisteredInUse,
    /// It was unmapped while work that uses it was not known to be complete.
    UnmappedInUse,
    /// Two pieces of work use the same bytes of mapped memory, at least one writes them, and nothing orders the two.
    Race,
}

impl fmt::Display for MisuseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UseBeforeAllocation => "was used without being ordered after its allocation",
            Self::UseUnorderedWithFree => "was freed without being ordered after a use",
            Self::UseAfterFree => "was used after it was freed",
            Self::DoubleFree => "was freed twice",
            Self::UnregisteredInUse => "was unregistered while a use was not known to be complete",
            Self::UnmappedInUse => "was unmapped while a use was not known to be complete",
            Self::Race => "was used twice in no order",
        })
    }
}

/// One use or free that is not ordered as it must be.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Misuse {
    /// What is wrong.
    pub kind: MisuseKind,
    /// The addresses of the block.
    pub range: Range<u64>,
    /// The call that came first.
    pub earlier: Site,
    /// The call that is not ordered after it, or must not have come at all.
    pub later: Site,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, range, earlier, later } = self;
        write!(f, "memory {:#x}..{:#x} {kind}: {earlier}, then {later}", range.start, range.end)
    }
}

/// Something that was made and never given back.
#[derive(Debug, Clone)]
pub struct Leak {
    /// What it is: "device memory", "registration", "stream", ….
    pub what: &'static str,
    /// Its addresses; for a handle, the handle and its size.
    pub range: Range<u64>,
    /// The call that made it.
    pub made: Option<Site>,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, range, made } = self;
        write!(f, "{what} {:#x}", range.start)?;
        if range.start < range.end {
            write!(f, " of {} bytes", range.end - range.start)?;
        }
        f.write_str(" was never released")?;
        made.as_ref().map_or(Ok(()), |site| write!(f, "; made by {site}"))
    }
}
