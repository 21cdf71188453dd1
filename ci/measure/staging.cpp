// Pageable memory to the device and back through a pinned ring: threads, slots, kinds of host copies, who issues.
//
//   staging [MIB [ROUNDS]]
#include <immintrin.h>

#include <atomic>

#include "measure.h"
using namespace m;

static void copy_plain(char* d, const char* s, size_t n) { memcpy(d, s, n); }
__attribute__((target("avx512f"))) static void copy_nt(char* d, const char* s, size_t n) {
  for (size_t i = 0; i < n; i += 256) {
    __m512i a = _mm512_loadu_si512(s + i), b = _mm512_loadu_si512(s + i + 64), c = _mm512_loadu_si512(s + i + 128),
            e = _mm512_loadu_si512(s + i + 192);
    _mm512_stream_si512((__m512i*)(d + i), a);
    _mm512_stream_si512((__m512i*)(d + i + 64), b);
    _mm512_stream_si512((__m512i*)(d + i + 128), c);
    _mm512_stream_si512((__m512i*)(d + i + 192), e);
  }
  _mm_sfence();
}
static CUcontext primary;
static size_t total;
static char *host, *ring;
static CUdeviceptr target;
struct Config {
  int threads, per;  // slots a thread
  size_t slot;
  bool nt, own_streams, down;
};
// Each thread has its own slots and takes the next piece; it issues on its own stream, or hands over to one issuer in order.
static double run(const Config& c) {
  size_t pieces = total / c.slot, slots = (size_t)c.threads * c.per;
  std::atomic<size_t> next{0};
  std::vector<std::atomic<int>> ready(pieces);
  for (auto& r : ready) r = 0;
  std::vector<CUevent> done(slots);
  for (auto& e : done) cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);
  CUstream main_stream;
  cuStreamCreate(&main_stream, CU_STREAM_NON_BLOCKING);
  std::vector<CUstream> streams(c.threads);
  for (auto& s : streams) cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
  auto copy = c.nt ? copy_nt : copy_plain;
  std::vector<std::thread> t;
  std::atomic<int> go{0}, up{0};
  clk::time_point t0;
  if (c.own_streams) {
    for (int i = 0; i < c.threads; i++)
      t.emplace_back([&, i] {
        cuCtxSetCurrent(primary);
        up++;
        while (!go) _mm_pause();
        std::vector<size_t> holds(c.per, SIZE_MAX);
        int turn = 0;
        for (;; turn = (turn + 1) % c.per) {
          size_t k = next.fetch_add(1);
          char* s = ring + ((size_t)i * c.per + turn) * c.slot;
          CUevent e = done[(size_t)i * c.per + turn];
          if (holds[turn] != SIZE_MAX) {
            while (cuEventQuery(e) == CUDA_ERROR_NOT_READY) _mm_pause();
            if (c.down) copy(host + holds[turn] * c.slot, s, c.slot);
            holds[turn] = SIZE_MAX;
          }
          if (k >= pieces) break;
          if (c.down)
            cuMemcpyDtoHAsync(s, target + k * c.slot, c.slot, streams[i]);
          else {
            copy(s, host + k * c.slot, c.slot);
            cuMemcpyHtoDAsync(target + k * c.slot, s, c.slot, streams[i]);
          }
          cuEventRecord(e, streams[i]);
          holds[turn] = k;
        }
        for (int x = 1; x < c.per; x++) {
          int u = (turn + x) % c.per;
          if (holds[u] == SIZE_MAX) continue;
          while (cuEventQuery(done[(size_t)i * c.per + u]) == CUDA_ERROR_NOT_READY) _mm_pause();
          if (c.down) copy(host + holds[u] * c.slot, ring + ((size_t)i * c.per + u) * c.slot, c.slot);
        }
      });
    while (up < c.threads) _mm_pause();
    t0 = clk::now();
    go = 1;
    for (auto& x : t) x.join();
  } else {
    // One issuer, in order; slot k % slots. A slot is free again when the event of its last copy is done.
    std::vector<std::atomic<size_t>> freed(slots), issued(slots);
    for (size_t i = 0; i < slots; i++) freed[i] = 0, issued[i] = 0;
    for (int i = 0; i < c.threads; i++)
      t.emplace_back([&, i] {
        cuCtxSetCurrent(primary);
        up++;
        while (!go) _mm_pause();
        for (;;) {
          size_t k = next.fetch_add(1);
          if (k >= pieces) return;
          size_t s = k % slots, lap = k / slots;
          if (!c.down) {
            if (lap) {
              while (issued[s].load() < lap) _mm_pause();
              while (cuEventQuery(done[s]) == CUDA_ERROR_NOT_READY) _mm_pause();
            }
            copy(ring + s * c.slot, host + k * c.slot, c.slot);
            ready[k] = 1;
          } else {
            while (issued[s].load() < lap + 1) _mm_pause();
            while (cuEventQuery(done[s]) == CUDA_ERROR_NOT_READY) _mm_pause();
            copy(host + k * c.slot, ring + s * c.slot, c.slot);
            freed[s] = lap + 1;
          }
        }
      });
    while (up < c.threads) _mm_pause();
    t0 = clk::now();
    go = 1;
    for (size_t k = 0; k < pieces; k++) {
      size_t s = k % slots, lap = k / slots;
      if (!c.down) {
        while (!ready[k]) _mm_pause();
        cuMemcpyHtoDAsync(target + k * c.slot, ring + s * c.slot, c.slot, main_stream);
      } else {
        while (freed[s].load() < lap) _mm_pause();
        cuMemcpyDtoHAsync(ring + s * c.slot, target + k * c.slot, c.slot, main_stream);
      }
      cuEventRecord(done[s], main_stream);
      issued[s] = lap + 1;
    }
    for (auto& x : t) x.join();
    cuStreamSynchronize(main_stream);
  }
  double ns = ns_between(t0, clk::now());
  for (auto& e : done) cuEventDestroy(e);
  for (auto& s : streams) cuStreamDestroy(s);
  cuStreamDestroy(main_stream);
  return total / ns;
}
static double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}
int main(int argc, char** argv) {
  total = (size_t)(argc > 1 ? atoi(argv[1]) : 2048) << 20;
  int rounds = argc > 2 ? atoi(argv[2]) : 5;
  cuInit(0);
  CUdevice d;
  cuDeviceGet(&d, 0);
  cuDevicePrimaryCtxRetain(&primary, d);
  cuCtxSetCurrent(primary);
  host = (char*)mmap(0, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(host, 1, total);
  void* p;
  cuMemHostAlloc(&p, 512 << 20, CU_MEMHOSTALLOC_PORTABLE);
  ring = (char*)p;
  cuMemAlloc(&target, total);
  std::vector<Config> cases;
  for (bool down : {false, true})
    for (bool own : {false, true})
      for (bool nt : {false, true})
        for (int th : {6, 8, 10, 12, 14, 15})
          for (size_t slot : {(size_t)256 << 10, (size_t)512 << 10, (size_t)1 << 20, (size_t)2 << 20, (size_t)4 << 20})
            for (int per : {2, 4}) {
              if ((per == 4) != (th == 10 || th == 14)) continue;
              cases.push_back({th, per, slot, nt, own, down});
            }
  std::vector<std::vector<double>> r(cases.size());
  std::vector<double> pin_up, pin_down, page_up, page_down;
  void* big;
  cuMemHostAlloc(&big, total, CU_MEMHOSTALLOC_PORTABLE);
  for (int k = 0; k < rounds; k++) {
    auto timed = [&](auto f) {
      auto t0 = clk::now();
      f();
      return total / ns_between(t0, clk::now());
    };
    pin_up.push_back(timed([&] { cuMemcpyHtoD(target, big, total); }));
    pin_down.push_back(timed([&] { cuMemcpyDtoH(big, target, total); }));
    page_up.push_back(timed([&] { cuMemcpyHtoD(target, host, total); }));
    page_down.push_back(timed([&] { cuMemcpyDtoH(host, target, total); }));
    for (size_t i = 0; i < cases.size(); i++) r[i].push_back(run(cases[i]));
  }
  say("%zu MiB, median of %d, GB/s; pinned up %.1f down %.1f; pageable up %.1f down %.1f", total >> 20, rounds, median(pin_up),
      median(pin_down), median(page_up), median(page_down));
  say("%-5s %-10s %-6s %3s %3s %8s %8s", "way", "issuer", "copy", "thr", "per", "slot KiB", "GB/s");
  for (size_t i = 0; i < cases.size(); i++) {
    auto& c = cases[i];
    say("%-5s %-10s %-6s %3d %3d %8zu %8.1f", c.down ? "down" : "up", c.own_streams ? "each" : "one", c.nt ? "nt" : "plain",
        c.threads, c.per, c.slot >> 10, median(r[i]));
  }
}
