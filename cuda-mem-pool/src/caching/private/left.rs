//! What streams leave in private pools that nobody but the allocator has any more, or whose threads have ended.
//!
//! Such a stream is given nothing else, so once it is done another stream can have all that it had, also the blocks that somebody has: as
//! with the heaps of the default pool it is as if it had been one stream all the time. What a graph may use stays as it is.

use std::collections::HashSet;

use cuda_mem_core::Stream;

use super::State;
use super::allocate::{Found, Routed};
use crate::caching::owner::is_done;
use crate::caching::shared::Shared;
use crate::error::Result;
use crate::mempool_id::MempoolId;
use crate::primitive::{lock, lock_over_calls};

impl Shared {
    /// Looks again with what was left in the pool, of one stream after the other until that will do. The host waits for nothing.
    pub(super) fn look_at_left(&self, routed: Routed<'_>) -> Result<Option<Found>> {
        let left = self.left_streams();
        let found = left.iter().find_map(|&from| {
            let adopted = lock(&self.private.state).adopt(routed.pool, from, routed.stream);
            let found = adopted.then(|| self.look(routed))?;
            (!matches!(found, Ok(Found::Miss(..)))).then_some(found)
        });
        self.let_go(&left);
        found.transpose()
    }

    /// Lets go of left streams that have no memory any more.
    pub(super) fn let_go_of_left(&self) {
        self.let_go(&self.left_streams());
    }

    fn let_go(&self, left: &[u64]) {
        if left.is_empty() {
            return;
        }
        let state = lock(&self.private.state);
        let segments = state.pools.iter().flat_map(|(_, pool)| pool.heap().segments());
        let have: HashSet<u64> = segments.map(|segment| segment.stream()).collect();
        let gone = state.streams.take(|id| left.contains(&id) && !have.contains(&id));
        drop(state);
        drop(gone);
    }

    /// The streams that nobody else has any more and that are done, by id. They stay so, but for that of a thread: a destructor that runs
    /// late there may use it.
    fn left_streams(&self) -> Vec<u64> {
        // One thread at a time: the handles that another one has here would count as somebody's.
        let _turn = lock_over_calls(&self.private.leaving);
        // One handle is with the pools and one with a heap, if the stream has any.
        let streams = self.private.streams.left_to(2);
        let left = streams.iter().filter(|stream| self.is_left(stream));
        left.map(|stream| stream.id().as_raw()).chain(self.private.streams.ended()).collect()
    }

    /// Whether nobody has a stream but the pools, its heap and the caller, and it is done.
    fn is_left(&self, stream: &Stream) -> bool {
        let pools = &self.private.streams;
        match self.slot_of(stream.id()) {
            Some(slot) => slot.owner.is_left(stream, |own| pools.is_left_to(own, 2)),
            None => pools.is_left_to(stream, 1) && is_done(stream),
        }
    }
}

impl State {
    /// Gives a stream what another left in a pool, if it left any there.
    fn adopt(&mut self, id: MempoolId, from: u64, to: &Stream) -> bool {
        let captured = self.is_captured(id);
        let Ok(pool) = self.pools.get_mut(id) else { return false };
        let heap = pool.heap_mut();
        if captured
            || self.streams.is_in_use(from)
            || !heap.segments().any(|segment| segment.stream() == from)
        {
            return false;
        }
        heap.adopt(from, to.id().as_raw());
        self.blocks.adopt(id, from, to.id().as_raw());
        self.streams.add(to);
        true
    }
}
