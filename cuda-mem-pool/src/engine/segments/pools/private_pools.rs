//! All private pools of a device.

use std::collections::BTreeMap;

use super::private_pool::PrivatePool;
use super::routes::{Filter, Routes};
use crate::engine::segments::{Allocation, BlockId, Checkpoint, Options, PoolError, Restored, SegmentError};
use crate::mempool_id::MempoolId;

/// Private pools by name, with PyTorch's rules. `S` stands for where a pool's segments come from, a handle that is cheap to
/// clone: no source is asked here, so that whoever asks it need hold no lock.
///
/// ```
/// use cuda_mem_pool::MempoolId;
/// use cuda_mem_pool::segments::{Allocation, Filter, Options, PrivatePools};
///
/// let mut pools = PrivatePools::<()>::new(Options::default());
/// let (id, stream) = (MempoolId::for_graph(), 7);
/// pools.begin_allocate(id, Filter::stream(stream))?;
/// assert_eq!(pools.routes().find(stream), Some(id));
///
/// let heap = pools.get_mut(id)?.heap_mut();
/// let Allocation::Miss(wanted) = heap.allocate(stream, 1000)? else { unreachable!() };
/// let block = heap.add_segment(&wanted, 0x20_0000)?; // of the driver
/// heap.free(block)?;
///
/// pools.end_allocate(id)?;
/// assert!(pools.take_cached(id).is_empty()); // still in use
/// pools.release_pool(id)?;
/// let taken = pools.take_cached(id).remove(0);
/// assert_eq!(taken.segment.address, 0x20_0000); // to be given back
/// pools.given_back(&taken);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PrivatePools<S> {
    pub(super) options: Options,
    pub(super) pools: BTreeMap<MempoolId, PrivatePool<S>>,
    routes: Routes,
}

impl<S> PrivatePools<S> {
    /// Without pools.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { options, pools: BTreeMap::new(), routes: Routes::default() }
    }

    /// The options that hold from here on, for all pools.
    pub fn set_options(&mut self, options: Options) {
        self.options = options;
        self.pools.values_mut().for_each(|pool| pool.heap.set_options(options));
    }

    /// Makes the pool, with another source of segments if there is one, or adds a use to it.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoPool`]; [`PoolError::SourceIsSet`] if it exists and a source is passed; [`PoolError::Released`].
    pub fn create_or_incref(&mut self, id: MempoolId, source: Option<S>) -> Result<(), PoolError> {
        if id == MempoolId::NONE {
            return Err(PoolError::NoPool);
        }
        match self.pools.get_mut(&id) {
            Some(pool) if pool.is_freeable() => return Err(PoolError::Released { id }),
            Some(_) if source.is_some() => return Err(PoolError::SourceIsSet { id }),
            Some(pool) => pool.uses = pool.uses.saturating_add(1),
            None => {
                let mut pool = PrivatePool::new(self.options, source);
                pool.uses = 1;
                self.pools.insert(id, pool);
            }
        }
        Ok(())
    }

    /// How often the pool is in use; 0 if there is none, or its last use has ended.
    #[must_use]
    pub fn use_count(&self, id: MempoolId) -> u64 {
        self.pools.get(&id).map_or(0, PrivatePool::use_count)
    }

    /// From here on allocations that the filter accepts go to the pool, which is made if there is none and has one use more.
    /// [`PrivatePools::end_allocate`] ends the first, [`PrivatePools::release_pool`] the second.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoPool`], [`PoolError::AlreadyRouted`], [`PoolError::Released`].
    pub fn begin_allocate(&mut self, id: MempoolId, filter: Filter) -> Result<(), PoolError> {
        if self.routes.has(id) {
            return Err(PoolError::AlreadyRouted { id });
        }
        self.create_or_incref(id, None)?;
        self.routes.begin(id, filter);
        Ok(())
    }

    /// Ends what [`PrivatePools::begin_allocate`] began, whichever was begun after it. The filter comes back, to be dropped
    /// where no lock is held.
    ///
    /// # Errors
    ///
    /// [`PoolError::NotRouted`].
    pub fn end_allocate(&mut self, id: MempoolId) -> Result<Filter, PoolError> {
        self.routes.end(id)
    }

    /// Which allocations go to which pool.
    #[must_use]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Ends one use of the pool. After the last one its memory can be given back, with [`PrivatePools::take_cached`];
    /// blocks that still exist stay valid until they are freed.
    ///
    /// # Errors
    ///
    /// [`PoolError::Unknown`], [`PoolError::Released`], and [`PoolError::StillRouted`] for the last use.
    pub fn release_pool(&mut self, id: MempoolId) -> Result<(), PoolError> {
        let routed = self.routes.has(id);
        let pool = self.in_use(id)?;
        if pool.uses == 1 && routed {
            return Err(PoolError::StillRouted { id });
        }
        pool.uses = pool.uses.saturating_sub(1);
        Ok(())
    }

    /// Whether the pool's free memory may serve requests of others that would else be out of memory.
    ///
    /// # Errors
    ///
    /// [`PoolError::Unknown`], [`PoolError::Released`].
    pub fn set_use_on_oom(&mut self, id: MempoolId, use_on_oom: bool) -> Result<(), PoolError> {
        self.in_use(id)?.use_on_oom = use_on_oom;
        Ok(())
    }

    /// Whether each request to the pool gets the whole of the free block that is found for it.
    ///
    /// # Errors
    ///
    /// [`PoolError::Unknown`], [`PoolError::Released`].
    pub fn set_no_split(&mut self, id: MempoolId, no_split: bool) -> Result<(), PoolError> {
        self.in_use(id)?.heap.set_no_split(no_split);
        Ok(())
    }

    /// A free block of one of the pools that are in use and allow it, for a request that no private pool was meant for. The
    /// block stays that pool's. None of a pool whose memory a graph may use, which goes on using what is free.
    ///
    /// # Errors
    ///
    /// [`SegmentError::TooLarge`].
    pub fn allocate_on_oom(
        &mut self,
        stream: u64,
        bytes: u64,
    ) -> Result<Option<(MempoolId, BlockId)>, SegmentError> {
        for (&id, pool) in self.pools.iter_mut().filter(|(_, pool)| pool.lends()) {
            if let Allocation::Hit(block) = pool.heap.allocate(stream, bytes)? {
                return Ok(Some((id, block)));
            }
        }
        Ok(None)
    }

    /// The largest block that [`PrivatePools::allocate_on_oom`] would give.
    pub(crate) fn largest_on_oom(&self, stream: u64) -> u64 {
        let lending = self.pools.values().filter(|pool| pool.lends());
        lending.map(|pool| pool.heap.largest_for(stream, 0, 1)).max().unwrap_or(0)
    }

    /// The layout of a pool as it is.
    ///
    /// # Errors
    ///
    /// [`PoolError::Unknown`], [`PoolError::Released`], [`SegmentError::Pending`].
    pub fn checkpoint(&self, id: MempoolId) -> Result<Checkpoint, PoolError> {
        let pool = self.get(id)?;
        if pool.is_freeable() {
            return Err(PoolError::Released { id });
        }
        Ok(pool.heap.checkpoint()?)
    }

    /// Makes a pool's layout what it was: [`SegmentHeap::restore`](super::super::SegmentHeap::restore).
    ///
    /// # Errors
    ///
    /// [`PoolError::Unknown`], [`PoolError::Released`], and those of the heap.
    pub fn restore(&mut self, id: MempoolId, checkpoint: &Checkpoint) -> Result<Restored, PoolError> {
        Ok(self.in_use(id)?.heap.restore(checkpoint)?)
    }

    /// A pool, in use or not.
    ///
    /// # Errors
    ///
    /// [`PoolError::Unknown`].
    pub fn get(&self, id: MempoolId) -> Result<&PrivatePool<S>, PoolError> {
        self.pools.get(&id).ok_or(PoolError::Unknown { id })
    }

    /// A pool, in use or not.
    ///
    /// # Errors
    ///
    /// [`PoolError::Unknown`].
    pub fn get_mut(&mut self, id: MempoolId) -> Result<&mut PrivatePool<S>, PoolError> {
        self.pools.get_mut(&id).ok_or(PoolError::Unknown { id })
    }

    /// All pools by name.
    pub fn iter(&self) -> impl Iterator<Item = (MempoolId, &PrivatePool<S>)> {
        self.pools.iter().map(|(&id, pool)| (id, pool))
    }

    fn in_use(&mut self, id: MempoolId) -> Result<&mut PrivatePool<S>, PoolError> {
        let pool = self.get_mut(id)?;
        if pool.is_freeable() { Err(PoolError::Released { id }) } else { Ok(pool) }
    }
}
