//! Large pieces of memory with one handle each, of this process or imported.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use cuda_mem_pool::Uuid;
use cuda_mem_pool::caching::Pinned;
use cuda_mem_pool::cuda_mem_core::host::{RegisterFlags, Registered, SharedMapping, SharedPages};
use cuda_mem_pool::cuda_mem_core::ipc::ImportedMapping;
use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::vmm::{CreateOptions, ShareableMemory};
use cuda_mem_pool::cuda_mem_core::{self as core, Context, Uses, forked};

use super::budget::{Budget, Held, Kind};
use super::exporter::ExportLink;
use super::options::MemoryKind;
use super::slab::{Slab, Slabs};
use super::wire::{self, Place};
use crate::background::drop_behind_uses;
use crate::error::{Error, Result};
use crate::import::Departure;
use crate::memory_file::{self, bytes_there, device_of};
use crate::primitive::lock;
use crate::transport::Descriptors;

/// What a segment of host memory counts as at the least, in bytes: what is pinned costs more than its bytes.
const LEAST_PINNED: u64 = 1 << 20;

/// Segments are numbered once in a process, whatever pool or connection they belong to.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Tells what runs in a process from what ran in it before `exec`.
static PROGRAM: OnceLock<u64> = OnceLock::new();

/// What peers are told of a segment, before it is mapped here, and which peers were told: each of them hears of its end.
#[derive(Debug)]
pub(super) struct SegmentInfo {
    pub(super) id: u64,
    pub(super) bytes: usize,
    place: Place,
    /// What its importers have to let go of before it is freed, shared with those who wait for that. Dropped with it.
    pub(super) slab: Option<Arc<Slab>>,
    known_by: Mutex<Vec<Weak<ExportLink>>>,
}

/// A large piece of memory, mapped once. Dropping the last share does not block: its memory ends in another thread, behind its uses.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) info: SegmentInfo,
    /// There until the drop.
    memory: Option<Memory>,
}

/// Descriptors for peers are closed with the segment: they are few, and streams may use the memory for long.
#[derive(Debug)]
enum Memory {
    /// A handle of this process, or handles of a peer, whose descriptors are not kept.
    Handles { descriptor: Option<OwnedFd>, mapping: ImportedMapping },
    /// Of a caching allocator of this process, and where.
    Lent(Pinned, CUdeviceptr),
    /// A block of a driver pool.
    Slab(Arc<Slab>),
    /// A file in memory, and what a peer's takes of the budget.
    Host {
        file: SharedMapping,
        _open: Option<Held>,
        registered: Registered<SharedPages>,
        address: CUdeviceptr,
        /// Last: says that the memory is gone.
        _departure: Option<Departure>,
    },
}

impl SegmentInfo {
    fn new(bytes: usize, place: Place) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, bytes, place, slab: None, known_by: Mutex::default() }
    }

    /// Whether it is what a peer says of it.
    pub(super) fn is_as(&self, said: &wire::Segment) -> bool {
        self.bytes as u64 == said.bytes && self.place == said.place
    }

    pub(super) fn said(&self) -> wire::Segment {
        let generation = *PROGRAM.get_or_init(|| Uuid::new_v4().as_u64_pair().0);
        wire::Segment { segment: self.id, generation, bytes: self.bytes as u64, place: self.place.clone() }
    }

    pub(super) fn is_known_by(&self, link: Weak<ExportLink>) {
        let mut known_by = lock(&self.known_by);
        known_by.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&link));
        known_by.push(link);
    }
}

/// What handles of a node of the host are made with.
pub(super) fn on_node(node: i32) -> CreateOptions {
    CreateOptions { node: Some(node), ..CreateOptions::default() }
}

impl Drop for SegmentInfo {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        for link in lock(&self.known_by).drain(..).filter_map(|link| link.upgrade()) {
            link.retire(self.id);
        }
    }
}

impl Segment {
    fn new(info: SegmentInfo, memory: Memory) -> Self {
        Self { info, memory: Some(memory) }
    }

    /// New memory, of at least `bytes`. What peers need for it is told to `announce` as soon as it is there, ahead of the mapping here.
    pub(super) fn create(
        context: &Context,
        kind: MemoryKind,
        slabs: Option<&Arc<Slabs>>,
        bytes: usize,
        announce: impl FnOnce(&SegmentInfo, &[BorrowedFd<'_>]) -> Result<()>,
    ) -> Result<Self> {
        let device = context.device();
        let made = if let Some(slabs) = slabs {
            let slab = Slab::allocate(context, slabs, bytes)?;
            let place = Place::DevicePool { uuid: device.uuid()?, block: slab.export };
            Self::pooled(bytes, place, slab)
        } else if kind == MemoryKind::Host {
            let file = SharedMapping::create(bytes)?;
            let info = SegmentInfo::new(file.bytes(), Place::Host);
            Self::register(context, info, (file, None), (), None)?
        } else {
            let (options, place) = match kind {
                MemoryKind::HostNuma(node) => (on_node(node), Place::Node(node.cast_unsigned())),
                _ => (CreateOptions::supported_by(device)?, Place::Device(device.uuid()?)),
            };
            let descriptor = ShareableMemory::create(device, bytes, &options)?.export_posix_fd()?;
            let (info, handle) = (SegmentInfo::new(bytes, place), descriptor.as_fd());
            announce(&info, &[handle])?;
            let mapping = match options.node {
                Some(node) => ImportedMapping::import_posix_fd_of_node(device, node, handle, bytes)?,
                None => ImportedMapping::import_posix_fd(device, handle, bytes, &[device])?,
            };
            return Ok(Self::new(info, Memory::Handles { descriptor: Some(descriptor), mapping }));
        };
        // Behind the registration: an importer takes only what is there.
        made.with_handles(|handles| announce(&made.info, handles))?;
        Ok(made)
    }

    /// Memory of a caching allocator, whole handles side by side.
    pub(super) fn lent(place: Place, address: CUdeviceptr, bytes: usize, pinned: Pinned) -> Self {
        Self::new(SegmentInfo::new(bytes, place), Memory::Lent(pinned, address))
    }

    /// What another process says is memory, with as many descriptors as it says, which may be closed. `departure` goes when it is unmapped.
    pub(super) fn import(
        context: &Context,
        said: &wire::Segment,
        descriptors: &mut Descriptors,
        departure: Departure,
        budget: &Budget,
    ) -> Result<Self> {
        let size = |bytes: &u64| {
            usize::try_from(*bytes).map_err(|_| core::Error::TooLarge { count: usize::MAX, size: 1 })
        };
        let bytes = size(&said.bytes)?;
        let info = SegmentInfo::new(bytes, said.place.clone());
        let handles = descriptors.iter().map(AsFd::as_fd).collect::<Vec<_>>();
        let one = handles.first().copied().ok_or(Error::DescriptorCount { declared: 1, received: 0 });
        match &said.place {
            Place::Device(uuid) | Place::Parts { uuid, .. } => {
                let sizes = match &said.place {
                    Place::Parts { sizes, .. } => sizes.iter().map(size).collect::<Result<Vec<_>, _>>()?,
                    _ => vec![bytes],
                };
                let unseen = Error::NoSuchDevice { uuid: Uuid::from_bytes(*uuid) };
                let device = device_of(context, *uuid)?.ok_or(unseen)?;
                let parts = handles.into_iter().zip(sizes).collect::<Vec<_>>();
                let mut mapping = ImportedMapping::import_posix_fds(device, &parts, &[context.device()])?;
                mapping.drop_after_unmap(departure);
                Ok(Self::new(info, Memory::Handles { descriptor: None, mapping }))
            }
            Place::Node(node) => {
                let (device, node) = (context.device(), node.cast_signed());
                let mut mapping = ImportedMapping::import_posix_fd_of_node(device, node, one?, bytes)?;
                mapping.drop_after_unmap(departure);
                Ok(Self::new(info, Memory::Handles { descriptor: None, mapping }))
            }
            Place::DevicePool { block, .. } => {
                let slab = Slab::import(context, one?, *block, bytes, departure)?;
                Ok(Self::pooled(bytes, said.place.clone(), slab))
            }
            Place::Host => {
                drop(handles);
                // Of a file in memory the system knows this itself.
                let file = memory_file::open(std::mem::take(descriptors))?;
                // It is pinned, and what is pinned has to be there: the exporter's, not made by this process for it.
                let found = bytes_there(&file)?;
                if file.bytes() != bytes || found < bytes {
                    return Err(Error::WrongSize { said: said.bytes, found });
                }
                let pinned = budget.take(Kind::PinnedBytes, said.bytes.max(LEAST_PINNED))?;
                let open = budget.take(Kind::Descriptors, 1)?;
                Self::register(context, info, (file, Some(open)), pinned, Some(departure))
            }
        }
    }

    fn pooled(bytes: usize, place: Place, slab: Slab) -> Self {
        let (mut info, slab) = (SegmentInfo::new(bytes, place), Arc::new(slab));
        info.slab = Some(Arc::clone(&slab));
        Self::new(info, Memory::Slab(slab))
    }

    fn register(
        context: &Context,
        info: SegmentInfo,
        (file, _open): (SharedMapping, Option<Held>),
        pinned: impl Send + Sync + 'static,
        _departure: Option<Departure>,
    ) -> Result<Self> {
        let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
        let registered =
            Registered::new(context, file.pages(pinned), flags).map_err(|refused| refused.error)?;
        let address = registered.device_address()?;
        Ok(Self::new(info, Memory::Host { file, _open, registered, address, _departure }))
    }

    pub(super) fn address(&self, offset: usize) -> CUdeviceptr {
        let first = match &self.memory {
            Some(Memory::Handles { mapping, .. }) => mapping.as_raw(),
            Some(Memory::Lent(_, address) | Memory::Host { address, .. }) => *address,
            Some(Memory::Slab(slab)) => slab.address(),
            None => 0,
        };
        first.wrapping_add(offset as u64)
    }

    /// Calls `to` with the descriptors that peers map it by.
    pub(super) fn with_handles<R>(&self, to: impl FnOnce(&[BorrowedFd<'_>]) -> Result<R>) -> Result<R> {
        let descriptor = match &self.memory {
            Some(Memory::Handles { descriptor, .. }) => descriptor.as_ref().map(AsFd::as_fd),
            Some(Memory::Slab(slab)) => slab.descriptor(),
            Some(Memory::Host { file, .. }) => Some(file.as_fd()),
            Some(Memory::Lent(pinned, _)) => {
                // Once for each peer, and none is kept: there may be many.
                let exported = pinned.export_posix_fds()?;
                return to(&exported.iter().map(|(_, one)| one.as_fd()).collect::<Vec<_>>());
            }
            None => None,
        };
        to(&[descriptor.ok_or(Error::Closed { doing: "sharing a segment" })?])
    }

    /// The memory as the host sees it; none on a device.
    pub(super) fn host(&self) -> Option<&SharedMapping> {
        if let Some(Memory::Host { file, .. }) = &self.memory { Some(file) } else { None }
    }

    /// Takes over the uses of a buffer whose owner is gone: unmapping waits for them too.
    pub(super) fn absorb(&self, uses: Uses) {
        match &self.memory {
            Some(Memory::Handles { mapping, .. }) => mapping.absorb_uses(uses),
            Some(Memory::Slab(slab)) => slab.absorb(uses),
            Some(Memory::Host { registered, .. }) => registered.absorb_uses(uses),
            // The allocator knows which streams use its blocks.
            Some(Memory::Lent(..)) | None => {}
        }
    }

    /// Waits for its uses, behind which the memory has gone when this returns.
    pub(super) fn end(mut self) {
        let memory = self.memory.take();
        // Its peers hear of it before that.
        drop(self);
        drop(memory);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        match self.memory.take() {
            Some(Memory::Handles { mapping, .. }) => {
                drop_behind_uses(mapping, ImportedMapping::have_uses_passed);
            }
            Some(Memory::Host { registered, _departure: departure, .. }) => {
                drop_behind_uses((registered, departure), |(registered, _)| registered.have_uses_passed());
            }
            // The allocator knows the uses of its blocks, and a slab its own.
            other => self.memory = other,
        }
    }
}
