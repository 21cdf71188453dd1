//! Device memory, allocated and freed in stream order.
//!
//! # Safety
//!
//! Relies on `cuMemAllocAsync` giving memory that belongs to its receiver until `cuMemFreeAsync`, and on work of one stream
//! running in order. [`Uses`] names every stream that has work with the memory; the free is ordered behind all of them.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use cuda_mem_sys::{CUdeviceptr, CUresult};

use super::{Borrowed, DeviceRange, MemorySource};
use crate::driver::deferred::{Held, Owned, Release};
use crate::driver::{Context, Driver, Relaxed, refuse_forked};
use crate::element::{DeviceCopy, size_of_elements};
use crate::error::{Error, Refused, Result, WithBytes, call};
use crate::uses::{Access, StreamUse, Uses};

use crate::stream::{Entered, Stream};

/// Elements in device memory.
///
/// Allocated on a stream, from the pool that is current for the stream's device, and freed on it when dropped: after the
/// work of every stream that used the buffer, without the host waiting for any. (Only the free of a buffer whose stream was disowned, is a
/// [guest](Stream::guest), or is another thread's default stream, waits there: the stream has no name.)
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, Driver, Stream};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let stream = Stream::new(&context)?;
/// let buffer = DeviceBuffer::from_slice(&stream, &[1u32, 2, 3])?;
/// assert_eq!(buffer.to_vec(&stream)?, [1, 2, 3]);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
pub struct DeviceBuffer<T: DeviceCopy> {
    /// Taken out when the buffer is closed or dropped.
    block: Owned<Block>,
    len: usize,
    _elements: PhantomData<T>,
}

/// Device memory without its type: what there is to free.
#[derive(Debug)]
pub(super) struct Block {
    /// 0 if there are no bytes.
    address: CUdeviceptr,
    /// The stream that it was allocated on and is freed on.
    home: Stream,
    uses: Uses,
    /// The source that takes it back, and its layout; the driver if there is none.
    source: Option<(Arc<dyn MemorySource>, Layout)>,
}

impl<T: DeviceCopy> DeviceBuffer<T> {
    /// Memory for `len` elements with whatever bytes are there. Nothing is allocated for zero bytes.
    ///
    /// Wraps [`cuMemAllocAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html). Ordered on
    /// `stream`; the address is known at once, the memory may be used after this point of the stream.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`], [`Error::Driver`] (out of memory among others).
    pub fn uninit(stream: &Stream, len: usize) -> Result<Self> {
        stream.driver().reclaim();
        Self::allocate(stream, len, &Relaxed::enter(stream.driver())?)
    }

    /// The driver forbids allocation in every thread while any captures globally, unless the thread is in the relaxed mode.
    fn allocate(stream: &Stream, len: usize, _relaxed: &Relaxed) -> Result<Self> {
        let bytes = size_of_elements::<T>(len)?;
        const CALL: &str = "allocating device memory";
        stream.refuse_capturing(CALL)?;
        let mut address = 0;
        if bytes > 0 {
            let entered = stream.enter()?;
            stream.refuse_capturing(CALL)?;
            // SAFETY: one address to write; a live stream.
            unsafe { call!(stream.driver(), cuMemAllocAsync(&mut address, bytes, entered.raw())) }
                .with_bytes(bytes)?;
        }
        let block = Block { address, home: stream.clone(), uses: Uses::default(), source: None };
        let mut buffer = Self { block: Owned::new(block), len, _elements: PhantomData };
        buffer.block.uses = Uses::starting_on(stream)?;
        // A node of a graph would have it, which the free behind the capture's end is refused for.
        stream.spoil_capture(CALL)?;
        Ok(buffer)
    }

    /// Memory for `len` elements, all of whose bytes are zero.
    ///
    /// Adds [`cuMemsetD8Async`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html) to
    /// [`DeviceBuffer::uninit`]. Ordered on `stream`; uses on other streams wait for it.
    /// Errors: as [`DeviceBuffer::uninit`].
    pub fn zeroed(stream: &Stream, len: usize) -> Result<Self> {
        let buffer = Self::uninit(stream, len)?;
        buffer.whole().fill_bytes(stream, 0)?;
        Ok(buffer)
    }

    /// The elements of `source` in device memory. Returns when they are there.
    /// Errors: as [`DeviceBuffer::uninit`] and [`DeviceRange::copy_from_slice`].
    pub fn from_slice(stream: &Stream, source: &[T]) -> Result<Self> {
        stream.driver().reclaim();
        let relaxed = Relaxed::enter(stream.driver())?;
        let buffer = Self::allocate(stream, source.len(), &relaxed)?;
        buffer.whole().copy_from_slice_relaxed(stream, source, &relaxed)?;
        Ok(buffer)
    }

    /// The elements that fit into memory of a [`MemorySource`], which takes it back when the buffer is dropped: behind the work of
    /// every stream that used it.
    ///
    /// `stream` is the one that the memory was allocated on.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if a point of a per-thread default stream could not be remembered. The memory was given back then.
    ///
    /// # Safety
    ///
    /// `address` is memory of `layout`, allocated on `stream` from `source` and aligned for `T`, and no other code frees it. (The
    /// stream's device need not reach it: the driver refuses work of a device that does not.)
    pub unsafe fn from_source(
        stream: &Stream,
        address: CUdeviceptr,
        layout: Layout,
        source: Arc<dyn MemorySource>,
    ) -> Result<Self> {
        let len = layout.size().checked_div(size_of::<T>()).unwrap_or(0);
        let block =
            Block { address, home: stream.clone(), uses: Uses::default(), source: Some((source, layout)) };
        let mut buffer = Self { block: Owned::new(block), len, _elements: PhantomData };
        buffer.block.uses = Uses::starting_on(stream)?;
        Ok(buffer)
    }

    /// The same memory as elements of another type; as many as fit, and the bytes behind them stay unused. Makes no driver call.
    ///
    /// # Errors
    ///
    /// The buffer comes back with [`Error::Misaligned`] if the memory is not aligned for the type.
    pub fn cast<U: DeviceCopy>(self) -> Result<DeviceBuffer<U>, Refused<Self>> {
        let align = align_of::<U>();
        if !usize::try_from(self.block.address).is_ok_and(|address| address.is_multiple_of(align)) {
            let error = Error::Misaligned { address: self.block.address, align };
            return Err(Refused::new(error, self));
        }
        let len = self.size_bytes().checked_div(size_of::<U>()).unwrap_or(0);
        Ok(DeviceBuffer { block: self.block, len, _elements: PhantomData })
    }

    /// Takes the memory out, without waiting for or freeing anything: address, and the stream that it was allocated on. For
    /// memory of a [`MemorySource`], who must get it back some other way.
    #[must_use = "the memory is leaked unless it is freed by its address"]
    pub fn into_raw(self) -> (CUdeviceptr, Stream) {
        let block = self.block.into_inner();
        (block.address, block.home)
    }

    /// Waits until no recorded use of the memory runs any more, its allocation included. Blocks the calling thread.
    ///
    /// Wraps [`cuStreamSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html), or
    /// `cuEventSynchronize` where an event stands for a stream ([`Uses::wait`](crate::Uses::wait)).
    pub fn synchronize(&self) -> Result<()> {
        self.block.uses.wait()
    }

    /// Orders `stream` behind all recorded uses, without recording one.
    #[doc(hidden)]
    pub fn order_behind_uses(&self, stream: &Stream) -> Result<()> {
        self.block.home.driver().expect_same(stream.driver(), "the stream")?;
        self.block.uses.order(stream)
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        // Checked when the buffer was made.
        self.len.wrapping_mul(size_of::<T>())
    }

    /// The stream that it was allocated on and is freed on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.block.home
    }

    /// The context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.block.home.context()
    }

    /// Its address on the device; 0 if it has no bytes.
    ///
    /// For work that is ordered by other means than [`DeviceBuffer::on`]; the release does not know of it.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.block.address
    }

    /// Says that work which reads or writes the buffer is about to be put into `stream`, and gives the address for it.
    ///
    /// `stream` waits for all earlier uses on other streams; the host waits for nothing. Hold the result until the work is
    /// enqueued.
    ///
    /// # Capture
    ///
    /// On a capturing stream only if no other stream has used the buffer; the graph does not keep it alive.
    pub fn on<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>> {
        self.block.borrowed().on(self.block.address, stream)
    }

    /// As [`DeviceBuffer::on`], for work that only reads: readers on several streams do not wait for each other.
    pub fn on_read<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>> {
        self.block.home.driver().expect_same(stream.driver(), "the stream")?;
        StreamUse::begin(self.block.address, &self.block.uses, stream, Access::Read)
    }

    /// A part of it, by element numbers. Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if it reaches beyond the end or ends before it starts.
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<DeviceRange<'_, T>> {
        self.whole().range(range)
    }

    /// All of it.
    #[must_use]
    pub fn whole(&self) -> DeviceRange<'_, T> {
        DeviceRange::new(self.block.borrowed(), self.block.address, self.len)
    }

    /// Copies `source` into it. See [`DeviceRange::copy_from_slice`].
    pub fn copy_from_slice(&self, stream: &Stream, source: &[T]) -> Result<()> {
        self.whole().copy_from_slice(stream, source)
    }

    /// Copies it into `target`. See [`DeviceRange::copy_to_slice`].
    pub fn copy_to_slice(&self, stream: &Stream, target: &mut [T]) -> Result<()> {
        self.whole().copy_to_slice(stream, target)
    }

    /// Its elements in host memory. Returns when they are there.
    /// Errors: as [`DeviceRange::copy_to_slice`].
    pub fn to_vec(&self, stream: &Stream) -> Result<Vec<T>> {
        // SAFETY: `DeviceCopy` makes every bit pattern a value, zero too.
        let zero = unsafe { std::mem::zeroed::<T>() };
        let mut target = vec![zero; self.len];
        self.copy_to_slice(stream, &mut target)?;
        Ok(target)
    }

    /// Frees it now, in stream order, and tells whether the driver took it.
    ///
    /// Wraps [`cuMemFreeAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html), or asks the
    /// [`MemorySource`] that it came from.
    /// The buffer comes back with the error.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        self.block.release(true).map_err(|error| Refused::new(error, self))
    }
}

impl Held for Block {
    fn driver(&self) -> Driver {
        self.home.driver()
    }

    fn is_released(&self) -> bool {
        self.address == 0
    }
}

impl Release for Block {
    /// Frees the memory behind all its uses, in stream order where that is possible.
    fn release(&mut self, waits: bool) -> Result<()> {
        refuse_forked()?;
        if self.address == 0 {
            return Ok(());
        }
        match self.home.refuse_other_threads().and_then(|()| self.free_in_order()) {
            // Another thread's default stream has no name here, nor one that its owner may have destroyed.
            Err(Error::WrongThread | Error::Disowned) => self.free_waited(waits)?,
            freed => freed?,
        }
        self.address = 0;
        Ok(())
    }
}

impl Block {
    fn borrowed(&self) -> Borrowed<'_> {
        Borrowed::of(&self.uses, self.home.context())
    }

    /// Frees the memory on the stream that it was allocated on.
    fn free_in_order(&self) -> Result<()> {
        self.uses.order(&self.home)?;
        // SAFETY: memory that this value owns, freed once, in an order behind every stream that used it.
        unsafe { self.free_on(&self.home) }
    }

    /// Waits until nothing uses the memory any more, and frees it: without a stream, or on any that its source may take.
    fn free_waited(&mut self, waits: bool) -> Result<()> {
        self.uses.settle(waits)?;
        if self.source.is_some() {
            let stream = Stream::per_thread(self.home.context())?;
            // SAFETY: memory that this value owns, freed once; no use of it runs any more.
            return unsafe { self.free_on(&stream) };
        }
        let ((_relaxed, _bound), driver) = (self.home.context().bind_relaxed()?, self.home.driver());
        // SAFETY: as above.
        driver.free(waits, || unsafe { call!(driver, cuMemFree(self.address)) })
    }

    /// Frees the memory on a stream. After an error it is not freed.
    ///
    /// # Safety
    ///
    /// The memory was not freed, and all work that uses it is ordered before this point of `stream`.
    unsafe fn free_on(&self, stream: &Stream) -> Result<()> {
        match &self.source {
            // SAFETY: memory that came from there with this layout; the caller's promise.
            Some((source, layout)) => unsafe { source.deallocate(self.address, *layout, stream) },
            // SAFETY: memory of a pool of the stream's driver; the caller's promise.
            None => unsafe { free(self.address, stream) },
        }
    }
}

/// Frees memory that came from a pool, whichever. Nothing is done for address 0.
///
/// Wraps [`cuMemFreeAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html). Ordered on `stream`;
/// the host waits for nothing.
///
/// # Errors
///
/// [`Error::Driver`]: code 1 for an address that no allocation starts at. The memory is still allocated then.
///
/// # Safety
///
/// The memory was allocated from a pool of the stream's driver and is freed once; all work that uses it is ordered before this
/// point of `stream`.
pub unsafe fn free(address: CUdeviceptr, stream: &Stream) -> Result<()> {
    const CALL: &str = "freeing memory";
    if address == 0 {
        return refuse_forked();
    }
    let driver = stream.driver();
    let entered = stream.enter()?;
    if stream.is_legacy() {
        // Asked and not tried: beside a blocking stream's capture the mere mention of it ends that capture.
        stream.refuse_capturing(CALL)?;
    }
    let _relaxed = Relaxed::enter(driver)?;
    // SAFETY: the caller's promise; a live stream.
    let free = |entered: Entered<'_>| unsafe { call!(driver, cuMemFreeAsync(address, entered.raw())) };
    // Unlike a copy it was never seen to need the context; if some driver thinks otherwise, it gets it.
    let freed = match free(entered) {
        Err(error) if error.code() == Some(CUresult::CUDA_ERROR_INVALID_VALUE) => {
            stream.enter_context().and_then(free)
        }
        freed => freed,
    };
    match freed {
        // A capturing stream refuses memory from outside its graph, and the capture goes on (seen on hardware).
        Err(Error::Driver(error)) if error.is_capture() || stream.is_capturing().unwrap_or(false) => {
            Err(Error::Capturing { call: CALL })
        }
        freed => freed,
    }
}

impl_debug!([T: DeviceCopy] DeviceBuffer<T>, |it|
    address: format_args!("{:#x}", it.as_raw()), len: it.len, size_bytes: it.size_bytes(),
    stream: it.stream()
);
