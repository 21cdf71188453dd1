//! Which backend serves which kind of device.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, TryLockError};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, Driver, forked};
use cuda_mem_ipc::symmetric::{NativeBackend, SymmetricBackend, SymmetricBuffer};

use super::mempool::{MempoolAllocator, SymmetricMempool};
use crate::error::{RegistryError, Result};
use crate::lock::lock;

/// A kind of device, by the name that it has in PyTorch. The [module](super) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceType(pub(super) &'static str);

impl DeviceType {
    /// NVIDIA's GPUs.
    pub const CUDA: Self = Self("cuda");

    /// Another kind.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The backends of a program, by device type and name, one of them chosen for each type. Clones are handles to the same.
///
/// A program uses [`Backends::global`]; a value of one's own starts empty. The [module](super) has an example.
#[derive(Clone, Default)]
pub struct Backends {
    pub(super) inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
pub(super) struct Inner {
    types: BTreeMap<DeviceType, Registered>,
    mempools: BTreeMap<DeviceType, Arc<dyn MempoolAllocator>>,
    /// By id.
    persistent: BTreeMap<u64, Arc<Mutex<Option<Kept>>>>,
}

#[derive(Default)]
struct Registered {
    /// By the name that each had when it was registered. The program's code tells it, and is never called under the lock.
    backends: Vec<(String, Arc<dyn SymmetricBackend>)>,
    chosen: usize,
    is_used: bool,
}

/// An allocation whose address is kept, and what it was asked for as.
struct Kept {
    buffer: Arc<SymmetricBuffer>,
    driver: Driver,
    asked: String,
}

impl Backends {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Those of the program: [`NativeBackend::global`] for CUDA, and the allocator for memory pools over whichever is chosen.
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: LazyLock<Backends> = LazyLock::new(|| {
            let backends = Backends::new();
            let native: Arc<dyn SymmetricBackend> = NativeBackend::global().clone();
            let mempool = SymmetricMempool::new(&backends, DeviceType::CUDA);
            let mut inner = lock(&backends.inner);
            let named = vec![(native.name().to_owned(), native)];
            let registered = Registered { backends: named, ..Registered::default() };
            inner.types.insert(DeviceType::CUDA, registered);
            inner.mempools.insert(DeviceType::CUDA, Arc::new(mempool));
            drop(inner);
            backends
        });
        &GLOBAL
    }

    /// Adds a backend. The first of a device type is chosen until [`set_backend`](Self::set_backend) says otherwise.
    ///
    /// One of a name that is there takes the place of that which [has ended](SymmetricBackend::has_ended), chosen if that was. What came of
    /// the one before stays with it.
    ///
    /// # Errors
    ///
    /// [`RegistryError::BackendExists`] for a name that is there and has not ended.
    pub fn register(
        &self,
        device_type: DeviceType,
        backend: Arc<dyn SymmetricBackend>,
    ) -> Result<(), RegistryError> {
        // Asked without the lock, as is whether one has ended.
        let name = backend.name().to_owned();
        let find = |of: &Registered| of.backends.iter().find(|(known, _)| *known == name).cloned();
        let known = lock_here(&self.inner)?.types.get(&device_type).and_then(find);
        let ended = known.filter(|(_, known)| known.has_ended());
        // What it takes the place of goes after the unlock: that may be its end, which is the library's.
        let mut inner = lock_here(&self.inner)?;
        let backends = &mut inner.types.entry(device_type).or_default().backends;
        match backends.iter_mut().find(|(there, _)| *there == name) {
            None => backends.push((name, backend)),
            Some((_, there)) if ended.as_ref().is_some_and(|(_, ended)| Arc::ptr_eq(ended, there)) => {
                *there = backend;
            }
            Some(_) => return Err(RegistryError::BackendExists { device_type: device_type.0, name }),
        }
        Ok(())
    }

    /// The names of a device type's backends.
    pub fn names(&self, device_type: DeviceType) -> Vec<String> {
        let names = |inner: MutexGuard<'_, Inner>| inner.types.get(&device_type).map(Registered::names);
        lock_here(&self.inner).ok().and_then(names).unwrap_or_default()
    }

    /// Chooses a backend by its name, before the first use.
    ///
    /// # Errors
    ///
    /// [`RegistryError::UnknownBackend`]; [`RegistryError::BackendInUse`] once [`get_backend`](Self::get_backend) was called, by whomever.
    pub fn set_backend(&self, device_type: DeviceType, name: &str) -> Result<(), RegistryError> {
        let mut inner = lock_here(&self.inner)?;
        let known = inner.types.get(&device_type).map_or_else(Vec::new, Registered::names);
        let index = known.iter().position(|known| known == name);
        let Some((registered, index)) = inner.types.get_mut(&device_type).zip(index) else {
            return Err(RegistryError::UnknownBackend {
                device_type: device_type.0,
                name: name.to_owned(),
                known,
            });
        };
        if registered.is_used && registered.chosen != index {
            let used = known.get(registered.chosen).cloned().unwrap_or_default();
            return Err(RegistryError::BackendInUse { device_type: device_type.0, used });
        }
        registered.chosen = index;
        Ok(())
    }

    /// The chosen backend, which stays the chosen one from here on.
    ///
    /// # Errors
    ///
    /// [`RegistryError::NoBackend`].
    pub fn get_backend(&self, device_type: DeviceType) -> Result<Arc<dyn SymmetricBackend>, RegistryError> {
        let mut inner = lock_here(&self.inner)?;
        let none = || RegistryError::NoBackend { device_type: device_type.0 };
        let registered = inner.types.get_mut(&device_type).ok_or_else(none)?;
        let (_, backend) = registered.backends.get(registered.chosen).ok_or_else(none)?;
        registered.is_used = true;
        Ok(Arc::clone(backend))
    }

    /// Symmetric memory of CUDA's chosen backend: [`SymmetricBuffer::new`].
    pub fn empty(&self, size: usize, device: Device, group: Option<&str>) -> Result<SymmetricBuffer> {
        let backend = self.get_backend(DeviceType::CUDA)?;
        Ok(SymmetricBuffer::new(&backend, size, device, group)?)
    }

    /// As [`empty`](Self::empty), at the address that the id had before, whose memory is kept as long as the backend has it: with its
    /// group it goes, and the id has new memory then.
    ///
    /// # Errors
    ///
    /// [`RegistryError::PersistentAlive`] while the one before lives, or another thread makes it, [`RegistryError::PersistentDiffers`] for
    /// another size, device or group; those of [`empty`](Self::empty).
    pub fn empty_persistent(
        &self,
        size: usize,
        device: Device,
        group: Option<&str>,
        id: u64,
    ) -> Result<Arc<SymmetricBuffer>> {
        let backend = self.get_backend(DeviceType::CUDA)?;
        let mut inner = lock_here(&self.inner)?;
        // An id whose making failed is forgotten, unless another thread tries again just now.
        inner.persistent.retain(|_, place| Arc::strong_count(place) > 1 || lock(place).is_some());
        let place = Arc::clone(inner.persistent.entry(id).or_default());
        drop(inner);
        // Held while the buffer is made, since the backend may wait for other ranks; other ids have other locks.
        let mut kept = match place.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(RegistryError::PersistentAlive { id }.into()),
            Err(TryLockError::Poisoned(kept)) => kept.into_inner(),
            Ok(kept) => kept,
        };
        if kept.as_ref().is_some_and(|kept| Arc::strong_count(&kept.buffer) > 1) {
            return Err(RegistryError::PersistentAlive { id }.into());
        }
        let (driver, group_name) = (device.driver(), group.unwrap_or("no group"));
        let asked = format!("{size} bytes on device {} for {group_name}", device.as_raw());
        kept.take_if(|kept| !Arc::ptr_eq(kept.buffer.backend(), &backend) || kept.buffer.is_freed());
        match &*kept {
            Some(kept) if kept.asked == asked => {
                kept.driver.expect_same(driver, "the device")?;
                Ok(Arc::clone(&kept.buffer))
            }
            Some(Kept { asked: was, .. }) => {
                Err(RegistryError::PersistentDiffers { id, was: was.clone(), asked }.into())
            }
            None => {
                let buffer = Arc::new(SymmetricBuffer::new(&backend, size, device, group)?);
                *kept = Some(Kept { buffer: Arc::clone(&buffer), driver, asked });
                Ok(buffer)
            }
        }
    }

    /// Adds the allocator that memory pools of a device type are made over, unless [one is there](RegistryError::MempoolAllocatorExists).
    pub fn register_mempool_allocator(
        &self,
        device_type: DeviceType,
        allocator: Arc<dyn MempoolAllocator>,
    ) -> Result<(), RegistryError> {
        let mut inner = lock_here(&self.inner)?;
        if inner.mempools.contains_key(&device_type) {
            return Err(RegistryError::MempoolAllocatorExists { device_type: device_type.0 });
        }
        inner.mempools.insert(device_type, allocator);
        Ok(())
    }

    /// The allocator that memory pools of a device type are made over, if [there is one](RegistryError::NoMempoolAllocator).
    pub fn get_mempool_allocator(
        &self,
        device_type: DeviceType,
    ) -> Result<Arc<dyn MempoolAllocator>, RegistryError> {
        let inner = lock_here(&self.inner)?;
        let known = || inner.mempools.keys().map(|kind| kind.0).collect();
        let found = inner.mempools.get(&device_type).cloned();
        found.ok_or_else(|| RegistryError::NoMempoolAllocator { device_type: device_type.0, known: known() })
    }
}

/// Locks, but not in a forked child, where a thread of the parent may have the lock.
pub(super) fn lock_here<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, RegistryError> {
    if forked() { Err(RegistryError::Forked) } else { Ok(lock(mutex)) }
}

impl Registered {
    fn names(&self) -> Vec<String> {
        self.backends.iter().map(|(name, _)| name.clone()).collect()
    }
}

impl fmt::Debug for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = lock_here(&self.inner);
        let names = inner.iter().flat_map(|inner| &inner.types).map(|(kind, of)| (kind, of.names()));
        f.debug_map().entries(names).finish()
    }
}
