//! How the allocators are set up.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for what they pass.

#![allow(unsafe_code, reason = "takes pointers of C")]

mod text;

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::Ordering;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::forked;
use cuda_mem_ipc::cuda_mem_pool::segments::Options;

use self::text::Settings;
use super::devices::DEVICES;
use super::error::{Failure, entry};
use super::{pointers, streams, uncached};
use crate::devices::MOST;

/// What private pools do. Its rounding and its threshold count for the default pool too.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct cuda_mem_torch_options {
    /// The segment that sizes between 1 and 10 MiB share, in bytes.
    pub large_segment_size: u64,
    /// Blocks of this many bytes and more are not split; the largest number for none.
    pub max_split_size: u64,
    /// How many bytes larger than its request a block may be that is not split.
    pub max_non_split_rounding_size: u64,
    /// Into how many steps sizes are rounded between powers of two, from 1 MiB on.
    pub roundup_power2_divisions: [u64; 16],
    /// Which part of the limit may be held before all that is free goes when more is needed; 0 for none.
    pub garbage_collection_threshold: f64,
}

fn set_options(options: Options) -> Result<(), Failure> {
    DEVICES.set_up(|setup| {
        setup.options.segments = options;
        DEVICES.all().try_for_each(|device| Ok(device.caching.set_segment_options(options)?))
    })
}

fn set_expandable(expandable: bool) -> Result<(), Failure> {
    DEVICES.set_up(|setup| {
        setup.is_fixed = !expandable;
        DEVICES.all().try_for_each(|device| Ok(device.caching.set_expandable_segments(expandable)?))
    })
}

/// Sets options, as a whole or not at all.
///
/// # Safety
///
/// `options` points to them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_set_options(options: *const cuda_mem_torch_options) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let asked = unsafe { pointers::read(options, "options") }?;
        let threshold = asked.garbage_collection_threshold;
        let limit = (asked.max_split_size != u64::MAX).then_some(asked.max_split_size);
        let options = Options::default()
            .with_large_segment_size(asked.large_segment_size)
            .with_max_split_size(limit)
            .with_max_non_split_rounding(Some(asked.max_non_split_rounding_size))
            .with_roundup_power2_divisions(asked.roundup_power2_divisions)
            .with_garbage_collection_threshold((threshold != 0.0).then_some(threshold));
        options.check().map_err(|error| Failure::argument(error.to_string()))?;
        set_options(options)
    })
}

/// Whether a block of a private pool that streams used during a capture, and that was freed, may serve that capture again once the
/// graph orders its stream behind those: PyTorch's `graph_capture_record_stream_reuse`. It may not at first.
///
/// # Safety
///
/// While it is on, memory is not allocated for a stream that captures, nor a block freed that such a stream used, beside another
/// thread that gives a stream of the same capture anything, changes its graph, or ends it. Who changes the graph leaves what came
/// before a node before it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_set_graph_capture_record_stream_reuse(reuse: bool) -> c_int {
    // SAFETY: the caller's promise.
    entry(|| Ok(unsafe { DEVICES.set_reuse(reuse) }?))
}

/// Sets whether the default pool grows by pages, which may move once they are free: PyTorch's `expandable_segments`. It does at first. Else
/// allocations get segments of `cuMemAlloc`, which never move; what there is stays where it is.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_set_expandable_segments(expandable: bool) -> c_int {
    entry(|| set_expandable(expandable))
}

/// Sets what text in the form of `PYTORCH_CUDA_ALLOC_CONF` says, as a whole or not at all; what it does not name gets its default,
/// but for the memory fraction. `note`, which may be null, is told of each setting that changes nothing here, and why.
///
/// # Safety
///
/// `settings` is text; `note` may be called with `data`; what
/// [`cuda_mem_torch_set_graph_capture_record_stream_reuse`] asks for, if the text says so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_set_settings(
    settings: *const c_char,
    data: *mut c_void,
    note: Option<unsafe extern "C" fn(data: *mut c_void, text: *const c_char)>,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let text = unsafe { pointers::text(settings, "settings") }?;
        let settings = Settings::parse(text)?;
        set_options(settings.options)?;
        // SAFETY: the caller's promise.
        unsafe { DEVICES.set_reuse(settings.reuse) }?;
        set_expandable(settings.expandable)?;
        if let Some(fraction) = settings.memory_fraction {
            (0..MOST).try_for_each(|number| DEVICES.set_memory_fraction(number, fraction))?;
        }
        if let Some(note) = note {
            for text in settings.notes {
                // SAFETY: the caller's promise.
                unsafe { note(data, pointers::c_text(&text).as_ptr()) };
            }
        }
        Ok(())
    })
}

/// Switches caching on or off. Off, each request goes to the driver and each free waits for the device, or for a later
/// call while a stream captures; what was cached stays.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_enable(caching: bool) {
    uncached::OFF.store(!caching, Ordering::Relaxed);
    streams::forget_all();
}

/// How many blocks there are that were made while it was off, which are in no statistics. Those that were freed while a stream captured are
/// among them until a later call has freed them. None in a forked child.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_uncached_blocks() -> usize {
    if forked() { 0 } else { uncached::COUNT.load(Ordering::Relaxed) }
}
