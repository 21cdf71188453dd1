//! Copies of rows: `CUDA_MEMCPY2D_v2`.

use cuda_mem_sys::{CUDA_MEMCPY2D_v2, CUmemorytype, CUresult, CUstream};

use super::transfer::{End, Mode, Side, Transfer};
use crate::call::Call;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The longest pitch that the aligned forms take, as the devices we stand for report it.
const MAX_PITCH: usize = i32::MAX as usize;

/// One end as the caller's struct describes it.
struct Corner {
    kind: CUmemorytype,
    host: u64,
    device: u64,
    x: usize,
    y: usize,
    pitch: usize,
}

impl Corner {
    fn end(&self, width: usize, height: usize) -> Outcome<End> {
        let (base, side) = match self.kind {
            CUmemorytype::CU_MEMORYTYPE_HOST => (self.host, Side::Any),
            CUmemorytype::CU_MEMORYTYPE_DEVICE => (self.device, Side::Device),
            CUmemorytype::CU_MEMORYTYPE_UNIFIED => (self.device, Side::Any),
            // Arrays are textures: nothing here makes one.
            _ => return Err(INVALID_VALUE),
        };
        let row = self.x.checked_add(width).ok_or(INVALID_VALUE)?;
        // A pitch of 0 means rows without gaps.
        let pitch = if self.pitch == 0 { row } else { self.pitch };
        if row > pitch && (height > 1 || self.y > 0 || self.pitch != 0) {
            return Err(INVALID_VALUE);
        }
        let skipped =
            self.y.checked_mul(pitch).and_then(|rows| rows.checked_add(self.x)).ok_or(INVALID_VALUE)?;
        let at = base.checked_add(skipped as u64).ok_or(INVALID_VALUE)?;
        Ok(End { at: if base == 0 { 0 } else { at }, pitch: pitch as u64, side })
    }
}

fn copy(call: &Call<'_>, copy: *const CUDA_MEMCPY2D_v2, aligned: bool, mode: Mode) -> Outcome<()> {
    let copy = call.get(copy)?;
    if aligned && (copy.srcPitch > MAX_PITCH || copy.dstPitch > MAX_PITCH) {
        return Err(INVALID_VALUE);
    }
    let from = Corner {
        kind: copy.srcMemoryType,
        host: copy.srcHost.expose_provenance() as u64,
        device: copy.srcDevice,
        x: copy.srcXInBytes,
        y: copy.srcY,
        pitch: copy.srcPitch,
    };
    let to = Corner {
        kind: copy.dstMemoryType,
        host: copy.dstHost.expose_provenance() as u64,
        device: copy.dstDevice,
        x: copy.dstXInBytes,
        y: copy.dstY,
        pitch: copy.dstPitch,
    };
    let (width, height) = (copy.WidthInBytes, copy.Height);
    let (to, from) = (to.end(width, height)?, from.end(width, height)?);
    Transfer { to, from, width: width as u64, height: height as u64 }.submit(call, mode)
}

pub(crate) fn cuMemcpy2D(call: &Call<'_>, plan: *const CUDA_MEMCPY2D_v2) -> Outcome<()> {
    copy(call, plan, true, Mode::Synchronous)
}

pub(crate) fn cuMemcpy2DUnaligned(call: &Call<'_>, plan: *const CUDA_MEMCPY2D_v2) -> Outcome<()> {
    copy(call, plan, false, Mode::Synchronous)
}

pub(crate) fn cuMemcpy2DAsync(
    call: &Call<'_>,
    plan: *const CUDA_MEMCPY2D_v2,
    stream: CUstream,
) -> Outcome<()> {
    copy(call, plan, true, Mode::Asynchronous(stream))
}
