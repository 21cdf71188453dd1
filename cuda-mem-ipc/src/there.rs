//! How much of a file in memory is there.

use std::os::fd::AsFd;

use crate::error::{Error, Result};

/// How many bytes of a file have memory. What has none would be made when it is pinned, by the process that pins it.
pub(crate) fn bytes_there(file: impl AsFd) -> Result<usize> {
    let blocks = rustix::fs::fstat(file).map_err(Error::system("fstat"))?.st_blocks;
    Ok(usize::try_from(blocks).unwrap_or(0).saturating_mul(512))
}
