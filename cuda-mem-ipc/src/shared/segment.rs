//! Large pieces of memory with one handle each, of this process or imported.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use cuda_mem_pool::Uuid;
use cuda_mem_pool::caching::Pinned;
use cuda_mem_pool::cuda_mem_core::host::{RegisterFlags, Registered, SharedMapping};
use cuda_mem_pool::cuda_mem_core::ipc::ImportedMapping;
use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::vmm::{CreateOptions, ShareableMemory};
use cuda_mem_pool::cuda_mem_core::{self as core, Context, Device, Uses};

use super::exporter::ExportLink;
use super::options::MemoryKind;
use super::slab::{Slab, Slabs};
use super::wire::{self, Place};
use super::{lent, lock};
use crate::error::{Error, Result};
use crate::import::{Departure, Imported};

/// Segments are numbered once in a process, whatever pool or connection they belong to.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Tells what runs in a process from what ran in it before `exec`.
static PROGRAM: OnceLock<u64> = OnceLock::new();

/// A large piece of memory, mapped once.
#[derive(Debug)]
pub(super) struct Segment {
    id: u64,
    bytes: usize,
    place: Place,
    memory: Memory,
    /// Who was told of it, and is told of its end.
    known_by: Mutex<Vec<Weak<ExportLink>>>,
    /// Last: says that the memory is gone.
    _departure: Option<Departure>,
}

#[derive(Debug)]
enum Memory {
    Device {
        mapping: ImportedMapping,
        descriptors: Vec<OwnedFd>,
    },
    /// Of a caching allocator of this process.
    Lent {
        pinned: Pinned,
        address: CUdeviceptr,
    },
    /// Shared with those who wait for its end.
    Pooled {
        slab: Arc<Slab>,
    },
    Host {
        registered: Registered<SharedMapping>,
        mapping: SharedMapping,
        address: CUdeviceptr,
    },
}

/// A share in a segment.
#[derive(Debug, Clone)]
pub(super) enum SegmentRef {
    Own(Arc<Segment>),
    Imported(Imported<Segment>),
}

impl Segment {
    /// New memory, of at least `bytes`.
    pub(super) fn create(
        context: &Context,
        kind: MemoryKind,
        slabs: Option<&Arc<Slabs>>,
        bytes: usize,
    ) -> Result<Self> {
        let device = context.device();
        if let Some(slabs) = slabs {
            let slab = Slab::allocate(context, slabs, bytes)?;
            let block = slab.export;
            let place = match kind {
                MemoryKind::HostNumaPool(node) => Place::NodePool { node: node.cast_unsigned(), block },
                _ => Place::DevicePool { uuid: device.uuid()?, block },
            };
            return Ok(Self::new(bytes, place, Memory::Pooled { slab: Arc::new(slab) }, None));
        }
        match kind {
            MemoryKind::Host => Self::register(context, SharedMapping::create(bytes)?, None),
            _ => {
                let memory = ShareableMemory::create(device, bytes, &CreateOptions::supported_by(device)?)?;
                let descriptors = vec![memory.export_posix_fd()?];
                Self::map(context, device, Place::Device(device.uuid()?), descriptors, &[bytes], None)
            }
        }
    }

    /// Memory of a caching allocator, whole handles side by side.
    pub(super) fn lent(place: Place, address: CUdeviceptr, bytes: usize, pinned: Pinned) -> Self {
        Self::new(bytes, place, Memory::Lent { pinned, address }, None)
    }

    /// What another process says is memory, with as many descriptors as it says. `departure` is dropped when it is unmapped.
    pub(super) fn import(
        context: &Context,
        said: &wire::Segment,
        descriptors: Vec<OwnedFd>,
        departure: Departure,
    ) -> Result<Self> {
        let size = |bytes: &u64| {
            usize::try_from(*bytes).map_err(|_| core::Error::TooLarge { count: usize::MAX, size: 1 })
        };
        let bytes = size(&said.bytes)?;
        let only = |mut descriptors: Vec<OwnedFd>| {
            descriptors.pop().ok_or(Error::DescriptorCount { declared: 1, received: 0 })
        };
        match &said.place {
            Place::Device(uuid) => {
                let device = device_of(context, *uuid)?;
                Self::map(context, device, said.place, descriptors, &[bytes], Some(departure))
            }
            Place::Parts { uuid, parts } => {
                let device = device_of(context, *uuid)?;
                let sizes = parts.sizes().iter().map(size).collect::<Result<Vec<_>, _>>()?;
                Self::map(context, device, said.place, descriptors, &sizes, Some(departure))
            }
            Place::DevicePool { block, .. } | Place::NodePool { block, .. } => {
                let slab = Slab::import(context, only(descriptors)?, *block, bytes, departure)?;
                Ok(Self::new(bytes, said.place, Memory::Pooled { slab: Arc::new(slab) }, None))
            }
            Place::Host => {
                let descriptor = only(descriptors)?;
                let mapping = SharedMapping::open(descriptor)?;
                if mapping.bytes() != bytes {
                    let (said, found) = (said.bytes, mapping.bytes());
                    return Err(Error::WrongSize { said, found });
                }
                Self::register(context, mapping, Some(departure))
            }
        }
    }

    fn map(
        context: &Context,
        device: Device,
        place: Place,
        descriptors: Vec<OwnedFd>,
        sizes: &[usize],
        departure: Option<Departure>,
    ) -> Result<Self> {
        let parts = descriptors.iter().map(|one| one.as_fd()).zip(sizes.iter().copied()).collect::<Vec<_>>();
        let mut mapping = ImportedMapping::import_posix_fds(device, &parts, &[context.device()])?;
        if let Some(departure) = departure {
            mapping.drop_after_unmap(departure);
        }
        Ok(Self::new(mapping.bytes(), place, Memory::Device { mapping, descriptors }, None))
    }

    fn register(context: &Context, mapping: SharedMapping, departure: Option<Departure>) -> Result<Self> {
        let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
        let registered = Registered::new(context, mapping.clone(), flags).map_err(|refused| refused.error)?;
        let (bytes, address) = (mapping.bytes(), registered.device_address()?);
        Ok(Self::new(bytes, Place::Host, Memory::Host { registered, mapping, address }, departure))
    }

    fn new(bytes: usize, place: Place, memory: Memory, departure: Option<Departure>) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, bytes, place, memory, known_by: Mutex::default(), _departure: departure }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn address(&self, offset: usize) -> CUdeviceptr {
        let first = match &self.memory {
            Memory::Device { mapping, .. } => mapping.as_raw(),
            Memory::Pooled { slab } => slab.address(),
            Memory::Lent { address, .. } | Memory::Host { address, .. } => *address,
        };
        first.wrapping_add(offset as u64)
    }

    /// Gives somebody what peers map it by.
    pub(super) fn with_descriptors<R>(&self, to: impl FnOnce(&[BorrowedFd<'_>]) -> Result<R>) -> Result<R> {
        match &self.memory {
            Memory::Device { descriptors, .. } => {
                to(&descriptors.iter().map(|one| one.as_fd()).collect::<Vec<_>>())
            }
            // Once for each peer, and none is kept: there may be many.
            Memory::Lent { pinned, .. } => {
                let exported = pinned.export_posix_fds().map_err(lent::told)?;
                to(&exported.iter().map(|(_, one)| one.as_fd()).collect::<Vec<_>>())
            }
            Memory::Pooled { slab } => to(&[slab.descriptor()]),
            Memory::Host { mapping, .. } => to(&[mapping.as_fd()]),
        }
    }

    /// The memory as the host sees it; none on a device.
    pub(super) fn host(&self) -> Option<&SharedMapping> {
        match &self.memory {
            Memory::Device { .. } | Memory::Lent { .. } | Memory::Pooled { .. } => None,
            Memory::Host { mapping, .. } => Some(mapping),
        }
    }

    /// What its importers have to let go of before it is freed.
    pub(super) fn slab(&self) -> Option<&Arc<Slab>> {
        if let Memory::Pooled { slab } = &self.memory { Some(slab) } else { None }
    }

    /// What a peer is told of it.
    pub(super) fn said(&self) -> wire::Segment {
        let generation = *PROGRAM.get_or_init(|| Uuid::new_v4().as_u64_pair().0);
        wire::Segment { segment: self.id, generation, bytes: self.bytes as u64, place: self.place }
    }

    /// Whether it is what a peer says of it.
    pub(super) fn is_as(&self, said: &wire::Segment) -> bool {
        (self.bytes as u64, self.place) == (said.bytes, said.place)
    }

    /// Takes over the uses of a buffer whose owner is gone: unmapping waits for them too.
    pub(super) fn absorb(&self, uses: Uses) {
        match &self.memory {
            Memory::Device { mapping, .. } => mapping.absorb_uses(uses),
            Memory::Host { registered, .. } => registered.absorb_uses(uses),
            Memory::Pooled { slab } => slab.absorb(uses),
            // The allocator knows who uses its blocks.
            Memory::Lent { .. } => {}
        }
    }

    pub(super) fn is_known_by(&self, link: Weak<ExportLink>) {
        let mut known_by = lock(&self.known_by);
        known_by.retain(|link| link.strong_count() > 0);
        known_by.push(link);
    }
}

/// The device of a UUID, as this process numbers it.
fn device_of(context: &Context, uuid: [u8; 16]) -> Result<Device> {
    if context.device().uuid()? == uuid {
        return Ok(context.device());
    }
    for device in context.driver().devices()? {
        if device.uuid()? == uuid {
            return Ok(device);
        }
    }
    Err(Error::NoSuchDevice { uuid: Uuid::from_bytes(uuid) })
}

impl Drop for Segment {
    fn drop(&mut self) {
        if core::forked() {
            return;
        }
        for link in lock(&self.known_by).drain(..).filter_map(|link| link.upgrade()) {
            link.retire(self.id);
        }
    }
}

impl Deref for SegmentRef {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        match self {
            Self::Own(segment) => segment,
            Self::Imported(segment) => segment,
        }
    }
}
