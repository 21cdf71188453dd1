//! A line of the log, read again.

use anyhow::{Context, Result, bail, ensure};

/// What a line tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
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
    Malloc {
        address: u64,
        bytes: u64,
    },
    MallocFree {
        address: u64,
    },
    Wait,
    Alloc {
        id: u64,
        address: u64,
        bytes: u64,
        stream: u64,
    },
    /// With the stream beside the block's own that still uses it.
    Free {
        id: u64,
        side: Option<u64>,
    },
    Done {
        id: u64,
    },
    /// All that `from` was given before event `before`.
    Order {
        to: u64,
        from: u64,
        before: u64,
    },
}

/// The number of the line's event, and what it tells.
pub(super) fn read(line: &str) -> Result<(u64, Event)> {
    let mut cells = line.split(',');
    let mut number = |what: &str| -> Result<u64> {
        let cell = cells.next().with_context(|| format!("{what} is missing"))?;
        cell.parse().with_context(|| format!("{what} is {cell:?}, no number"))
    };
    let sequence = number("the event's number")?;
    let Some(operation) = cells.next() else { bail!("the event's name is missing") };
    let mut numbers = Vec::new();
    if operation == "wait" {
        ensure!(cells.next().is_some_and(|kind| !kind.is_empty()), "what was waited for is missing");
    }
    for cell in cells {
        numbers.push(cell.parse().with_context(|| format!("{cell:?} is no number"))?);
    }
    let event = match (operation, &*numbers) {
        ("create", &[handle, bytes]) => Event::Create { handle, bytes },
        ("map", &[address, handle, bytes]) => Event::Map { address, handle, bytes },
        ("access", &[address, bytes]) => Event::Access { address, bytes },
        ("unmap", &[address, bytes]) => Event::Unmap { address, bytes },
        ("release", &[handle]) => Event::Release { handle },
        ("malloc", &[address, bytes]) => Event::Malloc { address, bytes },
        ("mfree", &[address]) => Event::MallocFree { address },
        ("wait", &[]) => Event::Wait,
        ("alloc", &[id, address, bytes, stream]) => Event::Alloc { id, address, bytes, stream },
        ("free", &[id]) => Event::Free { id, side: None },
        ("free", &[id, side]) => Event::Free { id, side: Some(side) },
        ("done", &[id]) => Event::Done { id },
        ("order", &[to, from]) => Event::Order { to, from, before: sequence },
        ("order", &[to, from, before]) => Event::Order { to, from, before: sequence.min(before) },
        (other, numbers) => bail!("no event is called {other:?} with {} numbers", numbers.len()),
    };
    Ok((sequence, event))
}
