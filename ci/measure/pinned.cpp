// Topic 8 without Python in the way: PyTorch's own pinned allocator, one allocation and its free.
#include <ATen/cuda/CachingHostAllocator.h>

#include <chrono>
#include <thread>
#include <vector>

static double run(size_t n, int k) {
  auto* a = at::cuda::getCachingHostAllocator();
  auto t0 = std::chrono::steady_clock::now();
  for (int i = 0; i < k; i++) { auto p = a->allocate(n); }
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - t0).count() / k;
}
extern "C" double pinned_pair_ns(size_t n, int k) { return run(n, k); }
// Every thread does k pairs; the mean time of one pair in one thread.
extern "C" double pinned_pair_threads_ns(size_t n, int k, int threads) {
  std::vector<std::thread> t;
  std::vector<double> r(threads);
  for (int i = 0; i < threads; i++)
    t.emplace_back([&, i] {
      run(n, 50);
      r[i] = run(n, k);
    });
  double s = 0;
  for (int i = 0; i < threads; i++) {
    t[i].join();
    s += r[i];
  }
  return s / threads;
}
