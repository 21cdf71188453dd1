//! A resource that fails on request.

use std::alloc::Layout;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{MemorySource, Stream};
use cuda_mem_pool::{DeviceMemoryResource, Error, MemoryResource, RawResource, ResourceContext, Result};

/// Device memory, unless it was told to refuse. Clones are handles to the same one.
#[derive(Clone)]
pub(crate) struct Faulty {
    upstream: DeviceMemoryResource,
    inner: Arc<Inner>,
}

struct Inner {
    upstream: Arc<dyn RawResource>,
    allocations_to_refuse: AtomicUsize,
    frees_to_refuse: AtomicUsize,
    after_allocation: Mutex<Option<Hook>>,
    after_free: Mutex<Option<Hook>>,
}

type Hook = Box<dyn FnOnce() + Send>;

impl Faulty {
    pub(crate) fn new(upstream: DeviceMemoryResource) -> Self {
        let inner = Inner {
            upstream: upstream.raw(),
            allocations_to_refuse: AtomicUsize::new(0),
            frees_to_refuse: AtomicUsize::new(0),
            after_allocation: Mutex::default(),
            after_free: Mutex::default(),
        };
        Self { upstream, inner: Arc::new(inner) }
    }

    /// So many allocations fail from now on: there is no memory.
    pub(crate) fn refuse_allocations(&self, count: usize) {
        self.inner.allocations_to_refuse.store(count, Ordering::SeqCst);
    }

    /// So many frees fail from now on.
    pub(crate) fn refuse_frees(&self, count: usize) {
        self.inner.frees_to_refuse.store(count, Ordering::SeqCst);
    }

    /// Runs when the next allocation has its memory and has not returned yet.
    #[allow(dead_code, reason = "tests on the simulator alone call it")]
    pub(crate) fn after_next_allocation(&self, hook: impl FnOnce() + Send + 'static) {
        *self.inner.after_allocation.lock().unwrap() = Some(Box::new(hook));
    }

    /// Runs when the next free has happened and not returned yet, which is when others may get the memory.
    pub(crate) fn after_next_free(&self, hook: impl FnOnce() + Send + 'static) {
        *self.inner.after_free.lock().unwrap() = Some(Box::new(hook));
    }

    /// What the driver's pool has out.
    pub(crate) fn used(&self) -> u64 {
        self.upstream.attributes().used_mem_current().unwrap()
    }
}

/// Whether this is one of those to refuse.
fn takes_one(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1)).is_ok()
}

/// What a refused free fails with.
pub(crate) fn is_refusal(error: &cuda_mem_core::Error) -> bool {
    matches!(error, cuda_mem_core::Error::Unsupported { what: "a free that the test refuses", .. })
}

// SAFETY: the memory is a device's.
unsafe impl MemoryResource for Faulty {
    type Access = <DeviceMemoryResource as MemoryResource>::Access;

    fn raw(&self) -> Arc<dyn RawResource> {
        Arc::clone(&self.inner) as Arc<dyn RawResource>
    }

    fn resource_context(&self) -> &ResourceContext {
        self.upstream.resource_context()
    }
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl MemorySource for Inner {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        if takes_one(&self.frees_to_refuse) {
            let device = "the device".to_owned();
            return Err(cuda_mem_core::Error::Unsupported { device, what: "a free that the test refuses" });
        }
        // SAFETY: the caller's promise.
        unsafe { self.upstream.deallocate(address, layout, stream) }?;
        let hook = self.after_free.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        Ok(())
    }
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl RawResource for Inner {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        if takes_one(&self.allocations_to_refuse) {
            return Err(Error::OutOfMemory { requested: layout.size(), used: 0, limit: 0, source: None });
        }
        let allocated = self.upstream.allocate(layout, stream)?;
        let hook = self.after_allocation.lock().unwrap().take();
        hook.into_iter().for_each(|hook| hook());
        Ok(allocated)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").finish_non_exhaustive()
    }
}
