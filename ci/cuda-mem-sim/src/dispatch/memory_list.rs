//! The entry points of memory.
//!
//! Each block is a module of `api` with a function of each name; functions in a block `unmodelled` answer 801. The types
//! are checked against the bindings, so a wrong list does not compile.

/// Hands the list to another macro: `name as exported symbol (arguments) = type in the bindings`.
#[doc(hidden)]
#[macro_export]
macro_rules! memory_entries {
    ($with:ident) => {
        $with! {
            pool {
                cuDeviceGetDefaultMemPool as cuDeviceGetDefaultMemPool(pool_out: *mut CUmemoryPool, dev: CUdevice) = PFN_cuDeviceGetDefaultMemPool_v11020;
                cuDeviceGetMemPool as cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice) = PFN_cuDeviceGetMemPool_v11020;
                cuDeviceSetMemPool as cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) = PFN_cuDeviceSetMemPool_v11020;
                cuMemAllocAsync as cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream) = PFN_cuMemAllocAsync_v11020;
                cuMemAllocFromPoolAsync as cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream) = PFN_cuMemAllocFromPoolAsync_v11020;
                cuMemFreeAsync as cuMemFreeAsync(dptr: CUdeviceptr, h_stream: CUstream) = PFN_cuMemFreeAsync_v11020;
                cuMemGetDefaultMemPool as cuMemGetDefaultMemPool(pool_out: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType) = PFN_cuMemGetDefaultMemPool_v13000;
                cuMemGetMemPool as cuMemGetMemPool(pool_out: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType) = PFN_cuMemGetMemPool_v13000;
                cuMemPoolCreate as cuMemPoolCreate(pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps_v1) = PFN_cuMemPoolCreate_v11020;
                cuMemPoolDestroy as cuMemPoolDestroy(pool: CUmemoryPool) = PFN_cuMemPoolDestroy_v11020;
                cuMemPoolExportPointer as cuMemPoolExportPointer(share_data_out: *mut CUmemPoolPtrExportData_v1, ptr: CUdeviceptr) = PFN_cuMemPoolExportPointer_v11020;
                cuMemPoolExportToShareableHandle as cuMemPoolExportToShareableHandle(handle_out: *mut c_void, pool: CUmemoryPool, handle_type: CUmemAllocationHandleType, flags: u64) = PFN_cuMemPoolExportToShareableHandle_v11020;
                cuMemPoolGetAccess as cuMemPoolGetAccess(flags: *mut CUmemAccess_flags, mem_pool: CUmemoryPool, location: *mut CUmemLocation_v1) = PFN_cuMemPoolGetAccess_v11020;
                cuMemPoolGetAttribute as cuMemPoolGetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void) = PFN_cuMemPoolGetAttribute_v11020;
                cuMemPoolImportFromShareableHandle as cuMemPoolImportFromShareableHandle(pool_out: *mut CUmemoryPool, handle: *mut c_void, handle_type: CUmemAllocationHandleType, flags: u64) = PFN_cuMemPoolImportFromShareableHandle_v11020;
                cuMemPoolImportPointer as cuMemPoolImportPointer(ptr_out: *mut CUdeviceptr, pool: CUmemoryPool, share_data: *mut CUmemPoolPtrExportData_v1) = PFN_cuMemPoolImportPointer_v11020;
                cuMemPoolSetAccess as cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc_v1, count: usize) = PFN_cuMemPoolSetAccess_v11020;
                cuMemPoolSetAttribute as cuMemPoolSetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void) = PFN_cuMemPoolSetAttribute_v11020;
                cuMemPoolTrimTo as cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize) = PFN_cuMemPoolTrimTo_v11020;
                cuMemSetMemPool as cuMemSetMemPool(location: *mut CUmemLocation, kind: CUmemAllocationType, pool: CUmemoryPool) = PFN_cuMemSetMemPool_v13000;
            }
            memory {
                cuStreamAttachMemAsync as cuStreamAttachMemAsync(h_stream: CUstream, dptr: CUdeviceptr, length: usize, flags: c_uint) = PFN_cuStreamAttachMemAsync_v6000;
                cuMemAlloc as cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) = PFN_cuMemAlloc_v3020;
                cuMemAllocHost as cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) = PFN_cuMemAllocHost_v3020;
                cuMemAllocManaged as cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint) = PFN_cuMemAllocManaged_v6000;
                cuMemAllocPitch as cuMemAllocPitch_v2(dptr: *mut CUdeviceptr, p_pitch: *mut usize, width_in_bytes: usize, height: usize, element_size_bytes: c_uint) = PFN_cuMemAllocPitch_v3020;
                cuMemFree as cuMemFree_v2(dptr: CUdeviceptr) = PFN_cuMemFree_v3020;
                cuMemFreeHost as cuMemFreeHost(p: *mut c_void) = PFN_cuMemFreeHost_v2000;
                cuMemGetAddressRange as cuMemGetAddressRange_v2(pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr) = PFN_cuMemGetAddressRange_v3020;
                cuMemGetHandleForAddressRange as cuMemGetHandleForAddressRange(handle: *mut c_void, dptr: CUdeviceptr, size: usize, handle_type: CUmemRangeHandleType, flags: u64) = PFN_cuMemGetHandleForAddressRange_v11070;
                cuMemGetInfo as cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = PFN_cuMemGetInfo_v3020;
                cuMemHostAlloc as cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: c_uint) = PFN_cuMemHostAlloc_v2020;
                cuMemHostGetDevicePointer as cuMemHostGetDevicePointer_v2(pdptr: *mut CUdeviceptr, p: *mut c_void, flags: c_uint) = PFN_cuMemHostGetDevicePointer_v3020;
                cuMemHostGetFlags as cuMemHostGetFlags(p_flags: *mut c_uint, p: *mut c_void) = PFN_cuMemHostGetFlags_v2030;
                cuMemHostRegister as cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: c_uint) = PFN_cuMemHostRegister_v6050;
                cuMemHostUnregister as cuMemHostUnregister(p: *mut c_void) = PFN_cuMemHostUnregister_v4000;
                cuMemAdvise as cuMemAdvise_v2(dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation_v1) = PFN_cuMemAdvise_v12020;
                cuMemDiscardAndPrefetchBatchAsync as cuMemDiscardAndPrefetchBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetch_locs: *mut CUmemLocation_v1, prefetch_loc_idxs: *mut usize, num_prefetch_locs: usize, flags: u64, h_stream: CUstream) = PFN_cuMemDiscardAndPrefetchBatchAsync_v13000;
                cuMemDiscardBatchAsync as cuMemDiscardBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: u64, h_stream: CUstream) = PFN_cuMemDiscardBatchAsync_v13000;
                cuMemPrefetchAsync as cuMemPrefetchAsync_v2(dev_ptr: CUdeviceptr, count: usize, location: CUmemLocation_v1, flags: c_uint, h_stream: CUstream) = PFN_cuMemPrefetchAsync_v12020;
                cuMemPrefetchBatchAsync as cuMemPrefetchBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetch_locs: *mut CUmemLocation_v1, prefetch_loc_idxs: *mut usize, num_prefetch_locs: usize, flags: u64, h_stream: CUstream) = PFN_cuMemPrefetchBatchAsync_v13000;
                cuMemRangeGetAttribute as cuMemRangeGetAttribute(data: *mut c_void, data_size: usize, attribute: CUmem_range_attribute, dev_ptr: CUdeviceptr, count: usize) = PFN_cuMemRangeGetAttribute_v8000;
                cuMemRangeGetAttributes as cuMemRangeGetAttributes(data: *mut *mut c_void, data_sizes: *mut usize, attributes: *mut CUmem_range_attribute, num_attributes: usize, dev_ptr: CUdeviceptr, count: usize) = PFN_cuMemRangeGetAttributes_v8000;
            }
            copy {
                cuMemcpy as cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize) = PFN_cuMemcpy_v4000;
                cuMemcpy2D as cuMemcpy2D_v2(p_copy: *const CUDA_MEMCPY2D_v2) = PFN_cuMemcpy2D_v3020;
                cuMemcpy2DAsync as cuMemcpy2DAsync_v2(p_copy: *const CUDA_MEMCPY2D_v2, h_stream: CUstream) = PFN_cuMemcpy2DAsync_v3020;
                cuMemcpy2DUnaligned as cuMemcpy2DUnaligned_v2(p_copy: *const CUDA_MEMCPY2D_v2) = PFN_cuMemcpy2DUnaligned_v3020;
                cuMemcpyAsync as cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, h_stream: CUstream) = PFN_cuMemcpyAsync_v4000;
                cuMemcpyBatchAsync as cuMemcpyBatchAsync_v2(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes_v1, attr_idxs: *mut usize, num_attrs: usize, h_stream: CUstream) = PFN_cuMemcpyBatchAsync_v13000;
                cuMemcpyDtoD as cuMemcpyDtoD_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize) = PFN_cuMemcpyDtoD_v3020;
                cuMemcpyDtoDAsync as cuMemcpyDtoDAsync_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream) = PFN_cuMemcpyDtoDAsync_v3020;
                cuMemcpyDtoH as cuMemcpyDtoH_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize) = PFN_cuMemcpyDtoH_v3020;
                cuMemcpyDtoHAsync as cuMemcpyDtoHAsync_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream) = PFN_cuMemcpyDtoHAsync_v3020;
                cuMemcpyHtoD as cuMemcpyHtoD_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize) = PFN_cuMemcpyHtoD_v3020;
                cuMemcpyHtoDAsync as cuMemcpyHtoDAsync_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, h_stream: CUstream) = PFN_cuMemcpyHtoDAsync_v3020;
                cuMemcpyPeer as cuMemcpyPeer(dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize) = PFN_cuMemcpyPeer_v4000;
                cuMemcpyPeerAsync as cuMemcpyPeerAsync(dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize, h_stream: CUstream) = PFN_cuMemcpyPeerAsync_v4000;
                cuMemsetD16 as cuMemsetD16_v2(dst_device: CUdeviceptr, us: c_ushort, n: usize) = PFN_cuMemsetD16_v3020;
                cuMemsetD16Async as cuMemsetD16Async(dst_device: CUdeviceptr, us: c_ushort, n: usize, h_stream: CUstream) = PFN_cuMemsetD16Async_v3020;
                cuMemsetD2D8Async as cuMemsetD2D8Async(dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize, h_stream: CUstream) = PFN_cuMemsetD2D8Async_v3020;
                cuMemsetD32 as cuMemsetD32_v2(dst_device: CUdeviceptr, ui: c_uint, n: usize) = PFN_cuMemsetD32_v3020;
                cuMemsetD32Async as cuMemsetD32Async(dst_device: CUdeviceptr, ui: c_uint, n: usize, h_stream: CUstream) = PFN_cuMemsetD32Async_v3020;
                cuMemsetD8 as cuMemsetD8_v2(dst_device: CUdeviceptr, uc: c_uchar, n: usize) = PFN_cuMemsetD8_v3020;
                cuMemsetD8Async as cuMemsetD8Async(dst_device: CUdeviceptr, uc: c_uchar, n: usize, h_stream: CUstream) = PFN_cuMemsetD8Async_v3020;
            }
            pointer {
                cuPointerGetAttribute as cuPointerGetAttribute(data: *mut c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr) = PFN_cuPointerGetAttribute_v4000;
                cuPointerGetAttributes as cuPointerGetAttributes(num_attributes: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, ptr: CUdeviceptr) = PFN_cuPointerGetAttributes_v7000;
                cuPointerSetAttribute as cuPointerSetAttribute(value: *const c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr) = PFN_cuPointerSetAttribute_v6000;
            }
            vmm {
                cuMemAddressFree as cuMemAddressFree(ptr: CUdeviceptr, size: usize) = PFN_cuMemAddressFree_v10020;
                cuMemAddressReserve as cuMemAddressReserve(ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: u64) = PFN_cuMemAddressReserve_v10020;
                cuMemCreate as cuMemCreate(handle: *mut CUmemGenericAllocationHandle_v1, size: usize, prop: *const CUmemAllocationProp_v1, flags: u64) = PFN_cuMemCreate_v10020;
                cuMemExportToShareableHandle as cuMemExportToShareableHandle(shareable_handle: *mut c_void, handle: CUmemGenericAllocationHandle_v1, handle_type: CUmemAllocationHandleType, flags: u64) = PFN_cuMemExportToShareableHandle_v10020;
                cuMemGetAccess as cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation_v1, ptr: CUdeviceptr) = PFN_cuMemGetAccess_v10020;
                cuMemGetAllocationGranularity as cuMemGetAllocationGranularity(granularity: *mut usize, prop: *const CUmemAllocationProp_v1, option: CUmemAllocationGranularity_flags) = PFN_cuMemGetAllocationGranularity_v10020;
                cuMemGetAllocationPropertiesFromHandle as cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp_v1, handle: CUmemGenericAllocationHandle_v1) = PFN_cuMemGetAllocationPropertiesFromHandle_v10020;
                cuMemImportFromShareableHandle as cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle_v1, os_handle: *mut c_void, sh_handle_type: CUmemAllocationHandleType) = PFN_cuMemImportFromShareableHandle_v10020;
                cuMemMap as cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle_v1, flags: u64) = PFN_cuMemMap_v10020;
                cuMemRelease as cuMemRelease(handle: CUmemGenericAllocationHandle_v1) = PFN_cuMemRelease_v10020;
                cuMemRetainAllocationHandle as cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle_v1, addr: *mut c_void) = PFN_cuMemRetainAllocationHandle_v11000;
                cuMemSetAccess as cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc_v1, count: usize) = PFN_cuMemSetAccess_v10020;
                cuMemUnmap as cuMemUnmap(ptr: CUdeviceptr, size: usize) = PFN_cuMemUnmap_v10020;
            }
            ipc {
                cuIpcCloseMemHandle as cuIpcCloseMemHandle(dptr: CUdeviceptr) = PFN_cuIpcCloseMemHandle_v4010;
                cuIpcGetMemHandle as cuIpcGetMemHandle(p_handle: *mut CUipcMemHandle_v1, dptr: CUdeviceptr) = PFN_cuIpcGetMemHandle_v4010;
                cuIpcOpenMemHandle as cuIpcOpenMemHandle_v2(pdptr: *mut CUdeviceptr, handle: CUipcMemHandle_v1, flags: c_uint) = PFN_cuIpcOpenMemHandle_v11000;
            }
        }
    };
}
