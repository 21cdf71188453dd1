//! Values that mean something to the driver alone: its handles, which move between threads, and bytes, which travel to processes.
//!
//! # Safety
//!
//! Relies on the driver's own rule that its functions may be called from any thread with any handle; what a handle means
//! does not depend on the thread, but for the per-thread default stream, which [`crate::Stream`] guards.

#![allow(unsafe_code, reason = "declares driver handles Send and Sync")]

/// An opaque pointer that the driver gave out. It is never read through.
#[derive(Debug)]
pub(crate) struct Handle<T>(*mut T);

impl<T> Handle<T> {
    pub(crate) const fn new(raw: *mut T) -> Self {
        Self(raw)
    }

    #[inline]
    pub(crate) const fn raw(self) -> *mut T {
        self.0
    }
}

// Not derived: a derive would ask the same of `T`, which is never held.
impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl<T> Eq for Handle<T> {}

// SAFETY: the pointer is a name that only the driver looks behind, and the driver's functions are thread-safe
// (CUDA driver API, "Multi-threading": handles may be used by any thread of the process).
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above; sharing a reference to the name gives no access to anything behind it.
unsafe impl<T> Sync for Handle<T> {}

/// A type for 64 bytes that travel to another process as they are.
macro_rules! opaque {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name {
            bytes: [u8; 64],
        }

        impl $name {
            /// From the bytes that another process sent.
            #[must_use]
            pub fn from_bytes(bytes: [u8; 64]) -> Self {
                Self { bytes }
            }

            /// The bytes to send.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; 64] {
                &self.bytes
            }
        }

        impl_debug!($name);
    };
}

pub(crate) use opaque;
