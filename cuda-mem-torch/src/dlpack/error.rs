//! Why a tensor is not taken, or given.

use std::fmt;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core as core;

/// Why a tensor is not taken, or given. The [module](super) has an example.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant names its fields")]
pub enum DlpackError {
    /// The driver refused.
    #[error(transparent)]
    Core(#[from] core::Error),
    /// There is no tensor.
    #[error("the address of the tensor is null")]
    Null,
    /// A structure that is not known.
    #[error("the tensor is of DLPack {major}.{minor}; this is for 1.x")]
    Version { major: u32, minor: u32 },
    /// Memory that is not of CUDA.
    #[error(
        "the tensor is on device {device_type}:{device_id}; accepted are CUDA (2), pinned host memory (3) and managed memory (13), of the {count} devices here"
    )]
    Device { device_type: i32, device_id: i32, count: usize },
    /// Memory that the driver does not know, or knows as something else.
    #[error("the tensor's memory at {address:#x} is {found}, not what its device {device_type} says")]
    Memory { address: u64, found: &'static str, device_type: i32 },
    /// An impossible number of dimensions.
    #[error("the tensor has {ndim} dimensions; accepted are 0 to 64")]
    Dimensions { ndim: i64 },
    /// There is no shape, or no data.
    #[error("the tensor's {what} is null, and it has {needs}")]
    Missing { what: &'static str, needs: &'static str },
    /// A size or a stride that is not possible.
    #[error("the tensor's {what} in dimension {dimension} is {value}; accepted are numbers from 0 on")]
    Extent { what: &'static str, dimension: usize, value: i64 },
    /// More bytes than an address space has.
    #[error("the tensor's size, with its strides, does not fit the address space")]
    TooLarge,
    /// Elements that are not made of whole bytes.
    #[error(
        "elements of {lanes} times {bits} bits (code {code}) are not supported; accepted are whole bytes"
    )]
    Type { code: u8, bits: u8, lanes: u16 },
    /// A shape that needs more memory than there is.
    #[error("a tensor of this shape has {needed} bytes; its memory has {len}")]
    Beyond { needed: usize, len: usize },
    /// A tensor that must not be written, in a form that cannot say so.
    #[error("a read-only tensor cannot be lent in the form before DLPack 1.0, which does not say so")]
    ReadOnly,
    /// A number that names no stream.
    #[error("{stream} names no stream; accepted are -1 (no order), 1 (the default stream) and handles")]
    Stream { stream: i64 },
    /// The default stream of a thread. What is put into it after the tensor was lent cannot be asked for in another thread, where the
    /// tensor may be given back. PyTorch does not lend for it either.
    #[error(
        "per-thread default stream is not supported; accepted are -1 (no order), 1 (the default stream) and handles"
    )]
    PerThread,
}

/// An error with what was to be lent. The [module](super) has an example.
pub struct Refused<O> {
    /// Why.
    pub error: DlpackError,
    /// What was passed.
    pub owner: O,
}

impl<O> From<Refused<O>> for DlpackError {
    fn from(refused: Refused<O>) -> Self {
        refused.error
    }
}

crate::impl_debug!([O] Refused<O>, |it| error: it.error);

impl<O> fmt::Display for Refused<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<O> std::error::Error for Refused<O> {}
