//! Device memory by legacy handles.
//!
//! # Safety
//!
//! Relies on `cuIpcOpenMemHandle` giving an address that is valid until it was closed as often as it was opened, and on every use
//! of it being in its [`Uses`]: work that is put into a stream without [`OpenedMemory::on`] is its author's `unsafe`
//! responsibility.

#![allow(unsafe_code, reason = "calls driver functions")]

use cuda_mem_sys::{CUdeviceptr, CUipcMem_flags, CUipcMemHandle_v1};

use crate::buffer::{Borrowed, used_memory};
use crate::driver::deferred::{Companion, Held, Owned, Release};
use crate::driver::{Context, Driver, refuse_forked};
use crate::error::{Error, Refused, Result, call};
use crate::uses::Uses;

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

    /// A handle of `len` bytes at an address of somebody else's allocation, such as PyTorch's.
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
    /// Whoever gets the handle reads and writes all of the allocation without this process knowing. It must not be freed before
    /// they have closed it.
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

shown!(MemoryHandle, |it| offset: it.offset, len: it.len);

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
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // with a GPU: Driver::system()?
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
    opened: Owned<Opened>,
    offset: u64,
    len: usize,
    allocation: usize,
}

/// What there is to close.
#[derive(Debug)]
struct Opened {
    /// 0 once it is closed.
    base: CUdeviceptr,
    context: Context,
    uses: Uses,
    companion: Companion,
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
        let (uses, companion) = (Uses::new(), Companion::NONE);
        let opened = Opened { base, context: context.clone(), uses, companion };
        let mut memory = Self { opened: Owned::new(opened), offset: handle.offset, len: 0, allocation: 0 };
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
        self.opened.companion.add(guard);
    }

    /// Closes the memory, and tells whether the driver did. Waits for the device uses that it knows of.
    ///
    /// Wraps [`cuIpcCloseMemHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    /// The memory comes back with the error, still open.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        if let Err(error) = self.opened.release() {
            return Err(Refused::new(error, self));
        }
        Ok(())
    }
}

used_memory!(
    OpenedMemory,
    |this| this.opened.base + this.offset,
    this.len,
    Borrowed::of(&this.opened.uses, &this.opened.context)
);

impl Held for Opened {
    fn driver(&self) -> Driver {
        self.context.driver()
    }

    fn is_released(&self) -> bool {
        self.base == 0
    }
}

impl Release for Opened {
    fn release(&mut self) -> Result<()> {
        refuse_forked()?;
        if self.base == 0 {
            return Ok(());
        }
        self.uses.synchronize()?;
        let (_relaxed, _bound) = self.context.bind_relaxed()?;
        // SAFETY: opened once by this value and closed once; no use of it runs any more. The context is current.
        unsafe { call!(self.context.driver(), cuIpcCloseMemHandle(self.base)) }?;
        self.base = 0;
        Ok(())
    }
}

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
