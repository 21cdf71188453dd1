// How soon can pageable memory of many gigabytes be pinned? Ways to bring the pages in, alone and beside the registration.
//
//   populate [GIB [ROUNDS]]   ready time by way, threads and piece; the driver's own allocation beside it
#include <atomic>
#include <functional>

#include "measure.h"
using namespace m;

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static const size_t MiB = 1 << 20, HUGE = 2 * MiB;
static size_t total;

static char* map_pages(bool huge) {
  size_t n = total + HUGE;
  char* p = (char*)mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) exit(1);
  char* a = (char*)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
  if (a > p) munmap(p, a - p);
  munmap(a + total, p + n - (a + total));
  if (huge) madvise(a, total, MADV_HUGEPAGE);
  return a;
}
enum Way { POPULATE, TOUCH };
// Threads take pieces in ascending order; `at` is called by the caller's thread once `share` of the pieces are done.
static void bring_in(char* a, Way way, bool huge, int threads, size_t piece, double share, std::function<void()> at) {
  std::atomic<size_t> next{0}, done{0};
  size_t pieces = total / piece;
  std::vector<std::thread> t;
  for (int i = 0; i < threads; i++)
    t.emplace_back([&] {
      for (;;) {
        size_t k = next.fetch_add(1);
        if (k >= pieces) return;
        char* s = a + k * piece;
        if (way == POPULATE) {
          if (madvise(s, piece, MADV_POPULATE_WRITE)) perror("madvise");
        } else
          for (size_t o = 0; o < piece; o += huge ? HUGE : 4096) *(volatile char*)(s + o) = 0;
        done.fetch_add(1);
      }
    });
  if (at) {
    while (done.load() < share * pieces) usleep(200);
    at();
  }
  for (auto& x : t) x.join();
}
static double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}
int main(int argc, char** argv) {
  size_t gib = argc > 1 ? atoi(argv[1]) : 16;
  int rounds = argc > 2 ? atoi(argv[2]) : 3;
  total = gib << 30;
  cuInit(0);
  CUdevice d;
  CUcontext c;
  cuDeviceGet(&d, 0);
  cuDevicePrimaryCtxRetain(&c, d);
  cuCtxSetCurrent(c);
  // Memory that the machine never gave out is slow to come by: have it once.
  {
    size_t keep = total;
    total = total * 5 / 4 / HUGE * HUGE;
    char* w = map_pages(true);
    bring_in(w, POPULATE, true, 16, 32 * MiB, 0, nullptr);
    munmap(w, total);
    total = keep;
  }
  struct Case {
    const char* name;
    Way way;
    bool huge;
    int threads;
    size_t piece;
    double share;  // of the population after which the registration starts; 1: after all of it
  };
  std::vector<Case> cases = {
      {"populate huge 4 thr 32M", POPULATE, true, 4, 32 * MiB, 1},    {"populate huge 8 thr 32M", POPULATE, true, 8, 32 * MiB, 1},
      {"populate huge 12 thr 32M", POPULATE, true, 12, 32 * MiB, 1},  {"populate huge 16 thr 32M", POPULATE, true, 16, 32 * MiB, 1},
      {"populate huge 32 thr 32M", POPULATE, true, 32, 32 * MiB, 1},  {"populate huge 16 thr 2M", POPULATE, true, 16, 2 * MiB, 1},
      {"populate huge 16 thr 256M", POPULATE, true, 16, 256 * MiB, 1}, {"populate huge 16 thr 1G", POPULATE, true, 16, 1024 * MiB, 1},
      {"touch huge 16 thr 32M", TOUCH, true, 16, 32 * MiB, 1},        {"touch huge 16 thr 2M", TOUCH, true, 16, 2 * MiB, 1},
      {"touch huge 32 thr 32M", TOUCH, true, 32, 32 * MiB, 1},        {"overlap 0.00 huge 16 thr 32M", POPULATE, true, 16, 32 * MiB, 0.004},
      {"overlap 0.25 huge 16 thr 32M", POPULATE, true, 16, 32 * MiB, 0.25}, {"overlap 0.50 huge 16 thr 32M", POPULATE, true, 16, 32 * MiB, 0.5},
      {"overlap 0.75 huge 16 thr 32M", POPULATE, true, 16, 32 * MiB, 0.75}, {"overlap 0.50 touch 16 thr 32M", TOUCH, true, 16, 32 * MiB, 0.5},
      {"overlap 0.25 touch 16 thr 32M", TOUCH, true, 16, 32 * MiB, 0.25},
      {"populate 4K 16 thr 32M", POPULATE, false, 16, 32 * MiB, 1},   {"touch 4K 16 thr 32M", TOUCH, false, 16, 32 * MiB, 1},
  };
  std::vector<std::vector<double>> in(cases.size()), reg(cases.size()), all(cases.size()), un(cases.size());
  std::vector<double> own;
  for (int r = 0; r < rounds; r++) {
    for (size_t i = 0; i < cases.size(); i++) {
      auto& k = cases[i];
      if (!k.huge && r > 0) continue;
      char* a = map_pages(k.huge);
      auto t0 = clk::now(), t1 = t0, t2 = t0;
      int rc = -1;
      auto registration = [&] {
        t1 = clk::now();
        rc = cuMemHostRegister(a, total, CU_MEMHOSTREGISTER_PORTABLE);
        t2 = clk::now();
      };
      bring_in(a, k.way, k.huge, k.threads, k.piece, k.share, k.share < 1 ? std::function<void()>(registration) : nullptr);
      auto t3 = clk::now();
      if (k.share >= 1) registration();
      auto t4 = clk::now();
      if (rc) say("%s: register %d", k.name, rc);
      in[i].push_back(ns_between(t0, t3) / 1e6);
      reg[i].push_back(ns_between(t1, t2) / 1e6);
      all[i].push_back(ns_between(t0, t4) / 1e6);
      auto t5 = clk::now();
      cuMemHostUnregister(a);
      un[i].push_back(ns_between(t5, clk::now()) / 1e6);
      munmap(a, total);
    }
    void* p;
    auto t0 = clk::now();
    if (r < 2) {
      cuMemHostAlloc(&p, total, CU_MEMHOSTALLOC_PORTABLE);
      own.push_back(ns_between(t0, clk::now()) / 1e6);
      cuMemFreeHost(p);
    }
  }
  say("%zu GiB, medians of %d rounds, ms", gib, rounds);
  say("%-32s %10.0f", "cuMemHostAlloc", median(own));
  say("%-32s %10s %10s %10s %10s %8s", "way", "pages in", "register", "ready", "unregister", "x driver");
  for (size_t i = 0; i < cases.size(); i++)
    say("%-32s %10.0f %10.0f %10.0f %10.0f %8.2f", cases[i].name, median(in[i]), median(reg[i]), median(all[i]), median(un[i]),
        median(own) / median(all[i]));
}
