//! Host functions and kernels.

use std::ffi::{c_int, c_uint, c_void};

use cuda_mem_sys::{CUfunction, CUfunction_attribute, CUgraphNodeType, CUhostFn, CUresult, CUstream};

use crate::call::Call;
use crate::runtime::kernels::kernel;
use crate::runtime::op::{HostCall, Op, Outcome, Run};

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// How many threads a block can have.
const MAX_THREADS: u64 = 1024;

pub(crate) fn cuLaunchHostFunc(
    call: &Call<'_>,
    stream: CUstream,
    function: CUhostFn,
    data: *mut c_void,
) -> Outcome<()> {
    let stream = call.stream(stream)?;
    let function = function.ok_or(INVALID_VALUE)?;
    let run = Run::Host(HostCall { function, data });
    call.enqueue(&stream, Op::of("host function", CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST, run))
}

/// The arguments are read now; the kernel, which one thread of the host runs for the whole grid, reads the rest in its turn.
pub(crate) fn cuLaunchKernel(
    call: &Call<'_>,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Outcome<()> {
    let function = call.driver.runtime.function_of(function.addr())?;
    let stream = call.stream(stream)?;
    if stream.context.id != function.context.id {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let threads = [block_x, block_y, block_z].into_iter().map(u64::from).product::<u64>();
    let blocks = [grid_x, grid_y, grid_z].into_iter().map(u64::from).product::<u64>();
    if threads == 0 || threads > MAX_THREADS || blocks == 0 || !extra.is_null() {
        return Err(INVALID_VALUE);
    }
    let kernel = kernel(&function.name)?;
    let pointers = call.get_all(parameters.cast_const(), kernel.arguments.len())?;
    let argument = |(pointer, size): (*mut c_void, &usize)| match size {
        4 => call.get(pointer.cast_const().cast::<u32>()).map(u64::from),
        _ => call.get(pointer.cast_const().cast::<u64>()),
    };
    let arguments =
        pointers.into_iter().zip(kernel.arguments).map(argument).collect::<Outcome<Vec<u64>>>()?;
    call.enqueue(&stream, (kernel.op)(stream.context.device, &arguments))
}

pub(crate) fn cuFuncGetAttribute(
    call: &Call<'_>,
    value: *mut c_int,
    attribute: CUfunction_attribute,
    function: CUfunction,
) -> Outcome<()> {
    call.current()?;
    call.driver.runtime.function_of(function.addr())?;
    let answer = match attribute {
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => MAX_THREADS as c_int,
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => 16,
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION => 70,
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION => 90,
        attribute if attribute.0 < CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX.0 => 0,
        _ => return Err(INVALID_VALUE),
    };
    call.put(value, answer)
}
