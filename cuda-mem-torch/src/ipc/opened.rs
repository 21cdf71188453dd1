//! What other processes share, opened here once.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::{ImportedMapping, MemoryHandle, OpenedMemory};
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Context, Device, Stream, StreamUse};
use cuda_mem_ipc::transport::{Descriptors, start_time};
use cuda_mem_ipc::{Departure, ImportError, ImportKey, Imports};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::blob::{Mapped, Named, Offer};
use super::socket;
use crate::error::{Error, HandleError, Result};

/// How long somebody else's import or release of the same memory is waited for.
const LIMIT: Duration = Duration::from_secs(10);

/// Memory that is open here.
#[derive(Debug)]
pub(crate) enum Memory {
    Legacy(OpenedMemory),
    Mapped(ImportedMapping),
}

/// A share in memory of another process, opened by [`CudaAllocator::ipc_dev_ptr`](crate::CudaAllocator::ipc_dev_ptr). Clones are
/// shares too. The last that is dropped closes the memory, behind the uses that it knows of.
/// [`ShareableHandle`](crate::ShareableHandle) has an example.
#[derive(Debug, Clone)]
pub struct IpcDevPtr(Arc<Memory>);

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

/// Opens what bytes name, unless it is open.
pub(crate) fn open(opened: &Imports<Memory>, context: &Context, handle: &[u8]) -> Result<IpcDevPtr> {
    let named = Named::read(handle)?;
    let import = |departure| open_named(context, &named, departure);
    match opened.import(&ImportKey::new(context.device(), handle), LIMIT, import) {
        Ok(imported) => Ok(IpcDevPtr(imported)),
        Err(ImportError::Failed(error)) => Err(error),
        Err(ImportError::Forked) => Err(core::Error::Forked.into()),
        Err(_) => Err(HandleError::Busy.into()),
    }
}

fn open_named(context: &Context, named: &Named, departure: Departure) -> Result<Memory> {
    match named {
        Named::Legacy(base) => {
            let whole = MemoryHandle::from_parts(*base, 0, 0);
            let mut memory = OpenedMemory::open(context, &whole)?;
            memory.drop_after_close(departure);
            Ok(Memory::Legacy(memory))
        }
        Named::Mapped(mapped) => {
            let mut memory = import::<Error>(context.device(), mapped)?;
            memory.drop_after_unmap(departure);
            Ok(Memory::Mapped(memory))
        }
        Named::Fabric => {
            Err(core::Error::NotShareable { what: "a descriptor: the handle is of a fabric" }.into())
        }
    }
}

/// Maps memory of another process for a device: by its descriptors, which are taken, or asked for where this process may not.
pub(crate) fn import<E: From<HandleError> + From<core::Error>>(
    device: Device,
    mapped: &Mapped,
) -> Result<ImportedMapping, E> {
    let Mapped { pid, size, descriptors, offer } = mapped;
    let taken = take_by_number(*pid, descriptors, offer.as_ref()).or_else(|(call, refused)| {
        let asked = match offer {
            Some(offer) => socket::ask(*pid, offer),
            None => Err("it named no socket".into()),
        };
        let source = Arc::new(refused.into());
        asked.map_err(|socket| HandleError::Exporter { call, pid: *pid, source, socket })
    })?;
    // No size that is read is larger than addresses are.
    let size = usize::try_from(*size).unwrap_or(usize::MAX);
    let handles: Vec<_> = taken.iter().map(|descriptor| (descriptor.as_fd(), size)).collect();
    Ok(ImportedMapping::import_posix_fds(device, &handles, &[device])?)
}

fn take_by_number(
    pid: i32,
    descriptors: &[i32],
    offer: Option<&Offer>,
) -> Result<Descriptors, (&'static str, Errno)> {
    let refused = |call| move |error| (call, error);
    let process = Pid::from_raw(pid).ok_or(("pidfd_open", Errno::SRCH))?;
    let process = pidfd_open(process, PidfdFlags::empty()).map_err(refused("pidfd_open"))?;
    let is_another = |offer: &Offer| start_time(pid.cast_unsigned()).ok() != Some(offer.socket as u64);
    if offer.is_some_and(is_another) {
        return Err(("pidfd_open", Errno::SRCH));
    }
    let mut took = Ok(());
    let take = |descriptor: &i32| {
        pidfd_getfd(&process, *descriptor, PidfdGetfdFlags::empty()).map_err(|error| took = Err(error)).ok()
    };
    // Those before one that was refused are the other process's too.
    let taken = Descriptors::from(descriptors.iter().map_while(take).collect::<Vec<_>>());
    took.map(|()| taken).map_err(refused("pidfd_getfd"))
}
