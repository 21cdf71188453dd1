//! From the C function that a program calls to the function of `api` that models it.
//!
//! A C function carries no state, so each entry point exists once a slot, in two variants: one for the legacy and one for
//! the per-thread default stream. Those are one jump each; what they share is compiled once.

#[macro_use]
mod memory_list;
#[macro_use]
mod newer_list;
#[macro_use]
mod runtime_list;
mod enter;
pub mod entries;
mod slots;

use std::ffi::{CStr, c_void};

pub(crate) use enter::{Door, HostFunction};
pub(crate) use newer_list::NEWER;
pub(crate) use slots::{DEFAULT_SLOT, clear, default_driver, find, mark_initialised, occupy};

/// How many simulators can live in a process at the same time.
pub(crate) const SLOTS: usize = 16;

/// The addresses of one function.
pub(crate) struct Row {
    /// The name that `cuGetProcAddress` knows.
    name: &'static str,
    /// The symbol that drivers export.
    export: &'static str,
    legacy: [*const c_void; SLOTS],
    per_thread: [*const c_void; SLOTS],
}

// SAFETY: the pointers are addresses of functions, which any thread may have.
unsafe impl Sync for Row {}

impl Row {
    /// Its address for a slot.
    pub(crate) fn address(&self, door: Door) -> *const c_void {
        let addresses = if door.per_thread { &self.per_thread } else { &self.legacy };
        addresses.get(door.slot).copied().unwrap_or(std::ptr::null())
    }

    /// The name that `cuGetProcAddress` knows.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }
}

/// The row of a function by its name in the lists, which for older ABIs is the one that `cuGetProcAddress` knows.
pub(crate) fn row(name: &str) -> Option<&'static Row> {
    rows().find(|row| row.name == name)
}

/// The row of a function by its exported symbol.
pub(crate) fn row_of_export(export: &CStr) -> Option<&'static Row> {
    rows().find(|row| row.export.as_bytes() == export.to_bytes())
}

/// Whether a function of this name can be called, and so be counted, delayed and made to fail.
pub(crate) fn is_function(name: &str) -> Option<&'static str> {
    let lookup = "cuGetProcAddress";
    rows().map(|row| row.name).chain([lookup]).find(|&known| known == name)
}

fn rows() -> impl Iterator<Item = &'static Row> {
    entries::runtime::ROWS.iter().chain(entries::memory::ROWS).chain(entries::newer::ROWS)
}
