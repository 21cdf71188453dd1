//! Pools within the driver's memory: where their segments come from, and the blocks that the program holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_mem_sys::CUresult;

use super::blocks::{Access, Block, Devices, Kind};
use super::misuse::Act;
use super::pools::{Asker, BLOCK, Freed, Level, Pool, PoolId, SEGMENT};
use super::space::LARGE_PAGE;
use super::vmm::Location;
use super::{Memory, State};
use crate::runtime::op::Outcome;

const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

/// A block of a pool that somebody asks for.
#[derive(Debug)]
pub(crate) struct PoolRequest {
    pub(crate) pool: PoolId,
    pub(crate) len: u64,
    pub(crate) device: usize,
    /// The stream that the block is asked for on.
    pub(crate) stream: u64,
    /// The allocation in that stream's order.
    pub(crate) born: Act,
}

/// What an allocation got.
#[derive(Debug)]
pub(crate) enum Taken {
    Block(u64),
    /// All fitting memory is waiting for work of other streams: come again after it.
    After(Vec<Freed>),
}

impl Memory {
    /// Gives the memory that pools do not need to keep back to the system, as a synchronisation of the host does.
    pub(crate) fn after_synchronisation(&self) {
        let mut state = self.lock();
        let pools: Vec<(PoolId, u64)> =
            state.pools.iter().map(|(&id, pool)| (id, pool.policy.release_threshold)).collect();
        for (id, threshold) in pools {
            state.shrink_pool(id, threshold);
            state.end_imports(id);
        }
    }
}

impl State {
    /// Adds a pool.
    pub(crate) fn add_pool(&mut self, pool: Pool) -> PoolId {
        let id = PoolId(self.next_number());
        self.pools.insert(id, pool);
        id
    }

    /// The pool of a handle, if the program has not destroyed it.
    pub(crate) fn pool(&mut self, id: PoolId) -> Outcome<&mut Pool> {
        let pool = self.pools.get_mut(&id).filter(|pool| !pool.destroyed);
        pool.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// The pool of a handle, if it is not another process's: those tell nothing and take no settings.
    pub(crate) fn own_pool(&mut self, id: PoolId) -> Outcome<&mut Pool> {
        let pool = self.pool(id)?;
        if pool.is_imported() { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(pool) }
    }

    /// The driver's own pool at a location.
    pub(crate) fn default_pool(&mut self, location: Location, managed: bool) -> PoolId {
        if let Some(&id) = self.default_pools.get(&(location, managed)) {
            return id;
        }
        let mut pool = Pool::new(location, first_access(location, managed));
        pool.managed = managed;
        let id = self.add_pool(pool);
        self.default_pools.insert((location, managed), id);
        id
    }

    /// The pool that allocations at a location come from.
    pub(crate) fn current_pool(&mut self, location: Location, managed: bool) -> PoolId {
        let set = self.current_pools.get(&(location, managed)).copied();
        set.unwrap_or_else(|| self.default_pool(location, managed))
    }

    /// Takes a block out of a pool, which grows if it has to.
    pub(crate) fn take_from_pool(&mut self, request: &PoolRequest) -> Outcome<Taken> {
        let room = request.len.checked_next_multiple_of(BLOCK).ok_or(OUT_OF_MEMORY)?;
        let asker = Asker { stream: request.stream, clock: &request.born.clock };
        let start = match self.pool(request.pool)?.take(room, request.len, &asker) {
            Some(start) => start,
            None => match self.grow_pool(request.pool, room) {
                Ok(()) => self.pool(request.pool)?.take(room, request.len, &asker).ok_or(OUT_OF_MEMORY)?,
                Err(error) => {
                    let pool = self.pool(request.pool)?;
                    if !pool.policy.allow_internal_dependencies {
                        return Err(error);
                    }
                    return pool.awaited(room).map(Taken::After).ok_or(error);
                }
            },
        };
        let access = self.pool(request.pool)?.access;
        let kind = Kind::Pooled(request.pool);
        let block = Block::new(kind, start, request.len, access, request.born.clone());
        self.add_block(Block { room, device: request.device, ..block });
        Ok(Taken::Block(start))
    }

    /// Gives a block back to its pool. It is the stream's business to set the flag of `freed` when it comes to it.
    pub(crate) fn give_to_pool(&mut self, start: u64, freed: Freed, by: &Act) -> Outcome<()> {
        let kind = self.blocks.starting_at(start).map(|block| block.kind);
        let Some(Kind::Pooled(id)) = kind else {
            self.note_unknown_free(start, by);
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        if let Some(block) = self.blocks.remove(start) {
            match self.pools.get_mut(&id) {
                Some(pool) if pool.is_imported() => pool.give_back_imported(start, block.len, freed),
                Some(pool) => pool.give_back(start, block.room, block.len, freed),
                None => {}
            }
            if self.pools.get(&id).is_some_and(|pool| pool.managed) {
                self.advice.forget(start, block.len);
            }
            self.note_free(&block, by);
        }
        Ok(())
    }

    /// Poisons memory whose free has been reached, and ends a destroyed pool with its last block.
    pub(crate) fn pool_memory_is_free(&mut self, start: u64, len: u64, freed: &Freed) {
        // The memory of another process stays what it is.
        if !self.is_imported(start) {
            // Somebody who asked on the same stream may have it already, but has not come to use it; others may have it
            // once the flag is set.
            self.poison(start, len);
        }
        freed.reached.store(true, Ordering::Release);
        let over: Vec<PoolId> = self
            .pools
            .iter()
            .filter(|(_, pool)| pool.destroyed && pool.used.current == 0)
            .map(|(&id, _)| id)
            .collect();
        for id in over {
            self.shrink_pool(id, 0);
            if self.pools.get(&id).is_some_and(|pool| pool.reserved.current == 0) {
                self.pools.remove(&id);
            }
        }
    }

    /// Ends a pool of the program: at once if nothing of it is in use, else with its last block. An imported one is refused before that.
    pub(crate) fn destroy_pool(&mut self, id: PoolId) -> Outcome<()> {
        let pool = self.pool(id)?;
        if pool.made_by.is_none() || (pool.is_imported() && pool.used.current != 0) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        pool.destroyed = true;
        let was_current: Vec<_> = self
            .current_pools
            .iter()
            .filter(|(_, current)| **current == id)
            .map(|(place, _)| *place)
            .collect();
        for place in was_current {
            self.current_pools.remove(&place);
            if !matches!(place.0, Location::Device(_)) {
                // The driver has a device's default pool stand in, wherever the pool was (seen on hardware).
                let stand_in = self.default_pool(Location::Device(0), false);
                self.current_pools.insert(place, stand_in);
            }
        }
        self.shrink_pool(id, 0);
        if self.pools.get(&id).is_some_and(|pool| pool.used.current == 0 && pool.reserved.current == 0) {
            self.pools.remove(&id);
        }
        Ok(())
    }

    /// Gives free segments of a pool back to the system until no more than `keep` bytes are reserved.
    pub(crate) fn shrink_pool(&mut self, id: PoolId, keep: u64) {
        let Some(pool) = self.pools.get_mut(&id) else { return };
        let (location, on_host) = (pool.location, pool.access.host);
        for (start, len) in pool.shrink(keep) {
            if on_host {
                self.space.hide(start, len);
            }
            if let Some(file) = self.pools.get_mut(&id).and_then(|pool| pool.file.as_mut()) {
                self.space.detach(start, len);
                file.give_back_segment(start, len);
            }
            self.space.give_back(start, len);
            self.refund(location, len);
        }
    }

    /// Adds a segment to a pool for a block of `room` bytes.
    fn grow_pool(&mut self, id: PoolId, room: u64) -> Outcome<()> {
        let pool = self.pool(id)?;
        let (location, on_host, reserved) = (pool.location, pool.access.host, pool.reserved.current);
        let limit = if pool.max_size == 0 { u64::MAX } else { pool.max_size };
        let tight = room.checked_next_multiple_of(LARGE_PAGE).ok_or(OUT_OF_MEMORY)?;
        let usual = room.checked_next_multiple_of(SEGMENT).ok_or(OUT_OF_MEMORY)?;
        let wanted = [usual, tight].into_iter().filter(|&len| len <= limit.saturating_sub(reserved));
        let len = self.first_charged(location, wanted)?;
        let file = self.pools.get_mut(&id).and_then(|pool| pool.file.as_mut());
        let taken = self.space.take(len, LARGE_PAGE, None).and_then(|start| {
            let shown = match file {
                Some(file) => file.attach_segment(&self.space, start, len, on_host),
                None if on_host => self.space.show(start, len, true),
                None => Ok(()),
            };
            shown.inspect_err(|_| self.space.give_back(start, len))?;
            Ok(start)
        });
        let Ok(start) = taken else {
            self.refund(location, len);
            return Err(OUT_OF_MEMORY);
        };
        self.poison(start, len);
        self.pool(id)?.grow(start, len);
        Ok(())
    }

    /// Charges the first of some lengths that the location has room for, after emptying all pools there if need be.
    fn first_charged(&mut self, location: Location, wanted: impl Iterator<Item = u64>) -> Outcome<u64> {
        let wanted: Vec<u64> = wanted.collect();
        for attempt in 0..2 {
            if let Some(&len) = wanted.iter().find(|&&len| self.charge(location, len).is_ok()) {
                return Ok(len);
            }
            if attempt == 0 {
                let there = |pool: &Pool| pool.location == location;
                let pools: Vec<PoolId> =
                    self.pools.iter().filter(|(_, pool)| there(pool)).map(|(&id, _)| id).collect();
                pools.into_iter().for_each(|id| self.shrink_pool(id, 0));
            }
        }
        Err(OUT_OF_MEMORY)
    }

    /// Lets a device read or write a pool's memory, or neither, from now on.
    pub(crate) fn set_pool_access(
        &mut self,
        id: PoolId,
        device: usize,
        read: bool,
        write: bool,
    ) -> Outcome<()> {
        let pool = self.pool(id)?;
        pool.access.read.set(device, read);
        pool.access.write.set(device, write);
        let access = pool.access;
        self.blocks.for_each(|block| {
            if block.kind == Kind::Pooled(id) {
                block.access = access;
            }
        });
        Ok(())
    }
}

/// Who can reach a new pool's memory: its own device, or the host and no device.
pub(crate) fn first_access(location: Location, managed: bool) -> Access {
    match location {
        _ if managed => Access::EVERYBODY,
        Location::Device(device) => Access::only(device),
        Location::Host | Location::Node(_) => {
            Access { read: Devices::NONE, write: Devices::NONE, host: true }
        }
    }
}

impl Freed {
    /// A free that every later work comes after anyway.
    pub(crate) fn now(stream: u64, by: &Act) -> Self {
        let done = || Arc::new(AtomicBool::new(true));
        Self { stream, clock: by.clock.clone(), enqueued: done(), reached: done() }
    }

    /// A free that a stream has yet to come to.
    pub(crate) fn later(stream: u64, by: &Act) -> Self {
        Self { stream, clock: by.clock.clone(), enqueued: Arc::default(), reached: Arc::default() }
    }
}

impl Level {
    /// Begins a new highest value.
    pub(crate) fn reset(&mut self) {
        self.high = self.current;
    }
}
