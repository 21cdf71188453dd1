//! Many copies in one call.

use cuda_mem_sys::{CUdeviceptr, CUmemcpyAttributes_v1, CUmemcpySrcAccessOrder, CUresult, CUstream};

use super::transfer::{End, Mode, Side, Transfer};
use crate::call::Call;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) fn cuMemcpyBatchAsync(
    call: &Call<'_>,
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CUmemcpyAttributes_v1,
    first_of: *mut usize,
    attribute_count: usize,
    stream: CUstream,
) -> Outcome<()> {
    call.stream(stream)?;
    let null = stream.is_null() && !call.per_thread;
    if count == 0
        || attribute_count == 0
        || attribute_count > count
        || null
        || stream == cuda_mem_sys::CU_STREAM_LEGACY
    {
        return Err(INVALID_VALUE);
    }
    let attributes = call.get_all(attributes, attribute_count)?;
    let first_of = call.get_all(first_of, attribute_count)?;
    let in_order = first_of.first() == Some(&0) && first_of.is_sorted_by(|one, next| one < next);
    if !in_order || first_of.last().is_some_and(|&last| last >= count) {
        return Err(INVALID_VALUE);
    }
    let known = |attributes: &CUmemcpyAttributes_v1| {
        let order = attributes.srcAccessOrder;
        order.0 > CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_INVALID.0
            && order.0 <= CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_ANY.0
    };
    if !attributes.iter().all(known) {
        return Err(INVALID_VALUE);
    }
    let (dsts, srcs) = (call.get_all(dsts, count)?, call.get_all(srcs, count)?);
    let sizes = call.get_all(sizes, count)?;
    if dsts.contains(&0) || srcs.contains(&0) || sizes.contains(&0) {
        return Err(INVALID_VALUE);
    }
    // An order of access is a permission; reading pageable memory at once keeps each of them but the stream's own order,
    // which needs memory that the device can reach when its turn comes.
    for ((&dst, &src), &size) in dsts.iter().zip(&srcs).zip(&sizes) {
        let transfer = Transfer::line(End::line(dst, Side::Any), End::line(src, Side::Any), size);
        transfer.submit(call, Mode::Asynchronous(stream))?;
    }
    Ok(())
}
