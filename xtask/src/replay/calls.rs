//! The log of `--calls`: what a replay did, one event a line, for a checker that trusts nobody.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// One event. Numbers are decimal; bytes of blocks are those that were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Create {
        handle: u64,
        bytes: u64,
    },
    Map {
        address: u64,
        handle: u64,
        bytes: u64,
    },
    Access {
        address: u64,
        bytes: u64,
    },
    Unmap {
        address: u64,
        bytes: u64,
    },
    Release {
        handle: u64,
    },
    /// `cuMemAlloc` and `cuMemFree`: memory that needs no mapping.
    Malloc {
        address: u64,
        bytes: u64,
    },
    MallocFree {
        address: u64,
    },
    Wait {
        kind: Wait,
    },
    Alloc {
        id: u64,
        address: u64,
        bytes: u64,
        stream: u64,
    },
    /// `side`: the stream beside the block's own that still uses it.
    Free {
        id: u64,
        side: Option<u64>,
    },
    Done {
        id: u64,
    },
    /// `to` waits for what `from` was given; up to the event `at`, or all if that is missing.
    Order {
        to: u64,
        from: u64,
        at: Option<u64>,
    },
}

/// What the host waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Event,
    Device,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { handle, bytes } => write!(f, "create,{handle},{bytes}"),
            Self::Map { address, handle, bytes } => write!(f, "map,{address},{handle},{bytes}"),
            Self::Access { address, bytes } => write!(f, "access,{address},{bytes}"),
            Self::Unmap { address, bytes } => write!(f, "unmap,{address},{bytes}"),
            Self::Release { handle } => write!(f, "release,{handle}"),
            Self::Malloc { address, bytes } => write!(f, "malloc,{address},{bytes}"),
            Self::MallocFree { address } => write!(f, "mfree,{address}"),
            Self::Wait { kind: Wait::Event } => f.write_str("wait,event"),
            Self::Wait { kind: Wait::Device } => f.write_str("wait,device"),
            Self::Alloc { id, address, bytes, stream } => write!(f, "alloc,{id},{address},{bytes},{stream}"),
            Self::Free { id, side: None } => write!(f, "free,{id}"),
            Self::Free { id, side: Some(side) } => write!(f, "free,{id},{side}"),
            Self::Done { id } => write!(f, "done,{id}"),
            Self::Order { to, from, at: None } => write!(f, "order,{to},{from}"),
            Self::Order { to, from, at: Some(at) } => write!(f, "order,{to},{from},{at}"),
        }
    }
}

/// Where events go, numbered from 0.
pub(crate) struct CallLog {
    inner: Mutex<Inner>,
}

struct Inner {
    target: Option<Box<dyn Write + Send>>,
    /// The number of the next event.
    next: u64,
    failed: Option<io::Error>,
}

impl CallLog {
    /// To a target.
    pub(crate) fn new(target: impl Write + Send + 'static) -> Self {
        Self { inner: Mutex::new(Inner { target: Some(Box::new(target)), next: 0, failed: None }) }
    }

    /// Nowhere: events are counted and forgotten.
    pub(crate) fn nowhere() -> Self {
        Self { inner: Mutex::new(Inner { target: None, next: 0, failed: None }) }
    }

    /// Whether somebody will read it.
    pub(crate) fn is_kept(&self) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).target.is_some()
    }

    /// Notes an event; returns its number. What goes wrong is told by [`CallLog::close`].
    pub(crate) fn note(&self, call: &Call) -> u64 {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let number = inner.next;
        inner.next += 1;
        if let Some(target) = &mut inner.target
            && let Err(error) = writeln!(target, "{number},{call}")
        {
            inner.failed = Some(error);
            inner.target = None;
        }
        number
    }

    /// The number that the next event will have.
    pub(crate) fn next(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).next
    }

    /// Writes what is held back, and ends the log.
    pub(crate) fn close(&self) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = inner.failed.take() {
            return Err(error);
        }
        inner.target.take().map_or(Ok(()), |mut target| target.flush())
    }
}

impl fmt::Debug for CallLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallLog").finish_non_exhaustive()
    }
}

/// A target in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Text(Arc<Mutex<Vec<u8>>>);

impl Text {
    /// What was written so far, which is then no longer there.
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_numbered_lines() {
        let target = Text::default();
        let log = CallLog::new(target.clone());
        log.note(&Call::Create { handle: 3, bytes: 4096 });
        log.note(&Call::Order { to: 1, from: 2, at: None });
        assert_eq!(log.note(&Call::Order { to: 1, from: 2, at: Some(0) }), 2);
        log.close().unwrap();
        let text = String::from_utf8(target.take()).unwrap();
        assert_eq!(text, "0,create,3,4096\n1,order,1,2\n2,order,1,2,0\n");
    }

    #[test]
    fn a_target_that_fails_is_told_at_the_end() {
        let log = CallLog::new(&mut [0u8; 4][..].to_vec().leak()[..]);
        log.note(&Call::Done { id: 1 });
        log.note(&Call::Done { id: 2 });
        assert!(log.close().is_err());
    }
}
