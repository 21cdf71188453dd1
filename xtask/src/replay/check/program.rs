//! The trace that a log claims to replay.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, bail, ensure};
use cuda_mem_pool::trace::{Action, Trace};

/// What the program does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Alloc { id: u64, bytes: u64, stream: u64 },
    Free { id: u64 },
}

/// The program, and how far the log has come with it.
#[derive(Debug)]
pub(super) struct Program {
    steps: Vec<Step>,
    /// The step before which a freed block's other uses ended.
    ends: HashMap<u64, usize>,
    /// The streams that blocks are of.
    streams: HashSet<u64>,
    next: usize,
    /// Blocks that the allocator had no memory for.
    refused: HashSet<u64>,
    /// How many steps the device is behind, if that was told.
    lag: Option<u64>,
    /// The step of each free.
    freed: HashMap<u64, usize>,
    /// Blocks that were called done since the last step; whether that was in time shows with the next one.
    done: Vec<u64>,
    /// How many steps there had been at the last wait of the host.
    waited: Option<usize>,
}

impl Program {
    pub(super) fn new(trace: &Trace, lag: Option<u64>) -> Self {
        let (mut steps, mut ends, mut empty) = (Vec::new(), HashMap::new(), HashSet::new());
        let streams = trace.events.iter().map(|event| event.stream).collect();
        for event in &trace.events {
            let (id, stream) = (event.id, event.stream);
            match event.action {
                Action::Allocate { size: 0 } => {
                    empty.insert(id);
                }
                Action::Allocate { size } => steps.push(Step::Alloc { id, bytes: size, stream }),
                _ if empty.contains(&id) => {}
                Action::Free => steps.push(Step::Free { id }),
                Action::Complete => {
                    ends.insert(id, steps.len());
                }
            }
        }
        Self {
            steps,
            ends,
            streams,
            next: 0,
            refused: HashSet::new(),
            lag,
            freed: HashMap::new(),
            done: Vec::new(),
            waited: None,
        }
    }

    /// Whether another stream used the block at its free and was not done with it.
    pub(super) fn is_pending(&self, id: u64) -> bool {
        self.ends.contains_key(&id)
    }

    /// The number of steps before which the block's other uses end.
    pub(super) fn end(&self, id: u64) -> Option<usize> {
        self.ends.get(&id).copied()
    }

    /// How many steps the log has come.
    pub(super) fn position(&self) -> usize {
        self.next
    }

    pub(super) fn refused(&self) -> usize {
        self.refused.len()
    }

    /// Passes by what was refused, up to a step that was not.
    fn come_to(&mut self, is_it: impl Fn(&Step) -> bool) -> Result<()> {
        while let Some(step) = self.steps.get(self.next) {
            match step {
                step if is_it(step) => return self.settle(),
                Step::Alloc { id, .. } => {
                    self.refused.insert(*id);
                }
                Step::Free { id } if self.refused.contains(id) => {}
                Step::Free { id } => bail!("the trace frees block {id} here"),
            }
            self.next += 1;
        }
        bail!("the trace has no such step left")
    }

    pub(super) fn alloc(&mut self, id: u64, bytes: u64, stream: u64) -> Result<()> {
        self.come_to(|step| matches!(step, Step::Alloc { id: own, .. } if *own == id))?;
        let expected = Step::Alloc { id, bytes, stream };
        let step = self.steps[self.next];
        ensure!(step == expected, "the trace has {step:?} here, not {expected:?}");
        self.next += 1;
        Ok(())
    }

    /// `side` stands for the stream that the trace does not name, if it tells of one.
    pub(super) fn free(&mut self, id: u64, side: Option<u64>) -> Result<()> {
        self.come_to(|step| *step == Step::Free { id })?;
        let foreign = side.is_none_or(|side| self.ends.contains_key(&id) && !self.streams.contains(&side));
        ensure!(foreign, "block {id} is used by stream {side:?}, which is not what the trace tells");
        self.freed.insert(id, self.next);
        self.next += 1;
        Ok(())
    }

    pub(super) fn wait(&mut self) {
        self.waited = Some(self.next);
    }

    pub(super) fn done(&mut self, id: u64) {
        // Who waits for the device may find anything done; a real device may tell that later than at once.
        let excused = self.waited.is_some_and(|step| match self.lag {
            Some(_) => step == self.next,
            None => self.freed.get(&id).is_some_and(|freed| *freed <= step),
        });
        if !excused {
            self.done.push(id);
        }
    }

    /// The host has come to the next step: was what was called done due by then?
    fn settle(&mut self) -> Result<()> {
        for id in self.done.drain(..) {
            let freed =
                self.freed.get(&id).map_or(0, |step| (*step as u64).saturating_add(self.lag.unwrap_or(0)));
            let end = self.ends.get(&id).map_or(0, |step| *step as u64);
            let (due, now) = (freed.max(end), self.next as u64);
            ensure!(due <= now, "block {id} was called done at operation {now}, and is due at {due}");
        }
        Ok(())
    }

    /// The log is over: what is left of the trace must be what was refused.
    pub(super) fn finish(&mut self) -> Result<()> {
        while let Some(step) = self.steps.get(self.next) {
            match step {
                Step::Alloc { id, .. } => {
                    self.refused.insert(*id);
                }
                Step::Free { id } if self.refused.contains(id) => {}
                Step::Free { id } => bail!("the log ends before the trace frees block {id}"),
            }
            self.next += 1;
        }
        self.settle()
    }
}
