//! Streams by their handles.
//!
//! # Safety
//!
//! Relies on the callers of the functions for C: a handle is a stream of its device during the call, and one that lasts names it until it
//! is said to have ended; a function that is passed may be called by any thread until the process ends, and does not unwind.

#![allow(unsafe_code, reason = "takes handles of streams")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_mem_ipc::cuda_mem_pool::Error;
use cuda_mem_ipc::cuda_mem_pool::caching::StreamAllocator;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Error as CoreError, Stream};

use super::devices::{self, Device};
use super::error::{CUDA_MEM_TORCH_CAPTURING, Failure, entry};
use super::uncached;
use crate::lock::lock;

/// A device and a stream's handle.
type Key = (c_int, usize);
type Known = BTreeMap<Key, Stream>;

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;
/// Below it there are no addresses.
const FIRST_PAGE: usize = 4096;
const REMEMBERED: usize = 4;

/// What a thread allocated on last.
#[derive(Clone, Copy)]
struct Recent {
    turn: u64,
    raw: usize,
    device: c_int,
    allocator: Option<StreamAllocator<'static>>,
    /// It is to be visited.
    is_guest: bool,
}

const NONE: Recent = Recent { turn: 0, raw: 0, device: -1, allocator: None, is_guest: false };

static KNOWN: Mutex<Known> = Mutex::new(Known::new());
static LASTING: Mutex<Option<unsafe extern "C" fn(c_int, *mut c_void) -> bool>> = Mutex::new(None);
/// Goes on when what threads remember holds no more: a stream was said to have ended, or caching was turned on or off.
static TURN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static RECENT: [Cell<Recent>; REMEMBERED] = const { [const { Cell::new(NONE) }; REMEMBERED] };
    /// The thread's default streams, whose handle means another one in each thread. They go with it, and are in no list that it would have to
    /// wait for.
    static OWN: RefCell<Known> = const { RefCell::new(Known::new()) };
}

/// Handles are addresses of structures, so their lowest bits say little.
#[inline]
fn place(raw: usize) -> usize {
    (raw >> 5 ^ raw >> 9) % REMEMBERED
}

/// A block of the stream's, if this thread has allocated on it: all that is asked before most allocations. A guest's handle is taken at its
/// word there, as natively: that another stream has it by now is seen by threads that come to it anew.
#[inline(always)]
pub(super) fn allocate(device: c_int, raw: *mut c_void, bytes: usize) -> Option<Result<u64, Box<Error>>> {
    let (raw, turn) = (raw.addr(), TURN.load(Ordering::Relaxed));
    let recent = RECENT.try_with(|recent| recent[place(raw)].get()).ok()?;
    if recent.raw != raw || recent.device != device || recent.turn != turn {
        return None;
    }
    if recent.is_guest {
        return visited(raw, bytes);
    }
    // In a box the error leaves the address in a register.
    Some(recent.allocator?.allocate_by_address(bytes).map_err(Box::new))
}

/// Allocates on the guest that this thread allocated on last.
#[cold]
#[inline(never)]
fn visited(raw: usize, bytes: usize) -> Option<Result<u64, Box<Error>>> {
    let allocator = RECENT.try_with(|recent| recent[place(raw)].get()).ok()?.allocator?;
    // SAFETY: the caller's promise for the handle.
    Some(unsafe { allocator.stream().visit(|| allocator.allocate_by_address(bytes).map_err(Box::new)) })
}

/// Calls `body` with the stream behind a handle and, while caching is on, its allocator.
pub(super) fn with_allocator<R>(
    device: &'static Device,
    raw: *mut c_void,
    body: impl FnOnce(&Stream, Option<StreamAllocator<'static>>) -> Result<R, Failure>,
) -> Result<R, Failure> {
    // Acquire: what made it go on is seen after this.
    let turn = TURN.load(Ordering::Acquire);
    // Also without caching: a free must know of the stream, so as not to end its capture.
    with(device, raw, |stream| {
        if uncached::OFF.load(Ordering::Relaxed) {
            return body(stream, None);
        }
        let allocator = device.caching.of_stream(stream)?;
        let (raw, device, is_guest) = (raw.addr(), device.ordinal, stream.is_guest());
        let recent = Recent { turn, raw, device, allocator: Some(allocator), is_guest };
        // A thread at its end remembers nothing.
        let _ = RECENT.try_with(|all| all[place(raw)].set(recent));
        body(stream, Some(allocator))
    })
}

/// Has all threads look up again what they remember.
pub(super) fn forget_all() {
    TURN.fetch_add(1, Ordering::Release);
}

/// Calls `body` with the stream behind a handle of a device, which is there until this returns.
pub(super) fn with<R>(
    device: &'static Device,
    raw: *mut c_void,
    body: impl FnOnce(&Stream) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let stream = find(device, raw)?;
    // SAFETY: the caller's promise for the handle.
    unsafe { stream.id().visit(|| body(&stream)) }
}

fn find(device: &'static Device, raw: *mut c_void) -> Result<Stream, Failure> {
    let (ordinal, handle) = (device.ordinal, raw.addr());
    let Some(known) = known(ordinal, handle) else { return Ok(enter(ordinal, borrow(device, raw)?, handle)) };
    if handle == PER_THREAD || !known.is_guest() {
        return Ok(known);
    }
    // SAFETY: the caller's promise for the handle.
    if unsafe { known.id().visit(|| known.is_capturing()) }? {
        // It cannot be asked whether it is another one by now.
        return Ok(known);
    }
    // SAFETY: as above.
    let found = unsafe { Stream::guest(&device.context, raw) }?;
    // One that has begun a capture just now has no other name.
    if found == known || found.id().is_of_a_capture() {
        return Ok(known);
    }
    // One that captured when it came may be the same: it goes on under the name that it has here.
    if !known.id().is_of_a_capture() {
        // What cannot be forgotten now keeps its memory, until that is quiet.
        // SAFETY: its owner has destroyed it, since another one has its handle.
        let _ = unsafe { device.caching.forget_stream(&known) };
    }
    forget_all();
    Ok(enter(ordinal, found, handle))
}

/// Enters a stream, unless another thread has. It takes the place of one that had its handle before.
fn enter(ordinal: c_int, found: Stream, handle: usize) -> Stream {
    // A thread at its end looks its own up each time.
    let entered = look(handle, |known| {
        let at = known.entry((ordinal, handle)).or_insert_with(|| found.clone());
        // Threads that come to one while it captures have a name each.
        if *at != found && !found.id().is_of_a_capture() {
            *at = found.clone();
        }
        at.clone()
    });
    entered.unwrap_or(found)
}

/// Looks at the streams among which one with this handle would be; at none in a thread at its end.
fn look<R>(handle: usize, at: impl FnOnce(&mut Known) -> R) -> Option<R> {
    if handle == PER_THREAD {
        return OWN.try_with(|own| at(&mut own.borrow_mut())).ok();
    }
    Some(at(&mut lock(&KNOWN)))
}

/// A stream that was seen here, by its handle.
fn known(ordinal: c_int, handle: usize) -> Option<Stream> {
    look(handle, |known| known.get(&(ordinal, handle)).cloned()).flatten()
}

fn borrow(device: &'static Device, raw: *mut c_void) -> Result<Stream, Failure> {
    // PyTorch's ids of streams are small numbers. A driver that is asked about one follows it as an address.
    if (PER_THREAD + 1..FIRST_PAGE).contains(&raw.addr()) {
        return Err(Failure::argument(format!(
            "{} is no stream; accepted: its handle (cuda_stream)",
            raw.addr()
        )));
    }
    let query = *lock(&LASTING);
    // SAFETY: what was promised when it was passed.
    let lasts = query.is_none_or(|query| unsafe { query(device.ordinal, raw) });
    let borrowed = if lasts {
        // SAFETY: the caller's promise for the handle: a stream of this device, until it is forgotten.
        unsafe { Stream::borrow_raw(&device.context, raw) }
    } else {
        // SAFETY: the caller's promise for the handle: a stream of this device during the call.
        unsafe { Stream::guest(&device.context, raw) }
    };
    borrowed.map_err(|error| match error {
        CoreError::Capturing { .. } => Failure::new(
            CUDA_MEM_TORCH_CAPTURING,
            format!(
                "the stream {raw:p} of device {} captures and was never seen: allocate on it once before the capture begins",
                device.ordinal
            ),
        ),
        error => error.into(),
    })
}

/// The device of a stream of any: of a default stream, the current one.
pub(super) fn device_of(raw: *mut c_void) -> Result<&'static Device, Failure> {
    let driver = devices::driver()?;
    let current = || match driver.current_device()? {
        Some(found) => devices::device(found.as_raw()),
        None => Err(Failure::argument("the stream is a default stream, and no device is current")),
    };
    if raw.addr() <= PER_THREAD {
        return current();
    }
    let table = driver.table();
    let of_stream = table.cuStreamGetCtx().map_err(CoreError::from)?;
    let push = table.cuCtxPushCurrent().map_err(CoreError::from)?;
    let pop = table.cuCtxPopCurrent().map_err(CoreError::from)?;
    let mut context = std::ptr::null_mut();
    // SAFETY: the caller's promise for the handle: a stream; one handle to write. A capture stays as it is.
    Failure::of_driver("cuStreamGetCtx", unsafe { of_stream(raw.cast(), &mut context) })?;
    // SAFETY: the context of a stream that lives.
    Failure::of_driver("cuCtxPushCurrent", unsafe { push(context) })?;
    let found = current();
    // SAFETY: pushed above; one handle to write.
    Failure::of_driver("cuCtxPopCurrent", unsafe { pop(&mut context) })?;
    found
}

/// Asks `lasts` of each stream when it is first seen: whether it lives as long as the process. The owner of one that does not may destroy it
/// at any time, but not during a call that it is passed to. Without a query all last. Another query takes the place of the last one; null
/// ends it.
///
/// Free memory of a stream that does not last serves others only where the allocator can wait for all that the device was given.
///
/// # Safety
///
/// It may be called by any thread until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_ask_for_lasting(
    lasts: Option<unsafe extern "C" fn(device: c_int, stream: *mut c_void) -> bool>,
) -> c_int {
    entry(|| {
        *lock(&LASTING) = lasts;
        Ok(())
    })
}

/// Waits until a device has done all that it was given. While a stream of it captures that was seen here, it is
/// [`CUDA_MEM_TORCH_CAPTURING`]. Captures go on, whenever they began and whoever's they are.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_synchronize(device: c_int) -> c_int {
    entry(|| Ok(devices::device(device)?.context.wait_beside_captures()?))
}

/// Looks at a stream that does not capture, so that it may capture when it is allocated on for the first time. Nothing is allocated.
///
/// # Safety
///
/// `stream` is a stream of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_see_stream(device: c_int, stream: *mut c_void) -> c_int {
    entry(|| with(devices::device(device)?, stream, |_| Ok(())))
}

/// A stream is about to be destroyed; another may have its handle afterwards. Blocks that were allocated for it stay, and what is free of it
/// serves other streams once all that it was given is done. While it captures it is [`CUDA_MEM_TORCH_CAPTURING`], and nothing is forgotten.
/// Calls on it that other threads are in just then are waited for, and none of its work.
/// The default stream of a thread (handle 2) is forgotten by itself when the thread ends, if it has no work then; a thread that leaves work
/// in it calls this before, for itself.
///
/// # Safety
///
/// The stream is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_forget_stream(device: c_int, stream: *mut c_void) -> c_int {
    entry(|| {
        let device = devices::device(device)?;
        let Some(known) = known(device.ordinal, stream.addr()) else { return Ok(()) };
        let forget = || {
            // SAFETY: the caller's promise.
            unsafe { device.caching.forget_stream(&known) }
        };
        // SAFETY: the caller's promise for the handle.
        let forgotten = unsafe { known.id().visit(forget) };
        // Its heap would go on as the stream's. Of other failures, such as a lost context, nothing better comes by a second call.
        if let Err(Error::Core(CoreError::Capturing { .. })) = forgotten {
            return Ok(forgotten?);
        }
        look(stream.addr(), |known| known.remove(&(device.ordinal, stream.addr())));
        known.disown();
        forget_all();
        Ok(())
    })
}

/// The handle of a stream that is allocated for, by the number that names it for ever; null if it is not known. The default stream of any
/// thread has the same.
pub(super) fn handle_of(device: c_int, id: u64) -> *mut c_void {
    let find = |known: &mut Known| {
        let of_id = |((of, _), stream): &(&Key, &Stream)| *of == device && stream.id().as_raw() == id;
        known.iter().find(of_id).map(|((_, handle), _)| *handle)
    };
    let found = look(PER_THREAD, find).flatten().or_else(|| find(&mut lock(&KNOWN)));
    std::ptr::without_provenance_mut(found.unwrap_or(0))
}
