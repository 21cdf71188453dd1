//! Shares pools with other processes: their descriptors and UUIDs, and the registry that maps an arriving pool once. The
//! `cuda-mem-ipc` crate carries them there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use uuid::Uuid;

use super::pool::DriverPool;
use crate::error::{Error, Result, refuse_forked};

/// Pools by UUID. The registry keeps none alive.
static POOLS: Mutex<Option<HashMap<Uuid, Weak<DriverPool>>>> = Mutex::new(None);

/// Gives the pool that is registered under `uuid`; registers `pool` if none is.
pub(super) fn register(uuid: Uuid, pool: &Arc<DriverPool>) -> Result<Arc<DriverPool>> {
    if !pool.is_ipc_enabled() {
        return Err(Error::NotIpcEnabled);
    }
    refuse_forked()?;
    let mut pools = lock();
    let map = pools.get_or_insert_default();
    // A process that imports and drops pools for ever must not keep a list of them.
    map.retain(|_, known| known.strong_count() > 0);
    if let Some(known) = map.get(&uuid).and_then(Weak::upgrade) {
        drop(pools);
        return of_kind(known, uuid, pool.kind);
    }
    pool.take_uuid(uuid)?;
    map.insert(uuid, Arc::downgrade(pool));
    Ok(Arc::clone(pool))
}

/// The pool that is registered under `uuid`, for a resource of this type.
pub(super) fn find(uuid: Uuid, kind: &'static str) -> Result<Arc<DriverPool>> {
    refuse_forked()?;
    let known = lock().as_ref().and_then(|map| map.get(&uuid)?.upgrade());
    of_kind(known.ok_or(Error::NotRegistered { uuid })?, uuid, kind)
}

fn of_kind(pool: Arc<DriverPool>, uuid: Uuid, asked: &'static str) -> Result<Arc<DriverPool>> {
    let found = pool.kind;
    if found == asked { Ok(pool) } else { Err(Error::OtherKind { uuid, found, asked }) }
}

fn lock() -> MutexGuard<'static, Option<HashMap<Uuid, Weak<DriverPool>>>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the members of resources that other processes can have.
macro_rules! ipc_members {
    () => {
        /// Whether the pool is, or comes from, one that other processes may be given.
        #[must_use]
        pub fn is_ipc_enabled(&self) -> bool {
            self.pool.is_ipc_enabled()
        }

        /// Whether it is a mapping of another process's pool, from which nothing can be allocated here.
        #[must_use]
        pub fn is_mapped(&self) -> bool {
            self.pool.is_mapped()
        }

        /// The name of an IPC-enabled pool, the same in every process that knows it. None for others, and for one that was
        /// imported without it and not registered yet.
        #[must_use]
        pub fn uuid(&self) -> Option<$crate::Uuid> {
            self.pool.uuid()
        }

        /// The descriptor that other processes import the pool from, with its [`uuid`](Self::uuid). It is exported once, and stays
        /// the resource's.
        ///
        /// Wraps [`cuMemPoolExportToShareableHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
        ///
        /// # Errors
        ///
        /// [`Error::NotIpcEnabled`](crate::Error::NotIpcEnabled), [`Error::Mapped`](crate::Error::Mapped) for another process's
        /// pool, or the driver's.
        pub fn allocation_handle(&self) -> $crate::Result<std::os::fd::BorrowedFd<'_>> {
            self.pool.allocation_handle()
        }

        /// Registers this resource under a UUID, and returns the one to use: one that was registered there before and is still
        /// alive, else this one. The registry keeps nothing alive. Makes no driver call.
        ///
        /// # Errors
        ///
        /// [`Error::NotIpcEnabled`](crate::Error::NotIpcEnabled); [`Error::OtherKind`](crate::Error::OtherKind) if a resource of
        /// another kind is registered there; [`Error::OtherUuid`](crate::Error::OtherUuid) if nothing is, and the pool has another UUID;
        /// [`Error::Core`](crate::Error::Core) in a forked child.
        pub fn register(&self, uuid: $crate::Uuid) -> $crate::Result<Self> {
            Ok(Self { pool: $crate::driver_pool::sharing::register(uuid, &self.pool)? })
        }

        /// The resource that is registered under a UUID. Makes no driver call.
        ///
        /// # Errors
        ///
        /// [`Error::NotRegistered`](crate::Error::NotRegistered), [`Error::OtherKind`](crate::Error::OtherKind);
        /// [`Error::Core`](crate::Error::Core) in a forked child.
        pub fn from_registry(uuid: $crate::Uuid) -> $crate::Result<Self> {
            Ok(Self { pool: $crate::driver_pool::sharing::find(uuid, Self::KIND)? })
        }
    };
}

pub(super) use ipc_members;
