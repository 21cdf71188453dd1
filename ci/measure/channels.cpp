// Topic 4, what a waiting stream costs others: streams share a few hardware queues, so work on one stream may stand behind
// another stream's wait. Counts how many of 16 fresh streams are held up while N others wait for a word or for an event.
#include "measure.h"
using namespace m;

static int blocked(const std::vector<CUstream>& fresh) {
  for (auto f : fresh) launch(k_empty, f);
  sleep_ms(40);
  int n = 0;
  for (auto f : fresh) n += cuStreamQuery(f) == 600;
  return n;
}
int main() {
  init();
  auto w = pinned_words();
  const char* mc = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  std::string env = fmt("CUDA_DEVICE_MAX_CONNECTIONS %s", mc ? mc : "unset");
  for (int kind = 0; kind < 3; kind++)
    for (int N : {1, 2, 4, 7, 8, 16, 31, 32, 64, 128}) {
      // kind 0: all wait for the word themselves; 1: the first waits for the word, the rest for its event; 2: N running kernels
      std::vector<CUstream> ws, fresh, prio;
      for (int i = 0; i < N; i++) ws.push_back(stream());
      for (int i = 0; i < 16; i++) fresh.push_back(stream());
      for (int i = 0; i < 4; i++) {
        CUstream p;
        CK(cuStreamCreateWithPriority(&p, CU_STREAM_NON_BLOCKING, -5));
        prio.push_back(p);
      }
      w[0] = 0;
      CUevent e = event();
      for (int i = 0; i < N; i++) {
        if (kind == 2) spin(ws[i], (void*)w, 2000000000ull);
        else if (kind == 0 || i == 0) CK(cuStreamWaitValue64(ws[i], (CUdeviceptr)w, 1, CU_STREAM_WAIT_VALUE_GEQ));
        else CK(cuStreamWaitEvent(ws[i], e, 0));
        if (kind == 1 && i == 0) CK(cuEventRecord(e, ws[0]));
        if (kind == 1 && i) launch(k_empty, ws[i]);
      }
      int b = blocked(fresh), bp = blocked(prio);
      launch(k_empty, 0);
      sleep_ms(5);
      int leg = cuStreamQuery(0);
      // The copy engines have queues of their own.
      static CUdeviceptr d = 0;
      static void* h = nullptr;
      if (!d) {
        CK(cuMemAlloc(&d, 4096));
        CK(cuMemHostAlloc(&h, 4096, 0));
      }
      std::vector<CUstream> cs;
      for (int i = 0; i < 4; i++) {
        cs.push_back(stream());
        cuMemcpyHtoDAsync(d, h, 4096, cs.back());
      }
      sleep_ms(10);
      int bc = 0;
      for (auto x : cs) bc += cuStreamQuery(x) == 600;
      w[0] = 1;
      int r = cuCtxSynchronize();
      const char* n[] = {"streams in cuStreamWaitValue64", "streams behind one pending event (with a kernel each)", "running kernels"};
      text(
          "channels", fmt("%s, %d %s", env.c_str(), N, n[kind]),
          fmt("held up: %d of 16 fresh streams, %d of 4 of high priority, %d of 4 with a copy only, legacy stream %s; synchronise after %d",
              b, bp, bc, leg ? "held up" : "free", r));
      for (auto x : ws) cuStreamDestroy(x);
      for (auto x : fresh) cuStreamDestroy(x);
      for (auto x : prio) cuStreamDestroy(x);
      for (auto x : cs) cuStreamDestroy(x);
    }
  _exit(0);
}
