//! Names that `torch.cuda.memory.CUDAPluggableAllocator` loads as they are.
//!
//! What is called this way is told neither which streams use memory nor when they are done: behind a `torch.cuda.MemPool` PyTorch
//! asks for segments, with whatever stream is current, and gives them back without a wait. So memory that comes back is parked,
//! and used again behind one wait for the whole context, when as much of it is asked for or there is no other. That is the library's one
//! exception to never waiting for a device. While the requesting stream captures, or one that the library was told of, new memory is made
//! instead. PyTorch with the shim does not come here.
//!
//! It may happen under PyTorch's own lock. These functions have allocators of their own, without listeners: no observer
//! or tracker of the program runs here, and its hook for failed releases runs without a lock of theirs.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for the addresses and streams that they pass.

#![allow(unsafe_code, reason = "takes addresses")]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard};

use cuda_mem_ipc::cuda_mem_pool::Error;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Error as CoreError, LateReports, Stream};

use super::devices::{self, Device};
use super::error::{CUDA_MEM_TORCH_OK, Failure, entry};
use super::pointers::{pointer, write_if};
use super::streams;
use crate::devices::{Devices, MOST};
use crate::lock::lock;

/// Where all of it is allocated is a stream of the device's own: no user's stream has its memory for itself.
static PLAIN: Devices = Devices::new();
/// One lock for each device: its holder may wait for the device, and reports failures, and reclaims, without it. Nobody holds two.
static BOOKS: [Mutex<Books>; MOST] =
    [const { Mutex::new(Books { live: BTreeMap::new(), parked: Vec::new() }) }; MOST];

/// From so many parked bytes on there is a wait, however much is asked for. Below that, new memory is made beside them.
const MOST_PARKED: usize = 1 << 30;

/// What was handed out and came back, by its address.
struct Books {
    live: BTreeMap<u64, Block>,
    parked: Vec<(u64, Block)>,
}

struct Block {
    bytes: usize,
    /// Which devices may use it: its own first, then those of which streams were recorded.
    users: Vec<&'static Device>,
}

/// What there is of a device for plain callers.
fn of(ordinal: c_int) -> Result<(&'static Device, MutexGuard<'static, Books>), Failure> {
    let (device, number) = devices::made_in(&PLAIN, ordinal)?;
    Ok((device, lock(&BOOKS[number])))
}

/// PyTorch's `alloc`: memory of `size` bytes, or null if there is none. A size of 0 gives null.
///
/// # Safety
///
/// `stream` is a stream of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_alloc(
    size: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let mut found = 0;
    let code = entry(|| {
        if size == 0 {
            return Ok(());
        }
        devices::driver()?.reclaim();
        let _reports = LateReports::new();
        let (device, mut books) = of(device)?;
        let parked: usize = books.parked.iter().map(|(_, block)| block.bytes).sum();
        if parked >= size.min(MOST_PARKED) {
            books.use_parked(Some((device, stream)));
        }
        let own = device.own_stream()?;
        let allocate = || device.caching.allocate_by_address(size, &own);
        found = match allocate() {
            Err(error) if error.is_out_of_memory() && books.use_parked(Some((device, stream))) => allocate()?,
            found => found?,
        };
        books.live.insert(found, Block { bytes: size, users: vec![device] });
        Ok(())
    });
    if code == CUDA_MEM_TORCH_OK { pointer(found) } else { std::ptr::null_mut() }
}

/// PyTorch's `free`. The memory is used again once everything is done that the device was given by then.
///
/// # Safety
///
/// The address came from [`cuda_mem_torch_alloc`] for this device and is given back once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_free(
    address: *mut c_void,
    _size: usize,
    device: c_int,
    _stream: *mut c_void,
) {
    if address.is_null() {
        return;
    }
    entry(|| {
        let (_, mut books) = of(device)?;
        let address = address.addr() as u64;
        let block = books.live.remove(&address).ok_or(Error::UnknownAddress { address })?;
        books.parked.push((address, block));
        Ok(())
    });
}

/// For `set_reset_fn`: what is free goes back to the driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_plain_reset() {
    entry(|| {
        PLAIN.all().try_for_each(|device| {
            device.context.driver().reclaim();
            let _reports = LateReports::new();
            of(device.ordinal)?.1.use_parked(None);
            Ok(device.caching.empty_cache().map(drop)?)
        })
    });
}

/// For `set_memory_fraction_fn`.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_plain_memory_fraction(fraction: f64, device: c_int) {
    entry(|| Ok(PLAIN.set_memory_fraction(devices::check_fraction(device, fraction)?, fraction)?));
}

/// For `set_base_alloc_fn`: what the block lies in. Of an address that is not ours, it is that address.
///
/// # Safety
///
/// `size` is null or a place for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_plain_base_alloc(
    address: *mut c_void,
    size: *mut usize,
) -> *mut c_void {
    let mut base = address;
    entry(|| {
        let wanted = address.addr() as u64;
        let found = PLAIN.search(|device| device.caching.base_allocation(wanted))?;
        let Some((begin, bytes)) = found else { return Ok(()) };
        base = pointer(begin);
        // SAFETY: the caller's promise.
        unsafe { write_if(size, bytes) };
        Ok(())
    });
    base
}

/// For `set_record_stream_fn`. A stream of the block's own device is waited for anyway; for another the whole device is, before
/// the block is used again.
///
/// # Safety
///
/// `stream` is a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_plain_record_stream(address: *mut c_void, stream: *mut c_void) {
    entry(|| {
        let address = address.addr() as u64;
        let user = streams::device_of(stream)?;
        PLAIN.all().try_for_each(|device| {
            if let Some(block) = of(device.ordinal)?.1.live.get_mut(&address) {
                devices::add(&mut block.users, user);
            }
            Ok(())
        })
    });
}

impl Books {
    /// Waits for all that used parked memory, and frees it; whether there was any. It stays parked while a capture forbids the wait, or while
    /// the asking stream captures.
    fn use_parked(&mut self, asker: Option<(&'static Device, *mut c_void)>) -> bool {
        let captures = |(device, raw): (&Device, _)| {
            // SAFETY: the caller's promise for the handle: a stream of this device. Nothing of it is kept: nobody says that it has ended.
            matches!(unsafe { Stream::borrow_raw(&device.context, raw) }, Err(CoreError::Capturing { .. }))
        };
        if self.parked.is_empty() || asker.is_some_and(captures) {
            return false;
        }
        let mut users = Vec::new();
        for user in self.parked.iter().flat_map(|(_, block)| &block.users) {
            devices::add(&mut users, user);
        }
        let is_quiet = users.into_iter().all(|user| user.context.wait_beside_captures().is_ok());
        if is_quiet {
            for (address, _) in self.parked.drain(..) {
                // SAFETY: handed out by `cuda_mem_torch_alloc`, given back once, and everything that used it is done.
                let freed = PLAIN.search(|device| unsafe { device.caching.free_by_address(address) });
                debug_assert!(matches!(freed, Ok(Some(()))), "{freed:?}");
            }
        }
        is_quiet
    }
}
