//! What the program knows of a call, as pointers of its own, beside the frames that the history keeps.
//!
//! # Safety
//!
//! Relies on the context functions that C passes: what the first gives, the second takes back, once and in any thread.

#![allow(unsafe_code, reason = "calls functions of C")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, Weak};

use cuda_mem_ipc::cuda_mem_pool::snapshot::Frame;

use super::pointers::Data;
use super::pools::Owned;
use crate::lock::lock;

/// Tells where the calling thread is, as a pointer that is the history's from then on. It may be null.
pub type cuda_mem_torch_gather_context = Option<unsafe extern "C" fn() -> *mut c_void>;
/// Takes such a pointer back. It is called by any thread, with no lock held that the program knows.
pub type cuda_mem_torch_release_context = Option<unsafe extern "C" fn(context: *mut c_void)>;

#[derive(Default)]
struct Table {
    /// Those pointers, by the address of the frames that stand for each, which stays theirs as long as the entry is here.
    by_frames: HashMap<usize, (Weak<[Frame]>, Owned)>,
    /// So many are looked through for those that nobody has any more.
    sweep_at: usize,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// Frames that stand for what the program says of this call.
pub(super) fn gather(
    gather: unsafe extern "C" fn() -> *mut c_void,
    release: cuda_mem_torch_release_context,
) -> Arc<[Frame]> {
    // SAFETY: the caller's promise for the function.
    let raw = unsafe { gather() };
    if raw.is_null() {
        return Arc::<[Frame]>::from([]);
    }
    let frames: Arc<[Frame]> = [Frame { filename: "".into(), line: 0, name: "??".into() }].into();
    let entry = (Arc::downgrade(&frames), Owned { data: Data::new(raw), release });
    let gone = {
        let mut table = lock(&TABLE);
        let table = table.get_or_insert_default();
        table.by_frames.insert(frames.as_ptr().addr(), entry);
        let is_due = table.by_frames.len() >= table.sweep_at.max(1024);
        if is_due { table.take_unused() } else { Vec::new() }
    };
    // Without the lock: it is the program's code.
    drop(gone);
    frames
}

/// The program's pointer for frames; null without one. It stays as long as the frames do.
pub(super) fn of(frames: Option<&Arc<[Frame]>>) -> *mut c_void {
    let Some(frames) = frames.filter(|frames| !frames.is_empty()) else { return std::ptr::null_mut() };
    let table = lock(&TABLE);
    let found = table.as_ref().and_then(|table| table.by_frames.get(&frames.as_ptr().addr()));
    found.map_or(std::ptr::null_mut(), |(_, context)| context.data.raw())
}

/// Releases what nobody has any more.
pub(super) fn release_unused() {
    let gone = lock(&TABLE).as_mut().map(Table::take_unused);
    // As above.
    drop(gone);
}

impl Table {
    /// Takes out those that nobody has any more.
    fn take_unused(&mut self) -> Vec<Owned> {
        let gone = self.by_frames.extract_if(|_, (frames, _)| frames.strong_count() == 0);
        let gone = gone.map(|(_, (_, context))| context).collect();
        self.sweep_at = self.by_frames.len().saturating_mul(2);
        gone
    }
}
