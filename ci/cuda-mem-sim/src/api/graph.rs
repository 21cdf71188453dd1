//! Graphs and the objects that they keep alive.

use std::ffi::{c_uint, c_void};
use std::ptr;

use cuda_mem_sys::{
    CUgraph, CUgraphExec, CUgraphNode, CUgraphNodeType, CUhostFn, CUresult, CUstream, CUuserObject,
};

use crate::call::Call;
use crate::runtime::graph::{Graph, UserObject, Work};
use crate::runtime::op::{HostCall, Outcome};
use crate::runtime::{HandleKind, new_handle};

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The flags of `cuGraphInstantiate`.
const INSTANTIATE_FLAGS: u64 = 0xF;

pub(crate) fn cuGraphCreate(call: &Call<'_>, graph: *mut CUgraph, flags: c_uint) -> Outcome<()> {
    if graph.is_null() || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let handle = call.driver.runtime.lock().add_graph(Graph::new(call.site(), false));
    call.put(graph, ptr::without_provenance_mut(handle))
}

pub(crate) fn cuGraphDestroy(call: &Call<'_>, graph: CUgraph) -> Outcome<()> {
    call.driver.runtime.destroy_graph(graph.addr())
}

pub(crate) fn cuGraphAddEmptyNode(
    call: &Call<'_>,
    node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
) -> Outcome<()> {
    if node.is_null() {
        return Err(INVALID_VALUE);
    }
    let after: Vec<usize> = call.get_all(dependencies, count)?.iter().map(|node| node.addr()).collect();
    let mut state = call.driver.runtime.lock();
    let graph = state.graphs.get_mut(&graph.addr()).ok_or(INVALID_VALUE)?;
    if !after.iter().all(|&node| graph.has(node)) {
        return Err(INVALID_VALUE);
    }
    let handle = graph.add(CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY, after, Work::Nothing);
    call.put(node, ptr::without_provenance_mut(handle))
}

/// With no list, tells how many nodes there are; with one, fills it, the rest of it with null.
pub(crate) fn cuGraphGetNodes(
    call: &Call<'_>,
    graph: CUgraph,
    nodes: *mut CUgraphNode,
    count: *mut usize,
) -> Outcome<()> {
    let state = call.driver.runtime.lock();
    let graph = state.graphs.get(&graph.addr()).ok_or(INVALID_VALUE)?;
    put_nodes(call, graph.nodes.iter().map(|node| node.handle), nodes, count)
}

fn put_nodes(
    call: &Call<'_>,
    handles: impl ExactSizeIterator<Item = usize>,
    nodes: *mut CUgraphNode,
    count: *mut usize,
) -> Outcome<()> {
    let (room, there) = (call.get(count.cast_const())?, handles.len());
    if nodes.is_null() {
        return call.put(count, there);
    }
    let handles = handles.map(ptr::without_provenance_mut);
    call.put_all(nodes, handles.chain(std::iter::repeat(ptr::null_mut())).take(room))?;
    call.put(count, there.min(room))
}

pub(crate) fn cuGraphNodeGetType(
    call: &Call<'_>,
    node: CUgraphNode,
    kind: *mut CUgraphNodeType,
) -> Outcome<()> {
    let state = call.driver.runtime.lock();
    let mut nodes = state.graphs.values().flat_map(|graph| &graph.nodes);
    let found = nodes.find(|known| known.handle == node.addr()).ok_or(INVALID_VALUE)?;
    call.put(kind, found.kind)
}

/// With no list, tells what there is that the node comes after; with one, fills it as [`cuGraphGetNodes`] does.
pub(crate) fn cuGraphNodeGetDependencies(
    call: &Call<'_>,
    node: CUgraphNode,
    dependencies: *mut CUgraphNode,
    count: *mut usize,
) -> Outcome<()> {
    let state = call.driver.runtime.lock();
    let mut nodes = state.graphs.values().flat_map(|graph| &graph.nodes);
    let after = &nodes.find(|known| known.handle == node.addr()).ok_or(INVALID_VALUE)?.after;
    put_nodes(call, after.iter().copied(), dependencies, count)
}

pub(crate) fn cuGraphInstantiateWithFlags(
    call: &Call<'_>,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> Outcome<()> {
    call.current()?;
    call.not_capturing()?;
    if exec.is_null() || flags & !INSTANTIATE_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let handle = call.driver.runtime.instantiate(call, graph.addr())?;
    call.put(exec, ptr::without_provenance_mut(handle))
}

pub(crate) fn cuGraphExecDestroy(call: &Call<'_>, exec: CUgraphExec) -> Outcome<()> {
    call.driver.runtime.destroy_exec(exec.addr())
}

/// There is nothing to be uploaded, but the order is as if there were.
pub(crate) fn cuGraphUpload(call: &Call<'_>, exec: CUgraphExec, stream: CUstream) -> Outcome<()> {
    let stream = call.stream(stream)?;
    let mut state = call.driver.runtime.lock();
    state.refuse_implicit_use(&stream)?;
    state.refuse_if_capturing(&stream)?;
    state.execs.get(&exec.addr()).map(drop).ok_or(INVALID_VALUE)
}

pub(crate) fn cuGraphLaunch(call: &Call<'_>, exec: CUgraphExec, stream: CUstream) -> Outcome<()> {
    let stream = call.stream(stream)?;
    call.driver.runtime.launch(call, exec.addr(), &stream)
}

/// The destructor is called by the thread that releases the last reference. A real driver calls it from a thread of its
/// own; either way it must not call the driver.
pub(crate) fn cuUserObjectCreate(
    call: &Call<'_>,
    object: *mut CUuserObject,
    data: *mut c_void,
    destroy: CUhostFn,
    references: c_uint,
    flags: c_uint,
) -> Outcome<()> {
    let no_destructor_sync = 1;
    let function = destroy.ok_or(INVALID_VALUE)?;
    if object.is_null() || !is_count(references) || flags != no_destructor_sync {
        return Err(INVALID_VALUE);
    }
    let new = UserObject::new(HostCall { function, data }, references, call.site());
    let handle = new_handle(HandleKind::UserObject);
    call.driver.runtime.lock().objects.insert(handle, new);
    call.put(object, ptr::without_provenance_mut(handle))
}

pub(crate) fn cuUserObjectRetain(call: &Call<'_>, object: CUuserObject, count: c_uint) -> Outcome<()> {
    if !is_count(count) {
        return Err(INVALID_VALUE);
    }
    call.driver.runtime.retain_object(object.addr(), count)
}

pub(crate) fn cuUserObjectRelease(call: &Call<'_>, object: CUuserObject, count: c_uint) -> Outcome<()> {
    if !is_count(count) {
        return Err(INVALID_VALUE);
    }
    call.driver.runtime.release_object(object.addr(), count)
}

pub(crate) fn cuGraphRetainUserObject(
    call: &Call<'_>,
    graph: CUgraph,
    object: CUuserObject,
    count: c_uint,
    flags: c_uint,
) -> Outcome<()> {
    let moves = 1;
    if !is_count(count) || flags & !moves != 0 {
        return Err(INVALID_VALUE);
    }
    call.driver.runtime.graph_retains(graph.addr(), object.addr(), count, flags == moves)
}

pub(crate) fn cuGraphReleaseUserObject(
    call: &Call<'_>,
    graph: CUgraph,
    object: CUuserObject,
    count: c_uint,
) -> Outcome<()> {
    if !is_count(count) {
        return Err(INVALID_VALUE);
    }
    call.driver.runtime.graph_releases(graph.addr(), object.addr(), count)
}

/// Counts of references are positive and fit a C `int`.
fn is_count(count: c_uint) -> bool {
    (1..=i32::MAX as c_uint).contains(&count)
}
