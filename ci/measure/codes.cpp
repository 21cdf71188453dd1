// Topic 9, first half: result codes of single calls in situations that the simulated driver has to reproduce.
// Every group runs in children, so a crash or a hang is one row and the rest goes on. `codes GROUP...`; no group: all.
#include <map>

#include "measure.h"
using namespace m;
#define STEP(call, sit) st.push_back({call, sit, [&](std::string& n) -> int { (void)n;
#define END \
  }         \
  });
using Steps = std::vector<Step>;
// Set-up that fork must not inherit is done lazily in the child: these are filled by setup functions.
static CUdeviceptr D;
static CUstream S;
static char* H;
static volatile uint64_t* W;
static void std_setup() {
  init();
  CK(cuMemAlloc(&D, 4 << 20));
  S = stream();
  void* h;
  CK(cuMemHostAlloc(&h, 1 << 20, 0));
  H = (char*)h;
  W = pinned_words();
}
static char* pages(size_t n, int prot = PROT_READ | PROT_WRITE) { return (char*)mmap(0, n, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
static const size_t K = 1 << 20, P2 = 2 << 20;

static void g_before() {  // no cuInit at all
  Steps st;
  static CUdevice d;
  static CUcontext c;
  static int v;
  static CUdeviceptr p;
  static const char* sx;
  static size_t a, b;
  static CUstream s;
  static void* h;
  static char buf[64];
  STEP("cuDriverGetVersion", "before cuInit")
    return cuDriverGetVersion(&v);
  END
  STEP("cuGetErrorName", "before cuInit")
    int r = cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &sx);
    n = sx ? sx : "null";
    return r;
  END
  STEP("cuGetErrorString", "before cuInit")
    int r = cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &sx);
    n = sx ? sx : "null";
    return r;
  END
  STEP("cuGetErrorName", "unknown code 12345")
    sx = "unset";
    int r = cuGetErrorName((CUresult)12345, &sx);
    n = sx ? sx : "null";
    return r;
  END
  STEP("cuDeviceGetCount", "before cuInit")
    return cuDeviceGetCount(&v);
  END
  STEP("cuDeviceGet", "before cuInit")
    return cuDeviceGet(&d, 0);
  END
  STEP("cuCtxGetCurrent", "before cuInit")
    return cuCtxGetCurrent(&c);
  END
  STEP("cuCtxSetCurrent", "before cuInit, null")
    return cuCtxSetCurrent(nullptr);
  END
  STEP("cuCtxSynchronize", "before cuInit")
    return cuCtxSynchronize();
  END
  STEP("cuDevicePrimaryCtxRetain", "before cuInit")
    return cuDevicePrimaryCtxRetain(&c, 0);
  END
  STEP("cuMemAlloc", "before cuInit")
    return cuMemAlloc(&p, 4096);
  END
  STEP("cuMemAlloc", "before cuInit, null pointer")
    return cuMemAlloc(nullptr, 0);
  END
  STEP("cuMemFree", "before cuInit, null")
    return cuMemFree(0);
  END
  STEP("cuMemHostAlloc", "before cuInit")
    return cuMemHostAlloc(&h, 4096, 0);
  END
  STEP("cuMemHostRegister", "before cuInit")
    return cuMemHostRegister(pages(4096), 4096, 0);
  END
  STEP("cuMemGetInfo", "before cuInit")
    return cuMemGetInfo(&a, &b);
  END
  STEP("cuPointerGetAttribute", "before cuInit, MEMORY_TYPE")
    return cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)buf);
  END
  STEP("cuStreamCreate", "before cuInit")
    return cuStreamCreate(&s, 1);
  END
  STEP("cuStreamQuery", "before cuInit, stream 0")
    return cuStreamQuery(0);
  END
  STEP("cuThreadExchangeStreamCaptureMode", "before cuInit")
    CUstreamCaptureMode m0 = CU_STREAM_CAPTURE_MODE_RELAXED;
    return cuThreadExchangeStreamCaptureMode(&m0);
  END
  STEP("cuInit", "flags 1")
    return cuInit(1);
  END
  STEP("cuInit", "flags 0")
    return cuInit(0);
  END
  STEP("cuInit", "second time")
    return cuInit(0);
  END
  STEP("cuDeviceGet", "ordinal 99")
    return cuDeviceGet(&d, 99);
  END
  STEP("cuDeviceGet", "ordinal -1")
    return cuDeviceGet(&d, -1);
  END
  STEP("cuDeviceGetAttribute", "attribute 9999")
    return cuDeviceGetAttribute(&v, (CUdevice_attribute)9999, 0);
  END
  STEP("cuDeviceGetAttribute", "device 99")
    return cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99);
  END
  run_steps("init", [] {}, st);
}

static void g_noctx() {  // cuInit, but no current context on the thread
  Steps st;
  static CUdevice d;
  static CUcontext c = (CUcontext)1;
  static int v;
  static CUdeviceptr p;
  static size_t a, b;
  static CUstream s;
  static CUevent e;
  static void* h;
  static char buf[64];
  static CUmemGenericAllocationHandle mh;
  static CUmemoryPool mp;
  static unsigned long long id;
#define NC(call, expr)                                        \
  STEP(call, "no current context (never one in the process)") \
    return expr;                                              \
  END
  NC("cuCtxGetCurrent", cuCtxGetCurrent(&c))
  NC("cuCtxGetDevice", cuCtxGetDevice(&d)) NC("cuCtxSynchronize", cuCtxSynchronize()) NC("cuCtxPopCurrent", cuCtxPopCurrent(&c))
      NC("cuCtxSetCurrent(null)", cuCtxSetCurrent(nullptr)) NC("cuCtxPushCurrent(null)", cuCtxPushCurrent(nullptr))
          NC("cuCtxGetId(null)", cuCtxGetId(nullptr, &id)) NC("cuMemAlloc", cuMemAlloc(&p, 4096))
              NC("cuMemAlloc(null, 16)", cuMemAlloc(nullptr, 16)) NC("cuMemFree(null)", cuMemFree(0))
                  NC("cuMemFree(unknown)", cuMemFree(0x7f0000000000)) NC("cuMemAllocAsync", cuMemAllocAsync(&p, 4096, 0))
                      NC("cuMemFreeAsync(null)", cuMemFreeAsync(0, 0)) NC("cuMemHostAlloc", cuMemHostAlloc(&h, 4096, 0)) NC(
                          "cuMemFreeHost(null)", cuMemFreeHost(nullptr)) NC("cuMemHostRegister", cuMemHostRegister(pages(4096), 4096, 0))
                          NC("cuMemHostUnregister(unknown)", cuMemHostUnregister(buf)) NC("cuMemGetInfo", cuMemGetInfo(&a, &b))
                              NC("cuMemcpyHtoD(0 bytes)", cuMemcpyHtoD(0, buf, 0)) NC("cuMemcpyHtoD", cuMemcpyHtoD(0x7f0000000000, buf, 16))
                                  NC("cuPointerGetAttribute(MEMORY_TYPE, pageable)",
                                     cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)buf))
                                      NC("cuMemGetAddressRange(unknown)", cuMemGetAddressRange(&p, &a, 0x7f0000000000)) NC(
                                          "cuMemHostGetFlags(unknown)", cuMemHostGetFlags((unsigned*)&v, buf))
                                          NC("cuMemHostGetDevicePointer(unknown)", cuMemHostGetDevicePointer(&p, buf, 0)) NC(
                                              "cuStreamCreate", cuStreamCreate(&s, 1)) NC("cuStreamQuery(0)", cuStreamQuery(0))
                                              NC("cuStreamQuery(1)", cuStreamQuery(CU_STREAM_LEGACY)) NC(
                                                  "cuStreamQuery(2)", cuStreamQuery(CU_STREAM_PER_THREAD))
                                                  NC("cuStreamSynchronize(0)", cuStreamSynchronize(0)) NC(
                                                      "cuStreamGetId(0)", cuStreamGetId(0, &id)) NC("cuEventCreate", cuEventCreate(&e, 2))
                                                      NC("cuStreamIsCapturing(0)", cuStreamIsCapturing(0, (CUstreamCaptureStatus*)&v))
                                                          NC("cuMemAddressReserve", cuMemAddressReserve(&p, P2, 0, 0, 0))
                                                              STEP("cuMemCreate", "no current context (never one in the process)")
                                                                  CUmemAllocationProp pr{};
  pr.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  pr.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return cuMemCreate(&mh, P2, &pr, 0);
END
STEP("cuMemPoolCreate", "no current context (never one in the process)")
  CUmemPoolProps pp{};
  pp.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pp.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return cuMemPoolCreate(&mp, &pp);
END
NC("cuDeviceGetDefaultMemPool", cuDeviceGetDefaultMemPool(&mp, 0))
NC("cuDevicePrimaryCtxRelease (not retained)", cuDevicePrimaryCtxRelease(0))
    NC("cuDevicePrimaryCtxReset (not retained)", cuDevicePrimaryCtxReset(0))
        STEP("cuThreadExchangeStreamCaptureMode",
             "no current context (never one in the process)") CUstreamCaptureMode m0 = CU_STREAM_CAPTURE_MODE_RELAXED;
int r = cuThreadExchangeStreamCaptureMode(&m0);
n = fmt("old mode %d", (int)m0);
return r;
END
STEP("cuThreadExchangeStreamCaptureMode", "mode 7")
  CUstreamCaptureMode m0 = (CUstreamCaptureMode)7;
  return cuThreadExchangeStreamCaptureMode(&m0);
END
run_steps("noctx", [] { cuInit(0); }, st);
// The process has a context, this thread has none.
Steps s2;
#define N2(call, expr)                                                                            \
  s2.push_back({call, "no current context (another thread has one)", [&](std::string& n) -> int { \
                  (void)n;                                                                        \
                  return expr;                                                                    \
                }});
static CUevent ev;
static CUdeviceptr d2;
static void* h2;
N2("cuMemAlloc", cuMemAlloc(&p, 4096)) N2("cuMemFree(valid)", cuMemFree(d2)) N2("cuMemFreeHost(valid)", cuMemFreeHost(h2)) N2("cuStreamQuery(valid)", cuStreamQuery(S)) N2("cuStreamSynchronize(valid)", cuStreamSynchronize(S)) N2("cuEventRecord(valid, valid)", cuEventRecord(ev, S)) N2("cuEventQuery(valid)", cuEventQuery(ev)) N2("cuEventSynchronize(valid)", cuEventSynchronize(ev)) N2("cuStreamWaitEvent(valid, valid)", cuStreamWaitEvent(S, ev, 0)) N2("cuStreamGetId(valid)", cuStreamGetId(S, &id)) N2("cuStreamGetCtx(valid)", cuStreamGetCtx(S, &c)) N2("cuStreamQuery(0)", cuStreamQuery(0)) N2("cuMemAllocAsync(valid stream)", cuMemAllocAsync(&p, 4096, S)) N2("cuMemFreeAsync(last pointer, valid stream)", cuMemFreeAsync(p, S)) N2("cuMemcpyHtoDAsync(valid stream)", cuMemcpyHtoDAsync(D, H, 16, S)) N2("cuMemcpyHtoD", cuMemcpyHtoD(D, buf, 16)) N2("cuStreamWriteValue64(valid stream)", cuStreamWriteValue64(S, D, 1, 0)) N2("cuPointerGetAttribute(MEMORY_TYPE, device)", cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, D)) N2("cuMemGetAddressRange(device)", cuMemGetAddressRange(&p, &a, D)) N2("cuMemHostRegister", cuMemHostRegister(pages(4096), 4096, 0)) N2("cuMemHostAlloc", cuMemHostAlloc(&h, 4096, 0)) N2("cuMemGetInfo", cuMemGetInfo(&a, &b)) N2("cuLaunchKernel(valid stream)", launch(k_empty, S)) N2("cuLaunchHostFunc(valid stream)", cuLaunchHostFunc(S, [](void*) {}, nullptr)) N2("cuEventDestroy(valid)", cuEventDestroy(ev)) N2("cuStreamDestroy(valid)", cuStreamDestroy(S)) N2("cuStreamBeginCapture(0)", cuStreamBeginCapture(0, CU_STREAM_CAPTURE_MODE_RELAXED))
  run_steps("noctx", [] { std_setup(); ev = event(); cuMemAlloc(&d2, 4096); cuMemHostAlloc(&h2, 4096, 0); cuMemAllocAsync(&p, 4096, S); cuCtxSynchronize(); CUcontext x; cuCtxPopCurrent(&x); }, s2, false);
}

static void g_host() {  // registration and pinned memory, device-free addresses
  Steps st;
  static char* q;
  static unsigned f;
  static CUdeviceptr dp;
  static void* h;
  STEP("cuMemHostRegister", "page-aligned, touched")
    q = pages(16 << 20);
    memset(q, 1, 16 << 20);
    return cuMemHostRegister(q, K, 0);
  END
  STEP("cuMemHostRegister", "the same range again")
    return cuMemHostRegister(q, K, 0);
  END
  STEP("cuMemHostRegister", "overlap: second half and beyond")
    return cuMemHostRegister(q + K / 2, K, 0);
  END
  STEP("cuMemHostRegister", "overlap: inside")
    return cuMemHostRegister(q + 8192, 4096, 0);
  END
  STEP("cuMemHostRegister", "overlap: superset")
    return cuMemHostRegister(q, 2 * K, 0);
  END
  STEP("cuMemHostRegister", "adjacent above")
    return cuMemHostRegister(q + K, 4096, 0);
  END
  STEP("cuMemHostRegister", "bytes 100..200 of a free page")
    return cuMemHostRegister(q + 4 * K + 100, 100, 0);
  END
  STEP("cuMemHostRegister", "bytes 300..400 of that same page")
    return cuMemHostRegister(q + 4 * K + 300, 100, 0);
  END
  STEP("cuMemHostRegister", "bytes 150..250 of that same page (byte overlap)")
    return cuMemHostRegister(q + 4 * K + 150, 100, 0);
  END
  STEP("cuMemHostUnregister", "bytes 100..200: its exact start")
    return cuMemHostUnregister(q + 4 * K + 100);
  END
  STEP("cuMemHostUnregister", "bytes 300..400: the start of the page")
    return cuMemHostUnregister(q + 4 * K);
  END
  STEP("cuMemHostUnregister", "bytes 300..400: its exact start")
    return cuMemHostUnregister(q + 4 * K + 300);
  END
  STEP("cuMemHostRegister", "size 0")
    return cuMemHostRegister(q + 6 * K, 0, 0);
  END
  STEP("cuMemHostRegister", "null pointer")
    return cuMemHostRegister(nullptr, 4096, 0);
  END
  STEP("cuMemHostRegister", "null pointer, size 0")
    return cuMemHostRegister(nullptr, 0, 0);
  END
  STEP("cuMemHostRegister", "unmapped address")
    char* u = pages(8192);
    munmap(u, 8192);
    return cuMemHostRegister(u, 4096, 0);
  END
  STEP("cuMemHostRegister", "PROT_NONE range")
    return cuMemHostRegister(pages(8192, PROT_NONE), 8192, 0);
  END
  STEP("cuMemHostRegister", "read-only constant data, flags 0")
    return cuMemHostRegister((void*)"constant", 4, 0);
  END
  STEP("cuMemHostRegister", "address + 1, size 4096 (two pages)")
    int r = cuMemHostRegister(q + 8 * K + 1, 4096, 0);
    cuMemHostGetDevicePointer(&dp, q + 8 * K + 1, 0);
    n = fmt("device pointer == host pointer: %d", (char*)dp == q + 8 * K + 1);
    return r;
  END
  STEP("cuMemHostGetDevicePointer", "start of the page that a registration at +1 touches")
    return cuMemHostGetDevicePointer(&dp, q + 8 * K, 0);
  END
  STEP("cuMemHostGetDevicePointer", "interior of a registration")
    int r = cuMemHostGetDevicePointer(&dp, q + 777, 0);
    n = fmt("offset kept: %d", (char*)dp == q + 777);
    return r;
  END
  STEP("cuMemHostGetDevicePointer", "registered, flags argument 1")
    return cuMemHostGetDevicePointer(&dp, q, 1);
  END
  STEP("cuMemHostGetDevicePointer", "one past the end of a registration")
    return cuMemHostGetDevicePointer(&dp, q + 3 * K, 0);
  END
  STEP("cuMemHostGetDevicePointer", "pageable")
    return cuMemHostGetDevicePointer(&dp, q + 10 * K, 0);
  END
  STEP("cuMemHostGetDevicePointer", "null")
    return cuMemHostGetDevicePointer(&dp, nullptr, 0);
  END
  STEP("cuMemHostGetDevicePointer", "device pointer")
    return cuMemHostGetDevicePointer(&dp, (void*)D, 0);
  END
  STEP("cuMemHostGetFlags", "registered with flags 0")
    int r = cuMemHostGetFlags(&f, q);
    n = fmt("0x%x", f);
    return r;
  END
  STEP("cuMemHostGetFlags", "interior of a registration")
    int r = cuMemHostGetFlags(&f, q + 777);
    n = fmt("0x%x", f);
    return r;
  END
  STEP("cuMemHostGetFlags", "cuMemHostAlloc with flags 0")
    int r = cuMemHostGetFlags(&f, H);
    n = fmt("0x%x", f);
    return r;
  END
  STEP("cuMemHostGetFlags", "cuMemHostAlloc with flags 7")
    cuMemHostAlloc(&h, 4096, 7);
    int r = cuMemHostGetFlags(&f, h);
    n = fmt("0x%x", f);
    return r;
  END
  STEP("cuMemHostGetFlags", "pageable")
    return cuMemHostGetFlags(&f, q + 10 * K);
  END
  STEP("cuMemHostGetFlags", "null")
    return cuMemHostGetFlags(&f, nullptr);
  END
  STEP("cuMemHostGetFlags", "device pointer")
    return cuMemHostGetFlags(&f, (void*)D);
  END
  STEP("cuMemHostRegister", "size 4097 (not a multiple of the page)")
    int r = cuMemHostRegister(q + 9 * K, 4097, 0);
    n = fmt("unregister %d", (int)cuMemHostUnregister(q + 9 * K));
    return r;
  END
  for (unsigned fl : {1u, 2u, 3u, 4u, 8u, 16u, 32u, 0x80u, 0x80000000u}) {
    st.push_back({"cuMemHostRegister", fmt("flags 0x%x, plain memory", fl), [=](std::string& n) -> int {
                    char* z = pages(4096);
                    memset(z, 1, 4096);
                    int r = cuMemHostRegister(z, 4096, fl);
                    if (!r) {
                      cuMemHostGetFlags(&f, z);
                      n = fmt("cuMemHostGetFlags 0x%x, unregister %d", f, (int)cuMemHostUnregister(z));
                    }
                    return r;
                  }});
  }
  STEP("cuMemHostRegister", "size 1 << 60")
    return cuMemHostRegister(q, 1ull << 60, 0);
  END
  STEP("cuMemHostRegister", "size wraps the address space")
    return cuMemHostRegister(q + 10 * K, ~0ull - 4096, 0);
  END
  STEP("cuMemHostRegister", "memory of cuMemHostAlloc")
    return cuMemHostRegister(H, 4096, 0);
  END
  STEP("cuMemHostRegister", "device pointer")
    return cuMemHostRegister((void*)D, 4096, 0);
  END
  STEP("cuMemHostUnregister", "interior pointer")
    return cuMemHostUnregister(q + 4096);
  END
  STEP("cuMemHostUnregister", "unknown pointer")
    return cuMemHostUnregister(q + 12 * K);
  END
  STEP("cuMemHostUnregister", "null")
    return cuMemHostUnregister(nullptr);
  END
  STEP("cuMemHostUnregister", "memory of cuMemHostAlloc")
    return cuMemHostUnregister(H);
  END
  STEP("cuMemHostUnregister", "device pointer")
    return cuMemHostUnregister((void*)D);
  END
  STEP("cuMemFreeHost", "registered memory")
    return cuMemFreeHost(q);
  END
  STEP("cuMemHostUnregister", "valid")
    return cuMemHostUnregister(q);
  END
  STEP("cuMemHostUnregister", "twice")
    return cuMemHostUnregister(q);
  END
  STEP("cuMemHostUnregister", "valid, a copy from it pending on a stream")
    char* z = pages(K);
    memset(z, 3, K);
    cuMemHostRegister(z, K, 0);
    W[0] = 0;
    spin(S, (void*)W, 1000000000ull);
    cuMemcpyHtoDAsync(D, z, K, S);
    std::thread t([] {
      usleep(150000);
      W[0] = 1;
    });
    auto a = clk::now();
    int r = cuMemHostUnregister(z);
    n = fmt("returned after %.1f ms (kernel ended after 150)", ns_between(a, clk::now()) / 1e6);
    n += fmt(", then cuCtxSynchronize %d", (int)cuCtxSynchronize());
    t.join();
    return r;
  END
  STEP("cuMemHostRegister", "while a kernel runs")
    char* z = pages(K);
    memset(z, 3, K);
    W[0] = 0;
    spin(S, (void*)W, 1000000000ull);
    std::thread t([] {
      usleep(150000);
      W[0] = 1;
    });
    auto a = clk::now();
    int r = cuMemHostRegister(z, K, 0);
    n = fmt("returned after %.1f ms (kernel ended after 150)", ns_between(a, clk::now()) / 1e6);
    t.join();
    cuCtxSynchronize();
    return r;
  END
  STEP("cuMemHostAlloc", "size 0")
    h = (void*)1;
    int r = cuMemHostAlloc(&h, 0, 0);
    n = fmt("pointer %p", h);
    return r;
  END
  STEP("cuMemHostAlloc", "null result pointer")
    return cuMemHostAlloc(nullptr, 4096, 0);
  END
  STEP("cuMemHostAlloc", "flags 8")
    return cuMemHostAlloc(&h, 4096, 8);
  END
  STEP("cuMemHostAlloc", "flags 0x10")
    return cuMemHostAlloc(&h, 4096, 0x10);
  END
  STEP("cuMemHostAlloc", "size 1 << 60")
    h = (void*)1;
    int r = cuMemHostAlloc(&h, 1ull << 60, 0);
    n = h == (void*)1 ? "pointer left alone" : "pointer changed";
    return r;
  END
  STEP("cuMemHostAlloc", "size 1")
    int r = cuMemHostAlloc(&h, 1, 0);
    n = fmt("alignment of the address: %zu", (size_t)h & -(size_t)h);
    return r;
  END
  STEP("cuMemFreeHost", "null")
    return cuMemFreeHost(nullptr);
  END
  STEP("cuMemFreeHost", "unknown pointer")
    return cuMemFreeHost(q + 12 * K);
  END
  STEP("cuMemFreeHost", "interior pointer")
    return cuMemFreeHost(H + 4096);
  END
  STEP("cuMemFreeHost", "device pointer")
    return cuMemFreeHost((void*)D);
  END
  STEP("cuMemFreeHost", "valid")
    return cuMemFreeHost(H);
  END
  STEP("cuMemFreeHost", "twice")
    return cuMemFreeHost(H);
  END
  STEP("cuMemFreeHost", "a kernel pending on another stream")
    cuMemHostAlloc(&h, K, 0);
    W[0] = 0;
    spin(S, (void*)W, 1000000000ull);
    std::thread t([] {
      usleep(150000);
      W[0] = 1;
    });
    auto a = clk::now();
    int r = cuMemFreeHost(h);
    n = fmt("returned after %.1f ms (kernel ended after 150)", ns_between(a, clk::now()) / 1e6);
    t.join();
    cuCtxSynchronize();
    return r;
  END
  run_steps("host", std_setup, st);
}

static void g_device() {  // cuMemAlloc, cuMemAllocAsync and their frees; copies with odd arguments
  Steps st;
  static CUdeviceptr p, p2, base;
  static size_t sz;
  static char buf[8192];
  static CUstream s2;
  static CUmemoryPool pool;
  STEP("cuMemAlloc", "size 0")
    p = 1;
    int r = cuMemAlloc(&p, 0);
    n = fmt("pointer %llx", p);
    return r;
  END
  STEP("cuMemAlloc", "null result pointer")
    return cuMemAlloc(nullptr, 16);
  END
  STEP("cuMemAlloc", "size 1 << 60")
    p = 1;
    int r = cuMemAlloc(&p, 1ull << 60);
    n = fmt("pointer %llx", p);
    return r;
  END
  STEP("cuMemAlloc", "size ~0")
    return cuMemAlloc(&p, ~0ull);
  END
  STEP("cuMemAlloc", "size 200 GiB (more than the card)")
    p = 1;
    int r = cuMemAlloc(&p, 200ull << 30);
    n = fmt("pointer %llx", p);
    return r;
  END
  STEP("cuMemAlloc", "size 1: alignment and range size")
    int r = cuMemAlloc(&p, 1);
    cuMemGetAddressRange(&base, &sz, p);
    n = fmt("range size %zu, address alignment %llu; ", sz, p & -p);
    cuMemAlloc(&p2, 1);
    n += fmt("next at distance %lld", (long long)(p2 - p));
    return r;
  END
  STEP("cuMemFree", "null")
    return cuMemFree(0);
  END
  STEP("cuMemFree", "unknown pointer")
    return cuMemFree(0x7f1234560000);
  END
  STEP("cuMemFree", "small unknown pointer 0x1000")
    return cuMemFree(0x1000);
  END
  STEP("cuMemFree", "interior pointer")
    return cuMemFree(D + 4096);
  END
  STEP("cuMemFree", "pageable host pointer")
    return cuMemFree((CUdeviceptr)buf);
  END
  STEP("cuMemFree", "pinned host pointer")
    return cuMemFree((CUdeviceptr)H);
  END
  STEP("cuMemFree", "valid")
    cuMemAlloc(&p, K);
    return cuMemFree(p);
  END
  STEP("cuMemFree", "twice")
    return cuMemFree(p);
  END
  STEP("cuMemFree", "small pointer (512 B) twice")
    cuMemAlloc(&p, 512);
    cuMemFree(p);
    return cuMemFree(p);
  END
  STEP("cuMemAllocAsync", "size 0")
    p = 1;
    int r = cuMemAllocAsync(&p, 0, S);
    n = fmt("pointer %llx", p);
    return r;
  END
  STEP("cuMemAllocAsync", "null result pointer")
    return cuMemAllocAsync(nullptr, 16, S);
  END
  STEP("cuMemAllocAsync", "size 1 << 60")
    p = 1;
    int r = cuMemAllocAsync(&p, 1ull << 60, S);
    n = fmt("pointer %llx; stream then %d", p, (int)cuStreamQuery(S));
    return r;
  END
  STEP("cuMemAllocAsync", "200 GiB")
    return cuMemAllocAsync(&p, 200ull << 30, S);
  END
  STEP("cuMemAllocAsync", "legacy stream")
    int r = cuMemAllocAsync(&p, 4096, 0);
    n = fmt("free on the legacy stream %d", (int)cuMemFreeAsync(p, 0));
    return r;
  END
  STEP("cuMemAllocAsync", "size 1: alignment")
    int r = cuMemAllocAsync(&p, 1, S);
    cuMemAllocAsync(&p2, 1, S);
    cuStreamSynchronize(S);
    cuMemGetAddressRange(&base, &sz, p);
    n = fmt("range size %zu; next at distance %lld", sz, (long long)(p2 - p));
    return r;
  END
  STEP("cuMemFreeAsync", "null")
    return cuMemFreeAsync(0, S);
  END
  STEP("cuMemFreeAsync", "unknown pointer")
    return cuMemFreeAsync(0x7f1234560000, S);
  END
  STEP("cuMemFreeAsync", "interior pointer")
    cuMemAllocAsync(&p, K, S);
    return cuMemFreeAsync(p + 4096, S);
  END
  STEP("cuMemFreeAsync", "valid")
    return cuMemFreeAsync(p, S);
  END
  STEP("cuMemFreeAsync", "twice, before a synchronisation")
    return cuMemFreeAsync(p, S);
  END
  STEP("cuMemFreeAsync", "twice, after a synchronisation")
    cuStreamSynchronize(S);
    return cuMemFreeAsync(p, S);
  END
  STEP("cuMemFreeAsync", "cuMemAlloc pointer")
    cuMemAlloc(&p, K);
    int r = cuMemFreeAsync(p, S);
    n = seq({{"then cuStreamSynchronize", cuStreamSynchronize(S)}, {"cuMemFree", cuMemFree(p)}});
    return r;
  END
  STEP("cuMemFreeAsync", "pinned host pointer")
    return cuMemFreeAsync((CUdeviceptr)H, S);
  END
  STEP("cuMemFree", "cuMemAllocAsync pointer, stream idle")
    cuMemAllocAsync(&p, K, S);
    cuStreamSynchronize(S);
    return cuMemFree(p);
  END
  STEP("cuMemFree", "cuMemAllocAsync pointer, stream busy 150 ms")
    cuMemAllocAsync(&p, K, S);
    W[0] = 0;
    spin(S, (void*)W, 1000000000ull);
    std::thread t([] {
      usleep(150000);
      W[0] = 1;
    });
    auto a = clk::now();
    int r = cuMemFree(p);
    n = fmt("returned after %.1f ms", ns_between(a, clk::now()) / 1e6);
    t.join();
    cuCtxSynchronize();
    return r;
  END
  STEP("cuMemFree", "cuMemAllocAsync pointer, its own stream busy: is it returned at once?")
    cuMemAllocAsync(&p, K, S);
    cuStreamSynchronize(S);
    CUmemoryPool mp;
    cuDeviceGetDefaultMemPool(&mp, 0);
    cuuint64_t u0 = 0, u1 = 0, u2 = 0;
    cuMemPoolGetAttribute(mp, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &u0);
    W[0] = 0;
    spin(S, (void*)W, 1000000000ull);
    std::thread t([] {
      usleep(150000);
      W[0] = 1;
    });
    auto a = clk::now();
    int r = cuMemFree(p);
    double ms = ns_between(a, clk::now()) / 1e6;
    cuMemPoolGetAttribute(mp, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &u1);
    t.join();
    cuCtxSynchronize();
    cuMemPoolGetAttribute(mp, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &u2);
    n = fmt("returned after %.1f ms; pool's used bytes %llu before, %llu right after, %llu after a synchronisation", ms,
            (unsigned long long)u0, (unsigned long long)u1, (unsigned long long)u2);
    return r;
  END
  for (size_t mb : {4, 16, 64})
    st.push_back({"cuMemcpyHtoDAsync", fmt("pageable source %zu MiB, stream busy 150 ms", mb), [=](std::string& n) -> int {
                    CUdeviceptr q;
                    cuMemAlloc(&q, mb << 20);
                    std::vector<char> src(mb << 20, 1);
                    cuMemcpyHtoDAsync(q, src.data(), mb << 20, S);
                    cuStreamSynchronize(S);
                    W[0] = 0;
                    spin(S, (void*)W, 1000000000ull);
                    std::thread t([] {
                      usleep(150000);
                      W[0] = 1;
                    });
                    auto a = clk::now();
                    int r = cuMemcpyHtoDAsync(q, src.data(), mb << 20, S);
                    n = fmt("returned after %.1f ms", ns_between(a, clk::now()) / 1e6);
                    t.join();
                    cuCtxSynchronize();
                    cuMemFree(q);
                    return r;
                  }});
  STEP("cuMemFree", "cuMemAlloc pointer, a stream busy 150 ms")
    cuMemAlloc(&p, 32 * K);
    W[0] = 0;
    spin(S, (void*)W, 1000000000ull);
    std::thread t([] {
      usleep(150000);
      W[0] = 1;
    });
    auto a = clk::now();
    int r = cuMemFree(p);
    n = fmt("returned after %.1f ms", ns_between(a, clk::now()) / 1e6);
    t.join();
    cuCtxSynchronize();
    return r;
  END
  STEP("cuMemAlloc", "a stream busy 150 ms")
    W[0] = 0;
    spin(S, (void*)W, 1000000000ull);
    std::thread t([] {
      usleep(150000);
      W[0] = 1;
    });
    auto a = clk::now();
    int r = cuMemAlloc(&p, 32 * K);
    n = fmt("returned after %.1f ms", ns_between(a, clk::now()) / 1e6);
    t.join();
    cuCtxSynchronize();
    cuMemFree(p);
    return r;
  END
  STEP("cuMemFreeAsync", "on another stream than the allocation's, not ordered")
    s2 = stream();
    cuMemAllocAsync(&p, K, S);
    return cuMemFreeAsync(p, s2);
  END
  STEP("cuMemAllocFromPoolAsync", "null pool")
    return cuMemAllocFromPoolAsync(&p, 4096, nullptr, S);
  END
  STEP("cuMemAllocFromPoolAsync", "default pool, size 0")
    cuDeviceGetDefaultMemPool(&pool, 0);
    p = 1;
    int r = cuMemAllocFromPoolAsync(&p, 0, pool, S);
    n = fmt("pointer %llx", p);
    return r;
  END
  // Copies.
  STEP("cuMemcpyHtoD", "0 bytes, valid pointers")
    return cuMemcpyHtoD(D, buf, 0);
  END
  STEP("cuMemcpyHtoD", "0 bytes, null pointers")
    return cuMemcpyHtoD(0, nullptr, 0);
  END
  STEP("cuMemcpyHtoD", "0 bytes, unknown device pointer")
    return cuMemcpyHtoD(0x7f1234560000, buf, 0);
  END
  STEP("cuMemcpyHtoD", "16 bytes, null device pointer")
    return cuMemcpyHtoD(0, buf, 16);
  END
  STEP("cuMemcpyHtoD", "16 bytes, null host pointer")
    return cuMemcpyHtoD(D, nullptr, 16);
  END
  STEP("cuMemcpyDtoH", "16 bytes, null host pointer")
    return cuMemcpyDtoH(nullptr, D, 16);
  END
  STEP("cuMemcpyDtoH", "0 bytes, null pointers")
    return cuMemcpyDtoH(nullptr, 0, 0);
  END
  STEP("cuMemcpyDtoD", "0 bytes, null pointers")
    return cuMemcpyDtoD(0, 0, 0);
  END
  STEP("cuMemcpyDtoD", "16 bytes, null source")
    return cuMemcpyDtoD(D, 0, 16);
  END
  STEP("cuMemcpyDtoD", "overlapping ranges")
    return cuMemcpyDtoD(D, D + 8, 64);
  END
  STEP("cuMemcpyHtoDAsync", "0 bytes, null pointers")
    return cuMemcpyHtoDAsync(0, nullptr, 0, S);
  END
  STEP("cuMemcpyHtoDAsync", "16 bytes, null device pointer")
    return cuMemcpyHtoDAsync(0, buf, 16, S);
  END
  STEP("cuMemcpyAsync", "0 bytes, null pointers")
    return cuMemcpyAsync(0, 0, 0, S);
  END
  STEP("cuMemcpyHtoD", "runs 4 KiB past the end of the allocation (4 MiB)")
    static std::vector<char> big((4 << 20) + 4096);
    int r = cuMemcpyHtoD(D, big.data(), big.size());
    n = fmt("then cuCtxSynchronize %d", (int)cuCtxSynchronize());
    return r;
  END
  STEP("cuMemcpyHtoDAsync", "runs 4 KiB past the end of the allocation (4 MiB), pinned source")
    void* h;
    cuMemHostAlloc(&h, (4 << 20) + 4096, 0);
    int r = cuMemcpyHtoDAsync(D, h, (4 << 20) + 4096, S);
    n = fmt("then cuStreamSynchronize %d", (int)cuStreamSynchronize(S));
    return r;
  END
  STEP("cuMemcpyHtoD", "device destination is a pinned host pointer")
    return cuMemcpyHtoD((CUdeviceptr)H, buf, 64);
  END
  STEP("cuMemcpyHtoD", "device destination is a pageable host pointer")
    static char b2[64];
    return cuMemcpyHtoD((CUdeviceptr)b2, buf, 64);
  END
  STEP("cuMemcpyHtoD", "host source is a device pointer")
    return cuMemcpyHtoD(D, (void*)(D + 4096), 64);
  END
  STEP("cuMemcpy", "pageable to pageable")
    static char b3[64];
    return cuMemcpy((CUdeviceptr)b3, (CUdeviceptr)buf, 64);
  END
  STEP("cuMemcpyDtoHAsync", "pageable destination, stream busy 150 ms")
    W[0] = 0;
    spin(S, (void*)W, 1000000000ull);
    std::thread t([] {
      usleep(150000);
      W[0] = 1;
    });
    auto a = clk::now();
    int r = cuMemcpyDtoHAsync(buf, D, 4096, S);
    n = fmt("returned after %.1f ms", ns_between(a, clk::now()) / 1e6);
    t.join();
    cuCtxSynchronize();
    return r;
  END
  STEP("cuMemcpyHtoDAsync", "pageable source 4 KiB, stream busy 150 ms")
    W[0] = 0;
    spin(S, (void*)W, 1000000000ull);
    std::thread t([] {
      usleep(150000);
      W[0] = 1;
    });
    auto a = clk::now();
    int r = cuMemcpyHtoDAsync(D, buf, 4096, S);
    n = fmt("returned after %.1f ms", ns_between(a, clk::now()) / 1e6);
    t.join();
    cuCtxSynchronize();
    return r;
  END
  STEP("cuMemcpyHtoDAsync", "pageable source 1 MiB, stream busy 150 ms")
    static std::vector<char> mb(K);
    W[0] = 0;
    spin(S, (void*)W, 1000000000ull);
    std::thread t([] {
      usleep(150000);
      W[0] = 1;
    });
    auto a = clk::now();
    int r = cuMemcpyHtoDAsync(D, mb.data(), K, S);
    n = fmt("returned after %.1f ms", ns_between(a, clk::now()) / 1e6);
    t.join();
    cuCtxSynchronize();
    return r;
  END
  STEP("cuMemcpyHtoDAsync", "pageable source 64 KiB, stream busy 150 ms")
    static std::vector<char> mb(K);
    W[0] = 0;
    spin(S, (void*)W, 1000000000ull);
    std::thread t([] {
      usleep(150000);
      W[0] = 1;
    });
    auto a = clk::now();
    int r = cuMemcpyHtoDAsync(D, mb.data(), 65536, S);
    n = fmt("returned after %.1f ms", ns_between(a, clk::now()) / 1e6);
    t.join();
    cuCtxSynchronize();
    return r;
  END
  STEP("cuMemsetD8", "0 bytes, null pointer")
    return cuMemsetD8(0, 1, 0);
  END
  STEP("cuMemsetD8", "16 bytes, null pointer")
    return cuMemsetD8(0, 1, 16);
  END
  STEP("cuMemsetD32", "misaligned pointer")
    return cuMemsetD32(D + 2, 1, 4);
  END
  STEP("cuMemsetD8", "pageable host pointer")
    return cuMemsetD8((CUdeviceptr)buf, 1, 16);
  END
  STEP("cuMemGetAddressRange", "unknown pointer")
    return cuMemGetAddressRange(&base, &sz, 0x7f1234560000);
  END
  STEP("cuMemGetAddressRange", "null")
    return cuMemGetAddressRange(&base, &sz, 0);
  END
  STEP("cuMemGetAddressRange", "interior pointer")
    int r = cuMemGetAddressRange(&base, &sz, D + 100);
    n = fmt("base right %d, size %zu of 4 MiB", base == D, sz);
    return r;
  END
  STEP("cuMemGetAddressRange", "last byte")
    return cuMemGetAddressRange(&base, &sz, D + (4 << 20) - 1);
  END
  STEP("cuMemGetAddressRange", "one past the end (another allocation may lie there)")
    return cuMemGetAddressRange(&base, &sz, D + (4 << 20));
  END
  STEP("cuMemGetAddressRange", "pageable host pointer")
    return cuMemGetAddressRange(&base, &sz, (CUdeviceptr)buf);
  END
  STEP("cuMemGetAddressRange", "pinned host pointer")
    int r = cuMemGetAddressRange(&base, &sz, (CUdeviceptr)H + 5);
    n = fmt("base right %d, size %zu of 1 MiB", base == (CUdeviceptr)H, sz);
    return r;
  END
  STEP("cuMemGetAddressRange", "freed pointer")
    cuMemAlloc(&p, 32 * K);
    cuMemFree(p);
    return cuMemGetAddressRange(&base, &sz, p);
  END
  STEP("cuMemGetAddressRange", "null results, valid pointer")
    return cuMemGetAddressRange(nullptr, nullptr, D);
  END
  run_steps("device", std_setup, st);
  // What may break the context: each in its own process.
  Steps f;
  f.push_back({"cuMemcpyHtoD", "freed pointer (32 MiB allocation), synchronous", [&](std::string& n) -> int {
                 CUdeviceptr q;
                 cuMemAlloc(&q, 32 * K);
                 cuMemFree(q);
                 int r = cuMemcpyHtoD(q, buf, 4096);
                 n = seq({{"cuCtxSynchronize", cuCtxSynchronize()}, {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
                 return r;
               }});
  f.push_back({"cuMemcpyHtoD", "freed pointer (512 B allocation), synchronous", [&](std::string& n) -> int {
                 CUdeviceptr q, q2;
                 cuMemAlloc(&q2, 512);
                 cuMemAlloc(&q, 512);
                 cuMemFree(q);
                 int r = cuMemcpyHtoD(q, buf, 512);
                 n = seq({{"cuCtxSynchronize", cuCtxSynchronize()}, {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
                 return r;
               }});
  f.push_back({"cuMemcpyHtoDAsync", "freed pointer (32 MiB), pinned source", [&](std::string& n) -> int {
                 CUdeviceptr q;
                 cuMemAlloc(&q, 32 * K);
                 cuMemFree(q);
                 int r = cuMemcpyHtoDAsync(q, H, K, S);
                 n = seq({{"cuStreamSynchronize", cuStreamSynchronize(S)}, {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
                 return r;
               }});
  f.push_back({"cuMemcpyDtoH", "freed pointer (32 MiB), synchronous", [&](std::string& n) -> int {
                 CUdeviceptr q;
                 cuMemAlloc(&q, 32 * K);
                 cuMemFree(q);
                 int r = cuMemcpyDtoH(buf, q, 4096);
                 n = seq({{"cuCtxSynchronize", cuCtxSynchronize()}, {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
                 return r;
               }});
  f.push_back({"cuMemcpyHtoD", "unknown pointer 0x7f1234560000, 16 bytes", [&](std::string& n) -> int {
                 CUdeviceptr q;
                 int r = cuMemcpyHtoD(0x7f1234560000, buf, 16);
                 n = seq({{"cuCtxSynchronize", cuCtxSynchronize()}, {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
                 return r;
               }});
  f.push_back({"cuMemcpyDtoD", "freed source", [&](std::string& n) -> int {
                 CUdeviceptr q;
                 cuMemAlloc(&q, 32 * K);
                 cuMemFree(q);
                 int r = cuMemcpyDtoD(D, q, 4096);
                 n = seq({{"cuCtxSynchronize", cuCtxSynchronize()}, {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
                 return r;
               }});
  f.push_back({"cuMemsetD8Async", "freed pointer", [&](std::string& n) -> int {
                 CUdeviceptr q;
                 cuMemAlloc(&q, 32 * K);
                 cuMemFree(q);
                 int r = cuMemsetD8Async(q, 1, 4096, S);
                 n = seq({{"cuStreamSynchronize", cuStreamSynchronize(S)}, {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
                 return r;
               }});
  f.push_back({"cuMemcpyHtoDAsync", "pointer freed with cuMemFreeAsync, pool trimmed", [&](std::string& n) -> int {
                 CUdeviceptr q;
                 cuMemAllocAsync(&q, 32 * K, S);
                 cuMemFreeAsync(q, S);
                 cuStreamSynchronize(S);
                 CUmemoryPool mp;
                 cuDeviceGetDefaultMemPool(&mp, 0);
                 cuMemPoolTrimTo(mp, 0);
                 int r = cuMemcpyHtoDAsync(q, H, 4096, S);
                 n = seq({{"cuStreamSynchronize", cuStreamSynchronize(S)}, {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
                 return r;
               }});
  f.push_back({"cuMemcpyHtoDAsync", "unregistered, freed and unmapped host source, 1 MiB", [&](std::string& n) -> int {
                 char* z = pages(K);
                 munmap(z, K);
                 CUdeviceptr q;
                 int r = cuMemcpyHtoDAsync(D, z, K, S);
                 n = seq({{"cuStreamSynchronize", cuStreamSynchronize(S)}, {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
                 return r;
               }});
  f.push_back({"cuMemcpyHtoD", "reserved but unmapped address (VMM)", [&](std::string& n) -> int {
                 CUdeviceptr va, q;
                 cuMemAddressReserve(&va, P2, 0, 0, 0);
                 int r = cuMemcpyHtoD(va, buf, 4096);
                 n = seq({{"cuCtxSynchronize", cuCtxSynchronize()}, {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
                 return r;
               }});
  f.push_back({"cuMemcpyHtoD", "mapped address without cuMemSetAccess (VMM)", [&](std::string& n) -> int {
                 CUdeviceptr va, q;
                 CUmemGenericAllocationHandle mh;
                 CUmemAllocationProp pr{};
                 pr.type = CU_MEM_ALLOCATION_TYPE_PINNED;
                 pr.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
                 cuMemAddressReserve(&va, P2, 0, 0, 0);
                 cuMemCreate(&mh, P2, &pr, 0);
                 cuMemMap(va, P2, 0, mh, 0);
                 int r = cuMemcpyHtoD(va, buf, 4096);
                 n = seq({{"cuCtxSynchronize", cuCtxSynchronize()}, {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
                 return r;
               }});
  f.push_back({"cuMemcpyHtoD", "read-only access (VMM)", [&](std::string& n) -> int {
                 CUdeviceptr va, q;
                 CUmemGenericAllocationHandle mh;
                 CUmemAllocationProp pr{};
                 pr.type = CU_MEM_ALLOCATION_TYPE_PINNED;
                 pr.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
                 CUmemAccessDesc ad{};
                 ad.location = pr.location;
                 ad.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
                 cuMemAddressReserve(&va, P2, 0, 0, 0);
                 cuMemCreate(&mh, P2, &pr, 0);
                 cuMemMap(va, P2, 0, mh, 0);
                 int a = cuMemSetAccess(va, P2, &ad, 1);
                 int r = cuMemcpyHtoD(va, buf, 4096);
                 n = seq({{"set access", a}, {"cuCtxSynchronize", cuCtxSynchronize()}, {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
                 return r;
               }});
  run_isolated("device", std_setup, f, 4);
}

static void g_attributes() {
  static const struct {
    CUpointer_attribute a;
    const char* n;
    size_t sz;
  } at[] = {{CU_POINTER_ATTRIBUTE_CONTEXT, "CONTEXT", 8},
            {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, "MEMORY_TYPE", 4},
            {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, "DEVICE_POINTER", 8},
            {CU_POINTER_ATTRIBUTE_HOST_POINTER, "HOST_POINTER", 8},
            {CU_POINTER_ATTRIBUTE_BUFFER_ID, "BUFFER_ID", 8},
            {CU_POINTER_ATTRIBUTE_IS_MANAGED, "IS_MANAGED", 4},
            {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, "DEVICE_ORDINAL", 4},
            {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, "LEGACY_IPC", 4},
            {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, "RANGE_START", 8},
            {CU_POINTER_ATTRIBUTE_RANGE_SIZE, "RANGE_SIZE", 8},
            {CU_POINTER_ATTRIBUTE_MAPPED, "MAPPED", 4},
            {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, "HANDLE_TYPES", 8},
            {CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, "ACCESS_FLAGS", 4},
            {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, "MEMPOOL", 8},
            {CU_POINTER_ATTRIBUTE_MAPPING_SIZE, "MAPPING_SIZE", 8},
            {CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, "MAPPING_BASE", 8}};
  Steps st;
  st.push_back(
      {"all", "", [&](std::string&) -> int {
         static char heap[4096];
         CUdeviceptr freed, async, freedasync, va, mapped, managed = 0;
         cuMemAllocAsync(&async, K, S);
         cuMemAllocAsync(&freedasync, K, S);
         cuMemFreeAsync(freedasync, S);
         cuStreamSynchronize(S);
         cuMemAddressReserve(&va, 2 * P2, 0, 0, 0);
         mapped = va + P2;
         CUmemAllocationProp pr{};
         pr.type = CU_MEM_ALLOCATION_TYPE_PINNED;
         pr.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
         CUmemGenericAllocationHandle mh;
         CUmemAccessDesc ad{};
         ad.location = pr.location;
         ad.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
         cuMemCreate(&mh, P2, &pr, 0);
         CK(cuMemMap(mapped, P2, 0, mh, 0));
         CUdeviceptr va2;
         cuMemAddressReserve(&va2, P2, 0, 0, 0);
         cuMemMap(va2, P2, 0, mh, 0);
         CK(cuMemSetAccess(mapped, P2, &ad, 1));
         cuMemAllocManaged(&managed, 65536, CU_MEM_ATTACH_GLOBAL);
         char* reg = pages(65536);
         memset(reg, 1, 65536);
         cuMemHostRegister(reg + 100, 5000, 0);
         char* unreg = pages(4096);
         memset(unreg, 1, 4096);
         cuMemHostRegister(unreg, 4096, 0);
         cuMemHostUnregister(unreg);
         void* wc;
         cuMemHostAlloc(&wc, 4096, CU_MEMHOSTALLOC_WRITECOMBINED);
         // Last, so that no later allocation takes these addresses.
         void* freedhost;
         cuMemHostAlloc(&freedhost, 32 * K, 0);
         cuMemFreeHost(freedhost);
         cuMemAlloc(&freed, 32 * K);
         cuMemFree(freed);
         struct {
           const char* n;
           CUdeviceptr p;
         } ps[] = {{"null", 0},
                   {"pageable", (CUdeviceptr)heap},
                   {"unmapped address 0x7f1234560000", 0x7f1234560000},
                   {"cuMemAlloc", D},
                   {"cuMemAlloc, interior +100", D + 100},
                   {"cuMemAlloc, one past the end", D + (4 << 20)},
                   {"cuMemAlloc, freed (32 MiB)", freed},
                   {"cuMemHostAlloc", (CUdeviceptr)H},
                   {"cuMemHostAlloc, interior +100", (CUdeviceptr)H + 100},
                   {"cuMemHostAlloc, freed", (CUdeviceptr)freedhost},
                   {"write-combined", (CUdeviceptr)wc},
                   {"registered [+100, +5100), at +100", (CUdeviceptr)reg + 100},
                   {"registered, interior +2000", (CUdeviceptr)reg + 2000},
                   {"registered, same page before the start", (CUdeviceptr)reg + 50},
                   {"registered, same page after the end", (CUdeviceptr)reg + 5200},
                   {"registered, next page after the end", (CUdeviceptr)reg + 8192},
                   {"unregistered again", (CUdeviceptr)unreg},
                   {"cuMemAllocAsync, interior +100", async + 100},
                   {"cuMemAllocAsync, freed", freedasync},
                   {"reserved, not mapped", va},
                   {"VMM mapped with access, interior +100", mapped + 100},
                   {"VMM mapped without access", va2},
                   {"managed", managed}};
         for (auto& p : ps) {
           std::string all;
           for (auto& a : at) {
             uint64_t v = 0xABABABABABABABABull;
             int r = cuPointerGetAttribute(&v, a.a, p.p);
             std::string s;
             uint64_t x = a.sz == 4 ? (uint32_t)v : v;
             bool touched = v != 0xABABABABABABABABull;
             if (!touched) s = "untouched";
             else if (x == p.p && p.p) s = "=ptr";
             else if (a.a == CU_POINTER_ATTRIBUTE_CONTEXT) s = v == (uint64_t)ctx ? "primary" : v ? "other" : "null";
             else if (a.sz == 8 && p.p && x > 0x100000 && x <= p.p && p.p - x < (64 << 20))
               s = fmt("ptr-%llu", (unsigned long long)(p.p - x));
             else if (a.sz == 4 && (int32_t)x < 0) s = fmt("%d", (int)x);
             else s = x > 0x1000000000ull ? "address" : fmt("%llu", (unsigned long long)x);
             code("attribute", std::string("cuPointerGetAttribute ") + a.n, p.n, r, s);
           }
           CUpointer_attribute one[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                        CU_POINTER_ATTRIBUTE_HOST_POINTER,     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                        CU_POINTER_ATTRIBUTE_IS_MANAGED,       CU_POINTER_ATTRIBUTE_MAPPED,
                                        CU_POINTER_ATTRIBUTE_BUFFER_ID,        CU_POINTER_ATTRIBUTE_CONTEXT};
           uint64_t o[10];
           void* op[10];
           for (int i = 0; i < 10; i++) {
             o[i] = 0xABABABABABABABABull;
             op[i] = &o[i];
           }
           int r = cuPointerGetAttributes(10, one, op, p.p);
           auto u = [&](int i, bool four) {
             return o[i] == 0xABABABABABABABABull ? std::string("untouched")
                    : four                        ? fmt("%d", (int)(uint32_t)o[i])
                    : !o[i]                       ? std::string("0")
                    : o[i] == p.p                 ? std::string("=ptr")
                    : o[i] > 0x1000000000ull ? (o[i] < p.p && p.p - o[i] < (64 << 20) ? fmt("ptr-%llu", (unsigned long long)(p.p - o[i]))
                                                                                      : std::string("address"))
                                             : fmt("%llu", (unsigned long long)o[i]);
           };
           code("attribute", "cuPointerGetAttributes (10)", p.n, r,
                "type " + u(0, true) + ", device ptr " + u(1, false) + ", host ptr " + u(2, false) + ", ordinal " + u(3, true) +
                    ", start " + u(4, false) + ", size " + u(5, false) + ", managed " + u(6, true) + ", mapped " + u(7, true) + ", id " +
                    (o[8] == 0xABABABABABABABABull ? "untouched"
                     : o[8]                        ? "set"
                                                   : "0") +
                    ", ctx " +
                    (o[9] == (uint64_t)ctx           ? "primary"
                     : o[9] == 0xABABABABABABABABull ? "untouched"
                     : o[9]                          ? "other"
                                                     : "null"));
         }
         {
           uint64_t v;
           code("attribute", "cuPointerGetAttribute", "attribute 999, valid pointer",
                cuPointerGetAttribute(&v, (CUpointer_attribute)999, D));
           CUpointer_attribute b[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUpointer_attribute)999};
           void* op[] = {&v, &v};
           code("attribute", "cuPointerGetAttributes", "one unknown attribute in the list", cuPointerGetAttributes(2, b, op, D));
           code("attribute", "cuPointerGetAttributes", "0 attributes", cuPointerGetAttributes(0, b, op, D));
           code("attribute", "cuPointerGetAttribute", "null result", cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, D));
         }
         {
           uint64_t a = 0, b = 0;
           CUdeviceptr q;
           cuMemAlloc(&q, 4096);
           cuPointerGetAttribute(&a, CU_POINTER_ATTRIBUTE_BUFFER_ID, q);
           cuMemFree(q);
           CUdeviceptr q2;
           cuMemAlloc(&q2, 4096);
           cuPointerGetAttribute(&b, CU_POINTER_ATTRIBUTE_BUFFER_ID, q2);
           code("attribute", "cuPointerGetAttribute BUFFER_ID", "after free and a new allocation", 0,
                fmt("same address %d, id %llu then %llu", q == q2, (unsigned long long)a, (unsigned long long)b));
         }
         return SKIP;
       }});
  run_steps("attribute", std_setup, st);
}

static void g_events() {  // events and streams
  Steps st;
  static CUevent e, t, t2;
  static float ms;
  static CUstream s2;
  static unsigned long long id, id2;
  static CUcontext c;
  static int v;
  static unsigned fg;
  STEP("cuEventQuery", "never recorded")
    e = event();
    return cuEventQuery(e);
  END
  STEP("cuEventSynchronize", "never recorded")
    return cuEventSynchronize(e);
  END
  STEP("cuStreamWaitEvent", "never recorded")
    return cuStreamWaitEvent(S, e, 0);
  END
  STEP("cuStreamWaitEvent", "flags 1 (external), outside a capture")
    return cuStreamWaitEvent(S, e, 1);
  END
  STEP("cuStreamWaitEvent", "flags 2")
    return cuStreamWaitEvent(S, e, 2);
  END
  STEP("cuStreamWaitEvent", "null event")
    return cuStreamWaitEvent(S, nullptr, 0);
  END
  STEP("cuEventRecord", "null event")
    return cuEventRecord(nullptr, S);
  END
  STEP("cuEventQuery", "null event")
    return cuEventQuery(nullptr);
  END
  STEP("cuEventDestroy", "null event")
    return cuEventDestroy(nullptr);
  END
  STEP("cuEventElapsedTime", "both never recorded, timing enabled")
    t = event(0);
    t2 = event(0);
    return cuEventElapsedTime(&ms, t, t2);
  END
  STEP("cuEventElapsedTime", "second never recorded")
    cuEventRecord(t, S);
    cuStreamSynchronize(S);
    return cuEventElapsedTime(&ms, t, t2);
  END
  STEP("cuEventElapsedTime", "first has timing disabled")
    cuEventRecord(e, S);
    cuEventRecord(t2, S);
    cuStreamSynchronize(S);
    return cuEventElapsedTime(&ms, e, t2);
  END
  STEP("cuEventElapsedTime", "valid")
    return cuEventElapsedTime(&ms, t, t2);
  END
  STEP("cuEventElapsedTime", "in reversed order")
    int r = cuEventElapsedTime(&ms, t2, t);
    n = ms < 0 ? "negative" : "not negative";
    return r;
  END
  STEP("cuEventElapsedTime", "second unfinished")
    W[0] = 0;
    cuEventRecord(t, S);
    spin(S, (void*)W);
    cuEventRecord(t2, S);
    int r = cuEventElapsedTime(&ms, t, t2);
    W[0] = 1;
    cuCtxSynchronize();
    return r;
  END
  STEP("cuEventElapsedTime", "null event")
    return cuEventElapsedTime(&ms, nullptr, t2);
  END
  STEP("cuEventQuery", "pending")
    W[0] = 0;
    spin(S, (void*)W);
    cuEventRecord(e, S);
    int r = cuEventQuery(e);
    W[0] = 1;
    cuCtxSynchronize();
    return r;
  END
  STEP("cuEventQuery", "recorded again while the first record is pending")
    s2 = stream();
    W[0] = 0;
    spin(S, (void*)W);
    cuEventRecord(e, S);
    cuEventRecord(e, s2);
    int r = until_ready([] { return cuEventQuery(e); }, 200);
    W[0] = 1;
    cuCtxSynchronize();
    return r;
  END
  STEP("cuEventDestroy", "pending; another stream waits for it")
    CUevent x = event();
    W[0] = 0;
    spin(S, (void*)W);
    cuEventRecord(x, S);
    cuStreamWaitEvent(s2, x, 0);
    int r = cuEventDestroy(x);
    int q = cuStreamQuery(s2);
    W[0] = 1;
    n = fmt("waiting stream %d, after the kernel %d", q, (int)cuCtxSynchronize());
    return r;
  END
  STEP("cuEventDestroy", "twice")
    CUevent x = event();
    cuEventDestroy(x);
    return cuEventDestroy(x);
  END
  STEP("cuEventQuery", "destroyed event")
    CUevent x = event();
    cuEventDestroy(x);
    return cuEventQuery(x);
  END
  STEP("cuEventRecord", "destroyed event")
    CUevent x = event();
    cuEventDestroy(x);
    return cuEventRecord(x, S);
  END
  STEP("cuEventCreate", "flags 0x10")
    CUevent x;
    return cuEventCreate(&x, 0x10);
  END
  STEP("cuEventCreate", "interprocess with timing")
    CUevent x;
    return cuEventCreate(&x, CU_EVENT_INTERPROCESS);
  END
  STEP("cuEventCreate", "null result")
    return cuEventCreate(nullptr, 0);
  END
  STEP("cuStreamQuery", "idle")
    return cuStreamQuery(S);
  END
  STEP("cuStreamQuery", "busy")
    W[0] = 0;
    spin(S, (void*)W);
    int r = cuStreamQuery(S);
    W[0] = 1;
    cuCtxSynchronize();
    return r;
  END
  STEP("cuStreamQuery", "legacy stream while a blocking stream is busy")
    CUstream b = stream(0);
    W[0] = 0;
    spin(b, (void*)W);
    int r = cuStreamQuery(0);
    W[0] = 1;
    cuCtxSynchronize();
    cuStreamDestroy(b);
    return r;
  END
  STEP("cuStreamQuery", "legacy stream while a non-blocking stream is busy")
    W[0] = 0;
    spin(S, (void*)W);
    int r = cuStreamQuery(0);
    W[0] = 1;
    cuCtxSynchronize();
    return r;
  END
  STEP("cuStreamQuery", "per-thread stream, idle")
    return cuStreamQuery(CU_STREAM_PER_THREAD);
  END
  STEP("cuStreamCreate", "flags 2")
    return cuStreamCreate(&s2, 2);
  END
  STEP("cuStreamCreate", "null result")
    return cuStreamCreate(nullptr, 0);
  END
  STEP("cuStreamCreateWithPriority", "priority -100 (clamped?)")
    int lo, hi;
    cuCtxGetStreamPriorityRange(&lo, &hi);
    CUstream x;
    int r = cuStreamCreateWithPriority(&x, 1, -100);
    int p = 99;
    cuStreamGetPriority(x, &p);
    n = fmt("range %d..%d, got %d", lo, hi, p);
    return r;
  END
  STEP("cuStreamGetId", "0, 1, 2")
    unsigned long long a = 0, b = 0, d = 0;
    int r0 = cuStreamGetId(0, &a), r1 = cuStreamGetId(CU_STREAM_LEGACY, &b), r2 = cuStreamGetId(CU_STREAM_PER_THREAD, &d);
    unsigned long long o = 0;
    std::thread([&] {
      cuCtxSetCurrent(ctx);
      cuStreamGetId(CU_STREAM_PER_THREAD, &o);
    }).join();
    cuStreamGetId(S, &id);
    n = fmt("codes %d %d %d; ids %llu %llu %llu; per-thread of another thread %llu; created stream %llu", r0, r1, r2, a, b, d, o, id);
    return r0;
  END
  STEP("cuStreamGetId", "destroyed and created again, 20 times")
    std::map<CUstream, int> hs;
    std::map<unsigned long long, int> is;
    unsigned long long first = 0, last = 0;
    for (int i = 0; i < 20; i++) {
      CUstream x = stream();
      cuStreamGetId(x, &id);
      if (!i) first = id;
      last = id;
      hs[x]++;
      is[id]++;
      cuStreamDestroy(x);
    }
    n = fmt("%zu distinct handles, %zu distinct ids, %llu to %llu", hs.size(), is.size(), first, last);
    return 0;
  END
  STEP("cuStreamGetId", "two created streams")
    CUstream x = stream(), y = stream(0);
    cuStreamGetId(x, &id);
    cuStreamGetId(y, &id2);
    n = fmt("%llu %llu", id, id2);
    return 0;
  END
  STEP("cuStreamGetId", "same stream in two contexts: stream 0")
    CUcontext c2;
    cuCtxCreate(&c2, nullptr, 0, dev);
    unsigned long long o = 0, o2 = 0;
    int r = cuStreamGetId(0, &o);
    CUstream y = stream();
    cuStreamGetId(y, &o2);
    unsigned long long ci = 0, c1 = 0;
    cuCtxGetId(c2, &ci);
    cuCtxGetId(ctx, &c1);
    cuCtxDestroy(c2);
    cuCtxSetCurrent(ctx);
    unsigned long long p0 = 0;
    cuStreamGetId(0, &p0);
    n = fmt("primary %llu, second context %llu, its first stream %llu; context ids %llu %llu", p0, o, o2, c1, ci);
    return r;
  END
  STEP("cuStreamDestroy", "stream 0")
    return cuStreamDestroy(0);
  END
  STEP("cuStreamDestroy", "legacy handle 1")
    return cuStreamDestroy(CU_STREAM_LEGACY);
  END
  STEP("cuStreamDestroy", "per-thread handle 2")
    return cuStreamDestroy(CU_STREAM_PER_THREAD);
  END
  STEP("cuStreamDestroy", "twice")
    CUstream x = stream();
    cuStreamDestroy(x);
    return cuStreamDestroy(x);
  END
  STEP("cuStreamQuery", "destroyed stream")
    CUstream x = stream();
    cuStreamDestroy(x);
    return cuStreamQuery(x);
  END
  STEP("cuStreamGetId", "destroyed stream")
    CUstream x = stream();
    cuStreamDestroy(x);
    return cuStreamGetId(x, &id);
  END
  STEP("cuEventRecord", "destroyed stream")
    CUstream x = stream();
    cuStreamDestroy(x);
    return cuEventRecord(e, x);
  END
  STEP("cuMemFreeAsync", "destroyed stream")
    CUdeviceptr p;
    cuMemAllocAsync(&p, 4096, S);
    CUstream x = stream();
    cuStreamDestroy(x);
    return cuMemFreeAsync(p, x);
  END
  STEP("cuStreamDestroy", "busy: returns at once?")
    CUstream x = stream();
    W[0] = 0;
    spin(x, (void*)W, 1000000000ull);
    auto a = clk::now();
    int r = cuStreamDestroy(x);
    n = fmt("%.2f ms", ns_between(a, clk::now()) / 1e6);
    W[0] = 1;
    cuCtxSynchronize();
    return r;
  END
  STEP("cuStreamGetCtx", "stream 0")
    int r = cuStreamGetCtx(0, &c);
    n = c == ctx ? "primary" : "other";
    return r;
  END
  STEP("cuStreamGetFlags", "stream 0")
    int r = cuStreamGetFlags(0, &fg);
    n = fmt("%u", fg);
    return r;
  END
  STEP("cuStreamGetFlags", "per-thread")
    int r = cuStreamGetFlags(CU_STREAM_PER_THREAD, &fg);
    n = fmt("%u", fg);
    return r;
  END
  STEP("cuEventRecord", "event of the primary context, stream of a second context")
    CUcontext c2;
    cuCtxCreate(&c2, nullptr, 0, dev);
    CUstream y = stream();
    int r = cuEventRecord(e, y);
    int w = cuStreamWaitEvent(y, e, 0);
    n = fmt("cuStreamWaitEvent %d", w);
    cuCtxDestroy(c2);
    cuCtxSetCurrent(ctx);
    return r;
  END
  STEP("cuLaunchHostFunc", "null function")
    return cuLaunchHostFunc(S, nullptr, nullptr);
  END
  STEP("cuStreamAddCallback", "flags 1")
    return cuStreamAddCallback(S, [](CUstream, CUresult, void*) {}, nullptr, 1);
  END
  static int rc[12];
  STEP("driver calls inside a host function", "cuMemAlloc, cuCtxGetCurrent, cuStreamQuery, cuEventQuery, ...")
    memset(rc, -1, sizeof rc);
    cuLaunchHostFunc(
        S,
        [](void*) {
          CUdeviceptr p;
          CUcontext cc;
          size_t a, b;
          rc[0] = cuMemAlloc(&p, 4096);
          rc[1] = cuCtxGetCurrent(&cc);
          rc[2] = cuStreamQuery(s2 ? S : S);
          rc[3] = cuEventQuery(e);
          rc[4] = cuMemGetInfo(&a, &b);
          rc[5] = cuDriverGetVersion(&v);
          rc[6] = cuEventRecord(e, S);
          rc[7] = cuMemFree(0);
          rc[8] = cuCtxSetCurrent(ctx);
          rc[9] = cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, D);
          rc[10] = cuMemHostUnregister(&v);
          rc[11] = cuStreamGetId(S, &id);
        },
        nullptr);
    int r = cuStreamSynchronize(S);
    n =
        fmt("cuMemAlloc %d, cuCtxGetCurrent %d, cuStreamQuery %d, cuEventQuery %d, cuMemGetInfo %d, cuDriverGetVersion %d, cuEventRecord "
            "%d, cuMemFree(0) %d, cuCtxSetCurrent %d, cuPointerGetAttribute %d, cuMemHostUnregister(unknown) %d, cuStreamGetId %d",
            rc[0], rc[1], rc[2], rc[3], rc[4], rc[5], rc[6], rc[7], rc[8], rc[9], rc[10], rc[11]);
    return r;
  END
  // Stream memory operations.
  STEP("cuStreamWriteValue64", "device word")
    return cuStreamWriteValue64(S, D, 1, 0);
  END
  STEP("cuStreamWriteValue64", "address + 4")
    return cuStreamWriteValue64(S, D + 4, 1, 0);
  END
  STEP("cuStreamWriteValue64", "address + 1")
    return cuStreamWriteValue64(S, D + 1, 1, 0);
  END
  STEP("cuStreamWriteValue32", "address + 2")
    return cuStreamWriteValue32(S, D + 2, 1, 0);
  END
  STEP("cuStreamWriteValue64", "pinned host (cuMemHostAlloc flags 0)")
    return cuStreamWriteValue64(S, (CUdeviceptr)H, 1, 0);
  END
  STEP("cuStreamWriteValue64", "registered host, flags 0")
    char* z = pages(4096);
    memset(z, 0, 4096);
    cuMemHostRegister(z, 4096, 0);
    int r = cuStreamWriteValue64(S, (CUdeviceptr)z + 8, 7, 0);
    cuStreamSynchronize(S);
    n = z[8] == 7 ? "written" : "not written";
    return r;
  END
  STEP("cuStreamWriteValue64", "registered READ_ONLY")
    char* z = pages(4096);
    memset(z, 0, 4096);
    cuMemHostRegister(z, 4096, 8);
    int r = cuStreamWriteValue64(S, (CUdeviceptr)z + 8, 7, 0);
    if (!r) { n = fmt("cuStreamSynchronize %d", (int)cuStreamSynchronize(S)); }
    return r;
  END
  run_steps("event", std_setup, st);
  Steps f;
#define ISO(call, sit) f.push_back({call, sit, [&](std::string& n) -> int { (void)n;
  ISO("cuStreamWriteValue64", "pageable host")
    static uint64_t x;
    int r = cuStreamWriteValue64(S, (CUdeviceptr)&x, 1, 0);
    n = fmt("cuStreamSynchronize %d", (int)cuStreamSynchronize(S));
    return r;
  END
  ISO("cuStreamWriteValue64", "null")
    int r = cuStreamWriteValue64(S, 0, 1, 0);
    n = fmt("cuStreamSynchronize %d", (int)cuStreamSynchronize(S));
    return r;
  END
  ISO("cuStreamWriteValue64", "freed device pointer (32 MiB)")
    CUdeviceptr q;
    cuMemAlloc(&q, 32 * K);
    cuMemFree(q);
    int r = cuStreamWriteValue64(S, q, 1, 0);
    n = fmt("cuStreamSynchronize %d", (int)cuStreamSynchronize(S));
    return r;
  END
  ISO("cuStreamWriteValue64", "flags 8")
    return cuStreamWriteValue64(S, D, 1, 8);
  END
  ISO("cuStreamWriteValue64", "VMM memory")
    CUdeviceptr va;
    CUmemGenericAllocationHandle mh;
    CUmemAllocationProp pr{};
    pr.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    pr.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc ad{};
    ad.location = pr.location;
    ad.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    cuMemAddressReserve(&va, P2, 0, 0, 0);
    cuMemCreate(&mh, P2, &pr, 0);
    cuMemMap(va, P2, 0, mh, 0);
    cuMemSetAccess(va, P2, &ad, 1);
    int r = cuStreamWriteValue64(S, va, 1, 0);
    n = fmt("cuStreamSynchronize %d", (int)cuStreamSynchronize(S));
    return r;
  END
  ISO("cuStreamWriteValue64", "cuMemAllocAsync memory, synchronised")
    CUdeviceptr va;
    cuMemAllocAsync(&va, 4096, S);
    cuStreamSynchronize(S);
    int r = cuStreamWriteValue64(S, va, 1, 0);
    n = fmt("4 bytes: %d; wait: ", (int)cuStreamWriteValue32(S, va, 1, 0));
    n += fmt("%d; cuMemsetD32Async ", (int)cuStreamWaitValue64(S, va, 0, CU_STREAM_WAIT_VALUE_GEQ));
    n += fmt("%d", (int)cuMemsetD32Async(va, 0, 2, S));
    return r;
  END
  ISO("cuStreamWriteValue64", "memory of a created pool")
    CUmemoryPool m;
    CUmemPoolProps x{};
    x.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    x.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    cuMemPoolCreate(&m, &x);
    CUdeviceptr va;
    cuMemAllocFromPoolAsync(&va, 4096, m, S);
    cuStreamSynchronize(S);
    return cuStreamWriteValue64(S, va, 1, 0);
  END
  ISO("cuStreamWriteValue64", "memory of a host pool")
    CUmemoryPool m;
    CUmemPoolProps x{};
    x.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    x.location.type = CU_MEM_LOCATION_TYPE_HOST;
    cuMemPoolCreate(&m, &x);
    CUmemAccessDesc ad{};
    ad.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    ad.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    int sa = cuMemPoolSetAccess(m, &ad, 1);
    CUdeviceptr va;
    cuMemAllocFromPoolAsync(&va, 4096, m, S);
    cuStreamSynchronize(S);
    n = fmt("set access %d", sa);
    return cuStreamWriteValue64(S, va, 1, 0);
  END
  ISO("cuStreamWriteValue64", "managed memory")
    CUdeviceptr va;
    cuMemAllocManaged(&va, 65536, 1);
    return cuStreamWriteValue64(S, va, 1, 0);
  END
  ISO("cuStreamWriteValue64", "cuMemAllocAsync memory")
    CUdeviceptr va;
    cuMemAllocAsync(&va, 4096, S);
    int r = cuStreamWriteValue64(S, va, 1, 0);
    n = fmt("cuStreamSynchronize %d", (int)cuStreamSynchronize(S));
    return r;
  END
  ISO("cuStreamWaitValue64", "address + 4")
    return cuStreamWaitValue64(S, D + 4, 0, 0);
  END
  ISO("cuStreamWaitValue64", "flags 4 (NOR is 3; flush is 1 << 30)")
    return cuStreamWaitValue64(S, D, 0, 4);
  END
  ISO("cuStreamWaitValue64", "flush flag")
    int r = cuStreamWaitValue64(S, D, 0, CU_STREAM_WAIT_VALUE_GEQ | CU_STREAM_WAIT_VALUE_FLUSH);
    n = fmt("attribute CAN_FLUSH_REMOTE_WRITES %d", attr(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES));
    return r;
  END
  ISO("cuStreamWaitValue64", "GEQ, word (1 << 63) + 1, value 1 (difference 1 << 63)")
    W[8] = (1ull << 63) + 1;
    cuStreamWaitValue64(S, (CUdeviceptr)(W + 8), 1, CU_STREAM_WAIT_VALUE_GEQ);
    int r = until_ready([] { return cuStreamQuery(S); }, 300);
    W[8] = 1;
    cuStreamSynchronize(S);
    n = r == 600 ? "waits: the difference counts as signed" : "passes";
    return r;
  END
  ISO("cuStreamWaitValue64", "legacy stream, satisfied")
    W[8] = 1;
    return cuStreamWaitValue64(0, (CUdeviceptr)(W + 8), 1, CU_STREAM_WAIT_VALUE_GEQ);
  END
  ISO("cuStreamWaitValue64", "poison: word set to 1 << 62 by the host wakes a GEQ wait for 5")
    W[8] = 0;
    cuStreamWaitValue64(S, (CUdeviceptr)(W + 8), 5, CU_STREAM_WAIT_VALUE_GEQ);
    W[8] = 1ull << 62;
    return until_ready([] { return cuStreamQuery(S); }, 500);
  END
  ISO("cuStreamWaitValue64", "poison: word set to ~0 by the host, GEQ wait for 5")
    W[8] = 0;
    cuStreamWaitValue64(S, (CUdeviceptr)(W + 8), 5, CU_STREAM_WAIT_VALUE_GEQ);
    W[8] = ~0ull;
    int r = until_ready([] { return cuStreamQuery(S); }, 300);
    W[8] = 5;
    cuStreamSynchronize(S);
    return r;
  END
  ISO("cuStreamWaitValue64", "EQ, the word passes the value while the stream is busy")
    W[8] = 0;
    W[0] = 0;
    spin(S, (void*)W);
    cuStreamWaitValue64(S, (CUdeviceptr)(W + 8), 5, CU_STREAM_WAIT_VALUE_EQ);
    W[8] = 6;
    W[0] = 1;
    int r = until_ready([] { return cuStreamQuery(S); }, 300);
    W[8] = 5;
    cuStreamSynchronize(S);
    return r;
  END
  ISO("cuStreamDestroy", "stream in an unsatisfied cuStreamWaitValue64")
    W[8] = 0;
    CUstream x = stream();
    cuStreamWaitValue64(x, (CUdeviceptr)(W + 8), 5, CU_STREAM_WAIT_VALUE_GEQ);
    auto a = clk::now();
    int r = cuStreamDestroy(x);
    n = fmt("%.2f ms", ns_between(a, clk::now()) / 1e6);
    W[8] = 5;
    n += fmt(", cuCtxSynchronize %d", (int)cuCtxSynchronize());
    return r;
  END
  ISO("cuMemFree", "of other memory, a stream in an unsatisfied cuStreamWaitValue64 (released after 150 ms)")
    W[8] = 0;
    CUdeviceptr q;
    cuMemAlloc(&q, 32 * K);
    cuStreamWaitValue64(S, (CUdeviceptr)(W + 8), 5, CU_STREAM_WAIT_VALUE_GEQ);
    std::thread t([] {
      usleep(150000);
      W[8] = 5;
    });
    auto a = clk::now();
    int r = cuMemFree(q);
    n = fmt("returned after %.1f ms", ns_between(a, clk::now()) / 1e6);
    t.join();
    cuCtxSynchronize();
    return r;
  END
  run_steps("event", std_setup, f);
  f.clear();  // captures that fail may leave a stream capturing: each of these alone
  for (auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED})
    for (int known = 0; known < 2; known++)
      for (unsigned fl : {0u, 1u})
        f.push_back(
            {"cuStreamGetId",
             fmt("capturing stream, mode %d, %s, id %s before", (int)mode, fl ? "non-blocking" : "blocking", known ? "asked" : "not asked"),
             [=](std::string& n) -> int {
               CUstream x = stream(fl);
               unsigned long long i0 = 0, i1 = 0;
               if (known) cuStreamGetId(x, &i0);
               cuStreamBeginCapture(x, mode);
               int r = cuStreamGetId(x, &i1);
               CUstreamCaptureStatus cs;
               cuStreamIsCapturing(x, &cs);
               CUgraph g = 0;
               int e = cuStreamEndCapture(x, &g);
               unsigned long long i2 = 0;
               int a = cuStreamGetId(x, &i2);
               n = fmt("id before %llu, in capture %llu, after %llu (%d); status %d, end %d", i0, i1, i2, a, (int)cs, e);
               return r;
             }});
  for (const char* what : {"cuStreamGetCtx", "cuStreamGetFlags", "cuStreamGetPriority", "cuStreamGetDevice", "cuStreamGetAttribute"})
    f.push_back({what, "capturing stream, global mode", [=](std::string& n) -> int {
                   CUstream x = stream();
                   CUcontext c0;
                   unsigned u;
                   int pr;
                   CUdevice dd;
                   CUstreamAttrValue av;
                   cuStreamBeginCapture(x, CU_STREAM_CAPTURE_MODE_GLOBAL);
                   std::string w = what;
                   int r = w == "cuStreamGetCtx"        ? cuStreamGetCtx(x, &c0)
                           : w == "cuStreamGetFlags"    ? cuStreamGetFlags(x, &u)
                           : w == "cuStreamGetPriority" ? cuStreamGetPriority(x, &pr)
                           : w == "cuStreamGetDevice"   ? cuStreamGetDevice(x, &dd)
                                                        : cuStreamGetAttribute(x, CU_STREAM_ATTRIBUTE_PRIORITY, &av);
                   CUstreamCaptureStatus cs;
                   cuStreamIsCapturing(x, &cs);
                   CUgraph g = 0;
                   n = fmt("status %d", (int)cs);
                   n += fmt(", end %d", (int)cuStreamEndCapture(x, &g));
                   return r;
                 }});
  ISO("cuStreamBeginCapture", "legacy stream 0, global")
    return cuStreamBeginCapture(0, CU_STREAM_CAPTURE_MODE_GLOBAL);
  END
  ISO("cuStreamBeginCapture", "legacy stream 0, relaxed")
    return cuStreamBeginCapture(0, CU_STREAM_CAPTURE_MODE_RELAXED);
  END
  ISO("cuStreamBeginCapture", "legacy handle 1, relaxed")
    return cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED);
  END
  ISO("cuStreamBeginCapture", "per-thread handle 2, relaxed")
    int r = cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED);
    CUgraph g;
    n = fmt("end %d", (int)cuStreamEndCapture(CU_STREAM_PER_THREAD, &g));
    return r;
  END
  ISO("cuStreamBeginCapture", "mode 9")
    return cuStreamBeginCapture(S, (CUstreamCaptureMode)9);
  END
  ISO("cuStreamEndCapture", "stream that does not capture")
    CUgraph g;
    return cuStreamEndCapture(S, &g);
  END
  ISO("cuStreamEndCapture", "begun by another thread, thread-local mode")
    std::thread([] {
      cuCtxSetCurrent(ctx);
      cuStreamBeginCapture(S, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    }).join();
    CUgraph g;
    int r = cuStreamEndCapture(S, &g);
    CUstreamCaptureStatus x;
    cuStreamIsCapturing(S, &x);
    n = fmt("status after %d", (int)x);
    return r;
  END
  ISO("cuStreamEndCapture", "begun by another thread, relaxed mode")
    std::thread([] {
      cuCtxSetCurrent(ctx);
      cuStreamBeginCapture(S, CU_STREAM_CAPTURE_MODE_RELAXED);
    }).join();
    CUgraph g;
    return cuStreamEndCapture(S, &g);
  END
  ISO("cuStreamEndCapture", "a joined stream not joined back")
    CUstream x = stream();
    CUevent q = event();
    cuStreamBeginCapture(S, CU_STREAM_CAPTURE_MODE_RELAXED);
    cuEventRecord(q, S);
    cuStreamWaitEvent(x, q, 0);
    launch(k_empty, x);
    CUgraph g = (CUgraph)1;
    int r = cuStreamEndCapture(S, &g);
    n = fmt("graph %s", g ? "set" : "null");
    return r;
  END
  ISO("cuStreamDestroy", "capturing stream")
    cuStreamBeginCapture(S, CU_STREAM_CAPTURE_MODE_RELAXED);
    launch(k_empty, S);
    return cuStreamDestroy(S);
  END
  ISO("cuEventElapsedTime", "captured events")
    CUevent a = event(0), b = event(0);
    cuStreamBeginCapture(S, CU_STREAM_CAPTURE_MODE_RELAXED);
    cuEventRecord(a, S);
    cuEventRecord(b, S);
    CUgraph g;
    cuStreamEndCapture(S, &g);
    return cuEventElapsedTime(&ms, a, b);
  END
  ISO("cuEventQuery", "event recorded only in a capture that has ended")
    CUevent a = event();
    cuStreamBeginCapture(S, CU_STREAM_CAPTURE_MODE_RELAXED);
    cuEventRecord(a, S);
    CUgraph g;
    cuStreamEndCapture(S, &g);
    return cuEventQuery(a);
  END
  ISO("cuStreamWaitEvent", "event recorded only in a capture that has ended, uncaptured stream")
    CUevent a = event();
    cuStreamBeginCapture(S, CU_STREAM_CAPTURE_MODE_RELAXED);
    cuEventRecord(a, S);
    CUgraph g;
    cuStreamEndCapture(S, &g);
    return cuStreamWaitEvent(stream(), a, 0);
  END
  run_isolated("event", std_setup, f, 8);
}
void g_capture();
void g_context();
void g_vmm();
void g_sticky();
void g_fork();
void g_ipc();
int main(int c, char** v) {
  std::map<std::string, void (*)()> all = {
      {"before", g_before}, {"noctx", g_noctx},     {"host", g_host},       {"device", g_device}, {"attributes", g_attributes},
      {"events", g_events}, {"capture", g_capture}, {"context", g_context}, {"vmm", g_vmm},       {"sticky", g_sticky},
      {"fork", g_fork},     {"ipc", g_ipc}};
  if (c < 2) {
    for (auto& x : all) x.second();
    return 0;
  }
  for (int i = 1; i < c; i++) {
    auto f = all.find(v[i]);
    if (f == all.end()) return 2;
    f->second();
  }
}
