// What it costs to let the device into rows of handles, and to unmap them: by one thread, by several at once, and a second time
// for what has access already. A source of memory that has a thread for these calls has to know whether they wait for each other.
#include "measure.h"
using namespace m;
static const char* T = "rows";
static const int ROW = 8, ROUNDS = 150;

static CUmemAllocationProp prop() {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return p;
}

// Rows of one size of handle, one for each of four threads.
struct Rows {
  size_t bytes;
  CUmemAccessDesc access{};
  CUdeviceptr addresses = 0;
  std::vector<CUmemGenericAllocationHandle> handles;

  explicit Rows(size_t bytes) : bytes(bytes), handles(4 * ROW) {
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    auto p = prop();
    for (auto& handle : handles) CK(cuMemCreate(&handle, bytes, &p, 0));
    CK(cuMemAddressReserve(&addresses, 4 * ROW * bytes, 0, 0, 0));
  }
  ~Rows() {
    for (auto handle : handles) CK(cuMemRelease(handle));
    CK(cuMemAddressFree(addresses, 4 * ROW * bytes));
  }
  CUdeviceptr at(int thread) const { return addresses + thread * ROW * bytes; }
  void map(int thread) const {
    for (int i = 0; i < ROW; i++) CK(cuMemMap(at(thread) + i * bytes, bytes, 0, handles[thread * ROW + i], 0));
  }
  void let_in(int thread) const { CK(cuMemSetAccess(at(thread), ROW * bytes, &access, 1)); }
  void unmap(int thread) const { CK(cuMemUnmap(at(thread), ROW * bytes)); }
};

static void by_threads(const Rows& rows, int threads) {
  std::vector<std::vector<double>> access(threads), unmap(threads);
  std::vector<std::thread> all;
  auto begin = clk::now();
  for (int t = 0; t < threads; t++)
    all.emplace_back([&, t] {
      CK(cuCtxSetCurrent(ctx));
      for (int i = 0; i < ROUNDS; i++) {
        rows.map(t);
        auto a = clk::now();
        rows.let_in(t);
        auto b = clk::now();
        rows.unmap(t);
        access[t].push_back(ns_between(a, b) / 1e3);
        unmap[t].push_back(ns_between(b, clk::now()) / 1e3);
      }
    });
  for (auto& thread : all) thread.join();
  double each = ns_between(begin, clk::now()) / 1e3 / (ROUNDS * threads);
  std::vector<double> accesses, unmaps;
  for (int t = 0; t < threads; t++) {
    accesses.insert(accesses.end(), access[t].begin(), access[t].end());
    unmaps.insert(unmaps.end(), unmap[t].begin(), unmap[t].end());
  }
  auto what = fmt("%d handles of %zu MiB, %d threads: ", ROW, rows.bytes >> 20, threads);
  put(T, what + "let in, half", med(accesses), "us");
  put(T, what + "let in, 90 of 100", pct(accesses, 0.9), "us");
  put(T, what + "unmap, half", med(unmaps), "us");
  put(T, what + "a row of all threads", each, "us");
}

static void again(const Rows& rows) {
  std::vector<double> first, second;
  for (int i = 0; i < ROUNDS; i++) {
    rows.map(0);
    auto a = clk::now();
    rows.let_in(0);
    auto b = clk::now();
    rows.let_in(0);
    second.push_back(ns_between(b, clk::now()) / 1e3);
    first.push_back(ns_between(a, b) / 1e3);
    rows.unmap(0);
  }
  auto what = fmt("%d handles of %zu MiB: ", ROW, rows.bytes >> 20);
  put(T, what + "let in", med(first), "us");
  put(T, what + "let in again", med(second), "us");
}

int main() {
  init();
  for (size_t mib : {2, 8, 32}) {
    Rows rows(mib << 20);
    for (int threads : {1, 2, 4}) by_threads(rows, threads);
    again(rows);
  }
}
