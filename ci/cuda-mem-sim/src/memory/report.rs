//! What a simulator has to say about the program: misuse of memory, and things never released, with the calls behind them.

use std::fmt;

use crate::site::Site;

/// What was done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MisuseKind {
    /// Memory was used by work that is not ordered after its allocation.
    UseBeforeAllocation,
    /// Memory was used by work that is not ordered before its free.
    UseUnorderedWithFree,
    /// Memory was used by work that comes after its free.
    UseAfterFree,
    /// Memory was freed twice.
    DoubleFree,
    /// Host memory was unregistered while work that uses it was not known to be complete.
    UnregisteredInUse,
    /// A mapping was removed while work that uses it was not known to be complete.
    UnmappedInUse,
    /// Two pieces of work touch the same bytes, one of them writing, and nothing orders them.
    Race,
}

/// One misuse, with both calls that make it one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Misuse {
    /// What kind it is.
    pub kind: MisuseKind,
    /// What happened, in a sentence.
    pub message: String,
    /// The earlier of the two calls.
    pub first: Site,
    /// The later one.
    pub second: Site,
}

impl Misuse {
    pub(crate) fn new(kind: MisuseKind, message: String, first: Site, second: Site) -> Self {
        Self { kind, message, first, second }
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  first:  {}\n  second: {}", self.message, self.first, self.second)
    }
}

/// Something that the program made and never released.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Leak {
    /// What it is: `"stream"`, `"device memory"`, …
    pub what: &'static str,
    /// Its address or handle.
    pub handle: u64,
    /// Its size in bytes, 0 where it has none.
    pub bytes: u64,
    /// The call that made it.
    pub made_by: Site,
}

impl Leak {
    pub(crate) fn new(what: &'static str, handle: u64, bytes: u64, made_by: Site) -> Self {
        Self { what, handle, bytes, made_by }
    }
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x}", self.what, self.handle)?;
        if self.bytes != 0 {
            write!(f, " of {} bytes", self.bytes)?;
        }
        write!(f, " was never released; made by {}", self.made_by)
    }
}
