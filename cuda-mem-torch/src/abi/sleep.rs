//! Sleep and wake: memory of a tag goes back to the device, and comes back at the same addresses.
//!
//! # Safety
//!
//! Relies on the functions that C passes, which do not unwind, and on the callers' word that nothing uses what sleeps.

#![allow(unsafe_code, reason = "puts memory to sleep, and calls functions of C")]

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::sync::Mutex;

use cuda_mem_ipc::cuda_mem_pool::caching::{Backup, Notice, Restore, Tag};

use super::devices::{DEVICES, Device, device};
use super::error::{Failure, entry};
use super::pointers::{Data, c_text, expect, given, list, pointer, text, write, write_if};
use crate::lock::lock;

/// The numbers of listeners to changes: those of other kinds, which are never detached, have numbers of the same row.
static REGISTRANTS: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// The bytes of what sleeps are in pinned host memory.
pub const CUDA_MEM_TORCH_BACKUP_PINNED: c_int = 0;
/// The bytes of what sleeps are lost.
pub const CUDA_MEM_TORCH_BACKUP_DISCARD: c_int = 1;

/// What wakes has what it had, as far as there is a backup.
pub const CUDA_MEM_TORCH_RESTORE_BACKUP: c_int = -1;
/// What wakes has anything.
pub const CUDA_MEM_TORCH_RESTORE_NOTHING: c_int = -2;

/// What came of putting tags to sleep, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct cuda_mem_torch_slept {
    /// Given back to the driver.
    pub freed: usize,
    /// Taken by the backup.
    pub saved: usize,
    /// Of `freed`, not shown as free by the driver: another holder (an export, an import) has it, or another process took it.
    pub missing: usize,
}

/// Addresses of a device.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cuda_mem_torch_range {
    /// The first.
    pub address: *mut c_void,
    /// How many.
    pub bytes: usize,
}

/// The functions that are told what came of it. Each may be null. What they are passed is theirs during the call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cuda_mem_torch_sleep_visitor {
    /// What each is passed first.
    pub data: *mut c_void,
    /// A range that was to be kept, the bytes that stayed awake for it, and for whom.
    pub kept: Option<
        unsafe extern "C" fn(
            data: *mut c_void,
            range: cuda_mem_torch_range,
            stayed: usize,
            reason: *const c_char,
        ),
    >,
    /// A segment that the driver refused to unmap or to take, and why.
    pub refused:
        Option<unsafe extern "C" fn(data: *mut c_void, range: cuda_mem_torch_range, why: *const c_char)>,
    /// A registrant that was told, how many nanoseconds it took, and what it failed with; null if it did not.
    pub notice: Option<
        unsafe extern "C" fn(data: *mut c_void, registrant: u64, nanoseconds: u64, error: *const c_char),
    >,
}

/// Is told of a change behind addresses of a tag: before memory goes, or after it came. Not 0 if it failed, which changes nothing.
pub type cuda_mem_torch_backing_change = Option<
    unsafe extern "C" fn(
        data: *mut c_void,
        device: c_int,
        tag: *const c_char,
        is_leaving: bool,
        ranges: *const cuda_mem_torch_range,
        count: usize,
    ) -> c_int,
>;

fn c_range(range: &Range<u64>) -> cuda_mem_torch_range {
    cuda_mem_torch_range { address: pointer(range.start), bytes: (range.end - range.start) as usize }
}

/// The tag of that name, which there must be.
pub(super) fn existing(device: &Device, name: &str) -> Result<Tag, Failure> {
    let tags = device.caching.tags();
    let found = tags.iter().find(|tag| tag.name() == name).cloned();
    found.ok_or_else(|| {
        let names: Vec<_> = tags.iter().map(|tag| format!("{:?}", tag.name())).collect();
        Failure::argument(format!(
            "device {} has no tag {name:?}; it has {}",
            device.ordinal,
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        ))
    })
}

/// The tags of these names; all that there are if there are none.
///
/// # Safety
///
/// As [`cuda_mem_torch_sleep`].
unsafe fn named(device: &Device, names: *const *const c_char, count: usize) -> Result<Vec<Tag>, Failure> {
    if count == 0 {
        return Ok(device.caching.tags());
    }
    // SAFETY: the caller's promise.
    let names = unsafe { list(names, count, "tags") }?;
    // SAFETY: as above.
    names.iter().map(|name| existing(device, unsafe { text(*name, "a tag") }?)).collect()
}

impl cuda_mem_torch_sleep_visitor {
    fn tell_all(&self, told: &[Notice]) {
        let Some(tell) = self.notice else { return };
        for told in told {
            let Some(number) = DEVICES.number_of(told.id) else { continue };
            let error = told.error.as_deref().map(c_text);
            let error = error.as_ref().map_or(std::ptr::null(), |error| error.as_ptr());
            let took = u64::try_from(told.took.as_nanos()).unwrap_or(u64::MAX);
            // SAFETY: the caller's promise for the visitor.
            unsafe { tell(self.data, number, took, error) };
        }
    }
}

/// Puts tags of a device to sleep, all of them if `count` is 0: their memory goes back to the driver, and their addresses stay. Waits for the
/// device first. `slept`, and `visitor` with whatever is not null in it, are told what came of it.
///
/// `CUDA_MEM_TORCH_CAPTURING` if a stream captures that is known here; `CUDA_MEM_TORCH_SYSTEM` without host memory for the backup;
/// `CUDA_MEM_TORCH_SLEEP` if another call is at work with a tag. Nothing is changed then.
///
/// # Safety
///
/// From the call until the tags wake nothing is queued that uses their memory. `tags` points to `count` texts; `slept` is null or a place;
/// `visitor` is null or points to functions that may be called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_sleep(
    device: c_int,
    tags: *const *const c_char,
    count: usize,
    backup: c_int,
    slept: *mut cuda_mem_torch_slept,
    visitor: *const cuda_mem_torch_sleep_visitor,
) -> c_int {
    entry(|| {
        let backup = match backup {
            CUDA_MEM_TORCH_BACKUP_PINNED => Backup::Pinned,
            CUDA_MEM_TORCH_BACKUP_DISCARD => Backup::Discard,
            other => {
                return Err(Failure::argument(format!(
                    "backup is {other}; accepted: 0 (pinned), 1 (discard)"
                )));
            }
        };
        // SAFETY: the caller's promise.
        let tags = unsafe { named(self::device(device)?, tags, count) }?;
        // SAFETY: the caller's promise.
        let came = unsafe { Tag::sleep(&tags.iter().collect::<Vec<_>>(), backup) }?;
        // SAFETY: the caller's promise.
        if let Some(visitor) = unsafe { visitor.as_ref() } {
            for kept in &came.kept {
                if let Some(tell) = visitor.kept {
                    let reason = c_text(&kept.reason);
                    // SAFETY: the caller's promise for the visitor.
                    unsafe { tell(visitor.data, c_range(&kept.range), kept.bytes, reason.as_ptr()) };
                }
            }
            for (range, error) in &came.refused {
                if let Some(tell) = visitor.refused {
                    let why = c_text(&error.to_string());
                    // SAFETY: as above.
                    unsafe { tell(visitor.data, c_range(range), why.as_ptr()) };
                }
            }
            visitor.tell_all(&came.notices);
        }
        let told = cuda_mem_torch_slept { freed: came.freed, saved: came.saved, missing: came.missing };
        // SAFETY: the caller's promise.
        unsafe { write_if(slept, told) };
        Ok(())
    })
}

/// Wakes tags of a device, all of them if `count` is 0, at the addresses that they had: all or none. `restore` says what they have:
/// `CUDA_MEM_TORCH_RESTORE_BACKUP`, `CUDA_MEM_TORCH_RESTORE_NOTHING`, or the byte that each is, from 0 to 255. `visitor`, which may be null, is
/// told of registrants.
///
/// `CUDA_MEM_TORCH_OUT_OF_MEMORY` if there is not enough memory: all of them sleep on, and it can be tried again.
///
/// # Safety
///
/// `tags` points to `count` texts; `visitor` is null or points to functions that may be called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_wake(
    device: c_int,
    tags: *const *const c_char,
    count: usize,
    restore: c_int,
    visitor: *const cuda_mem_torch_sleep_visitor,
) -> c_int {
    entry(|| {
        let restore = match (restore, u8::try_from(restore)) {
            (CUDA_MEM_TORCH_RESTORE_BACKUP, _) => Restore::Backup,
            (CUDA_MEM_TORCH_RESTORE_NOTHING, _) => Restore::Nothing,
            (_, Ok(byte)) => Restore::Filled(byte),
            _ => {
                let accepted = "-1 (the backup), -2 (nothing), a byte from 0 to 255";
                return Err(Failure::argument(format!("restore is {restore}; accepted: {accepted}")));
            }
        };
        // SAFETY: the caller's promise.
        let tags = unsafe { named(self::device(device)?, tags, count) }?;
        let told = Tag::wake(&tags.iter().collect::<Vec<_>>(), restore)?;
        // SAFETY: the caller's promise.
        if let Some(visitor) = unsafe { visitor.as_ref() } {
            visitor.tell_all(&told);
        }
        Ok(())
    })
}

/// Has `change` be told before memory of tags goes and after it came, on any device, in the order of attaching and with no lock held.
/// `registrant` gets its number.
///
/// # Safety
///
/// It may be called with `data` by any thread until it was detached and no call of it runs; `registrant` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_attach_backing_change(
    change: cuda_mem_torch_backing_change,
    data: *mut c_void,
    registrant: *mut u64,
) -> c_int {
    let data = Data::new(data);
    entry(|| {
        expect(registrant, "registrant")?;
        let call = given(change, "change")?;
        let number = DEVICES.attach(move |device| {
            let ordinal = device.ordinal;
            device.caching.on_backing_change(move |event| {
                let (tag, ranges) = (c_text(event.tag), event.ranges.iter().map(c_range).collect::<Vec<_>>());
                let (first, count) = (ranges.as_ptr(), ranges.len());
                // SAFETY: the caller's promise.
                match unsafe { call(data.raw(), ordinal, tag.as_ptr(), event.is_leaving, first, count) } {
                    0 => Ok(()),
                    code => Err(format!("it returned {code}")),
                }
            })
        });
        lock(&REGISTRANTS).insert(number);
        // SAFETY: the caller's promise.
        unsafe { write(registrant, number, "registrant") }
    })
}

/// Ends what [`cuda_mem_torch_attach_backing_change`] began. A change that is under way in another thread may still be told.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_detach_backing_change(registrant: u64) -> c_int {
    entry(|| {
        let is_one = lock(&REGISTRANTS).remove(&registrant);
        let detach = || _ = DEVICES.detach(registrant);
        is_one.then(detach).ok_or_else(|| Failure::argument(format!("there is no registrant {registrant}")))
    })
}
