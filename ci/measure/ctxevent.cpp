// Topic 3: cuCtxRecordEvent and cuCtxWaitEvent (CUDA 12.5): one event for everything that a context has in flight.
// A segment whose users are unknown could be parked behind one such event instead of a synchronisation.
#include "measure.h"
using namespace m;

static volatile uint64_t* w;
static CUresult (*rec)(CUcontext, CUevent);
static CUresult (*wai)(CUcontext, CUevent);

static void covers() {
  CUevent e = event();
  code("ctxevent", "cuEventQuery", "event never recorded", cuEventQuery(e));
  code("ctxevent", "cuCtxRecordEvent", "primary context, idle", rec(ctx, e));
  code("ctxevent", "cuEventQuery", "after cuCtxRecordEvent on an idle context", until_ready([&] { return cuEventQuery(e); }, 500));
  code("ctxevent", "cuCtxRecordEvent", "null context (meaning the current one?)", rec(nullptr, e));
  code("ctxevent", "cuCtxRecordEvent", "null event", rec(ctx, nullptr));
  CUevent t = event(0);
  code("ctxevent", "cuCtxRecordEvent", "event with timing", rec(ctx, t));
  CUevent ip = event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
  code("ctxevent", "cuCtxRecordEvent", "interprocess event", rec(ctx, ip));
  CUcontext saved;
  cuCtxPopCurrent(&saved);
  code("ctxevent", "cuCtxRecordEvent", "no current context on the thread", rec(ctx, e));
  cuCtxPushCurrent(saved);
  CUstream nb = stream(), bl = stream(0);
  struct {
    const char* n;
    CUstream s;
  } ss[] = {{"legacy stream (0)", 0},
            {"legacy handle (1)", CU_STREAM_LEGACY},
            {"per-thread stream (2)", CU_STREAM_PER_THREAD},
            {"non-blocking stream", nb},
            {"blocking stream", bl}};
  for (auto& x : ss) {
    w[0] = 0;
    CK((CUresult)spin(x.s, (void*)w));
    int r = rec(ctx, e);
    int q1 = cuEventQuery(e);
    sleep_ms(20);
    int q2 = cuEventQuery(e);
    w[0] = 1;
    int q3 = until_ready([&] { return cuEventQuery(e); }, 2000);
    code("ctxevent", "cuEventQuery", fmt("cuCtxRecordEvent while a kernel runs on the %s", x.n), q2,
         fmt("record %d, at once %d, after the kernel %d%s", r, q1, q3, q2 == 600 ? " (covered)" : " (NOT covered)"));
    CK(cuCtxSynchronize());
  }
  {  // work of another thread's per-thread stream
    w[0] = 0;
    std::thread th([&] {
      cuCtxSetCurrent(ctx);
      spin(CU_STREAM_PER_THREAD, (void*)w);
      cuStreamSynchronize(CU_STREAM_PER_THREAD);
    });
    sleep_ms(30);
    rec(ctx, e);
    sleep_ms(10);
    int q = cuEventQuery(e);
    w[0] = 1;
    th.join();
    code("ctxevent", "cuEventQuery", "cuCtxRecordEvent while a kernel runs on another thread's per-thread stream", q,
         q == 600 ? "covered" : "NOT covered");
    CK(cuCtxSynchronize());
  }
  {  // a stream destroyed while its kernel runs
    CUstream s = stream();
    w[0] = 0;
    spin(s, (void*)w);
    cuStreamDestroy(s);
    rec(ctx, e);
    sleep_ms(10);
    int q = cuEventQuery(e);
    w[0] = 1;
    code("ctxevent", "cuEventQuery", "cuCtxRecordEvent after cuStreamDestroy of a stream whose kernel still runs", q,
         q == 600 ? "covered" : "NOT covered");
    CK(cuCtxSynchronize());
  }
  {  // a pending copy and a stream that waits for a value
    w[0] = 0;
    CK(cuStreamWaitValue64(nb, (CUdeviceptr)w, 1, CU_STREAM_WAIT_VALUE_GEQ));
    rec(ctx, e);
    sleep_ms(10);
    int q = cuEventQuery(e);
    w[0] = 1;
    int q3 = until_ready([&] { return cuEventQuery(e); }, 2000);
    code("ctxevent", "cuEventQuery", "cuCtxRecordEvent while a stream waits in cuStreamWaitValue64", q, fmt("after the value %d", q3));
    CK(cuCtxSynchronize());
  }
  {  // does recording hold back later work of other streams?
    w[0] = 0;
    spin(nb, (void*)w);
    rec(ctx, e);
    CUstream s2 = stream();
    launch(k_empty, s2);
    int q = until_ready([&] { return cuStreamQuery(s2); }, 300);
    w[0] = 1;
    code("ctxevent", "cuStreamQuery", "work put on another stream after cuCtxRecordEvent, the recorded work still pending", q,
         q ? "held back" : "not held back");
    CK(cuCtxSynchronize());
  }
  for (auto& x : ss) {  // cuCtxWaitEvent holds all later work back
    CUstream s = stream();
    w[0] = 0;
    spin(s, (void*)w);
    CK(cuEventRecord(e, s));
    int r = wai(ctx, e);
    if (x.s != s) launch(k_empty, x.s);
    sleep_ms(20);
    int q = cuStreamQuery(x.s);
    w[0] = 1;
    int q3 = until_ready([&] { return cuStreamQuery(x.s); }, 2000);
    code("ctxevent", "cuStreamQuery", fmt("kernel on the %s after cuCtxWaitEvent on a pending event", x.n), q,
         fmt("wait %d, after the event %d%s", r, q3, q == 600 ? " (held back)" : " (NOT held back)"));
    CK(cuCtxSynchronize());
    cuStreamDestroy(s);
  }
  {
    CUevent n = event();
    code("ctxevent", "cuCtxWaitEvent", "event never recorded", wai(ctx, n));
    CK(cuCtxSynchronize());
  }
}
// One capture, one call beside it: the call's code, the capture's status after it, and the code of its end.
static void beside_capture() {
  const struct {
    CUstreamCaptureMode m;
    const char* n;
  } modes[] = {{CU_STREAM_CAPTURE_MODE_GLOBAL, "global"},
               {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, "thread-local"},
               {CU_STREAM_CAPTURE_MODE_RELAXED, "relaxed"}};
  CUevent done = event();
  cuEventRecord(done, 0);
  cuCtxSynchronize();
  for (auto& mo : modes)
    for (int other = 0; other < 2; other++)
      for (int relax = 0; relax < 2; relax++)
        for (int call = 0; call < 3; call++) {
          CUstream s = stream();
          CUevent e = event();
          CK(cuStreamBeginCapture(s, mo.m));
          launch(k_empty, s);
          int rc = 0;
          auto go = [&] {
            cuCtxSetCurrent(ctx);
            CUstreamCaptureMode x = CU_STREAM_CAPTURE_MODE_RELAXED;
            if (relax) cuThreadExchangeStreamCaptureMode(&x);
            rc = call == 0 ? rec(ctx, e) : call == 1 ? wai(ctx, done) : cuCtxSynchronize();
            if (relax) cuThreadExchangeStreamCaptureMode(&x);
          };
          if (other) std::thread(go).join();
          else go();
          CUstreamCaptureStatus st = (CUstreamCaptureStatus)9;
          int is = cuStreamIsCapturing(s, &st);
          CUgraph g = 0;
          int end = cuStreamEndCapture(s, &g);
          if (g) cuGraphDestroy(g);
          const char* n[] = {"cuCtxRecordEvent", "cuCtxWaitEvent", "cuCtxSynchronize"};
          code("ctxevent", n[call],
               fmt("a stream captures in %s mode, called by %s thread%s", mo.n, other ? "another" : "the same",
                   relax ? " set to relaxed" : ""),
               rc, fmt("is-capturing %d status %d, end-capture %d", is, (int)st, end));
          cuStreamDestroy(s);
          cuEventDestroy(e);
          CK(cuCtxSynchronize());
        }
}
static void cost() {
  CUevent e = event();
  std::vector<CUstream> ss;
  for (int n : {0, 1, 8, 64}) {
    while ((int)ss.size() < n) {
      ss.push_back(stream());
      launch(k_empty, ss.back());
    }
    CK(cuCtxSynchronize());
    put("ctxevent", fmt("cuCtxRecordEvent, idle, %d extra streams", n),
        per_call_ns(100, 20, [&] { rec(ctx, e); }, [] { cuCtxSynchronize(); }), "ns");
    put("ctxevent", fmt("cuCtxWaitEvent (done event), %d extra streams", n),
        per_call_ns(100, 20, [&] { wai(ctx, e); }, [] { cuCtxSynchronize(); }), "ns");
  }
  w[0] = 0;
  for (auto s : ss) spin(s, (void*)w, 4000000000ull);
  std::vector<double> v;
  for (int i = 0; i < 40; i++) {
    auto a = clk::now();
    rec(ctx, e);
    v.push_back(ns_between(a, clk::now()));
  }
  w[0] = 1;
  cuCtxSynchronize();
  put("ctxevent", "cuCtxRecordEvent, 64 streams with running kernels", med(v), "ns");
  put("ctxevent", "cuEventQuery of a context event, done", per_call_ns(100, 100, [&] { cuEventQuery(e); }), "ns");
  std::vector<double> r;
  for (int i = 0; i < 300; i++) {
    auto a = clk::now();
    rec(ctx, e);
    while (cuEventQuery(e) == 600) {}
    r.push_back(ns_between(a, clk::now()));
  }
  put("ctxevent", "cuCtxRecordEvent until cuEventQuery says done, idle, 64 streams", med(r), "ns");
}
int main(int c, char** v) {
  std::string wh = c > 1 ? v[1] : "all";
  init();
  w = pinned_words();
  CUdriverProcAddressQueryResult q;
  CK(cuGetProcAddress("cuCtxRecordEvent", (void**)&rec, 13000, 0, &q));
  CK(cuGetProcAddress("cuCtxWaitEvent", (void**)&wai, 13000, 0, &q));
  if (!rec || !wai) {
    text("ctxevent", "symbols", "missing");
    return 0;
  }
  if (wh == "codes" || wh == "all") {
    covers();
    beside_capture();
  }
  if (wh == "cost" || wh == "all") cost();
  _exit(0);
}
