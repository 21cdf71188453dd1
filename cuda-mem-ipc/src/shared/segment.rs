//! Large pieces of memory with one handle each, of this process or imported.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_mem_pool::Uuid;
use cuda_mem_pool::caching::Pinned;
use cuda_mem_pool::cuda_mem_core::host::{RegisterFlags, Registered, SharedMapping, SharedPages};
use cuda_mem_pool::cuda_mem_core::ipc::ImportedMapping;
use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::vmm::{CreateOptions, ShareableMemory};
use cuda_mem_pool::cuda_mem_core::{self as core, Context, Device, Uses, forked};

use super::face::{Face, Means};
use super::lent;
use super::options::MemoryKind;
use super::releases::{Resting, rest};
use super::slab::{Slab, Slabs};
use super::wire::{self, Place};
use crate::error::{Error, Result};
use crate::import::{Departure, Imported};
use crate::there::bytes_there;

/// A large piece of memory, mapped once. Whoever drops the last share waits for nothing: its memory ends in another thread, behind its
/// uses.
#[derive(Debug)]
pub(super) struct Segment {
    face: Face,
    /// There until the drop.
    memory: Option<Memory>,
    /// Whether it ends where it is dropped.
    is_waited_for: AtomicBool,
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
        /// None once nobody asks for it any more.
        mapping: Option<SharedMapping>,
        registered: Registered<SharedPages>,
        address: CUdeviceptr,
        /// Last: says that the memory is gone.
        _departure: Option<Departure>,
    },
}

/// A share in a segment.
#[derive(Debug, Clone)]
pub(super) enum SegmentRef {
    Own(Arc<Segment>),
    Imported(Imported<Segment>),
}

impl Segment {
    fn new(face: Face, memory: Memory) -> Self {
        Self { face, memory: Some(memory), is_waited_for: AtomicBool::new(false) }
    }

    /// New memory, of at least `bytes`. What peers need for it is told to `announce` as soon as it is there, ahead of the mapping here.
    pub(super) fn create(
        context: &Context,
        kind: MemoryKind,
        slabs: Option<&Arc<Slabs>>,
        bytes: usize,
        announce: impl FnOnce(&Face, Means<'_>),
    ) -> Result<Self> {
        let device = context.device();
        if let Some(slabs) = slabs {
            let slab = Arc::new(Slab::allocate(context, slabs, bytes)?);
            let block = slab.export;
            let place = match kind {
                MemoryKind::HostNumaPool(node) => Place::NodePool { node: node.cast_unsigned(), block },
                _ => Place::DevicePool { uuid: device.uuid()?, block },
            };
            let face = Face::new(bytes, place);
            announce(&face, Means { descriptors: &[slab.descriptor()], slab: Some(&slab) });
            return Ok(Self::new(face, Memory::Pooled { slab }));
        }
        match kind {
            MemoryKind::Host => {
                let mapping = SharedMapping::create(bytes)?;
                let face = Face::new(mapping.bytes(), Place::Host);
                let made = Self::register(context, face, mapping.clone(), (), None)?;
                // Behind the registration: an importer takes only what is there.
                announce(&made.face, Means { descriptors: &[mapping.as_fd()], slab: None });
                Ok(made)
            }
            _ => {
                let memory = ShareableMemory::create(device, bytes, &CreateOptions::supported_by(device)?)?;
                let descriptor = memory.export_posix_fd()?;
                let face = Face::new(bytes, Place::Device(device.uuid()?));
                announce(&face, Means { descriptors: &[descriptor.as_fd()], slab: None });
                Self::map(context, device, face, vec![descriptor], &[bytes], None)
            }
        }
    }

    /// Memory of a caching allocator, whole handles side by side.
    pub(super) fn lent(place: Place, address: CUdeviceptr, bytes: usize, pinned: Pinned) -> Self {
        Self::new(Face::new(bytes, place), Memory::Lent { pinned, address })
    }

    /// What another process says is memory, with as many descriptors as it says. `departure` is dropped when it is unmapped, and `pinned`
    /// says of host memory whether it may be pinned: the result is dropped when it is pinned no more.
    pub(super) fn import<P: Send + Sync + 'static>(
        context: &Context,
        said: &wire::Segment,
        descriptors: Vec<OwnedFd>,
        departure: Departure,
        pinned: impl FnOnce() -> Result<P>,
    ) -> Result<Self> {
        let size = |bytes: &u64| {
            usize::try_from(*bytes).map_err(|_| core::Error::TooLarge { count: usize::MAX, size: 1 })
        };
        let bytes = size(&said.bytes)?;
        let face = Face::new(bytes, said.place);
        let only = |mut descriptors: Vec<OwnedFd>| {
            descriptors.pop().ok_or(Error::DescriptorCount { declared: 1, received: 0 })
        };
        match &said.place {
            Place::Device(uuid) => {
                let device = device_of(context, *uuid)?;
                Self::map(context, device, face, descriptors, &[bytes], Some(departure))
            }
            Place::Parts { uuid, parts } => {
                let device = device_of(context, *uuid)?;
                let sizes = parts.sizes().iter().map(size).collect::<Result<Vec<_>, _>>()?;
                Self::map(context, device, face, descriptors, &sizes, Some(departure))
            }
            Place::DevicePool { block, .. } | Place::NodePool { block, .. } => {
                let slab = Slab::import(context, only(descriptors)?, *block, bytes, departure)?;
                Ok(Self::new(face, Memory::Pooled { slab: Arc::new(slab) }))
            }
            Place::Host => {
                let descriptor = only(descriptors)?;
                let there = bytes_there(&descriptor)?;
                let mapping = SharedMapping::open(descriptor)?;
                // It is pinned, and what is pinned has to be there: the exporter's, not made by this process for it.
                let found = mapping.bytes().min(there);
                if mapping.bytes() != bytes || found < bytes {
                    return Err(Error::WrongSize { said: said.bytes, found });
                }
                Self::register(context, face, mapping, pinned()?, Some(departure))
            }
        }
    }

    fn map(
        context: &Context,
        device: Device,
        face: Face,
        descriptors: Vec<OwnedFd>,
        sizes: &[usize],
        departure: Option<Departure>,
    ) -> Result<Self> {
        let parts = descriptors.iter().map(|one| one.as_fd()).zip(sizes.iter().copied()).collect::<Vec<_>>();
        let mut mapping = ImportedMapping::import_posix_fds(device, &parts, &[context.device()])?;
        if let Some(departure) = departure {
            mapping.drop_after_unmap(departure);
        }
        Ok(Self::new(face, Memory::Device { mapping, descriptors }))
    }

    fn register(
        context: &Context,
        face: Face,
        mapping: SharedMapping,
        pinned: impl Send + Sync + 'static,
        departure: Option<Departure>,
    ) -> Result<Self> {
        let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
        let registered =
            Registered::new(context, mapping.pages(pinned), flags).map_err(|refused| refused.error)?;
        let address = registered.device_address()?;
        let mapping = Some(mapping);
        Ok(Self::new(face, Memory::Host { mapping, registered, address, _departure: departure }))
    }

    pub(super) fn face(&self) -> &Face {
        &self.face
    }

    pub(super) fn id(&self) -> u64 {
        self.face.id()
    }

    pub(super) fn bytes(&self) -> usize {
        self.face.bytes()
    }

    pub(super) fn address(&self, offset: usize) -> CUdeviceptr {
        let first = match &self.memory {
            Some(Memory::Device { mapping, .. }) => mapping.as_raw(),
            Some(Memory::Pooled { slab }) => slab.address(),
            Some(Memory::Lent { address, .. } | Memory::Host { address, .. }) => *address,
            None => 0,
        };
        first.wrapping_add(offset as u64)
    }

    /// Gives somebody what peers map it by.
    pub(super) fn with_means<R>(&self, to: impl FnOnce(Means<'_>) -> Result<R>) -> Result<R> {
        let by = |descriptors: &[BorrowedFd<'_>]| to(Means { descriptors, slab: self.slab() });
        match &self.memory {
            Some(Memory::Device { descriptors, .. }) => {
                by(&descriptors.iter().map(|one| one.as_fd()).collect::<Vec<_>>())
            }
            // Once for each peer, and none is kept: there may be many.
            Some(Memory::Lent { pinned, .. }) => {
                let exported = pinned.export_posix_fds().map_err(lent::told)?;
                by(&exported.iter().map(|(_, one)| one.as_fd()).collect::<Vec<_>>())
            }
            Some(Memory::Pooled { slab }) => by(&[slab.descriptor()]),
            Some(Memory::Host { mapping: Some(mapping), .. }) => by(&[mapping.as_fd()]),
            Some(Memory::Host { mapping: None, .. }) | None => {
                Err(Error::Closed { doing: "sharing a segment" })
            }
        }
    }

    /// The memory as the host sees it; none on a device.
    pub(super) fn host(&self) -> Option<&SharedMapping> {
        if let Some(Memory::Host { mapping, .. }) = &self.memory { mapping.as_ref() } else { None }
    }

    /// What its importers have to let go of before it is freed.
    pub(super) fn slab(&self) -> Option<&Arc<Slab>> {
        if let Some(Memory::Pooled { slab }) = &self.memory { Some(slab) } else { None }
    }

    /// Takes over the uses of a buffer whose owner is gone: unmapping waits for them too.
    pub(super) fn absorb(&self, uses: Uses) {
        match &self.memory {
            Some(Memory::Device { mapping, .. }) => mapping.absorb_uses(uses),
            Some(Memory::Host { registered, .. }) => registered.absorb_uses(uses),
            Some(Memory::Pooled { slab }) => slab.absorb(uses),
            // The allocator knows who uses its blocks.
            Some(Memory::Lent { .. }) | None => {}
        }
    }

    /// From here on whoever drops the last share waits for its uses, and the memory has gone when that returns.
    pub(super) fn wait_for_its_end(&self) {
        self.is_waited_for.store(true, Ordering::SeqCst);
    }
}

impl Memory {
    /// Closes what only its peers needed: descriptors are few, and streams may use the memory for long.
    fn close_descriptors(&mut self) {
        match self {
            Self::Device { descriptors, .. } => descriptors.clear(),
            Self::Host { mapping, .. } => *mapping = None,
            Self::Pooled { .. } | Self::Lent { .. } => {}
        }
    }
}

impl Resting for Memory {
    fn has_passed(&mut self) -> bool {
        let have_passed = match self {
            Self::Device { mapping, .. } => mapping.have_uses_passed(),
            Self::Host { registered, .. } => registered.have_uses_passed(),
            // A slab sees to that itself, and the allocator knows them.
            Self::Pooled { .. } | Self::Lent { .. } => return true,
        };
        // Of what is not known core says what becomes of it: a capture is not waited for.
        !matches!(have_passed, Ok(false))
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let is_lent = matches!(self.memory, Some(Memory::Lent { .. }));
        if !is_lent
            && !self.is_waited_for.load(Ordering::SeqCst)
            && !forked()
            && let Some(mut memory) = self.memory.take()
        {
            memory.close_descriptors();
            rest(memory);
        }
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

impl Deref for SegmentRef {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        match self {
            Self::Own(segment) => segment,
            Self::Imported(segment) => segment,
        }
    }
}
