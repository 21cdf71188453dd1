//! A backend that only says what it was asked for.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use cuda_mem_core::Device;
use cuda_mem_torch::cuda_mem_ipc::symmetric::{Allocated, Error, Result, SymmetricBackend, SymmetricMemory};

/// Long enough for whoever does not wait for itself.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Long enough to be no accident, short enough to wait for.
pub(crate) const SOON: Duration = Duration::from_millis(100);

/// What it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Alloc(usize, i32, Option<String>),
    Free(u64),
}

/// What it has allocated: the lowest address that is free comes next.
#[derive(Default)]
struct Memory {
    serial: u64,
    live: BTreeSet<(u64, u64)>,
}

pub(crate) struct Fake {
    name: &'static str,
    calls: Mutex<Vec<Call>>,
    memory: Mutex<Memory>,
    has_ended: AtomicBool,
    on_name: OnceLock<Box<dyn Fn() + Send + Sync>>,
    on_alloc: OnceLock<Box<dyn Fn() -> Result<()> + Send + Sync>>,
    on_free: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Fake {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            calls: Mutex::default(),
            memory: Mutex::default(),
            has_ended: AtomicBool::new(false),
            on_name: OnceLock::new(),
            on_alloc: OnceLock::new(),
            on_free: OnceLock::new(),
        })
    }

    /// It is of no further use from now on.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// What happens in each allocation, before it is made.
    pub(crate) fn on_alloc(&self, on_alloc: impl Fn() -> Result<()> + Send + Sync + 'static) {
        assert!(self.on_alloc.set(Box::new(on_alloc)).is_ok());
    }

    /// What happens in each free, before it is made.
    pub(crate) fn on_free(&self, on_free: impl Fn() + Send + Sync + 'static) {
        assert!(self.on_free.set(Box::new(on_free)).is_ok());
    }

    /// What happens whenever it is asked for its name.
    pub(crate) fn on_name(&self, on_name: impl Fn() + Send + Sync + 'static) {
        assert!(self.on_name.set(Box::new(on_name)).is_ok());
    }

    /// The calls since the last time.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

// SAFETY: its addresses are numbers of its own, which nobody uses as memory.
unsafe impl SymmetricBackend for Fake {
    fn name(&self) -> &str {
        self.on_name.get().into_iter().for_each(|on_name| on_name());
        self.name
    }

    fn alloc(&self, size: usize, device: Device, group: Option<&str>) -> Result<Allocated> {
        self.on_alloc.get().map_or(Ok(()), |on_alloc| on_alloc())?;
        let call = Call::Alloc(size, device.as_raw(), group.map(str::to_owned));
        self.calls.lock().unwrap().push(call);
        let mut memory = self.memory.lock().unwrap();
        let is_taken = |address: &u64| memory.live.iter().any(|(live, _)| live == address);
        let address = (1..).map(|number| 0x1000 * number).find(|address| !is_taken(address)).unwrap();
        memory.serial += 1;
        let allocated = Allocated { address, serial: memory.serial };
        memory.live.insert((allocated.address, allocated.serial));
        Ok(allocated)
    }

    fn find(&self, address: u64) -> Result<Allocated> {
        let memory = self.memory.lock().unwrap();
        let found = memory.live.iter().find(|(live, _)| *live == address);
        let unknown = Error::UnknownAddress { address, backend: "a fake" };
        found.map(|&(address, serial)| Allocated { address, serial }).ok_or(unknown)
    }

    unsafe fn free(&self, allocated: Allocated) -> Result<()> {
        self.on_free.get().into_iter().for_each(|on_free| on_free());
        let Allocated { address, serial } = allocated;
        let was_there = self.memory.lock().unwrap().live.remove(&(address, serial));
        was_there.then_some(()).ok_or(Error::UnknownAddress { address, backend: "a fake" })?;
        self.calls.lock().unwrap().push(Call::Free(address));
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    fn rendezvous(&self, address: u64, _group: Option<&str>) -> Result<Arc<dyn SymmetricMemory>> {
        Err(Error::UnknownAddress { address, backend: "a fake" })
    }
}
