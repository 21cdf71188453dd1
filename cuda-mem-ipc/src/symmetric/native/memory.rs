//! What a rank has after the rendezvous, and the signals between the ranks' streams: words in host memory that the sender's stream writes
//! and the receiver's stream waits for.
//!
//! Each rank has words for each of its allocations, by operation, channel and sender, and each word has one writer. A signal is
//! the next number, so none is lost and none counts twice; the words of a rank are written by others and waited for at home.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{Driver, Error as CoreError, Stream, Uses, forked};

use super::lookup::{Allocation, Remote};
use super::{CHANNELS, Group};
use crate::primitive::lock;
use crate::symmetric::memory::{Layout, Operation, Used};
use crate::symmetric::{Error, Result, SymmetricMemory, Why};

pub(super) struct NativeMemory {
    allocation: Arc<Allocation>,
    /// By rank, once somebody asks for one.
    views: OnceLock<Vec<Arc<View>>>,
    layout: Layout,
    /// Last: its end waits for what streams signal by the words that the allocation has of other ranks.
    group: Group,
}

/// A rank's memory, with the uses that this handle has made of it. The group outlives it, and with it the words.
#[derive(Debug)]
struct View {
    allocation: Arc<Allocation>,
    /// None of this rank's own memory, whose uses the allocation knows.
    other: Option<(Remote, Uses)>,
    group: Group,
}

impl Used for View {
    fn driver(&self) -> Driver {
        self.group.device().driver()
    }

    fn uses(&self) -> &Uses {
        self.other.as_ref().map_or(&self.allocation.uses, |(_, uses)| uses)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Some((remote, uses)) = self.other.take().filter(|_| !forked()) {
            // The mapping outlives the work.
            remote.segment.mapping.absorb_uses(uses);
        }
    }
}

impl NativeMemory {
    pub(super) fn new(group: Group, allocation: Arc<Allocation>, offset: usize) -> Self {
        let own = &allocation.segment.segment;
        let here = [allocation.address(), own.pad_address(allocation.block.pad)];
        let remotes = allocation.remotes.get().map_or(&[][..], Vec::as_slice);
        let (rank, ranks, size) = (group.rank(), group.world_size(), allocation.size);
        let layout = Layout::new(rank, ranks, group.device(), (size, offset), |rank| {
            match remotes.get(rank).and_then(Option::as_ref) {
                Some(Remote { segment, offset, pad, .. }) => {
                    [segment.mapping.as_raw() + *offset as u64, segment.pad_address(*pad)]
                }
                None => here,
            }
        });
        Self { group, views: OnceLock::new(), layout, allocation }
    }

    fn remote(&self, rank: usize) -> Option<&Remote> {
        self.allocation.remotes.get()?.get(rank)?.as_ref()
    }
}

crate::shown!(NativeMemory, |it| group: it.group, allocation: it.allocation.sequence, layout: it.layout);

impl SymmetricMemory for NativeMemory {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn owner(&self, rank: usize) -> Result<Arc<dyn Used>> {
        let view = |rank| {
            let other = self.remote(rank).map(|remote| (remote.clone(), Uses::new()));
            Arc::new(View { allocation: Arc::clone(&self.allocation), other, group: self.group.clone() })
        };
        let views = self.views.get_or_init(|| (0..self.layout.ranks).map(view).collect());
        let view = views.get(rank).ok_or(Error::Left { rank })?;
        Ok(Arc::<View>::clone(view))
    }

    fn check(&self) -> Result<()> {
        self.group.check()
    }

    fn barrier(&self, stream: &Stream, channel: usize, timeout: Option<Duration>) -> Result<()> {
        self.begin("barrier", stream, self.rank(), channel)?;
        let others = || (0..self.world_size()).filter(|&rank| rank != self.rank());
        if let Some(rank) = others().find(|&rank| self.group.state().directory.has_left(rank)) {
            return Err(Error::Left { rank });
        }
        // Threads that meet on one channel do so one after the other, with the same order on all of its words.
        let mut waited = lock(&self.allocation.words.waited);
        // All signals first: a stream that waits holds up more than itself.
        let mut has_begun = false;
        let puts = others().try_for_each(|to| {
            let put = self.put(stream, to, Operation::Barrier, channel);
            has_begun |= put.is_ok();
            put
        });
        let mut waits = || {
            let wait = |from| self.wait(&mut waited, stream, from, Operation::Barrier, channel, timeout);
            others().try_for_each(wait)
        };
        puts.and_then(|()| waits()).inspect_err(|_| {
            if has_begun {
                // Some ranks see this one come and some do not, or it does not see them.
                self.group.state().break_by(self.rank(), Why::Failed);
            }
        })
    }

    fn put_signal(&self, stream: &Stream, to: usize, channel: usize) -> Result<()> {
        self.begin("put_signal", stream, to, channel)?;
        self.put(stream, to, Operation::Signal, channel)
    }

    fn wait_signal(
        &self,
        stream: &Stream,
        from: usize,
        channel: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        self.begin("wait_signal", stream, from, channel)?;
        let mut waited = lock(&self.allocation.words.waited);
        self.wait(&mut waited, stream, from, Operation::Signal, channel, timeout)
    }
}

impl NativeMemory {
    fn begin(&self, call: &'static str, stream: &Stream, rank: usize, channel: usize) -> Result<()> {
        self.layout.begin(call, stream, rank, (channel, CHANNELS))?;
        self.check()
    }

    fn put(&self, stream: &Stream, to: usize, operation: Operation, channel: usize) -> Result<()> {
        if self.group.state().directory.has_left(to) {
            return Err(Error::Left { rank: to });
        }
        let own = &self.allocation.words;
        let (piece, words) =
            self.remote(to).map_or((&own.piece, own.index), |remote| (&remote.piece, remote.words));
        let line = piece
            .mark_signalled(words)
            .and_then(|()| piece.line(words, operation.word(channel, self.world_size(), self.rank())));
        // The write of the word is ordered behind the stream's earlier work, which it makes visible.
        let put = line.and_then(|line| line.record(stream));
        put.map(drop).map_err(|error| self.explain(error, to))
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
        let state = self.group.state();
        let (words, word) = (&self.allocation.words, operation.word(channel, self.world_size(), from));
        let last = waited.get(word).copied().unwrap_or(0);
        let generation = last.saturating_add(1);
        let waiting = || {
            let line = words.piece.line(words.index, word)?;
            let fence = line.fence(generation)?;
            if state.directory.has_left(from) && !fence.is_complete()? {
                return Ok(false);
            }
            // Before the wait itself: from here on it ends, whatever becomes of the other rank.
            let noted = state.note_wait(from, &line, generation, timeout)?;
            fence.hold_up(stream).inspect_err(|_| state.was_refused(noted))?;
            Ok(true)
        };
        if !waiting().map_err(|error| self.explain(error, from))? {
            return Err(Error::Left { rank: from });
        }
        if waited.len() <= word {
            waited.resize(word + 1, 0);
        }
        waited[word] = generation;
        Ok(())
    }

    /// Poison stands for a rank that is at fault, and so does a word behind which there is no number to wait for: so many signals do not
    /// come to pass.
    fn explain(&self, error: CoreError, rank: usize) -> Error {
        match (error, self.check()) {
            (CoreError::Poisoned | CoreError::NotAccepted { .. }, Err(broken)) => broken,
            (CoreError::Poisoned | CoreError::NotAccepted { .. }, Ok(())) => {
                self.group.state().break_by(rank, Why::Unreachable)
            }
            (error, _) => error.into(),
        }
    }
}
