/* As much of CUDA's runtime as libc10_cuda.so needs, over the functions of libcuda.so.1: for the simulator, which the real runtime
 * does not start on. */

#define _GNU_SOURCE
#include <cuda_runtime_api.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;
typedef unsigned long long address;

static __thread int current_device;
static __thread cudaError_t last_error;
static handle contexts[64];

static void *driver(const char *name)
{
    static void *library;
    if (library == NULL) {
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        int (*init)(unsigned) = library == NULL ? NULL : (int (*)(unsigned))dlsym(library, "cuInit");
        if (init == NULL || init(0) != 0)
            abort();
    }
    return dlsym(library, name);
}

static cudaError_t keep(int result)
{
    if (result != 0 && result != cudaErrorNotReady)
        last_error = (cudaError_t)result;
    return (cudaError_t)result;
}

static void bind(int device)
{
    int (*retain)(handle *, int) = (int (*)(handle *, int))driver("cuDevicePrimaryCtxRetain");
    int (*set)(handle) = (int (*)(handle))driver("cuCtxSetCurrent");
    if (contexts[device] == NULL)
        retain(&contexts[device], device);
    set(contexts[device]);
}

#define CALL(name, types, ...) keep((bind(current_device), (int(*) types)driver(name)) (__VA_ARGS__))

cudaError_t cudaGetDeviceCount(int *count) { return keep(((int (*)(int *))driver("cuDeviceGetCount"))(count)); }
cudaError_t cudaGetDevice(int *device) { *device = current_device; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { current_device = device; bind(device); return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return CALL("cuCtxSynchronize", (void)); }
cudaError_t cudaDriverGetVersion(int *version) { return keep(((int (*)(int *))driver("cuDriverGetVersion"))(version)); }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    return CALL("cuDeviceCanAccessPeer", (int *, int, int), can, device, peer);
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    bind(peer);
    const cudaError_t done = CALL("cuCtxEnablePeerAccess", (handle, unsigned), contexts[peer], flags);
    return done;
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) { return CALL("cuCtxDisablePeerAccess", (handle), contexts[peer]); }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    memset(properties, 0, sizeof *properties);
    /* PyTorch divides by some of these before it launches a kernel, which does nothing here. */
    properties->major = 9;
    properties->multiProcessorCount = 132;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->sharedMemPerBlock = 48 << 10;
    for (int axis = 0; axis < 3; axis++) {
        properties->maxThreadsDim[axis] = axis < 2 ? 1024 : 64;
        properties->maxGridSize[axis] = axis < 1 ? 2147483647 : 65535;
    }
    return keep(((int (*)(size_t *, int))driver("cuDeviceTotalMem_v2"))(&properties->totalGlobalMem, device));
}
cudaError_t cudaGetLastError(void) { cudaError_t last = last_error; last_error = cudaSuccess; return last; }
const char *cudaGetErrorString(cudaError_t error) { (void)error; return "an error of the simulated driver"; }
const char *cudaGetErrorName(cudaError_t error) { (void)error; return "cudaError"; }
/* libc10_cuda.so wants all functions that it might call. */
static int refuse(void) { return cudaErrorNotSupported; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status)
{
    (void)version; (void)flags;
    *function = driver(name);
    if (*function == NULL)
        *function = (void *)refuse;
    if (status != NULL)
        *status = *function == NULL ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    address found = 0;
    const cudaError_t done = CALL("cuMemAlloc_v2", (address *, size_t), &found, bytes);
    *pointer = (void *)found;
    return done;
}
cudaError_t cudaFree(void *pointer) { return CALL("cuMemFree_v2", (address), (address)pointer); }
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    return CALL("cuMemHostAlloc", (void **, size_t, unsigned), pointer, bytes, flags);
}
cudaError_t cudaFreeHost(void *pointer) { return CALL("cuMemFreeHost", (void *), pointer); }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    enum { MEMORY_TYPE = 2, DEVICE_ORDINAL = 9, HOST = 1 };
    int type = 0, device = 0;
    memset(attributes, 0, sizeof *attributes);
    if (CALL("cuPointerGetAttribute", (void *, int, address), &type, MEMORY_TYPE, (address)pointer) != cudaSuccess) {
        /* Nobody's memory is no error here. */
        last_error = cudaSuccess;
        return cudaSuccess;
    }
    attributes->type = type == HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    const cudaError_t done = CALL("cuPointerGetAttribute", (void *, int, address), &device, DEVICE_ORDINAL, (address)pointer);
    attributes->device = device;
    return done;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { return CALL("cuMemGetInfo_v2", (size_t *, size_t *), free, total); }
cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    return CALL("cuMemcpyAsync", (address, address, size_t, cudaStream_t), (address)target, (address)source, bytes, stream);
}
cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind)
{
    const cudaError_t done = cudaMemcpyAsync(target, source, bytes, kind, NULL);
    return done == cudaSuccess ? CALL("cuStreamSynchronize", (cudaStream_t), NULL) : done;
}
cudaError_t cudaMemcpyPeerAsync(void *target, int to, const void *source, int from, size_t bytes, cudaStream_t stream)
{
    bind(to); bind(from);
    return CALL("cuMemcpyPeerAsync", (address, handle, address, handle, size_t, cudaStream_t), (address)target, contexts[to],
                (address)source, contexts[from], bytes, stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    return CALL("cuStreamCreateWithPriority", (cudaStream_t *, unsigned, int), stream, flags, priority);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return CALL("cuStreamQuery", (cudaStream_t), stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return CALL("cuStreamSynchronize", (cudaStream_t), stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    return CALL("cuStreamWaitEvent", (cudaStream_t, cudaEvent_t, unsigned), stream, event, flags);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    return CALL("cuStreamIsCapturing", (cudaStream_t, int *), stream, (int *)status);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return CALL("cuStreamBeginCapture_v2", (cudaStream_t, int), stream, mode);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    return CALL("cuStreamEndCapture", (cudaStream_t, cudaGraph_t *), stream, graph);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    return CALL("cuThreadExchangeStreamCaptureMode", (int *), (int *)mode);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    return CALL("cuEventCreate", (cudaEvent_t *, unsigned), event, flags);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return CALL("cuEventDestroy_v2", (cudaEvent_t), event); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return CALL("cuEventQuery", (cudaEvent_t), event); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return CALL("cuEventRecord", (cudaEvent_t, cudaStream_t), event, stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return CALL("cuEventSynchronize", (cudaEvent_t), event); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *exported, void *pointer)
{
    return CALL("cuIpcGetMemHandle", (cudaIpcMemHandle_t *, address), exported, (address)pointer);
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *exported, cudaEvent_t event)
{
    return CALL("cuIpcGetEventHandle", (cudaIpcEventHandle_t *, cudaEvent_t), exported, event);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t exported)
{
    return CALL("cuIpcOpenEventHandle", (cudaEvent_t *, cudaIpcEventHandle_t), event, exported);
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count)
{
    return CALL("cuStreamGetCaptureInfo_v3",
                (cudaStream_t, int *, unsigned long long *, cudaGraph_t *, const cudaGraphNode_t **, const cudaGraphEdgeData **,
                 size_t *),
                stream, (int *)status, id, graph, nodes, edges, count);
}
#else
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, size_t *count)
{
    return CALL("cuStreamGetCaptureInfo_v2",
                (cudaStream_t, int *, unsigned long long *, cudaGraph_t *, const cudaGraphNode_t **, size_t *), stream,
                (int *)status, id, graph, nodes, count);
}
#endif
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags)
{
    return CALL("cuGraphInstantiateWithFlags", (cudaGraphExec_t *, cudaGraph_t, unsigned long long), made, graph, flags);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags)
{
    return cudaGraphInstantiateWithFlags(made, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    return CALL("cuGraphLaunch", (cudaGraphExec_t, cudaStream_t), graph, stream);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return CALL("cuGraphDestroy", (cudaGraph_t), graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return CALL("cuGraphExecDestroy", (cudaGraphExec_t), graph); }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    return CALL("cuGraphGetNodes", (cudaGraph_t, cudaGraphNode_t *, size_t *), graph, nodes, count);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    (void)flags;
    return cudaEventRecord(event, stream);
}
