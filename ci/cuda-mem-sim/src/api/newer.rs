//! Newer ABIs of functions that the bindings have in an older one, and functions that only other languages ask for.

use std::ffi::{c_char, c_uint, c_void};
use std::fmt::Write as _;
use std::ptr;

use cuda_mem_sys::{
    CUcontext, CUdevice, CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream, CUstreamCaptureStatus,
};

use super::{capture, context, graph};
use crate::call::Call;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

/// What edges carry; here they never carry anything. Each has eight bytes.
static PLAIN_EDGES: [u64; 4096] = [0; 4096];

/// Attributes of the memory of graphs: in use and reserved, each now and at most.
const GRAPH_MEMORY: std::ops::Range<c_uint> = 0..4;

/// Only plain contexts: the parameters ask for parts of a device.
pub(crate) fn cuCtxCreate_v4(
    call: &Call<'_>,
    context: *mut CUcontext,
    parameters: *mut c_void,
    flags: c_uint,
    device: CUdevice,
) -> Outcome<()> {
    if !parameters.is_null() {
        return Err(NOT_SUPPORTED);
    }
    context::cuCtxCreate(call, context, flags, device)
}

pub(crate) fn cuStreamGetCaptureInfo_v3(
    call: &Call<'_>,
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    edges: *mut *const c_void,
    count: *mut usize,
) -> Outcome<()> {
    let mut found = 0;
    capture::cuStreamGetCaptureInfo(call, stream, status, id, graph, dependencies, &raw mut found)?;
    call.put_if_wanted(count, found);
    let plain = if found <= PLAIN_EDGES.len() { PLAIN_EDGES.as_ptr().cast() } else { ptr::null() };
    call.put_if_wanted(edges, plain);
    Ok(())
}

/// What the edges carry is of no use here, and left alone.
pub(crate) fn cuStreamUpdateCaptureDependencies_v2(
    call: &Call<'_>,
    stream: CUstream,
    dependencies: *mut CUgraphNode,
    _edges: *const c_void,
    count: usize,
    flags: c_uint,
) -> Outcome<()> {
    capture::cuStreamUpdateCaptureDependencies(call, stream, dependencies, count, flags)
}

/// As [`graph::cuGraphNodeGetDependencies`], with what the edges carry.
pub(crate) fn cuGraphNodeGetDependencies_v2(
    call: &Call<'_>,
    node: CUgraphNode,
    dependencies: *mut CUgraphNode,
    edges: *mut u64,
    count: *mut usize,
) -> Outcome<()> {
    graph::cuGraphNodeGetDependencies(call, node, dependencies, count)?;
    if dependencies.is_null() || edges.is_null() {
        return Ok(());
    }
    let found = call.get(count.cast_const())?;
    call.put_all(edges, std::iter::repeat_n(0, found))
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Instantiation {
    flags: u64,
    upload: CUstream,
    culprit: CUgraphNode,
    /// 0 for success, 1 for an error that the return code tells.
    result: c_uint,
}

/// Uploads too, if the flags ask for that.
pub(crate) fn cuGraphInstantiateWithParams(
    call: &Call<'_>,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut c_void,
) -> Outcome<()> {
    const UPLOAD: u64 = 2;
    let parameters = parameters.cast::<Instantiation>();
    let wanted = call.get(parameters.cast_const())?;
    let outcome = graph::cuGraphInstantiateWithFlags(call, exec, graph, wanted.flags);
    let result = c_uint::from(outcome.is_err());
    call.put(parameters, Instantiation { culprit: ptr::null_mut(), result, ..wanted })?;
    outcome?;
    if wanted.flags & UPLOAD != 0 {
        graph::cuGraphUpload(call, call.get(exec.cast_const())?, wanted.upload)?;
    }
    Ok(())
}

/// The nodes by number and kind, and what comes after what.
pub(crate) fn cuGraphDebugDotPrint(
    call: &Call<'_>,
    graph: CUgraph,
    path: *const c_char,
    _flags: c_uint,
) -> Outcome<()> {
    let path = call.text(path)?.to_str().map_err(|_| INVALID_VALUE)?;
    let mut text = String::from("digraph dot {\n");
    {
        let state = call.driver.runtime.lock();
        let graph = state.graphs.get(&graph.addr()).ok_or(INVALID_VALUE)?;
        for node in &graph.nodes {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  \"{:#x}\" [label=\"{:?}\"];", node.handle, node.kind);
            for before in &node.after {
                let _ = writeln!(text, "  \"{before:#x}\" -> \"{:#x}\";", node.handle);
            }
        }
    }
    text.push_str("}\n");
    std::fs::write(path, text).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
}

/// Graphs have no memory of their own here, so all of it is 0.
pub(crate) fn cuDeviceGetGraphMemAttribute(
    call: &Call<'_>,
    device: CUdevice,
    attribute: c_uint,
    value: *mut c_void,
) -> Outcome<()> {
    call.device(device)?;
    if GRAPH_MEMORY.contains(&attribute) { call.put(value.cast::<u64>(), 0) } else { Err(INVALID_VALUE) }
}

/// Highest values can only be begun anew.
pub(crate) fn cuDeviceSetGraphMemAttribute(
    call: &Call<'_>,
    device: CUdevice,
    attribute: c_uint,
    value: *mut c_void,
) -> Outcome<()> {
    call.device(device)?;
    let is_highest = GRAPH_MEMORY.contains(&attribute) && attribute % 2 == 1;
    if is_highest && call.get(value.cast::<u64>().cast_const())? == 0 { Ok(()) } else { Err(INVALID_VALUE) }
}

pub(crate) fn cuDeviceGraphMemTrim(call: &Call<'_>, device: CUdevice) -> Outcome<()> {
    call.device(device).map(drop)
}
