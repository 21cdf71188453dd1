//! Safe pinned and device memory over the CUDA driver, loaded at run time.
//!
//! ```
//! use cuda_mem_core::{DeviceBuffer, Driver, Stream, host::{RegisterFlags, Registered}};
//!
//! let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
//! let stream = Stream::new(&context)?;
//!
//! let pinned = Registered::new(&context, vec![42u8; 1 << 20], RegisterFlags::default())?;
//! let device = DeviceBuffer::from_slice(&stream, pinned.as_slice()?)?;
//! assert_eq!(device.to_vec(&stream)?, pinned.as_slice()?);
//! # Ok::<(), cuda_mem_core::Error>(())
//! ```
//!
//! # What holds everywhere
//!
//! - **Memory under an asynchronous copy is never freed, read or written too early.** A copy owns its host memory ([`Transfer`]),
//!   runs in a closure that always waits ([`scope()`]), has ended when it returns ([`DeviceRange`], [`copy::Stager`]), or is an
//!   `unsafe fn` ([`copy::memcpy_async`]). `mem::forget` breaks none of them. If the driver refuses for a minute to wait for a copy of memory
//!   that is only borrowed, by a scope or by a call that returns behind the copy, the process is aborted with a message.
//! - **A buffer remembers every stream that used it.** Uses on other streams, and its release, are ordered behind all of
//!   them, on the device.
//! - **The caller's world stays as it was**: the current context, the thread's capture mode, captures of other threads.
//! - **No safe call puts memory into a graph.** Every call may be made while streams capture, and leaves their captures alone. A call
//!   that gives memory to a stream that captures, or waits for work of such a stream, fails with [`Error::Capturing`]; memory that is
//!   dropped meanwhile is freed after the capture. A section `# Capture` says where a call differs.
//! - **Nothing panics on bad input**, and nothing is lost with an error: owners come back with it. Any call can fail with [`Error::Driver`],
//!   the driver's code, also for earlier work that failed; [`Error::OtherDevice`] in its place for a copy or fill on a stream whose device
//!   does not reach the memory; and [`Error::ForeignContext`] for a value of another context or driver. Any call that names a stream, or a use
//!   of memory on one, can fail with [`Error::WrongThread`] for another thread's per-thread default stream, and [`Error::Disowned`] for a
//!   stream whose owner has ended it, or may have; any that waits with [`Error::StillInUse`] if the driver kept refusing. A section `# Errors`
//!   names further errors; a call that is described "as" another one has that one's errors.
//! - **In a forked child** every call is [`Error::Forked`], and drops do nothing.

#![deny(unsafe_code)]

/// Implements [`Debug`](std::fmt::Debug) with the named fields alone.
#[doc(hidden)]
#[macro_export]
macro_rules! impl_debug {
    ($([$($bounds:tt)+])? $name:ident $(<$($parameter:tt),+>)? $(, |$it:ident| $($field:ident: $value:expr),+)?) => {
        impl $(<$($bounds)+>)? ::std::fmt::Debug for $name $(<$($parameter),+>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let mut debug = f.debug_struct(stringify!($name));
                $(let $it = self; $(debug.field(stringify!($field), &$value);)+)?
                debug.finish_non_exhaustive()
            }
        }
    };
}

// The layers, top to bottom: each imports those below it.
pub mod nvml;

pub mod copy;
pub mod raw_pool;

pub mod ipc;
pub mod vmm;

mod buffer;
mod fence;

pub mod host;

pub mod pointer;
mod uses;

mod stream;

mod driver;
mod element;

mod error;

pub use buffer::{DeviceBuffer, DeviceRange, ManagedBuffer, MemorySource, UsedElsewhere};
pub use copy::{Scope, Transfer, scope};
pub use cuda_mem_sys as sys;
#[doc(hidden)]
pub use driver::deferred::catch_panic;
pub use driver::fork::forked;
pub use driver::{Context, Device, Driver, Event, LateReports, MemoryInfo};
pub use element::DeviceCopy;
pub use error::{DriverError, Error, Refused, RegisteredBy, Result};
pub use fence::{Fence, FenceLine, ReservedFence};
pub use host::PinnedBuffer;
pub use stream::{CaptureId, CapturePast, CapturePoint, ForeignStream, Stream, StreamId, stream_mem};
pub use uses::{StreamUse, UsePoint, Uses};

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
