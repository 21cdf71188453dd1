//! What pools that were released had goes back to where it came from.

use std::collections::HashMap;
use std::hint;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_mem_core::{Stream, StreamId, Uses};

use super::State;
use super::allocate::pool_of;
use super::streams::Known;
use crate::caching::owner::{End, Served};
use crate::caching::shared::{Shared, wait_for};
use crate::caching::slot::shown_handle;
use crate::error::{Error, Result};
use crate::history::Event;
use crate::mempool_id::MempoolId;
use crate::primitive::lock;
use crate::resource::RawResource;
use crate::segments::{FreeSegment, PoolError, SegmentKind, TakenSegment};
use crate::snapshot::{Action, Frames};

/// A segment that was taken out of its pool, which is not forgotten while it is out, and the streams neither.
#[derive(Debug)]
pub(super) struct Leaving {
    taken: TakenSegment<Arc<dyn RawResource>>,
    captured: bool,
    /// The stream of its blocks.
    owner: Option<Stream>,
    /// The stack of the request that it was made for.
    maker: Option<Frames>,
}

/// Within so long an idle stream comes to an event, which is what some streams have to be asked by.
const REACHED: Duration = Duration::from_micros(50);

/// Whether to wait on the host for work that may use a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    None,
    Wait,
}

impl Shared {
    /// Gives the segments back that nothing is in and nothing uses, of one released pool or, for [`MempoolId::NONE`], of
    /// all; how many bytes.
    pub(super) fn reclaim(&self, id: MempoolId, patience: Patience) -> Result<usize> {
        let mut state = lock(&self.private.state);
        // Also without memory: a pool that was released keeps its source until it is forgotten.
        if state.pools.iter().next().is_none() {
            return Ok(0);
        }
        // Kept until the lock is gone: the last handle to an upstream is somebody else's code.
        let upstreams: Vec<_> = state.pools.iter().filter_map(|(_, pool)| pool.source().cloned()).collect();
        let taken = state.pools.take_cached(id).into_iter();
        let leaving = taken.map(|taken| state.leaving(taken)).collect();
        drop(state);
        let released = self.give_back(leaving, patience);
        drop(upstreams);
        released
    }

    /// Gives segments back. What is used yet, or is not taken, is put back.
    pub(super) fn give_back(&self, leaving: Vec<Leaving>, patience: Patience) -> Result<usize> {
        let users: Vec<_> = leaving.iter().map(|leaving| self.users(leaving, patience)).collect();
        let mut streams = Asked::new(patience, &users);
        let (mut bytes, mut result) = (0usize, Ok(()));
        for (leaving, users) in leaving.into_iter().zip(&users) {
            let FreeSegment { address, bytes: size, kind, .. } = leaving.taken.segment;
            // Of another thread's default stream nothing can be asked.
            let mut is_quiet = |user| self.private.streams.has_ended(user) || streams.is_quiet(user);
            let quiet = !users.is_empty() && users.iter().all(&mut is_quiet);
            let refusal = if quiet { self.private.memory.release(address).err() } else { None };
            if !quiet || refusal.is_some() {
                let kept = lock(&self.private.state).put_back(leaving).map_err(Error::Pool);
                result = result.and(refusal.map_or(Ok(()), |error| Err(error.into()))).and(kept);
                continue;
            }
            self.unclaim(size as usize);
            self.count_segment(kind, size, false);
            let (pool, stream) = (leaving.taken.id, leaving.owner.as_ref().map_or(0, shown_handle));
            let gone = Event { action: Action::SegmentFree, address, size, stream, pool };
            self.tell_segment(gone, leaving.maker);
            lock(&self.private.state).pools.given_back(&leaving.taken);
            bytes = bytes.saturating_add(size as usize);
        }
        let forgotten = lock(&self.private.state).forget();
        drop((forgotten, streams, users));
        if bytes > 0 {
            self.let_go_of_left();
        }
        result.map(|()| bytes)
    }

    /// The streams whose work may use a segment. A graph may have been launched on any. None if it was launched on one that has ended and
    /// may run yet.
    fn users(&self, leaving: &Leaving, patience: Patience) -> Vec<Stream> {
        let mut users: Vec<Stream> = leaving.owner.iter().cloned().collect();
        if leaving.captured {
            users.extend(self.private.streams.all());
            for slot in self.slots.iter() {
                let is_done = match slot.owner.served() {
                    Served::By(stream) => {
                        users.push(stream);
                        true
                    }
                    Served::Nobody(End::Done) => true,
                    Served::Nobody(End::At(point)) if patience == Patience::Wait => {
                        point.synchronize().is_ok()
                    }
                    Served::Nobody(End::At(point)) => point.is_complete().unwrap_or(false),
                    Served::Nobody(End::Unknown) => false,
                };
                if !is_done {
                    return Vec::new();
                }
            }
        }
        users
    }

    pub(super) fn count_segment(&self, kind: SegmentKind, bytes: u64, came: bool) {
        let mut counts = lock(&self.counts);
        let pool = pool_of(kind);
        if came {
            counts.segment.increase(pool, 1);
            counts.reserved_bytes.increase(pool, bytes);
            counts.num_device_alloc += 1;
        } else {
            counts.segment.decrease(pool, 1);
            counts.reserved_bytes.decrease(pool, bytes);
            counts.num_device_free += 1;
        }
    }
}

/// Streams that are asked whether they run nothing, each once. Not by themselves, where a capture may begin meanwhile, which the
/// question would end. Of one that captures nothing can be said.
#[derive(Debug)]
struct Asked {
    patience: Patience,
    /// What they were given so far, of those that nobody waits for.
    given: HashMap<StreamId, Uses>,
    until: Instant,
    quiet: HashMap<StreamId, bool>,
}

impl Asked {
    fn new(patience: Patience, users: &[Vec<Stream>]) -> Self {
        let mut given = HashMap::<StreamId, Uses>::new();
        for user in users.iter().flatten().filter(|_| patience == Patience::None) {
            given.entry(user.id()).or_insert_with(|| {
                let mut uses = Uses::new();
                // The point behind them is recorded by the first question, for all streams before any of them is waited for. A
                // stream without an answer is not quiet.
                let _ = uses.record_stream(user).and_then(|()| uses.are_over());
                uses
            });
        }
        Self { patience, given, until: Instant::now() + REACHED, quiet: HashMap::new() }
    }

    fn is_quiet(&mut self, stream: &Stream) -> bool {
        let Self { patience, given, until, quiet } = self;
        *quiet.entry(stream.id()).or_insert_with(|| match patience {
            Patience::None => given.get_mut(&stream.id()).is_some_and(|given| are_over(given, *until)),
            Patience::Wait => wait_for(stream).is_ok(),
        })
    }
}

/// Whether uses are over, as soon as that is known of idle streams.
fn are_over(uses: &mut Uses, until: Instant) -> bool {
    if uses.is_empty() {
        // Its stream could not be entered.
        return false;
    }
    loop {
        match uses.are_over() {
            Ok(false) if Instant::now() < until => hint::spin_loop(),
            answer => return answer.unwrap_or(false),
        }
    }
}

impl State {
    /// From here on its address may become another segment's.
    pub(super) fn leaving(&mut self, taken: TakenSegment<Arc<dyn RawResource>>) -> Leaving {
        let captured = self.is_captured(taken.id);
        let owner = self.streams.get(taken.segment.stream);
        let maker = self.makers.remove(&taken.segment.address);
        Leaving { taken, captured, owner, maker }
    }

    fn put_back(&mut self, leaving: Leaving) -> std::result::Result<(), PoolError> {
        self.pools.put_back(&leaving.taken)?;
        // Nobody but who took it may have had its stream.
        if let Some(owner) = &leaving.owner {
            self.streams.keep(owner);
        }
        if let Some(maker) = leaving.maker {
            self.makers.insert(leaving.taken.segment.address, maker);
        }
        Ok(())
    }

    /// Forgets the notes of pools that are no more, and the streams when there are none: to be dropped without the lock. A graph may
    /// run on any of the streams while its pool is there, which it is until its last segment has gone.
    fn forget(&mut self) -> (Vec<super::Notes>, Vec<Known>) {
        let gone: Vec<MempoolId> =
            self.notes.keys().copied().filter(|id| self.pools.get(*id).is_err()).collect();
        let notes = gone.into_iter().filter_map(|id| self.notes.remove(&id)).collect();
        let none = self.pools.iter().next().is_none();
        (notes, self.streams.take(|_| none))
    }
}
