//! Recordings as a page, and as what other viewers read.
//!
//! # Safety
//!
//! Relies on the callers of the function for C, who promise that what is not null points to what the header says.

#![allow(unsafe_code, reason = "takes pointers and functions of C")]

use std::ffi::{c_char, c_int, c_void};

use cuda_mem_report::{Input, Options, Progress};

use super::error::{Failure, entry};
use super::pointers::{self, c_text, list, optional, read, text};

/// A recording: a snapshot in PyTorch's format (.pickle, .pickle.gz), of whichever allocator, or a trace (.csv, .csv.gz).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cuda_mem_torch_recording {
    /// Its file, a path that ends with a 0; null for one in memory.
    pub path: *const c_char,
    /// The bytes of one in memory.
    pub data: *const u8,
    /// How many.
    pub size: usize,
    /// What the page calls it; null for the file's name.
    pub name: *const c_char,
}

/// What is drawn, and where it goes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cuda_mem_torch_drawing {
    /// The recordings, which share the page.
    pub inputs: *const cuda_mem_torch_recording,
    /// How many, at least one.
    pub count: usize,
    /// An earlier snapshot, which the first recording is compared with; null for none.
    pub before: *const cuda_mem_torch_recording,
    /// The page's heading; null for the names of the recordings.
    pub title: *const c_char,
    /// The device that is shown first; a negative one for the one that has most.
    pub device: c_int,
    /// Where the page goes, a path that ends with a 0; null for none.
    pub page: *const c_char,
    /// Where the timeline goes for Perfetto, likewise.
    pub perfetto: *const c_char,
    /// Where live bytes at the peak go by call stack, for tools that draw flame graphs, likewise.
    pub folded: *const c_char,
    /// What `progress` is passed first.
    pub data: *mut c_void,
    /// Hears how far it is, a few times a second: what is done, and how much of how much; `total` is 0 where that is not known. May be null.
    pub progress:
        Option<unsafe extern "C" fn(data: *mut c_void, stage: *const c_char, done: u64, total: u64)>,
}

/// Draws recordings as one HTML page that needs nothing else, and writes what other viewers read. No driver is needed.
///
/// `CUDA_MEM_TORCH_INVALID_ARGUMENT` for what cannot be read, is no recording, or cannot be written: the message says which and why.
///
/// # Safety
///
/// `drawing` points to one whose pointers are as it says; `progress` may be called with `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_draw(drawing: *const cuda_mem_torch_drawing) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let drawing = unsafe { read(drawing, "drawing") }?;
        // SAFETY: the caller's promise.
        let inputs = unsafe { list(drawing.inputs, drawing.count, "inputs") }?;
        // SAFETY: the caller's promise.
        let inputs = inputs.iter().map(|input| unsafe { input.read() }).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: the caller's promise.
        let before = unsafe { drawing.before.as_ref() };
        let path = |from, what| {
            // SAFETY: the caller's promise.
            optional(from, || Ok(unsafe { pointers::path(from, what) }?.to_path_buf()))
        };
        let options = Options {
            device: (drawing.device >= 0).then(|| i64::from(drawing.device)),
            // SAFETY: the caller's promise.
            before: before.map(|before| unsafe { before.read() }).transpose()?,
            // SAFETY: the caller's promise.
            title: optional(drawing.title, || Ok(unsafe { text(drawing.title, "title") }?.to_owned()))?,
            page: path(drawing.page, "page")?,
            perfetto: path(drawing.perfetto, "perfetto")?,
            folded: path(drawing.folded, "folded")?,
            ..Options::default()
        };
        let mut progress = |Progress { stage, done, total }| {
            if let Some(tell) = drawing.progress {
                // SAFETY: the caller's promise.
                unsafe { tell(drawing.data, c_text(stage).as_ptr(), done, total) };
            }
        };
        let written = cuda_mem_report::write(&inputs, &options, &mut progress);
        written.map(drop).map_err(|error| Failure::argument(error.to_string()))
    })
}

impl cuda_mem_torch_recording {
    /// # Safety
    ///
    /// Its pointers are as it says.
    unsafe fn read(&self) -> Result<Input, Failure> {
        // SAFETY: the caller's promise.
        let input = match optional(self.path, || unsafe { pointers::path(self.path, "path") })? {
            Some(path) => Input::file(path),
            // SAFETY: the caller's promise.
            None => Input::bytes("a recording", unsafe { list(self.data, self.size, "data") }?.to_vec()),
        };
        // SAFETY: the caller's promise.
        let name = optional(self.name, || unsafe { text(self.name, "name") })?;
        Ok(name.into_iter().fold(input, Input::named))
    }
}
