//! What a copy has on its way: the ring, its stream, its cancellation.

use super::ring::Ring;
use crate::error::{Error, Result};
use crate::host::CancelToken;
use crate::stream::Stream;

/// Where a copy goes along.
#[derive(Clone, Copy)]
pub(super) struct Way<'s> {
    pub(super) ring: &'s Ring,
    pub(super) stream: &'s Stream,
    pub(super) cancel: Option<&'s CancelToken>,
    /// How many threads copy, the caller among them.
    pub(super) threads: usize,
}

impl Way<'_> {
    /// An error if the copy was cancelled when `done` of its bytes had been copied.
    pub(super) fn go_on(&self, done: usize, total: usize) -> Result<()> {
        match self.cancel {
            Some(token) if token.is_cancelled() => {
                Err(Error::CopyCancelled { done: done as u64, total: total as u64 })
            }
            _ => Ok(()),
        }
    }
}
