//! A backend that only says what it was asked for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cuda_mem_core::Device;
use cuda_mem_ipc::symmetric::{Error, Result, SymmetricBackend, SymmetricMemory};

/// What it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Alloc(usize, i32, Option<String>),
    Free(u64),
}

pub(crate) struct Fake {
    name: &'static str,
    calls: Mutex<Vec<Call>>,
    next: AtomicU64,
}

impl Fake {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, calls: Mutex::default(), next: AtomicU64::new(0x1000) })
    }

    /// The calls since the last time.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl SymmetricBackend for Fake {
    fn name(&self) -> &str {
        self.name
    }

    fn alloc(&self, size: usize, device: Device, group: Option<&str>) -> Result<u64> {
        let call = Call::Alloc(size, device.as_raw(), group.map(str::to_owned));
        self.calls.lock().unwrap().push(call);
        Ok(self.next.fetch_add(0x1000, Ordering::Relaxed))
    }

    fn free(&self, address: u64) -> Result<()> {
        self.calls.lock().unwrap().push(Call::Free(address));
        Ok(())
    }

    fn rendezvous(&self, address: u64, _group: Option<&str>) -> Result<Arc<dyn SymmetricMemory>> {
        Err(Error::UnknownAddress { address, backend: "a fake" })
    }
}
