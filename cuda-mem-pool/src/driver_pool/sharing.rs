//! Shares pools with other processes: their descriptors and UUIDs, and the registry that maps an arriving pool once. The
//! `cuda-mem-ipc` crate carries them there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use uuid::Uuid;

use super::pool::DriverPool;
use crate::error::{Error, Result, refuse_forked};

/// Pools by UUID. The registry keeps none alive.
static POOLS: Mutex<BTreeMap<Uuid, Weak<DriverPool>>> = Mutex::new(BTreeMap::new());

/// Gives the pool that is registered under `uuid`; registers `pool` if none is.
pub(super) fn register(uuid: Uuid, pool: &Arc<DriverPool>) -> Result<Arc<DriverPool>> {
    if !pool.is_ipc_enabled() {
        return Err(Error::NotIpcEnabled);
    }
    refuse_forked()?;
    let mut pools = lock();
    // A process that imports and drops pools for ever must not keep a list of them.
    pools.retain(|_, known| known.strong_count() > 0);
    if let Some(known) = pools.get(&uuid).and_then(Weak::upgrade) {
        drop(pools);
        return of_kind(known, uuid, pool.kind);
    }
    pool.take_uuid(uuid)?;
    pools.insert(uuid, Arc::downgrade(pool));
    Ok(Arc::clone(pool))
}

/// The pool that is registered under `uuid`, for a resource of this type.
pub(super) fn find(uuid: Uuid, kind: &'static str) -> Result<Arc<DriverPool>> {
    refuse_forked()?;
    let known = lock().get(&uuid).and_then(Weak::upgrade);
    of_kind(known.ok_or(Error::NotRegistered { uuid })?, uuid, kind)
}

fn of_kind(pool: Arc<DriverPool>, uuid: Uuid, asked: &'static str) -> Result<Arc<DriverPool>> {
    let found = pool.kind;
    if found == asked { Ok(pool) } else { Err(Error::OtherKind { uuid, found, asked }) }
}

fn lock() -> MutexGuard<'static, BTreeMap<Uuid, Weak<DriverPool>>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}
