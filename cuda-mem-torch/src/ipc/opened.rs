//! What other processes share, opened here once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::{ImportedMapping, MemoryHandle, OpenedMemory};
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Device, Stream, StreamUse};
use cuda_mem_ipc::{Departure, ImportError, ImportKey, Imported, Imports};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::HandleError;
use super::blob::{Named, Piece};
use crate::allocator::Caches;
use crate::error::Result;

/// How long somebody else's import or release of the same memory is waited for.
const LIMIT: Duration = Duration::from_secs(10);

/// What is open here.
#[derive(Debug)]
pub(crate) struct Opened(Imports<Memory>);

#[derive(Debug)]
enum Memory {
    Legacy(OpenedMemory),
    Mapped(ImportedMapping),
}

/// A share in memory of another process, opened by [`CudaAllocator::ipc_dev_ptr`](crate::CudaAllocator::ipc_dev_ptr). Clones are
/// shares too. The last that is dropped closes the memory, behind the uses that it knows of.
/// [`ShareableHandle`](crate::ShareableHandle) has an example.
#[derive(Debug, Clone)]
pub struct IpcDevPtr(Imported<Memory>);

impl IpcDevPtr {
    /// Where the memory begins here: the exporter's offset counts from there. It is valid while a share lives.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        match &*self.0 {
            Memory::Legacy(memory) => memory.as_raw(),
            Memory::Mapped(memory) => memory.as_raw(),
        }
    }

    /// How many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &*self.0 {
            Memory::Legacy(memory) => memory.allocation_bytes(),
            Memory::Mapped(memory) => memory.bytes(),
        }
    }

    /// Says that work which uses the memory is about to be put into `stream`, and gives its address: the close waits for it. It is
    /// not ordered behind work of the other process.
    ///
    /// # Errors
    ///
    /// As [`ImportedMapping::on`].
    pub fn on<'m>(&'m self, stream: &'m Stream) -> Result<StreamUse<'m>> {
        Ok(match &*self.0 {
            Memory::Legacy(memory) => memory.on(stream)?,
            Memory::Mapped(memory) => memory.on(stream)?,
        })
    }
}

impl Opened {
    pub(crate) fn new() -> Self {
        Self(Imports::new())
    }

    fn open(&self, caches: &Caches, device: Device, handle: &[u8]) -> Result<IpcDevPtr> {
        let named = Named::read(handle)?;
        let import = |departure| open(caches, device, &named, departure);
        match self.0.import(&ImportKey::new(device, handle), LIMIT, import) {
            Ok(imported) => Ok(IpcDevPtr(imported)),
            Err(ImportError::Failed(error)) => Err(error),
            Err(ImportError::Forked) => Err(core::Error::Forked.into()),
            Err(_) => Err(HandleError::Busy.into()),
        }
    }
}

impl Caches {
    pub(crate) fn ipc_dev_ptr(&self, handle: &[u8]) -> Result<IpcDevPtr> {
        self.opened.open(self, self.current_device()?, handle)
    }
}

fn open(caches: &Caches, device: Device, named: &Named, departure: Departure) -> Result<Memory> {
    match named {
        Named::Legacy(base) => {
            let whole = MemoryHandle::from_parts(*base, 0, 0);
            let mut memory = OpenedMemory::open(&caches.of(device)?.context, &whole)?;
            memory.drop_after_close(departure);
            Ok(Memory::Legacy(memory))
        }
        Named::Mapped { pid, pieces } => {
            let descriptors = take(*pid, pieces)?;
            let pieces =
                descriptors.iter().zip(pieces).map(sized).collect::<Result<Vec<_>, HandleError>>()?;
            let mut memory = ImportedMapping::import_posix_fds(device, &pieces, &[device])?;
            memory.drop_after_unmap(departure);
            Ok(Memory::Mapped(memory))
        }
    }
}

/// Descriptors of another process, as our own.
pub(crate) fn take(pid: i32, pieces: &[Piece]) -> Result<Vec<OwnedFd>, HandleError> {
    let failed =
        |call, error: rustix::io::Errno| HandleError::Exporter { call, pid, source: Arc::new(error.into()) };
    let process = Pid::from_raw(pid).ok_or(HandleError::Value {
        what: "a process",
        found: pid.into(),
        accepted: "numbers above 0",
    })?;
    let process = pidfd_open(process, PidfdFlags::empty()).map_err(|error| failed("pidfd_open", error))?;
    let take = |piece: &Piece| {
        let taken = pidfd_getfd(&process, piece.descriptor, PidfdGetfdFlags::empty());
        taken.map_err(|error| failed("pidfd_getfd", error))
    };
    pieces.iter().map(take).collect()
}

pub(crate) fn sized<'d>(
    (descriptor, piece): (&'d OwnedFd, &Piece),
) -> Result<(BorrowedFd<'d>, usize), HandleError> {
    let bytes = usize::try_from(piece.bytes).map_err(|_| HandleError::Value {
        what: "a size of a piece of",
        found: piece.bytes.into(),
        accepted: "sizes of the address space",
    })?;
    Ok((descriptor.as_fd(), bytes))
}
