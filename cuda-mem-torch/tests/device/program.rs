//! What a program would make an allocator of: two functions over memory of its own, which note their calls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cuda_mem_core::ipc::DeviceAllocation;
use cuda_mem_core::{Device, Stream};
use cuda_mem_torch::{CudaAllocator, Error, PluggableAllocator, create_custom_allocator};

use crate::common::World;

pub(crate) const MIB: usize = 1 << 20;

/// A call of one of the functions, with the stream's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Alloc(usize, Device, u64),
    Free(u64, usize, Device, u64),
}

/// The program's side.
#[derive(Default)]
pub(crate) struct Program {
    state: Mutex<State>,
    panics: AtomicBool,
}

#[derive(Default)]
struct State {
    memory: HashMap<u64, DeviceAllocation>,
    calls: Vec<Call>,
    /// How many bytes may be out; none for as many as there are.
    limit: Option<usize>,
    out: usize,
    /// What the next free says.
    refuse_free: bool,
}

impl Program {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The calls since the last time.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state.lock().unwrap().calls)
    }

    /// How many allocations are out.
    pub(crate) fn out(&self) -> usize {
        self.state.lock().unwrap().memory.len()
    }

    pub(crate) fn limit(&self, bytes: Option<usize>) {
        self.state.lock().unwrap().limit = bytes;
    }

    pub(crate) fn refuse_free(&self) {
        self.state.lock().unwrap().refuse_free = true;
    }

    /// Has the next call of either function panic.
    pub(crate) fn panic_once(&self) {
        self.panics.store(true, Ordering::Relaxed);
    }

    fn alloc(&self, size: usize, device: Device, stream: &Stream) -> Result<u64, Error> {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "the program panics");
        let mut state = self.state.lock().unwrap();
        state.calls.push(Call::Alloc(size, device, stream.id().as_raw()));
        if state.limit.is_some_and(|limit| state.out + size > limit) {
            return Ok(0);
        }
        let memory = DeviceAllocation::new(stream.context(), size)?;
        let address = memory.as_raw();
        state.memory.insert(address, memory);
        state.out += size;
        Ok(address)
    }

    fn free(&self, address: u64, size: usize, device: Device, stream: &Stream) -> Result<(), Error> {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "the program panics");
        let mut state = self.state.lock().unwrap();
        state.calls.push(Call::Free(address, size, device, stream.id().as_raw()));
        if std::mem::take(&mut state.refuse_free) {
            let source = Arc::new(std::io::Error::other("not now"));
            return Err(Error::Function { function: "free", source });
        }
        // Of this stream alone: who else uses it is the allocator's to know.
        stream.synchronize()?;
        state.memory.remove(&address).expect("memory that is out");
        state.out -= size;
        Ok(())
    }

    /// An allocator of the two functions.
    pub(crate) fn allocator(self: &Arc<Self>, world: &World) -> Arc<PluggableAllocator> {
        let (one, two) = (Arc::clone(self), Arc::clone(self));
        // SAFETY: each allocation is of the driver, and kept until it is freed.
        let made = unsafe {
            create_custom_allocator(
                world.driver,
                move |size, device, stream| one.alloc(size, device, stream),
                move |address, size, device, stream| two.free(address, size, device, stream),
            )
        };
        made.unwrap()
    }
}

/// Frees what a test allocated.
pub(crate) fn free(allocator: &dyn CudaAllocator, address: u64) {
    // SAFETY: tests free what they allocated, once, and nothing that still runs uses it but what was recorded.
    unsafe { allocator.raw_delete(address) }.unwrap();
}
