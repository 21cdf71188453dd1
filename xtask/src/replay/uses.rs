//! Freed blocks that other streams still use.

use std::collections::{BTreeMap, VecDeque};

use super::model::{Fence, Model};

/// By the stream that uses them, in the order of their frees.
#[derive(Debug)]
pub(crate) struct Uses<B> {
    queues: BTreeMap<u64, VecDeque<(Fence, B)>>,
}

impl<B> Default for Uses<B> {
    fn default() -> Self {
        Self { queues: BTreeMap::new() }
    }
}

impl<B> Uses<B> {
    /// The block is in use until the fence.
    pub(crate) fn add(&mut self, fence: Fence, block: B) {
        self.queues.entry(fence.stream).or_default().push_back((fence, block));
    }

    /// The blocks whose other streams are done. Each stream is asked until it is not.
    pub(crate) fn take_done(&mut self, model: &Model) -> Vec<B> {
        self.take_while(|fence| model.is_complete(fence))
    }

    /// All of them, once the host has waited for their streams.
    pub(crate) fn wait(&mut self, model: &Model) -> Vec<B> {
        self.take_while(|fence| {
            model.wait(fence);
            true
        })
    }

    /// Those that are wanted, each with the point until which it is used.
    pub(crate) fn take_if(&mut self, mut is_wanted: impl FnMut(&B) -> bool) -> Vec<(Fence, B)> {
        let wanted = |queue: &mut VecDeque<(Fence, B)>| {
            let (taken, left) =
                std::mem::take(queue).into_iter().partition::<VecDeque<_>, _>(|(_, block)| is_wanted(block));
            *queue = left;
            taken
        };
        self.queues.values_mut().flat_map(wanted).collect()
    }

    fn take_while(&mut self, mut is_done: impl FnMut(&Fence) -> bool) -> Vec<B> {
        let mut done = Vec::new();
        for queue in self.queues.values_mut() {
            while queue.front().is_some_and(|(fence, _)| is_done(fence)) {
                done.extend(queue.pop_front().map(|(_, block)| block));
            }
        }
        done
    }
}
