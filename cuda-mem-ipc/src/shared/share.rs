//! A part of a buffer on its way to another process.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use cuda_mem_pool::cuda_mem_core::{self as core, Stream};

use super::keepsake::Keepsake;
use super::segment::SegmentRef;
use super::words::ReleaseFence;
use crate::error::Result;

/// A buffer, or a part of one, to be handed over: [`Exporter::hand_over`](super::Exporter::hand_over) takes it. It keeps the
/// buffer.
///
/// Made from a [`SharedBuffer`](super::SharedBuffer) or a [`ReceivedBuffer`](super::ReceivedBuffer), whole by `From`, or in part
/// by their `range`.
///
/// ```
/// use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_ipc::shared::{Share, SharedPool, SharedPoolOptions};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let pool = SharedPool::new(&context, &SharedPoolOptions::default())?;
/// let buffer = pool.allocate(4096, &Stream::new(&context)?)?;
/// let (whole, half) = (Share::from(&buffer), buffer.range(0..2048)?);
/// # drop((whole, half));
/// # Ok::<(), cuda_mem_ipc::Error>(())
/// ```
#[derive(Clone)]
pub struct Share {
    pub(super) segment: SegmentRef,
    /// In the segment.
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) holder: Arc<dyn Holder>,
}

/// What keeps handed memory, and is told when its receiver is done.
pub(super) trait Holder: Send + Sync {
    /// Orders `stream` behind all uses of the memory.
    fn order(&self, stream: &Stream) -> Result<()>;

    /// What a receiver has to keep, for those who have handed the memory to this process.
    fn keepsakes(&self) -> Vec<Keepsake> {
        Vec::new()
    }

    /// A receiver is done behind this fence.
    fn released(&self, fence: ReleaseFence);

    /// Whether it is another process's memory and that one is gone: nobody hears of it that a receiver is done.
    fn is_orphan(&self) -> bool {
        false
    }
}

impl Share {
    /// A part of it, in bytes.
    ///
    /// # Errors
    ///
    /// [`core::Error::OutOfRange`], also for a part without bytes.
    pub fn range(&self, range: Range<usize>) -> Result<Self> {
        let len = range.end.saturating_sub(range.start);
        if len == 0 || range.end > self.len {
            return Err(core::Error::OutOfRange { range, len: self.len }.into());
        }
        Ok(Self { offset: self.offset.saturating_add(range.start), len, ..self.clone() })
    }

    /// How many bytes it has.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "there is none without bytes")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share").field("offset", &self.offset).field("len", &self.len).finish_non_exhaustive()
    }
}
