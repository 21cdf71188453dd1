//! What the resources give, by owner or by address.

use cuda_mem_core::Stream;
use cuda_mem_core::copy::memcpy_async;
use cuda_mem_pool::{Allocation, DeviceAccessible, Error, HostDeviceAccessible};

use super::kinds::Resource;

/// Memory that is out.
pub(super) enum Memory {
    OfDevice(Allocation<DeviceAccessible>),
    OfBoth(Allocation<HostDeviceAccessible>),
    /// By its address, with the streams of its allocation and of its last use.
    Raw {
        resource: Resource,
        address: u64,
        bytes: usize,
        home: Stream,
        last: Stream,
    },
}

impl Memory {
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::OfDevice(block) => block.address(),
            Self::OfBoth(block) => block.address(),
            Self::Raw { address, .. } => *address,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::OfDevice(block) => block.len(),
            Self::OfBoth(block) => block.len(),
            Self::Raw { bytes, .. } => *bytes,
        }
    }

    /// Its first address and the one behind its last.
    pub(super) fn span(&self) -> (u64, u64) {
        (self.address(), self.address() + self.len() as u64)
    }

    /// Has a device fill it. There is no fill by address.
    pub(super) fn fill(&mut self, stream: &Stream, value: u8) -> bool {
        match self {
            Self::OfDevice(block) => block.as_device_range().fill_bytes(stream, value).unwrap(),
            Self::OfBoth(block) => block.as_device_range().fill_bytes(stream, value).unwrap(),
            Self::Raw { .. } => return false,
        }
        true
    }

    /// Writes bytes of the host, from a place in it to its end.
    pub(super) fn write(&mut self, stream: &Stream, from: usize, source: &[u8]) {
        match self {
            Self::OfDevice(block) => {
                block.range(from..).unwrap().copy_from_slice(stream, source).unwrap();
            }
            Self::OfBoth(block) => block.as_mut_slice().unwrap()[from..].copy_from_slice(source),
            Self::Raw { address, last, .. } => {
                let (to, bytes) = (*address + from as u64, source.as_ptr().expose_provenance() as u64);
                copy_raw(stream, last, to, bytes, source.len());
            }
        }
    }

    pub(super) fn read(&mut self, stream: &Stream) -> Vec<u8> {
        match self {
            Self::OfDevice(block) => block.to_vec(stream).unwrap(),
            Self::OfBoth(block) => block.as_slice().unwrap().to_vec(),
            Self::Raw { address, bytes, last, .. } => {
                let mut target = vec![0_u8; *bytes];
                let to = target.as_mut_ptr().expose_provenance() as u64;
                copy_raw(stream, last, to, *address, *bytes);
                target
            }
        }
    }

    pub(super) fn close(self) {
        match self {
            Self::OfDevice(block) => block.close().unwrap(),
            Self::OfBoth(block) => block.close().unwrap(),
            raw @ Self::Raw { .. } => raw.free(None),
        }
    }

    /// Drops what has an owner; else frees it on the stream, or on that of its allocation. Nothing is freed by its address twice.
    pub(super) fn free(self, stream: Option<&Stream>) {
        let Self::Raw { resource, address, bytes, home, last } = self else { return };
        stream.unwrap_or(&home).wait_stream(&last).unwrap();
        resource.deallocate(address, bytes, stream).unwrap();
        let again = resource.deallocate(address, bytes, stream);
        match address {
            0 => again.unwrap(),
            _ => assert!(matches!(again, Err(Error::UnknownAddress { address: named }) if named == address)),
        }
    }
}

/// A copy on `stream`, behind what used the memory before.
fn copy_raw(stream: &Stream, last: &mut Stream, target: u64, source: u64, bytes: usize) {
    stream.wait_stream(last).unwrap();
    // SAFETY: memory that is out and a slice of the host's, both as long; it is waited for, whatever becomes of the copy.
    let copied = unsafe { memcpy_async(stream, target, source, bytes) };
    stream.synchronize().unwrap();
    copied.unwrap();
    *last = stream.clone();
}
