//! Tags: what is allocated in their scopes, what of them stays awake, and what their backups have.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for the pointers and the functions that they pass.

#![allow(unsafe_code, reason = "reads and writes what C points to, and calls functions of C")]

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};

use cuda_mem_ipc::cuda_mem_pool::caching::{SleepError, Tag, TagScope};

use super::devices::{DEVICES, Device, device, some};
use super::error::{CUDA_MEM_TORCH_NOT_OURS, Failure, entry};
use super::pointers::{c_text, expect, given, text, write, write_if};
use super::sleep::existing;
use super::{cuda_mem_torch_pool_id, still};

/// How much of a tag is awake.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct cuda_mem_torch_tag_state {
    /// Bytes with memory.
    pub awake_bytes: usize,
    /// Bytes without.
    pub asleep_bytes: usize,
    /// Bytes of pinned host memory for backups.
    pub backup_bytes: usize,
    /// Whether it was put to sleep: allocations in it are refused.
    pub is_asleep: bool,
}

/// A scope of the thread, with its device and its tag.
type Scope = (c_int, String, TagScope);

thread_local! {
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
}

/// The tag that has an address, of any device, and the device.
pub(super) fn tag_of(address: u64) -> Option<(&'static Device, Tag)> {
    DEVICES
        .all()
        .find_map(|device| Some((device, device.caching.tags().into_iter().find(|tag| tag.has(address))?)))
}

fn no_tag(address: u64) -> Failure {
    Failure::new(CUDA_MEM_TORCH_NOT_OURS, SleepError::NotOfTag { tag: None, address }.to_string())
}

/// Has what the calling thread allocates on a device be the tag's, which is made if there is none, until [`cuda_mem_torch_leave_tag`]. Scopes
/// nest.
///
/// # Safety
///
/// `tag` is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_enter_tag(device: c_int, tag: *const c_char) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { text(tag, "tag") }?;
        let scope = self::device(device)?.caching.tag(name)?.enter()?;
        let kept = SCOPES.try_with(|scopes| scopes.borrow_mut().push((device, name.to_owned(), scope)));
        kept.map_err(|_| Failure::argument("the thread is at its end: it can enter no tag"))
    })
}

/// Ends the calling thread's innermost scope of the tag.
///
/// # Safety
///
/// `tag` is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_leave_tag(device: c_int, tag: *const c_char) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { text(tag, "tag") }?;
        let take = |scopes: &RefCell<Vec<Scope>>| {
            let mut scopes = scopes.borrow_mut();
            let place = scopes.iter().rposition(|(of, tag, _)| *of == device && tag == name)?;
            Some(scopes.remove(place))
        };
        // Dropped when the thread's list can be had again.
        match SCOPES.try_with(take) {
            Ok(Some(_scope)) => Ok(()),
            _ => Err(Failure::argument(format!("this thread is in no scope of the tag {name:?}"))),
        }
    })
}

/// Gives a private pool without memory to the tag, as a whole. It is made if there is none, for its first user.
///
/// # Safety
///
/// `tag` is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_add_pool_to_tag(
    device: c_int,
    tag: *const c_char,
    pool: cuda_mem_torch_pool_id,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { text(tag, "tag") }?;
        Ok(self::device(device)?.caching.tag(name)?.add_pool(pool.into())?)
    })
}

/// Has the memory behind a range stay awake until [`cuda_mem_torch_let_move`](super::cuda_mem_torch_let_move) is passed what `keep` gets. `reason`
/// says for whom.
///
/// # Safety
///
/// `reason` is text, `keep` a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_keep(
    address: *mut c_void,
    bytes: usize,
    reason: *const c_char,
    keep: *mut *mut c_void,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let reason = unsafe { text(reason, "reason") }?;
        expect(keep, "keep")?;
        let address = address.expose_provenance() as u64;
        let (_, tag) = tag_of(address).ok_or_else(|| no_tag(address))?;
        let kept = still::raw(Box::new(tag.keep(address, bytes, reason)?));
        // SAFETY: the caller's promise.
        unsafe { write(keep, kept, "keep") }
    })
}

/// Tells of each tag of a device or of all, and how much of it is awake.
///
/// # Safety
///
/// `tell` may be called with `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_tags(
    device: c_int,
    data: *mut c_void,
    tell: Option<
        unsafe extern "C" fn(
            data: *mut c_void,
            device: c_int,
            tag: *const c_char,
            state: *const cuda_mem_torch_tag_state,
        ),
    >,
) -> c_int {
    entry(|| {
        let tell = given(tell, "tell")?;
        for device in some(device)? {
            for tag in device.caching.tags() {
                let state = tag.state();
                let told = cuda_mem_torch_tag_state {
                    awake_bytes: state.awake_bytes,
                    asleep_bytes: state.asleep_bytes,
                    backup_bytes: state.backup_bytes,
                    is_asleep: state.is_asleep,
                };
                // SAFETY: the caller's promise.
                unsafe { tell(data, device.ordinal, c_text(tag.name()).as_ptr(), &raw const told) };
            }
        }
        Ok(())
    })
}

/// Tells which tag has an address, and whether it sleeps there. `CUDA_MEM_TORCH_NOT_OURS` if none has.
///
/// # Safety
///
/// `tell` may be called with `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_tag_of(
    address: *mut c_void,
    data: *mut c_void,
    tell: Option<unsafe extern "C" fn(data: *mut c_void, device: c_int, tag: *const c_char, is_asleep: bool)>,
) -> c_int {
    entry(|| {
        let tell = given(tell, "tell")?;
        let address = address.expose_provenance() as u64;
        let (device, tag) = tag_of(address).ok_or_else(|| no_tag(address))?;
        let name = c_text(tag.name());
        // SAFETY: the caller's promise.
        unsafe { tell(data, device.ordinal, name.as_ptr(), tag.is_asleep_at(address)) };
        Ok(())
    })
}

/// Makes the host memory for the next sleep of a tag ahead, for what is live now; `bytes`, which may be null, gets how much.
///
/// # Safety
///
/// `tag` is text; `bytes` is null or a place for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_prepare_backup(
    device: c_int,
    tag: *const c_char,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { of_backup(device, tag, bytes, Tag::prepare) }
}

/// Gives the host memory back that is kept for the next sleep of a tag; `bytes`, which may be null, gets how much.
///
/// # Safety
///
/// As [`cuda_mem_torch_prepare_backup`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_release_backup(
    device: c_int,
    tag: *const c_char,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { of_backup(device, tag, bytes, Tag::release_backup) }
}

/// # Safety
///
/// As [`cuda_mem_torch_prepare_backup`].
unsafe fn of_backup(
    device: c_int,
    tag: *const c_char,
    bytes: *mut usize,
    act: impl FnOnce(&Tag) -> cuda_mem_ipc::cuda_mem_pool::Result<usize>,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { text(tag, "tag") }?;
        let found = act(&existing(self::device(device)?, name)?)?;
        // SAFETY: the caller's promise.
        unsafe { write_if(bytes, found) };
        Ok(())
    })
}

/// Copies what the backup of a sleeping tag has of the bytes from an address on, at most `bytes`; `read` gets how many, up to the first that
/// it does not have.
///
/// # Safety
///
/// `target` points to `bytes` bytes that nobody else uses, `read` is a place for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_read_backup(
    address: *mut c_void,
    target: *mut c_void,
    bytes: usize,
    read: *mut usize,
) -> c_int {
    entry(|| {
        let address = address.expose_provenance() as u64;
        if bytes > 0 && target.is_null() {
            return Err(Failure::argument("target is null"));
        }
        let (_, tag) = tag_of(address).ok_or_else(|| no_tag(address))?;
        let mut found = 0;
        if bytes > 0 {
            // SAFETY: the caller's promise.
            unsafe { target.cast::<u8>().write_bytes(0, bytes) };
            // SAFETY: the caller's promise; all of it was written just now.
            let target = unsafe { std::slice::from_raw_parts_mut(target.cast::<u8>(), bytes) };
            found = tag.read_backup(address, target)?;
        }
        // SAFETY: the caller's promise.
        unsafe { write(read, found, "read") }
    })
}

/// Sets the most bytes that may be held of a device, beside its share of the memory; `SIZE_MAX` is no limit. It may be less than is held: what is
/// free goes back now, and `freed`, which may be null, gets how much.
///
/// # Safety
///
/// `freed` is null or a place for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_set_limit(device: c_int, bytes: usize, freed: *mut usize) -> c_int {
    entry(|| {
        let gone = self::device(device)?.caching.set_limit(bytes)?;
        // SAFETY: the caller's promise.
        unsafe { write_if(freed, gone) };
        Ok(())
    })
}
