//! All that there is and that happened lately, told piece by piece.
//!
//! # Safety
//!
//! Relies on the visitor that C passes: its functions take what they are told during the call alone.

#![allow(unsafe_code, reason = "calls functions of C")]

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io::{BufWriter, Write as _};

use cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_ipc::cuda_mem_pool::snapshot::{Action, BlockState, SegmentInfo, Snapshot, TraceEntry};
use cuda_mem_ipc::cuda_mem_pool::statistics::PoolSize;

use super::devices::{DEVICES, Device, some};
use super::error::{Failure, entry};
use super::pointers::{self, c_text, given, pointer, read};
use super::{contexts, cuda_mem_torch_pool_id};

/// A segment.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cuda_mem_torch_segment {
    /// Where it begins.
    pub address: *mut c_void,
    /// The stream it is for.
    pub stream: *mut c_void,
    /// Bytes.
    pub total_size: u64,
    /// Bytes of allocated blocks.
    pub allocated_size: u64,
    /// Bytes of allocated blocks, and of freed ones that a stream still uses.
    pub active_size: u64,
    /// As `active_size`, as it was asked for.
    pub requested_size: u64,
    /// The private pool it belongs to; zeros for the default one.
    pub pool: cuda_mem_torch_pool_id,
    /// How many segments of its private pool, on its device, came before it; -1 in the default pool, whose ranges grow and change.
    pub serial: i64,
    /// The device.
    pub device: c_int,
    /// Whether its blocks are larger than 1 MiB.
    pub is_large: bool,
    /// Whether its memory is mapped page by page.
    pub is_expandable: bool,
    /// The context of the allocation that it was made for; null without.
    pub context: *mut c_void,
}

/// A block of the segment that was told of last.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cuda_mem_torch_block {
    /// Where it begins.
    pub address: *mut c_void,
    /// Bytes.
    pub size: u64,
    /// Bytes that were asked for; 0 of a free one.
    pub requested_size: u64,
    /// Whether it is allocated.
    pub allocated: bool,
    /// Whether it is allocated, or freed and still used by a stream.
    pub active: bool,
    /// The context of its allocation; null without.
    pub context: *mut c_void,
}

/// Something that happened.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cuda_mem_torch_trace_entry {
    /// What: the number of the action in PyTorch's `TraceEntry::Action`.
    pub action: c_int,
    /// The device.
    pub device: c_int,
    /// Where it begins; what the device had free, of a lack of memory.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The stream.
    pub stream: *mut c_void,
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// The context of the call that did it; null without.
    pub context: *mut c_void,
    /// What was compiled; empty without.
    pub compile_context: *const c_char,
    /// What the program says of it; empty without.
    pub user_metadata: *const c_char,
    /// The private pool; zeros of the default one.
    pub pool: cuda_mem_torch_pool_id,
}

/// The functions that are told. Each may be null. What they are passed is theirs during the call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cuda_mem_torch_visitor {
    /// What each is passed first.
    pub data: *mut c_void,
    /// A segment; its blocks come next.
    pub segment: Option<unsafe extern "C" fn(data: *mut c_void, segment: *const cuda_mem_torch_segment)>,
    /// A block.
    pub block: Option<unsafe extern "C" fn(data: *mut c_void, block: *const cuda_mem_torch_block)>,
    /// An entry of the history, the oldest first.
    pub trace: Option<unsafe extern "C" fn(data: *mut c_void, entry: *const cuda_mem_torch_trace_entry)>,
    /// A private pool whose memory is a tag's, with the tag's name. Comes with the history.
    pub tag: Option<
        unsafe extern "C" fn(
            data: *mut c_void,
            device: c_int,
            pool: cuda_mem_torch_pool_id,
            name: *const c_char,
        ),
    >,
}

/// Tells of all segments of a device or of all, of their blocks, and of the history, in which it leaves an entry; without traces it leaves
/// none. A pool other than zeros limits it to its segments; the history is that of all pools, whose entries name them.
///
/// # Safety
///
/// `visitor` points to functions that may be called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_snapshot(
    device: c_int,
    pool: cuda_mem_torch_pool_id,
    include_traces: bool,
    visitor: *const cuda_mem_torch_visitor,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let visitor = *unsafe { read(visitor, "visitor") }?;
        let wanted = MempoolId::from(pool);
        for device in some(device)? {
            let mut snapshot = match include_traces {
                true => device.caching.snapshot(),
                false => Snapshot { segments: device.caching.segments(), ..Snapshot::default() },
            };
            snapshot.segments.retain(|one| wanted == MempoolId::NONE || one.segment_pool_id == wanted);
            snapshot.segments.sort_by_key(|segment| segment.address);
            snapshot.segments.iter().for_each(|segment| visitor.tell_segment(device, segment));
            snapshot.device_traces.iter().flatten().for_each(|trace| visitor.tell_trace(device, trace));
            snapshot.tags.iter().for_each(|(_, id, name)| visitor.tell_tag(device, *id, name));
        }
        // Once nothing is recorded any more, only this releases the contexts of blocks that were freed since.
        contexts::release_unused();
        Ok(())
    })
}

/// Writes the file that PyTorch's memory viewer opens, of all devices, with the history and without the program's contexts.
///
/// # Safety
///
/// `path` is a path: bytes, the last of them 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_write_snapshot(path: *const c_char) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { pointers::path(path, "path") }?;
        let refused = |error: std::io::Error| {
            Failure::new(super::CUDA_MEM_TORCH_SYSTEM, format!("cannot write {}: {error}", path.display()))
        };
        let mut file = BufWriter::new(File::create(path).map_err(refused)?);
        DEVICES.snapshot().write_pickle(&mut file).map_err(refused)?;
        file.flush().map_err(refused)
    })
}

/// Tells of the bytes that streams have mapped of the default pool, by size class: PyTorch's `getExpandableSegmentSizes`.
///
/// # Safety
///
/// `size` may be called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_expandable_segment_sizes(
    device: c_int,
    data: *mut c_void,
    size: Option<unsafe extern "C" fn(data: *mut c_void, stream: *mut c_void, is_small: bool, bytes: u64)>,
) -> c_int {
    entry(|| {
        let size = given(size, "size")?;
        let Some(device) = super::devices::if_made(device)? else { return Ok(()) };
        for found in device.caching.stream_segment_sizes()? {
            let raw = pointer(found.handle);
            // SAFETY: the caller's promise.
            unsafe { size(data, raw, found.pool == PoolSize::Small, found.mapped) };
        }
        Ok(())
    })
}

impl cuda_mem_torch_visitor {
    fn tell_segment(&self, device: &Device, segment: &SegmentInfo) {
        let told = cuda_mem_torch_segment {
            address: pointer(segment.address),
            stream: pointer(segment.stream),
            total_size: segment.total_size,
            allocated_size: segment.allocated_size,
            active_size: segment.active_size,
            requested_size: segment.requested_size,
            pool: segment.segment_pool_id.into(),
            serial: segment.serial.and_then(|serial| i64::try_from(serial).ok()).unwrap_or(-1),
            device: device.ordinal,
            is_large: segment.segment_type == PoolSize::Large,
            is_expandable: segment.is_expandable,
            context: contexts::of(segment.frames.as_ref()),
        };
        if let Some(tell) = self.segment {
            // SAFETY: the caller's promise for the visitor.
            unsafe { tell(self.data, &raw const told) };
        }
        let Some(tell) = self.block else { return };
        for block in &segment.blocks {
            let told = cuda_mem_torch_block {
                address: pointer(block.address),
                size: block.size,
                requested_size: block.requested_size,
                allocated: block.state == BlockState::ActiveAllocated,
                active: block.state != BlockState::Inactive,
                context: contexts::of(block.frames.as_ref()),
            };
            // SAFETY: as above.
            unsafe { tell(self.data, &raw const told) };
        }
    }

    fn tell_tag(&self, device: &Device, pool: MempoolId, name: &str) {
        if let Some(tell) = self.tag {
            // SAFETY: the caller's promise for the visitor.
            unsafe { tell(self.data, device.ordinal, pool.into(), c_text(name).as_ptr()) };
        }
    }

    fn tell_trace(&self, device: &Device, entry: &TraceEntry) {
        if let Some(tell) = self.trace {
            with_trace(device.ordinal, entry, |told| {
                // SAFETY: the caller's promise for the visitor.
                unsafe { tell(self.data, told) };
            });
        }
    }
}

/// Runs `tell` with an entry as C has it.
pub(super) fn with_trace(
    device: c_int,
    entry: &TraceEntry,
    tell: impl FnOnce(*const cuda_mem_torch_trace_entry),
) {
    let text = |text: &Option<_>| c_text(text.as_deref().unwrap_or_default());
    let (compiled, metadata) = (text(&entry.compile_context), text(&entry.user_metadata));
    let action = Action::ALL.iter().position(|action| *action == entry.action);
    let told = cuda_mem_torch_trace_entry {
        action: action.and_then(|action| c_int::try_from(action).ok()).unwrap_or(-1),
        device,
        address: entry.address,
        size: entry.size,
        stream: pointer(entry.stream),
        time_us: entry.time_us,
        context: contexts::of(entry.frames.as_ref()),
        compile_context: compiled.as_ptr(),
        user_metadata: metadata.as_ptr(),
        pool: entry.pool.into(),
    };
    tell(&raw const told);
}
