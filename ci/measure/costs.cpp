// Topic 4, one process: what single driver calls cost, and how long the device takes to notice a word the host wrote.
// Medians over rounds; calls that queue work are drained outside the timing, so that a full queue is never measured.
#include "measure.h"
using namespace m;
static const char* T = "cost";

int main() {
  init();
  auto w = pinned_words();
  CUstream s = stream(), s2 = stream();
  auto drain = [] { cuCtxSynchronize(); };
  auto cheap = [&](const char* n, std::function<void()> f) { put(T, n, per_call_ns(200, 200, f), "ns"); };
  auto queued = [&](const char* n, std::function<void()> f) { put(T, n, per_call_ns(150, 100, f, drain), "ns"); };
  put(T, "(timer: two clock reads)",
      per_call_ns(200, 200,
                  [] {
                    clk::now();
                    clk::now();
                  }),
      "ns");

  // Events.
  CUevent e = event(), p = event(), t = event(0);
  CK(cuEventRecord(e, s));
  drain();
  queued("cuEventRecord, idle stream, timing disabled", [&] { cuEventRecord(e, s); });
  queued("cuEventRecord, idle stream, timing enabled", [&] { cuEventRecord(t, s); });
  queued("cuEventRecord, legacy stream", [&] { cuEventRecord(e, 0); });
  {
    CUevent ip = event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    queued("cuEventRecord, interprocess event", [&] { cuEventRecord(ip, s); });
    cheap("cuEventQuery, interprocess event, done", [&] { cuEventQuery(ip); });
  }
  cheap("cuEventQuery, done", [&] { cuEventQuery(e); });
  cheap("cuEventSynchronize, done", [&] { cuEventSynchronize(e); });
  queued("cuStreamWaitEvent, event done", [&] { cuStreamWaitEvent(s, e, 0); });
  {
    CUevent n = event();
    queued("cuStreamWaitEvent, event never recorded", [&] { cuStreamWaitEvent(s, n, 0); });
    CK(cuEventRecord(n, s));
    drain();
    queued("cuStreamWaitEvent, event done, recorded on the waiting stream", [&] { cuStreamWaitEvent(s, n, 0); });
  }
  w[0] = 0;
  spin(s2, (void*)w);
  CK(cuEventRecord(p, s2));
  cheap("cuEventQuery, pending", [&] { cuEventQuery(p); });
  w[0] = 1;
  drain();
  {
    std::vector<double> v, r;
    for (int k = 0; k < 30; k++) {
      w[0] = 0;
      spin(s2, (void*)w);
      cuEventRecord(p, s2);
      auto a = clk::now();
      for (int i = 0; i < 50; i++) cuStreamWaitEvent(s, p, 0);
      v.push_back(ns_between(a, clk::now()) / 50);
      a = clk::now();
      for (int i = 0; i < 50; i++) cuEventRecord(e, s);
      r.push_back(ns_between(a, clk::now()) / 50);
      w[0] = 1;
      cuCtxSynchronize();
    }
    put(T, "cuStreamWaitEvent, event pending", med(v), "ns");
    put(T, "cuEventRecord, stream behind a pending event", med(r), "ns");
  }
  cheap("cuEventCreate + cuEventDestroy", [] {
    CUevent x;
    cuEventCreate(&x, CU_EVENT_DISABLE_TIMING);
    cuEventDestroy(x);
  });
  {
    std::vector<double> v;
    for (int i = 0; i < 500; i++) {
      auto a = clk::now();
      launch(k_empty, s);
      cuEventRecord(e, s);
      while (cuEventQuery(e) == 600) {}
      v.push_back(ns_between(a, clk::now()));
    }
    put(T, "launch + record until cuEventQuery says done (polling)", med(v), "ns");
  }
  {
    std::vector<double> v;
    for (int i = 0; i < 500; i++) {
      auto a = clk::now();
      cuEventRecord(e, s);
      while (cuEventQuery(e) == 600) {}
      v.push_back(ns_between(a, clk::now()));
    }
    put(T, "record until cuEventQuery says done (polling)", med(v), "ns");
  }
  {
    std::vector<double> v;
    for (int i = 0; i < 500; i++) {
      auto a = clk::now();
      launch(k_empty, s);
      cuStreamSynchronize(s);
      v.push_back(ns_between(a, clk::now()));
    }
    put(T, "launch + cuStreamSynchronize", med(v), "ns");
  }
  {
    std::vector<double> v;
    for (int i = 0; i < 300; i++) {
      w[0] = 0;
      spin(s2, (void*)w);
      cuEventRecord(p, s2);
      cuStreamWaitEvent(s, p, 0);
      cuStreamWriteValue64(s, (CUdeviceptr)(w + 8), i + 1, 0);
      auto a = clk::now();
      w[0] = 1;
      while (w[8] != (uint64_t)i + 1) {}
      v.push_back(ns_between(a, clk::now()));
      cuStreamSynchronize(s);
    }
    put(T, "host word -> spinning kernel ends -> event -> other stream -> host sees its word", med(v), "ns");
  }

  // A record or a wait that changes nothing may be elided: here each follows new work, so subtract the launch.
  put(T, "launch alone, for the next rows", per_call_ns(150, 50, [&] { launch(k_empty, s); }, drain), "ns");
  put(T, "launch + cuEventRecord",
      per_call_ns(
          150, 50,
          [&] {
            launch(k_empty, s);
            cuEventRecord(e, s);
          },
          drain),
      "ns");
  put(T, "launch + cuEventRecord with timing",
      per_call_ns(
          150, 50,
          [&] {
            launch(k_empty, s);
            cuEventRecord(t, s);
          },
          drain),
      "ns");
  put(T, "launch + cuCtxRecordEvent",
      per_call_ns(
          150, 50,
          [&] {
            launch(k_empty, s);
            cuCtxRecordEvent(ctx, e);
          },
          drain),
      "ns");
  put(T, "launch + cuEventQuery",
      per_call_ns(
          150, 50,
          [&] {
            launch(k_empty, s);
            cuEventQuery(e);
          },
          drain),
      "ns");
  put(T, "launch + cuStreamQuery",
      per_call_ns(
          150, 50,
          [&] {
            launch(k_empty, s);
            cuStreamQuery(s);
          },
          drain),
      "ns");
  {
    std::vector<CUevent> ev;
    for (int i = 0; i < 50; i++) ev.push_back(event());
    CUstream src = stream();
    int i = 0;
    put(T, "launch A + record + wait on B",
        per_call_ns(
            150, 50,
            [&] {
              launch(k_empty, src);
              cuEventRecord(ev[i % 50], src);
              cuStreamWaitEvent(s, ev[i % 50], 0);
              i++;
            },
            drain),
        "ns");
    std::vector<double> v, q;
    for (int k = 0; k < 30; k++) {
      w[0] = 0;
      spin(s2, (void*)w);
      for (auto x : ev) {
        launch(k_empty, s2);
        cuEventRecord(x, s2);
      }
      auto a = clk::now();
      for (auto x : ev) cuStreamWaitEvent(s, x, 0);
      v.push_back(ns_between(a, clk::now()) / 50);
      a = clk::now();
      for (auto x : ev) cuEventQuery(x);
      q.push_back(ns_between(a, clk::now()) / 50);
      w[0] = 1;
      cuCtxSynchronize();
    }
    put(T, "cuStreamWaitEvent, 50 different pending events", med(v), "ns");
    put(T, "cuEventQuery, 50 different pending events", med(q), "ns");
  }

  // Streams.
  cheap("cuStreamQuery, idle", [&] { cuStreamQuery(s); });
  cheap("cuStreamQuery, legacy, idle", [&] { cuStreamQuery(0); });
  w[0] = 0;
  spin(s2, (void*)w);
  cheap("cuStreamQuery, busy", [&] { cuStreamQuery(s2); });
  w[0] = 1;
  drain();
  cheap("cuStreamSynchronize, idle", [&] { cuStreamSynchronize(s); });
  cheap("cuCtxSynchronize, idle", [&] { cuCtxSynchronize(); });
  unsigned long long id;
  cheap("cuStreamGetId", [&] { cuStreamGetId(s, &id); });
  cheap("cuStreamGetId, legacy", [&] { cuStreamGetId(0, &id); });
  cheap("cuStreamGetId, per-thread", [&] { cuStreamGetId(CU_STREAM_PER_THREAD, &id); });
  {
    CUstreamCaptureStatus st;
    cheap("cuStreamIsCapturing", [&] { cuStreamIsCapturing(s, &st); });
  }
  {
    CUstreamCaptureStatus st;
    cuuint64_t cid;
    cheap("cuStreamGetCaptureInfo, not capturing", [&] { cuStreamGetCaptureInfo(s, &st, &cid, nullptr, nullptr, nullptr, nullptr); });
  }
  {
    CUcontext c;
    cheap("cuStreamGetCtx", [&] { cuStreamGetCtx(s, &c); });
    unsigned fl;
    cheap("cuStreamGetFlags", [&] { cuStreamGetFlags(s, &fl); });
  }
  put(T, "cuStreamCreate + cuStreamDestroy",
      per_call_ns(20, 5,
                  [] {
                    CUstream x;
                    cuStreamCreate(&x, 1);
                    cuStreamDestroy(x);
                  }),
      "ns");
  queued("cuLaunchKernel, empty", [&] { launch(k_empty, s); });
  put(T, "cuLaunchHostFunc", per_call_ns(30, 20, [&] { cuLaunchHostFunc(s, [](void*) {}, nullptr); }, drain), "ns");
  {
    static volatile int hit;
    std::vector<double> v;
    for (int i = 0; i < 200; i++) {
      hit = 0;
      auto a = clk::now();
      cuLaunchHostFunc(s, [](void*) { hit = 1; }, nullptr);
      while (!hit) {}
      v.push_back(ns_between(a, clk::now()));
      cuStreamSynchronize(s);
    }
    put(T, "cuLaunchHostFunc until the function runs", med(v), "ns");
  }

  // Contexts and modes.
  CUcontext c;
  CUdevice dd;
  cheap("cuCtxGetCurrent", [&] { cuCtxGetCurrent(&c); });
  cheap("cuCtxSetCurrent, the same", [&] { cuCtxSetCurrent(ctx); });
  cheap("cuCtxPushCurrent + cuCtxPopCurrent", [&] {
    cuCtxPushCurrent(ctx);
    cuCtxPopCurrent(&c);
  });
  cheap("cuCtxGetDevice", [&] { cuCtxGetDevice(&dd); });
  {
    unsigned long long ci;
    cheap("cuCtxGetId", [&] { cuCtxGetId(ctx, &ci); });
  }
  cheap("cuDevicePrimaryCtxRetain + Release", [&] {
    CUcontext x;
    cuDevicePrimaryCtxRetain(&x, dev);
    cuDevicePrimaryCtxRelease(dev);
  });
  {
    unsigned f;
    int a;
    cheap("cuDevicePrimaryCtxGetState", [&] { cuDevicePrimaryCtxGetState(dev, &f, &a); });
  }
  cheap("cuThreadExchangeStreamCaptureMode", [] {
    CUstreamCaptureMode x = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuThreadExchangeStreamCaptureMode(&x);
  });
  {
    int v;
    cheap("cuDriverGetVersion", [&] { cuDriverGetVersion(&v); });
    cheap("cuDeviceGetAttribute", [&] { cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, dev); });
  }
  cheap("getpid (as a fork check by system call)", [] { (void)getpid(); });

  // Pointers and memory.
  CUdeviceptr d;
  CK(cuMemAlloc(&d, 4 << 20));
  static char heap[4096];
  unsigned mt, man;
  int ord;
  CUdeviceptr dp, st;
  void* hp;
  size_t sz;
  unsigned long long bid;
  CUcontext pc;
  CUpointer_attribute at[8] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                               CU_POINTER_ATTRIBUTE_HOST_POINTER,     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                               CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                               CU_POINTER_ATTRIBUTE_IS_MANAGED,       CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* out[8] = {&mt, &dp, &hp, &ord, &st, &sz, &man, &bid};
  struct {
    const char* n;
    CUdeviceptr p;
  } ps[] = {{"device", d + 100}, {"pinned host", (CUdeviceptr)w}, {"pageable", (CUdeviceptr)heap}};
  for (auto& x : ps) {
    put(T, std::string("cuPointerGetAttributes, 8 attributes, ") + x.n,
        per_call_ns(100, 100, [&] { cuPointerGetAttributes(8, at, out, x.p); }), "ns");
    put(T, std::string("cuPointerGetAttributes, 2 attributes, ") + x.n,
        per_call_ns(100, 100, [&] { cuPointerGetAttributes(2, at, out, x.p); }), "ns");
    put(T, std::string("cuPointerGetAttribute CONTEXT, ") + x.n,
        per_call_ns(100, 100, [&] { cuPointerGetAttribute(&pc, CU_POINTER_ATTRIBUTE_CONTEXT, x.p); }), "ns");
  }
  cheap("cuMemGetAddressRange", [&] { cuMemGetAddressRange(&st, &sz, d + 100); });
  {
    size_t a, b;
    put(T, "cuMemGetInfo", per_call_ns(50, 20, [&] { cuMemGetInfo(&a, &b); }), "ns");
  }
  put(T, "cuMemAlloc + cuMemFree, 2 MiB",
      per_call_ns(40, 10,
                  [] {
                    CUdeviceptr x;
                    cuMemAlloc(&x, 2 << 20);
                    cuMemFree(x);
                  }),
      "ns");
  cuMemAllocAsync(&dp, 2 << 20, s);
  cuMemFreeAsync(dp, s);
  drain();
  put(T, "cuMemAllocAsync + cuMemFreeAsync, 2 MiB, same stream",
      per_call_ns(
          60, 50,
          [&] {
            CUdeviceptr x;
            cuMemAllocAsync(&x, 2 << 20, s);
            cuMemFreeAsync(x, s);
          },
          drain),
      "ns");
  put(T, "cuMemHostAlloc + cuMemFreeHost, 64 KiB",
      per_call_ns(20, 5,
                  [] {
                    void* x;
                    cuMemHostAlloc(&x, 65536, 0);
                    cuMemFreeHost(x);
                  }),
      "ns");
  {
    char* q = (char*)aligned_alloc(4096, 2 << 20);
    memset(q, 1, 2 << 20);
    for (size_t n : {(size_t)4096, (size_t)65536, (size_t)2 << 20})
      put(T, fmt("cuMemHostRegister + Unregister, %zu bytes, touched", n),
          per_call_ns(30, 5,
                      [&] {
                        cuMemHostRegister(q, n, 0);
                        cuMemHostUnregister(q);
                      }),
          "ns");
  }
  {
    void* h;
    CK(cuMemHostAlloc(&h, 1 << 20, 0));
    queued("cuMemcpyHtoDAsync, 4 KiB, pinned", [&] { cuMemcpyHtoDAsync(d, h, 4096, s); });
    queued("cuMemcpyHtoDAsync, 4 KiB, pageable", [&] { cuMemcpyHtoDAsync(d, heap, 4096, s); });
    put(T, "cuMemcpyHtoD (synchronous), 4 KiB, pinned", per_call_ns(50, 20, [&] { cuMemcpyHtoD(d, h, 4096); }), "ns");
    put(T, "cuMemcpyDtoH (synchronous), 4 KiB, pinned", per_call_ns(50, 20, [&] { cuMemcpyDtoH(h, d, 4096); }), "ns");
    queued("cuMemsetD8Async, 4 KiB", [&] { cuMemsetD8Async(d, 0, 4096, s); });
    queued("cuMemcpyDtoDAsync, 4 KiB", [&] { cuMemcpyDtoDAsync(d, d + 8192, 4096, s); });
  }

  // Words: stream memory operations on pinned host memory and on device memory.
  CUdeviceptr hw = (CUdeviceptr)w;
  w[16] = 5;
  uint64_t five = 5;
  CK(cuMemcpyHtoD(d, &five, 8));
  queued("cuStreamWriteValue64, pinned host word", [&] { cuStreamWriteValue64(s, hw + 192, 1, 0); });
  queued("cuStreamWriteValue64, device word", [&] { cuStreamWriteValue64(s, d + 64, 1, 0); });
  queued("cuStreamWriteValue64, host word, no memory barrier",
         [&] { cuStreamWriteValue64(s, hw + 192, 1, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER); });
  queued("cuStreamWaitValue64, pinned host word, satisfied", [&] { cuStreamWaitValue64(s, hw + 128, 5, CU_STREAM_WAIT_VALUE_GEQ); });
  queued("cuStreamWaitValue64, device word, satisfied", [&] { cuStreamWaitValue64(s, d, 5, CU_STREAM_WAIT_VALUE_GEQ); });
  {
    std::vector<double> v;
    for (int k = 0; k < 30; k++) {
      w[24] = 0;
      auto a = clk::now();
      for (int i = 0; i < 50; i++) cuStreamWaitValue64(s, hw + 192, 1, CU_STREAM_WAIT_VALUE_GEQ);
      v.push_back(ns_between(a, clk::now()) / 50);
      w[24] = 1;
      cuCtxSynchronize();
    }
    put(T, "cuStreamWaitValue64, pinned host word, pending: host cost", med(v), "ns");
  }
  {
    std::vector<double> v;
    for (int i = 0; i < 500; i++) {
      auto a = clk::now();
      cuStreamWriteValue64(s, hw + 256, i + 1, 0);
      while (w[32] != (uint64_t)i + 1) {}
      v.push_back(ns_between(a, clk::now()));
    }
    put(T, "cuStreamWriteValue64 until the host sees the word", med(v), "ns");
    put(T, "cuStreamWriteValue64 until the host sees the word, p99", pct(v, 0.99), "ns");
  }
  {
    std::vector<double> v;
    for (int i = 0; i < 300; i++) {
      uint64_t k = i + 1;
      cuStreamWaitValue64(s, hw + 320, k, CU_STREAM_WAIT_VALUE_GEQ);
      cuStreamWriteValue64(s, hw + 384, k, 0);
      usleep(50);
      auto a = clk::now();
      w[40] = k;
      while (w[48] != k) {}
      v.push_back(ns_between(a, clk::now()));
    }
    put(T, "host writes the word -> waiting stream wakes -> writes back -> host sees it", med(v), "ns");
    put(T, "the same, p99", pct(v, 0.99), "ns");
  }
  {
    CUdeviceptr dw = d + 4096;
    CK(cuMemsetD8(dw, 0, 4096));
    std::vector<double> v;
    for (int i = 0; i < 300; i++) {
      uint64_t k = i + 1;
      cuStreamWaitValue64(s, dw, k, CU_STREAM_WAIT_VALUE_GEQ);
      cuStreamWriteValue64(s, hw + 448, k, 0);
      usleep(50);
      auto a = clk::now();
      cuStreamWriteValue64(s2, dw, k, 0);
      while (w[56] != k) {}
      v.push_back(ns_between(a, clk::now()));
    }
    put(T, "stream A writes a device word -> stream B wakes -> host sees B's word", med(v), "ns");
  }
  {
    std::vector<double> v;
    for (int i = 0; i < 300; i++) {
      cuEventRecord(e, s2);
      cuStreamWaitEvent(s, e, 0);
      uint64_t k = 1000 + i;
      auto a = clk::now();
      cuStreamWriteValue64(s, hw + 448, k, 0);
      while (w[56] != k) {}
      v.push_back(ns_between(a, clk::now()));
    }
    put(T, "stream A event -> stream B waits -> host sees B's word", med(v), "ns");
  }
  _exit(0);
}
