//! Stream-ordered allocation.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use cuda_mem_sys::{CUdeviceptr, CUgraphNodeType, CUmemoryPool, CUresult, CUstream};

use super::id_of;
use crate::call::Call;
use crate::memory::blocks::Kind;
use crate::memory::misuse::Act;
use crate::memory::pool_state::{PoolRequest, Taken};
use crate::memory::pools::{Freed, PoolId};
use crate::memory::vmm::Location;
use crate::runtime::op::{Op, Outcome, Run};

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// How long an allocation that waits for other streams sleeps between two looks.
const PAUSE: Duration = Duration::from_micros(50);

pub(crate) fn cuMemAllocAsync(
    call: &Call<'_>,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Outcome<()> {
    let device = call.stream(stream)?.context.device;
    let pool = call.memory().lock().current_pool(Location::Device(device), false);
    allocate(call, dptr, bytes, pool, stream)
}

pub(crate) fn cuMemAllocFromPoolAsync(
    call: &Call<'_>,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Outcome<()> {
    allocate(call, dptr, bytes, id_of(pool), stream)
}

fn allocate(
    call: &Call<'_>,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    pool: PoolId,
    stream: CUstream,
) -> Outcome<()> {
    let stream = call.stream(stream)?;
    let (location, is_imported) = {
        let mut state = call.memory().lock();
        let pool = state.pool(pool)?;
        (pool.location, pool.is_imported())
    };
    if dptr.is_null() || is_imported {
        return Err(INVALID_VALUE);
    }
    if call.is_capturing(&stream) {
        // Memory nodes of graphs are not modelled.
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    call.not_capturing()?;
    if bytes == 0 {
        return call.put(dptr, 0);
    }
    let device = match location {
        Location::Device(device) => device,
        Location::Host | Location::Node(_) => stream.context.device,
    };
    let born = Act::by_stream(call, &stream);
    let request = PoolRequest { pool, len: bytes as u64, device, stream: stream.id, born };
    let start = loop {
        match call.memory().lock().take_from_pool(&request)? {
            Taken::Block(start) => break start,
            Taken::After(freed) if freed.iter().all(Freed::is_reached) => {}
            Taken::After(_) => thread::sleep(PAUSE),
        }
        call.memory().lock().pool(pool)?.settle();
    };
    // The allocation has a place in the stream's order: who uses the memory must come after it.
    let op = Op::of(call.function, CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC, Run::Nothing);
    call.enqueue(&stream, op)?;
    call.put(dptr, start)
}

pub(crate) fn cuMemFreeAsync(call: &Call<'_>, dptr: CUdeviceptr, stream: CUstream) -> Outcome<()> {
    let stream = call.stream(stream)?;
    if call.is_capturing(&stream) {
        // A graph may only free what it allocated.
        return Err(INVALID_VALUE);
    }
    call.not_capturing()?;
    if dptr == 0 {
        return Ok(());
    }
    let act = Act::by_stream(call, &stream);
    let kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE;
    let known = call.memory().lock().blocks.starting_at(dptr).map(|block| (block.kind, block.room));
    let op = match known {
        Some((Kind::Pooled(pool), room)) => {
            let freed = Freed::later(stream.id, &act);
            call.memory().lock().give_to_pool(dptr, freed.clone(), &act)?;
            let reached = freed.clone();
            let op = Op::new(call.function, kind, move |driver| {
                driver.memory.lock().pool_memory_is_free(dptr, room, &reached);
                Ok(())
            });
            call.enqueue(&stream, op)?;
            freed.enqueued.store(true, Ordering::Release);
            // One that was destroyed joins nothing any more.
            if let Ok(pool) = call.memory().lock().pool(pool) {
                pool.merge(dptr);
            }
            return Ok(());
        }
        // Memory from cuMemAlloc may be freed in a stream's order, too.
        Some((Kind::Device, _)) => {
            let block = call.memory().lock().retire(dptr, &act)?;
            Op::new(call.function, kind, move |driver| {
                driver.memory.lock().give_back_unshared(&block);
                Ok(())
            })
        }
        _ => {
            let mut state = call.memory().lock();
            return state.give_to_pool(dptr, Freed::now(stream.id, &act), &act);
        }
    };
    call.enqueue(&stream, op)
}

/// Frees a block of a pool after a wait: every later work comes after it.
pub(crate) fn free_now(call: &Call<'_>, dptr: CUdeviceptr, act: &Act) -> Outcome<()> {
    let mut state = call.memory().lock();
    let room = state.blocks.starting_at(dptr).map_or(0, |block| block.room);
    let freed = Freed::now(0, act);
    state.give_to_pool(dptr, freed.clone(), act)?;
    state.pool_memory_is_free(dptr, room, &freed);
    Ok(())
}
