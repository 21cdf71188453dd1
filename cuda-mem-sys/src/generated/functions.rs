// Written by `cargo xtask bindgen` from xtask/bindings.toml; do not edit.

functions! {
    // Initialisation, version and errors
    cuDriverGetVersion: PFN_cuDriverGetVersion_v2020, 2020, None, c"cuDriverGetVersion", c"cuDriverGetVersion", "group__CUDA__INITIALIZE.html";
    cuGetErrorName: PFN_cuGetErrorName_v6000, 6000, None, c"cuGetErrorName", c"cuGetErrorName", "group__CUDA__INITIALIZE.html";
    cuGetErrorString: PFN_cuGetErrorString_v6000, 6000, None, c"cuGetErrorString", c"cuGetErrorString", "group__CUDA__INITIALIZE.html";
    cuInit: PFN_cuInit_v2000, 2000, None, c"cuInit", c"cuInit", "group__CUDA__INITIALIZE.html";
    // Devices
    cuDeviceGet: PFN_cuDeviceGet_v2000, 2000, None, c"cuDeviceGet", c"cuDeviceGet", "group__CUDA__DEVICE.html";
    cuDeviceGetAttribute: PFN_cuDeviceGetAttribute_v2000, 2000, None, c"cuDeviceGetAttribute", c"cuDeviceGetAttribute", "group__CUDA__DEVICE.html";
    cuDeviceGetByPCIBusId: PFN_cuDeviceGetByPCIBusId_v4010, 4010, None, c"cuDeviceGetByPCIBusId", c"cuDeviceGetByPCIBusId", "group__CUDA__DEVICE.html";
    cuDeviceGetCount: PFN_cuDeviceGetCount_v2000, 2000, None, c"cuDeviceGetCount", c"cuDeviceGetCount", "group__CUDA__DEVICE.html";
    cuDeviceGetDefaultMemPool: PFN_cuDeviceGetDefaultMemPool_v11020, 11020, None, c"cuDeviceGetDefaultMemPool", c"cuDeviceGetDefaultMemPool", "group__CUDA__DEVICE.html";
    cuDeviceGetMemPool: PFN_cuDeviceGetMemPool_v11020, 11020, None, c"cuDeviceGetMemPool", c"cuDeviceGetMemPool", "group__CUDA__DEVICE.html";
    cuDeviceGetName: PFN_cuDeviceGetName_v2000, 2000, None, c"cuDeviceGetName", c"cuDeviceGetName", "group__CUDA__DEVICE.html";
    cuDeviceGetPCIBusId: PFN_cuDeviceGetPCIBusId_v4010, 4010, None, c"cuDeviceGetPCIBusId", c"cuDeviceGetPCIBusId", "group__CUDA__DEVICE.html";
    cuDeviceGetUuid: PFN_cuDeviceGetUuid_v11040, 11040, None, c"cuDeviceGetUuid", c"cuDeviceGetUuid_v2", "group__CUDA__DEVICE.html";
    cuDeviceSetMemPool: PFN_cuDeviceSetMemPool_v11020, 11020, None, c"cuDeviceSetMemPool", c"cuDeviceSetMemPool", "group__CUDA__DEVICE.html";
    cuDeviceTotalMem: PFN_cuDeviceTotalMem_v3020, 3020, None, c"cuDeviceTotalMem", c"cuDeviceTotalMem_v2", "group__CUDA__DEVICE.html";
    // Peer access
    cuCtxDisablePeerAccess: PFN_cuCtxDisablePeerAccess_v4000, 4000, None, c"cuCtxDisablePeerAccess", c"cuCtxDisablePeerAccess", "group__CUDA__PEER__ACCESS.html";
    cuCtxEnablePeerAccess: PFN_cuCtxEnablePeerAccess_v4000, 4000, None, c"cuCtxEnablePeerAccess", c"cuCtxEnablePeerAccess", "group__CUDA__PEER__ACCESS.html";
    cuDeviceCanAccessPeer: PFN_cuDeviceCanAccessPeer_v4000, 4000, None, c"cuDeviceCanAccessPeer", c"cuDeviceCanAccessPeer", "group__CUDA__PEER__ACCESS.html";
    cuDeviceGetP2PAttribute: PFN_cuDeviceGetP2PAttribute_v8000, 8000, None, c"cuDeviceGetP2PAttribute", c"cuDeviceGetP2PAttribute", "group__CUDA__PEER__ACCESS.html";
    // Primary contexts
    cuDevicePrimaryCtxGetState: PFN_cuDevicePrimaryCtxGetState_v7000, 7000, None, c"cuDevicePrimaryCtxGetState", c"cuDevicePrimaryCtxGetState", "group__CUDA__PRIMARY__CTX.html";
    cuDevicePrimaryCtxRelease: PFN_cuDevicePrimaryCtxRelease_v11000, 11000, None, c"cuDevicePrimaryCtxRelease", c"cuDevicePrimaryCtxRelease_v2", "group__CUDA__PRIMARY__CTX.html";
    cuDevicePrimaryCtxReset: PFN_cuDevicePrimaryCtxReset_v11000, 11000, None, c"cuDevicePrimaryCtxReset", c"cuDevicePrimaryCtxReset_v2", "group__CUDA__PRIMARY__CTX.html";
    cuDevicePrimaryCtxRetain: PFN_cuDevicePrimaryCtxRetain_v7000, 7000, None, c"cuDevicePrimaryCtxRetain", c"cuDevicePrimaryCtxRetain", "group__CUDA__PRIMARY__CTX.html";
    cuDevicePrimaryCtxSetFlags: PFN_cuDevicePrimaryCtxSetFlags_v11000, 11000, None, c"cuDevicePrimaryCtxSetFlags", c"cuDevicePrimaryCtxSetFlags_v2", "group__CUDA__PRIMARY__CTX.html";
    // Contexts
    cuCtxCreate: PFN_cuCtxCreate_v3020, 3020, None, c"cuCtxCreate", c"cuCtxCreate_v2", "group__CUDA__CTX.html";
    cuCtxDestroy: PFN_cuCtxDestroy_v4000, 4000, None, c"cuCtxDestroy", c"cuCtxDestroy_v2", "group__CUDA__CTX.html";
    cuCtxGetCurrent: PFN_cuCtxGetCurrent_v4000, 4000, None, c"cuCtxGetCurrent", c"cuCtxGetCurrent", "group__CUDA__CTX.html";
    cuCtxGetDevice: PFN_cuCtxGetDevice_v2000, 2000, None, c"cuCtxGetDevice", c"cuCtxGetDevice", "group__CUDA__CTX.html";
    cuCtxGetFlags: PFN_cuCtxGetFlags_v7000, 7000, None, c"cuCtxGetFlags", c"cuCtxGetFlags", "group__CUDA__CTX.html";
    cuCtxGetId: PFN_cuCtxGetId_v12000, 12000, None, c"cuCtxGetId", c"cuCtxGetId", "group__CUDA__CTX.html";
    cuCtxGetLimit: PFN_cuCtxGetLimit_v3010, 3010, None, c"cuCtxGetLimit", c"cuCtxGetLimit", "group__CUDA__CTX.html";
    cuCtxGetStreamPriorityRange: PFN_cuCtxGetStreamPriorityRange_v5050, 5050, None, c"cuCtxGetStreamPriorityRange", c"cuCtxGetStreamPriorityRange", "group__CUDA__CTX.html";
    cuCtxPopCurrent: PFN_cuCtxPopCurrent_v4000, 4000, None, c"cuCtxPopCurrent", c"cuCtxPopCurrent_v2", "group__CUDA__CTX.html";
    cuCtxPushCurrent: PFN_cuCtxPushCurrent_v4000, 4000, None, c"cuCtxPushCurrent", c"cuCtxPushCurrent_v2", "group__CUDA__CTX.html";
    cuCtxRecordEvent: PFN_cuCtxRecordEvent_v12050, 12050, None, c"cuCtxRecordEvent", c"cuCtxRecordEvent", "group__CUDA__CTX.html";
    cuCtxSetCurrent: PFN_cuCtxSetCurrent_v4000, 4000, None, c"cuCtxSetCurrent", c"cuCtxSetCurrent", "group__CUDA__CTX.html";
    cuCtxSetLimit: PFN_cuCtxSetLimit_v3010, 3010, None, c"cuCtxSetLimit", c"cuCtxSetLimit", "group__CUDA__CTX.html";
    cuCtxSynchronize: PFN_cuCtxSynchronize_v2000, 2000, None, c"cuCtxSynchronize", c"cuCtxSynchronize", "group__CUDA__CTX.html";
    cuCtxWaitEvent: PFN_cuCtxWaitEvent_v12050, 12050, None, c"cuCtxWaitEvent", c"cuCtxWaitEvent", "group__CUDA__CTX.html";
    // Streams
    cuStreamAttachMemAsync: PFN_cuStreamAttachMemAsync_v6000, 6000, Some(7000), c"cuStreamAttachMemAsync", c"cuStreamAttachMemAsync", "group__CUDA__STREAM.html";
    cuStreamBeginCapture: PFN_cuStreamBeginCapture_v10010, 10010, Some(10010), c"cuStreamBeginCapture", c"cuStreamBeginCapture_v2", "group__CUDA__STREAM.html";
    cuStreamCreate: PFN_cuStreamCreate_v2000, 2000, None, c"cuStreamCreate", c"cuStreamCreate", "group__CUDA__STREAM.html";
    cuStreamCreateWithPriority: PFN_cuStreamCreateWithPriority_v5050, 5050, None, c"cuStreamCreateWithPriority", c"cuStreamCreateWithPriority", "group__CUDA__STREAM.html";
    cuStreamDestroy: PFN_cuStreamDestroy_v4000, 4000, None, c"cuStreamDestroy", c"cuStreamDestroy_v2", "group__CUDA__STREAM.html";
    cuStreamEndCapture: PFN_cuStreamEndCapture_v10000, 10000, Some(10000), c"cuStreamEndCapture", c"cuStreamEndCapture", "group__CUDA__STREAM.html";
    cuStreamGetCaptureInfo: PFN_cuStreamGetCaptureInfo_v11030, 11030, Some(11030), c"cuStreamGetCaptureInfo", c"cuStreamGetCaptureInfo_v2", "group__CUDA__STREAM.html";
    cuStreamGetCtx: PFN_cuStreamGetCtx_v9020, 9020, Some(9020), c"cuStreamGetCtx", c"cuStreamGetCtx", "group__CUDA__STREAM.html";
    cuStreamGetDevice: PFN_cuStreamGetDevice_v12080, 12080, Some(12080), c"cuStreamGetDevice", c"cuStreamGetDevice", "group__CUDA__STREAM.html";
    cuStreamGetFlags: PFN_cuStreamGetFlags_v5050, 5050, Some(7000), c"cuStreamGetFlags", c"cuStreamGetFlags", "group__CUDA__STREAM.html";
    cuStreamGetId: PFN_cuStreamGetId_v12000, 12000, Some(12000), c"cuStreamGetId", c"cuStreamGetId", "group__CUDA__STREAM.html";
    cuStreamGetPriority: PFN_cuStreamGetPriority_v5050, 5050, Some(7000), c"cuStreamGetPriority", c"cuStreamGetPriority", "group__CUDA__STREAM.html";
    cuStreamIsCapturing: PFN_cuStreamIsCapturing_v10000, 10000, Some(10000), c"cuStreamIsCapturing", c"cuStreamIsCapturing", "group__CUDA__STREAM.html";
    cuStreamQuery: PFN_cuStreamQuery_v2000, 2000, Some(7000), c"cuStreamQuery", c"cuStreamQuery", "group__CUDA__STREAM.html";
    cuStreamSynchronize: PFN_cuStreamSynchronize_v2000, 2000, Some(7000), c"cuStreamSynchronize", c"cuStreamSynchronize", "group__CUDA__STREAM.html";
    cuStreamUpdateCaptureDependencies: PFN_cuStreamUpdateCaptureDependencies_v11030, 11030, Some(11030), c"cuStreamUpdateCaptureDependencies", c"cuStreamUpdateCaptureDependencies", "group__CUDA__STREAM.html";
    cuStreamWaitEvent: PFN_cuStreamWaitEvent_v3020, 3020, Some(7000), c"cuStreamWaitEvent", c"cuStreamWaitEvent", "group__CUDA__STREAM.html";
    cuThreadExchangeStreamCaptureMode: PFN_cuThreadExchangeStreamCaptureMode_v10010, 10010, None, c"cuThreadExchangeStreamCaptureMode", c"cuThreadExchangeStreamCaptureMode", "group__CUDA__STREAM.html";
    // Host functions and kernels
    cuFuncGetAttribute: PFN_cuFuncGetAttribute_v2020, 2020, None, c"cuFuncGetAttribute", c"cuFuncGetAttribute", "group__CUDA__EXEC.html";
    cuLaunchHostFunc: PFN_cuLaunchHostFunc_v10000, 10000, Some(10000), c"cuLaunchHostFunc", c"cuLaunchHostFunc", "group__CUDA__EXEC.html";
    cuLaunchKernel: PFN_cuLaunchKernel_v4000, 4000, Some(7000), c"cuLaunchKernel", c"cuLaunchKernel", "group__CUDA__EXEC.html";
    // Modules
    cuModuleGetFunction: PFN_cuModuleGetFunction_v2000, 2000, None, c"cuModuleGetFunction", c"cuModuleGetFunction", "group__CUDA__MODULE.html";
    cuModuleGetGlobal: PFN_cuModuleGetGlobal_v3020, 3020, None, c"cuModuleGetGlobal", c"cuModuleGetGlobal_v2", "group__CUDA__MODULE.html";
    cuModuleLoadData: PFN_cuModuleLoadData_v2000, 2000, None, c"cuModuleLoadData", c"cuModuleLoadData", "group__CUDA__MODULE.html";
    cuModuleUnload: PFN_cuModuleUnload_v2000, 2000, None, c"cuModuleUnload", c"cuModuleUnload", "group__CUDA__MODULE.html";
    // Stream memory operations
    cuStreamBatchMemOp: PFN_cuStreamBatchMemOp_v11070, 11070, Some(11070), c"cuStreamBatchMemOp", c"cuStreamBatchMemOp_v2", "group__CUDA__MEMOP.html";
    cuStreamWaitValue32: PFN_cuStreamWaitValue32_v11070, 11070, Some(11070), c"cuStreamWaitValue32", c"cuStreamWaitValue32_v2", "group__CUDA__MEMOP.html";
    cuStreamWaitValue64: PFN_cuStreamWaitValue64_v11070, 11070, Some(11070), c"cuStreamWaitValue64", c"cuStreamWaitValue64_v2", "group__CUDA__MEMOP.html";
    cuStreamWriteValue32: PFN_cuStreamWriteValue32_v11070, 11070, Some(11070), c"cuStreamWriteValue32", c"cuStreamWriteValue32_v2", "group__CUDA__MEMOP.html";
    cuStreamWriteValue64: PFN_cuStreamWriteValue64_v11070, 11070, Some(11070), c"cuStreamWriteValue64", c"cuStreamWriteValue64_v2", "group__CUDA__MEMOP.html";
    // Events
    cuEventCreate: PFN_cuEventCreate_v2000, 2000, None, c"cuEventCreate", c"cuEventCreate", "group__CUDA__EVENT.html";
    cuEventDestroy: PFN_cuEventDestroy_v4000, 4000, None, c"cuEventDestroy", c"cuEventDestroy_v2", "group__CUDA__EVENT.html";
    cuEventElapsedTime: PFN_cuEventElapsedTime_v2000, 2000, None, c"cuEventElapsedTime", c"cuEventElapsedTime", "group__CUDA__EVENT.html";
    cuEventQuery: PFN_cuEventQuery_v2000, 2000, None, c"cuEventQuery", c"cuEventQuery", "group__CUDA__EVENT.html";
    cuEventRecord: PFN_cuEventRecord_v2000, 2000, Some(7000), c"cuEventRecord", c"cuEventRecord", "group__CUDA__EVENT.html";
    cuEventRecordWithFlags: PFN_cuEventRecordWithFlags_v11010, 11010, Some(11010), c"cuEventRecordWithFlags", c"cuEventRecordWithFlags", "group__CUDA__EVENT.html";
    cuEventSynchronize: PFN_cuEventSynchronize_v2000, 2000, None, c"cuEventSynchronize", c"cuEventSynchronize", "group__CUDA__EVENT.html";
    // Memory
    cuMemAlloc: PFN_cuMemAlloc_v3020, 3020, None, c"cuMemAlloc", c"cuMemAlloc_v2", "group__CUDA__MEM.html";
    cuMemAllocHost: PFN_cuMemAllocHost_v3020, 3020, None, c"cuMemAllocHost", c"cuMemAllocHost_v2", "group__CUDA__MEM.html";
    cuMemAllocManaged: PFN_cuMemAllocManaged_v6000, 6000, None, c"cuMemAllocManaged", c"cuMemAllocManaged", "group__CUDA__MEM.html";
    cuMemAllocPitch: PFN_cuMemAllocPitch_v3020, 3020, None, c"cuMemAllocPitch", c"cuMemAllocPitch_v2", "group__CUDA__MEM.html";
    cuMemFree: PFN_cuMemFree_v3020, 3020, None, c"cuMemFree", c"cuMemFree_v2", "group__CUDA__MEM.html";
    cuMemFreeHost: PFN_cuMemFreeHost_v2000, 2000, None, c"cuMemFreeHost", c"cuMemFreeHost", "group__CUDA__MEM.html";
    cuMemGetAddressRange: PFN_cuMemGetAddressRange_v3020, 3020, None, c"cuMemGetAddressRange", c"cuMemGetAddressRange_v2", "group__CUDA__MEM.html";
    cuMemGetHandleForAddressRange: PFN_cuMemGetHandleForAddressRange_v11070, 11070, None, c"cuMemGetHandleForAddressRange", c"cuMemGetHandleForAddressRange", "group__CUDA__MEM.html";
    cuMemGetInfo: PFN_cuMemGetInfo_v3020, 3020, None, c"cuMemGetInfo", c"cuMemGetInfo_v2", "group__CUDA__MEM.html";
    cuMemHostAlloc: PFN_cuMemHostAlloc_v2020, 2020, None, c"cuMemHostAlloc", c"cuMemHostAlloc", "group__CUDA__MEM.html";
    cuMemHostGetDevicePointer: PFN_cuMemHostGetDevicePointer_v3020, 3020, None, c"cuMemHostGetDevicePointer", c"cuMemHostGetDevicePointer_v2", "group__CUDA__MEM.html";
    cuMemHostGetFlags: PFN_cuMemHostGetFlags_v2030, 2030, None, c"cuMemHostGetFlags", c"cuMemHostGetFlags", "group__CUDA__MEM.html";
    cuMemHostRegister: PFN_cuMemHostRegister_v6050, 6050, None, c"cuMemHostRegister", c"cuMemHostRegister_v2", "group__CUDA__MEM.html";
    cuMemHostUnregister: PFN_cuMemHostUnregister_v4000, 4000, None, c"cuMemHostUnregister", c"cuMemHostUnregister", "group__CUDA__MEM.html";
    cuMemcpy: PFN_cuMemcpy_v4000, 4000, Some(7000), c"cuMemcpy", c"cuMemcpy", "group__CUDA__MEM.html";
    cuMemcpy2D: PFN_cuMemcpy2D_v3020, 3020, Some(7000), c"cuMemcpy2D", c"cuMemcpy2D_v2", "group__CUDA__MEM.html";
    cuMemcpy2DAsync: PFN_cuMemcpy2DAsync_v3020, 3020, Some(7000), c"cuMemcpy2DAsync", c"cuMemcpy2DAsync_v2", "group__CUDA__MEM.html";
    cuMemcpy2DUnaligned: PFN_cuMemcpy2DUnaligned_v3020, 3020, Some(7000), c"cuMemcpy2DUnaligned", c"cuMemcpy2DUnaligned_v2", "group__CUDA__MEM.html";
    cuMemcpyAsync: PFN_cuMemcpyAsync_v4000, 4000, Some(7000), c"cuMemcpyAsync", c"cuMemcpyAsync", "group__CUDA__MEM.html";
    cuMemcpyBatchAsync: PFN_cuMemcpyBatchAsync_v13000, 13000, Some(13000), c"cuMemcpyBatchAsync", c"cuMemcpyBatchAsync_v2", "group__CUDA__MEM.html";
    cuMemcpyDtoD: PFN_cuMemcpyDtoD_v3020, 3020, Some(7000), c"cuMemcpyDtoD", c"cuMemcpyDtoD_v2", "group__CUDA__MEM.html";
    cuMemcpyDtoDAsync: PFN_cuMemcpyDtoDAsync_v3020, 3020, Some(7000), c"cuMemcpyDtoDAsync", c"cuMemcpyDtoDAsync_v2", "group__CUDA__MEM.html";
    cuMemcpyDtoH: PFN_cuMemcpyDtoH_v3020, 3020, Some(7000), c"cuMemcpyDtoH", c"cuMemcpyDtoH_v2", "group__CUDA__MEM.html";
    cuMemcpyDtoHAsync: PFN_cuMemcpyDtoHAsync_v3020, 3020, Some(7000), c"cuMemcpyDtoHAsync", c"cuMemcpyDtoHAsync_v2", "group__CUDA__MEM.html";
    cuMemcpyHtoD: PFN_cuMemcpyHtoD_v3020, 3020, Some(7000), c"cuMemcpyHtoD", c"cuMemcpyHtoD_v2", "group__CUDA__MEM.html";
    cuMemcpyHtoDAsync: PFN_cuMemcpyHtoDAsync_v3020, 3020, Some(7000), c"cuMemcpyHtoDAsync", c"cuMemcpyHtoDAsync_v2", "group__CUDA__MEM.html";
    cuMemcpyPeer: PFN_cuMemcpyPeer_v4000, 4000, Some(7000), c"cuMemcpyPeer", c"cuMemcpyPeer", "group__CUDA__MEM.html";
    cuMemcpyPeerAsync: PFN_cuMemcpyPeerAsync_v4000, 4000, Some(7000), c"cuMemcpyPeerAsync", c"cuMemcpyPeerAsync", "group__CUDA__MEM.html";
    cuMemsetD16: PFN_cuMemsetD16_v3020, 3020, Some(7000), c"cuMemsetD16", c"cuMemsetD16_v2", "group__CUDA__MEM.html";
    cuMemsetD16Async: PFN_cuMemsetD16Async_v3020, 3020, Some(7000), c"cuMemsetD16Async", c"cuMemsetD16Async", "group__CUDA__MEM.html";
    cuMemsetD2D8Async: PFN_cuMemsetD2D8Async_v3020, 3020, Some(7000), c"cuMemsetD2D8Async", c"cuMemsetD2D8Async", "group__CUDA__MEM.html";
    cuMemsetD32: PFN_cuMemsetD32_v3020, 3020, Some(7000), c"cuMemsetD32", c"cuMemsetD32_v2", "group__CUDA__MEM.html";
    cuMemsetD32Async: PFN_cuMemsetD32Async_v3020, 3020, Some(7000), c"cuMemsetD32Async", c"cuMemsetD32Async", "group__CUDA__MEM.html";
    cuMemsetD8: PFN_cuMemsetD8_v3020, 3020, Some(7000), c"cuMemsetD8", c"cuMemsetD8_v2", "group__CUDA__MEM.html";
    cuMemsetD8Async: PFN_cuMemsetD8Async_v3020, 3020, Some(7000), c"cuMemsetD8Async", c"cuMemsetD8Async", "group__CUDA__MEM.html";
    // Managed memory and unified addressing
    cuMemAdvise: PFN_cuMemAdvise_v12020, 12020, None, c"cuMemAdvise", c"cuMemAdvise_v2", "group__CUDA__UNIFIED.html";
    cuMemDiscardAndPrefetchBatchAsync: PFN_cuMemDiscardAndPrefetchBatchAsync_v13000, 13000, Some(13000), c"cuMemDiscardAndPrefetchBatchAsync", c"cuMemDiscardAndPrefetchBatchAsync", "group__CUDA__UNIFIED.html";
    cuMemDiscardBatchAsync: PFN_cuMemDiscardBatchAsync_v13000, 13000, Some(13000), c"cuMemDiscardBatchAsync", c"cuMemDiscardBatchAsync", "group__CUDA__UNIFIED.html";
    cuMemPrefetchAsync: PFN_cuMemPrefetchAsync_v12020, 12020, Some(12020), c"cuMemPrefetchAsync", c"cuMemPrefetchAsync_v2", "group__CUDA__UNIFIED.html";
    cuMemPrefetchBatchAsync: PFN_cuMemPrefetchBatchAsync_v13000, 13000, Some(13000), c"cuMemPrefetchBatchAsync", c"cuMemPrefetchBatchAsync", "group__CUDA__UNIFIED.html";
    cuMemRangeGetAttribute: PFN_cuMemRangeGetAttribute_v8000, 8000, None, c"cuMemRangeGetAttribute", c"cuMemRangeGetAttribute", "group__CUDA__UNIFIED.html";
    cuMemRangeGetAttributes: PFN_cuMemRangeGetAttributes_v8000, 8000, None, c"cuMemRangeGetAttributes", c"cuMemRangeGetAttributes", "group__CUDA__UNIFIED.html";
    cuPointerGetAttribute: PFN_cuPointerGetAttribute_v4000, 4000, None, c"cuPointerGetAttribute", c"cuPointerGetAttribute", "group__CUDA__UNIFIED.html";
    cuPointerGetAttributes: PFN_cuPointerGetAttributes_v7000, 7000, None, c"cuPointerGetAttributes", c"cuPointerGetAttributes", "group__CUDA__UNIFIED.html";
    cuPointerSetAttribute: PFN_cuPointerSetAttribute_v6000, 6000, None, c"cuPointerSetAttribute", c"cuPointerSetAttribute", "group__CUDA__UNIFIED.html";
    // Stream-ordered allocation and memory pools
    cuMemAllocAsync: PFN_cuMemAllocAsync_v11020, 11020, Some(11020), c"cuMemAllocAsync", c"cuMemAllocAsync", "group__CUDA__MALLOC__ASYNC.html";
    cuMemAllocFromPoolAsync: PFN_cuMemAllocFromPoolAsync_v11020, 11020, Some(11020), c"cuMemAllocFromPoolAsync", c"cuMemAllocFromPoolAsync", "group__CUDA__MALLOC__ASYNC.html";
    cuMemFreeAsync: PFN_cuMemFreeAsync_v11020, 11020, Some(11020), c"cuMemFreeAsync", c"cuMemFreeAsync", "group__CUDA__MALLOC__ASYNC.html";
    cuMemGetDefaultMemPool: PFN_cuMemGetDefaultMemPool_v13000, 13000, None, c"cuMemGetDefaultMemPool", c"cuMemGetDefaultMemPool", "group__CUDA__MALLOC__ASYNC.html";
    cuMemGetMemPool: PFN_cuMemGetMemPool_v13000, 13000, None, c"cuMemGetMemPool", c"cuMemGetMemPool", "group__CUDA__MALLOC__ASYNC.html";
    cuMemPoolCreate: PFN_cuMemPoolCreate_v11020, 11020, None, c"cuMemPoolCreate", c"cuMemPoolCreate", "group__CUDA__MALLOC__ASYNC.html";
    cuMemPoolDestroy: PFN_cuMemPoolDestroy_v11020, 11020, None, c"cuMemPoolDestroy", c"cuMemPoolDestroy", "group__CUDA__MALLOC__ASYNC.html";
    cuMemPoolExportPointer: PFN_cuMemPoolExportPointer_v11020, 11020, None, c"cuMemPoolExportPointer", c"cuMemPoolExportPointer", "group__CUDA__MALLOC__ASYNC.html";
    cuMemPoolExportToShareableHandle: PFN_cuMemPoolExportToShareableHandle_v11020, 11020, None, c"cuMemPoolExportToShareableHandle", c"cuMemPoolExportToShareableHandle", "group__CUDA__MALLOC__ASYNC.html";
    cuMemPoolGetAccess: PFN_cuMemPoolGetAccess_v11020, 11020, None, c"cuMemPoolGetAccess", c"cuMemPoolGetAccess", "group__CUDA__MALLOC__ASYNC.html";
    cuMemPoolGetAttribute: PFN_cuMemPoolGetAttribute_v11020, 11020, None, c"cuMemPoolGetAttribute", c"cuMemPoolGetAttribute", "group__CUDA__MALLOC__ASYNC.html";
    cuMemPoolImportFromShareableHandle: PFN_cuMemPoolImportFromShareableHandle_v11020, 11020, None, c"cuMemPoolImportFromShareableHandle", c"cuMemPoolImportFromShareableHandle", "group__CUDA__MALLOC__ASYNC.html";
    cuMemPoolImportPointer: PFN_cuMemPoolImportPointer_v11020, 11020, None, c"cuMemPoolImportPointer", c"cuMemPoolImportPointer", "group__CUDA__MALLOC__ASYNC.html";
    cuMemPoolSetAccess: PFN_cuMemPoolSetAccess_v11020, 11020, None, c"cuMemPoolSetAccess", c"cuMemPoolSetAccess", "group__CUDA__MALLOC__ASYNC.html";
    cuMemPoolSetAttribute: PFN_cuMemPoolSetAttribute_v11020, 11020, None, c"cuMemPoolSetAttribute", c"cuMemPoolSetAttribute", "group__CUDA__MALLOC__ASYNC.html";
    cuMemPoolTrimTo: PFN_cuMemPoolTrimTo_v11020, 11020, None, c"cuMemPoolTrimTo", c"cuMemPoolTrimTo", "group__CUDA__MALLOC__ASYNC.html";
    cuMemSetMemPool: PFN_cuMemSetMemPool_v13000, 13000, None, c"cuMemSetMemPool", c"cuMemSetMemPool", "group__CUDA__MALLOC__ASYNC.html";
    // Virtual memory management
    cuMemAddressFree: PFN_cuMemAddressFree_v10020, 10020, None, c"cuMemAddressFree", c"cuMemAddressFree", "group__CUDA__VA.html";
    cuMemAddressReserve: PFN_cuMemAddressReserve_v10020, 10020, None, c"cuMemAddressReserve", c"cuMemAddressReserve", "group__CUDA__VA.html";
    cuMemCreate: PFN_cuMemCreate_v10020, 10020, None, c"cuMemCreate", c"cuMemCreate", "group__CUDA__VA.html";
    cuMemExportToShareableHandle: PFN_cuMemExportToShareableHandle_v10020, 10020, None, c"cuMemExportToShareableHandle", c"cuMemExportToShareableHandle", "group__CUDA__VA.html";
    cuMemGetAccess: PFN_cuMemGetAccess_v10020, 10020, None, c"cuMemGetAccess", c"cuMemGetAccess", "group__CUDA__VA.html";
    cuMemGetAllocationGranularity: PFN_cuMemGetAllocationGranularity_v10020, 10020, None, c"cuMemGetAllocationGranularity", c"cuMemGetAllocationGranularity", "group__CUDA__VA.html";
    cuMemGetAllocationPropertiesFromHandle: PFN_cuMemGetAllocationPropertiesFromHandle_v10020, 10020, None, c"cuMemGetAllocationPropertiesFromHandle", c"cuMemGetAllocationPropertiesFromHandle", "group__CUDA__VA.html";
    cuMemImportFromShareableHandle: PFN_cuMemImportFromShareableHandle_v10020, 10020, None, c"cuMemImportFromShareableHandle", c"cuMemImportFromShareableHandle", "group__CUDA__VA.html";
    cuMemMap: PFN_cuMemMap_v10020, 10020, None, c"cuMemMap", c"cuMemMap", "group__CUDA__VA.html";
    cuMemRelease: PFN_cuMemRelease_v10020, 10020, None, c"cuMemRelease", c"cuMemRelease", "group__CUDA__VA.html";
    cuMemRetainAllocationHandle: PFN_cuMemRetainAllocationHandle_v11000, 11000, None, c"cuMemRetainAllocationHandle", c"cuMemRetainAllocationHandle", "group__CUDA__VA.html";
    cuMemSetAccess: PFN_cuMemSetAccess_v10020, 10020, None, c"cuMemSetAccess", c"cuMemSetAccess", "group__CUDA__VA.html";
    cuMemUnmap: PFN_cuMemUnmap_v10020, 10020, None, c"cuMemUnmap", c"cuMemUnmap", "group__CUDA__VA.html";
    // Interprocess communication
    cuIpcCloseMemHandle: PFN_cuIpcCloseMemHandle_v4010, 4010, None, c"cuIpcCloseMemHandle", c"cuIpcCloseMemHandle", "group__CUDA__MEM.html";
    cuIpcGetEventHandle: PFN_cuIpcGetEventHandle_v4010, 4010, None, c"cuIpcGetEventHandle", c"cuIpcGetEventHandle", "group__CUDA__MEM.html";
    cuIpcGetMemHandle: PFN_cuIpcGetMemHandle_v4010, 4010, None, c"cuIpcGetMemHandle", c"cuIpcGetMemHandle", "group__CUDA__MEM.html";
    cuIpcOpenEventHandle: PFN_cuIpcOpenEventHandle_v4010, 4010, None, c"cuIpcOpenEventHandle", c"cuIpcOpenEventHandle", "group__CUDA__MEM.html";
    cuIpcOpenMemHandle: PFN_cuIpcOpenMemHandle_v11000, 11000, None, c"cuIpcOpenMemHandle", c"cuIpcOpenMemHandle_v2", "group__CUDA__MEM.html";
    // Graphs
    cuGraphAddEmptyNode: PFN_cuGraphAddEmptyNode_v10000, 10000, None, c"cuGraphAddEmptyNode", c"cuGraphAddEmptyNode", "group__CUDA__GRAPH.html";
    cuGraphCreate: PFN_cuGraphCreate_v10000, 10000, None, c"cuGraphCreate", c"cuGraphCreate", "group__CUDA__GRAPH.html";
    cuGraphDestroy: PFN_cuGraphDestroy_v10000, 10000, None, c"cuGraphDestroy", c"cuGraphDestroy", "group__CUDA__GRAPH.html";
    cuGraphExecDestroy: PFN_cuGraphExecDestroy_v10000, 10000, None, c"cuGraphExecDestroy", c"cuGraphExecDestroy", "group__CUDA__GRAPH.html";
    cuGraphGetNodes: PFN_cuGraphGetNodes_v10000, 10000, None, c"cuGraphGetNodes", c"cuGraphGetNodes", "group__CUDA__GRAPH.html";
    cuGraphInstantiateWithFlags: PFN_cuGraphInstantiateWithFlags_v11040, 11040, None, c"cuGraphInstantiateWithFlags", c"cuGraphInstantiateWithFlags", "group__CUDA__GRAPH.html";
    cuGraphLaunch: PFN_cuGraphLaunch_v10000, 10000, Some(10000), c"cuGraphLaunch", c"cuGraphLaunch", "group__CUDA__GRAPH.html";
    cuGraphNodeGetDependencies: PFN_cuGraphNodeGetDependencies_v10000, 10000, None, c"cuGraphNodeGetDependencies", c"cuGraphNodeGetDependencies", "group__CUDA__GRAPH.html";
    cuGraphNodeGetType: PFN_cuGraphNodeGetType_v10000, 10000, None, c"cuGraphNodeGetType", c"cuGraphNodeGetType", "group__CUDA__GRAPH.html";
    cuGraphReleaseUserObject: PFN_cuGraphReleaseUserObject_v11030, 11030, None, c"cuGraphReleaseUserObject", c"cuGraphReleaseUserObject", "group__CUDA__GRAPH.html";
    cuGraphRetainUserObject: PFN_cuGraphRetainUserObject_v11030, 11030, None, c"cuGraphRetainUserObject", c"cuGraphRetainUserObject", "group__CUDA__GRAPH.html";
    cuGraphUpload: PFN_cuGraphUpload_v11010, 11010, Some(11010), c"cuGraphUpload", c"cuGraphUpload", "group__CUDA__GRAPH.html";
    cuUserObjectCreate: PFN_cuUserObjectCreate_v11030, 11030, None, c"cuUserObjectCreate", c"cuUserObjectCreate", "group__CUDA__GRAPH.html";
    cuUserObjectRelease: PFN_cuUserObjectRelease_v11030, 11030, None, c"cuUserObjectRelease", c"cuUserObjectRelease", "group__CUDA__GRAPH.html";
    cuUserObjectRetain: PFN_cuUserObjectRetain_v11030, 11030, None, c"cuUserObjectRetain", c"cuUserObjectRetain", "group__CUDA__GRAPH.html";
}
