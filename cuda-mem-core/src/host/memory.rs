//! Host memory as its owners describe it.
//!
//! # Safety
//!
//! Each implementation below is for an owner whose memory stays where it is until the owner is dropped, however the owner
//! itself moves.

#![allow(unsafe_code, reason = "implements unsafe traits for owners of memory")]

use std::fs::File;
use std::sync::Arc;

use crate::element::DeviceCopy;
use crate::error::Result;
use crate::stream::Stream;

/// An owner of host memory that can be registered and copied from. Vectors, boxed slices and [`Arc`]s of such owners are.
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_core::host::{HostMemory, RegisterFlags, Registered};
///
/// struct Frame {
///     pixels: Box<[u8]>,
/// }
///
/// // SAFETY: the bytes lie on the heap and stay there; nobody but the owner has them, and a `&Frame` gives no way to them.
/// unsafe impl HostMemory for Frame {
///     fn as_ptr(&self) -> *const u8 {
///         self.pixels.as_ptr()
///     }
///
///     fn byte_len(&self) -> usize {
///         self.pixels.len()
///     }
///
///     fn is_writable(&self) -> bool {
///         true
///     }
/// }
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let frame = Frame { pixels: vec![0; 1 << 20].into() };
/// let pinned = Registered::new(&context, frame, RegisterFlags::default())?;
/// # drop(pinned);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
///
/// # Safety
///
/// While the owner exists, and until a method with `&mut self` is called on it, [`as_ptr`](HostMemory::as_ptr) returns the
/// same address, and [`byte_len`](HostMemory::byte_len) bytes from there stay mapped. If
/// [`is_writable`](HostMemory::is_writable), the pages may be written, and nothing that safe code can do with a `&Self`
/// reads or writes the bytes while a device writes them. What `touch` returns is good for that. Reading the bytes through a
/// device must be harmless at any time: what a mapping's pages hold may change or vanish.
pub unsafe trait HostMemory: Send + 'static {
    /// Where the bytes start.
    fn as_ptr(&self) -> *const u8;

    /// How many bytes there are.
    fn byte_len(&self) -> usize;

    /// Whether the pages may be written.
    fn is_writable(&self) -> bool;

    /// The file whose pages these are, from its start, if it can become shorter under the mapping, and a number of bytes:
    /// smaller pieces are read from the file for a copy, because the driver would load them through the mapping, and SIGBUS
    /// is what the host gets where the file has ended.
    fn file(&self) -> Option<(&File, usize)> {
        None
    }

    /// Orders `stream` behind the device uses of the memory that its owner knows of.
    #[doc(hidden)]
    fn order_behind_uses(&self, _stream: &Stream) -> Result<()> {
        Ok(())
    }

    /// Waits for the device uses of the memory that its owner knows of: whoever has the owner hands out the bytes.
    #[doc(hidden)]
    fn wait_for_uses(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the pages are a file's until they are written, and copies from then on (`MAP_PRIVATE`).
    fn is_copy_on_write(&self) -> bool {
        false
    }

    /// The size of the pages in bytes, where its owner has chosen it.
    #[doc(hidden)]
    fn page_size(&self) -> usize {
        super::system::page_size()
    }

    /// Whether other processes have the memory, too.
    #[doc(hidden)]
    fn is_shared(&self) -> bool {
        false
    }

    /// Where the bytes start, if all of them may be read and written through it while the owner is borrowed. Moves nothing.
    #[doc(hidden)]
    fn touch(&mut self) -> Option<*mut u8> {
        None
    }
}

/// An owner of host memory that is nothing but initialised elements, which the owner itself has no other way to change
/// while it is lent out. [`Registered`](super::Registered) has an example with a vector, which is one.
///
/// # Safety
///
/// [`HostMemory::as_ptr`] points to `byte_len / size_of::<Element>()` initialised, aligned elements that belong to the owner
/// alone; [`HostElements::as_mut_ptr`] returns the same address, good for writing, without moving anything.
pub unsafe trait HostElements: HostMemory {
    /// What the memory holds.
    type Element: DeviceCopy;

    /// Where the elements start.
    fn as_mut_ptr(&mut self) -> *mut Self::Element;
}

// SAFETY: a vector's elements lie on the heap, do not move with it, and a `&Vec` cannot reallocate them. They are plain
// memory of this process, and whoever has `&Vec` cannot have a device write them: that takes `HostElements` and `&mut`.
unsafe impl<T: DeviceCopy> HostMemory for Vec<T> {
    fn as_ptr(&self) -> *const u8 {
        Vec::as_ptr(self).cast::<u8>()
    }

    fn byte_len(&self) -> usize {
        size_of_val(self.as_slice())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn touch(&mut self) -> Option<*mut u8> {
        Some(Vec::as_mut_ptr(self).cast::<u8>())
    }
}

// SAFETY: `len` initialised elements that the vector owns alone.
unsafe impl<T: DeviceCopy> HostElements for Vec<T> {
    type Element = T;

    fn as_mut_ptr(&mut self) -> *mut T {
        Vec::as_mut_ptr(self)
    }
}

// SAFETY: as for a vector.
unsafe impl<T: DeviceCopy> HostMemory for Box<[T]> {
    fn as_ptr(&self) -> *const u8 {
        <[T]>::as_ptr(self).cast::<u8>()
    }

    fn byte_len(&self) -> usize {
        size_of_val::<[T]>(self)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn touch(&mut self) -> Option<*mut u8> {
        Some(<[T]>::as_mut_ptr(self).cast::<u8>())
    }
}

// SAFETY: as for a vector.
unsafe impl<T: DeviceCopy> HostElements for Box<[T]> {
    type Element = T;

    fn as_mut_ptr(&mut self) -> *mut T {
        <[T]>::as_mut_ptr(self)
    }
}

// SAFETY: a shared owner keeps the memory where it is for as long as any of its clones exists. It says that nothing may be
// written, so that no clone sees a device change the bytes.
unsafe impl<M: HostMemory + Sync> HostMemory for Arc<M> {
    fn as_ptr(&self) -> *const u8 {
        M::as_ptr(self)
    }

    fn byte_len(&self) -> usize {
        M::byte_len(self)
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn file(&self) -> Option<(&File, usize)> {
        M::file(self)
    }

    fn order_behind_uses(&self, stream: &Stream) -> Result<()> {
        M::order_behind_uses(self, stream)
    }

    fn wait_for_uses(&self) -> Result<()> {
        M::wait_for_uses(self)
    }

    fn is_copy_on_write(&self) -> bool {
        M::is_copy_on_write(self)
    }

    fn page_size(&self) -> usize {
        M::page_size(self)
    }

    fn is_shared(&self) -> bool {
        M::is_shared(self)
    }
}
