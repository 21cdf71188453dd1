//! The arenas of an allocator, by pool and NUMA node, and the routes to private pools: those of graphs and of `MemPool`s.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use cuda_mem_core::StreamId;

use super::arena::Arena;
use crate::error::PoolError;
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock};

type Filter = dyn Fn(Option<StreamId>) -> bool + Send + Sync;

#[derive(Default)]
pub(super) struct Pools {
    /// How many routes there are, so that the usual case costs one load.
    routes: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By pool, where `None` is the default one, and by node.
    arenas: HashMap<(Option<MempoolId>, Option<u32>), Arc<Arena>>,
    /// How often each private pool was begun and not released.
    uses: HashMap<MempoolId, u64>,
    routes: Vec<(MempoolId, Arc<Filter>)>,
}

impl State {
    fn position(&self, id: MempoolId) -> Option<usize> {
        self.routes.iter().position(|(routed, _)| *routed == id)
    }
}

impl Pools {
    /// Whether any allocations go to a private pool.
    #[inline]
    pub(super) fn any_route(&self) -> bool {
        self.routes.load(Ordering::Acquire) > 0
    }

    pub(super) fn begin(&self, id: MempoolId, filter: Arc<Filter>) -> Result<(), PoolError> {
        let mut state = lock(&self.state);
        if state.position(id).is_some() {
            return Err(PoolError::AlreadyRouted { id });
        }
        *state.uses.entry(id).or_default() += 1;
        state.routes.push((id, filter));
        self.routes.store(state.routes.len(), Ordering::Release);
        Ok(())
    }

    pub(super) fn end(&self, id: MempoolId) -> Result<(), PoolError> {
        let mut state = lock(&self.state);
        let position = state.position(id).ok_or(PoolError::NotRouted { id })?;
        let route = state.routes.remove(position);
        self.routes.store(state.routes.len(), Ordering::Release);
        drop(state);
        // What the filter has captured is dropped outside the lock.
        drop(route);
        Ok(())
    }

    /// Takes one use away. Gives the pool's arenas if that was the last one.
    pub(super) fn release(&self, id: MempoolId) -> Result<Vec<Arc<Arena>>, PoolError> {
        let mut state = lock(&self.state);
        let is_routed = state.position(id).is_some();
        let uses = state.uses.get_mut(&id).ok_or(PoolError::Unknown { id })?;
        if *uses > 1 {
            *uses -= 1;
            return Ok(Vec::new());
        }
        if is_routed {
            return Err(PoolError::StillRouted { id });
        }
        state.uses.remove(&id);
        Ok(state.arenas.extract_if(|(pool, _), _| *pool == Some(id)).map(|(_, arena)| arena).collect())
    }

    /// The private pool that an allocation for `stream` in this thread goes to.
    pub(super) fn route(&self, stream: Option<StreamId>) -> Option<MempoolId> {
        if !self.any_route() {
            return None;
        }
        // The filters are somebody else's code: they are asked without the lock. The innermost is the last one.
        let routes = lock(&self.state).routes.clone();
        routes.into_iter().rev().find(|(_, filter)| filter(stream)).map(|(id, _)| id)
    }

    /// The arena of a pool on a node, which `new` makes if it is the first. That of the default pool if `pool` was released
    /// meanwhile.
    pub(super) fn arena(
        &self,
        pool: Option<MempoolId>,
        numa_id: Option<u32>,
        new: impl FnOnce(Option<MempoolId>) -> Arc<Arena>,
    ) -> Arc<Arena> {
        let mut state = lock(&self.state);
        let pool = pool.filter(|id| state.uses.contains_key(id));
        Arc::clone(state.arenas.entry((pool, numa_id)).or_insert_with(|| new(pool)))
    }

    /// How many blocks of a private pool are in use, and their bytes.
    pub(super) fn in_use(&self, id: MempoolId) -> Result<(u64, u64), PoolError> {
        let state = lock(&self.state);
        if !state.uses.contains_key(&id) {
            return Err(PoolError::Unknown { id });
        }
        let arenas = state.arenas.iter().filter(|((pool, _), _)| *pool == Some(id));
        Ok(arenas.map(|(_, arena)| arena.in_use()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)))
    }

    /// The arenas of all pools.
    pub(super) fn all(&self) -> Vec<Arc<Arena>> {
        lock(&self.state).arenas.values().cloned().collect()
    }

    /// The arenas of all pools, which have none any more afterwards.
    pub(super) fn take_all(&self) -> Vec<Arc<Arena>> {
        lock(&self.state).arenas.drain().map(|(_, arena)| arena).collect()
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools").field("routes", &self.routes.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}
