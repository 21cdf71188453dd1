//! Buffers that are lent to other libraries.
//!
//! # Safety
//!
//! Relies on the borrower calling the deleter once, as the standard says, with the structure that it got: until then the structure
//! and the buffer stay where they are.

#![allow(unsafe_code, reason = "takes the structure back from the borrower")]

use std::ptr;

use cuda_mem_ipc::cuda_mem_pool::PinnedBlock;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::host::HostMemory;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::pointer::{MemoryKind, attributes};
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{
    DeviceBuffer, DeviceCopy, PinnedBuffer, Stream, catch_panic, forked,
};

use super::layout::Layout;
use super::{
    DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned,
    DLTensor, DlpackError, FLAG_READ_ONLY, Refused, VERSION,
};

/// As the standard has it, pinned memory is of device 0.
const PINNED: DLDevice = DLDevice { device_type: DL_CUDA_HOST, device_id: 0 };

/// A buffer that can be lent: its memory stays where it is while it exists, and a stream can be entered as its user.
/// The [module](super) has an example.
///
/// # Safety
///
/// [`memory`](Lend::memory) is true for as long as the value exists, wherever that is moved, and the memory is released behind what the
/// streams of [`hand_to`](Lend::hand_to) were given by the time that the value is dropped.
pub unsafe trait Lend: Send + 'static {
    /// The address of the memory and its bytes; address 0 if there are none.
    fn memory(&self) -> (u64, usize);

    /// Where it lies.
    ///
    /// # Errors
    ///
    /// [`DlpackError::Memory`] if it is of no kind that the standard names, [`DlpackError::Core`] of the driver.
    fn device(&self) -> Result<DLDevice, DlpackError>;

    /// Orders `stream` behind what was put into others for the memory, and enters it as a user: the memory is released behind it.
    ///
    /// # Errors
    ///
    /// Those of the buffer's `on`.
    fn hand_to(&self, stream: &Stream) -> Result<(), DlpackError>;

    /// Has the host wait for what was put into streams for the memory.
    ///
    /// # Errors
    ///
    /// [`DlpackError::Core`] of the driver, also for a stream that captures.
    fn wait(&self) -> Result<(), DlpackError>;
}

// SAFETY: the buffer's own memory, which it has until it is dropped and releases behind its uses.
unsafe impl<T: DeviceCopy + Send> Lend for DeviceBuffer<T> {
    fn memory(&self) -> (u64, usize) {
        (self.as_raw(), self.size_bytes())
    }

    /// Asked of the driver: a resource's memory may be the host's, or managed.
    fn device(&self) -> Result<DLDevice, DlpackError> {
        let (address, own) = (self.as_raw(), self.context().device().as_raw());
        if address == 0 {
            return Ok(DLDevice { device_type: DL_CUDA, device_id: own });
        }
        let known = attributes(self.context(), address)?;
        let found = match known.kind {
            _ if known.managed => return Ok(DLDevice { device_type: DL_CUDA_MANAGED, device_id: own }),
            MemoryKind::Device => return Ok(DLDevice { device_type: DL_CUDA, device_id: known.device }),
            MemoryKind::Host => return Ok(PINNED),
            MemoryKind::Unknown => "unknown to the driver",
            _ => "of another kind",
        };
        Err(DlpackError::Memory { address, found, device_type: DL_CUDA })
    }

    fn hand_to(&self, stream: &Stream) -> Result<(), DlpackError> {
        drop(self.on(stream)?);
        Ok(())
    }

    fn wait(&self) -> Result<(), DlpackError> {
        Ok(self.synchronize()?)
    }
}

// SAFETY: the buffer's own memory, which it has until it is dropped and releases behind its uses.
unsafe impl<T: DeviceCopy + Send> Lend for PinnedBuffer<T> {
    fn memory(&self) -> (u64, usize) {
        let bytes = self.byte_len();
        (if bytes == 0 { 0 } else { HostMemory::as_ptr(self).expose_provenance() as u64 }, bytes)
    }

    fn device(&self) -> Result<DLDevice, DlpackError> {
        Ok(PINNED)
    }

    fn hand_to(&self, stream: &Stream) -> Result<(), DlpackError> {
        drop(self.on(stream)?);
        Ok(())
    }

    fn wait(&self) -> Result<(), DlpackError> {
        Ok(self.as_slice().map(drop)?)
    }
}

// SAFETY: the block's own memory, which it has until it is dropped and releases behind its uses.
unsafe impl Lend for PinnedBlock {
    fn memory(&self) -> (u64, usize) {
        (if self.is_empty() { 0 } else { self.as_ptr().expose_provenance() as u64 }, self.len())
    }

    fn device(&self) -> Result<DLDevice, DlpackError> {
        Ok(PINNED)
    }

    fn hand_to(&self, stream: &Stream) -> Result<(), DlpackError> {
        drop(self.on(stream)?);
        Ok(())
    }

    fn wait(&self) -> Result<(), DlpackError> {
        Ok(self.as_slice().map(drop)?)
    }
}

/// A buffer with a shape, to be lent. [The module](super) has an example.
#[derive(Debug)]
pub struct Tensor<O: Lend> {
    owner: O,
    device: DLDevice,
    layout: Layout,
    read_only: bool,
}

impl<O: Lend> Tensor<O> {
    /// A tensor of the buffer's memory from its start on, whose rows lie one behind the other. The driver is asked where the memory of a
    /// [`DeviceBuffer`] lies: what a resource gave may be pinned or managed, and is lent as that.
    ///
    /// # Errors
    ///
    /// The buffer comes back with the error: [`DlpackError::Beyond`] if it is too small, [`DlpackError::Type`], [`DlpackError::Extent`],
    /// [`DlpackError::TooLarge`], [`DlpackError::Dimensions`]; [`DlpackError::Memory`] and [`DlpackError::Core`] as [`Lend::device`].
    pub fn new(owner: O, dtype: DLDataType, shape: &[i64]) -> Result<Self, Refused<O>> {
        let layout = match Layout::new(dtype, shape, None) {
            Ok(layout) => layout,
            Err(error) => return Err(Refused { error, owner }),
        };
        let (_, len) = owner.memory();
        if layout.bytes > len {
            let error = DlpackError::Beyond { needed: layout.bytes, len };
            return Err(Refused { error, owner });
        }
        match owner.device() {
            Ok(device) => Ok(Self { owner, device, layout, read_only: false }),
            Err(error) => Err(Refused { error, owner }),
        }
    }

    /// Forbids the borrower to write.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Lends it, for work of the consumer's stream: that is ordered behind the buffer's uses so far, and the buffer is released
    /// behind the stream's work, when the deleter is called. Without a stream nothing is ordered: the consumer does it. Memory that the
    /// host reaches is lent once the buffer's uses have ended, whatever the stream: the consumer may read it without one.
    ///
    /// The consumer calls the structure's deleter once. A tensor that is never given back is leaked.
    ///
    /// # Errors
    ///
    /// The tensor comes back with the error, [`DlpackError::Core`] of the driver, also for a stream that captures;
    /// [`DlpackError::PerThread`] for the default stream of a thread.
    pub fn into_versioned(
        self,
        stream: Option<&Stream>,
    ) -> Result<*mut DLManagedTensorVersioned, Refused<Self>> {
        if let Err(error) = self.hand_to(stream) {
            return Err(Refused { error, owner: self });
        }
        let flags = if self.read_only { FLAG_READ_ONLY } else { 0 };
        Ok(lend(self, |dl_tensor| DLManagedTensorVersioned {
            version: VERSION,
            manager_ctx: ptr::null_mut(),
            deleter: Some(take_back),
            flags,
            dl_tensor,
        }))
    }

    /// As [`Tensor::into_versioned`], in the form before version 1.0.
    ///
    /// # Errors
    ///
    /// As there, and [`DlpackError::ReadOnly`]: the form cannot say that it must not be written.
    pub fn into_legacy(self, stream: Option<&Stream>) -> Result<*mut DLManagedTensor, Refused<Self>> {
        if self.read_only {
            return Err(Refused { error: DlpackError::ReadOnly, owner: self });
        }
        if let Err(error) = self.hand_to(stream) {
            return Err(Refused { error, owner: self });
        }
        Ok(lend(self, |dl_tensor| DLManagedTensor {
            dl_tensor,
            manager_ctx: ptr::null_mut(),
            deleter: Some(take_back),
        }))
    }

    /// The buffer, which is not lent.
    #[must_use]
    pub fn into_owner(self) -> O {
        self.owner
    }

    fn hand_to(&self, stream: Option<&Stream>) -> Result<(), DlpackError> {
        // A use of it gets its end now, and the borrower's work comes later.
        if stream.is_some_and(Stream::is_per_thread) {
            return Err(DlpackError::PerThread);
        }
        if self.device.device_type != DL_CUDA {
            self.owner.wait()?;
        }
        stream.map_or(Ok(()), |stream| self.owner.hand_to(stream))
    }
}

/// One of the standard's structures that is lent, with what it goes with. The borrower has the address of both.
#[repr(C)]
struct Manager<M> {
    _managed: M,
    /// Of any type, so that one function takes back what is lent.
    _owner: Box<dyn Send>,
    _layout: Layout,
}

fn lend<O: Lend, M>(tensor: Tensor<O>, make: impl FnOnce(DLTensor) -> M) -> *mut M {
    let Tensor { owner, device, mut layout, .. } = tensor;
    let (address, _) = owner.memory();
    let dl_tensor = DLTensor {
        data: ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0)),
        device,
        // At most 64.
        ndim: i32::try_from(layout.shape.len()).unwrap_or(0),
        dtype: layout.dtype,
        // They stay where they are when the vectors are moved.
        shape: layout.shape.as_mut_ptr(),
        strides: layout.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let manager = Manager { _managed: make(dl_tensor), _owner: Box::new(owner), _layout: layout };
    Box::into_raw(Box::new(manager)).cast()
}

/// The deleter of what is lent here.
///
/// # Safety
///
/// As the standard says: a structure that was lent here, once.
unsafe extern "C" fn take_back<M>(managed: *mut M) {
    if forked() {
        // All of it is the parent's.
        return;
    }
    // SAFETY: the caller's promise. A manager begins with the structure, and its address is that of the whole.
    let manager = unsafe { Box::from_raw(managed.cast::<Manager<M>>()) };
    // Nothing unwinds into the borrower: the panic hook has reported it.
    let _ = catch_panic(|| drop(manager));
}
