//! Private pools by name: their uses, which allocations go to them, and how their memory leaves them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use super::heap::{Allocation, Block, Segment, SegmentHeap, SegmentRequest};
use super::options::Options;
use crate::error::PoolError;
use crate::mempool_id::MempoolId;

/// Says of an allocation for a stream, in the thread that makes it, whether it goes to a pool.
///
/// ```
/// use cuda_mem_pool::segments::Filter;
///
/// assert!(Filter::stream(7).accepts(7) && !Filter::stream(7).accepts(8));
/// let here = Filter::this_thread();
/// assert!(here.accepts(7));
/// assert!(!std::thread::spawn(move || here.accepts(7)).join().unwrap());
/// ```
#[derive(Clone)]
pub struct Filter(Arc<dyn Fn(u64) -> bool + Send + Sync>);

impl Filter {
    /// What `accepts` says of a stream, asked in the allocating thread.
    pub fn new(accepts: impl Fn(u64) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(accepts))
    }

    /// All allocations for this stream.
    #[must_use]
    pub fn stream(stream: u64) -> Self {
        Self::new(move |asked| asked == stream)
    }

    /// All allocations that the calling thread makes.
    #[must_use]
    pub fn this_thread() -> Self {
        let this = thread::current().id();
        Self::new(move |_| thread::current().id() == this)
    }

    /// Whether an allocation for the stream, in the calling thread, goes to the pool.
    #[must_use]
    pub fn accepts(&self, stream: u64) -> bool {
        (self.0)(stream)
    }
}

crate::impl_debug!(Filter);

/// The routes, the innermost last. They are asked without a lock: filters are other people's code. Who asks has a clone with each filter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Routes(pub(crate) Vec<(MempoolId, Arc<Filter>)>);

impl Routes {
    /// The pool of the filter that accepts the stream in this thread, the one that was begun last.
    pub(crate) fn find(&self, stream: u64) -> Option<MempoolId> {
        self.0.iter().rev().find(|(_, filter)| filter.accepts(stream)).map(|&(id, _)| id)
    }

    pub(crate) fn has(&self, id: MempoolId) -> bool {
        self.0.iter().any(|&(routed, _)| routed == id)
    }
}

/// One private pool. `S` is where its segments come from if not from where the owner's own do.
#[derive(Debug)]
pub(crate) struct Pool<S> {
    /// None until the first use. Until then the pool stays, unless it is released.
    pub(crate) uses: Option<u64>,
    pub(crate) heap: SegmentHeap,
    pub(crate) source: Option<S>,
    /// Whether its free memory may serve others before they run out of memory.
    pub(crate) use_on_oom: bool,
    /// Whether a graph may use its memory, what is free too: a stream captured when it was asked for a block.
    pub(crate) is_captured: bool,
    /// Whether its memory sleeps: it hands nothing out, and gives nothing back.
    pub(crate) is_asleep: bool,
    /// How many segments were taken out and neither went nor came back yet.
    pub(crate) leaving: usize,
}

impl<S> Pool<S> {
    fn new(options: Options, source: Option<S>) -> Self {
        Self {
            uses: Some(1),
            heap: SegmentHeap::new(options),
            source,
            use_on_oom: false,
            is_captured: false,
            is_asleep: false,
            leaving: 0,
        }
    }

    /// Whether its last use has ended, so that its memory can be given back.
    pub(crate) fn is_freeable(&self) -> bool {
        self.uses == Some(0)
    }

    /// Whether its free memory serves others in need.
    pub(crate) fn lends(&self) -> bool {
        self.use_on_oom && !self.is_captured && !self.is_asleep && !self.is_freeable()
    }

    /// Whether nobody uses it and it has no memory, not even on its way out.
    fn is_over(&self) -> bool {
        self.is_freeable() && self.leaving == 0 && self.heap.is_empty()
    }
}

/// A segment that was taken out of a pool, which stays until [`PoolTable::given_back`] or [`PoolTable::put_back`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the memory is to be given back"]
pub(crate) struct TakenSegment {
    pub(crate) id: MempoolId,
    pub(crate) segment: Segment,
}

/// All private pools of a device by name, with PyTorch's rules.
#[derive(Debug)]
pub(crate) struct PoolTable<S> {
    options: Options,
    pools: BTreeMap<MempoolId, Pool<S>>,
    routes: Arc<Routes>,
}

impl<S> PoolTable<S> {
    pub(crate) fn new(options: Options) -> Self {
        Self { options, pools: BTreeMap::new(), routes: Arc::default() }
    }

    pub(crate) fn options(&self) -> Options {
        self.options
    }

    /// The options that hold from here on, for all pools.
    pub(crate) fn set_options(&mut self, options: Options) {
        self.options = options;
        self.pools.values_mut().for_each(|pool| pool.heap.options = options);
    }

    /// Makes the pool, with another source of segments if there is one, or adds a use to it.
    /// [`PoolError::NoPool`]; [`PoolError::SourceIsSet`] if it exists and a source is passed; [`PoolError::Released`].
    pub(crate) fn create_or_incref(&mut self, id: MempoolId, source: Option<S>) -> Result<(), PoolError> {
        if id == MempoolId::NONE {
            return Err(PoolError::NoPool);
        }
        match self.pools.get_mut(&id) {
            Some(pool) if pool.is_freeable() => return Err(PoolError::Released { id }),
            Some(_) if source.is_some() => return Err(PoolError::SourceIsSet { id }),
            Some(pool) => pool.uses = Some(pool.uses.unwrap_or(0).saturating_add(1)),
            None => {
                self.pools.insert(id, Pool::new(self.options, source));
            }
        }
        Ok(())
    }

    /// Whether there is a pool, [`MempoolId::NONE`], for all requests that go to no other.
    pub(crate) fn serves_default(&self) -> bool {
        self.pools.get(&MempoolId::NONE).is_some_and(|pool| !pool.is_freeable())
    }

    /// Has there be that pool, which nobody else can release, or no more; whether that changes anything.
    pub(crate) fn serve_default(&mut self, serves: bool) -> bool {
        let changes = self.serves_default() != serves;
        if changes {
            let pool = self.pools.entry(MempoolId::NONE).or_insert_with(|| Pool::new(self.options, None));
            pool.uses = Some(u64::from(serves));
        }
        changes
    }

    /// From here on allocations that the filter accepts go to the pool, which is made if there is none and has one use more.
    /// [`PoolTable::end_allocate`] ends the first, [`PoolTable::release_pool`] the second. [`PoolError::NoPool`],
    /// [`PoolError::AlreadyRouted`], but for a tag's own pool, which has a route for each scope; [`PoolError::Released`].
    pub(crate) fn begin_allocate(&mut self, id: MempoolId, filter: Filter) -> Result<(), PoolError> {
        if self.routes.has(id) && !id.is_tag_s_own() {
            return Err(PoolError::AlreadyRouted { id });
        }
        self.create_or_incref(id, None)?;
        Arc::make_mut(&mut self.routes).0.push((id, Arc::new(filter)));
        Ok(())
    }

    /// Ends a route, the one with this filter if it is named. Its filter, to be dropped where no lock is held. [`PoolError::NotRouted`].
    pub(crate) fn end_allocate(
        &mut self,
        id: MempoolId,
        filter: Option<&Filter>,
    ) -> Result<Arc<Filter>, PoolError> {
        let is_it = |of: &Filter| filter.is_none_or(|filter| Arc::ptr_eq(&of.0, &filter.0));
        let place = self.routes.0.iter().position(|(routed, of)| *routed == id && is_it(of));
        let place = place.ok_or(PoolError::NotRouted { id })?;
        Ok(Arc::make_mut(&mut self.routes).0.remove(place).1)
    }

    pub(crate) fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// Ends one use of the pool. The last one ends its route, if it has one still: its filter, to be dropped where no lock is held.
    /// [`PoolError::Unknown`], [`PoolError::Released`].
    pub(crate) fn release_pool(&mut self, id: MempoolId) -> Result<Option<Arc<Filter>>, PoolError> {
        let pool = self.in_use(id)?;
        pool.uses = Some(pool.uses.map_or(0, |uses| uses - 1));
        Ok(if pool.is_freeable() { self.end_allocate(id, None).ok() } else { None })
    }

    /// A free block of one of the pools that lend, for a request of none. The block stays that pool's.
    pub(crate) fn allocate_on_oom(&mut self, stream: u64, bytes: u64) -> Option<(MempoolId, Block)> {
        let mut lending = self.pools.iter_mut().filter(|(_, pool)| pool.lends());
        lending.find_map(|(&id, pool)| match pool.heap.allocate(stream, bytes) {
            Some(Allocation::Hit(block)) => Some((id, block)),
            _ => None,
        })
    }

    /// A pool, in use or not. [`PoolError::Unknown`].
    pub(crate) fn get(&self, id: MempoolId) -> Result<&Pool<S>, PoolError> {
        self.pools.get(&id).ok_or(PoolError::Unknown { id })
    }

    pub(crate) fn get_mut(&mut self, id: MempoolId) -> Result<&mut Pool<S>, PoolError> {
        self.pools.get_mut(&id).ok_or(PoolError::Unknown { id })
    }

    /// A private pool in use. [`PoolError::Unknown`], [`PoolError::Released`].
    pub(crate) fn in_use(&mut self, id: MempoolId) -> Result<&mut Pool<S>, PoolError> {
        let named = self.pools.get_mut(&id).filter(|_| id != MempoolId::NONE);
        let pool = named.ok_or(PoolError::Unknown { id })?;
        if pool.is_freeable() { Err(PoolError::Released { id }) } else { Ok(pool) }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (MempoolId, &Pool<S>)> {
        self.pools.iter().map(|(&id, pool)| (id, pool))
    }

    /// Takes the wholly free segments out of one pool, or for [`MempoolId::NONE`] out of all: pools whose last use has ended, tags' own pools and
    /// the default one; nothing of others. Released pools without segments are forgotten, and come back to be dropped.
    /// Complete first what other streams are done with: what is pending stays.
    pub(crate) fn take_cached(&mut self, id: MempoolId) -> (Vec<TakenSegment>, Vec<Pool<S>>) {
        let mut taken = Vec::new();
        let freeable = |of: MempoolId, pool: &Pool<S>| {
            // A tag's own pool is ordinary memory like the default one.
            let is_ordinary = of == MempoolId::NONE || of.is_tag_s_own() && !pool.is_captured;
            (pool.is_freeable() || is_ordinary) && !pool.is_asleep && (id == MempoolId::NONE || id == of)
        };
        for (&of, pool) in self.pools.iter_mut().filter(|(of, pool)| freeable(**of, pool)) {
            let segments = pool.heap.release_cached();
            pool.leaving += segments.len();
            taken.extend(segments.into_iter().map(|segment| TakenSegment { id: of, segment }));
        }
        let over: Vec<MempoolId> =
            self.pools.iter().filter(|(_, pool)| pool.is_over()).map(|(&of, _)| of).collect();
        let over = over.into_iter().filter(|&of| id == MempoolId::NONE || id == of);
        (taken, over.filter_map(|of| self.pools.remove(&of)).collect())
    }

    /// Takes segments out of a pool, in use or not, that are too large to be cut for a request. None of one that is not there.
    pub(crate) fn take_available(&mut self, id: MempoolId, wanted: &SegmentRequest) -> Vec<TakenSegment> {
        let Some(pool) = self.pools.get_mut(&id).filter(|pool| !pool.is_asleep) else { return Vec::new() };
        let segments = pool.heap.release_available(wanted);
        pool.leaving += segments.len();
        segments.into_iter().map(|segment| TakenSegment { id, segment }).collect()
    }

    /// A segment has left. A released pool is forgotten with its last one, and comes back to be dropped.
    pub(crate) fn given_back(&mut self, taken: &TakenSegment) -> Option<Pool<S>> {
        let pool = self.pools.get_mut(&taken.id)?;
        pool.leaving = pool.leaving.saturating_sub(1);
        if pool.is_over() { self.pools.remove(&taken.id) } else { None }
    }

    /// Puts a segment back that stays. It can be taken again. [`PoolError::Unknown`] if the pool was told already that all its
    /// segments went; [`PoolError::Overlap`] if its addresses have become another segment's.
    pub(crate) fn put_back(&mut self, taken: &TakenSegment) -> Result<(), PoolError> {
        let pool = self.get_mut(taken.id)?;
        pool.leaving = pool.leaving.saturating_sub(1);
        pool.heap.put_back(&taken.segment).map(drop)
    }
}
