//! Names that `torch.cuda.memory.CUDAPluggableAllocator` loads as they are.
//!
//! What is called this way is told neither which streams use memory nor when they are done: behind a `torch.cuda.MemPool` PyTorch
//! asks for segments, with whatever stream is current, and gives them back without a wait. So memory that comes back is parked,
//! and a batch of it is used again behind one wait for the whole context. That is the library's one exception to never waiting
//! for a device. While the requesting stream captures, or one that the library was told of, new memory is made instead. PyTorch with the
//! shim does not come here.
//!
//! It may happen under PyTorch's own lock. These functions have allocators of their own, which nobody listens to: no observer,
//! tracker or other function of the program runs here.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for the addresses and streams that they pass.

#![allow(unsafe_code, reason = "takes addresses")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard};

use cuda_mem_ipc::cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Stream;

use super::devices::{self, Device};
use super::error::{CUDA_MEM_TORCH_NOT_OURS, CUDA_MEM_TORCH_OK, Failure, entry};
use super::pointers::{pointer, write_if};
use super::streams;
use crate::devices::MOST;
use crate::lock::lock;

/// So much parked memory is waited for, even if no request needs it.
const MOST_PARKED: usize = 1 << 30;

/// What a device has for plain callers.
struct Plain {
    caching: CachingAllocator,
    /// Where all of it is allocated: no user's stream has its memory for itself.
    stream: Stream,
    live: HashMap<u64, Block>,
    parked: Vec<(u64, Block)>,
}

#[derive(Debug)]
struct Block {
    bytes: usize,
    /// Other devices, of which streams were recorded.
    elsewhere: Vec<&'static Device>,
}

/// What a device has, and until then what it will be made with: who sets a fraction makes no context.
struct OfDevice {
    plain: Option<Plain>,
    fraction: f64,
}

/// By their devices, each for itself: one may be waited for meanwhile. Nobody holds two.
static PLAIN: [Mutex<OfDevice>; MOST] = [const { Mutex::new(OfDevice { plain: None, fraction: 1.0 }) }; MOST];

/// What all devices have that were used, one after the other.
fn all() -> impl Iterator<Item = (&'static Device, MutexGuard<'static, OfDevice>)> {
    devices::all().filter_map(|device| Some((device, of(device).ok()?)))
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
        let device = devices::device(device)?;
        found = of(device)?.made(device)?.allocate(device, size, stream)?;
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
        let device = devices::device(device)?;
        of(device)?.made(device)?.park(address.addr() as u64)
    });
}

/// For `set_init_fn`.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_plain_init(device_count: c_int) {
    // PyTorch passes 0 when the allocator is made, and what there is later.
    let _ = devices::cuda_mem_torch_init(device_count);
}

/// For `set_reset_fn`: what is free goes back to the driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_plain_reset() {
    entry(|| {
        for (device, mut of) in all() {
            if let Some(plain) = &mut of.plain {
                plain.use_parked(device, None);
                plain.caching.empty_cache()?;
            }
        }
        Ok(())
    });
}

/// For `set_memory_fraction_fn`.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_plain_memory_fraction(fraction: f64, device: c_int) {
    entry(|| {
        let mut of = lock(&PLAIN[devices::check_fraction(device, fraction)?]);
        of.fraction = fraction;
        of.plain.as_ref().map_or(Ok(()), |plain| Ok(plain.caching.set_memory_fraction(fraction)?))
    });
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
        let found = all().find_map(|(_, of)| of.plain.as_ref()?.caching.base_allocation(wanted).ok());
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
        for (device, mut of) in all() {
            if let Some(block) = of.plain.as_mut().and_then(|plain| plain.live.get_mut(&address))
                && device.ordinal != user.ordinal
            {
                devices::add(&mut block.elsewhere, user);
            }
        }
        Ok(())
    });
}

fn of(device: &Device) -> Result<MutexGuard<'static, OfDevice>, Failure> {
    let number = usize::try_from(device.ordinal).ok().and_then(|number| PLAIN.get(number));
    number.map(lock).ok_or_else(|| Failure::argument(format!("the device is {}", device.ordinal)))
}

impl OfDevice {
    fn made(&mut self, device: &Device) -> Result<&mut Plain, Failure> {
        match &mut self.plain {
            Some(plain) => Ok(plain),
            none => Ok(none.insert(Plain::new(device, self.fraction)?)),
        }
    }
}

impl Plain {
    fn new(device: &Device, fraction: f64) -> Result<Self, Failure> {
        let options = CachingOptions::default().with_memory_fraction(fraction);
        Ok(Self {
            caching: CachingAllocator::new(&device.context, &options)?,
            stream: Stream::new(&device.context)?,
            live: HashMap::new(),
            parked: Vec::new(),
        })
    }

    fn allocate(&mut self, device: &'static Device, size: usize, asker: *mut c_void) -> Result<u64, Failure> {
        let parked = || self.parked.iter().map(|(_, block)| block.bytes).fold(0, usize::saturating_add);
        if !self.parked.is_empty() && parked() >= size.min(MOST_PARKED) {
            self.use_parked(device, Some(asker));
        }
        let mut made = self.caching.allocate_by_address(size, &self.stream);
        if made.as_ref().is_err_and(cuda_mem_ipc::cuda_mem_pool::Error::is_out_of_memory)
            && self.use_parked(device, Some(asker))
        {
            made = self.caching.allocate_by_address(size, &self.stream);
        }
        let address = made?;
        self.live.insert(address, Block { bytes: size, elsewhere: Vec::new() });
        Ok(address)
    }

    fn park(&mut self, address: u64) -> Result<(), Failure> {
        let unknown =
            || Failure::new(CUDA_MEM_TORCH_NOT_OURS, format!("{address:#x} was not allocated here"));
        let block = self.live.remove(&address).ok_or_else(unknown)?;
        self.parked.push((address, block));
        Ok(())
    }

    /// Has parked memory be used again, once all is done that used it; whether there was any and it could be waited for. A wait
    /// that a capture stands in the way of leaves it parked.
    fn use_parked(&mut self, device: &'static Device, asker: Option<*mut c_void>) -> bool {
        if self.parked.is_empty() || asker.is_some_and(|stream| streams::captures(device, stream)) {
            return false;
        }
        let mut users = vec![device];
        for other in self.parked.iter().flat_map(|(_, block)| &block.elsewhere) {
            devices::add(&mut users, other);
        }
        let waited = users.into_iter().all(|user| streams::quiesce(user).is_ok());
        if waited {
            for (address, _) in self.parked.drain(..) {
                // SAFETY: handed out by `allocate`, given back once, and everything that used it is done.
                let freed = unsafe { self.caching.free_by_address(address) };
                debug_assert!(freed.is_ok(), "{freed:?}");
            }
        }
        waited
    }
}
