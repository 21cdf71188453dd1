//! Which backend serves which kind of device.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use cuda_mem_pool::cuda_mem_core::Device;
use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;

use super::mempool::{MempoolAllocator, SymmetricMempool};
use super::{
    Allocated, DeviceType, Error, NativeBackend, Result, SymmetricBackend, SymmetricBuffer, SymmetricMemory,
};

/// The backends of a program, by device type and name, one of them chosen for each type. Clones are handles to the same.
///
/// A program uses [`Backends::global`]; a value of one's own starts empty.
///
/// ```
/// use cuda_mem_ipc::symmetric::{Backends, DeviceType, Error};
///
/// let backends = Backends::global();
/// assert_eq!(backends.names(DeviceType::CUDA), ["NATIVE"]);
/// let unknown = backends.set_backend(DeviceType::CUDA, "MPI");
/// assert!(matches!(unknown, Err(Error::UnknownBackend { .. })));
/// backends.get_mempool_allocator(DeviceType::CUDA)?; // nobody had to register it
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Backends {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
pub(super) struct Inner {
    types: BTreeMap<DeviceType, Registered>,
    mempools: BTreeMap<DeviceType, Arc<dyn MempoolAllocator>>,
    persistent: BTreeMap<u64, Persistent>,
}

#[derive(Default)]
struct Registered {
    backends: Vec<Arc<dyn SymmetricBackend>>,
    chosen: usize,
    is_used: bool,
}

/// What an id stands for.
#[derive(Default)]
struct Persistent {
    /// None before it was made.
    kept: Option<Kept>,
    /// Whoever has it, or is about to, keeps this.
    alive: Arc<()>,
}

/// An allocation whose address is kept.
#[derive(Clone)]
struct Kept {
    /// Another one of its name may be in its place by now.
    backend: Weak<dyn SymmetricBackend>,
    allocated: Allocated,
    size: usize,
    device: Device,
    group: Option<String>,
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
            let mut inner = backends.lock();
            let registered = Registered { backends: vec![native], ..Registered::default() };
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
    /// [`Error::BackendExists`] for a name that is there and has not ended.
    pub fn register(&self, device_type: DeviceType, backend: Arc<dyn SymmetricBackend>) -> Result<()> {
        let ended = self.ended(device_type, backend.name());
        let mut inner = self.lock();
        let registered = inner.types.entry(device_type).or_default();
        let Some(known) = registered.backends.iter_mut().find(|known| known.name() == backend.name()) else {
            registered.backends.push(backend);
            return Ok(());
        };
        if !ended.is_some_and(|ended| Arc::ptr_eq(&ended, known)) {
            return Err(Error::BackendExists { device_type, name: backend.name().to_owned() });
        }
        let before = std::mem::replace(known, backend);
        drop(inner);
        // It may be its end, which is the library's.
        drop(before);
        Ok(())
    }

    /// The backend of that name, if it has ended, which it is not asked under the lock.
    fn ended(&self, device_type: DeviceType, name: &str) -> Option<Arc<dyn SymmetricBackend>> {
        let inner = self.lock();
        let known = inner.types.get(&device_type)?.backends.iter().find(|known| known.name() == name)?;
        let known = Arc::clone(known);
        drop(inner);
        known.has_ended().then_some(known)
    }

    /// The names of a device type's backends.
    #[must_use]
    pub fn names(&self, device_type: DeviceType) -> Vec<String> {
        self.lock().types.get(&device_type).map_or_else(Vec::new, Registered::names)
    }

    /// Chooses a backend by its name, before the first use.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownBackend`]; [`Error::BackendInUse`] once [`get_backend`](Self::get_backend) was called, by whomever.
    pub fn set_backend(&self, device_type: DeviceType, name: &str) -> Result<()> {
        let mut inner = self.lock();
        let known = inner.types.get(&device_type).map_or_else(Vec::new, Registered::names);
        let found = inner.types.get_mut(&device_type).and_then(|registered| {
            let index = registered.backends.iter().position(|backend| backend.name() == name)?;
            Some((registered, index))
        });
        let Some((registered, index)) = found else {
            return Err(Error::UnknownBackend { device_type, name: name.to_owned(), known });
        };
        if registered.is_used && registered.chosen != index {
            let used = known.get(registered.chosen).cloned().unwrap_or_default();
            return Err(Error::BackendInUse { device_type, used });
        }
        registered.chosen = index;
        Ok(())
    }

    /// The chosen backend, which stays the chosen one from here on.
    ///
    /// # Errors
    ///
    /// [`Error::NoBackend`], which names the device type.
    pub fn get_backend(&self, device_type: DeviceType) -> Result<Arc<dyn SymmetricBackend>> {
        let mut inner = self.lock();
        let none = || Error::NoBackend { device_type };
        let registered = inner.types.get_mut(&device_type).ok_or_else(none)?;
        let backend = registered.backends.get(registered.chosen).ok_or_else(none)?;
        registered.is_used = true;
        Ok(Arc::clone(backend))
    }

    /// Symmetric memory of CUDA's chosen backend. What is in it is undefined.
    ///
    /// # Errors
    ///
    /// Those of [`get_backend`](Self::get_backend) and [`SymmetricBackend::alloc`].
    pub fn empty(&self, size: usize, device: Device, group: Option<&str>) -> Result<SymmetricBuffer> {
        let backend = self.get_backend(DeviceType::CUDA)?;
        let allocated = backend.alloc(size, device, group)?;
        Ok(SymmetricBuffer::new(backend, allocated, size, None))
    }

    /// As [`empty`](Self::empty), at the address that the id had before, whose memory is kept as long as the backend has it: with its
    /// group it goes, or when it is freed by its address, and the id has new memory then.
    ///
    /// # Errors
    ///
    /// [`Error::PersistentAlive`] while the one before lives, or another thread makes it, [`Error::PersistentDiffers`] for another size,
    /// device or group; those of [`empty`](Self::empty).
    pub fn empty_persistent(
        &self,
        size: usize,
        device: Device,
        group: Option<&str>,
        id: u64,
    ) -> Result<SymmetricBuffer> {
        let backend = self.get_backend(DeviceType::CUDA)?;
        let (kept, lease) = {
            let mut inner = self.lock();
            let persistent = inner.persistent.entry(id).or_default();
            if Arc::strong_count(&persistent.alive) > 1 {
                return Err(Error::PersistentAlive { id });
            }
            (persistent.kept.clone(), Arc::clone(&persistent.alive))
        };
        // From here on the id is this thread's, and others go on: the backend may wait for other ranks.
        let is_there = |kept: &Kept| {
            let is_of_it = kept.backend.upgrade().is_some_and(|of| Arc::ptr_eq(&of, &backend));
            is_of_it && backend.find(kept.allocated.address).is_ok_and(|found| found == kept.allocated)
        };
        let allocated = match kept.filter(is_there) {
            Some(kept) => {
                let (was, asked) =
                    (told(kept.size, kept.device, kept.group.as_deref()), told(size, device, group));
                if kept.device != device || was != asked {
                    return Err(Error::PersistentDiffers { id, was, asked });
                }
                kept.allocated
            }
            None => {
                let allocated = backend.alloc(size, device, group)?;
                let group = group.map(str::to_owned);
                let kept = Kept { backend: Arc::downgrade(&backend), allocated, size, device, group };
                if let Some(persistent) = self.lock().persistent.get_mut(&id) {
                    persistent.kept = Some(kept);
                }
                allocated
            }
        };
        Ok(SymmetricBuffer::new(backend, allocated, size, Some(Box::new(lease))))
    }

    /// Brings the ranks together over memory that came without an owner, as from [`cuda_symm_alloc`](super::cuda_symm_alloc).
    ///
    /// # Errors
    ///
    /// Those of [`get_backend`](Self::get_backend) and [`SymmetricBackend::rendezvous`].
    pub fn rendezvous(&self, address: CUdeviceptr, group: Option<&str>) -> Result<Arc<dyn SymmetricMemory>> {
        self.get_backend(DeviceType::CUDA)?.rendezvous(address, group)
    }

    /// Adds the allocator that memory pools of a device type are made over.
    ///
    /// # Errors
    ///
    /// [`Error::MempoolAllocatorExists`].
    pub fn register_mempool_allocator(
        &self,
        device_type: DeviceType,
        allocator: Arc<dyn MempoolAllocator>,
    ) -> Result<()> {
        let mut inner = self.lock();
        if inner.mempools.contains_key(&device_type) {
            return Err(Error::MempoolAllocatorExists { device_type });
        }
        inner.mempools.insert(device_type, allocator);
        Ok(())
    }

    /// The allocator that memory pools of a device type are made over.
    ///
    /// # Errors
    ///
    /// [`Error::NoMempoolAllocator`], which names the device type.
    pub fn get_mempool_allocator(&self, device_type: DeviceType) -> Result<Arc<dyn MempoolAllocator>> {
        let inner = self.lock();
        let known = || inner.mempools.keys().copied().collect();
        let found = inner.mempools.get(&device_type).cloned();
        found.ok_or_else(|| Error::NoMempoolAllocator { device_type, known: known() })
    }

    pub(super) fn downgrade(&self) -> Weak<Mutex<Inner>> {
        Arc::downgrade(&self.inner)
    }

    pub(super) fn upgrade(inner: &Weak<Mutex<Inner>>) -> Option<Self> {
        inner.upgrade().map(|inner| Self { inner })
    }

    /// Locks, also after a panic elsewhere: what is behind the lock is right after each statement.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registered {
    fn names(&self) -> Vec<String> {
        self.backends.iter().map(|backend| backend.name().to_owned()).collect()
    }
}

/// A request in words.
fn told(size: usize, device: Device, group: Option<&str>) -> String {
    format!("{size} bytes on device {} for {}", device.as_raw(), group.unwrap_or("no group"))
}

impl fmt::Debug for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        let names = inner.types.iter().map(|(device_type, registered)| (device_type, registered.names()));
        f.debug_map().entries(names).finish()
    }
}
