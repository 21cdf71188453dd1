//! Entry points that the bindings do not have, and programs in other languages ask for: newer ABIs of functions that the
//! bindings have in an older one, and a few functions more.

/// Hands the list to another macro, in the form of [`runtime_entries`](crate::runtime_entries).
#[doc(hidden)]
#[macro_export]
macro_rules! newer_entries {
    ($with:ident) => {
        $with! {
            newer {
                cuCtxCreate_v4 as cuCtxCreate_v4(pctx: *mut CUcontext, params: *mut c_void, flags: c_uint, dev: CUdevice) = CtxCreate;
                cuStreamGetCaptureInfo_v3 as cuStreamGetCaptureInfo_v3(h_stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph, dependencies: *mut *const CUgraphNode, edges: *mut *const c_void, count: *mut usize) = StreamGetCaptureInfo;
                cuStreamUpdateCaptureDependencies_v2 as cuStreamUpdateCaptureDependencies_v2(h_stream: CUstream, dependencies: *mut CUgraphNode, edges: *const c_void, count: usize, flags: c_uint) = StreamUpdateCaptureDependencies;
                cuGraphNodeGetDependencies_v2 as cuGraphNodeGetDependencies_v2(h_node: CUgraphNode, dependencies: *mut CUgraphNode, edges: *mut u64, count: *mut usize) = GraphNodeGetDependencies;
                cuGraphInstantiateWithParams as cuGraphInstantiateWithParams(ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, params: *mut c_void) = GraphInstantiateWithParams;
                cuGraphDebugDotPrint as cuGraphDebugDotPrint(h_graph: CUgraph, path: *const c_char, flags: c_uint) = GraphDebugDotPrint;
                cuDeviceGetGraphMemAttribute as cuDeviceGetGraphMemAttribute(device: CUdevice, attribute: c_uint, value: *mut c_void) = DeviceGraphMemAttribute;
                cuDeviceSetGraphMemAttribute as cuDeviceSetGraphMemAttribute(device: CUdevice, attribute: c_uint, value: *mut c_void) = DeviceGraphMemAttribute;
                cuDeviceGraphMemTrim as cuDeviceGraphMemTrim(device: CUdevice) = DeviceGraphMemTrim;
            }
        }
    };
}

/// What `cuGetProcAddress` calls them: the name, the version that brought this ABI, and the name in a list of entries.
pub(crate) const NEWER: &[(&str, i32, &str)] = &[
    ("cuCtxCreate", 12050, "cuCtxCreate_v4"),
    ("cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"),
    ("cuStreamUpdateCaptureDependencies", 12030, "cuStreamUpdateCaptureDependencies_v2"),
    ("cuGraphNodeGetDependencies", 12030, "cuGraphNodeGetDependencies_v2"),
    ("cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"),
    ("cuGraphInstantiateWithParams", 12000, "cuGraphInstantiateWithParams"),
    ("cuGraphDebugDotPrint", 11030, "cuGraphDebugDotPrint"),
    ("cuDeviceGetGraphMemAttribute", 11040, "cuDeviceGetGraphMemAttribute"),
    ("cuDeviceSetGraphMemAttribute", 11040, "cuDeviceSetGraphMemAttribute"),
    ("cuDeviceGraphMemTrim", 11040, "cuDeviceGraphMemTrim"),
];
