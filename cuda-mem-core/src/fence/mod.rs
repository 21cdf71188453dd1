//! Fences: a point in one stream's work that other streams, and other parties, wait for.
//!
//! # Safety
//!
//! Relies on [`FenceLine`] for the word: its line keeps it allocated while a stream that was told of it can still touch it.

#![allow(unsafe_code, reason = "has streams wait for words")]

mod line;
mod memory;
mod words;

use std::sync::Arc;
use std::time::Duration;

use crate::driver::Event;
use crate::error::Result;
use crate::stream::stream_mem::{self, WaitFlags};
use crate::stream::{Stream, poll};

use line::Line;

pub use line::{FenceLine, ReservedFence};
pub use words::{SharedWords, poison_word};

/// A point that streams and the host can wait for.
///
/// Made of an event, it is what [`Event`] is. Made of a generation word ([`FenceLine`]), it can also be completed from
/// outside, with poison, when the process that was to reach it has died: streams that wait go on, and the host gets an error.
///
/// ```
/// use cuda_mem_core::{Driver, Error, Fence, FenceLine, Stream};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let (producer, consumer) = (Stream::new(&context)?, Stream::new(&context)?);
///
/// let fence = Fence::record(&producer)?;
/// fence.make_wait(&consumer)?; // the consumer's later work comes after the producer's earlier work
///
/// let line = FenceLine::new(&context)?;
/// let fence = line.record(&producer)?;
/// fence.synchronize(None)?;
/// line.poison(); // the producer has died
/// assert!(matches!(fence.is_complete(), Err(Error::Poisoned)));
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Fence {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Event(Event),
    Word { line: Arc<Line>, generation: u64 },
}

impl Fence {
    /// The point that `stream` has reached when everything it was given so far is done.
    ///
    /// Wraps [`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html).
    pub fn record(stream: &Stream) -> Result<Self> {
        Ok(Self { kind: Kind::Event(stream.point("Fence::record")?) })
    }

    /// Has `stream`'s later work wait for the fence. The host waits for nothing.
    ///
    /// Wraps [`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html) for an event, and
    /// [`cuStreamWaitValue64`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html) for a word.
    ///
    /// Work behind a fence that is poisoned later starts all the same: ask [`Fence::is_complete`] before its results are used.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`](crate::Error::Poisoned) if it is poisoned already.
    pub fn make_wait(&self, stream: &Stream) -> Result<()> {
        const CALL: &str = "Fence::make_wait";
        stream.refuse_capturing(CALL)?;
        match &self.kind {
            Kind::Event(event) => stream.wait_uncaptured(event),
            Kind::Word { line, generation } => {
                if line.reached(*generation)? {
                    return Ok(());
                }
                let given = || line.note_awaited(*generation);
                line.enqueue(stream, CALL, |address| {
                    let flags = WaitFlags::empty();
                    stream.refuse_capturing(CALL)?;
                    // SAFETY: the line's word, which `enqueue` keeps allocated for the stream.
                    unsafe { stream_mem::wait_value64_and(stream, address, *generation, flags, given) }
                })
            }
        }
    }

    /// Whether the point was reached.
    ///
    /// Wraps [`cuEventQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html) for an event's; a word is just read.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`](crate::Error::Poisoned) if it never will be.
    pub fn is_complete(&self) -> Result<bool> {
        match &self.kind {
            Kind::Event(event) => event.is_complete(),
            Kind::Word { line, generation } => line.reached(*generation),
        }
    }

    /// Has the calling thread wait for the fence, for at most `limit` if one is given.
    ///
    /// Wraps [`cuEventSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html) without a limit; otherwise
    /// asks again and again.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`](crate::Error::Timeout), [`Error::Poisoned`](crate::Error::Poisoned).
    pub fn synchronize(&self, limit: Option<Duration>) -> Result<()> {
        if let (Kind::Event(event), None) = (&self.kind, limit) {
            return event.synchronize();
        }
        poll(limit, || self.is_complete())
    }

    /// Its number in its [`FenceLine`]; none for a fence of an event. The other side of a shared line makes its fence of it:
    /// [`FenceLine::fence`].
    #[must_use]
    pub fn generation(&self) -> Option<u64> {
        match &self.kind {
            Kind::Event(_) => None,
            Kind::Word { generation, .. } => Some(*generation),
        }
    }
}
