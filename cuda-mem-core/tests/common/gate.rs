//! A stream that is held up until a test lets it go.

use std::sync::atomic::{AtomicU64, Ordering};

use cuda_mem_core::host::{HostMemory, PinnedFlags};
use cuda_mem_core::stream_mem::{self, WaitFlags};
use cuda_mem_core::{Context, PinnedBuffer, Stream};

/// A word that streams wait for. Dropped, it is open: a test that fails leaves nobody waiting.
pub(crate) struct Gate {
    word: PinnedBuffer<u64>,
}

impl Gate {
    pub(crate) fn new(context: &Context) -> Self {
        let word = PinnedBuffer::zeroed(context, 1, PinnedFlags::PORTABLE | PinnedFlags::MAPPED);
        Self { word: word.expect("a pinned word") }
    }

    /// A gate that holds `stream` up already.
    pub(crate) fn before(stream: &Stream) -> Self {
        let gate = Self::new(stream.context());
        gate.hold(stream);
        gate
    }

    /// Has `stream`'s later work wait until the gate is open.
    pub(crate) fn hold(&self, stream: &Stream) {
        let word = self.word.on(stream).expect("the word's address");
        // SAFETY: the word is freed only after the streams that its buffer knows of, and this is one, have passed the wait.
        unsafe { stream_mem::wait_value64(stream, word.address(), 1, WaitFlags::EQUAL) }
            .expect("a waiting stream");
    }

    /// Lets the streams go.
    pub(crate) fn open(&self) {
        let word = self.word.as_ptr().cast::<u64>().cast_mut();
        // SAFETY: an aligned, initialised word that lives as long as `self`; everybody accesses it atomically.
        unsafe { AtomicU64::from_ptr(word) }.store(1, Ordering::SeqCst);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}
