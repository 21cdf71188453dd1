//! Which processes use which GPU, and the figures that this process gives to others that ask.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for what they pass.

#![allow(unsafe_code, reason = "calls a function of C")]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Once;
use std::time::Duration;

use cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_top::{DeviceFigures, Error, Part, ProcessFigures};

use super::devices::{DEVICES, Device};
use super::error::{CUDA_MEM_TORCH_SYSTEM, CUDA_MEM_TORCH_UNSUPPORTED, Failure, entry};
use super::pointers::{c_text, given};

/// Lets `top` of the same user ask this process from now on. A process that cannot be asked works as well.
pub(super) fn publish() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(cuda_mem_top::publish(figures)));
}

fn figures() -> ProcessFigures {
    ProcessFigures { devices: DEVICES.all().map(of_device).collect() }
}

fn of_device(device: &Device) -> DeviceFigures {
    let statistics = device.caching.statistics();
    let tags = device.caching.tags();
    let tag_of = |id: &MempoolId| tags.iter().find(|tag| tag.pools().contains(id));
    let mut parts = BTreeMap::new();
    for segment in device.caching.segments() {
        let (id, address) = (segment.segment_pool_id, segment.address);
        let part: &mut (u64, u64) = parts.entry((segment.stream, id)).or_default();
        // What sleeps has its addresses alone.
        let is_asleep = tag_of(&id).is_some_and(|tag| tag.is_asleep_at(address));
        part.0 = part.0.saturating_add(if is_asleep { 0 } else { segment.total_size });
        part.1 = part.1.saturating_add(segment.allocated_size);
    }
    let part = |((stream, id), (reserved, live)): ((_, MempoolId), _)| Part {
        stream,
        pool: (id != MempoolId::NONE).then_some((id.0, id.1)),
        tag: tag_of(&id).map(|tag| tag.name().to_owned()),
        reserved,
        live,
    };
    let (reserved, live) = (statistics.reserved_bytes.all, statistics.allocated_bytes.all);
    DeviceFigures {
        ordinal: device.ordinal,
        uuid: device.context.device().uuid().unwrap_or_default(),
        reserved: reserved.current,
        peak_reserved: reserved.peak,
        live: live.current,
        peak_live: live.peak,
        retries: statistics.num_alloc_retries,
        out_of_memory: statistics.num_ooms,
        parts: parts.into_iter().map(part).collect(),
    }
}

/// Gives `write` a table of who uses which GPU: by process, and by stream, pool and tag for processes of this library and of this user.
///
/// `CUDA_MEM_TORCH_UNSUPPORTED` where there is no GPU or no driver, and no such process.
///
/// # Safety
///
/// `write` may be called with `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_top_table(
    data: *mut c_void,
    write: Option<unsafe extern "C" fn(data: *mut c_void, text: *const c_char)>,
) -> c_int {
    entry(|| {
        let write = given(write, "write")?;
        let text = c_text(&cuda_mem_top::table()?);
        // SAFETY: the caller's promise.
        unsafe { write(data, text.as_ptr()) };
        Ok(())
    })
}

/// Shows that table on the terminal, gathered anew after each interval, until the user ends it with `q`. As
/// [`cuda_mem_torch_top_table`], and `CUDA_MEM_TORCH_SYSTEM` where there is no terminal.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_top(interval_ms: u64) -> c_int {
    entry(|| Ok(cuda_mem_top::show(Duration::from_millis(interval_ms))?))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::NoDriver(_) | Error::NoGpu => CUDA_MEM_TORCH_UNSUPPORTED,
            _ => CUDA_MEM_TORCH_SYSTEM,
        };
        Self::new(code, error.to_string())
    }
}
