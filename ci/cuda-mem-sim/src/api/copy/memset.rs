//! Filling memory with a pattern.
//!
//! # Safety
//!
//! As for copies: the place is given for the whole extent, and only rows within it are touched.

use cuda_mem_sys::{CUdeviceptr, CUgraphNodeType, CUresult, CUstream};

use crate::call::Call;
use crate::driver::Driver;
use crate::memory::bytes;
use crate::runtime::op::{Op, Outcome};

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// `height` rows of `width` elements that are filled with `pattern`.
struct Fill<'a> {
    at: u64,
    pitch: usize,
    pattern: &'a [u8],
    width: usize,
    height: usize,
}

impl Fill<'_> {
    /// Puts the fill in order. Without a stream it goes to the null stream, where only host memory is waited for.
    fn submit(self, call: &Call<'_>, stream: Option<CUstream>) -> Outcome<()> {
        let queue = stream.map_or_else(|| call.default_stream(), |handle| call.stream(handle))?;
        if !self.at.is_multiple_of(self.pattern.len() as u64) {
            return Err(INVALID_VALUE);
        }
        let row = self.width.checked_mul(self.pattern.len()).ok_or(INVALID_VALUE)?;
        if row == 0 || self.height == 0 {
            return Ok(());
        }
        if self.height > 1 && row > self.pitch {
            return Err(INVALID_VALUE);
        }
        let rows = self.pitch.checked_mul(self.height - 1).ok_or(INVALID_VALUE)?;
        let extent = rows.checked_add(row).ok_or(INVALID_VALUE)? as u64;
        let waits = {
            let current = call.current().map_or(queue.context.device, |context| context.device);
            let state = call.memory().lock();
            let block = state.known(self.at).ok_or(INVALID_VALUE)?;
            if !state.copy_may_use(self.at, extent, true, Some(current)) {
                return Err(INVALID_VALUE);
            }
            block.access.host || block.sync_memops
        };
        let (at, pitch, height, pattern) = (self.at, self.pitch, self.height, self.pattern.to_vec());
        let run = move |driver: &Driver| {
            let place = driver.memory.lock().known_place(at, extent);
            let place = place.ok_or(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)?;
            for index in 0..height {
                // SAFETY: the place was given for the whole extent, of which this is one row.
                unsafe { bytes::fill(place.offset(index * pitch), &pattern, row) }?;
            }
            Ok(())
        };
        let kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET;
        let op = Op::new(call.function, kind, run).writing(at, extent);
        match stream {
            Some(_) => call.enqueue(&queue, op),
            None if waits => call.run_sync(op),
            None => call.driver.runtime.enqueue_synchronous(call, &queue, op),
        }
    }
}

fn line(call: &Call<'_>, at: u64, pattern: &[u8], count: usize, stream: Option<CUstream>) -> Outcome<()> {
    Fill { at, pitch: 0, pattern, width: count, height: 1 }.submit(call, stream)
}

pub(crate) fn cuMemsetD8(call: &Call<'_>, dst: CUdeviceptr, value: u8, count: usize) -> Outcome<()> {
    line(call, dst, &[value], count, None)
}

pub(crate) fn cuMemsetD16(call: &Call<'_>, dst: CUdeviceptr, value: u16, count: usize) -> Outcome<()> {
    line(call, dst, &value.to_ne_bytes(), count, None)
}

pub(crate) fn cuMemsetD32(call: &Call<'_>, dst: CUdeviceptr, value: u32, count: usize) -> Outcome<()> {
    line(call, dst, &value.to_ne_bytes(), count, None)
}

pub(crate) fn cuMemsetD8Async(
    call: &Call<'_>,
    dst: CUdeviceptr,
    value: u8,
    count: usize,
    stream: CUstream,
) -> Outcome<()> {
    line(call, dst, &[value], count, Some(stream))
}

pub(crate) fn cuMemsetD16Async(
    call: &Call<'_>,
    dst: CUdeviceptr,
    value: u16,
    count: usize,
    stream: CUstream,
) -> Outcome<()> {
    line(call, dst, &value.to_ne_bytes(), count, Some(stream))
}

pub(crate) fn cuMemsetD32Async(
    call: &Call<'_>,
    dst: CUdeviceptr,
    value: u32,
    count: usize,
    stream: CUstream,
) -> Outcome<()> {
    line(call, dst, &value.to_ne_bytes(), count, Some(stream))
}

pub(crate) fn cuMemsetD2D8Async(
    call: &Call<'_>,
    dst: CUdeviceptr,
    pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Outcome<()> {
    Fill { at: dst, pitch, pattern: &[value], width, height }.submit(call, Some(stream))
}
