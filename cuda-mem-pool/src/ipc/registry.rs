//! The resources of this process by UUID, so that a pool that arrives twice is mapped once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use uuid::Uuid;

use crate::error::{Error, Result};

/// A resource that can be found by its UUID.
pub(crate) trait Registered: Sized {
    /// What a handle shares with its clones.
    type Inner: Send + Sync + 'static;
    /// What the kind is called.
    const KIND: &'static str;

    /// The handle to what is still alive.
    fn upgrade(inner: &Weak<Self::Inner>) -> Option<Self>;
    /// What to remember of a handle.
    fn downgrade(&self) -> Weak<Self::Inner>;
    /// Has it go by a UUID from now on, unless it goes by another one.
    fn take_uuid(&self, uuid: Uuid) -> Result<()>;
    /// The entry of this kind, if the entry is of this kind.
    fn entry(entry: &Entry) -> Option<&Weak<Self::Inner>>;
    /// Makes an entry.
    fn into_entry(inner: Weak<Self::Inner>) -> Entry;
}

/// One registered resource, which the registry does not keep alive.
pub(crate) enum Entry {
    Device(Weak<crate::driver_pool::DeviceInner>),
    Pinned(Weak<crate::driver_pool::PinnedInner>),
}

impl Entry {
    fn kind(&self) -> &'static str {
        match self {
            Self::Device(_) => "DeviceMemoryResource",
            Self::Pinned(_) => "PinnedMemoryResource",
        }
    }

    fn is_alive(&self) -> bool {
        match self {
            Self::Device(inner) => inner.strong_count() > 0,
            Self::Pinned(inner) => inner.strong_count() > 0,
        }
    }
}

/// The registry of the process.
pub(crate) struct Registry;

static RESOURCES: Mutex<Option<HashMap<Uuid, Entry>>> = Mutex::new(None);

impl Registry {
    /// The resource that is registered under `uuid`; `resource` itself if none is.
    pub(crate) fn register<R: Registered>(uuid: Uuid, resource: R) -> Result<R> {
        refuse_forked()?;
        let mut resources = lock();
        let map = resources.get_or_insert_default();
        // The dead go when somebody comes: a process that imports and drops pools for ever keeps no list of them.
        map.retain(|_, entry| entry.is_alive());
        if let Some(entry) = map.get(&uuid)
            && let Some(known) = find::<R>(uuid, entry)?
        {
            drop(resources);
            return Ok(known);
        }
        resource.take_uuid(uuid)?;
        map.insert(uuid, R::into_entry(resource.downgrade()));
        Ok(resource)
    }

    /// The resource that is registered under `uuid`.
    pub(crate) fn find<R: Registered>(uuid: Uuid) -> Result<R> {
        refuse_forked()?;
        let resources = lock();
        let entry = resources.as_ref().and_then(|map| map.get(&uuid));
        let found = entry.map_or(Ok(None), |entry| find(uuid, entry))?;
        found.ok_or(Error::NotRegistered { uuid })
    }
}

fn find<R: Registered>(uuid: Uuid, entry: &Entry) -> Result<Option<R>> {
    match R::entry(entry) {
        Some(inner) => Ok(R::upgrade(inner)),
        None if entry.is_alive() => Err(Error::OtherKind { uuid, found: entry.kind(), asked: R::KIND }),
        None => Ok(None),
    }
}

/// Before the lock, which a thread of the parent's may have held; and what is behind it is the parent's.
fn refuse_forked() -> Result<()> {
    if cuda_mem_core::forked() { Err(cuda_mem_core::Error::Forked.into()) } else { Ok(()) }
}

fn lock() -> MutexGuard<'static, Option<HashMap<Uuid, Entry>>> {
    RESOURCES.lock().unwrap_or_else(PoisonError::into_inner)
}
