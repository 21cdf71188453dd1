// Topics 6 and 7: what steady mapping and unmapping in one thread does to kernel launches of another thread, and to the
// bandwidth of running kernels. An allocator that moves pages in the background pays with these two numbers.
#include <atomic>

#include "measure.h"
using namespace m;
static const char* T = "mapload";
static const size_t P = 2 << 20;
static CUmemAllocationProp prop() {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return p;
}
static CUmemAccessDesc access() {
  CUmemAccessDesc a{};
  a.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return a;
}

enum Load { NONE, CYCLE, CYCLE1K, MAPONLY, CREATEONLY, BIG, MALLOC, HOSTREG };
static const char* load_name[] = {"baseline",
                                  "create+map+access+unmap+release 2 MiB, steady",
                                  "the same, 1,000 cycles a second",
                                  "map+access+unmap of one handle, steady",
                                  "create+release, steady",
                                  "create+map+access+unmap+release 20 MiB, steady",
                                  "cuMemAlloc+cuMemFree 32 MiB, steady",
                                  "cuMemHostRegister+Unregister 2 MiB, steady"};
struct Worker {
  std::atomic<bool> stop{false};
  std::vector<double> us;
  std::thread th;
  explicit Worker(Load l) {
    if (l != NONE) th = std::thread([this, l] { run(l); });
  }
  ~Worker() {
    stop = true;
    if (th.joinable()) th.join();
  }
  void run(Load l) {
    CK(cuCtxSetCurrent(ctx));
    auto p = prop();
    auto ad = access();
    size_t n = l == BIG ? 10 * P : P;
    CUdeviceptr va;
    CK(cuMemAddressReserve(&va, n, 0, 0, 0));
    CUmemGenericAllocationHandle h = 0;
    if (l == MAPONLY) CK(cuMemCreate(&h, n, &p, 0));
    char* host = (char*)aligned_alloc(P, P);
    memset(host, 1, P);
    auto next = clk::now();
    while (!stop) {
      auto a = clk::now();
      switch (l) {
        case CREATEONLY:
          CK(cuMemCreate(&h, n, &p, 0));
          CK(cuMemRelease(h));
          break;
        case MAPONLY:
          CK(cuMemMap(va, n, 0, h, 0));
          CK(cuMemSetAccess(va, n, &ad, 1));
          CK(cuMemUnmap(va, n));
          break;
        case MALLOC: {
          CUdeviceptr d;
          CK(cuMemAlloc(&d, 32 << 20));
          CK(cuMemFree(d));
          break;
        }
        case HOSTREG:
          CK(cuMemHostRegister(host, P, 0));
          CK(cuMemHostUnregister(host));
          break;
        default:
          CK(cuMemCreate(&h, n, &p, 0));
          CK(cuMemMap(va, n, 0, h, 0));
          CK(cuMemSetAccess(va, n, &ad, 1));
          CK(cuMemUnmap(va, n));
          CK(cuMemRelease(h));
      }
      us.push_back(ns_between(a, clk::now()) / 1e3);
      if (l == CYCLE1K) {
        next += std::chrono::microseconds(1000);
        std::this_thread::sleep_until(next);
      }
    }
    if (l == MAPONLY) cuMemRelease(h);
    cuMemAddressFree(va, n);
    free(host);
  }
};
int main() {
  init();
  CUstream s = stream();
  std::vector<Load> loads = {NONE, CYCLE, CYCLE1K, MAPONLY, CREATEONLY, BIG, MALLOC, HOSTREG};
  {
    Worker w(CYCLE);
    sleep_ms(300);
    w.stop = true;
    w.th.join();
    put(T, "cycle of 2 MiB, nothing beside it: median", med(w.us), "us");
    put(T, "cycle of 2 MiB, nothing beside it: p99", pct(w.us, 0.99), "us");
  }
  // 6: launch cost on the host, launches drained every 64 so that a full queue is never what is measured.
  std::vector<std::vector<double>> L(8), R(8), C(8);
  for (int round = 0; round < 2; round++)
    for (Load l : loads) {
      Worker w(l);
      sleep_ms(5);
      for (int i = 0; i < 300; i++) {
        for (int k = 0; k < 64; k++) {
          auto a = clk::now();
          launch(k_empty, s);
          L[l].push_back(ns_between(a, clk::now()));
        }
        cuStreamSynchronize(s);
      }
      for (int i = 0; i < 4000; i++) {
        auto a = clk::now();
        launch(k_empty, s);
        cuStreamSynchronize(s);
        R[l].push_back(ns_between(a, clk::now()));
      }
      w.stop = true;
      if (w.th.joinable()) w.th.join();
      C[l].insert(C[l].end(), w.us.begin(), w.us.end());
    }
  for (Load l : loads) {
    std::string n = load_name[l];
    put(T, "launch, " + n + ": median", med(L[l]), "ns");
    put(T, "launch, " + n + ": p99", pct(L[l], 0.99), "ns");
    put(T, "launch, " + n + ": max", pct(L[l], 1), "ns");
    put(T, "launch+sync, " + n + ": median", med(R[l]), "ns");
    put(T, "launch+sync, " + n + ": p99", pct(R[l], 0.99), "ns");
    if (l) {
      put(T, "cycle while launching, " + n + ": median", med(C[l]), "us");
      put(T, "cycle while launching, " + n + ": p99", pct(C[l], 0.99), "us");
    }
  }
  // 7: bandwidth of a copy kernel over 2 x 4 GiB (132 times the L2 of 60 MB), every launch timed by events.
  size_t G = 4ull << 30;
  CUdeviceptr x, y;
  CK(cuMemAlloc(&x, G));
  CK(cuMemAlloc(&y, G));
  CK(cuMemsetD32(x, 0x12345678, G / 4));
  CUevent a = event(0), b = event(0);
  for (int i = 0; i < 5; i++) launch(k_copy, s, {y, x, G / 16}, 132 * 8, 512);
  CK(cuStreamSynchronize(s));
  std::vector<std::vector<double>> B(8), Y(8);
  for (int round = 0; round < 3; round++)
    for (Load l : loads) {
      Worker w(l);
      sleep_ms(2);
      for (int i = 0; i < 25; i++) {
        CK(cuEventRecord(a, s));
        launch(k_copy, s, {y, x, G / 16}, 132 * 8, 512);
        CK(cuEventRecord(b, s));
        CK(cuEventSynchronize(b));
        float ms;
        CK(cuEventElapsedTime(&ms, a, b));
        B[l].push_back(2.0 * G / (ms * 1e6));
      }
      w.stop = true;
      if (w.th.joinable()) w.th.join();
      Y[l].insert(Y[l].end(), w.us.begin(), w.us.end());
    }
  for (Load l : loads) {
    std::string n = load_name[l];
    put(T, "copy kernel, " + n + ": median", med(B[l]), "GB/s");
    put(T, "copy kernel, " + n + ": slowest of 75", pct(B[l], 0), "GB/s");
    if (l) put(T, "cycle beside the copy kernel, " + n + ": median", med(Y[l]), "us");
  }
  _exit(0);
}
