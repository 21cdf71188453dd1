//! What the driver knows of a pointer.

use std::ffi::c_void;

use cuda_mem_sys::{
    CUdeviceptr, CUmemAllocationHandleType, CUmemorytype, CUpointer_attribute as Attribute, CUresult,
};

use crate::call::Call;
use crate::memory::State;
use crate::memory::blocks::{Block, Kind};
use crate::memory::os::page_size;
use crate::memory::space::LARGE_PAGE;
use crate::memory::vmm::Location;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The number of no device.
const NO_DEVICE: i32 = -2;

const READ: u32 = 1;
const READ_WRITE: u32 = 3;

/// A value of an attribute, as wide as the attribute's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Word(u32),
    Long(u64),
}

impl Value {
    fn flag(set: bool) -> Self {
        Self::Word(u32::from(set))
    }

    fn put(self, call: &Call<'_>, to: *mut c_void) -> Outcome<()> {
        match self {
            Self::Word(value) => call.put(to.cast::<u32>(), value),
            Self::Long(value) => call.put(to.cast::<u64>(), value),
        }
    }
}

/// What the list form says of an address that is in no block: none where it leaves the result alone.
fn nothing(state: &State, at: u64, attribute: Attribute) -> Outcome<Option<Value>> {
    let reserved = state.reservations.around(at);
    Ok(match attribute {
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Some(Value::Word(NO_DEVICE.cast_unsigned())),
        Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER => Some(Value::Long(at)),
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => reserved.map(|(start, _)| Value::Long(start)),
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE => reserved.map(|(_, len)| Value::Long(len)),
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        | Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED
        | Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | Attribute::CU_POINTER_ATTRIBUTE_MAPPED
        | Attribute::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS
        | Attribute::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => Some(Value::Word(0)),
        Attribute::CU_POINTER_ATTRIBUTE_CONTEXT
        | Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID
        | Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
        | Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        | Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE
        | Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
        | Attribute::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Some(Value::Long(0)),
        _ => return Err(INVALID_VALUE),
    })
}

/// What an attribute says of an address inside a block: an error where the block has no such thing.
fn value(
    state: &State,
    block: &Block,
    at: u64,
    current: Option<usize>,
    attribute: Attribute,
) -> Outcome<Value> {
    let device = current.unwrap_or(block.device);
    Ok(match attribute {
        Attribute::CU_POINTER_ATTRIBUTE_CONTEXT => Value::Long(block.context as u64),
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            let host = CUmemorytype::CU_MEMORYTYPE_HOST;
            let kind = if lies_on_host(state, block) { host } else { CUmemorytype::CU_MEMORYTYPE_DEVICE };
            Value::Word(kind.0)
        }
        // Without a current context no device is asking, and the list form gives 0 (seen on hardware).
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER
            if current.is_some() && block.access.read.contains(device) =>
        {
            Value::Long(at)
        }
        Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER if block.access.host => Value::Long(at),
        Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => Value::flag(block.sync_memops),
        Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID | Attribute::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => {
            Value::Long(block.id)
        }
        Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED => Value::flag(state.is_managed(block)),
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Word(block.device as u32),
        Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => Value::flag(block.kind == Kind::Device),
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Value::Long(range(state, block).0),
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE => Value::Long(range(state, block).1),
        Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => Value::Long(mapping(state, block).0),
        Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE => Value::Long(mapping(state, block).1),
        Attribute::CU_POINTER_ATTRIBUTE_MAPPED => Value::flag(true),
        Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => {
            Value::Long(handle_types(state, block).into())
        }
        Attribute::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => Value::flag(match block.kind {
            Kind::Mapped(id) => state.handles.get(&id).is_some_and(|physical| physical.rdma),
            _ if state.is_managed(block) => false,
            _ => !lies_on_host(state, block),
        }),
        Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            let access = block.access;
            Value::Word(match (access.read.contains(device), access.write.contains(device)) {
                (_, true) => READ_WRITE,
                (true, false) => READ,
                (false, false) => 0,
            })
        }
        Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => match block.kind {
            Kind::Pooled(pool) => Value::Long(pool.0),
            _ => Value::Long(0),
        },
        Attribute::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => Value::flag(false),
        _ => return Err(INVALID_VALUE),
    })
}

/// The range that an address belongs to: a block, or for mappings the reservation around it.
fn range(state: &State, block: &Block) -> (u64, u64) {
    let reserved = match block.kind {
        Kind::Mapped(_) => state.reservations.around(block.start),
        _ => None,
    };
    reserved.unwrap_or((block.start, block.len))
}

/// The pages behind a block.
fn mapping(state: &State, block: &Block) -> (u64, u64) {
    let (start, len) = (block.start, block.len);
    match block.kind {
        Kind::Mapped(_) => (start, len),
        Kind::Pooled(id) => {
            let segment = state.pools.get(&id).and_then(|pool| pool.segment_around(start));
            segment.unwrap_or((start, len))
        }
        Kind::Registered(_) => {
            let page = page_size() as u64;
            let first = start / page * page;
            (first, (start + len).next_multiple_of(page) - first)
        }
        Kind::Device | Kind::Host(_) | Kind::Managed | Kind::Opened => {
            (start, len.next_multiple_of(LARGE_PAGE))
        }
    }
}

/// Whether a block's bytes lie in host memory.
pub(super) fn lies_on_host(state: &State, block: &Block) -> bool {
    let host = |location: Location| !matches!(location, Location::Device(_));
    match block.kind {
        Kind::Host(_) | Kind::Registered(_) => true,
        Kind::Pooled(id) => state.pools.get(&id).is_some_and(|pool| host(pool.location) && !pool.managed),
        Kind::Mapped(id) => state.handles.get(&id).is_some_and(|physical| host(physical.location)),
        Kind::Device | Kind::Managed | Kind::Opened => false,
    }
}

fn handle_types(state: &State, block: &Block) -> u32 {
    let exportable = match block.kind {
        Kind::Pooled(id) => state.pools.get(&id).is_some_and(|pool| pool.exportable),
        Kind::Mapped(id) => state.handles.get(&id).is_some_and(|physical| physical.exportable),
        _ => false,
    };
    let fd = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if exportable { fd.0 } else { 0 }
}

pub(crate) fn cuPointerGetAttribute(
    call: &Call<'_>,
    data: *mut c_void,
    attribute: Attribute,
    at: CUdeviceptr,
) -> Outcome<()> {
    let device = call.current().ok().map(|context| context.device);
    let value = {
        let state = call.memory().lock();
        let block = state.known(at).ok_or(INVALID_VALUE)?;
        value(&state, block, at, device, attribute)?
    };
    value.put(call, data)
}

/// Unlike the single form, tells of unknown addresses that nothing is known.
pub(crate) fn cuPointerGetAttributes(
    call: &Call<'_>,
    count: u32,
    attributes: *mut Attribute,
    data: *mut *mut c_void,
    at: CUdeviceptr,
) -> Outcome<()> {
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    let device = call.current().ok().map(|context| context.device);
    let attributes = call.get_all(attributes, count as usize)?;
    let data = call.get_all(data, count as usize)?;
    for (attribute, data) in attributes.into_iter().zip(data) {
        let found = {
            let state = call.memory().lock();
            let nothing = nothing(&state, at, attribute)?;
            match state.known(at) {
                // What a block does not have is null.
                Some(block) => Some(value(&state, block, at, device, attribute).unwrap_or(Value::Long(0))),
                None => nothing,
            }
        };
        if let Some(value) = found {
            value.put(call, data)?;
        }
    }
    Ok(())
}

pub(crate) fn cuPointerSetAttribute(
    call: &Call<'_>,
    value: *const c_void,
    attribute: Attribute,
    at: CUdeviceptr,
) -> Outcome<()> {
    if attribute != Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
        return Err(INVALID_VALUE);
    }
    let set = call.get(value.cast::<u32>())? != 0;
    let mut state = call.memory().lock();
    let block = state.blocks.at_mut(at).filter(|block| !block.is_host()).ok_or(INVALID_VALUE)?;
    block.sync_memops = set;
    Ok(())
}
