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

    /// The wanted blocks whose other streams are done. Each stream is asked until it is not.
    pub(crate) fn take_done(&mut self, model: &Model, is_wanted: impl Fn(&B) -> bool) -> Vec<B> {
        let mut done = Vec::new();
        for queue in self.queues.values_mut().filter(|queue| queue.iter().any(|(_, block)| is_wanted(block)))
        {
            let mut is_behind = false;
            for (fence, block) in std::mem::take(queue) {
                let is_asked = !is_behind && is_wanted(&block);
                is_behind |= is_asked && !model.is_complete(&fence);
                if is_asked && !is_behind { done.push(block) } else { queue.push_back((fence, block)) }
            }
        }
        done
    }

    /// All of them, once the host has waited for their streams.
    pub(crate) fn wait(&mut self, model: &Model) -> Vec<B> {
        self.take().into_iter().inspect(|(fence, _)| model.wait(fence)).map(|(_, block)| block).collect()
    }

    /// All of them, each with the point until which it is used.
    pub(crate) fn take(&mut self) -> Vec<(Fence, B)> {
        self.queues.values_mut().flat_map(std::mem::take).collect()
    }
}
