//! [`PinnedVec`]: a vector in pinned memory.
//!
//! # Safety
//!
//! Relies on a [`PinnedBlock`] being `capacity` initialised bytes that it has alone, at a multiple of 256. No stream use is ever recorded in
//! the vector's block, for nothing here gives the block out: a device reads or writes the elements only for an operation that owns the vector, or
//! borrows it as the traits of [`HostMemory`] and [`HostElements`] have it. Elements are plain data: a copy of bytes moves them.

#![allow(unsafe_code, reason = "reads and writes elements in pinned memory")]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use cuda_mem_core::DeviceCopy;
use cuda_mem_core::host::{HostElements, HostMemory};

use super::allocator::PinnedCachingAllocator;
use super::block::PinnedBlock;
use crate::engine::classes;
use crate::error::{Error, Result};

/// A growing array of plain data in pinned memory out of a [`PinnedCachingAllocator`], to which it goes back when it is dropped.
///
/// It can be copied from and to by everything that takes host memory. It keeps the allocator alive. There is no `FromIterator`, for there may be
/// no memory: [`push`](PinnedVec::push) what an iterator gives.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Stream, Transfer};
/// use cuda_mem_pool::PinnedCachingAllocator;
/// use cuda_mem_pool::pinned_cache::PinnedVec;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = PinnedCachingAllocator::new(&context);
///
/// let mut batch = PinnedVec::new(&allocator);
/// batch.extend_from_slice(&[1.0f32, 2.0])?;
/// batch.push(3.0)?;
/// let device = DeviceBuffer::<f32>::uninit(&stream, 3)?;
/// let batch = Transfer::upload(&stream, batch, &device.whole())?.wait()?;
/// assert_eq!(batch[..], [1.0, 2.0, 3.0]);
/// assert_eq!(device.to_vec(&stream)?, batch[..]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PinnedVec<T: DeviceCopy> {
    allocator: PinnedCachingAllocator,
    /// None as long as no byte is needed.
    block: Option<PinnedBlock>,
    len: usize,
    _elements: PhantomData<T>,
}

impl<T: DeviceCopy> PinnedVec<T> {
    /// An empty vector. Takes no memory yet.
    #[must_use]
    pub fn new(allocator: &PinnedCachingAllocator) -> Self {
        const {
            assert!(align_of::<T>() <= classes::GRANULE, "pinned blocks are aligned to 256 bytes");
        }
        Self { allocator: allocator.clone(), block: None, len: 0, _elements: PhantomData }
    }

    /// An empty vector with room for `capacity` elements, which fails as [`PinnedCachingAllocator::allocate`] does.
    pub fn with_capacity(allocator: &PinnedCachingAllocator, capacity: usize) -> Result<Self> {
        let mut vec = Self::new(allocator);
        vec.reserve(capacity)?;
        Ok(vec)
    }

    /// How many elements fit before it takes another block.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        let bytes = self.block.as_ref().map_or(0, PinnedBlock::capacity);
        bytes.checked_div(size_of::<T>()).unwrap_or(usize::MAX)
    }

    /// Makes room for `additional` more elements, at least twice as many as now if that takes another block. Copies what is there.
    ///
    /// # Errors
    ///
    /// As [`PinnedCachingAllocator::allocate`]. The vector stays as it is.
    pub fn reserve(&mut self, additional: usize) -> Result<()> {
        let needed = self.len.checked_add(additional).ok_or(Error::TooLarge { bytes: usize::MAX })?;
        if needed <= self.capacity() {
            return Ok(());
        }
        let least = needed.saturating_mul(size_of::<T>());
        let twice = self.block.as_ref().map_or(0, PinnedBlock::capacity).saturating_mul(2);
        let block = self.allocator.allocate(if twice <= classes::MAX { least.max(twice) } else { least })?;
        let (from, to) = (self.start(), block.start.cast());
        // SAFETY: `len` elements lie at `from`, and the new block, which nobody else has, has room for more than that.
        unsafe { from.copy_to_nonoverlapping(to, self.len) };
        self.block = Some(block);
        Ok(())
    }

    /// Adds an element. Fails as [`PinnedVec::reserve`] does.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<()> {
        self.extend_from_slice(std::slice::from_ref(&value))
    }

    /// Adds all of `values`, or none if it fails as [`PinnedVec::reserve`] does.
    #[inline]
    pub fn extend_from_slice(&mut self, values: &[T]) -> Result<()> {
        self.reserve(values.len())?;
        // SAFETY: there is room for this many elements behind the first `len`.
        let end = unsafe { self.start().add(self.len) };
        // SAFETY: as above; a slice that somebody has is not in this vector, which is borrowed mutably.
        unsafe { end.copy_from_nonoverlapping(NonNull::from(values).cast(), values.len()) };
        self.len += values.len();
        Ok(())
    }

    /// Keeps the first `len` elements; all if there are fewer. The memory stays.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Keeps no element. The memory stays.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Where the elements start.
    #[inline]
    fn start(&self) -> NonNull<T> {
        self.block.as_ref().map_or(NonNull::dangling(), |block| block.start.cast())
    }
}

impl<T: DeviceCopy> Deref for PinnedVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements that this value alone has; no device writes them while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl<T: DeviceCopy> DerefMut for PinnedVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }
}

// SAFETY: the elements stay in the block until a method with `&mut self` takes another one. They are plain memory of this process, and whoever
// has `&PinnedVec` cannot have a device write them: that takes `HostElements` and `&mut`.
unsafe impl<T: DeviceCopy> HostMemory for PinnedVec<T> {
    fn as_ptr(&self) -> *const u8 {
        self.start().as_ptr().cast()
    }

    fn byte_len(&self) -> usize {
        size_of_val::<[T]>(self)
    }

    fn is_writable(&self) -> bool {
        true
    }
}

// SAFETY: `len` initialised elements that the vector owns alone.
unsafe impl<T: DeviceCopy> HostElements for PinnedVec<T> {
    type Element = T;

    fn as_mut_ptr(&mut self) -> *mut T {
        self.start().as_ptr()
    }
}

impl<T: DeviceCopy + fmt::Debug> fmt::Debug for PinnedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
