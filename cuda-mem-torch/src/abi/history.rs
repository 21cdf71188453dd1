//! What happened lately.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for what they pass.

#![allow(unsafe_code, reason = "takes pointers and functions of C")]

use std::ffi::{c_char, c_int};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::forked;
use cuda_mem_ipc::cuda_mem_pool::history::{self, HistoryOptions, RecordContext};
use cuda_mem_ipc::cuda_mem_pool::snapshot::Action;

use super::contexts;
pub use super::contexts::{cuda_mem_torch_gather_context, cuda_mem_torch_release_context};
use super::devices::DEVICES;
use super::error::{Failure, entry};
use super::pointers::{optional, read, text};

/// Which entries are recorded, and how many.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cuda_mem_torch_history_options {
    /// How many entries are kept, the newest ones.
    pub max_entries: u64,
    /// For what the context is recorded: 0 nothing, 1 blocks in use, 2 allocations too, 3 frees too. PyTorch's `RecordContext`.
    pub context: u32,
    /// What is not recorded: a bit for each action, by its number in the trace.
    pub skip_actions: u32,
    /// Tells the context; null for none. Called with no lock held.
    pub gather: cuda_mem_torch_gather_context,
    /// Takes it back.
    pub release: cuda_mem_torch_release_context,
    /// Whether earlier entries are forgotten.
    pub clear: bool,
}

/// Records on all devices from now on. If it does already, the options change.
///
/// # Safety
///
/// `options` points to them; their functions may be called by any thread until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_record_history(
    options: *const cuda_mem_torch_history_options,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let options = *unsafe { read(options, "options") }?;
        let level = match options.context {
            0 => RecordContext::Never,
            1 => RecordContext::State,
            2 => RecordContext::Alloc,
            3 => RecordContext::All,
            other => return Err(Failure::argument(format!("context is {other}; accepted: 0 to 3"))),
        };
        let skipped = (0u32..).zip(Action::ALL).filter(|(bit, _)| options.skip_actions >> bit & 1 == 1);
        let mut wanted = HistoryOptions::default()
            .with_max_entries(usize::try_from(options.max_entries).unwrap_or(usize::MAX))
            .with_skip_actions(skipped.map(|(_, action)| action))
            .with_clear_history(options.clear);
        if let Some(gather) = options.gather {
            wanted = wanted.with_frames(level, move || contexts::gather(gather, options.release));
        }
        DEVICES.record_history(Some(&wanted));
        Ok(())
    })
}

/// Records no more, and forgets all entries.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_stop_history() -> c_int {
    entry(|| {
        DEVICES.record_history(None);
        contexts::release_unused();
        Ok(())
    })
}

/// Whether it is recorded.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_is_history_enabled() -> bool {
    !forked() && DEVICES.is_recording()
}

/// What the calling thread says of what it does next; null is nothing.
///
/// # Safety
///
/// `metadata` is null or text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_set_user_metadata(metadata: *const c_char) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let metadata = optional(metadata, || unsafe { text(metadata, "metadata") })?;
        history::set_user_metadata(metadata.filter(|metadata| !metadata.is_empty()));
        Ok(())
    })
}

/// What is compiled in the calling thread from here on, on top of what it said before.
///
/// # Safety
///
/// `context` is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_push_compile_context(context: *const c_char) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        history::push_compile_context(unsafe { text(context, "context") }?);
        Ok(())
    })
}

/// Ends what [`cuda_mem_torch_push_compile_context`] said last in the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_pop_compile_context() -> c_int {
    entry(|| {
        history::pop_compile_context();
        Ok(())
    })
}
