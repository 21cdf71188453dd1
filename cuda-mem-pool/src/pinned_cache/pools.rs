//! Private pools, whose memory serves nobody else: those of graphs and of `MemPool`s.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use cuda_mem_core::StreamId;

use super::arena::Arena;
use super::error::PinnedCacheError;
use crate::error::PoolError;
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock};

type Filter = dyn Fn(Option<StreamId>) -> bool + Send + Sync;

/// The private pools of an allocator, and which allocations go to them.
#[derive(Default)]
pub(super) struct Pools {
    /// How many routes there are, so that the usual case costs one load.
    routes: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pools: HashMap<MempoolId, Pool>,
    routes: Vec<(MempoolId, Arc<Filter>)>,
}

#[derive(Default)]
struct Pool {
    uses: u64,
    /// By node.
    arenas: HashMap<Option<u32>, Arc<Arena>>,
}

impl Pools {
    /// Whether any allocations go to a private pool.
    #[inline]
    pub(super) fn any_route(&self) -> bool {
        self.routes.load(Ordering::Acquire) > 0
    }

    pub(super) fn begin(&self, id: MempoolId, filter: Arc<Filter>) -> Result<(), PinnedCacheError> {
        let mut state = lock(&self.state);
        if state.routes.iter().any(|(routed, _)| *routed == id) {
            return Err(PoolError::AlreadyRouted { id }.into());
        }
        state.pools.entry(id).or_default().uses += 1;
        state.routes.push((id, filter));
        self.routes.store(state.routes.len(), Ordering::Release);
        Ok(())
    }

    pub(super) fn end(&self, id: MempoolId) -> Result<(), PinnedCacheError> {
        let mut state = lock(&self.state);
        let place = state.routes.iter().position(|(routed, _)| *routed == id);
        let route = state.routes.remove(place.ok_or(PoolError::NotRouted { id })?);
        self.routes.store(state.routes.len(), Ordering::Release);
        drop(state);
        // What the filter has captured is dropped outside the lock.
        drop(route);
        Ok(())
    }

    /// Takes one use away. The arenas of the pool, if that was the last one.
    pub(super) fn release(&self, id: MempoolId) -> Result<Vec<Arc<Arena>>, PinnedCacheError> {
        let mut state = lock(&self.state);
        let routed = state.routes.iter().any(|(routed, _)| *routed == id);
        let pool = state.pools.get_mut(&id).ok_or(PoolError::Unknown { id })?;
        if pool.uses > 1 {
            pool.uses -= 1;
            return Ok(Vec::new());
        }
        if routed {
            return Err(PoolError::StillRouted { id }.into());
        }
        Ok(state.pools.remove(&id).into_iter().flat_map(|pool| pool.arenas.into_values()).collect())
    }

    /// The pool that an allocation for `stream` in this thread goes to.
    pub(super) fn route(&self, stream: Option<StreamId>) -> Option<MempoolId> {
        if !self.any_route() {
            return None;
        }
        // The filters are somebody else's code: they are asked without the lock. The innermost is the last one.
        let routes = lock(&self.state).routes.clone();
        routes.into_iter().rev().find(|(_, filter)| filter(stream)).map(|(id, _)| id)
    }

    /// The pool's arena on a node, which `new` makes if it is the first. None if the pool was released meanwhile.
    pub(super) fn arena(
        &self,
        id: MempoolId,
        numa_id: Option<u32>,
        new: impl FnOnce() -> Arc<Arena>,
    ) -> Option<Arc<Arena>> {
        let mut state = lock(&self.state);
        let pool = state.pools.get_mut(&id)?;
        Some(Arc::clone(pool.arenas.entry(numa_id).or_insert_with(new)))
    }

    /// The arenas of one pool.
    pub(super) fn arenas_of(&self, id: MempoolId) -> Result<Vec<Arc<Arena>>, PinnedCacheError> {
        let state = lock(&self.state);
        let pool = state.pools.get(&id).ok_or(PoolError::Unknown { id })?;
        Ok(pool.arenas.values().cloned().collect())
    }

    /// The arenas of all pools, which have none any more afterwards.
    pub(super) fn take_all(&self) -> Vec<Arc<Arena>> {
        let mut state = lock(&self.state);
        state.pools.drain().flat_map(|(_, pool)| pool.arenas.into_values()).collect()
    }

    /// The arenas of all pools.
    pub(super) fn all(&self) -> Vec<Arc<Arena>> {
        lock(&self.state).pools.values().flat_map(|pool| pool.arenas.values().cloned()).collect()
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools").field("routes", &self.routes.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}
