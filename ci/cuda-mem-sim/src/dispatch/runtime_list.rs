//! The entry points of contexts, streams, events, graphs and modules.
//!
//! Each block is a module of `api` with a function of each name; functions in a block `unmodelled` answer 801. The types
//! are checked against the bindings, so a wrong list does not compile.

/// Hands the list to another macro: `name as exported symbol (arguments) = type in the bindings`.
#[doc(hidden)]
#[macro_export]
macro_rules! runtime_entries {
    ($with:ident) => {
        $with! {
            init {
                cuDriverGetVersion as cuDriverGetVersion(driver_version: *mut c_int) = PFN_cuDriverGetVersion_v2020;
                cuGetErrorName as cuGetErrorName(error: CUresult, p_str: *mut *const c_char) = PFN_cuGetErrorName_v6000;
                cuGetErrorString as cuGetErrorString(error: CUresult, p_str: *mut *const c_char) = PFN_cuGetErrorString_v6000;
                cuInit as cuInit(flags: c_uint) = PFN_cuInit_v2000;
            }
            device {
                cuDeviceGet as cuDeviceGet(device: *mut CUdevice, ordinal: c_int) = PFN_cuDeviceGet_v2000;
                cuDeviceGetAttribute as cuDeviceGetAttribute(pi: *mut c_int, attrib: CUdevice_attribute, dev: CUdevice) = PFN_cuDeviceGetAttribute_v2000;
                cuDeviceGetByPCIBusId as cuDeviceGetByPCIBusId(dev: *mut CUdevice, pci_bus_id: *const c_char) = PFN_cuDeviceGetByPCIBusId_v4010;
                cuDeviceGetCount as cuDeviceGetCount(count: *mut c_int) = PFN_cuDeviceGetCount_v2000;
                cuDeviceGetName as cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice) = PFN_cuDeviceGetName_v2000;
                cuDeviceGetPCIBusId as cuDeviceGetPCIBusId(pci_bus_id: *mut c_char, len: c_int, dev: CUdevice) = PFN_cuDeviceGetPCIBusId_v4010;
                cuDeviceGetUuid as cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice) = PFN_cuDeviceGetUuid_v11040;
                cuDeviceTotalMem as cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) = PFN_cuDeviceTotalMem_v3020;
                cuDeviceCanAccessPeer as cuDeviceCanAccessPeer(can_access_peer: *mut c_int, dev: CUdevice, peer_dev: CUdevice) = PFN_cuDeviceCanAccessPeer_v4000;
                cuDeviceGetP2PAttribute as cuDeviceGetP2PAttribute(value: *mut c_int, attrib: CUdevice_P2PAttribute, src_device: CUdevice, dst_device: CUdevice) = PFN_cuDeviceGetP2PAttribute_v8000;
            }
            context {
                cuCtxDisablePeerAccess as cuCtxDisablePeerAccess(peer_context: CUcontext) = PFN_cuCtxDisablePeerAccess_v4000;
                cuCtxEnablePeerAccess as cuCtxEnablePeerAccess(peer_context: CUcontext, flags: c_uint) = PFN_cuCtxEnablePeerAccess_v4000;
                cuDevicePrimaryCtxGetState as cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint, active: *mut c_int) = PFN_cuDevicePrimaryCtxGetState_v7000;
                cuDevicePrimaryCtxRelease as cuDevicePrimaryCtxRelease_v2(dev: CUdevice) = PFN_cuDevicePrimaryCtxRelease_v11000;
                cuDevicePrimaryCtxReset as cuDevicePrimaryCtxReset_v2(dev: CUdevice) = PFN_cuDevicePrimaryCtxReset_v11000;
                cuDevicePrimaryCtxRetain as cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) = PFN_cuDevicePrimaryCtxRetain_v7000;
                cuDevicePrimaryCtxSetFlags as cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: c_uint) = PFN_cuDevicePrimaryCtxSetFlags_v11000;
                cuCtxCreate as cuCtxCreate_v2(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice) = PFN_cuCtxCreate_v3020;
                cuCtxDestroy as cuCtxDestroy_v2(ctx: CUcontext) = PFN_cuCtxDestroy_v4000;
                cuCtxGetCurrent as cuCtxGetCurrent(pctx: *mut CUcontext) = PFN_cuCtxGetCurrent_v4000;
                cuCtxGetDevice as cuCtxGetDevice(device: *mut CUdevice) = PFN_cuCtxGetDevice_v2000;
                cuCtxGetFlags as cuCtxGetFlags(flags: *mut c_uint) = PFN_cuCtxGetFlags_v7000;
                cuCtxGetId as cuCtxGetId(ctx: CUcontext, ctx_id: *mut u64) = PFN_cuCtxGetId_v12000;
                cuCtxGetLimit as cuCtxGetLimit(pvalue: *mut usize, limit: CUlimit) = PFN_cuCtxGetLimit_v3010;
                cuCtxGetStreamPriorityRange as cuCtxGetStreamPriorityRange(least_priority: *mut c_int, greatest_priority: *mut c_int) = PFN_cuCtxGetStreamPriorityRange_v5050;
                cuCtxPopCurrent as cuCtxPopCurrent_v2(pctx: *mut CUcontext) = PFN_cuCtxPopCurrent_v4000;
                cuCtxPushCurrent as cuCtxPushCurrent_v2(ctx: CUcontext) = PFN_cuCtxPushCurrent_v4000;
                cuCtxSetCurrent as cuCtxSetCurrent(ctx: CUcontext) = PFN_cuCtxSetCurrent_v4000;
                cuCtxSetLimit as cuCtxSetLimit(limit: CUlimit, value: usize) = PFN_cuCtxSetLimit_v3010;
                cuCtxSynchronize as cuCtxSynchronize() = PFN_cuCtxSynchronize_v2000;
            }
            event {
                cuIpcGetEventHandle as cuIpcGetEventHandle(p_handle: *mut CUipcEventHandle_v1, event: CUevent) = PFN_cuIpcGetEventHandle_v4010;
                cuIpcOpenEventHandle as cuIpcOpenEventHandle(ph_event: *mut CUevent, handle: CUipcEventHandle_v1) = PFN_cuIpcOpenEventHandle_v4010;
                cuCtxRecordEvent as cuCtxRecordEvent(h_ctx: CUcontext, h_event: CUevent) = PFN_cuCtxRecordEvent_v12050;
                cuCtxWaitEvent as cuCtxWaitEvent(h_ctx: CUcontext, h_event: CUevent) = PFN_cuCtxWaitEvent_v12050;
                cuEventCreate as cuEventCreate(ph_event: *mut CUevent, flags: c_uint) = PFN_cuEventCreate_v2000;
                cuEventDestroy as cuEventDestroy_v2(h_event: CUevent) = PFN_cuEventDestroy_v4000;
                cuEventElapsedTime as cuEventElapsedTime(p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent) = PFN_cuEventElapsedTime_v2000;
                cuEventQuery as cuEventQuery(h_event: CUevent) = PFN_cuEventQuery_v2000;
                cuEventRecord as cuEventRecord(h_event: CUevent, h_stream: CUstream) = PFN_cuEventRecord_v2000;
                cuEventRecordWithFlags as cuEventRecordWithFlags(h_event: CUevent, h_stream: CUstream, flags: c_uint) = PFN_cuEventRecordWithFlags_v11010;
                cuEventSynchronize as cuEventSynchronize(h_event: CUevent) = PFN_cuEventSynchronize_v2000;
            }
            capture {
                cuStreamBeginCapture as cuStreamBeginCapture_v2(h_stream: CUstream, mode: CUstreamCaptureMode) = PFN_cuStreamBeginCapture_v10010;
                cuStreamEndCapture as cuStreamEndCapture(h_stream: CUstream, ph_graph: *mut CUgraph) = PFN_cuStreamEndCapture_v10000;
                cuStreamGetCaptureInfo as cuStreamGetCaptureInfo_v2(h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut u64, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, num_dependencies_out: *mut usize) = PFN_cuStreamGetCaptureInfo_v11030;
                cuStreamIsCapturing as cuStreamIsCapturing(h_stream: CUstream, capture_status: *mut CUstreamCaptureStatus) = PFN_cuStreamIsCapturing_v10000;
                cuStreamUpdateCaptureDependencies as cuStreamUpdateCaptureDependencies(h_stream: CUstream, dependencies: *mut CUgraphNode, num_dependencies: usize, flags: c_uint) = PFN_cuStreamUpdateCaptureDependencies_v11030;
                cuThreadExchangeStreamCaptureMode as cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) = PFN_cuThreadExchangeStreamCaptureMode_v10010;
            }
            stream {
                cuStreamCreate as cuStreamCreate(ph_stream: *mut CUstream, flags: c_uint) = PFN_cuStreamCreate_v2000;
                cuStreamCreateWithPriority as cuStreamCreateWithPriority(ph_stream: *mut CUstream, flags: c_uint, priority: c_int) = PFN_cuStreamCreateWithPriority_v5050;
                cuStreamDestroy as cuStreamDestroy_v2(h_stream: CUstream) = PFN_cuStreamDestroy_v4000;
                cuStreamGetCtx as cuStreamGetCtx(h_stream: CUstream, pctx: *mut CUcontext) = PFN_cuStreamGetCtx_v9020;
                cuStreamGetDevice as cuStreamGetDevice(h_stream: CUstream, device: *mut CUdevice) = PFN_cuStreamGetDevice_v12080;
                cuStreamGetFlags as cuStreamGetFlags(h_stream: CUstream, flags: *mut c_uint) = PFN_cuStreamGetFlags_v5050;
                cuStreamGetId as cuStreamGetId(h_stream: CUstream, stream_id: *mut u64) = PFN_cuStreamGetId_v12000;
                cuStreamGetPriority as cuStreamGetPriority(h_stream: CUstream, priority: *mut c_int) = PFN_cuStreamGetPriority_v5050;
                cuStreamQuery as cuStreamQuery(h_stream: CUstream) = PFN_cuStreamQuery_v2000;
                cuStreamSynchronize as cuStreamSynchronize(h_stream: CUstream) = PFN_cuStreamSynchronize_v2000;
                cuStreamWaitEvent as cuStreamWaitEvent(h_stream: CUstream, h_event: CUevent, flags: c_uint) = PFN_cuStreamWaitEvent_v3020;
            }
            exec {
                cuFuncGetAttribute as cuFuncGetAttribute(pi: *mut c_int, attrib: CUfunction_attribute, hfunc: CUfunction) = PFN_cuFuncGetAttribute_v2020;
                cuLaunchHostFunc as cuLaunchHostFunc(h_stream: CUstream, function: CUhostFn, user_data: *mut c_void) = PFN_cuLaunchHostFunc_v10000;
                cuLaunchKernel as cuLaunchKernel(f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void) = PFN_cuLaunchKernel_v4000;
            }
            module {
                cuModuleGetFunction as cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char) = PFN_cuModuleGetFunction_v2000;
                cuModuleGetGlobal as cuModuleGetGlobal_v2(dptr: *mut CUdeviceptr, bytes: *mut usize, hmod: CUmodule, name: *const c_char) = PFN_cuModuleGetGlobal_v3020;
                cuModuleLoadData as cuModuleLoadData(module: *mut CUmodule, image: *const c_void) = PFN_cuModuleLoadData_v2000;
                cuModuleUnload as cuModuleUnload(hmod: CUmodule) = PFN_cuModuleUnload_v2000;
            }
            memop {
                cuStreamBatchMemOp as cuStreamBatchMemOp_v2(stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint) = PFN_cuStreamBatchMemOp_v11070;
                cuStreamWaitValue32 as cuStreamWaitValue32_v2(stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint) = PFN_cuStreamWaitValue32_v11070;
                cuStreamWaitValue64 as cuStreamWaitValue64_v2(stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint) = PFN_cuStreamWaitValue64_v11070;
                cuStreamWriteValue32 as cuStreamWriteValue32_v2(stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint) = PFN_cuStreamWriteValue32_v11070;
                cuStreamWriteValue64 as cuStreamWriteValue64_v2(stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint) = PFN_cuStreamWriteValue64_v11070;
            }
            graph {
                cuGraphAddEmptyNode as cuGraphAddEmptyNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize) = PFN_cuGraphAddEmptyNode_v10000;
                cuGraphCreate as cuGraphCreate(ph_graph: *mut CUgraph, flags: c_uint) = PFN_cuGraphCreate_v10000;
                cuGraphDestroy as cuGraphDestroy(h_graph: CUgraph) = PFN_cuGraphDestroy_v10000;
                cuGraphExecDestroy as cuGraphExecDestroy(h_graph_exec: CUgraphExec) = PFN_cuGraphExecDestroy_v10000;
                cuGraphGetNodes as cuGraphGetNodes(h_graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize) = PFN_cuGraphGetNodes_v10000;
                cuGraphInstantiateWithFlags as cuGraphInstantiateWithFlags(ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, flags: u64) = PFN_cuGraphInstantiateWithFlags_v11040;
                cuGraphLaunch as cuGraphLaunch(h_graph: CUgraphExec, h_stream: CUstream) = PFN_cuGraphLaunch_v10000;
                cuGraphNodeGetDependencies as cuGraphNodeGetDependencies(h_node: CUgraphNode, dependencies: *mut CUgraphNode, num_dependencies: *mut usize) = PFN_cuGraphNodeGetDependencies_v10000;
                cuGraphNodeGetType as cuGraphNodeGetType(h_node: CUgraphNode, kind: *mut CUgraphNodeType) = PFN_cuGraphNodeGetType_v10000;
                cuGraphReleaseUserObject as cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint) = PFN_cuGraphReleaseUserObject_v11030;
                cuGraphRetainUserObject as cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) = PFN_cuGraphRetainUserObject_v11030;
                cuGraphUpload as cuGraphUpload(h_graph: CUgraphExec, h_stream: CUstream) = PFN_cuGraphUpload_v11010;
                cuUserObjectCreate as cuUserObjectCreate(object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn, initial_refcount: c_uint, flags: c_uint) = PFN_cuUserObjectCreate_v11030;
                cuUserObjectRelease as cuUserObjectRelease(object: CUuserObject, count: c_uint) = PFN_cuUserObjectRelease_v11030;
                cuUserObjectRetain as cuUserObjectRetain(object: CUuserObject, count: c_uint) = PFN_cuUserObjectRetain_v11030;
            }
        }
    };
}
