//! Managed memory: reachable by the host and all devices. Pages do not move here, but what the program said about them is
//! remembered and told again.

use std::ffi::c_void;

use cuda_mem_sys::{
    CUdeviceptr, CUgraphNodeType, CUmem_advise, CUmem_range_attribute, CUmemAttach_flags, CUmemLocation,
    CUmemLocationType, CUresult, CUstream,
};

use super::device::block_in;
use crate::call::Call;
use crate::memory::blocks::{Access, Kind};
use crate::memory::managed::{Advice, Wish};
use crate::runtime::op::{Op, Outcome, Run};

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// What attributes say where there is no such location.
const NOWHERE: i32 = -2;
const CPU: i32 = -1;

pub(crate) fn cuMemAllocManaged(
    call: &Call<'_>,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    flags: u32,
) -> Outcome<()> {
    let context = call.current()?;
    call.not_capturing()?;
    let known = flags == CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0
        || flags == CUmemAttach_flags::CU_MEM_ATTACH_HOST.0;
    if dptr.is_null() || bytes == 0 || !known {
        return Err(INVALID_VALUE);
    }
    let block = block_in(call, &context, Kind::Managed, 0, bytes, Access::EVERYBODY);
    let start = call.memory().lock().allocate(block)?;
    call.put(dptr, start)
}

/// The whole range must be managed memory.
fn managed(call: &Call<'_>, at: CUdeviceptr, len: usize) -> Outcome<()> {
    let state = call.memory().lock();
    let blocks = state.blocks.covering(at, (len as u64).max(1)).ok_or(INVALID_VALUE)?;
    let is_managed = blocks.iter().all(|block| state.is_managed(block));
    if is_managed && len > 0 { Ok(()) } else { Err(INVALID_VALUE) }
}

/// The location must exist.
fn checked(call: &Call<'_>, location: CUmemLocation) -> Outcome<CUmemLocation> {
    match location.type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {
            call.device(location.id)?;
        }
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
        | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => {}
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA
            if (0..call.memory().setup().nodes).contains(&location.id) => {}
        _ => return Err(INVALID_VALUE),
    }
    Ok(location)
}

pub(crate) fn cuMemAdvise(
    call: &Call<'_>,
    at: CUdeviceptr,
    len: usize,
    advice: CUmem_advise,
    location: CUmemLocation,
) -> Outcome<()> {
    call.current()?;
    managed(call, at, len)?;
    // Memory of managed pools moves when it is told to, but takes no advice.
    let kind = call.memory().lock().known(at).map(|block| block.kind);
    if matches!(kind, Some(Kind::Pooled(_))) {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let wish = match advice {
        CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY => Wish::ReadMostly(true),
        CUmem_advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY => Wish::ReadMostly(false),
        CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION => {
            Wish::Preferred(Some(key(checked(call, location)?)))
        }
        CUmem_advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => Wish::Preferred(None),
        CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY => Wish::AccessedBy(id(checked(call, location)?), true),
        CUmem_advise::CU_MEM_ADVISE_UNSET_ACCESSED_BY => {
            Wish::AccessedBy(id(checked(call, location)?), false)
        }
        _ => return Err(INVALID_VALUE),
    };
    call.memory().lock().advice.set(at, len as u64, wish);
    Ok(())
}

fn key(location: CUmemLocation) -> (u32, i32) {
    (location.type_.0, location.id)
}

/// A location as the older attributes tell it: a device's number, or the host.
fn id(location: CUmemLocation) -> i32 {
    if location.type_ == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE { location.id } else { CPU }
}

/// Puts a use of the range in the stream's order, as moving its pages would be.
fn visit(call: &Call<'_>, ranges: &[(CUdeviceptr, usize)], stream: CUstream) -> Outcome<()> {
    let stream = call.stream(stream)?;
    let op = Op::of(call.function, CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY, Run::Nothing);
    let op = ranges.iter().fold(op, |op, &(at, len)| op.reading(at, len as u64));
    call.enqueue(&stream, op)
}

pub(crate) fn cuMemPrefetchAsync(
    call: &Call<'_>,
    at: CUdeviceptr,
    len: usize,
    location: CUmemLocation,
    flags: u32,
    stream: CUstream,
) -> Outcome<()> {
    call.current()?;
    managed(call, at, len)?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    let location = key(checked(call, location)?);
    visit(call, &[(at, len)], stream)?;
    call.memory().lock().advice.set(at, len as u64, Wish::Prefetched(location));
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) fn cuMemPrefetchBatchAsync(
    call: &Call<'_>,
    at: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    locations: *mut CUmemLocation,
    first_of: *mut usize,
    location_count: usize,
    flags: u64,
    stream: CUstream,
) -> Outcome<()> {
    call.current()?;
    let ranges = batch(call, at, sizes, count, flags)?;
    let locations = call.get_all(locations, location_count)?;
    let first_of = call.get_all(first_of, location_count)?;
    if first_of.first() != Some(&0) || !first_of.is_sorted_by(|one, next| one < next) {
        return Err(INVALID_VALUE);
    }
    locations.iter().try_for_each(|&location| checked(call, location).map(drop))?;
    visit(call, &ranges, stream)?;
    let mut state = call.memory().lock();
    for (index, &(at, len)) in ranges.iter().enumerate() {
        let which = first_of.partition_point(|&first| first <= index);
        if let Some(&location) = which.checked_sub(1).and_then(|which| locations.get(which)) {
            state.advice.set(at, len as u64, Wish::Prefetched(key(location)));
        }
    }
    Ok(())
}

pub(crate) fn cuMemDiscardBatchAsync(
    call: &Call<'_>,
    at: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    flags: u64,
    stream: CUstream,
) -> Outcome<()> {
    call.current()?;
    let ranges = batch(call, at, sizes, count, flags)?;
    visit(call, &ranges, stream)
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) fn cuMemDiscardAndPrefetchBatchAsync(
    call: &Call<'_>,
    at: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    locations: *mut CUmemLocation,
    first_of: *mut usize,
    location_count: usize,
    flags: u64,
    stream: CUstream,
) -> Outcome<()> {
    cuMemPrefetchBatchAsync(call, at, sizes, count, locations, first_of, location_count, flags, stream)
}

/// The ranges of a batch, all of them managed.
fn batch(
    call: &Call<'_>,
    at: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    flags: u64,
) -> Outcome<Vec<(CUdeviceptr, usize)>> {
    if count == 0 || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let ranges: Vec<_> = call.get_all(at, count)?.into_iter().zip(call.get_all(sizes, count)?).collect();
    ranges.iter().try_for_each(|&(at, len)| managed(call, at, len))?;
    Ok(ranges)
}

pub(crate) fn cuStreamAttachMemAsync(
    call: &Call<'_>,
    stream: CUstream,
    at: CUdeviceptr,
    _len: usize,
    flags: u32,
) -> Outcome<()> {
    call.current()?;
    call.stream(stream)?;
    let state = call.memory().lock();
    let whole = state.blocks.starting_at(at).is_some_and(|block| state.is_managed(block));
    if whole && matches!(flags, 1 | 2 | 4) { Ok(()) } else { Err(INVALID_VALUE) }
}

pub(crate) fn cuMemRangeGetAttribute(
    call: &Call<'_>,
    data: *mut c_void,
    size: usize,
    attribute: CUmem_range_attribute,
    at: CUdeviceptr,
    len: usize,
) -> Outcome<()> {
    call.current()?;
    managed(call, at, len)?;
    let pages = call.memory().lock().advice.of(at, len as u64);
    // What does not hold for every page of the range does not hold for the range.
    let agreed = |what: &dyn Fn(&Advice) -> Option<(u32, i32)>| {
        let first = pages.first().and_then(what);
        if pages.iter().all(|page| what(page) == first) { first } else { None }
    };
    let old = |location: Option<(u32, i32)>| match location {
        None => NOWHERE,
        Some((kind, id)) if kind == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE.0 => id,
        Some(_) => CPU,
    };
    let (preferred, prefetched) = (agreed(&|page| page.preferred), agreed(&|page| page.prefetched));
    type Attribute = CUmem_range_attribute;
    let value = match attribute {
        Attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => i32::from(pages.iter().all(|page| page.read_mostly)),
        Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => old(preferred),
        Attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => old(prefetched),
        Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE => {
            preferred.map_or(0, |(kind, _)| kind as i32)
        }
        Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID => preferred.map_or(0, |(_, id)| id),
        Attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE => {
            prefetched.map_or(0, |(kind, _)| kind as i32)
        }
        Attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID => prefetched.map_or(0, |(_, id)| id),
        Attribute::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY => {
            if size == 0 || !size.is_multiple_of(4) {
                return Err(INVALID_VALUE);
            }
            let by_all = |id: &i32| pages.iter().all(|page| page.accessed_by.contains(id));
            let mut ids: Vec<i32> = pages
                .first()
                .map(|page| page.accessed_by.iter().copied().filter(by_all).collect())
                .unwrap_or_default();
            ids.resize(size / 4, NOWHERE);
            return call.put_all(data.cast::<i32>(), ids);
        }
        _ => return Err(INVALID_VALUE),
    };
    if size != size_of::<i32>() {
        return Err(INVALID_VALUE);
    }
    call.put(data.cast::<i32>(), value)
}

pub(crate) fn cuMemRangeGetAttributes(
    call: &Call<'_>,
    data: *mut *mut c_void,
    sizes: *mut usize,
    attributes: *mut CUmem_range_attribute,
    count: usize,
    at: CUdeviceptr,
    len: usize,
) -> Outcome<()> {
    let (data, sizes) = (call.get_all(data, count)?, call.get_all(sizes, count)?);
    let attributes = call.get_all(attributes, count)?;
    for ((data, size), attribute) in data.into_iter().zip(sizes).zip(attributes) {
        cuMemRangeGetAttribute(call, data, size, attribute, at, len)?;
    }
    Ok(())
}
