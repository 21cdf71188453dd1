//! How host memory is registered: with how many threads, with a progress function, with a token that cancels it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::registered::RegisterFlags;

/// How [`Registered::with_options`](super::Registered::with_options) registers.
///
/// ```
/// use cuda_mem_core::host::{CancelToken, Progress, RegisterFlags, RegisterOptions};
///
/// let token = CancelToken::new(); // a clone of it may go to another thread
/// let show = |progress: Progress| println!("{progress:?}");
/// let options =
///     RegisterOptions::new().flags(RegisterFlags::MAPPED).threads(4).progress(&show).cancel(&token);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Default)]
#[must_use]
pub struct RegisterOptions<'a> {
    pub(super) flags: RegisterFlags,
    pub(super) threads: usize,
    pub(super) progress: Option<&'a dyn Fn(Progress)>,
    pub(super) cancel: Option<&'a CancelToken>,
}

impl<'a> RegisterOptions<'a> {
    /// Portable, with as many threads as there are cores up to 16, without progress or cancellation.
    pub fn new() -> Self {
        Self::default()
    }

    /// How the memory is registered; portable unless this is called.
    pub fn flags(mut self, flags: RegisterFlags) -> Self {
        self.flags = flags;
        self
    }

    /// How many threads bring the pages in, the calling one included. 0 stands for as many as there are cores, up to 16.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Has `progress` called from time to time, in the calling thread alone. If it panics, nothing is registered and the
    /// panic goes on. It must not register the same memory: that would wait for itself.
    pub fn progress(mut self, progress: &'a dyn Fn(Progress)) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Lets `token` stop the call while pages are brought in.
    pub fn cancel(mut self, token: &'a CancelToken) -> Self {
        self.cancel = Some(token);
        self
    }

    pub(super) fn tell(&self, progress: Progress) {
        if let Some(tell) = self.progress {
            tell(progress);
        }
    }
}

impl fmt::Debug for RegisterOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterOptions")
            .field("flags", &self.flags)
            .field("threads", &self.threads)
            .field("progress", &self.progress.is_some())
            .field("cancel", &self.cancel)
            .finish()
    }
}

/// How far a registration is. [`RegisterOptions`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Pages are brought in.
    Populating {
        /// Bytes that are there.
        bytes: usize,
        /// Bytes there will be.
        total: usize,
    },
    /// The driver registers the memory, in one call that cannot be cancelled.
    Registering,
}

/// Stops what it was given to. Clones stop the same.
#[derive(Debug, Clone, Default)]
pub struct CancelToken {
    cancelled: Arc<AtomicBool>,
}

impl CancelToken {
    /// One that stops nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops what it was given to, now and later.
    pub fn cancel(&self) {
        // Relaxed: it orders nothing but itself.
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether it was called on to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
