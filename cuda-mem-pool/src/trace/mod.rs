//! Allocation traces: what a program allocated and freed, one event a line, to be replayed against any allocator.
//!
//! ```text
//! # torch=2.11.0+cu130 wall_s=11.9
//! op,id,size,stream,time_us,thread
//! a,0,154389504,0,17,4711
//! f,0,,0,5120,4712
//! c,0,,0,5233,4711
//! ```
//!
//! - The first line, `# key=value …`, tells what is known of the run; it may be missing. Replays read `wall_s`, the seconds
//!   that the run took.
//! - The second line names the columns. `time_us` (microseconds since the recording began) and `thread` may be missing.
//! - `a,ID,SIZE,STREAM` allocates SIZE bytes, as they were asked for, on STREAM. No id is used twice.
//! - `f,ID,,STREAM` frees the block, at the moment the program let go of it.
//! - `c,ID,,STREAM`: another stream used the block, and was done with it only now. A block without such a line may be used
//!   again on its own stream as soon as it is freed.
//!
//! Blocks that are never freed were live when the recording ended.
//!
//! [`Trace::read`] reads a trace and checks each line, and that the events make sense together. [`Trace::write`] writes it,
//! [`CachingAllocator::record_trace`](crate::caching::CachingAllocator::record_trace) while it happens. All of it is plain text: unpack
//! compressed files before.

mod format;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use format::{Action, Event, Header, MAX_EVENTS, MAX_SIZE, TraceError};
pub use reader::Trace;
pub(crate) use writer::TraceRecorder;
