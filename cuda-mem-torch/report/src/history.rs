//! What happened to memory, whatever it was read from: blocks and segments with the moments at which they came and went.

use anyhow::{Context, Result, ensure};

/// A number of events: moment 0 is before the first event, moment `n` after the n-th.
pub(super) type Moment = u32;

/// Not before the recording ended.
pub(super) const NEVER: Moment = Moment::MAX;

/// Sizes and addresses stay below: what JavaScript's numbers hold exactly, with room for a sign.
pub(super) const LIMIT: u64 = 1 << 52;

/// One allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    /// None where only sizes were recorded.
    pub(super) address: Option<u64>,
    /// Bytes it takes.
    pub(super) size: u64,
    /// Bytes that were asked for.
    pub(super) requested: u64,
    pub(super) stream: i64,
    /// 0: before the recording.
    pub(super) allocated: Moment,
    /// When the program let go of it.
    pub(super) freed: Moment,
    /// When its memory became free for every stream; not before `freed`.
    pub(super) done: Moment,
    /// The stack of the code that allocated it, where it is known.
    pub(super) stack: Option<u32>,
    /// What was said with the allocation; 0: nothing.
    pub(super) tag: u32,
    /// What was said about it later; 0: nothing.
    pub(super) note: u32,
}

/// A range of addresses with memory behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) owner: Owner,
    /// 0: before the recording.
    pub(super) from: Moment,
    pub(super) to: Moment,
}

/// Who a segment serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) stream: i64,
    /// It grows and shrinks by pages: neighbours are parts of one.
    pub(super) grows: bool,
}

/// An allocation that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OutOfMemory {
    pub(super) moment: Moment,
    pub(super) requested: u64,
    /// Bytes that the device had left, where that was written down.
    pub(super) free: Option<u64>,
    /// The stack of the code that asked.
    pub(super) stack: Option<u32>,
    /// The stream that it was for, where that is known.
    pub(super) stream: Option<i64>,
}

/// Reserved bytes of another allocator at the same work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    /// What the page calls it by.
    pub(super) id: &'static str,
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct History {
    /// What an event is, in the plural.
    pub(super) what: &'static str,
    pub(super) events: Moment,
    /// Microseconds at each moment, from the first; empty where nobody wrote them down.
    pub(super) times: Vec<u64>,
    pub(super) blocks: Vec<Block>,
    pub(super) segments: Vec<Segment>,
    /// Physical memory by its own events: an address range may be mapped to memory that another has too. None where nobody wrote it down.
    pub(super) reserved: Option<Vec<(Moment, i128)>>,
    pub(super) out_of_memory: Vec<OutOfMemory>,
    pub(super) references: Vec<Reference>,
    /// What a reader should know about this recording.
    pub(super) notes: Vec<String>,
}

/// Bytes at each moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Series {
    /// In use by the program.
    pub(super) live: Vec<u64>,
    /// Let go of, and still in use by a stream.
    pub(super) pending: Vec<u64>,
    pub(super) reserved: Option<Vec<u64>>,
}

impl History {
    /// Nothing happened yet.
    pub(crate) fn empty(what: &'static str, events: Moment) -> Self {
        Self {
            what,
            events,
            times: Vec::new(),
            blocks: Vec::new(),
            segments: Vec::new(),
            reserved: None,
            out_of_memory: Vec::new(),
            references: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Bytes over time.
    pub(super) fn series(&self) -> Result<Series> {
        let mut live = Sum::new(self.events);
        let mut pending = Sum::new(self.events);
        for block in &self.blocks {
            live.between(block.allocated, block.freed, block.size)?;
            pending.between(block.freed, block.done, block.size)?;
        }
        let reserved = self.reserved.as_ref().map(|changes| {
            let mut reserved = Sum::new(self.events);
            changes.iter().try_for_each(|(moment, bytes)| reserved.at(*moment, *bytes))?;
            reserved.finish()
        });
        Ok(Series { live: live.finish()?, pending: pending.finish()?, reserved: reserved.transpose()? })
    }
}

/// One size over another, where that says something.
#[expect(clippy::cast_precision_loss, reason = "a ratio of sizes, shown with three digits")]
pub(super) fn ratio(bytes: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| bytes as f64 / of as f64)
}

/// A size or an address that the page can show.
pub(super) fn checked(value: u64, what: &str) -> Result<u64> {
    ensure!(value < LIMIT, "{what} {value} is not below 2^52, as sizes and addresses of devices are");
    Ok(value)
}

/// Changes, to be summed up.
struct Sum(Vec<i128>);

impl Sum {
    fn new(events: Moment) -> Self {
        Self(vec![0; events as usize + 1])
    }

    fn at(&mut self, moment: Moment, bytes: i128) -> Result<()> {
        let place = self.0.get_mut(moment as usize).context("an event lies beyond the last")?;
        *place += bytes;
        Ok(())
    }

    /// Counts `size` from one moment until another, which may be never.
    fn between(&mut self, from: Moment, to: Moment, size: u64) -> Result<()> {
        if from != NEVER {
            self.at(from, i128::from(size))?;
        }
        if to != NEVER {
            self.at(to, -i128::from(size))?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<u64>> {
        let mut sum = 0;
        let sums = self.0.into_iter().map(|change| {
            sum += change;
            let bytes = u64::try_from(sum).ok().filter(|bytes| *bytes < LIMIT);
            bytes.with_context(|| format!("the recording adds up to {sum} bytes, which no device has"))
        });
        sums.collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn block(size: u64, allocated: Moment, freed: Moment, done: Moment) -> Block {
        Block {
            address: None,
            size,
            requested: size,
            stream: 0,
            allocated,
            freed,
            done,
            stack: None,
            tag: 0,
            note: 0,
        }
    }

    #[test]
    fn bytes_count_from_their_event_until_the_next() {
        let mut history = History::empty("events", 4);
        history.blocks = vec![block(512, 0, NEVER, NEVER), block(1024, 1, 2, 4)];
        history.reserved = Some(vec![(0, 4096), (3, -2048)]);
        let series = history.series().unwrap();
        assert_eq!(series.live, [512, 1536, 512, 512, 512]);
        assert_eq!(series.pending, [0, 0, 1024, 1024, 0]);
        assert_eq!(series.reserved.as_deref(), Some(&[4096, 4096, 4096, 2048, 2048][..]));
    }

    #[test]
    fn sums_that_no_device_has_are_refused() {
        let mut history = History::empty("events", 1);
        history.blocks = vec![block(LIMIT - 1, 0, NEVER, NEVER), block(LIMIT - 1, 0, NEVER, NEVER)];
        assert!(history.series().unwrap_err().to_string().contains("which no device has"));
        history.blocks = vec![block(1, 7, NEVER, NEVER)];
        assert!(history.series().is_err());
    }
}
