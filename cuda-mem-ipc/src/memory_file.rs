//! What a peer maps its memory by: files in memory that it has sent, devices that it has named.

use std::os::fd::{AsFd, OwnedFd};

use cuda_mem_pool::cuda_mem_core::host::SharedMapping;
use cuda_mem_pool::cuda_mem_core::{self as core, Context, Device};
use rustix::fs::SeekFrom;

use crate::error::{Error, Result};
use crate::transport::Descriptors;

/// Maps a peer's memory, if it is one file in memory of sealed length. The system alone is asked that first: another file may take its time.
pub(crate) fn open(descriptors: Descriptors) -> Result<SharedMapping> {
    let is_memory = |file: &OwnedFd| rustix::fs::fcntl_get_seals(file).is_ok();
    let declared = descriptors.len();
    if !descriptors.iter().all(is_memory) {
        return Err(core::Error::NotShared { why: "is no file in memory" }.into());
    }
    let file = descriptors.only().ok_or(Error::DescriptorCount { declared: 1, received: declared })?;
    Ok(SharedMapping::open(file)?)
}

/// How many bytes of a file in memory come before its first hole, all of them if there is none. A page of a hole would be made when it is
/// pinned, by the process that pins it. A page that was never written is a hole; what lies behind the end does not count.
pub(crate) fn bytes_there(file: impl AsFd) -> Result<usize> {
    let hole = rustix::fs::seek(file, SeekFrom::Hole(0)).map_err(Error::system("lseek"))?;
    Ok(usize::try_from(hole).unwrap_or(0))
}

/// The device of a UUID, as this process numbers it.
pub(crate) fn device_of(context: &Context, uuid: [u8; 16]) -> core::Result<Option<Device>> {
    if context.device().uuid()? == uuid {
        return Ok(Some(context.device()));
    }
    for device in context.driver().devices()? {
        if device.uuid()? == uuid {
            return Ok(Some(device));
        }
    }
    Ok(None)
}
