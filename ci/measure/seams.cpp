// Questions at the seams between calls: what a free does inside a capture, what registrations that share a page do, how a
// copy treats memory that is registered in pieces, and which releases need a current context.
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <chrono>
#include <sys/mman.h>

static CUcontext ctx;
static const char *modes[] = {"global", "thread-local", "relaxed"};

static void free_in_capture(int mode) {
  CUstream s; cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
  CUdeviceptr p = 0; cuMemAllocAsync(&p, 4096, s); cuStreamSynchronize(s);
  CUresult begin = cuStreamBeginCapture(s, (CUstreamCaptureMode)mode);
  CUresult freed = cuMemFreeAsync(p, s);
  CUstreamCaptureStatus status; cuStreamIsCapturing(s, &status);
  CUgraph g = nullptr; CUresult end = cuStreamEndCapture(s, &g);
  printf("free of outside memory in %s capture: begin %d, free %d, status %d, end %d, graph %s\n", modes[mode], begin, freed, status, end, g ? "yes" : "no");
  if (g) { CUgraphExec x; printf("  instantiate %d\n", cuGraphInstantiateWithFlags(&x, g, 0)); }
  printf("  free again after the capture: %d\n", cuMemFreeAsync(p, s));
}

static void alloc_in_capture() {
  CUstream s; cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
  cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUdeviceptr p = 0; CUresult a = cuMemAllocAsync(&p, 4096, s);
  char host[64] = {};
  CUresult c = cuMemcpyHtoDAsync(p, host, 64, s);
  CUresult w = cuStreamSynchronize(s);
  CUstreamCaptureStatus status; cuStreamIsCapturing(s, &status);
  CUresult f = cuMemFreeAsync(p, s);
  CUgraph g = nullptr; CUresult end = cuStreamEndCapture(s, &g);
  CUresult f2 = cuMemFreeAsync(p, s), f3 = cuMemFree(p);
  printf("alloc in capture %d, copy from pageable %d, synchronize %d, status %d, free in capture %d, end %d, free after %d, cuMemFree after %d\n", a, c, w, status, f, end, f2, f3);
}

static void status_after(const char *what, CUresult (*call)(CUstream)) {
  CUstream s; cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
  cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUresult r = call(s);
  CUstreamCaptureStatus status; CUresult is = cuStreamIsCapturing(s, &status);
  CUgraph g = nullptr; CUresult end = cuStreamEndCapture(s, &g);
  printf("%s on a capturing stream: %d, then IsCapturing %d status %d, end %d\n", what, r, is, status, end);
}

int main() {
  setvbuf(stdout, nullptr, _IONBF, 0);
  cuInit(0); CUdevice d; cuDeviceGet(&d, 0); cuDevicePrimaryCtxRetain(&ctx, d); cuCtxSetCurrent(ctx);
  for (int m = 0; m < 3; m++) free_in_capture(m);
  alloc_in_capture();
  status_after("cuStreamSynchronize", [](CUstream s) { return cuStreamSynchronize(s); });
  status_after("cuStreamQuery", [](CUstream s) { return cuStreamQuery(s); });
  status_after("cuMemcpyHtoDAsync pageable", [](CUstream s) { static char h[64]; static CUdeviceptr p; if (!p) { CUstreamCaptureMode m = CU_STREAM_CAPTURE_MODE_RELAXED; cuThreadExchangeStreamCaptureMode(&m); cuMemAlloc(&p, 64); cuThreadExchangeStreamCaptureMode(&m); } return cuMemcpyHtoDAsync(p, h, 64, s); });
  status_after("cuMemcpyDtoHAsync pageable", [](CUstream s) { static char h[64]; static CUdeviceptr p; if (!p) { CUstreamCaptureMode m = CU_STREAM_CAPTURE_MODE_RELAXED; cuThreadExchangeStreamCaptureMode(&m); cuMemAlloc(&p, 64); cuThreadExchangeStreamCaptureMode(&m); } return cuMemcpyDtoHAsync(h, p, 64, s); });
  status_after("cuStreamWaitEvent of an outside event", [](CUstream s) { CUstream o; cuStreamCreate(&o, 1); CUevent e; cuEventCreate(&e, 2); cuEventRecord(e, o); return cuStreamWaitEvent(s, e, 0); });
  status_after("cuStreamIsCapturing(legacy) meanwhile", [](CUstream) { CUstreamCaptureStatus st; return cuStreamIsCapturing(CU_STREAM_LEGACY, &st); });
  status_after("cuStreamGetId", [](CUstream s) { unsigned long long id; return cuStreamGetId(s, &id); });
  status_after("cuStreamDestroy", [](CUstream) { CUstream o; cuStreamCreate(&o, 1); return cuStreamDestroy(o); });
  {
    CUstream s; cuStreamCreate(&s, 1); CUevent e; cuEventCreate(&e, 2);
    cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    CUresult rec = cuEventRecord(e, s), q = cuEventQuery(e), w = cuEventSynchronize(e);
    CUstreamCaptureStatus status; cuStreamIsCapturing(s, &status);
    CUgraph g; CUresult end = cuStreamEndCapture(s, &g);
    printf("event recorded in capture: record %d, query %d, synchronize %d, status %d, end %d, query after %d\n", rec, q, w, status, end, cuEventQuery(e));
  }
  {
    CUstream s; cuStreamCreate(&s, 1);
    cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    CUresult dst = cuStreamDestroy(s);
    printf("cuStreamDestroy of the capturing stream: %d\n", dst);
  }
  const size_t page = 4096;
  char *m = (char *)mmap(0, 64 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  printf("two ranges on one page, no common byte: %d then %d\n", cuMemHostRegister(m, 1000, 0), cuMemHostRegister(m + 2000, 1000, 0));
  CUdeviceptr base; size_t size;
  printf("  address range of the first: %d", cuMemGetAddressRange(&base, &size, (CUdeviceptr)m)); printf(" base+%lld size %zu\n", (long long)(base - (CUdeviceptr)m), size);
  printf("  unregister first %d, second %d\n", cuMemHostUnregister(m), cuMemHostUnregister(m + 2000));
  printf("ends on a page, next starts on the same page: %d then %d\n", cuMemHostRegister(m, page + 100, 0), cuMemHostRegister(m + page + 200, page, 0));
  printf("  unregister %d %d\n", cuMemHostUnregister(m), cuMemHostUnregister(m + page + 200));
  printf("adjacent pages: %d %d\n", cuMemHostRegister(m, 2 * page, 0), cuMemHostRegister(m + 2 * page, 2 * page, 0));
  CUdeviceptr dev; cuMemAlloc(&dev, 64 * page);
  CUstream s; cuStreamCreate(&s, 1);
  for (size_t i = 0; i < 64 * page; i++) m[i] = (char)(i * 31 + i / page);
  char *back = (char *)malloc(64 * page);
  auto try_copy = [&](const char *what, char *from, size_t n) {
    memset(back, 0, 64 * page);
    CUresult c = cuMemcpyHtoDAsync(dev, from, n, s), w = cuStreamSynchronize(s), r = cuMemcpyDtoH(back, dev, n);
    CUresult c2 = cuMemcpyDtoHAsync(from, dev, n, s), w2 = cuStreamSynchronize(s);
    printf("copy %s: HtoDAsync %d wait %d back %d bytes %s; DtoHAsync %d wait %d\n", what, c, w, r, memcmp(back, from, n) ? "DIFFER" : "same", c2, w2);
  };
  try_copy("inside one registration", m, 2 * page);
  try_copy("across two adjacent registrations", m, 4 * page);
  try_copy("from registered into pageable", m + 3 * page, 4 * page);
  try_copy("from pageable, around a registration", m + 8 * page, 4 * page);
  printf("register over a whole registered inner range: %d\n", cuMemHostRegister(m, 8 * page, 0));
  printf("register gap-free superset end: %d\n", cuMemHostRegister(m + 3 * page, 4 * page, 0));
  printf("unregister with interior pointer %d\n", cuMemHostUnregister(m + page));
  cuCtxSetCurrent(nullptr);
  printf("no current context: unregister %d\n", cuMemHostUnregister(m));
  cuCtxSetCurrent(ctx);
  printf("unregister again %d; second %d\n", cuMemHostUnregister(m), cuMemHostUnregister(m + 2 * page));
  CUstream t; cuStreamCreate(&t, 1); CUevent e; cuEventCreate(&e, 2);
  cuCtxSetCurrent(nullptr);
  printf("no current context: stream destroy %d, event destroy %d\n", cuStreamDestroy(t), cuEventDestroy(e));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  printf("no current context: exchange capture mode %d, is capturing legacy ", cuThreadExchangeStreamCaptureMode(&mode));
  CUstreamCaptureStatus st; printf("%d\n", cuStreamIsCapturing(CU_STREAM_LEGACY, &st));
  cuCtxSetCurrent(ctx);
  // Costs that decide which checks a hot path can afford.
  auto cost = [&](const char *what, auto call) {
    const int n = 20000; for (int i = 0; i < 1000; i++) call();
    auto a = std::chrono::steady_clock::now(); for (int i = 0; i < n; i++) call(); auto b = std::chrono::steady_clock::now();
    printf("cost %-32s %8.1f ns\n", what, std::chrono::duration<double, std::nano>(b - a).count() / n);
  };
  CUcontext cur; unsigned long long id;
  cost("cuCtxGetCurrent", [&] { cuCtxGetCurrent(&cur); });
  cost("cuStreamIsCapturing", [&] { cuStreamIsCapturing(s, &st); });
  cost("cuThreadExchangeStreamCaptureMode", [&] { cuThreadExchangeStreamCaptureMode(&mode); });
  cost("cuStreamGetId", [&] { cuStreamGetId(s, &id); });
  cost("cuCtxPushCurrent + Pop", [&] { cuCtxPushCurrent(ctx); cuCtxPopCurrent(&cur); });
  cost("cuStreamSynchronize idle", [&] { cuStreamSynchronize(s); });
  cost("cuMemAllocAsync + FreeAsync", [&] { CUdeviceptr p; cuMemAllocAsync(&p, 1024, s); cuMemFreeAsync(p, s); });
  cost("1 KiB HtoDAsync pageable + sync", [&] { cuMemcpyHtoDAsync(dev, back, 1024, s); cuStreamSynchronize(s); });
  cost("1 KiB HtoD pageable", [&] { cuMemcpyHtoD(dev, back, 1024); });
}
