//! Memory resources: what gives memory by address and by owner, who reaches it, and where it is ordered.
//!
//! # Safety
//!
//! Declares the unsafe traits of resources, and hands what comes from them to owners that give it back once.

#![allow(unsafe_code, reason = "declares unsafe traits and wraps what they give in owners")]

mod allocation;

use std::alloc::Layout;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{Context, DeviceBuffer, MemorySource, Stream, forked};

pub use self::allocation::Allocation;
use crate::error::{Error, Result, refuse_forked};
use crate::primitive::{Mutex, lock};

/// What memory is aligned to, in bytes: what CUDA promises of all its allocations.
pub const DEFAULT_ALIGNMENT: usize = 256;

/// Gives memory by address, size, alignment and stream, and takes it back ([`MemorySource`]). Object-safe: adaptors hold
/// their upstream as `Arc<dyn RawResource>`.
///
/// ```
/// use std::alloc::Layout;
///
/// use cuda_mem_pool::cuda_mem_core::{Driver, MemorySource, Stream};
/// use cuda_mem_pool::{Error, RawResource, Result};
///
/// /// Has nothing.
/// #[derive(Debug)]
/// struct Empty;
///
/// // SAFETY: no memory comes from here.
/// unsafe impl MemorySource for Empty {
///     unsafe fn deallocate(&self, address: u64, _: Layout, _: &Stream) -> cuda_mem_core::Result<()> {
///         Err(cuda_mem_core::Error::NotAllocated { address })
///     }
/// }
///
/// // SAFETY: as above.
/// unsafe impl RawResource for Empty {
///     fn allocate(&self, layout: Layout, _: &Stream) -> Result<u64> {
///         Err(Error::TooLarge { bytes: layout.size() })
///     }
/// }
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let stream = Stream::new(&driver.device(0)?.primary_context()?)?;
/// assert!(Empty.allocate(Layout::new::<u64>(), &stream).is_err());
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
///
/// # Safety
///
/// [`allocate`](RawResource::allocate) gives memory of the layout that has no other owner, until
/// [`deallocate`](MemorySource::deallocate) takes it back, to be used by work that is ordered behind the allocation on its stream.
pub unsafe trait RawResource: MemorySource {
    /// Memory of this layout, ordered on `stream`. A size of 0 gives address 0, which is never given back.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::Alignment`], [`Error::Capturing`] if the stream captures, except from a caching allocator of device memory,
    /// and those of the resource.
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr>;
}

/// Gives memory whose type says who reaches it. Clones are handles to the same resource.
///
/// # Safety
///
/// All memory that [`raw`](MemoryResource::raw) gives is reachable by whom [`Access`](MemoryResource::Access) says. What the host reaches
/// has initialised bytes and an address of exposed provenance: an [`Allocation`] makes slices of it, from the address alone.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{DeviceMemoryResource, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let resource = DeviceMemoryResource::new(&context, None)?;
/// assert_eq!(resource.allocate(1 << 20, &stream)?.len(), 1 << 20);
/// let without = resource.allocate(4096, None)?;
/// assert_eq!(without.stream(), resource.resource_context().stream()?);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
pub unsafe trait MemoryResource: Clone + Send + Sync + 'static {
    /// Who reaches the memory: [`DeviceAccessible`] or [`HostDeviceAccessible`].
    type Access: Send + Sync + 'static;

    /// What gives the memory.
    fn raw(&self) -> Arc<dyn RawResource>;

    /// The context and internal stream for calls that name no stream.
    fn resource_context(&self) -> &ResourceContext;

    /// Allocates `bytes` bytes, aligned to 256, with whatever is there. Dropped, the memory goes back behind everything that used it.
    ///
    /// Ordered on `stream`, or on an internal stream of the resource if none is given; uses on other streams wait for it.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::TooLarge`], [`Error::Capturing`] if the stream captures, except from a caching allocator of device memory,
    /// and those of the resource.
    fn allocate<'s>(
        &self,
        bytes: usize,
        stream: impl Into<Option<&'s Stream>>,
    ) -> Result<Allocation<Self::Access>> {
        let layout = layout(bytes)?;
        let stream = stream.into().map_or_else(|| self.resource_context().stream(), Ok)?;
        let raw = self.raw();
        let address = raw.allocate(layout, stream)?;
        // SAFETY: memory that was just allocated on this stream from this source, with this layout; bytes need no alignment.
        let buffer = unsafe { DeviceBuffer::from_source(stream, address, layout, raw) }?;
        Ok(Allocation::new(buffer))
    }

    /// As [`MemoryResource::allocate`], by address: for callers that keep nothing else, such as C interfaces. Only
    /// [`MemoryResource::deallocate`] gives the memory back.
    fn allocate_raw<'s>(&self, bytes: usize, stream: impl Into<Option<&'s Stream>>) -> Result<CUdeviceptr> {
        let layout = layout(bytes)?;
        let stream = stream.into().map_or_else(|| self.resource_context().stream(), Ok)?;
        let address = self.raw().allocate(layout, stream)?;
        if address != 0 {
            self.resource_context().remember(address, stream);
        }
        Ok(address)
    }

    /// Takes memory back that [`MemoryResource::allocate_raw`] gave, ordered on `stream`, or on the stream of the allocation if
    /// none is given. Nothing is done for address 0.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`] for memory that is not out; `Capturing`, if that stream captures, and `Forked` in [`Error::Core`];
    /// those of the resource. The memory is still allocated then.
    ///
    /// # Safety
    ///
    /// The memory was allocated with this size and is not used any more: its allocation and all work with it are ordered before
    /// this point of the stream.
    unsafe fn deallocate<'s>(
        &self,
        address: CUdeviceptr,
        bytes: usize,
        stream: impl Into<Option<&'s Stream>>,
    ) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        refuse_forked()?;
        let layout = layout(bytes)?;
        let home = self.resource_context().recall(address)?;
        // SAFETY: the caller's promise; taken out of what is remembered, so given back once.
        let freed = unsafe { self.raw().deallocate(address, layout, stream.into().unwrap_or(&home)) };
        if freed.is_err() {
            self.resource_context().remember(address, &home);
        }
        Ok(freed?)
    }
}

/// Writes the equality of handles, by a field that is an `Arc`.
macro_rules! equal_handles {
    ($name:ident $(<$parameter:ident>)?, $field:ident) => {
        impl$(<$parameter>)? PartialEq for $name$(<$parameter>)? {
            /// Whether both are handles to the same.
            fn eq(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.$field, &other.$field)
            }
        }

        impl$(<$parameter>)? Eq for $name$(<$parameter>)? {}
    };
}
pub(crate) use equal_handles;

pub(crate) fn layout(bytes: usize) -> Result<Layout> {
    Layout::from_size_align(bytes, DEFAULT_ALIGNMENT).map_err(|_| Error::TooLarge { bytes })
}

/// Keeps a resource's context, its internal stream, and the streams of memory allocated by address. [`MemoryResource`] has an example.
#[derive(Debug)]
pub struct ResourceContext {
    context: Context,
    /// Made when it is first needed.
    stream: OnceLock<Stream>,
    /// The stream of each allocation by address.
    streams: Mutex<HashMap<CUdeviceptr, Stream>>,
}

/// What is known of memory that is out, by address and size.
#[derive(Debug)]
pub(crate) struct ByAddress<T>(Mutex<BTreeMap<CUdeviceptr, (usize, T)>>);

impl<T> Default for ByAddress<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> ByAddress<T> {
    /// Keeps it until it is taken out.
    pub(crate) fn enter(&self, address: CUdeviceptr, bytes: usize, value: T) {
        lock(&self.0).insert(address, (bytes, value));
    }

    /// Takes out what is known of memory that is said to have so many bytes.
    pub(crate) fn take_out(&self, address: CUdeviceptr, bytes: usize) -> cuda_mem_core::Result<T> {
        if forked() {
            // Before the lock, which a thread of the parent may have held.
            return Err(cuda_mem_core::Error::Forked);
        }
        let mut known = lock(&self.0);
        match known.entry(address) {
            Entry::Occupied(entry) if entry.get().0 == bytes => Ok(entry.remove().1),
            Entry::Occupied(entry) => {
                let allocated = entry.get().0;
                Err(cuda_mem_core::Error::WrongSize { address, given: bytes, allocated })
            }
            Entry::Vacant(_) => Err(cuda_mem_core::Error::NotAllocated { address }),
        }
    }

    pub(crate) fn list<R>(&self, mut row: impl FnMut(CUdeviceptr, usize, &T) -> R) -> Vec<R> {
        // Those of the parent are none of a forked child's.
        if forked() {
            return Vec::new();
        }
        lock(&self.0).iter().map(|(address, (bytes, value))| row(*address, *bytes, value)).collect()
    }
}

impl ResourceContext {
    /// For a resource that works in `context`.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), stream: OnceLock::new(), streams: Mutex::default() }
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The internal stream, on which allocations are ordered that name none. The first call makes it by [`Stream::new`], which may fail.
    pub fn stream(&self) -> Result<&Stream> {
        if let Some(stream) = self.stream.get() {
            return Ok(stream);
        }
        let stream = Stream::new(&self.context)?;
        // Of two threads that come first at once, one stream is dropped again.
        Ok(self.stream.get_or_init(|| stream))
    }

    fn remember(&self, address: CUdeviceptr, stream: &Stream) {
        let replaced = lock(&self.streams).insert(address, stream.clone());
        // Outside the lock: the last handle to a stream may go here.
        drop(replaced);
    }

    fn recall(&self, address: CUdeviceptr) -> Result<Stream> {
        lock(&self.streams).remove(&address).ok_or(Error::UnknownAddress { address })
    }
}

/// Devices alone reach the memory that a resource gives: its [`Access`](MemoryResource::Access).
#[derive(Debug, Clone, Copy)]
pub enum DeviceAccessible {}

/// Host and devices reach the memory.
///
/// ```
/// use cuda_mem_pool::{HostDeviceAccessible, MemoryResource, Result};
///
/// // Device memory does not compile here.
/// fn filled(resource: &impl MemoryResource<Access = HostDeviceAccessible>) -> Result<u8> {
///     let mut block = resource.allocate(4096, None)?;
///     block.as_mut_slice()?.fill(7);
///     Ok(block.as_slice()?[4095])
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub enum HostDeviceAccessible {}
