// Cached pairs of PyTorch's pinned allocator without Python in between.
#include <ATen/cuda/CachingHostAllocator.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

static double one_thread(size_t bytes, int pairs) {
  auto* allocator = at::getHostAllocator(at::kCUDA);
  auto start = std::chrono::steady_clock::now();
  for (int pair = 0; pair < pairs; ++pair) {
    // Freed at the end of the statement.
    allocator->allocate(bytes);
  }
  std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
  return time.count() / pairs;
}

// Mean nanoseconds of one allocation and its free in one thread, while all of them work.
extern "C" double pair_ns(size_t bytes, int threads, int pairs) {
  one_thread(bytes, 100);
  if (threads == 1) return one_thread(bytes, pairs);
  std::atomic<int> missing{threads};
  std::vector<double> times(threads);
  std::vector<std::thread> workers;
  for (int index = 0; index < threads; ++index) {
    workers.emplace_back([&, index] {
      one_thread(bytes, 100);
      --missing;
      while (missing > 0) std::this_thread::yield();
      times[index] = one_thread(bytes, pairs);
    });
  }
  double sum = 0;
  for (int index = 0; index < threads; ++index) {
    workers[index].join();
    sum += times[index];
  }
  return sum / threads;
}
