//! What a rank has after the rendezvous, and its signals: words in host memory that one stream writes and another rank's waits for.
//!
//! Each rank has words for each of its allocations, by operation, channel and sender, and each word has one writer. A signal is
//! the next number, so none is lost and none counts twice. The other ranks write a rank's words, and its own streams wait for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{Driver, Error as CoreError, Stream, Uses};

use super::lookup::{Allocation, Remote};
use super::{CHANNELS, Group};
use crate::primitive::lock_over_calls;
use crate::symmetric::memory::{Layout, Operation, Used};
use crate::symmetric::{Error, Result, SymmetricMemory, Why};

pub(super) struct NativeMemory {
    view: Arc<View>,
    layout: Layout,
}

/// What its buffers keep. The group outlives the memory: its end waits for what streams signal by the words that it has of other ranks.
#[derive(Debug)]
struct View {
    allocation: Arc<Allocation>,
    group: Group,
}

impl View {
    fn remote(&self, rank: usize) -> Option<&Remote> {
        self.allocation.remotes.get()?.get(rank)?.as_ref()
    }
}

impl Used for View {
    fn driver(&self) -> Driver {
        self.group.device().driver()
    }

    fn uses(&self, rank: usize) -> &Uses {
        self.remote(rank).map_or(&self.allocation.uses, |remote| &remote.uses)
    }
}

impl NativeMemory {
    pub(super) fn new(group: Group, allocation: Arc<Allocation>, offset: usize) -> Self {
        let view = View { allocation, group };
        let (group, allocation) = (&view.group, &view.allocation);
        let here = [allocation.address(), allocation.segment.segment.pad_address(allocation.block.pad)];
        let part = (allocation.size, offset);
        let layout = Layout::new(group.rank(), group.world_size(), group.device(), part, |rank| {
            view.remote(rank).map_or(here, |Remote { segment, offset, pad, .. }| {
                [segment.mapping.as_raw() + *offset as u64, segment.pad_address(*pad)]
            })
        });
        Self { view: Arc::new(view), layout }
    }
}

crate::impl_debug!(NativeMemory, |it| group: it.view.group, allocation: it.view.allocation.sequence, layout: it.layout);

impl SymmetricMemory for NativeMemory {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn owner(&self) -> Arc<dyn Used> {
        Arc::<View>::clone(&self.view)
    }

    fn check(&self) -> Result<()> {
        self.view.group.check()
    }

    fn barrier(&self, stream: &Stream, channel: usize, timeout: Option<Duration>) -> Result<()> {
        self.begin("barrier", stream, self.rank(), channel)?;
        let others = || (0..self.world_size()).filter(|&rank| rank != self.rank());
        others().try_for_each(|rank| self.view.group.inner.state.refuse_leaving(rank))?;
        // Threads that meet on one channel do so one after the other, with the same order on all of its words.
        let (_reports, mut waited) = lock_over_calls(&self.view.allocation.words.waited);
        // All signals first: a stream that waits holds up more than itself.
        let mut has_begun = false;
        let puts = others().try_for_each(|to| {
            let (counts, put) = self.put(stream, to, Operation::Barrier, channel);
            has_begun |= counts;
            put
        });
        let wait = |from| self.wait(&mut waited, stream, from, Operation::Barrier, channel, timeout);
        puts.and_then(|()| others().try_for_each(wait)).inspect_err(|error| self.break_if(has_begun, error))
    }

    fn put_signal(&self, stream: &Stream, to: usize, channel: usize) -> Result<()> {
        self.begin("put_signal", stream, to, channel)?;
        self.view.group.inner.state.refuse_leaving(to)?;
        let (counts, put) = self.put(stream, to, Operation::Signal, channel);
        put.inspect_err(|error| self.break_if(counts, error))
    }

    fn wait_signal(
        &self,
        stream: &Stream,
        from: usize,
        channel: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        self.begin("wait_signal", stream, from, channel)?;
        let (_reports, mut waited) = lock_over_calls(&self.view.allocation.words.waited);
        self.wait(&mut waited, stream, from, Operation::Signal, channel, timeout)
    }
}

impl NativeMemory {
    fn begin(&self, call: &'static str, stream: &Stream, rank: usize, channel: usize) -> Result<()> {
        self.layout.begin(call, stream, rank, (channel, CHANNELS))?;
        self.check()
    }

    /// Behind an error: breaks the group if a signal of the call counts. Some ranks see it, or it would be sent again and count twice.
    fn break_if(&self, counts: bool, error: &Error) {
        let (rank, why) =
            if let Error::Left { rank } = error { (*rank, Why::Left) } else { (self.rank(), Why::Failed) };
        if counts {
            self.view.group.inner.state.break_by(rank, why);
        }
    }

    /// And whether the signal counts: an error may come from behind the write of its word.
    fn put(&self, stream: &Stream, to: usize, operation: Operation, channel: usize) -> (bool, Result<()>) {
        let own = &self.view.allocation.words;
        let theirs = self.view.remote(to).map(|remote| (&remote.piece, remote.words, remote.base));
        let (piece, words, base) = theirs.unwrap_or((&own.piece, own.index, own.base));
        let line = piece.line(words, operation.word(channel, self.world_size(), self.rank()));
        // The write of the word is ordered behind the stream's earlier work, which it makes visible.
        let put = line.and_then(|line| {
            let reserved = line.reserve_above(base)?;
            // Behind the lock of the line. Of memory that the other rank has freed: nobody waits for it, and another one has the words.
            if piece.bases.get(words).is_some_and(|last| last.load(Ordering::SeqCst) > base) {
                return Ok((false, Ok(())));
            }
            let (counts, put) = reserved.record_counted(stream);
            Ok((counts, put.map(drop)))
        });
        let (counts, put) = put.unwrap_or_else(|error| (false, Err(error)));
        (counts, put.map_err(|error| self.explain(error, to)))
    }

    fn wait(
        &self,
        waited: &mut Vec<u64>,
        stream: &Stream,
        from: usize,
        operation: Operation,
        channel: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let state = &self.view.group.inner.state;
        let (words, word) = (&self.view.allocation.words, operation.word(channel, self.world_size(), from));
        let last = waited.get(word).copied().unwrap_or(words.base);
        let generation = last.saturating_add(1);
        let waiting = || {
            let line = words.piece.line(words.index, word)?;
            let fence = line.fence(generation)?;
            if state.directory.has_left(from) && !fence.is_complete()? {
                return Ok(false);
            }
            // Before the wait itself: from here on the wait ends, whatever becomes of the other rank.
            let noted = state.note_wait(from, &line, generation, timeout)?;
            // If the rank has gone since, the watching thread has not looked at this wait.
            if state.is_gone(from) && !fence.is_complete()? {
                state.was_refused(noted);
                return Ok(false);
            }
            fence.make_wait(stream).inspect_err(|_| state.was_refused(noted))?;
            Ok(true)
        };
        if !waiting().map_err(|error| self.explain(error, from))? {
            return Err(state.left(from));
        }
        waited.resize(waited.len().max(word + 1), words.base);
        waited[word] = generation;
        Ok(())
    }

    /// Poison stands for a rank that is at fault, unless it leaves.
    fn explain(&self, error: CoreError, rank: usize) -> Error {
        if !matches!(error, CoreError::Poisoned) {
            return error.into();
        }
        let state = &self.view.group.inner.state;
        // Of a group that is broken already both return why.
        state.refuse_leaving(rank).err().unwrap_or_else(|| state.break_by(rank, Why::Unreachable))
    }
}
