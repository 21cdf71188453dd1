//! Writes and reads the bytes that name shared memory, in the format of PyTorch's expandable segments.

use crate::error::HandleError;

/// The versions of the format that are known: PyTorch 2.11 and 2.12 write and read the first, later ones the second. A reader takes
/// handles of both for memory of `cuMemAlloc`, and of its own alone for mapped memory.
pub(crate) const VERSIONS: [u8; 2] = [2, 3];
/// What the header says of its handles from the second on: that they are descriptors, or of a fabric.
const DESCRIPTORS: i32 = 1;
const OF_FABRIC: i32 = 2;
/// Bytes of the driver's handle.
const HANDLE: usize = 64;
/// Bytes of the header: process number with its padding, size and count of the handles.
const HEADER: u64 = 24;
/// Bytes that the second version has more.
const HANDLE_TYPE: u64 = 8;
/// More handles are no allocation: with the smallest, these are a terabyte.
const MOST_HANDLES: u64 = 1 << 19;
/// Begins the trailer, which PyTorch's reader does not look at.
const MAGIC: [u8; 8] = *b"cudamem2";

/// By which another process opens the memory of an allocation.
///
/// ```
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_torch::{CudaAllocator, NativeAllocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
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

/// What bytes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// Memory of `cuMemAlloc`, by the driver's handle.
    Legacy([u8; HANDLE]),
    /// Mapped memory.
    Mapped(Mapped),
    /// Mapped memory, by handles of a fabric.
    Fabric,
}

/// Handles of one size, side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// The exporter.
    pub(crate) pid: i32,
    /// Bytes of each handle.
    pub(crate) size: u64,
    /// The exporter's number for the descriptor of each handle.
    pub(crate) descriptors: Vec<i32>,
    pub(crate) offer: Option<Offer>,
}

/// Where the exporter hands the same descriptors to a process that may not take them: what the trailer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The name of the exporter's socket, whose lower half says when its process was started.
    pub(crate) socket: u128,
    /// The exporter's names for the handles. None is ever another handle's, where a descriptor's number may be.
    pub(crate) handles: Vec<u64>,
}

impl Named {
    pub(crate) fn write(&self, version: u8) -> Vec<u8> {
        let mut bytes = vec![version];
        match self {
            Self::Legacy(handle) => {
                bytes.push(b'c');
                bytes.extend(handle);
            }
            Self::Mapped(mapped) => mapped.write(version, &mut bytes),
            Self::Fabric => bytes.push(b'e'),
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
        let [_, known] = VERSIONS;
        if *version == 0 || *version > known {
            return Err(HandleError::Version { found: *version, known });
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
            b'e' => Self::read_mapped(rest, *version == known),
            &found => Err(HandleError::Kind { found }),
        }
    }

    fn read_mapped(rest: &[u8], has_type: bool) -> Result<Self, HandleError> {
        let mut reader = Reader(rest);
        let wrong = |expected| HandleError::Length { what: "mapped memory", expected, found: rest.len() + 2 };
        let header = 2 + HEADER + if has_type { HANDLE_TYPE } else { 0 };
        let short = || wrong(header);
        let pid = i32::from_ne_bytes(reader.take().ok_or_else(short)?);
        let _padding: [u8; 4] = reader.take().ok_or_else(short)?;
        let size = u64::from_ne_bytes(reader.take().ok_or_else(short)?);
        let count = u64::from_ne_bytes(reader.take().ok_or_else(short)?);
        if pid <= 0 {
            return Err(value("a process", pid, "numbers above 0"));
        }
        if size == 0 || size > 1 << 48 {
            return Err(value("a size of a handle of", size, "1 to 2^48 bytes"));
        }
        if count == 0 || count > MOST_HANDLES {
            return Err(value("a number of handles of", count, "1 to 524288"));
        }
        let is_fabric = if has_type {
            let handle_type = i32::from_ne_bytes(reader.take().ok_or_else(short)?);
            let _padding: [u8; 4] = reader.take().ok_or_else(short)?;
            if !(0..=OF_FABRIC).contains(&handle_type) {
                return Err(value("a type of handles of", handle_type, "0, 1 (descriptors) and 2 (fabric)"));
            }
            handle_type == OF_FABRIC
        } else {
            reader.0.len() as u64 == count * HANDLE as u64
        };
        if is_fabric {
            return Ok(Self::Fabric);
        }
        // At most 2^19 handles: it fits.
        let whole = header + count * 4;
        let mut descriptors = Vec::new();
        for _ in 0..count {
            let descriptor = i32::from_ne_bytes(reader.take().ok_or_else(|| wrong(whole))?);
            if descriptor < 0 {
                return Err(value("a descriptor", descriptor, "numbers from 0 on"));
            }
            descriptors.push(descriptor);
        }
        // Other bytes may follow, which PyTorch does not read either.
        let offer = Offer::read(reader, count);
        Ok(Self::Mapped(Mapped { pid, size, descriptors, offer }))
    }
}

impl Mapped {
    fn write(&self, version: u8, bytes: &mut Vec<u8>) {
        bytes.push(b'e');
        bytes.extend(self.pid.to_ne_bytes());
        // PyTorch finds what it has opened already by all bytes, the padding of its header too.
        bytes.extend([0; 4]);
        bytes.extend(self.size.to_ne_bytes());
        bytes.extend((self.descriptors.len() as u64).to_ne_bytes());
        if version == VERSIONS[1] {
            bytes.extend(DESCRIPTORS.to_ne_bytes());
            bytes.extend([0; 4]);
        }
        bytes.extend(self.descriptors.iter().flat_map(|descriptor| descriptor.to_ne_bytes()));
        if let Some(Offer { socket, handles }) = &self.offer {
            bytes.extend(MAGIC);
            bytes.extend(socket.to_ne_bytes());
            bytes.extend(handles.iter().flat_map(|handle| handle.to_ne_bytes()));
        }
    }
}

impl Offer {
    fn read(mut reader: Reader<'_>, count: u64) -> Option<Self> {
        let (magic, socket) = (reader.take()?, u128::from_ne_bytes(reader.take()?));
        let handles: Vec<u64> = (0..count).map_while(|_| reader.take()).map(u64::from_ne_bytes).collect();
        (magic == MAGIC && handles.len() as u64 == count).then_some(Self { socket, handles })
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
