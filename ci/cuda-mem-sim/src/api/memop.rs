//! Stream memory operations: writing a word and waiting for one, in the order of a stream.

use std::ffi::c_uint;
use std::sync::Arc;

use cuda_mem_sys::{
    CUdeviceptr, CUgraphNodeType, CUresult, CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType,
    CUstreamWaitValue_flags, CUstreamWriteValue_flags,
};

use crate::call::Call;
use crate::driver::Driver;
use crate::memory::blocks::Kind;
use crate::memory::resolve::Who;
use crate::runtime::kernels::{read_word, write_word};
use crate::runtime::op::{Op, Outcome, Run};
use crate::runtime::stream::Stream;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const MEMOP: CUgraphNodeType = CUgraphNodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;

/// How many operations a batch can have.
const MAX_BATCH: c_uint = 256;

pub(crate) fn cuStreamWriteValue32(
    call: &Call<'_>,
    stream: CUstream,
    address: CUdeviceptr,
    value: u32,
    flags: c_uint,
) -> Outcome<()> {
    let stream = call.stream(stream)?;
    let op = write_op(call, &stream, address, value.into(), 4, flags)?;
    call.enqueue(&stream, op)
}

pub(crate) fn cuStreamWriteValue64(
    call: &Call<'_>,
    stream: CUstream,
    address: CUdeviceptr,
    value: u64,
    flags: c_uint,
) -> Outcome<()> {
    let stream = call.stream(stream)?;
    let op = write_op(call, &stream, address, value, 8, flags)?;
    call.enqueue(&stream, op)
}

pub(crate) fn cuStreamWaitValue32(
    call: &Call<'_>,
    stream: CUstream,
    address: CUdeviceptr,
    value: u32,
    flags: c_uint,
) -> Outcome<()> {
    let stream = call.stream(stream)?;
    let op = wait_op(call, &stream, address, value.into(), 4, flags)?;
    call.enqueue(&stream, op)
}

pub(crate) fn cuStreamWaitValue64(
    call: &Call<'_>,
    stream: CUstream,
    address: CUdeviceptr,
    value: u64,
    flags: c_uint,
) -> Outcome<()> {
    let stream = call.stream(stream)?;
    let op = wait_op(call, &stream, address, value, 8, flags)?;
    call.enqueue(&stream, op)
}

/// All operations are checked before the first is enqueued.
pub(crate) fn cuStreamBatchMemOp(
    call: &Call<'_>,
    stream: CUstream,
    count: c_uint,
    parameters: *mut CUstreamBatchMemOpParams,
    flags: c_uint,
) -> Outcome<()> {
    let stream = call.stream(stream)?;
    if count > MAX_BATCH || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let parameters = call.get_all(parameters.cast_const(), count as usize)?;
    let ops = parameters
        .iter()
        .map(|parameters| batched(call, &stream, parameters))
        .collect::<Outcome<Vec<Op>>>()?;
    ops.into_iter().try_for_each(|op| call.enqueue(&stream, op))
}

/// The operation that one entry of a batch describes.
fn batched(call: &Call<'_>, stream: &Arc<Stream>, parameters: &CUstreamBatchMemOpParams) -> Outcome<Op> {
    // SAFETY: every kind of entry begins with its operation.
    let operation = unsafe { parameters.operation };
    let is_wait = matches!(
        operation,
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32
            | CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64
    );
    match operation {
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32
        | CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32 => {
            // SAFETY: entries that wait and that write have the same fields in the same places.
            let entry = unsafe { parameters.waitValue };
            // SAFETY: the operation says that the value has 32 bits.
            let value = unsafe { entry.__bindgen_anon_1.value };
            let make = if is_wait { wait_op } else { write_op };
            make(call, stream, entry.address, value.into(), 4, entry.flags)
        }
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64
        | CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64 => {
            // SAFETY: entries that wait and that write have the same fields in the same places.
            let entry = unsafe { parameters.waitValue };
            // SAFETY: the operation says that the value has 64 bits.
            let value = unsafe { entry.__bindgen_anon_1.value64 };
            let make = if is_wait { wait_op } else { write_op };
            make(call, stream, entry.address, value, 8, entry.flags)
        }
        // Memory is coherent here: there is nothing to flush and no barrier to be crossed.
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES
        | CUstreamBatchMemOpType::CU_STREAM_MEM_OP_BARRIER => {
            Ok(Op::of("memory barrier", MEMOP, Run::Nothing))
        }
        _ => Err(INVALID_VALUE),
    }
}

fn write_op(
    call: &Call<'_>,
    stream: &Arc<Stream>,
    address: CUdeviceptr,
    value: u64,
    size: u64,
    flags: c_uint,
) -> Outcome<Op> {
    if flags & !CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER.0 != 0 {
        return Err(INVALID_VALUE);
    }
    let who = Who::Device(stream.context.device);
    check_word(call, address, size, who)?;
    // Memory that may only be read is found out when the write comes, as a failed launch.
    let failed = |_| CUresult::CUDA_ERROR_LAUNCH_FAILED;
    let run = move |driver: &Driver| write_word(driver, address, value, size, who).map_err(failed);
    Ok(Op::new("write of a word", MEMOP, run).writing(address, size))
}

fn wait_op(
    call: &Call<'_>,
    stream: &Arc<Stream>,
    address: CUdeviceptr,
    value: u64,
    size: u64,
    flags: c_uint,
) -> Outcome<Op> {
    let condition = Condition::new(flags, value, size)?;
    let who = Who::Device(stream.context.device);
    check_word(call, address, size, who)?;
    let poll = move |driver: &Driver, _| {
        let word = read_word(driver, address, size, who)?;
        // Memory without bytes never changes: to wait for it would be to wait for ever.
        Ok(word.is_none_or(|word| condition.holds(word)))
    };
    Ok(Op::polling("wait for a word", MEMOP, poll).reading(address, size))
}

/// Refuses, with error 1, a word that the device cannot reach, that is not aligned, or that lies in memory of a pool or in
/// managed memory.
fn check_word(call: &Call<'_>, address: CUdeviceptr, size: u64, who: Who) -> Outcome<()> {
    let state = call.memory().lock();
    let kind = state.known(address).map(|block| block.kind);
    if !address.is_multiple_of(size) || matches!(kind, Some(Kind::Pooled(_) | Kind::Managed)) {
        return Err(INVALID_VALUE);
    }
    state.place(address, size, who, false).map(drop).map_err(|_| INVALID_VALUE)
}

/// What a wait is for.
#[derive(Debug, Clone, Copy)]
struct Condition {
    flags: c_uint,
    value: u64,
    /// The bits of the word.
    mask: u64,
}

impl Condition {
    fn new(flags: c_uint, value: u64, size: u64) -> Outcome<Self> {
        if flags & CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_FLUSH.0 != 0 {
            // The modelled device cannot, and says so by an attribute.
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if flags > CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_NOR.0 {
            return Err(INVALID_VALUE);
        }
        let mask = if size == 4 { u64::from(u32::MAX) } else { u64::MAX };
        Ok(Self { flags, value, mask })
    }

    fn holds(self, word: u64) -> bool {
        let Self { flags, value, mask } = self;
        match CUstreamWaitValue_flags(flags) {
            // A difference that is not negative, so counters may wrap around.
            CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ => word.wrapping_sub(value) & mask <= mask >> 1,
            CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ => (word ^ value) & mask == 0,
            CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_AND => word & value & mask != 0,
            _ => !(word | value) & mask != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(flags: CUstreamWaitValue_flags, value: u64, size: u64, word: u64) -> bool {
        Condition::new(flags.0, value, size).unwrap().holds(word)
    }

    #[test]
    fn greater_or_equal_goes_round() {
        let geq = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ;
        assert!(holds(geq, 5, 4, 5) && holds(geq, 5, 4, 6) && !holds(geq, 5, 4, 4));
        assert!(holds(geq, 0xFFFF_FFFF, 4, 1) && !holds(geq, 1, 4, 0xFFFF_FFFF));
        assert!(holds(geq, u64::MAX, 8, 0));
    }

    #[test]
    fn bits_are_compared_as_the_manual_says() {
        assert!(holds(CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_AND, 0b100, 4, 0b110));
        assert!(!holds(CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_AND, 0b100, 4, 0b011));
        assert!(!holds(CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_NOR, 0xFFFF_0000, 4, 0xFFFF));
        assert!(holds(CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_NOR, 0, 4, 0xFFFF));
        assert!(Condition::new(4, 0, 4).is_err());
    }
}
