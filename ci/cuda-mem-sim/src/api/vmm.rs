//! Virtual memory management: physical memory, addresses, and mappings between them.

use std::ffi::c_void;
use std::os::fd::IntoRawFd;

use cuda_mem_sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc_v1, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp_v1, CUmemAllocationType, CUmemGenericAllocationHandle_v1,
    CUmemLocation, CUmemLocationType, CUresult,
};

use crate::call::Call;
use crate::memory::blocks::Access;
use crate::memory::misuse::Act;
use crate::memory::space::LARGE_PAGE;
use crate::memory::vmm::{HandleId, Location};
use crate::memory::vmm_state::Guest;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Alignments above this are taken for this one: nobody can tell, and the address space is not larger.
const MAX_ALIGNMENT: u64 = 1 << 40;

/// Whether a size or address is a multiple of the granularity.
fn is_granular(value: u64) -> bool {
    value.is_multiple_of(LARGE_PAGE)
}

/// Where memory with these properties lies.
fn location_of(call: &Call<'_>, properties: &CUmemAllocationProp_v1) -> Outcome<Location> {
    if properties.type_ != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(INVALID_VALUE);
    }
    let CUmemLocation { type_, id } = properties.location;
    match type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => call.device(id).map(Location::Device),
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA
            if (0..call.memory().setup().nodes).contains(&id) =>
        {
            Ok(Location::Node(id))
        }
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT if call.memory().setup().nodes > 0 => {
            Ok(Location::Node(0))
        }
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => Ok(Location::Host),
        _ => Err(INVALID_VALUE),
    }
}

/// Whether flags of access let read and write.
pub(super) fn rights(flags: CUmemAccess_flags) -> Outcome<(bool, bool)> {
    match flags {
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE => Ok((false, false)),
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ => Ok((true, false)),
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Ok((true, true)),
        _ => Err(INVALID_VALUE),
    }
}

/// The flags of the access that a device has, or the host.
pub(super) fn flags_of(
    call: &Call<'_>,
    access: Access,
    location: CUmemLocation,
) -> Outcome<CUmemAccess_flags> {
    let (read, write) = match location.type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {
            let device = call.device(location.id)?;
            (access.read.contains(device), access.write.contains(device))
        }
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA => {
            (access.host, access.host)
        }
        _ => return Err(INVALID_VALUE),
    };
    Ok(match (read, write) {
        (_, true) => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        (true, false) => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
        (false, false) => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
    })
}

pub(crate) fn cuMemAddressReserve(
    call: &Call<'_>,
    ptr: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    hint: CUdeviceptr,
    flags: u64,
) -> Outcome<()> {
    let aligned = (alignment == 0 || alignment.is_power_of_two()) && is_granular(hint);
    if ptr.is_null() || size == 0 || !is_granular(size as u64) || !aligned || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let start = call.memory().lock().reserve(
        size as u64,
        (alignment as u64).min(MAX_ALIGNMENT),
        hint,
        call.site(),
    )?;
    call.put(ptr, start)
}

pub(crate) fn cuMemAddressFree(call: &Call<'_>, ptr: CUdeviceptr, size: usize) -> Outcome<()> {
    call.memory().lock().unreserve(ptr, size as u64)
}

pub(crate) fn cuMemCreate(
    call: &Call<'_>,
    handle: *mut CUmemGenericAllocationHandle_v1,
    size: usize,
    properties: *const CUmemAllocationProp_v1,
    flags: u64,
) -> Outcome<()> {
    let properties = call.get(properties)?;
    let location = location_of(call, &properties)?;
    if handle.is_null() || size == 0 || !is_granular(size as u64) || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let (posix, fabric) = (
        CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC,
    );
    let exportable = match properties.requestedHandleTypes {
        CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE => false,
        CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => true,
        // As a host without a fabric manager answers.
        both if both == fabric || both == posix | fabric => {
            return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
        }
        CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_WIN32
        | CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_WIN32_KMT => return Err(INVALID_VALUE),
        // Types that nobody knows are ignored.
        _ => false,
    };
    let rdma = properties.allocFlags.gpuDirectRDMACapable != 0;
    let id = call.memory().lock().create(size as u64, location, exportable, rdma, call.site())?;
    call.put(handle, id.0)
}

pub(crate) fn cuMemRelease(call: &Call<'_>, handle: CUmemGenericAllocationHandle_v1) -> Outcome<()> {
    call.memory().lock().release(HandleId(handle))
}

pub(crate) fn cuMemMap(
    call: &Call<'_>,
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle_v1,
    flags: u64,
) -> Outcome<()> {
    if size == 0 || flags != 0 || !is_granular(ptr) {
        return Err(INVALID_VALUE);
    }
    if offset != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let by = Act::by_host(call);
    call.memory().lock().map(ptr, size as u64, HandleId(handle), by)
}

pub(crate) fn cuMemUnmap(call: &Call<'_>, ptr: CUdeviceptr, size: usize) -> Outcome<()> {
    let by = Act::by_host(call);
    call.memory().lock().unmap(ptr, size as u64, &by)
}

pub(crate) fn cuMemSetAccess(
    call: &Call<'_>,
    ptr: CUdeviceptr,
    size: usize,
    access: *const CUmemAccessDesc_v1,
    count: usize,
) -> Outcome<()> {
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    for CUmemAccessDesc_v1 { location, flags } in call.get_all(access, count)? {
        let guest = match location.type_ {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {
                Guest::Device(call.device(location.id).map_err(|_| INVALID_VALUE)?)
            }
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
            | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA => Guest::Host,
            _ => return Err(INVALID_VALUE),
        };
        let (read, write) = rights(flags)?;
        if let Guest::Device(device) = guest {
            reachable(call, ptr, device)?;
        }
        call.memory().lock().set_access(ptr, size as u64, guest, read, write)?;
    }
    Ok(())
}

/// A device must be able to reach the memory of the device that a mapping lies on.
fn reachable(call: &Call<'_>, at: CUdeviceptr, device: usize) -> Outcome<()> {
    let home = call.memory().lock().mapping_device(at);
    match home {
        Some(home) if home != device && !call.driver.config.peers.reach(device, home) => {
            Err(CUresult::CUDA_ERROR_INVALID_DEVICE)
        }
        _ => Ok(()),
    }
}

pub(crate) fn cuMemGetAccess(
    call: &Call<'_>,
    flags: *mut u64,
    location: *const CUmemLocation,
    ptr: CUdeviceptr,
) -> Outcome<()> {
    let location = call.get(location)?;
    let access = call.memory().lock().mapping_access(ptr)?;
    call.put(flags, flags_of(call, access, location)?.0.into())
}

pub(crate) fn cuMemGetAllocationGranularity(
    call: &Call<'_>,
    granularity: *mut usize,
    properties: *const CUmemAllocationProp_v1,
    option: CUmemAllocationGranularity_flags,
) -> Outcome<()> {
    call.get(properties)?;
    let known = matches!(
        option,
        CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM
            | CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
    );
    if known { call.put(granularity, LARGE_PAGE as usize) } else { Err(INVALID_VALUE) }
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
    call: &Call<'_>,
    properties: *mut CUmemAllocationProp_v1,
    handle: CUmemGenericAllocationHandle_v1,
) -> Outcome<()> {
    let (location, exportable, rdma) = {
        let mut state = call.memory().lock();
        let physical = state.handle(HandleId(handle))?;
        // An imported handle says of none how it came.
        (physical.location, physical.exportable && !physical.imported, physical.rdma)
    };
    let (kind, id) = match location {
        Location::Device(device) => (CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, device as i32),
        Location::Host => (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0),
        Location::Node(node) => (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, node),
    };
    let mut found = CUmemAllocationProp_v1 {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation { type_: kind, id },
        requestedHandleTypes: if exportable {
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        } else {
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE
        },
        ..CUmemAllocationProp_v1::default()
    };
    found.allocFlags.gpuDirectRDMACapable = rdma.into();
    call.put(properties, found)
}

pub(crate) fn cuMemRetainAllocationHandle(
    call: &Call<'_>,
    handle: *mut CUmemGenericAllocationHandle_v1,
    at: *mut c_void,
) -> Outcome<()> {
    if handle.is_null() {
        return Err(INVALID_VALUE);
    }
    let id = call.memory().lock().retain_handle(at.addr() as u64)?;
    call.put(handle, id.0)
}

pub(crate) fn cuMemExportToShareableHandle(
    call: &Call<'_>,
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle_v1,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Outcome<()> {
    let fd = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if shareable.is_null() || kind != fd || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let file = call.memory().lock().export(HandleId(handle))?;
    call.put(shareable.cast::<i32>(), file.into_raw_fd())
}

/// The descriptor stays the caller's, who closes it when it likes.
pub(crate) fn cuMemImportFromShareableHandle(
    call: &Call<'_>,
    handle: *mut CUmemGenericAllocationHandle_v1,
    shareable: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> Outcome<()> {
    let fd = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if handle.is_null() || kind != fd {
        return Err(INVALID_VALUE);
    }
    let id = call.memory().lock().import(call.descriptor(shareable)?, call.site())?;
    call.put(handle, id.0)
}
