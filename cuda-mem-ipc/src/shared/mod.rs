//! Buffers that go from one process to another, each with the fence that orders it.
//!
//! A [`SharedPool`] has memory in large segments. An [`Exporter`] hands its buffers to the [`Importer`] at the other end of a
//! [connection](crate::transport): the receiver's stream waits for the exporter's work on the device, and no host does. What
//! the receiver drops goes back in the same way, and its owner's streams wait for it. A segment is mapped once in a process, at its
//! first buffer, or in the background before that if it is [announced](Exporter::attach) ahead; from then on a
//! hand-over is a cache line in memory of both, and a system call only if the receiver sleeps.
//!
//! The fences are words in memory of both processes. When a process dies, whatever it was to reach is completed with poison: the
//! streams that wait go on, the buffers say so, and what it held goes back to its owner within a second. `docs/ipc.md` has the
//! protocol, step by step, and what each side may assume after each kind of death.

mod budget;
mod buffer;
mod exportable;
mod exporter;
mod free;
#[cfg(any(test, fuzzing))]
#[path = "../../tests/players/mod.rs"]
pub mod hostile;
mod importer;
mod listen;
mod options;
mod pool;
mod reaper;
mod received;
mod ring;
mod segment;
mod slab;
#[doc(hidden)]
pub mod wire;
mod words;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_pool::cuda_mem_core::host::SharedMapping;
use cuda_mem_pool::cuda_mem_core::{self as core, Uses};

use crate::error::{Error, Result};
use crate::transport::{Connection, Deadline, Descriptors, MessageError, until};
use free::Past;
use segment::Segment;

pub use buffer::{Share, SharedBuffer};
pub use exportable::{Exportable, NotExportable};
pub use exporter::Exporter;
pub use importer::Importer;
pub use options::{AheadLimit, MemoryKind, SharedPoolOptions};
pub use pool::SharedPool;
pub use received::ReceivedBuffer;

/// How much is taken of one peer at a time, before others have their turn and deadlines are looked at. Half of what a ring holds.
const MOST_AT_A_TIME: usize = 256;

/// So many of what is counted, until this is dropped.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>, usize);

impl Counted {
    /// And how many all are with these.
    fn new(all: &Arc<AtomicUsize>, these: usize) -> (Self, usize) {
        let before = all.fetch_add(these, Ordering::SeqCst);
        (Self(Arc::clone(all), these), before.saturating_add(these))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::SeqCst);
    }
}

fn say(
    connection: &Connection,
    message: &wire::Message,
    descriptors: &[BorrowedFd<'_>],
    deadline: impl Into<Deadline>,
) -> Result<()> {
    let (kind, payload) = message.encode();
    connection.send(kind, &payload, descriptors, deadline)
}

/// The next message, as far as its bytes go, and what came with it.
fn heard(connection: &Connection, deadline: impl Into<Deadline>) -> Result<(wire::Message, Descriptors)> {
    let came = connection.recv(deadline)?;
    let parsed = wire::Message::parse(came.kind, &came.payload);
    Ok((parsed.map_err(unreadable(connection))?, came.descriptors))
}

/// Ends a connection whose peer sent what is no message.
fn unreadable(connection: &Connection) -> impl Fn(MessageError) -> Error {
    |source| connection.breaks(Error::Wire { pid: connection.peer().pid(), source })
}

/// Ends a connection whose peer does not follow the protocol.
fn protocol(connection: &Connection, what: &'static str) -> Error {
    connection.breaks(Error::Protocol { pid: connection.peer().pid(), what })
}

/// Where `len` bytes behind `offset` of a buffer are on the host.
fn expect_host(
    segment: &Segment,
    start: usize,
    bytes: usize,
    offset: usize,
    len: usize,
) -> Result<(&SharedMapping, usize)> {
    let host = segment.host().ok_or(Error::NotOnHost)?;
    let end = offset.saturating_add(len);
    if end > bytes {
        return Err(core::Error::OutOfRange { range: offset..end, len: bytes }.into());
    }
    Ok((host, start.saturating_add(offset)))
}

/// Has the calling thread wait until streams of this process, and receivers that have given a buffer back, are done with it.
fn until_unused(uses: &Uses, past: Option<&Past>, deadline: Deadline) -> Result<()> {
    uses.wait_for(deadline.remaining()).map_err(|error| match error {
        core::Error::Timeout(_) => Error::Timeout { what: "the uses of the buffer were over" },
        error => error.into(),
    })?;
    until(deadline, "the receivers of the buffer were done", || {
        Ok(past.is_none_or(|past| past.left().is_over(None)))
    })
}
