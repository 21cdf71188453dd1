// Which driver calls need a current context? Each runs with no context current, and with another one current, on handles
// of the device's primary context. What a call does not need, a safe layer need not bind.
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>
#include <sys/mman.h>

static CUstream stream;
static CUevent event;
static CUdeviceptr device_memory, async_memory;
static void *pinned;
static char *pageable;

struct Case { const char *name; std::function<CUresult()> run; };

int main() {
  cuInit(0);
  CUdevice device; cuDeviceGet(&device, 0);
  CUcontext primary, other;
  cuDevicePrimaryCtxRetain(&primary, device);
#if CUDA_VERSION >= 13000
  CUctxCreateParams params = {};
  cuCtxCreate(&other, &params, 0, device);
#else
  cuCtxCreate(&other, 0, device);
#endif
  cuCtxSetCurrent(primary);
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  cuMemAlloc(&device_memory, 1 << 20);
  cuMemHostAlloc(&pinned, 1 << 20, 0);
  pageable = (char *)malloc(1 << 20);
  static CUdeviceptr scratch; static CUevent scratch_event; static void *scratch_host; static CUstream scratch_stream;
  static unsigned long long id; static CUstreamCaptureStatus capturing; static size_t bytes, bytes2;
  static char *region = (char *)mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  std::vector<Case> cases = {
    {"cuMemAllocAsync(created stream)", [] { return cuMemAllocAsync(&async_memory, 4096, stream); }},
    {"cuMemcpyHtoDAsync(pinned)", [] { return cuMemcpyHtoDAsync(async_memory, pinned, 1024, stream); }},
    {"cuMemcpyHtoDAsync(pageable)", [] { return cuMemcpyHtoDAsync(async_memory, pageable, 1024, stream); }},
    {"cuMemcpyDtoHAsync(pinned)", [] { return cuMemcpyDtoHAsync(pinned, async_memory, 1024, stream); }},
    {"cuMemcpyDtoHAsync(pageable)", [] { return cuMemcpyDtoHAsync(pageable, async_memory, 1024, stream); }},
    {"cuMemcpyDtoDAsync", [] { return cuMemcpyDtoDAsync(async_memory, device_memory, 1024, stream); }},
    {"cuMemcpyAsync", [] { return cuMemcpyAsync(async_memory, device_memory, 1024, stream); }},
    {"cuMemsetD8Async", [] { return cuMemsetD8Async(async_memory, 0, 1024, stream); }},
    {"cuMemFreeAsync(created stream)", [] { return cuMemFreeAsync(async_memory, stream); }},
    {"cuEventRecord", [] { return cuEventRecord(event, stream); }},
    {"cuStreamWaitEvent", [] { return cuStreamWaitEvent(stream, event, 0); }},
    {"cuEventQuery", [] { return cuEventQuery(event); }},
    {"cuEventSynchronize", [] { return cuEventSynchronize(event); }},
    {"cuStreamQuery", [] { return cuStreamQuery(stream); }},
    {"cuStreamSynchronize", [] { return cuStreamSynchronize(stream); }},
    {"cuStreamGetId(created)", [] { return cuStreamGetId(stream, &id); }},
    {"cuStreamGetId(legacy)", [] { return cuStreamGetId(CU_STREAM_LEGACY, &id); }},
    {"cuStreamGetId(per thread)", [] { return cuStreamGetId(CU_STREAM_PER_THREAD, &id); }},
    {"cuStreamIsCapturing", [] { return cuStreamIsCapturing(stream, &capturing); }},
    {"cuLaunchHostFunc", [] { return cuLaunchHostFunc(stream, [](void *) {}, nullptr); }},
    {"cuStreamWriteValue64", [] { return cuStreamWriteValue64(stream, device_memory, 1, 0); }},
    {"cuStreamWaitValue64", [] { return cuStreamWaitValue64(stream, device_memory, 1, 0); }},
    {"cuStreamSynchronize again", [] { return cuStreamSynchronize(stream); }},
    {"cuEventCreate", [] { return cuEventCreate(&scratch_event, CU_EVENT_DISABLE_TIMING); }},
    {"cuEventDestroy", [] { return cuEventDestroy(scratch_event); }},
    {"cuStreamCreateWithPriority", [] { return cuStreamCreateWithPriority(&scratch_stream, CU_STREAM_NON_BLOCKING, 0); }},
    {"cuStreamDestroy", [] { return cuStreamDestroy(scratch_stream); }},
    {"cuMemAlloc", [] { return cuMemAlloc(&scratch, 4096); }},
    {"cuMemFree(primary's memory)", [] { CUdeviceptr p = scratch; scratch = 0; return cuMemFree(p); }},
    {"cuMemHostAlloc", [] { return cuMemHostAlloc(&scratch_host, 4096, 0); }},
    {"cuMemFreeHost", [] { void *p = scratch_host; scratch_host = nullptr; return cuMemFreeHost(p); }},
    {"cuMemHostRegister", [] { return cuMemHostRegister(region, 1 << 16, 0); }},
    {"cuMemHostRegister(portable)", [] { return cuMemHostRegister(region + (1 << 17), 1 << 16, CU_MEMHOSTREGISTER_PORTABLE); }},
    {"cuMemHostUnregister", [] { return cuMemHostUnregister(region); }},
    {"cuMemHostUnregister(portable)", [] { return cuMemHostUnregister(region + (1 << 17)); }},
    {"cuMemcpyHtoD", [] { return cuMemcpyHtoD(device_memory, pageable, 1024); }},
    {"cuMemcpyDtoH", [] { return cuMemcpyDtoH(pageable, device_memory, 1024); }},
    {"cuMemGetInfo", [] { return cuMemGetInfo(&bytes, &bytes2); }},
    {"cuMemGetAddressRange", [] { return cuMemGetAddressRange(&scratch, &bytes, device_memory); }},
    {"cuPointerGetAttribute", [] { unsigned type; return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device_memory); }},
    {"cuPointerGetAttribute(context)", [] { CUcontext c; return cuPointerGetAttribute(&c, CU_POINTER_ATTRIBUTE_CONTEXT, device_memory); }},
    {"cuMemHostGetFlags", [] { unsigned f; return cuMemHostGetFlags(&f, pinned); }},
    {"cuMemHostGetDevicePointer", [] { return cuMemHostGetDevicePointer(&scratch, pinned, 0); }},
    {"cuCtxSynchronize", [] { return cuCtxSynchronize(); }},
  };
  const char *names[] = {"primary", "none", "other"};
  CUcontext contexts[] = {primary, nullptr, other};
  printf("%-34s %8s %8s %8s\n", "call", "primary", "none", "other");
  std::vector<std::vector<int>> codes(cases.size());
  for (int c = 0; c < 3; c++) {
    cuCtxSetCurrent(primary); cuMemAlloc(&scratch, 4096); cuMemHostAlloc(&scratch_host, 4096, 0);
    cuEventCreate(&scratch_event, CU_EVENT_DISABLE_TIMING); cuStreamCreate(&scratch_stream, CU_STREAM_NON_BLOCKING);
    cuMemHostRegister(region, 1 << 16, 0); cuMemHostRegister(region + (1 << 17), 1 << 16, 1); cuMemHostUnregister(region); cuMemHostUnregister(region + (1 << 17));
    cuCtxSetCurrent(contexts[c]);
    for (size_t i = 0; i < cases.size(); i++) codes[i].push_back(cases[i].run());
    CUcontext now; cuCtxGetCurrent(&now);
    if (now != contexts[c]) printf("current context changed under %s\n", names[c]);
  }
  for (size_t i = 0; i < cases.size(); i++) printf("%-34s %8d %8d %8d\n", cases[i].name, codes[i][0], codes[i][1], codes[i][2]);
  // Whose is memory that was allocated on a stream of another context than the current one?
  cuCtxSetCurrent(other);
  CUdeviceptr p = 0; CUcontext owner = nullptr;
  CUresult r = cuMemAllocAsync(&p, 4096, stream);
  cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p);
  printf("async allocation on primary's stream while other is current: code %d, owner %s\n", r, owner == primary ? "primary" : owner == other ? "other" : "null");
  CUevent e; cuEventCreate(&e, 0);
  printf("record of other's event on primary's stream: %d\n", cuEventRecord(e, stream));
  cuCtxSetCurrent(primary);
  printf("record of other's event on primary's stream, primary current: %d; wait for it: %d\n", cuEventRecord(e, stream), cuStreamWaitEvent(stream, e, 0));
  int a;
  cuDeviceGetAttribute(&a, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, device); printf("READ_ONLY_HOST_REGISTER_SUPPORTED %d\n", a);
  cuDeviceGetAttribute(&a, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device); printf("PAGEABLE_MEMORY_ACCESS %d\n", a);
  cuDeviceGetAttribute(&a, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, device); printf("CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM %d\n", a);
}
