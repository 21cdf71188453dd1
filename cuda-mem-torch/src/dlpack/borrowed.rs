//! Tensors of other libraries.
//!
//! # Safety
//!
//! Relies on the promise of the caller that passes a structure: it is as the standard says, and no other code calls its deleter.

#![allow(unsafe_code, reason = "reads structures of others, and calls their deleters")]

use std::slice;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::pointer::{MemoryKind, attributes};
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Context, Driver, Stream, StreamUse, Uses, forked};

use super::layout::{Layout, MOST_DIMENSIONS};
use super::{
    DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned,
    DLTensor, DlpackError, FLAG_READ_ONLY, VERSION,
};

/// A tensor that another library lends. Dropped, it is given back by its deleter, which is called once, also where the tensor was refused.
///
/// The uses that it is [told of](Borrowed::on) come before that. The host waits for them, whatever stream was named to the lender: the
/// standard does not say that a lender frees behind that stream, and PyTorch has the memory serve the stream that it was allocated on at
/// once. Where that is not possible, because a stream captures, the tensor is leaked and counted ([`Driver::release_failures`]): its
/// memory may be in use. The [module](super) has an example.
pub struct Borrowed {
    layout: Layout,
    address: u64,
    device: DLDevice,
    read_only: bool,
    uses: Uses,
    /// Given back last.
    lent: Lent,
}

/// The structure, until its deleter is called.
struct Lent {
    /// Calls the deleter; none once it is not to be called.
    give_back: Option<Box<dyn FnOnce()>>,
    stream: Option<Stream>,
    driver: Driver,
}

// SAFETY: the standard lets any thread have the structure and call its deleter.
unsafe impl Send for Lent {}
// SAFETY: shared, the deleter is not reached.
unsafe impl Sync for Lent {}

impl Borrowed {
    /// Takes a tensor over. `stream` is the one that was named to the lender, which has ordered it behind its own work; none if the
    /// lender was told to order nothing. The drop may wait for the device.
    ///
    /// # Errors
    ///
    /// [`DlpackError`] says what is wrong; the tensor is given back then. That of another major version is too, and nothing else of it is read.
    ///
    /// # Safety
    ///
    /// `tensor` is null, or as the standard says, and nobody else uses the structure or calls its deleter. The memory is not written
    /// by others while it is used. `stream`, if any, was named to the lender.
    pub unsafe fn from_versioned(
        context: &Context,
        tensor: *mut DLManagedTensorVersioned,
        stream: Option<&Stream>,
    ) -> Result<Self, DlpackError> {
        if tensor.is_null() {
            return Err(DlpackError::Null);
        }
        // SAFETY: the caller's promise; this field is in every version.
        let lent = Lent::new(context, tensor, unsafe { (*tensor).deleter }, stream);
        // SAFETY: as above.
        let version = unsafe { (*tensor).version };
        if version.major != VERSION.major {
            return Err(DlpackError::Version { major: version.major, minor: version.minor });
        }
        // SAFETY: the caller's promise, for this version.
        let DLManagedTensorVersioned { flags, dl_tensor, .. } = unsafe { &*tensor };
        // SAFETY: as above.
        unsafe { Self::of(context, dl_tensor, flags & FLAG_READ_ONLY != 0, lent) }
    }

    /// As [`Borrowed::from_versioned`], for the form before version 1.0.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn from_legacy(
        context: &Context,
        tensor: *mut DLManagedTensor,
        stream: Option<&Stream>,
    ) -> Result<Self, DlpackError> {
        // SAFETY: the caller's promise.
        let DLManagedTensor { dl_tensor, deleter, .. } =
            unsafe { tensor.as_ref() }.ok_or(DlpackError::Null)?;
        let lent = Lent::new(context, tensor, *deleter, stream);
        // SAFETY: the caller's promise.
        unsafe { Self::of(context, dl_tensor, false, lent) }
    }

    /// # Safety
    ///
    /// The tensor's shape and strides are as many numbers as it has dimensions, or null.
    unsafe fn of(
        context: &Context,
        tensor: &DLTensor,
        read_only: bool,
        lent: Lent,
    ) -> Result<Self, DlpackError> {
        let dimensions = usize::try_from(tensor.ndim).ok().filter(|&count| count <= MOST_DIMENSIONS);
        let dimensions = dimensions.ok_or(DlpackError::Dimensions { ndim: tensor.ndim.into() })?;
        // SAFETY: the caller's promise.
        let shape = unsafe { numbers(tensor.shape, dimensions) };
        let shape = shape.ok_or(DlpackError::Missing { what: "shape", needs: "dimensions" })?;
        // SAFETY: the caller's promise.
        let strides = unsafe { numbers(tensor.strides, dimensions) };
        let layout = Layout::new(tensor.dtype, shape, strides)?;
        let data = tensor.data.expose_provenance() as u64;
        if data == 0 && layout.bytes > 0 {
            return Err(DlpackError::Missing { what: "data", needs: "elements" });
        }
        let address = data.checked_add(tensor.byte_offset);
        let address = address
            .filter(|address| address.checked_add(layout.bytes as u64).is_some())
            .ok_or(DlpackError::TooLarge)?;
        expect_device(context, tensor.device)?;
        if layout.bytes > 0 {
            expect_memory(context, tensor.device, address)?;
            expect_all_of_it(context, address, layout.bytes)?;
        }
        Ok(Self { layout, address, device: tensor.device, read_only, uses: Uses::new(), lent })
    }

    /// Where its first element is; 0 if it has none and no memory.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes are from its first to behind its last element.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layout.bytes
    }

    /// The elements in each dimension.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        &self.layout.shape
    }

    /// How many elements are from one to the next in each dimension.
    #[must_use]
    pub fn strides(&self) -> &[i64] {
        &self.layout.strides
    }

    /// What its elements are.
    #[must_use]
    pub fn dtype(&self) -> DLDataType {
        self.layout.dtype
    }

    /// Where its memory lies.
    #[must_use]
    pub fn device(&self) -> DLDevice {
        self.device
    }

    /// Whether its lender forbids to write it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Says that work which uses the memory is about to be put into `stream`, which is ordered behind the stream that the lender
    /// was named, and gives its address.
    ///
    /// # Errors
    ///
    /// As [`Uses::on`]; `ForeignContext` in [`DlpackError::Core`] for another driver's stream.
    pub fn on<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>, DlpackError> {
        self.lent.driver.expect_same(stream.context().driver(), "the stream")?;
        if let Some(ready) = &self.lent.stream {
            stream.wait_stream(ready)?;
        }
        Ok(self.uses.on(self.address, stream)?)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if forked() || self.uses.is_empty() {
            return;
        }
        if let Err(error) = self.uses.wait() {
            // Still in use, for all that is known: it is not given back.
            self.lent.give_back = None;
            self.lent.driver.report_release_failure(&error);
        }
    }
}

impl Lent {
    fn new<M: 'static>(
        context: &Context,
        managed: *mut M,
        deleter: Option<unsafe extern "C" fn(*mut M)>,
        stream: Option<&Stream>,
    ) -> Self {
        let give_back = deleter.map(|delete| -> Box<dyn FnOnce()> {
            // SAFETY: called once, with its structure, which was handed over.
            Box::new(move || unsafe { delete(managed) })
        });
        Self { give_back, stream: stream.cloned(), driver: context.driver() }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // What is lent is the parent's in a forked child.
        if let Some(give_back) = self.give_back.take().filter(|_| !forked()) {
            give_back();
        }
    }
}

/// # Safety
///
/// `first` is null, or of `count` numbers that live as long as the result.
unsafe fn numbers<'n>(first: *const i64, count: usize) -> Option<&'n [i64]> {
    if count == 0 {
        return Some(&[]);
    }
    if first.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; at most 64.
    Some(unsafe { slice::from_raw_parts(first, count) })
}

fn expect_device(context: &Context, device: DLDevice) -> Result<(), DlpackError> {
    let DLDevice { device_type, device_id } = device;
    let count = context.driver().device_count()?;
    let known = matches!(device_type, DL_CUDA | DL_CUDA_HOST | DL_CUDA_MANAGED);
    // Pinned memory is no device's; some libraries number it all the same.
    let numbered = device_type == DL_CUDA_HOST || usize::try_from(device_id).is_ok_and(|id| id < count);
    if known && numbered { Ok(()) } else { Err(DlpackError::Device { device_type, device_id, count }) }
}

fn expect_memory(context: &Context, device: DLDevice, address: u64) -> Result<(), DlpackError> {
    let known = attributes(context, address)?;
    let device_type = device.device_type;
    let wrong = |found| Err(DlpackError::Memory { address, found, device_type });
    match (device_type, known.kind) {
        (_, MemoryKind::Unknown) => wrong("unknown to the driver"),
        (DL_CUDA, MemoryKind::Device) if known.device != device.device_id => wrong("another device's"),
        (DL_CUDA, MemoryKind::Device) | (DL_CUDA_HOST, MemoryKind::Host) => Ok(()),
        (DL_CUDA_MANAGED, _) if known.managed => Ok(()),
        (_, MemoryKind::Host) => wrong("host memory"),
        (_, MemoryKind::Device) => wrong("device memory"),
        _ => wrong("of another kind"),
    }
}

/// The driver knows all bytes, as far as it tells where memory ends.
fn expect_all_of_it(context: &Context, address: u64, needed: usize) -> Result<(), DlpackError> {
    let end = address.saturating_add(needed as u64);
    let mut at = address;
    while at < end {
        let known = attributes(context, at)?;
        if known.kind == MemoryKind::Unknown {
            let len = usize::try_from(at.saturating_sub(address)).unwrap_or(usize::MAX);
            return Err(DlpackError::Beyond { needed, len });
        }
        let next = known.range_start.saturating_add(known.range_size as u64);
        if next <= at {
            // It does not tell.
            return Ok(());
        }
        at = next;
    }
    Ok(())
}

crate::impl_debug!(Borrowed, |it|
    address: format_args!("{:#x}", it.address), device: it.device, dtype: it.layout.dtype,
    shape: it.layout.shape, strides: it.layout.strides
);
