// Topic 9, second half: capture, contexts, address ranges and pools, broken contexts, fork, IPC. See codes.cpp for the form.
#include "measure.h"
using namespace m;
using Steps = std::vector<Step>;
#define STEP(call, sit) st.push_back({call, sit, [&](std::string& n) -> int { (void)n;
#define END \
  }         \
  });
static CUdeviceptr D;
static CUstream S, O;
static char *H, *R;
static volatile uint64_t* W;
static CUevent DONE, NEVER;
static const size_t K = 1 << 20, P2 = 2 << 20;
static char* pages(size_t n) {
  char* p = (char*)mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(p, 1, n);
  return p;
}
static CUmemAllocationProp prop() {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return p;
}
static CUmemAccessDesc acc() {
  CUmemAccessDesc a{};
  a.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return a;
}
static CUmemPoolProps pprop() {
  CUmemPoolProps p{};
  p.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return p;
}
static void std_setup() {
  init();
  CK(cuMemAlloc(&D, 4 << 20));
  S = stream();
  O = stream();
  void* h;
  CK(cuMemHostAlloc(&h, 1 << 20, 0));
  H = (char*)h;
  W = pinned_words();
  DONE = event();
  NEVER = event();
  cuEventRecord(DONE, O);
  R = pages(K);
  CK(cuCtxSynchronize());
}

// Each call beside one capture, in three modes, from the capturing thread and from another. A row's code is the call's; the
// note has the capture's status right after (0 none, 1 active, 2 invalidated) and the code of its end.
void g_capture() {
  struct Call {
    std::string n;
    std::function<int()> f;
  };
  static CUdeviceptr pa, pf, px, va, va2;
  static CUmemGenericAllocationHandle mh, mh2;
  static CUevent ce;
  static void* hh;
  static CUmemoryPool mp, mp2;
  static CUcontext c;
  static size_t a, b;
  static char heap[65536];
  static CUstream tmp;
  static unsigned long long id;
  static CUevent te;
  static CUdeviceptr wv;
  static CUstream BL;
  auto ad = acc();
  auto pr = prop();
  std::vector<Call> calls = {
      {"(nothing)", [] { return 0; }},
      {"cuStreamQuery(capturing)", [] { return cuStreamQuery(S); }},
      {"cuStreamQuery(other stream)", [] { return cuStreamQuery(O); }},
      {"cuStreamQuery(legacy)", [] { return cuStreamQuery(0); }},
      {"cuStreamQuery(blocking other)", [] { return cuStreamQuery(BL); }},
      {"cuStreamSynchronize(capturing)", [] { return cuStreamSynchronize(S); }},
      {"cuStreamSynchronize(other stream)", [] { return cuStreamSynchronize(O); }},
      {"cuStreamSynchronize(legacy)", [] { return cuStreamSynchronize(0); }},
      {"cuCtxSynchronize", [] { return cuCtxSynchronize(); }},
      {"cuEventQuery(done, uncaptured)", [] { return cuEventQuery(DONE); }},
      {"cuEventQuery(captured)", [] { return cuEventQuery(ce); }},
      {"cuEventSynchronize(done, uncaptured)", [] { return cuEventSynchronize(DONE); }},
      {"cuEventSynchronize(captured)", [] { return cuEventSynchronize(ce); }},
      {"cuEventRecord(capturing stream)", [] { return cuEventRecord(te, S); }},
      {"cuEventRecord(other stream)", [] { return cuEventRecord(te, O); }},
      {"cuEventRecord(legacy)", [] { return cuEventRecord(te, 0); }},
      {"cuEventCreate + Destroy",
       [] {
         CUevent e;
         int r = cuEventCreate(&e, 2);
         cuEventDestroy(e);
         return r;
       }},
      {"cuStreamWaitEvent(capturing, uncaptured done event)", [] { return cuStreamWaitEvent(S, DONE, 0); }},
      {"cuStreamWaitEvent(capturing, done event, EXTERNAL)", [] { return cuStreamWaitEvent(S, DONE, CU_EVENT_WAIT_EXTERNAL); }},
      {"cuStreamWaitEvent(capturing, never recorded)", [] { return cuStreamWaitEvent(S, NEVER, 0); }},
      {"cuStreamWaitEvent(other, done event)", [] { return cuStreamWaitEvent(O, DONE, 0); }},
      {"cuStreamWaitEvent(other, captured event) [joins]", [] { return cuStreamWaitEvent(O, ce, 0); }},
      {"cuStreamWaitEvent(legacy, captured event)", [] { return cuStreamWaitEvent(0, ce, 0); }},
      {"cuMemAlloc 2 MiB",
       [] {
         int r = cuMemAlloc(&px, P2);
         if (!r) pf = px;
         return r;
       }},
      {"cuMemFree", [] { return cuMemFree(pa); }},
      {"cuMemFree(null)", [] { return cuMemFree(0); }},
      {"cuMemHostAlloc", [] { return cuMemHostAlloc(&hh, 65536, 0); }},
      {"cuMemFreeHost", [] { return cuMemFreeHost(hh); }},
      {"cuMemHostRegister", [] { return cuMemHostRegister(R, 65536, 0); }},
      {"cuMemHostUnregister", [] { return cuMemHostUnregister(R + K / 2); }},
      {"cuMemAllocAsync(capturing)", [] { return cuMemAllocAsync(&px, K, S); }},
      {"cuMemAllocAsync(other)", [] { return cuMemAllocAsync(&px, K, O); }},
      {"cuMemAllocAsync(legacy)", [] { return cuMemAllocAsync(&px, K, 0); }},
      {"cuMemFreeAsync(outside pointer, capturing)", [] { return cuMemFreeAsync(wv, S); }},
      {"cuMemFreeAsync(outside pointer, other)", [] { return cuMemFreeAsync(wv, O); }},
      {"cuMemcpyHtoD (sync, pageable)", [] { return cuMemcpyHtoD(D, heap, 4096); }},
      {"cuMemcpyHtoDAsync(capturing, pageable)", [] { return cuMemcpyHtoDAsync(D, heap, 4096, S); }},
      {"cuMemcpyHtoDAsync(capturing, pinned)", [] { return cuMemcpyHtoDAsync(D, H, 4096, S); }},
      {"cuMemcpyHtoDAsync(other, pinned)", [] { return cuMemcpyHtoDAsync(D, H, 4096, O); }},
      {"cuMemcpyDtoHAsync(capturing, pageable)", [] { return cuMemcpyDtoHAsync(heap, D, 4096, S); }},
      {"cuMemsetD8 (sync)", [] { return cuMemsetD8(D, 0, 4096); }},
      {"cuMemsetD8Async(capturing)", [] { return cuMemsetD8Async(D, 0, 4096, S); }},
      {"cuLaunchKernel(capturing)", [] { return launch(k_empty, S); }},
      {"cuLaunchKernel(other)", [] { return launch(k_empty, O); }},
      {"cuLaunchKernel(legacy)", [] { return launch(k_empty, 0); }},
      {"cuLaunchKernel(blocking other)", [] { return launch(k_empty, BL); }},
      {"cuLaunchHostFunc(capturing)", [] { return cuLaunchHostFunc(S, [](void*) {}, nullptr); }},
      {"cuStreamWriteValue64(capturing)", [] { return cuStreamWriteValue64(S, D, 1, 0); }},
      {"cuStreamWaitValue64(capturing)", [] { return cuStreamWaitValue64(S, D, 0, 0); }},
      {"cuStreamWriteValue64(other)", [] { return cuStreamWriteValue64(O, D, 1, 0); }},
      {"cuMemAddressReserve + Free",
       [] {
         CUdeviceptr v;
         int r = cuMemAddressReserve(&v, P2, 0, 0, 0);
         if (!r) cuMemAddressFree(v, P2);
         return r;
       }},
      {"cuMemCreate + Release",
       [pr] {
         CUmemGenericAllocationHandle h;
         int r = cuMemCreate(&h, P2, &pr, 0);
         if (!r) cuMemRelease(h);
         return r;
       }},
      {"cuMemMap", [] { return cuMemMap(va, P2, 0, mh, 0); }},
      {"cuMemSetAccess", [ad] { return cuMemSetAccess(va2, P2, &ad, 1); }},
      {"cuMemUnmap", [] { return cuMemUnmap(va2, P2); }},
      {"cuMemExportToShareableHandle",
       [] {
         int fd = -1;
         int r = cuMemExportToShareableHandle(&fd, mh2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
         if (fd >= 0) close(fd);
         return r;
       }},
      {"cuMemGetInfo", [] { return cuMemGetInfo(&a, &b); }},
      {"cuPointerGetAttribute",
       [] {
         int t;
         return cuPointerGetAttribute(&t, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, D);
       }},
      {"cuMemGetAddressRange", [] { return cuMemGetAddressRange(&px, &a, D); }},
      {"cuMemHostGetDevicePointer", [] { return cuMemHostGetDevicePointer(&px, H, 0); }},
      {"cuStreamGetId(capturing)", [] { return cuStreamGetId(S, &id); }},
      {"cuStreamGetId(legacy)", [] { return cuStreamGetId(0, &id); }},
      {"cuStreamIsCapturing(legacy)",
       [] {
         CUstreamCaptureStatus x;
         return cuStreamIsCapturing(0, &x);
       }},
      {"cuStreamGetCaptureInfo(capturing)",
       [] {
         CUstreamCaptureStatus x;
         cuuint64_t i;
         return cuStreamGetCaptureInfo(S, &x, &i, nullptr, nullptr, nullptr, nullptr);
       }},
      {"cuStreamCreate + Destroy",
       [] {
         int r = cuStreamCreate(&tmp, 1);
         if (!r) cuStreamDestroy(tmp);
         return r;
       }},
      {"cuStreamBeginCapture(capturing, again)", [] { return cuStreamBeginCapture(S, CU_STREAM_CAPTURE_MODE_RELAXED); }},
      {"cuMemPoolCreate + Destroy",
       [] {
         auto p = pprop();
         int r = cuMemPoolCreate(&mp2, &p);
         if (!r) cuMemPoolDestroy(mp2);
         return r;
       }},
      {"cuMemPoolTrimTo", [] { return cuMemPoolTrimTo(mp, 0); }},
      {"cuMemPoolSetAttribute",
       [] {
         cuuint64_t t = 0;
         return cuMemPoolSetAttribute(mp, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &t);
       }},
      {"cuDeviceGetDefaultMemPool", [] { return cuDeviceGetDefaultMemPool(&mp2, 0); }},
      {"cuIpcGetMemHandle",
       [] {
         CUipcMemHandle h;
         return cuIpcGetMemHandle(&h, D);
       }},
      {"cuModuleLoadData + Unload",
       [] {
         CUmodule x;
         int r = cuModuleLoadData(&x, ptx);
         if (!r) cuModuleUnload(x);
         return r;
       }},
      {"cuDevicePrimaryCtxRetain + Release",
       [] {
         int r = cuDevicePrimaryCtxRetain(&c, dev);
         cuDevicePrimaryCtxRelease(dev);
         return r;
       }},
      {"cuCtxPushCurrent + Pop",
       [] {
         int r = cuCtxPushCurrent(ctx);
         cuCtxPopCurrent(&c);
         return r;
       }},
      {"cuThreadExchangeStreamCaptureMode",
       [] {
         CUstreamCaptureMode x = CU_STREAM_CAPTURE_MODE_RELAXED;
         int r = cuThreadExchangeStreamCaptureMode(&x);
         cuThreadExchangeStreamCaptureMode(&x);
         return r;
       }},
      {"cuCtxRecordEvent", [] { return cuCtxRecordEvent(ctx, te); }},
      {"cuMemAllocManaged + Free",
       [] {
         CUdeviceptr q;
         int r = cuMemAllocManaged(&q, 65536, 1);
         if (!r) cuMemFree(q);
         return r;
       }},
      {"cuEventElapsedTime(done, done)",
       [] {
         float f;
         return cuEventElapsedTime(&f, DONE, DONE);
       }},
      {"cuStreamDestroy(other stream)", [] {
         CUstream x = O;
         O = nullptr;
         return cuStreamDestroy(x);
       }}};
  const struct {
    CUstreamCaptureMode m;
    const char* n;
  } modes[] = {{CU_STREAM_CAPTURE_MODE_GLOBAL, "global"},
               {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, "thread-local"},
               {CU_STREAM_CAPTURE_MODE_RELAXED, "relaxed"}};
  Steps st;
  for (unsigned block : {0u, 1u})
    for (auto& mo : modes)
      for (int who = 0; who < 3; who++) {  // 0 the capturing thread, 1 another thread, 2 the capturing thread set to relaxed by exchange
        if (who == 2 && mo.m == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
        if (block && (who == 2 || mo.m == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)) continue;
        for (auto& call : calls)
          st.push_back({call.n,
                        fmt("%s capture%s, %s", mo.n, block ? " of a blocking stream" : "",
                            who == 0   ? "same thread"
                            : who == 1 ? "other thread"
                                       : "same thread exchanged to relaxed"),
                        [&call, mo, who, block, ad, pr](std::string& n) -> int {
                          // Fresh objects for every row, made outside the capture.
                          if (!O) O = stream();
                          if (!BL) BL = stream(0);
                          CUstream s = stream(block ? 0 : CU_STREAM_NON_BLOCKING);
                          S = s;
                          te = event();
                          ce = event();
                          CK(cuMemAlloc(&pa, K));
                          CK(cuMemAllocAsync(&wv, K, O));
                          CK(cuMemHostAlloc(&hh, 65536, 0));
                          cuMemHostRegister(R + K / 2, 65536, 0);
                          cuDeviceGetDefaultMemPool(&mp, 0);
                          CK(cuMemAddressReserve(&va, P2, 0, 0, 0));
                          CK(cuMemAddressReserve(&va2, P2, 0, 0, 0));
                          CK(cuMemCreate(&mh, P2, &pr, 0));
                          auto p3 = pr;
                          p3.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
                          CK(cuMemCreate(&mh2, P2, &p3, 0));
                          CK(cuMemMap(va2, P2, 0, mh, 0));
                          CK(cuCtxSynchronize());
                          pf = 0;
                          CK(cuStreamBeginCapture(s, mo.m));
                          launch(k_empty, s);
                          CK(cuEventRecord(ce, s));
                          int rc = 0;
                          auto go = [&] {
                            cuCtxSetCurrent(ctx);
                            CUstreamCaptureMode x = CU_STREAM_CAPTURE_MODE_RELAXED;
                            if (who == 2) cuThreadExchangeStreamCaptureMode(&x);
                            rc = call.f();
                            if (who == 2) cuThreadExchangeStreamCaptureMode(&x);
                          };
                          if (who == 1) std::thread(go).join();
                          else go();
                          CUstreamCaptureStatus cs = (CUstreamCaptureStatus)9;
                          cuStreamIsCapturing(s, &cs);
                          CUgraph g = 0;
                          int end = cuStreamEndCapture(s, &g);
                          if (g) cuGraphDestroy(g);
                          int sync = cuCtxSynchronize();
                          n = fmt("status %d, end %d", (int)cs, end);
                          if (sync) n += fmt(", cuCtxSynchronize after %d", sync);
                          cuStreamDestroy(s);
                          cuMemHostUnregister(R);
                          cuMemHostUnregister(R + K / 2);
                          cuMemUnmap(va, P2);
                          cuMemUnmap(va2, P2);
                          cuMemRelease(mh);
                          cuMemRelease(mh2);
                          cuMemAddressFree(va, P2);
                          cuMemAddressFree(va2, P2);
                          if (call.n != "cuMemFree") cuMemFree(pa);
                          if (pf) cuMemFree(pf);
                          if (call.n != "cuMemFreeHost") cuMemFreeHost(hh);
                          if (call.n.rfind("cuStreamWaitEvent(other", 0) == 0 || call.n.rfind("cuStreamDestroy", 0) == 0) {
                            if (O) cuStreamDestroy(O);
                            O = nullptr;
                          }
                          return rc;
                        }});
      }
  // Chunks in parallel children: the order of rows does not matter.
  std::vector<pid_t> kids;
  size_t per = (st.size() + 7) / 8;
  for (size_t i = 0; i < st.size(); i += per) {
    pid_t p = fork();
    if (!p) {
      run_steps("capture", std_setup, Steps(st.begin() + i, st.begin() + std::min(st.size(), i + per)), false);
      _exit(0);
    }
    kids.push_back(p);
  }
  for (auto p : kids) {
    int s;
    waitpid(p, &s, 0);
  }
}

void g_context() {  // releasing too often, and what handles are worth after the last release or a reset
  Steps st;
  static CUcontext c, c2;
  static unsigned f;
  static int a;
  STEP("cuDevicePrimaryCtxRelease", "never retained")
    return cuDevicePrimaryCtxRelease(0);
  END
  STEP("cuDevicePrimaryCtxReset", "never retained")
    return cuDevicePrimaryCtxReset(0);
  END
  STEP("cuDevicePrimaryCtxGetState", "never retained")
    int r = cuDevicePrimaryCtxGetState(0, &f, &a);
    n = fmt("flags %u active %d", f, a);
    return r;
  END
  STEP("cuDevicePrimaryCtxRetain", "twice: same handle?")
    cuDevicePrimaryCtxRetain(&c, 0);
    int r = cuDevicePrimaryCtxRetain(&c2, 0);
    n = c == c2 ? "same" : "other";
    return r;
  END
  STEP("cuDevicePrimaryCtxSetFlags", "while active")
    return cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_YIELD);
  END
  STEP("cuDevicePrimaryCtxRelease", "once of two")
    cuDevicePrimaryCtxRetain(&c, 0);
    cuDevicePrimaryCtxRelease(0);
    int r = cuDevicePrimaryCtxRelease(0);
    cuDevicePrimaryCtxGetState(0, &f, &a);
    n = fmt("active %d", a);
    return r;
  END
  STEP("cuDevicePrimaryCtxRelease", "the last")
    int r = cuDevicePrimaryCtxRelease(0);
    cuDevicePrimaryCtxGetState(0, &f, &a);
    n = fmt("active %d", a);
    return r;
  END
  STEP("cuDevicePrimaryCtxRelease", "once more than retained")
    return cuDevicePrimaryCtxRelease(0);
  END
  STEP("cuDevicePrimaryCtxRetain", "again after the last release: same handle?")
    int r = cuDevicePrimaryCtxRetain(&c2, 0);
    n = c == c2 ? "same handle" : "other handle";
    return r;
  END
  STEP("cuDevicePrimaryCtxRelease", "the last, while current on this thread")
    cuCtxSetCurrent(c2);
    unsigned long long i1 = 0, i2 = 0;
    cuCtxGetId(c2, &i1);
    int r = cuDevicePrimaryCtxRelease(0);
    CUcontext x = 0;
    int g = cuCtxGetCurrent(&x);
    CUdeviceptr p;
    int m = cuMemAlloc(&p, 4096);
    CUcontext c3;
    int q = cuDevicePrimaryCtxRetain(&c3, 0);
    cuCtxGetId(c3, &i2);
    int m2 = cuMemAlloc(&p, 4096);
    n = fmt("cuCtxGetCurrent %d %s, cuMemAlloc %d; retained again %d (%s handle, id %llu then %llu), cuMemAlloc without setting it %d", g,
            x == c2 ? "still the old handle"
            : x     ? "other"
                    : "null",
            m, q, c3 == c2 ? "same" : "other", i1, i2, m2);
    return r;
  END
  STEP("cuCtxDestroy", "primary context")
    return cuCtxDestroy(c2);
  END
  STEP("cuCtxPopCurrent", "empty stack, on a new thread")
    int r = 0;
    std::thread([&] {
      CUcontext x;
      r = cuCtxPopCurrent(&x);
    }).join();
    return r;
  END
  STEP("cuCtxSetCurrent", "null when nothing is current, then cuCtxPopCurrent, on a new thread")
    int r = 0;
    std::thread([&] {
      CUcontext x;
      r = cuCtxSetCurrent(nullptr);
      n = fmt("pop %d", (int)cuCtxPopCurrent(&x));
    }).join();
    return r;
  END
  STEP("cuCtxSetCurrent", "replaces the top: depth of the stack, on a new thread")
    int r = 0;
    CUcontext y;
    cuDevicePrimaryCtxRetain(&y, 0);
    std::thread([&] {
      CUcontext x;
      cuCtxPushCurrent(y);
      cuCtxPushCurrent(y);
      r = cuCtxSetCurrent(y);
      int d = 0;
      while (!cuCtxPopCurrent(&x) && d < 9) d++;
      n = fmt("after 2 pushes and a set: %d pops succeed", d);
    }).join();
    return r;
  END
  STEP("cuCtxSetCurrent", "null pops the top, on a new thread")
    int r = 0;
    CUcontext y;
    cuDevicePrimaryCtxRetain(&y, 0);
    std::thread([&] {
      CUcontext x = 0;
      cuCtxPushCurrent(y);
      cuCtxPushCurrent(y);
      r = cuCtxSetCurrent(nullptr);
      cuCtxGetCurrent(&x);
      n = fmt("after 2 pushes and a set of null: current is %s", x ? "the first pushed" : "null");
    }).join();
    return r;
  END
  STEP("cuCtxSetCurrent", "garbage handle")
    static char junk[4096];
    return cuCtxSetCurrent((CUcontext)junk);
  END
  run_steps(
      "context",
      [] {
        cuInit(0);
        cuDeviceGet(&dev, 0);
      },
      st, false);

  static CUcontext old;
  static CUevent E;
  static CUdeviceptr AP, VA;
  static CUmemGenericAllocationHandle MH;
  static CUmemoryPool MP;
  static char heap[4096];
  std::vector<pid_t> kids;
  for (int how = 0; how < 3; how++) {
    pid_t kid = fork();
    if (kid) {
      kids.push_back(kid);
      continue;
    }
    const char* w[] = {"after the last release of the primary context", "after cuDevicePrimaryCtxReset",
                       "after cuDevicePrimaryCtxReset and a new retain, set current"};
    auto setup = [how] {
      std_setup();
      old = ctx;
      E = event();
      cuEventRecord(E, S);
      CK(cuMemAllocAsync(&AP, K, S));
      CK(cuMemAddressReserve(&VA, P2, 0, 0, 0));
      auto pr = prop();
      CK(cuMemCreate(&MH, P2, &pr, 0));
      CK(cuMemMap(VA, P2, 0, MH, 0));
      auto ad = acc();
      CK(cuMemSetAccess(VA, P2, &ad, 1));
      auto pp = pprop();
      CK(cuMemPoolCreate(&MP, &pp));
      CK(cuMemHostRegister(R, 65536, 0));
      CK(cuCtxSynchronize());
      if (how == 0) CK(cuDevicePrimaryCtxRelease(dev));
      else CK(cuDevicePrimaryCtxReset(dev));
      if (how == 2) {
        CUcontext x;
        CK(cuDevicePrimaryCtxRetain(&x, dev));
        CK(cuCtxSetCurrent(x));
      }
    };
    Steps s;
    std::string sit = w[how];
#define AFTER(call, expr)                              \
  s.push_back({call, sit, [&](std::string& n) -> int { \
                 (void)n;                              \
                 return expr;                          \
               }});
    static CUcontext x;
    static size_t a, b;
    static int v;
    static CUdeviceptr q;
    static unsigned long long id;
    static void* h;
    s.push_back({"cuCtxGetCurrent", sit, [&](std::string& n) -> int {
                   int r = cuCtxGetCurrent(&x);
                   n = x == old ? "the old handle" : x ? "other handle" : "null";
                   return r;
                 }});
    AFTER("cuCtxSynchronize", cuCtxSynchronize())
    AFTER("cuCtxGetDevice", cuCtxGetDevice(&v)) AFTER("cuMemGetInfo", cuMemGetInfo(&a, &b)) AFTER("cuMemAlloc", cuMemAlloc(&q, 4096))
        AFTER("cuCtxSetCurrent(old handle)", cuCtxSetCurrent(old)) AFTER("cuCtxGetId(old handle)", cuCtxGetId(old, &id)) AFTER(
            "cuCtxPushCurrent(old handle)", ([] {
              int r = cuCtxPushCurrent(old);
              if (!r) cuCtxPopCurrent(&x);
              return r;
            })()) AFTER("cuStreamQuery(old stream)", cuStreamQuery(S)) AFTER("cuStreamSynchronize(old stream)", cuStreamSynchronize(S))
            AFTER("cuStreamGetId(old stream)", cuStreamGetId(S, &id)) AFTER("cuStreamDestroy(old stream)", cuStreamDestroy(S))
                AFTER("cuStreamQuery(0)", cuStreamQuery(0)) AFTER("cuEventQuery(old event)", cuEventQuery(E))
                    AFTER("cuEventSynchronize(old event)", cuEventSynchronize(E))
                        AFTER("cuEventRecord(old event, old stream)", cuEventRecord(E, S)) AFTER(
                            "cuEventRecord(old event, stream 0)", cuEventRecord(E, 0)) AFTER("cuEventDestroy(old event)", cuEventDestroy(E))
                            AFTER("cuStreamWaitEvent(old stream, old event)", cuStreamWaitEvent(S, E, 0)) AFTER(
                                "cuMemFree(old pointer)", cuMemFree(D)) AFTER("cuMemcpyHtoD(old pointer)", cuMemcpyHtoD(D, heap, 4096))
                                AFTER("cuMemFreeAsync(old pointer, old stream)", cuMemFreeAsync(AP, S))
                                    AFTER("cuMemFreeAsync(old pointer, stream 0)", cuMemFreeAsync(AP, 0)) AFTER(
                                        "cuMemFree(old async pointer)", cuMemFree(AP)) AFTER("cuMemFreeHost(old pinned)", cuMemFreeHost(H))
                                        AFTER("cuMemHostUnregister(old registration)", cuMemHostUnregister(R))
                                            AFTER("cuMemHostGetFlags(old registration)", cuMemHostGetFlags((unsigned*)&v, R))
                                                AFTER("cuMemHostRegister(the same range again)", cuMemHostRegister(R, 65536, 0))
                                                    AFTER("cuPointerGetAttribute MEMORY_TYPE (old pointer)",
                                                          cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, D))
                                                        AFTER("cuMemGetAddressRange(old pointer)", cuMemGetAddressRange(&q, &a, D))
                                                            s.push_back({"CPU read of old pinned memory", sit, [&](std::string& n) -> int {
                                                                           volatile char z = H[5];
                                                                           (void)z;
                                                                           n = "readable";
                                                                           return 0;
                                                                         }});
    AFTER("cuMemUnmap(old mapping)", cuMemUnmap(VA, P2))
    AFTER("cuMemRelease(old handle)", cuMemRelease(MH)) AFTER("cuMemAddressFree(old range)", cuMemAddressFree(VA, P2))
        AFTER("cuMemMap(handle just released, new range)", (cuMemAddressReserve(&q, P2, 0, 0, 0), cuMemMap(q, P2, 0, MH, 0)))
            AFTER("cuMemPoolDestroy(old pool)", cuMemPoolDestroy(MP)) AFTER("cuLaunchKernel(old function, old stream)", launch(k_empty, S))
                AFTER("cuLaunchKernel(old function, stream 0)", launch(k_empty, 0)) AFTER("cuMemHostAlloc", cuMemHostAlloc(&h, 4096, 0))
                    AFTER("cuDevicePrimaryCtxRelease (once more)", cuDevicePrimaryCtxRelease(dev))
                        AFTER("cuDevicePrimaryCtxReset (once more)", cuDevicePrimaryCtxReset(dev))
                            AFTER("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&x, dev)) run_steps("context", setup, s, false);
    // Alone, because a new retain revives the handles.
    Steps s3;
    s3.push_back({"memory", sit + ": does pool, VMM and host memory live on?", [&](std::string& n) -> int {
                    CUcontext y;
                    cuDevicePrimaryCtxRetain(&y, dev);
                    cuCtxSetCurrent(y);
                    int m = cuMemcpyHtoD(VA, heap, 16), p = cuMemcpyHtoD(AP, heap, 16), d = cuMemcpyHtoD(D, heap, 16);
                    n = fmt("in a newly retained context: copy to VMM mapping %d, to async allocation %d, to cuMemAlloc memory %d", m, p,
                            d);
                    return 0;
                  }});
    run_isolated("context", setup, s3);
    _exit(0);
  }
  for (auto p : kids) {
    int st2;
    waitpid(p, &st2, 0);
  }
}

void g_vmm() {
  Steps st;
  static CUdeviceptr va, q;
  static CUmemGenericAllocationHandle h, h2, h3;
  static size_t g;
  static CUmemoryPool mp, mp2;
  static CUdeviceptr p;
  static auto ad = acc();
  auto setup = [] {
    std_setup();
    auto pr = prop();
    CK(cuMemAddressReserve(&va, 8 * P2, 0, 0, 0));
    CK(cuMemCreate(&h, P2, &pr, 0));
    CK(cuMemCreate(&h2, 2 * P2, &pr, 0));
    CUdeviceptr guard;
    CK(cuMemAddressReserve(&guard, P2, 0, 0, 0));
  };
  for (auto lt : {CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA,
                  CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, CU_MEM_LOCATION_TYPE_INVALID})
    for (int rec = 0; rec < 2; rec++)
      for (int ht : {0, 1})
        st.push_back({"cuMemGetAllocationGranularity",
                      fmt("location type %d, %s, handle types %d", (int)lt, rec ? "recommended" : "minimum", ht),
                      [=](std::string& n) -> int {
                        auto pr = prop();
                        pr.location.type = lt;
                        pr.requestedHandleTypes = (CUmemAllocationHandleType)ht;
                        g = 0;
                        int r = cuMemGetAllocationGranularity(&g, &pr, (CUmemAllocationGranularity_flags)rec);
                        n = fmt("%zu", g);
                        return r;
                      }});
  STEP("cuMemGetAllocationGranularity", "device 99")
    auto pr = prop();
    pr.location.id = 99;
    return cuMemGetAllocationGranularity(&g, &pr, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  END
  STEP("cuMemGetAllocationGranularity", "option 5")
    auto pr = prop();
    return cuMemGetAllocationGranularity(&g, &pr, (CUmemAllocationGranularity_flags)5);
  END
  STEP("cuMemCreate", "2 MiB")
    auto pr = prop();
    return cuMemCreate(&h3, P2, &pr, 0);
  END
  STEP("cuMemCreate", "size 1 MiB (not a multiple)")
    auto pr = prop();
    return cuMemCreate(&h3, K, &pr, 0);
  END
  STEP("cuMemCreate", "size 2 MiB + 4096")
    auto pr = prop();
    return cuMemCreate(&h3, P2 + 4096, &pr, 0);
  END
  STEP("cuMemCreate", "size 0")
    auto pr = prop();
    return cuMemCreate(&h3, 0, &pr, 0);
  END
  STEP("cuMemCreate", "size 1 << 60")
    auto pr = prop();
    return cuMemCreate(&h3, 1ull << 60, &pr, 0);
  END
  STEP("cuMemCreate", "200 GiB")
    auto pr = prop();
    return cuMemCreate(&h3, 200ull << 30, &pr, 0);
  END
  STEP("cuMemCreate", "flags 1")
    auto pr = prop();
    return cuMemCreate(&h3, P2, &pr, 1);
  END
  STEP("cuMemCreate", "type 0")
    auto pr = prop();
    pr.type = (CUmemAllocationType)0;
    return cuMemCreate(&h3, P2, &pr, 0);
  END
  STEP("cuMemCreate", "type managed (2)")
    auto pr = prop();
    pr.type = CU_MEM_ALLOCATION_TYPE_MANAGED;
    return cuMemCreate(&h3, P2, &pr, 0);
  END
  STEP("cuMemCreate", "device 99")
    auto pr = prop();
    pr.location.id = 99;
    return cuMemCreate(&h3, P2, &pr, 0);
  END
  STEP("cuMemCreate", "handle type 2 (win32)")
    auto pr = prop();
    pr.requestedHandleTypes = CU_MEM_HANDLE_TYPE_WIN32;
    return cuMemCreate(&h3, P2, &pr, 0);
  END
  STEP("cuMemCreate", "handle type 8 (fabric)")
    auto pr = prop();
    pr.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    return cuMemCreate(&h3, P2, &pr, 0);
  END
  STEP("cuMemCreate", "handle type 0x40")
    auto pr = prop();
    pr.requestedHandleTypes = (CUmemAllocationHandleType)0x40;
    return cuMemCreate(&h3, P2, &pr, 0);
  END
  STEP("cuMemCreate", "gpuDirectRDMACapable")
    auto pr = prop();
    pr.allocFlags.gpuDirectRDMACapable = 1;
    int r = cuMemCreate(&h3, P2, &pr, 0);
    n = fmt("attribute GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED %d", attr(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED));
    return r;
  END
  STEP("cuMemCreate", "gpuDirectRDMACapable and posix fd")
    auto pr = prop();
    pr.allocFlags.gpuDirectRDMACapable = 1;
    pr.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return cuMemCreate(&h3, P2, &pr, 0);
  END
  STEP("cuMemCreate", "HOST_NUMA node 0, 2 MiB")
    auto pr = prop();
    pr.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    return cuMemCreate(&h3, P2, &pr, 0);
  END
  STEP("cuMemCreate", "HOST_NUMA node 7")
    auto pr = prop();
    pr.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    pr.location.id = 7;
    return cuMemCreate(&h3, P2, &pr, 0);
  END
  STEP("cuMemCreate", "HOST")
    auto pr = prop();
    pr.location.type = CU_MEM_LOCATION_TYPE_HOST;
    return cuMemCreate(&h3, P2, &pr, 0);
  END
  STEP("cuMemCreate", "null props")
    return cuMemCreate(&h3, P2, nullptr, 0);
  END
  STEP("cuMemAddressReserve", "16 MiB")
    return cuMemAddressReserve(&q, 8 * P2, 0, 0, 0);
  END
  STEP("cuMemAddressReserve", "16 MiB, alignment 1 GiB")
    int r = cuMemAddressReserve(&q, 8 * P2, 1ull << 30, 0, 0);
    n = fmt("aligned: %d", !(q & ((1ull << 30) - 1)));
    return r;
  END
  STEP("cuMemAddressReserve", "alignment 3")
    return cuMemAddressReserve(&q, P2, 3, 0, 0);
  END
  STEP("cuMemAddressReserve", "alignment 3 MiB")
    return cuMemAddressReserve(&q, P2, 3 << 20, 0, 0);
  END
  STEP("cuMemAddressReserve", "alignment 4096")
    int r = cuMemAddressReserve(&q, P2, 4096, 0, 0);
    n = fmt("address alignment %llu", q & -q);
    return r;
  END
  STEP("cuMemAddressReserve", "alignment 1 << 45")
    return cuMemAddressReserve(&q, P2, 1ull << 45, 0, 0);
  END
  STEP("cuMemAddressReserve", "size 0")
    return cuMemAddressReserve(&q, 0, 0, 0, 0);
  END
  STEP("cuMemAddressReserve", "size 4096")
    return cuMemAddressReserve(&q, 4096, 0, 0, 0);
  END
  STEP("cuMemAddressReserve", "size 2 MiB + 4096")
    return cuMemAddressReserve(&q, P2 + 4096, 0, 0, 0);
  END
  STEP("cuMemAddressReserve", "size 1 << 47")
    return cuMemAddressReserve(&q, 1ull << 47, 0, 0, 0);
  END
  STEP("cuMemAddressReserve", "size 1 << 44 (16 TiB)")
    int r = cuMemAddressReserve(&q, 1ull << 44, 0, 0, 0);
    if (!r) cuMemAddressFree(q, 1ull << 44);
    return r;
  END
  STEP("cuMemAddressReserve", "hint: address already reserved")
    int r = cuMemAddressReserve(&q, P2, 0, va, 0);
    n = q == va ? "same address" : "another address";
    return r;
  END
  STEP("cuMemAddressReserve", "hint: free address, 2 MiB aligned")
    CUdeviceptr t;
    cuMemAddressReserve(&t, 64 * P2, 0, 0, 0);
    cuMemAddressFree(t, 64 * P2);
    int r = cuMemAddressReserve(&q, P2, 0, t, 0);
    n = q == t ? "honoured" : "another address";
    return r;
  END
  STEP("cuMemAddressReserve", "hint: odd address")
    int r = cuMemAddressReserve(&q, P2, 0, va + 12345, 0);
    return r;
  END
  STEP("cuMemAddressReserve", "flags 1")
    return cuMemAddressReserve(&q, P2, 0, 0, 1);
  END
  STEP("cuMemMap", "size 1 MiB (not a multiple)")
    return cuMemMap(va, K, 0, h, 0);
  END
  STEP("cuMemMap", "size 4 MiB of a 2 MiB handle")
    return cuMemMap(va, 2 * P2, 0, h, 0);
  END
  STEP("cuMemMap", "size 0")
    return cuMemMap(va, 0, 0, h, 0);
  END
  STEP("cuMemMap", "offset 4096")
    return cuMemMap(va, P2, 4096, h, 0);
  END
  STEP("cuMemMap", "offset 2 MiB into a 4 MiB handle")
    int r = cuMemMap(va + 4 * P2, P2, P2, h2, 0);
    n = fmt("unmap %d", (int)cuMemUnmap(va + 4 * P2, P2));
    return r;
  END
  STEP("cuMemMap", "2 MiB of a 4 MiB handle, offset 0")
    int r = cuMemMap(va + 4 * P2, P2, 0, h2, 0);
    n = fmt("unmap %d", (int)cuMemUnmap(va + 4 * P2, P2));
    return r;
  END
  STEP("cuMemMap", "misaligned address")
    return cuMemMap(va + 4096, P2, 0, h, 0);
  END
  STEP("cuMemMap", "address that is not reserved")
    return cuMemMap(0x7f0000000000, P2, 0, h, 0);
  END
  STEP("cuMemMap", "flags 1")
    return cuMemMap(va, P2, 0, h, 1);
  END
  STEP("cuMemMap", "handle 0")
    return cuMemMap(va, P2, 0, 0, 0);
  END
  STEP("cuMemSetAccess", "reserved, not mapped")
    return cuMemSetAccess(va, P2, &ad, 1);
  END
  STEP("cuMemMap", "valid")
    return cuMemMap(va, P2, 0, h, 0);
  END
  STEP("cuMemMap", "over an existing mapping")
    return cuMemMap(va, P2, 0, h, 0);
  END
  STEP("cuMemMap", "the same handle at a second address")
    return cuMemMap(va + 2 * P2, P2, 0, h, 0);
  END
  STEP("cuMemSetAccess", "mapped")
    return cuMemSetAccess(va, P2, &ad, 1);
  END
  STEP("cuMemSetAccess", "the same again")
    return cuMemSetAccess(va, P2, &ad, 1);
  END
  STEP("cuMemSetAccess", "half of a mapping (1 MiB)")
    return cuMemSetAccess(va, K, &ad, 1);
  END
  STEP("cuMemSetAccess", "mapped and unmapped part together")
    return cuMemSetAccess(va, 2 * P2, &ad, 1);
  END
  STEP("cuMemSetAccess", "device 99")
    auto x = acc();
    x.location.id = 99;
    return cuMemSetAccess(va, P2, &x, 1);
  END
  STEP("cuMemSetAccess", "host NUMA location on device memory")
    auto x = acc();
    x.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    return cuMemSetAccess(va, P2, &x, 1);
  END
  STEP("cuMemSetAccess", "flags 2 (invalid)")
    auto x = acc();
    x.flags = (CUmemAccess_flags)2;
    return cuMemSetAccess(va, P2, &x, 1);
  END
  STEP("cuMemSetAccess", "count 0")
    return cuMemSetAccess(va, P2, &ad, 0);
  END
  STEP("cuMemSetAccess", "null descriptors")
    return cuMemSetAccess(va, P2, nullptr, 1);
  END
  STEP("cuMemSetAccess", "PROT_NONE after READWRITE, then READWRITE again")
    auto x = acc();
    x.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    int r = cuMemSetAccess(va, P2, &x, 1);
    unsigned long long fl = 9;
    cuMemGetAccess(&fl, &ad.location, va);
    n = seq({{"access now", (int)fl}, {"again", cuMemSetAccess(va, P2, &ad, 1)}});
    return r;
  END
  STEP("cuMemGetAccess", "mapped without access")
    unsigned long long fl = 9;
    int r = cuMemGetAccess(&fl, &ad.location, va + 2 * P2);
    n = fmt("%llu", fl);
    return r;
  END
  STEP("cuMemGetAccess", "reserved, not mapped")
    unsigned long long fl = 9;
    int r = cuMemGetAccess(&fl, &ad.location, va + P2);
    n = fmt("%llu", fl);
    return r;
  END
  STEP("cuMemUnmap", "part of a mapping (1 MiB of 2)")
    return cuMemUnmap(va, K);
  END
  STEP("cuMemUnmap", "2 MiB of a mapping of 4 MiB")
    cuMemMap(va + 4 * P2, 2 * P2, 0, h2, 0);
    return cuMemUnmap(va + 4 * P2, P2);
  END
  STEP("cuMemUnmap", "4 MiB: one mapping of 4 MiB")
    return cuMemUnmap(va + 4 * P2, 2 * P2);
  END
  STEP("cuMemUnmap", "not mapped")
    return cuMemUnmap(va + 6 * P2, P2);
  END
  STEP("cuMemAddressFree", "wrong size")
    return cuMemAddressFree(va, 4 * P2);
  END
  STEP("cuMemAddressFree", "interior address")
    return cuMemAddressFree(va + P2, P2);
  END
  STEP("cuMemRelease", "while mapped")
    return cuMemRelease(h);
  END
  STEP("cuMemcpyHtoD", "mapping whose handle was released")
    cuMemSetAccess(va, P2, &ad, 1);
    static char b[64];
    return cuMemcpyHtoD(va, b, 64);
  END
  STEP("cuMemRetainAllocationHandle", "mapped address")
    int r = cuMemRetainAllocationHandle(&h3, (void*)(va + 100));
    n = h3 == h ? "same handle" : "other handle";
    if (!r) n += fmt(", release %d", (int)cuMemRelease(h3));
    return r;
  END
  STEP("cuMemRetainAllocationHandle", "cuMemAlloc pointer")
    return cuMemRetainAllocationHandle(&h3, (void*)D);
  END
  STEP("cuMemRetainAllocationHandle", "not mapped")
    return cuMemRetainAllocationHandle(&h3, (void*)(va + P2));
  END
  STEP("cuMemFree", "VMM address")
    return cuMemFree(va);
  END
  STEP("cuMemUnmap", "valid, last mapping of a released handle")
    cuMemUnmap(va + 2 * P2, P2);
    return cuMemUnmap(va, P2);
  END
  STEP("cuMemRelease", "0")
    return cuMemRelease(0);
  END
  STEP("cuMemUnmap", "twice")
    return cuMemUnmap(va, P2);
  END
  STEP("cuMemUnmap", "while a kernel spins on the memory's stream")
    auto pr = prop();
    cuMemCreate(&h3, P2, &pr, 0);
    cuMemMap(va, P2, 0, h3, 0);
    cuMemSetAccess(va, P2, &ad, 1);
    W[0] = 0;
    spin(S, (void*)W, 1000000000ull);
    auto a = clk::now();
    int r = cuMemUnmap(va, P2);
    double us = ns_between(a, clk::now()) / 1e3;
    int q2 = cuStreamQuery(S);
    W[0] = 1;
    n = fmt("%.0f us, stream %d", us, q2);
    cuCtxSynchronize();
    cuMemRelease(h3);
    return r;
  END
  STEP("cuMemAddressFree", "valid")
    return cuMemAddressFree(va, 8 * P2);
  END
  STEP("cuMemAddressFree", "twice")
    return cuMemAddressFree(va, 8 * P2);
  END
  STEP("cuMemAddressFree", "unknown")
    return cuMemAddressFree(0x7f0000000000, P2);
  END
  STEP("cuMemMap", "one handle over two adjacent reservations")
    CUdeviceptr a, b;
    cuMemAddressReserve(&a, 2 * P2, 0, 0, 0);
    cuMemAddressFree(a, 2 * P2);
    int r1 = cuMemAddressReserve(&b, P2, 0, a, 0), r2 = cuMemAddressReserve(&q, P2, 0, a + P2, 0);
    n = fmt("reservations %d %d adjacent %d", r1, r2, b == a && q == a + P2);
    if (b != a || q != a + P2) return SKIP;
    return cuMemMap(a, 2 * P2, 0, h2, 0);
  END
  STEP("cuMemExportToShareableHandle", "handle without handle types, posix fd")
    int fd = -1;
    return cuMemExportToShareableHandle(&fd, h2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  END
  STEP("cuMemExportToShareableHandle", "posix fd, and imported in the same process")
    auto pr = prop();
    pr.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    cuMemCreate(&h3, P2, &pr, 0);
    int fd = -1;
    int r = cuMemExportToShareableHandle(&fd, h3, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    CUmemGenericAllocationHandle hi = 0;
    int i = cuMemImportFromShareableHandle(&hi, (void*)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    n = fmt("import %d, %s handle", i, hi == h3 ? "same" : "other");
    close(fd);
    return r;
  END
  STEP("cuMemImportFromShareableHandle", "fd of /dev/null")
    CUmemGenericAllocationHandle hi;
    int fd = open("/dev/null", O_RDONLY);
    return cuMemImportFromShareableHandle(&hi, (void*)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  END
  STEP("cuMemImportFromShareableHandle", "fd -1")
    CUmemGenericAllocationHandle hi;
    return cuMemImportFromShareableHandle(&hi, (void*)(intptr_t)-1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  END
  STEP("cuMemGetAllocationPropertiesFromHandle", "valid")
    CUmemAllocationProp x{};
    int r = cuMemGetAllocationPropertiesFromHandle(&x, h3);
    n = fmt("type %d, handle types %d, location %d:%d", (int)x.type, (int)x.requestedHandleTypes, (int)x.location.type, x.location.id);
    return r;
  END
  // Pools.
  auto pool = [&](const char* sit, std::function<void(CUmemPoolProps&)> f) {
    st.push_back({"cuMemPoolCreate", sit, [=](std::string& n) -> int {
                    auto x = pprop();
                    f(x);
                    CUmemoryPool m = 0;
                    int r = cuMemPoolCreate(&m, &x);
                    if (!r) {
                      CUdeviceptr z = 0;
                      int a = cuMemAllocFromPoolAsync(&z, K, m, S);
                      n = fmt("allocate %d", a);
                      if (!a) {
                        cuMemFreeAsync(z, S);
                        cuStreamSynchronize(S);
                      }
                      n += fmt(", destroy %d", (int)cuMemPoolDestroy(m));
                    }
                    return r;
                  }});
  };
  pool("device", [](auto&) {});
  pool("posix fd", [](auto& x) { x.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; });
  pool("win32", [](auto& x) { x.handleTypes = CU_MEM_HANDLE_TYPE_WIN32; });
  pool("fabric", [](auto& x) { x.handleTypes = CU_MEM_HANDLE_TYPE_FABRIC; });
  pool("posix fd | fabric", [](auto& x) { x.handleTypes = (CUmemAllocationHandleType)9; });
  pool("handle types 0x40", [](auto& x) { x.handleTypes = (CUmemAllocationHandleType)0x40; });
  pool("allocType 0", [](auto& x) { x.allocType = (CUmemAllocationType)0; });
  pool("allocType managed, device", [](auto& x) { x.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED; });
  pool("allocType 9", [](auto& x) { x.allocType = (CUmemAllocationType)9; });
  pool("device 99", [](auto& x) { x.location.id = 99; });
  pool("location type 0", [](auto& x) { x.location.type = (CUmemLocationType)0; });
  pool("location type 99", [](auto& x) { x.location.type = (CUmemLocationType)99; });
  pool("HOST", [](auto& x) { x.location.type = CU_MEM_LOCATION_TYPE_HOST; });
  pool("HOST, id 5", [](auto& x) {
    x.location.type = CU_MEM_LOCATION_TYPE_HOST;
    x.location.id = 5;
  });
  pool("HOST, posix fd", [](auto& x) {
    x.location.type = CU_MEM_LOCATION_TYPE_HOST;
    x.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  });
  pool("HOST_NUMA node 0, posix fd", [](auto& x) {
    x.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    x.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  });
  pool("HOST_NUMA node 7", [](auto& x) {
    x.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    x.location.id = 7;
  });
  pool("HOST_NUMA_CURRENT", [](auto& x) { x.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT; });
  pool("reserved byte set", [](auto& x) { x.reserved[3] = 1; });
  pool("usage 0x8000", [](auto& x) { x.usage = 0x8000; });
  pool("maxSize 1", [](auto& x) { x.maxSize = 1; });
  pool("maxSize 1 << 60", [](auto& x) { x.maxSize = 1ull << 60; });
  pool("win32SecurityAttributes set", [](auto& x) {
    static int d;
    x.win32SecurityAttributes = &d;
  });
  STEP("cuMemPoolCreate", "null props")
    return cuMemPoolCreate(&mp, nullptr);
  END
  STEP("cuMemAllocFromPoolAsync", "over maxSize (pool of 32 MiB, asks 64)")
    auto x = pprop();
    x.maxSize = 32 << 20;
    cuMemPoolCreate(&mp2, &x);
    p = 1;
    int r = cuMemAllocFromPoolAsync(&p, 64 << 20, mp2, S);
    n = fmt("pointer %llx", p);
    return r;
  END
  STEP("cuMemPoolDestroy", "live allocation")
    auto x = pprop();
    cuMemPoolCreate(&mp, &x);
    cuMemAllocFromPoolAsync(&p, K, mp, S);
    cuStreamSynchronize(S);
    int r = cuMemPoolDestroy(mp);
    static char b[64];
    n = seq({{"copy to the allocation", cuMemcpyHtoD(p, b, 64)},
             {"cuMemAllocFromPoolAsync of the destroyed pool", cuMemAllocFromPoolAsync(&q, K, mp, S)},
             {"cuMemFreeAsync", cuMemFreeAsync(p, S)},
             {"cuStreamSynchronize", cuStreamSynchronize(S)}});
    return r;
  END
  STEP("cuMemPoolDestroy", "freed but not synchronised")
    auto x = pprop();
    cuMemPoolCreate(&mp, &x);
    cuMemAllocFromPoolAsync(&p, K, mp, S);
    cuMemFreeAsync(p, S);
    return cuMemPoolDestroy(mp);
  END
  STEP("cuMemPoolDestroy", "default pool")
    cuDeviceGetDefaultMemPool(&mp, dev);
    return cuMemPoolDestroy(mp);
  END
  STEP("cuMemPoolDestroy", "null")
    return cuMemPoolDestroy(nullptr);
  END
  STEP("cuMemPoolDestroy", "current pool of the device")
    auto x = pprop();
    cuMemPoolCreate(&mp, &x);
    cuDeviceSetMemPool(dev, mp);
    int r = cuMemPoolDestroy(mp);
    CUmemoryPool c, d;
    cuDeviceGetMemPool(&c, dev);
    cuDeviceGetDefaultMemPool(&d, dev);
    n = c == d ? "current pool is the default again" : "current pool is not the default";
    return r;
  END
  STEP("cuMemPoolDestroy", "twice")
    auto x = pprop();
    cuMemPoolCreate(&mp, &x);
    cuMemPoolDestroy(mp);
    return cuMemPoolDestroy(mp);
  END
  STEP("cuMemPoolSetAttribute", "attribute 99")
    cuDeviceGetDefaultMemPool(&mp, dev);
    cuuint64_t v = 0;
    return cuMemPoolSetAttribute(mp, (CUmemPool_attribute)99, &v);
  END
  STEP("cuMemPoolSetAttribute", "USED_MEM_CURRENT (read-only)")
    cuuint64_t v = 0;
    return cuMemPoolSetAttribute(mp, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v);
  END
  STEP("cuMemPoolSetAttribute", "USED_MEM_HIGH to 0")
    cuuint64_t v = 0;
    return cuMemPoolSetAttribute(mp, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &v);
  END
  STEP("cuMemPoolSetAttribute", "USED_MEM_HIGH to 5")
    cuuint64_t v = 5;
    return cuMemPoolSetAttribute(mp, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &v);
  END
  STEP("cuMemPoolTrimTo", "more than reserved")
    return cuMemPoolTrimTo(mp, 1ull << 50);
  END
  STEP("cuMemPoolSetAccess", "the pool's own device to NONE")
    CUmemAccessDesc x = acc();
    x.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    auto y = pprop();
    cuMemPoolCreate(&mp2, &y);
    return cuMemPoolSetAccess(mp2, &x, 1);
  END
  STEP("cuMemPoolSetAccess", "the pool's own device to READ")
    CUmemAccessDesc x = acc();
    x.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    return cuMemPoolSetAccess(mp2, &x, 1);
  END
  STEP("cuMemPoolSetAccess", "device 99")
    CUmemAccessDesc x = acc();
    x.location.id = 99;
    return cuMemPoolSetAccess(mp2, &x, 1);
  END
  STEP("cuMemPoolGetAccess", "the pool's own device")
    CUmemLocation l{};
    l.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccess_flags f;
    int r = cuMemPoolGetAccess(&f, mp2, &l);
    n = fmt("%d", (int)f);
    return r;
  END
  STEP("cuMemPoolExportToShareableHandle", "pool without handle types")
    int fd = -1;
    return cuMemPoolExportToShareableHandle(&fd, mp2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  END
  STEP("cuMemPoolExportPointer", "pointer of a pool without handle types")
    CUmemPoolPtrExportData d;
    cuMemAllocFromPoolAsync(&p, K, mp2, S);
    cuStreamSynchronize(S);
    return cuMemPoolExportPointer(&d, p);
  END
  STEP("cuMemPoolExportPointer", "cuMemAlloc pointer")
    CUmemPoolPtrExportData d;
    return cuMemPoolExportPointer(&d, D);
  END
  STEP("cuDeviceSetMemPool", "null pool")
    return cuDeviceSetMemPool(dev, nullptr);
  END
  STEP("cuMemGetDefaultMemPool", "HOST_NUMA_CURRENT")
    CUmemLocation l{};
    l.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    return cuMemGetDefaultMemPool(&mp, &l, CU_MEM_ALLOCATION_TYPE_PINNED);
  END
  run_steps("vmm", setup, st);
  st.clear();  // what may crash the driver, each alone
  STEP("cuMemUnmap", "range with a hole (mapped, free, mapped)")
    cuMemMap(va, P2, 0, h, 0);
    cuMemMap(va + 2 * P2, P2, 0, h, 0);
    return cuMemUnmap(va, 3 * P2);
  END
  STEP("cuMemAddressFree", "while mapped")
    cuMemMap(va, P2, 0, h, 0);
    cuMemSetAccess(va, P2, &ad, 1);
    int r = cuMemAddressFree(va, 8 * P2);
    static char b[64];
    n = seq({{"copy to the mapping", cuMemcpyHtoD(va, b, 64)},
             {"cuMemUnmap", cuMemUnmap(va, P2)},
             {"cuMemAddressFree", cuMemAddressFree(va, 8 * P2)}});
    return r;
  END
  STEP("cuMemMap", "garbage handle")
    return cuMemMap(va, P2, 0, 0x123456789, 0);
  END
  STEP("cuMemRelease", "garbage")
    return cuMemRelease(0x123456789);
  END
  STEP("cuMemMap", "the last page reaches beyond the reservation")
    CUdeviceptr a;
    cuMemAddressReserve(&a, 64 * P2, 0, 0, 0);
    cuMemAddressFree(a, 64 * P2);
    int r0 = cuMemAddressReserve(&q, P2, 0, a, 0);
    n = fmt("reservation %d %d", r0, q == a);
    return cuMemMap(q, 2 * P2, 0, h2, 0);
  END
  STEP("cuMemMap", "released handle whose memory is still mapped")
    cuMemMap(va, P2, 0, h, 0);
    cuMemRelease(h);
    return cuMemMap(va + 3 * P2, P2, 0, h, 0);
  END
  STEP("cuMemRelease", "released handle, again, still mapped")
    cuMemMap(va, P2, 0, h, 0);
    cuMemRelease(h);
    int r = cuMemRelease(h);
    cuMemSetAccess(va, P2, &ad, 1);
    static char b[64];
    n = fmt("copy to the mapping %d", (int)cuMemcpyHtoD(va, b, 64));
    return r;
  END
  STEP("cuMemRelease", "released handle, again, never mapped")
    cuMemRelease(h);
    return cuMemRelease(h);
  END
  STEP("cuMemRelease", "handle whose memory is gone")
    cuMemMap(va, P2, 0, h, 0);
    cuMemRelease(h);
    cuMemUnmap(va, P2);
    return cuMemRelease(h);
  END
  STEP("cuMemPoolDestroy", "live allocation, freed afterwards behind a synchronisation")
    auto x = pprop();
    cuMemPoolCreate(&mp, &x);
    cuMemAllocFromPoolAsync(&p, K, mp, S);
    cuStreamSynchronize(S);
    int r = cuMemPoolDestroy(mp);
    static char b[64];
    n = seq({{"copy", cuMemcpyHtoD(p, b, 64)},
             {"cuCtxSynchronize", cuCtxSynchronize()},
             {"cuMemFreeAsync", cuMemFreeAsync(p, S)},
             {"cuStreamSynchronize", cuStreamSynchronize(S)},
             {"cuCtxSynchronize", cuCtxSynchronize()},
             {"cuMemAlloc", cuMemAlloc(&q, 4096)}});
    return r;
  END
  STEP("cuMemcpyHtoD", "pageable 64 bytes, then cuMemFreeAsync on a non-blocking stream at once (pool destroyed)")
    auto x = pprop();
    cuMemPoolCreate(&mp, &x);
    cuMemAllocFromPoolAsync(&p, K, mp, S);
    cuStreamSynchronize(S);
    cuMemPoolDestroy(mp);
    static char b[64];
    int r = cuMemcpyHtoD(p, b, 64);
    n = seq({{"cuMemFreeAsync", cuMemFreeAsync(p, S)},
             {"cuStreamSynchronize", cuStreamSynchronize(S)},
             {"cuCtxSynchronize", cuCtxSynchronize()}});
    return r;
  END
  run_isolated("vmm", setup, st, 8);
}

void g_sticky() {  // after an illegal address: what still works? One child, so the later rows see the same broken context.
  Steps st;
  static size_t a, b;
  static CUcontext c;
  static int v;
  static CUdeviceptr q;
  static void* h;
  static CUstream s;
  static CUevent e, e2;
  static unsigned f;
  static unsigned long long id;
  static CUmemGenericAllocationHandle mh;
  static CUmemoryPool mp;
  static CUdeviceptr va, AS, VM;
  static CUgraph g;
  static char heap[4096];
#define ST(call, expr)                                                                     \
  st.push_back({call, "after an illegal address in a kernel", [&](std::string& n) -> int { \
                  (void)n;                                                                 \
                  return expr;                                                             \
                }});
  ST("cuStreamQuery(the faulting stream)", cuStreamQuery(S)) ST("cuStreamQuery(another stream)", cuStreamQuery(O)) ST("cuStreamSynchronize", cuStreamSynchronize(S)) ST("cuCtxSynchronize", cuCtxSynchronize()) ST("cuEventQuery(done before)", cuEventQuery(DONE)) ST("cuEventQuery(never recorded)", cuEventQuery(NEVER)) ST("cuEventQuery(recorded behind the fault)", cuEventQuery(e2)) ST("cuEventSynchronize(done before)", cuEventSynchronize(DONE)) ST("cuEventRecord", cuEventRecord(NEVER, O)) ST("cuStreamWaitEvent", cuStreamWaitEvent(O, DONE, 0)) ST("cuLaunchKernel", launch(k_empty, O)) ST("cuLaunchHostFunc", cuLaunchHostFunc(O, [](void*) {}, nullptr)) ST("cuStreamWriteValue64", cuStreamWriteValue64(O, D, 1, 0))
  ST("cuMemAlloc", cuMemAlloc(&q, 4096)) ST("cuMemAlloc(size 0)", cuMemAlloc(&q, 0)) ST("cuMemAllocAsync", cuMemAllocAsync(&q, 4096, O)) ST("cuMemFreeAsync", cuMemFreeAsync(AS, O)) ST("cuMemHostAlloc", cuMemHostAlloc(&h, 4096, 0)) ST("cuMemHostRegister", cuMemHostRegister(R, 4096, 0)) ST("cuMemcpyHtoD", cuMemcpyHtoD(D, heap, 16)) ST("cuMemcpyDtoH", cuMemcpyDtoH(heap, D, 16)) ST("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync(D, H, 16, O)) ST("cuMemsetD8Async", cuMemsetD8Async(D, 0, 16, O)) ST("cuMemGetInfo", cuMemGetInfo(&a, &b)) ST("cuMemGetAddressRange", cuMemGetAddressRange(&q, &a, D)) ST("cuPointerGetAttribute", cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, D)) ST("cuMemHostGetFlags", cuMemHostGetFlags(&f, H)) ST("cuMemHostGetDevicePointer", cuMemHostGetDevicePointer(&q, H, 0))
  ST("cuCtxGetCurrent", cuCtxGetCurrent(&c)) ST("cuCtxSetCurrent", cuCtxSetCurrent(ctx)) ST("cuCtxPushCurrent", cuCtxPushCurrent(ctx)) ST("cuCtxPopCurrent", cuCtxPopCurrent(&c)) ST("cuCtxGetDevice", cuCtxGetDevice(&v)) ST("cuCtxGetId", cuCtxGetId(ctx, &id)) ST("cuDriverGetVersion", cuDriverGetVersion(&v)) ST("cuInit", cuInit(0)) ST("cuDeviceGetAttribute", cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, dev)) ST("cuThreadExchangeStreamCaptureMode", ([] { CUstreamCaptureMode x = CU_STREAM_CAPTURE_MODE_GLOBAL; return cuThreadExchangeStreamCaptureMode(&x); })()) ST("cuStreamGetId", cuStreamGetId(O, &id)) ST("cuStreamIsCapturing", cuStreamIsCapturing(O, (CUstreamCaptureStatus*)&v)) ST("cuStreamGetCtx", cuStreamGetCtx(O, &c)) ST("cuStreamCreate", cuStreamCreate(&s, 1)) ST("cuEventCreate", cuEventCreate(&e, 2)) ST("cuStreamBeginCapture", cuStreamBeginCapture(O, CU_STREAM_CAPTURE_MODE_RELAXED)) ST("cuStreamEndCapture", cuStreamEndCapture(O, &g))
  ST("cuMemAddressReserve", cuMemAddressReserve(&va, P2, 0, 0, 0)) ST("cuMemCreate", ([] { auto p = prop(); return cuMemCreate(&mh, P2, &p, 0); })()) ST("cuMemMap", cuMemMap(va, P2, 0, mh, 0)) ST("cuMemSetAccess", ([] { auto x = acc(); return cuMemSetAccess(VM, P2, &x, 1); })()) ST("cuMemUnmap", cuMemUnmap(VM, P2)) ST("cuMemRelease", cuMemRelease(mh)) ST("cuMemAddressFree", cuMemAddressFree(VM, P2)) ST("cuMemPoolCreate", ([] { auto p = pprop(); return cuMemPoolCreate(&mp, &p); })()) ST("cuMemPoolTrimTo(default pool)", ([] { CUmemoryPool m; int r = cuDeviceGetDefaultMemPool(&m, dev); return r ? r : (int)cuMemPoolTrimTo(m, 0); })()) ST("cuIpcGetMemHandle", ([] { CUipcMemHandle x; return cuIpcGetMemHandle(&x, D); })()) ST("cuModuleLoadData", ([] { CUmodule x; return cuModuleLoadData(&x, ptx); })())
  ST("cuEventDestroy", cuEventDestroy(DONE)) ST("cuStreamDestroy", cuStreamDestroy(O)) ST("cuMemHostUnregister", cuMemHostUnregister(R + K / 2)) ST("cuMemFreeHost", cuMemFreeHost(H)) ST("cuMemFree", cuMemFree(D)) ST("cuMemFree(null)", cuMemFree(0)) ST("cuMemFree(unknown)", cuMemFree(0x7f1234560000)) ST("cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState(dev, &f, &v)) ST("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&c, dev)) ST("cuMemAlloc in the context retained again", (cuCtxSetCurrent(c), cuMemAlloc(&q, 4096))) ST("cuDevicePrimaryCtxRelease (one of two)", cuDevicePrimaryCtxRelease(dev))
  ST("cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset(dev)) ST("cuCtxSynchronize after the reset", cuCtxSynchronize()) ST("cuMemAlloc after the reset, old context current", cuMemAlloc(&q, 4096)) ST("cuDevicePrimaryCtxRetain after the reset", cuDevicePrimaryCtxRetain(&c, dev)) ST("cuMemAlloc after reset, retain and set current", (cuCtxSetCurrent(c), cuMemAlloc(&q, 4096)))
  run_steps("sticky", [] { std_setup(); e2 = event(); CK(cuMemAllocAsync(&AS, K, O)); CK(cuMemHostRegister(R + K / 2, 4096, 0)); auto p = prop(); CUmemGenericAllocationHandle m0; CK(cuMemCreate(&m0, P2, &p, 0)); CK(cuMemAddressReserve(&VM, P2, 0, 0, 0)); CK(cuMemMap(VM, P2, 0, m0, 0)); CK(cuCtxSynchronize()); launch(k_bad, S); cuEventRecord(e2, S); cuStreamSynchronize(S); }, st, false);
  // Release instead of reset, and a write through read-only access, each alone.
  Steps i;
  auto bad = [] {
    launch(k_bad, S);
    cuStreamSynchronize(S);
  };
  i.push_back({"cuDevicePrimaryCtxRelease", "the last, after an illegal address; then a new retain", [&](std::string& n) -> int {
                 bad();
                 int r = cuDevicePrimaryCtxRelease(dev);
                 CUcontext x = 0;
                 int t = cuDevicePrimaryCtxRetain(&x, dev);
                 cuCtxSetCurrent(x);
                 n = fmt("retain %d", t);
                 n += fmt(", cuMemAlloc %d", (int)cuMemAlloc(&q, 4096));
                 return r;
               }});
  i.push_back(
      {"first call that reports", "kernel fault, no synchronisation: cuStreamQuery until it is not 600", [&](std::string& n) -> int {
         launch(k_bad, S);
         return until_ready([] { return cuStreamQuery(S); }, 3000);
       }});
  i.push_back({"cuMemFree", "first call after a kernel fault that nobody has seen yet", [&](std::string& n) -> int {
                 launch(k_bad, S);
                 usleep(300000);
                 int r = cuMemFree(D);
                 n = fmt("then cuMemAlloc %d", (int)cuMemAlloc(&q, 4096));
                 return r;
               }});
  i.push_back({"cuMemGetInfo", "first call after a kernel fault that nobody has seen yet", [&](std::string& n) -> int {
                 launch(k_bad, S);
                 usleep(300000);
                 return cuMemGetInfo(&a, &b);
               }});
  i.push_back(
      {"second context", "kernel fault in the primary context: is another context of the process hurt?", [&](std::string& n) -> int {
         CUcontext c2;
         int r0 = cuCtxCreate(&c2, nullptr, 0, dev);
         cuCtxSetCurrent(ctx);
         bad();
         cuCtxSetCurrent(c2);
         int r = cuMemAlloc(&q, 4096);
         n = fmt("create %d, synchronize %d", r0, (int)cuCtxSynchronize());
         return r;
       }});
  i.push_back({"kernel store", "VMM mapping with READ access", [&](std::string& n) -> int {
                 auto p = prop();
                 auto x = acc();
                 x.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
                 CUmemGenericAllocationHandle m0;
                 CUdeviceptr z;
                 cuMemCreate(&m0, P2, &p, 0);
                 cuMemAddressReserve(&z, P2, 0, 0, 0);
                 cuMemMap(z, P2, 0, m0, 0);
                 int sa = cuMemSetAccess(z, P2, &x, 1);
                 launch(k_poke, S, {z, 1});
                 n = fmt("cuMemSetAccess %d", sa);
                 return cuStreamSynchronize(S);
               }});
  i.push_back({"kernel store", "memory after cuMemFree (32 MiB)", [&](std::string& n) -> int {
                 CUdeviceptr z;
                 cuMemAlloc(&z, 32 * K);
                 cuMemFree(z);
                 launch(k_poke, S, {z, 1});
                 return cuStreamSynchronize(S);
               }});
  i.push_back({"kernel store", "memory after cuMemFreeAsync and a synchronisation, pool keeps it", [&](std::string& n) -> int {
                 CUmemoryPool m;
                 cuDeviceGetDefaultMemPool(&m, dev);
                 cuuint64_t t = ~0ull;
                 cuMemPoolSetAttribute(m, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &t);
                 CUdeviceptr z;
                 cuMemAllocAsync(&z, 32 * K, S);
                 cuMemFreeAsync(z, S);
                 cuStreamSynchronize(S);
                 launch(k_poke, S, {z, 1});
                 return cuStreamSynchronize(S);
               }});
  i.push_back({"kernel store", "pageable host memory", [&](std::string& n) -> int {
                 launch(k_poke, S, {(uint64_t)heap, 1});
                 return cuStreamSynchronize(S);
               }});
  i.push_back({"kernel store", "memory unmapped with cuMemUnmap", [&](std::string& n) -> int {
                 auto p = prop();
                 auto x = acc();
                 CUmemGenericAllocationHandle m0;
                 CUdeviceptr z;
                 cuMemCreate(&m0, P2, &p, 0);
                 cuMemAddressReserve(&z, P2, 0, 0, 0);
                 cuMemMap(z, P2, 0, m0, 0);
                 cuMemSetAccess(z, P2, &x, 1);
                 cuMemUnmap(z, P2);
                 launch(k_poke, S, {z, 1});
                 return cuStreamSynchronize(S);
               }});
  i.push_back({"kernel store", "misaligned address (+1)", [&](std::string& n) -> int {
                 launch(k_poke, S, {D + 1, 1});
                 return cuStreamSynchronize(S);
               }});
  i.push_back({"process exit", "after an illegal address: exit() runs the driver's handlers", [&](std::string& n) -> int {
                 bad();
                 pid_t me = getpid();
                 (void)me;
                 std::string nn;
                 code("sticky", "exit(0)", "after an illegal address: reached", 0);
                 exit(0);
               }});
  run_isolated("sticky", std_setup, i, 3);
}

void g_fork() {  // driver calls in a forked child, after the parent has used the driver
  for (int stage = 0; stage < 2; stage++) {
    pid_t f = fork();
    if (!f) {
      alarm(60);
      if (stage) std_setup();
      else cuInit(0);
      const char* sit =
          stage ? "in a child forked after the parent made a context" : "in a child forked after the parent called cuInit only";
      Steps st;
      static CUcontext c;
      static int v;
      static CUdeviceptr q;
      static size_t a, b;
      static void* h;
      static CUevent e;
      static unsigned long long id;
      static char heap[4096];
      static const char* sx;
      static CUstream s;
#define FK(call, expr)                                  \
  st.push_back({call, sit, [&](std::string& n) -> int { \
                  (void)n;                              \
                  return expr;                          \
                }});
      FK("cuInit", cuInit(0))
      FK("cuDriverGetVersion", cuDriverGetVersion(&v)) FK("cuGetErrorName", cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &sx)) FK(
          "cuDeviceGetCount", cuDeviceGetCount(&v)) FK("cuDeviceGetAttribute", cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0))
          FK("cuCtxGetCurrent", cuCtxGetCurrent(&c)) FK("cuCtxSetCurrent(null)", cuCtxSetCurrent(nullptr))
              FK("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&c, 0))
                  FK("cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState(0, (unsigned*)&v, &v)) FK("cuMemAlloc", cuMemAlloc(&q, 4096))
                      FK("cuMemFree(null)", cuMemFree(0)) FK("cuMemHostAlloc", cuMemHostAlloc(&h, 4096, 0))
                          FK("cuMemGetInfo", cuMemGetInfo(&a, &b)) FK("cuThreadExchangeStreamCaptureMode", ([] {
                                                                        CUstreamCaptureMode x = CU_STREAM_CAPTURE_MODE_RELAXED;
                                                                        return cuThreadExchangeStreamCaptureMode(&x);
                                                                      })())
                              FK("cuPointerGetAttribute(pageable)",
                                 cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)heap)) if (stage) {
        FK("cuCtxSetCurrent(parent's)", cuCtxSetCurrent(ctx))
        FK("cuCtxSynchronize", cuCtxSynchronize()) FK("cuStreamQuery(parent's)", cuStreamQuery(S))
            FK("cuStreamSynchronize(parent's)", cuStreamSynchronize(S)) FK("cuStreamGetId(parent's)", cuStreamGetId(S, &id))
                FK("cuStreamCreate", cuStreamCreate(&s, 1)) FK("cuEventQuery(parent's)", cuEventQuery(DONE)) FK(
                    "cuEventRecord(parent's)", cuEventRecord(DONE, S)) FK("cuEventCreate", cuEventCreate(&e, 2))
                    FK("cuEventDestroy(parent's)", cuEventDestroy(DONE)) FK("cuStreamDestroy(parent's)", cuStreamDestroy(O)) FK(
                        "cuMemFree(parent's)", cuMemFree(D)) FK("cuMemFreeHost(parent's)", cuMemFreeHost(H))
                        FK("cuMemHostRegister", cuMemHostRegister(R, 4096, 0)) FK("cuMemHostUnregister(unknown)", cuMemHostUnregister(heap))
                            FK("cuMemcpyDtoH(parent's)", cuMemcpyDtoH(heap, D, 16))
                                FK("cuMemAllocAsync(parent's stream)", cuMemAllocAsync(&q, 4096, S))
                                    FK("cuPointerGetAttribute(parent's)", cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, D))
                                        FK("cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease(0))
                                            FK("cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset(0))
                                                st.push_back({"CPU read of the parent's pinned memory", sit, [&](std::string& n) -> int {
                                                                volatile char z = H[7];
                                                                (void)z;
                                                                n = "readable";
                                                                return 0;
                                                              }});
        st.push_back({"exit() of the child", sit, [&](std::string& n) -> int {
                        code("fork", "exit(0)", std::string(sit) + ": reached", 0);
                        exit(0);
                      }});
      }
      run_isolated("fork", [] {}, st, 4);
      // The parent's own context must be unhurt by what its children did.
      if (stage) {
        int r = cuCtxSynchronize();
        int k = cuMemcpyHtoD(D, heap, 16);
        code("fork", "cuCtxSynchronize", "in the parent, after its forked children made all those calls", r, fmt("copy %d", k));
      }
      _exit(0);
    }
    int s;
    waitpid(f, &s, 0);
    if (!(WIFEXITED(s) && !WEXITSTATUS(s))) code("fork", "parent", "of forked children", -1, death(s));
  }
}

void g_ipc() {  // legacy handles, within one process and of odd pointers
  Steps st;
  static CUipcMemHandle mh;
  static CUipcEventHandle eh;
  static CUdeviceptr p, q;
  static CUevent e, e2;
  STEP("cuIpcGetMemHandle", "cuMemAlloc pointer")
    return cuIpcGetMemHandle(&mh, D);
  END
  STEP("cuIpcGetMemHandle", "interior pointer")
    CUipcMemHandle h;
    int r = cuIpcGetMemHandle(&h, D + 4096);
    n = memcmp(&h, &mh, sizeof h) ? "another handle" : "same handle";
    return r;
  END
  STEP("cuIpcGetMemHandle", "pinned host pointer")
    CUipcMemHandle h;
    return cuIpcGetMemHandle(&h, (CUdeviceptr)H);
  END
  STEP("cuIpcGetMemHandle", "pageable pointer")
    CUipcMemHandle h;
    return cuIpcGetMemHandle(&h, (CUdeviceptr)R);
  END
  STEP("cuIpcGetMemHandle", "null")
    CUipcMemHandle h;
    return cuIpcGetMemHandle(&h, 0);
  END
  STEP("cuIpcGetMemHandle", "cuMemAllocAsync pointer (default pool)")
    CUipcMemHandle h;
    cuMemAllocAsync(&p, K, S);
    cuStreamSynchronize(S);
    return cuIpcGetMemHandle(&h, p);
  END
  STEP("cuIpcGetMemHandle", "pool with posix fd")
    CUipcMemHandle h;
    auto x = pprop();
    x.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemoryPool m;
    cuMemPoolCreate(&m, &x);
    cuMemAllocFromPoolAsync(&p, K, m, S);
    cuStreamSynchronize(S);
    return cuIpcGetMemHandle(&h, p);
  END
  STEP("cuIpcGetMemHandle", "VMM mapping")
    CUipcMemHandle h;
    auto pr = prop();
    auto ad = acc();
    CUmemGenericAllocationHandle m0;
    cuMemCreate(&m0, P2, &pr, 0);
    cuMemAddressReserve(&p, P2, 0, 0, 0);
    cuMemMap(p, P2, 0, m0, 0);
    cuMemSetAccess(p, P2, &ad, 1);
    return cuIpcGetMemHandle(&h, p);
  END
  STEP("cuIpcGetMemHandle", "managed pointer")
    CUipcMemHandle h;
    cuMemAllocManaged(&p, 65536, 1);
    return cuIpcGetMemHandle(&h, p);
  END
  STEP("cuIpcGetMemHandle", "freed pointer")
    CUipcMemHandle h;
    cuMemAlloc(&p, 32 * K);
    cuMemFree(p);
    return cuIpcGetMemHandle(&h, p);
  END
  STEP("cuIpcGetMemHandle", "twice for one allocation: same bytes?")
    CUipcMemHandle h{};
    int r = cuIpcGetMemHandle(&h, D);
    n = memcmp(&h, &mh, sizeof h) ? "other bytes" : "same bytes";
    return r;
  END
  STEP("cuIpcOpenMemHandle", "own handle, same process")
    return cuIpcOpenMemHandle(&q, mh, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  END
  STEP("cuIpcOpenMemHandle", "own handle, flags 0")
    return cuIpcOpenMemHandle(&q, mh, 0);
  END
  STEP("cuIpcOpenMemHandle", "zeroed handle")
    CUipcMemHandle h{};
    return cuIpcOpenMemHandle(&q, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  END
  STEP("cuIpcCloseMemHandle", "unknown pointer")
    return cuIpcCloseMemHandle(0x7f1234560000);
  END
  STEP("cuIpcCloseMemHandle", "own cuMemAlloc pointer")
    return cuIpcCloseMemHandle(D);
  END
  STEP("cuIpcCloseMemHandle", "null")
    return cuIpcCloseMemHandle(0);
  END
  STEP("cuIpcGetEventHandle", "event without the interprocess flag")
    e = event();
    return cuIpcGetEventHandle(&eh, e);
  END
  STEP("cuIpcGetEventHandle", "interprocess event")
    e2 = event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    return cuIpcGetEventHandle(&eh, e2);
  END
  STEP("cuIpcOpenEventHandle", "own handle, same process")
    return cuIpcOpenEventHandle(&e, eh);
  END
  STEP("cuIpcOpenEventHandle", "zeroed handle")
    CUipcEventHandle h{};
    return cuIpcOpenEventHandle(&e, h);
  END
  run_steps("ipc", std_setup, st);
  // Two processes: what the importer's pointer is to other calls, and what the exporter's free does to it.
  struct Sh {
    volatile int ready, freed, done;
    CUipcMemHandle m;
    CUipcEventHandle e;
  };
  auto* sh = (Sh*)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t a = fork();
  if (!a) {
    alarm(40);
    std_setup();
    CUevent ev = event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    CK(cuMemsetD8(D, 0x42, 4 << 20));
    cuEventRecord(ev, S);
    CK(cuCtxSynchronize());
    CK(cuIpcGetMemHandle(&sh->m, D));
    CK(cuIpcGetEventHandle(&sh->e, ev));
    sh->ready = 1;
    while (sh->freed != 1) usleep(200);
    int r = cuMemFree(D);
    code("ipc", "cuMemFree", "exporter frees while an importer has it open", r, fmt("cuEventDestroy %d", (int)cuEventDestroy(ev)));
    sh->freed = 2;
    while (!sh->done) usleep(200);
    _exit(0);
  }
  pid_t b = fork();
  if (!b) {
    alarm(40);
    std_setup();
    while (!sh->ready) usleep(200);
    static char buf[64];
    CUdeviceptr o = 0, o2 = 0;
    CUevent x = 0, y = 0;
    int v = -1;
    CUdeviceptr base;
    size_t sz = 0;
    int r;
    auto row = [](const char* call, const char* sit, int rc, const std::string& n = "") { code("ipc", call, sit, rc, n); };
    r = cuIpcOpenMemHandle(&o, sh->m, 0);
    row("cuIpcOpenMemHandle", "another process's handle, flags 0", r);
    if (!r) cuIpcCloseMemHandle(o);
    r = cuIpcOpenMemHandle(&o, sh->m, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    row("cuIpcOpenMemHandle", "another process's handle", r);
    r = cuIpcOpenMemHandle(&o2, sh->m, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    row("cuIpcOpenMemHandle", "the same handle again", r, o == o2 ? "same address" : "another address");
    r = cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, o);
    row("cuPointerGetAttribute MEMORY_TYPE", "imported pointer", r, fmt("%d", v));
    r = cuMemGetAddressRange(&base, &sz, o + 100);
    row("cuMemGetAddressRange", "imported pointer, interior", r, fmt("base right %d, size %zu of 4 MiB", base == o, sz));
    {
      CUipcMemHandle h;
      r = cuIpcGetMemHandle(&h, o);
      row("cuIpcGetMemHandle", "imported pointer", r);
    }
    r = cuMemFree(o);
    row("cuMemFree", "imported pointer", r);
    r = cuMemFreeAsync(o, S);
    row("cuMemFreeAsync", "imported pointer", r);
    r = cuMemcpyDtoH(buf, o, 64);
    row("cuMemcpyDtoH", "imported pointer", r, buf[3] == 0x42 ? "right bytes" : "wrong bytes");
    r = cuStreamWriteValue64(S, o + 4096, 1, 0);
    row("cuStreamWriteValue64", "imported pointer", r);
    r = cuIpcOpenEventHandle(&x, sh->e);
    row("cuIpcOpenEventHandle", "another process's event", r);
    r = cuIpcOpenEventHandle(&y, sh->e);
    row("cuIpcOpenEventHandle", "the same event again", r, x == y ? "same handle" : "another handle");
    r = cuEventQuery(x);
    row("cuEventQuery", "imported event, finished", r);
    r = cuEventRecord(x, S);
    row("cuEventRecord", "imported event", r);
    {
      CUipcEventHandle h;
      r = cuIpcGetEventHandle(&h, x);
      row("cuIpcGetEventHandle", "imported event", r);
    }
    sh->freed = 1;
    while (sh->freed != 2) usleep(200);
    buf[3] = 0;
    r = cuMemcpyDtoH(buf, o, 64);
    row("cuMemcpyDtoH", "imported pointer, after the exporter's cuMemFree", r, buf[3] == 0x42 ? "right bytes" : "wrong bytes");
    r = cuEventQuery(x);
    row("cuEventQuery", "imported event, after the exporter's cuEventDestroy", r);
    {
      CUdeviceptr z = 0;
      r = cuIpcOpenMemHandle(&z, sh->m, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
      row("cuIpcOpenMemHandle", "after the exporter's cuMemFree, still open here", r,
          !z       ? ""
          : z == o ? "same address"
                   : "another address");
      if (z) cuIpcCloseMemHandle(z);
    }
    r = cuIpcCloseMemHandle(o);
    row("cuIpcCloseMemHandle", "imported, first of two opens", r);
    buf[3] = 0;
    r = cuMemcpyDtoH(buf, o, 64);
    row("cuMemcpyDtoH", "imported pointer, closed once of two opens", r, buf[3] == 0x42 ? "right bytes" : "wrong bytes");
    r = cuIpcCloseMemHandle(o);
    row("cuIpcCloseMemHandle", "imported, second", r);
    r = cuMemcpyDtoH(buf, o, 64);
    row("cuMemcpyDtoH", "imported pointer, closed as often as opened", r);
    r = cuIpcCloseMemHandle(o);
    row("cuIpcCloseMemHandle", "imported, third", r);
    {
      CUdeviceptr z = 0;
      r = cuIpcOpenMemHandle(&z, sh->m, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
      row("cuIpcOpenMemHandle", "after the exporter's cuMemFree and the last close", r);
    }
    code("ipc", "cuEventDestroy", "imported event", cuEventDestroy(x));
    sh->done = 1;
    _exit(0);
  }
  int s;
  waitpid(b, &s, 0);
  if (!(WIFEXITED(s) && !WEXITSTATUS(s))) code("ipc", "importer", "two processes", -1, death(s));
  sh->done = 1;
  sh->freed = 1;
  waitpid(a, &s, 0);
}
