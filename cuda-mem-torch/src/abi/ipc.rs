//! Blocks for other processes.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for what they pass.

#![allow(unsafe_code, reason = "takes pointers of C")]

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::ImportedMapping;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Error as CoreError};

use super::devices::{Device, device};
use super::error::{CUDA_MEM_TORCH_NOT_OURS, CUDA_MEM_TORCH_UNSUPPORTED, Failure, entry};
use super::memory::block;
use super::pointers::{expect, list, pointer, write};
use super::tags::tag_of;
use super::{leaving, uncached};
use crate::ipc::{self, Named, ShareableHandle, VERSIONS, import, legacy};
use crate::lock::lock;

/// A device's number, and the bytes that name the memory.
type Key = (c_int, Vec<u8>);

/// Memory of another process, mapped once however often it is opened.
#[derive(Debug)]
struct Opened {
    key: Key,
    mapping: ImportedMapping,
    device: &'static Device,
    users: usize,
}

#[derive(Debug)]
struct Imports {
    opened: Vec<Opened>,
    /// Which devices reach the memory of which, by the owner's number.
    peers: Vec<(c_int, &'static Device)>,
}

impl Imports {
    /// What is opened already, for one more user.
    fn find(&mut self, key: &Key) -> Option<u64> {
        let known = self.opened.iter_mut().find(|opened| opened.key == *key)?;
        known.users += 1;
        Some(known.mapping.as_raw())
    }

    /// The devices that reach the memory of another.
    fn peers_of(&self, owner: c_int) -> impl Iterator<Item = &'static Device> {
        self.peers.iter().filter(move |(of, _)| *of == owner).map(|(_, peer)| *peer)
    }
}

/// A device reaches the memory of another from now on: what was opened for that one too.
pub(super) fn add_peer(owner: &Device, peer: &'static Device) -> Result<(), Failure> {
    let mut imports = lock(&IMPORTS);
    let is_known = imports.peers_of(owner.ordinal).any(|known| known.ordinal == peer.ordinal);
    if is_known || owner.ordinal == peer.ordinal {
        return Ok(());
    }
    let mut of_owner = imports.opened.iter().filter(|opened| opened.device.ordinal == owner.ordinal);
    of_owner.try_for_each(|opened| opened.mapping.allow(&[peer.context.device()]))?;
    imports.peers.push((owner.ordinal, peer));
    Ok(())
}

static IMPORTS: Mutex<Imports> = Mutex::new(Imports { opened: Vec::new(), peers: Vec::new() });
/// Names a block for other processes in PyTorch's format: `handle` gets up to `capacity` bytes, `length` how many there are, `offset`
/// where in the named memory the block begins. A process that opens it keeps the memory, but not the block: this process does not free the
/// block before the others are done.
///
/// `version` is 2 for PyTorch 2.11 and 2.12, 3 for later ones. Memory of private pools, and memory that was made without caching, goes by
/// the driver's handle, which [`cuda_mem_torch_ipc_open`] leaves to the native allocator; `CUDA_MEM_TORCH_UNSUPPORTED` where the
/// driver makes none.
///
/// # Safety
///
/// `handle` is null or has room for `capacity` bytes; `length` and `offset` are places for their values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_ipc_share(
    address: *mut c_void,
    version: u8,
    handle: *mut u8,
    capacity: usize,
    length: *mut usize,
    offset: *mut usize,
) -> c_int {
    entry(|| {
        if !VERSIONS.contains(&version) {
            let [first, second] = VERSIONS;
            return Err(Failure::argument(format!(
                "version is {version}; accepted: {first} (PyTorch 2.11 and 2.12), {second} (later ones)"
            )));
        }
        let told = share(address.addr() as u64, version)?;
        let begins = usize::try_from(told.offset).unwrap_or(0);
        let bytes = told.handle;
        // SAFETY: the caller's promise.
        unsafe { write(length, bytes.len(), "length") }?;
        // SAFETY: the caller's promise.
        unsafe { write(offset, begins, "offset") }?;
        if !handle.is_null() {
            // SAFETY: the caller's promise; the bytes are ours, so they do not overlap.
            unsafe { handle.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(capacity)) };
        }
        Ok(())
    })
}

fn share(address: u64, version: u8) -> Result<ShareableHandle, Failure> {
    let (device, shared) = match uncached::device_of(address) {
        Some(device) => (device, None),
        None => block(address, |device| Ok((device, ipc::share(&device.caching, address, version)?)))?,
    };
    // SAFETY: the caller's promise for the block, which keeps the allocation.
    let legacy = || unsafe { legacy(&device.context, address) }.map_err(|error| unshareable(address, &error));
    shared.map_or_else(legacy, Ok)
}

/// The driver makes handles for other processes of memory of `cuMemAlloc` alone.
fn unshareable(address: u64, error: &CoreError) -> Failure {
    let why = match tag_of(address) {
        Some((_, tag)) => format!(
            "the memory at {address:#x} is of the tag {:?}, and memory of tags is not shared with other processes: share a copy \
             that is made outside of the tag (tensor.clone())",
            tag.name()
        ),
        None => format!(
            "the driver makes no handle for other processes of the memory at {address:#x}, which was not mapped here: {error}. \
             Share a copy that is made outside of the pool with caching on (tensor.clone()), or have the pool's allocator use \
             cudaMalloc"
        ),
    };
    Failure::new(CUDA_MEM_TORCH_UNSUPPORTED, why)
}

/// Maps what another process told of, for a device. The same bytes give the same address, until all have closed it.
/// `CUDA_MEM_TORCH_NOT_OURS` for memory of `cuMemAlloc` and for handles of a fabric, which PyTorch's own allocator opens.
///
/// # Safety
///
/// `handle` has `length` bytes; `address` is a place for one address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_ipc_open(
    device: c_int,
    handle: *const u8,
    length: usize,
    address: *mut *mut c_void,
) -> c_int {
    entry(|| {
        expect(address, "address")?;
        // SAFETY: the caller's promise.
        let bytes = unsafe { list(handle, length, "handle") }?;
        let found = open(self::device(device)?, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { write(address, pointer(found), "address") }
    })
}

fn open(device: &'static Device, bytes: &[u8]) -> Result<u64, Failure> {
    let Named::Mapped(mapped) = Named::read(bytes)? else {
        return Err(Failure::new(
            CUDA_MEM_TORCH_NOT_OURS,
            "the handle is of memory of cuMemAlloc, or of a fabric, which the native allocator opens",
        ));
    };
    leaving::settle();
    let key = (device.ordinal, bytes.to_vec());
    if let Some(address) = lock(&IMPORTS).find(&key) {
        return Ok(address);
    }
    // Without the lock: the other process may take long, and the hook that hears of a failure may open memory too.
    let mapping = import::<Failure>(device.context.device(), &mapped)?;
    let _reports = core::LateReports::new();
    let mut imports = lock(&IMPORTS);
    if let Some(address) = imports.find(&key) {
        return Ok(address);
    }
    mapping.allow(&imports.peers_of(device.ordinal).map(|peer| peer.context.device()).collect::<Vec<_>>())?;
    let address = mapping.as_raw();
    imports.opened.push(Opened { key, mapping, device, users: 1 });
    Ok(address)
}

/// Ends one use of what [`cuda_mem_torch_ipc_open`] gave; the last one waits for the devices that reach it, and unmaps it. Whatever is
/// returned, the use has ended: while a stream captures, a later call unmaps it that opens or closes memory or empties the cache.
///
/// # Safety
///
/// No work uses it that is given to the device later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_ipc_close(address: *mut c_void) -> c_int {
    entry(|| {
        let mut imports = lock(&IMPORTS);
        let opened = &mut imports.opened;
        let address = address.addr() as u64;
        let Some(place) = opened.iter().position(|opened| opened.mapping.as_raw() == address) else {
            return Err(Failure::new(
                CUDA_MEM_TORCH_NOT_OURS,
                format!("{address:#x} is not what was opened of another process"),
            ));
        };
        if opened[place].users > 1 {
            opened[place].users -= 1;
            return Ok(());
        }
        // Out of the list first: a later open of the same bytes gets a mapping of its own, since they may name other memory by then.
        let Opened { mapping, device, .. } = opened.swap_remove(place);
        let users = [device].into_iter().chain(imports.peers_of(device.ordinal)).collect();
        drop(imports);
        leaving::wait_and(users, move || drop(mapping))
    })
}
