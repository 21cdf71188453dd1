//! Points of which it is known that one came behind another.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::event::Event;

/// How many records have ended.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// An event that was recorded once, and when: threads may record at the same time, and which of these came first nobody knows.
#[derive(Debug)]
pub(crate) struct Mark {
    event: Event,
    /// How many records had ended before this one began.
    begun_behind: u64,
    /// Its own place among those that have ended.
    ended_as: u64,
}

impl Mark {
    /// What `record` has recorded.
    pub(crate) fn of(record: impl FnOnce() -> Result<Event>) -> Result<Self> {
        let begun_behind = ENDED.load(Ordering::Acquire);
        let event = record()?;
        let ended_as = ENDED.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        Ok(Self { event, begun_behind, ended_as })
    }

    pub(crate) fn event(&self) -> &Event {
        &self.event
    }

    /// Whether the other one's record had ended when this one's began.
    pub(super) fn is_after(&self, other: &Self) -> bool {
        self.begun_behind >= other.ended_as
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Driver, Stream};

    #[test]
    fn of_two_records_at_the_same_time_neither_is_behind_the_other() {
        let driver = Driver::over(cuda_mem_sim::table()).unwrap();
        let stream = Stream::new(&driver.device(0).unwrap().primary_context().unwrap()).unwrap();
        let record = || stream.point("a test");
        let mut inner = None;
        let outer = Mark::of(|| {
            inner = Some(Mark::of(record)?);
            record()
        });
        let (outer, inner) = (outer.unwrap(), inner.unwrap());
        let later = Mark::of(record).unwrap();
        assert!(!outer.is_after(&inner) && !inner.is_after(&outer));
        assert!(later.is_after(&outer) && later.is_after(&inner));
        assert!(!inner.is_after(&later) && !outer.is_after(&later) && !later.is_after(&later));
    }
}
