//! Device memory by legacy handles.
//!
//! # Safety
//!
//! Relies on `cuMemAlloc` giving memory that belongs to its receiver until `cuMemFree`, on `cuIpcOpenMemHandle` giving an address
//! that is valid until it was closed as often as it was opened, and on every use of either being in its [`Uses`](crate::Uses): work that is
//! put into a stream without [`DeviceAllocation::on`] or [`OpenedMemory::on`] is its author's `unsafe` responsibility.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ops::Range;

use cuda_mem_sys::{CUdeviceptr, CUipcMem_flags, CUipcMemHandle_v1};

use crate::buffer::{Borrowed, used_memory};
use crate::driver::Context;
use crate::driver::deferred::{Owned, Release};
use crate::error::{Error, Refused, Result, WithBytes, call};
use crate::uses::{Block, Free};

/// Names a part of an allocation for other processes: the driver's 64 bytes for the whole of it, and where the part lies.
///
/// All of it may travel over any channel. It is valid while the process that made it lives and has not freed the memory.
/// [`OpenedMemory`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryHandle {
    base: [u8; 64],
    offset: u64,
    len: u64,
}

impl MemoryHandle {
    /// From what another process sent: the driver's bytes for the allocation, and where in it the memory lies.
    #[must_use]
    pub fn from_parts(base: [u8; 64], offset: u64, len: u64) -> Self {
        Self { base, offset, len }
    }

    /// The driver's bytes for the whole allocation, the same for every part of it.
    #[must_use]
    pub fn base(&self) -> &[u8; 64] {
        &self.base
    }

    /// Where in the allocation the memory begins, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A handle of `len` bytes at an address of another library's allocation, such as PyTorch's.
    ///
    /// Wraps [`cuMemGetAddressRange` and `cuIpcGetMemHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the allocation ends before; [`Error::Driver`]: code 1 for memory that is not of `cuMemAlloc` or is
    /// imported, 500 for an address that the driver does not know.
    ///
    /// # Safety
    ///
    /// A process that opens the handle reads and writes all of the allocation without this process knowing. The allocation must not
    /// be freed before that process has closed it.
    pub unsafe fn of_address(context: &Context, address: CUdeviceptr, len: u64) -> Result<Self> {
        let (start, bytes) = range_around(context, address)?;
        let offset = address.wrapping_sub(start);
        expect_inside(offset, len, bytes)?;
        let (_relaxed, _bound) = context.bind_relaxed()?;
        let mut handle = CUipcMemHandle_v1::default();
        // SAFETY: one handle to write; the driver checks the address; the context is current.
        unsafe { call!(context.driver(), cuIpcGetMemHandle(&mut handle, start)) }?;
        Ok(Self { base: handle.reserved.map(|byte| byte.to_ne_bytes()[0]), offset, len })
    }
}

impl_debug!(MemoryHandle, |it| offset: it.offset, len: it.len);

/// What such memory is allocated in: the driver shares whole pages, and what else lies in them would be shared too.
const PAGE: usize = 2 << 20;

/// Device memory of `cuMemAlloc`, which is what legacy handles name.
///
/// It has pages of its own, so that no handle of it shows anything else. Dropped, it waits for the device uses that it knows of
/// and is freed; it must not be before other processes have closed it.
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_core::ipc::DeviceAllocation;
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let memory = DeviceAllocation::new(&context, 100_000)?;
/// // SAFETY: the memory stays until the other process has closed what it opens by it.
/// let handle = unsafe { memory.handle(5000..6000) }?; // to be sent over any channel
/// assert_eq!((handle.offset(), handle.len()), (5000, 1000));
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceAllocation {
    /// Taken out when the memory is dropped.
    block: Owned<Block>,
    bytes: usize,
}

impl DeviceAllocation {
    /// At least `bytes` bytes, a multiple of 2 MiB. What is in it is undefined.
    ///
    /// Wraps [`cuMemAlloc`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`]; [`Error::Driver`]: code 2 for more than there is.
    pub fn new(context: &Context, bytes: usize) -> Result<Self> {
        let whole = bytes.max(1).checked_next_multiple_of(PAGE);
        let bytes = whole.ok_or(Error::TooLarge { count: bytes, size: 1 })?;
        context.driver().reclaim();
        let (_relaxed, _bound) = context.bind_relaxed()?;
        let mut address = 0;
        // SAFETY: one address to write; the context is current.
        unsafe { call!(context.driver(), cuMemAlloc(&mut address, bytes)) }.with_bytes(bytes)?;
        // SAFETY: memory that was just allocated.
        Ok(Self { block: unsafe { Block::new(address, context, Free::Device) }, bytes })
    }

    /// A handle of some of the bytes, for other processes.
    ///
    /// Wraps [`cuIpcGetMemHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html), whose handle is that of the
    /// whole allocation.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    ///
    /// # Safety
    ///
    /// No other process has the memory open by the result when this value frees it: CUDA does not say what comes of that
    /// ([`cuIpcCloseMemHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html)).
    pub unsafe fn handle(&self, range: Range<usize>) -> Result<MemoryHandle> {
        let Some(len) = range.end.checked_sub(range.start).filter(|_| range.end <= self.bytes) else {
            return Err(Error::OutOfRange { range, len: self.bytes });
        };
        // By its first byte: at its end another allocation may begin, which the driver would give a handle of.
        // SAFETY: device memory, of which nothing here borrows a slice; the caller's promise.
        let all = unsafe { MemoryHandle::of_address(&self.block.context, self.block.address, 0) }?;
        Ok(MemoryHandle { offset: all.offset + range.start as u64, len: len as u64, ..all })
    }

    /// Frees it now, and tells whether the driver took it. Waits for the device uses that it knows of, and the driver for all
    /// work of the context.
    ///
    /// Wraps [`cuMemFree`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    /// The memory comes back with the error.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        self.block.release(true).map_err(|error| Refused::new(error, self))
    }
}

used_memory!(
    DeviceAllocation,
    |this| this.block.address,
    this.bytes,
    Borrowed::of(&this.block.uses, &this.block.context)
);

/// Device memory of another process, opened by its handle.
///
/// Opened a second time, the same allocation has the same address here. Dropped, it waits for the device uses that it knows of,
/// and closes the memory once. The exporter frees the memory only after that; what happens otherwise, the driver does not define.
///
/// ```no_run
/// use cuda_mem_core::ipc::{DeviceAllocation, MemoryHandle, OpenedMemory};
/// use cuda_mem_core::{Driver, Stream};
///
/// # fn send(_: &MemoryHandle) {}
/// # fn receive() -> MemoryHandle { MemoryHandle::from_parts([0; 64], 0, 0) }
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let memory = DeviceAllocation::new(&context, 1 << 20)?;
/// // SAFETY: the memory stays until the other process has closed it.
/// send(&unsafe { memory.handle(4096..8192) }?);
///
/// // In the other process, which received the handle.
/// let theirs = OpenedMemory::open(&context, &receive())?;
/// assert_eq!(theirs.bytes(), 4096);
/// let stream = Stream::new(&context)?;
/// let address = theirs.on(&stream)?.address(); // for a kernel
/// # let _ = address;
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug)]
pub struct OpenedMemory {
    /// Taken out when the memory is closed or dropped.
    opened: Owned<Block>,
    offset: u64,
    len: usize,
    allocation: usize,
}

impl OpenedMemory {
    /// Opens memory of another process, for the context's device and its peers.
    ///
    /// Wraps [`cuIpcOpenMemHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html) with
    /// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, and `cuMemGetAddressRange`, with which the length is checked. The driver wants all
    /// memory of one device of a process to be opened in one context of each device here.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the allocation ends before the memory does; [`Error::Driver`]: code 1 for bytes that are no handle or whose
    /// memory was freed, 201 for a handle of this process, 400 if the process that made it has ended. Nothing is open then.
    pub fn open(context: &Context, handle: &MemoryHandle) -> Result<Self> {
        context.driver().reclaim();
        let mut base = 0;
        {
            let (_relaxed, _bound) = context.bind_relaxed()?;
            let raw = CUipcMemHandle_v1 {
                reserved: handle.base.map(|byte| std::ffi::c_char::from_ne_bytes([byte])),
            };
            let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
            // SAFETY: one address to write; any bytes may be asked about; the context is current.
            unsafe { call!(context.driver(), cuIpcOpenMemHandle(&mut base, raw, flags)) }?;
        }
        // From here on it is closed if anything is wrong.
        // SAFETY: just opened, by this value alone.
        let opened = unsafe { Block::new(base, context, Free::Opened) };
        let mut memory = Self { opened, offset: handle.offset, len: 0, allocation: 0 };
        let (_, bytes) = range_around(context, base)?;
        memory.allocation = bytes;
        memory.len = expect_inside(handle.offset, handle.len, bytes)?;
        Ok(memory)
    }

    /// How many bytes the whole allocation has that the memory is a part of.
    #[must_use]
    pub fn allocation_bytes(&self) -> usize {
        self.allocation
    }

    /// The context it was opened in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.opened.context
    }

    /// Has `guard` dropped once the memory is closed, which may be after this value's own end: a stream that captures is waited
    /// for later. If the driver refuses to close the memory, `guard` is never dropped.
    pub fn drop_after_close(&mut self, guard: impl Send + Sync + 'static) {
        self.opened.guards.add(guard);
    }

    /// Closes the memory, and tells whether the driver did. Waits for the device uses that it knows of.
    ///
    /// Wraps [`cuIpcCloseMemHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    /// The memory comes back with the error, still open.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        self.opened.release(true).map_err(|error| Refused::new(error, self))
    }
}

used_memory!(
    OpenedMemory,
    |this| this.opened.address + this.offset,
    this.len,
    Borrowed::of(&this.opened.uses, &this.opened.context)
);

/// The allocation that an address lies in: its start and its length.
fn range_around(context: &Context, address: CUdeviceptr) -> Result<(CUdeviceptr, usize)> {
    let (_relaxed, _bound) = context.bind_relaxed()?;
    let (mut start, mut bytes) = (0, 0);
    // SAFETY: an address and a size to write; the driver checks the address; the context is current.
    unsafe { call!(context.driver(), cuMemGetAddressRange(&mut start, &mut bytes, address)) }?;
    Ok((start, bytes))
}

/// `len` bytes from `offset` on lie within `bytes`.
fn expect_inside(offset: u64, len: u64, bytes: usize) -> Result<usize> {
    let end = offset.checked_add(len).and_then(|end| usize::try_from(end).ok()).filter(|&end| end <= bytes);
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    match end {
        Some(end) => Ok(end.saturating_sub(start)),
        None => {
            let end = start.saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
            Err(Error::OutOfRange { range: start..end, len: bytes })
        }
    }
}
