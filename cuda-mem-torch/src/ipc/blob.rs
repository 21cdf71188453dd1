//! The bytes themselves.

use std::sync::Arc;

/// The version that is written; readers know this one and those before.
const VERSION: u8 = 2;
/// The driver's handle.
const HANDLE: usize = 64;
/// More pieces are no allocation: with the smallest, these are a terabyte.
const MOST_PIECES: u64 = 1 << 19;

/// The kinds that there are, for errors.
const KINDS: &str = "c (cuMemAlloc), e (mapped, pieces of one size), m (mapped, pieces of several sizes)";

/// By which another process opens the memory of an allocation.
///
/// ```
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_torch::{CudaAllocator, NativeAllocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let allocator = NativeAllocator::new(driver);
/// allocator.init(1)?;
/// let block = allocator.malloc(4096, context.device(), &Stream::new(&context)?)?;
/// // SAFETY: the block is freed when nobody uses it any more.
/// let shared = unsafe { allocator.share_ipc_handle(block) }?;
/// assert!(!shared.handle.is_empty()); // to be sent; there: CudaAllocator::ipc_dev_ptr(&handle), and the offset added to its address
/// // SAFETY: nothing uses it.
/// unsafe { allocator.raw_delete(block) }?;
/// # Ok::<(), cuda_mem_torch::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShareableHandle {
    /// Where in the memory the allocation begins, in bytes.
    pub offset: u64,
    /// What names the memory.
    pub handle: Vec<u8>,
}

/// Why bytes name no memory.
///
/// ```
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
/// use cuda_mem_torch::{CudaAllocator, Error, NativeAllocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let allocator = NativeAllocator::new(driver);
/// allocator.init(1)?;
/// let context = driver.device(0)?.primary_context()?;
/// let wrong = context.with_current(|| allocator.ipc_dev_ptr(b"no handle"))?;
/// assert!(matches!(wrong, Err(Error::Handle(_))));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// They end too early, or late.
    #[error("a handle of {what} has {expected} bytes, not {found}")]
    Length {
        /// What it is of.
        what: &'static str,
        /// How many it should have.
        expected: u64,
        /// How many it has.
        found: usize,
    },
    /// A later version.
    #[error("the handle is of version {found}, from a later PyTorch; known are the versions up to {known}")]
    Version {
        /// The version.
        found: u8,
        /// The last that is known.
        known: u8,
    },
    /// A kind that there is not.
    #[error("the handle is of kind {found:#04x}; known are {KINDS}")]
    Kind {
        /// The kind.
        found: u8,
    },
    /// A number in it that cannot be.
    #[error("the handle says {what} {found}; accepted are {accepted}")]
    Value {
        /// Which number.
        what: &'static str,
        /// What it is.
        found: i128,
        /// What could be.
        accepted: &'static str,
    },
    /// The exporter's descriptor was not to be had.
    #[error(
        "{call} for process {pid} failed: {source}; it must be alive, and this process allowed to take its \
         descriptors (same user, ptrace_scope, container; Linux 5.6 or newer)"
    )]
    Exporter {
        /// The system call.
        call: &'static str,
        /// The process.
        pid: i32,
        /// The system's reason.
        source: Arc<std::io::Error>,
    },
    /// Somebody else's import or release of the same memory did not end in time.
    #[error("another import or release of the same memory did not end in time")]
    Busy,
}

/// What bytes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    Legacy([u8; HANDLE]),
    Mapped { pid: i32, pieces: Vec<Piece> },
}

/// A piece of mapped memory: its bytes, and the exporter's number for its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) bytes: u64,
    pub(crate) descriptor: i32,
}

impl Named {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        match self {
            Self::Legacy(handle) => {
                bytes.push(b'c');
                bytes.extend(handle);
            }
            Self::Mapped { pid, pieces } => {
                let size = pieces.first().map_or(0, |piece| piece.bytes);
                let uniform = pieces.iter().all(|piece| piece.bytes == size);
                bytes.push(if uniform { b'e' } else { b'm' });
                bytes.extend(pid.to_ne_bytes());
                bytes.extend([0; 4]);
                bytes.extend(if uniform { size } else { 0 }.to_ne_bytes());
                bytes.extend((pieces.len() as u64).to_ne_bytes());
                for piece in pieces {
                    if !uniform {
                        bytes.extend(piece.bytes.to_ne_bytes());
                    }
                    bytes.extend(piece.descriptor.to_ne_bytes());
                }
            }
        }
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, HandleError> {
        // Before there were versions: the driver's handle alone.
        if let Ok(handle) = <[u8; HANDLE]>::try_from(bytes) {
            return Ok(Self::Legacy(handle));
        }
        let [version, kind, rest @ ..] = bytes else {
            return Err(HandleError::Length { what: "any kind, at least", expected: 2, found: bytes.len() });
        };
        if *version == 0 || *version > VERSION {
            return Err(HandleError::Version { found: *version, known: VERSION });
        }
        match kind {
            b'c' => match <[u8; HANDLE]>::try_from(rest) {
                Ok(handle) => Ok(Self::Legacy(handle)),
                Err(_) => Err(HandleError::Length {
                    what: "memory of cuMemAlloc",
                    expected: 2 + HANDLE as u64,
                    found: bytes.len(),
                }),
            },
            b'e' => Self::read_mapped(rest, true),
            b'm' => Self::read_mapped(rest, false),
            &found => Err(HandleError::Kind { found }),
        }
    }

    fn read_mapped(rest: &[u8], uniform: bool) -> Result<Self, HandleError> {
        let mut reader = Reader(rest);
        let wrong = |expected| HandleError::Length { what: "mapped memory", expected, found: rest.len() + 2 };
        let short = || wrong(2 + 24);
        let pid = i32::from_ne_bytes(reader.take().ok_or_else(short)?);
        let _padding: [u8; 4] = reader.take().ok_or_else(short)?;
        let size = u64::from_ne_bytes(reader.take().ok_or_else(short)?);
        let count = u64::from_ne_bytes(reader.take().ok_or_else(short)?);
        if pid <= 0 {
            return Err(value("a process", pid, "numbers above 0"));
        }
        if count == 0 || count > MOST_PIECES {
            return Err(value("a number of pieces of", count, "1 to 524288"));
        }
        // Of at most 2^19 pieces: it fits.
        let whole = 2 + 24 + count * if uniform { 4 } else { 12 };
        if rest.len() as u64 + 2 != whole {
            return Err(wrong(whole));
        }
        let mut pieces = Vec::new();
        for _ in 0..count {
            let bytes = match uniform {
                true => size,
                false => u64::from_ne_bytes(reader.take().ok_or_else(|| wrong(whole))?),
            };
            let descriptor = i32::from_ne_bytes(reader.take().ok_or_else(|| wrong(whole))?);
            if bytes == 0 || bytes > 1 << 48 {
                return Err(value("a size of a piece of", bytes, "1 to 2^48 bytes"));
            }
            if descriptor < 0 {
                return Err(value("a descriptor", descriptor, "numbers from 0 on"));
            }
            pieces.push(Piece { bytes, descriptor });
        }
        Ok(Self::Mapped { pid, pieces })
    }
}

fn value(what: &'static str, found: impl Into<i128>, accepted: &'static str) -> HandleError {
    HandleError::Value { what, found: found.into(), accepted }
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

#[cfg(test)]
#[path = "blob/tests.rs"]
mod tests;
