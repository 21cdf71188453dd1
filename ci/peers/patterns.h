// What is asked of a device allocator; docs/benchmarks.md tells what each measure means. The participant in Rust
// (cuda-mem-pool/benches/participant) goes through the same sequences.
//
// An allocator is a type with
//   A(const Request&)                             everything fresh
//   void* allocate(size_t bytes, cudaStream_t)    throws when it cannot
//   void free(void*, size_t bytes, cudaStream_t)
//   double reserved()                             most bytes that it held since it was made, or NAN
//   ~A()                                          gives all memory back
#pragma once
#include <x86intrin.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>
#include <vector>

#include "protocol.h"
#include "rmm_benchmarks.h"
#include "runtime.h"
#include "team.h"

constexpr int SIZES = 1024;

// The sizes that a thread allocates in turn: always 512 bytes (0), up to 512 KiB (1) or up to 32 MiB (2), evenly spread over
// their logarithms.
inline std::vector<size_t> sizes_of_thread(int index, uint64_t pattern) {
  double octaves = pattern == 0 ? 0 : pattern == 1 ? 10 : 16;
  std::mt19937 engine(index);
  std::vector<size_t> sizes(SIZES);
  for (auto& bytes : sizes) {
    bytes = static_cast<size_t>(512 * std::exp2(std::generate_canonical<double, 32>(engine) * octaves));
  }
  return sizes;
}

// 64 live blocks of one thread; a step frees one of them and allocates another.
template <class A>
class Churner {
 public:
  static constexpr int LIVE = 64;

  Churner(A& allocator, cudaStream_t stream, int index, uint64_t pattern)
      : allocator_(allocator), stream_(stream), sizes_(sizes_of_thread(index, pattern)) {}

  ~Churner() {
    for (int slot = 0; slot < LIVE; ++slot) {
      if (live_[slot]) allocator_.free(live_[slot], bytes_[slot], stream_);
    }
    cudaStreamSynchronize(stream_);
  }

  void steps(uint64_t count) {
    for (uint64_t end = step_ + count; step_ < end; ++step_) {
      int slot = (step_ * 29) & (LIVE - 1);
      if (live_[slot]) allocator_.free(live_[slot], bytes_[slot], stream_);
      live_[slot] = nullptr;
      bytes_[slot] = sizes_[step_ & (SIZES - 1)];
      live_[slot] = allocator_.allocate(bytes_[slot], stream_);
    }
  }

  // Bytes that are live, each block rounded up to 512.
  int64_t live() const {
    int64_t sum = 0;
    for (int slot = 0; slot < LIVE; ++slot) sum += live_[slot] ? (bytes_[slot] + 511) / 512 * 512 : 0;
    return sum;
  }

 private:
  A& allocator_;
  cudaStream_t stream_;
  std::vector<size_t> sizes_;
  void* live_[LIVE] = {};
  size_t bytes_[LIVE] = {};
  uint64_t step_ = 0;
};

// Nanoseconds of one free and one allocation, the mean of all threads, each with a stream of its own.
template <class A>
Figures churn(const Request& request) {
  int threads = request.number("threads");
  uint64_t pattern = request.number("pattern"), warm = request.number("warm");
  double wanted = request.number("ms") * 1e6, enough_warm = request.number("warm_ms") * 1e6;
  A allocator(request);
  own_stream(threads - 1);
  std::vector<double> times(threads);
  std::atomic<int64_t> live{0}, most{0};
  std::atomic<bool> enough{false};
  in_threads(threads, [&](int index, Team& team) {
    Churner<A> churner(allocator, own_stream(index), index, pattern);
    // Every size twice at least; who is slow does not take longer than it has to.
    Clock clock;
    uint64_t warmed = 0;
    for (; warmed < warm && (warmed < 2 * SIZES || clock.nanoseconds() < enough_warm); warmed += 64) churner.steps(64);
    // The clock is looked at seldom enough to cost nothing, and often enough that all end together.
    uint64_t piece = clock.nanoseconds() / warmed > 2000 ? 16 : 256, done = 0;
    team.meet();
    clock = Clock();
    // Whoever comes last to a busy machine works too.
    while (done == 0 || !enough.load(std::memory_order_relaxed)) {
      churner.steps(piece);
      done += piece;
      if (clock.nanoseconds() >= wanted) enough = true;
    }
    times[index] = clock.nanoseconds() / done;
    team.meet();
    // What is live at once, counted for as long again: the threads' peaks meet seldom.
    int64_t mine = 0;
    clock = Clock();
    for (int step = 0; step < 2 * SIZES || clock.nanoseconds() < wanted; ++step) {
      churner.steps(1);
      int64_t now = churner.live(), all = live += now - mine, before = most;
      mine = now;
      while (before < all && !most.compare_exchange_weak(before, all)) {}
    }
    team.meet();
  });
  double sum = 0;
  for (double time : times) sum += time;
  return {{"op", sum / threads},
          {"live", most / 1048576.0},
          {"reserved", allocator.reserved() / most}};
}

// Nanoseconds of one allocation and its free, of one size that the allocator has: the mean of many, and single ones.
template <class A>
Figures hit(const Request& request) {
  size_t bytes = request.number("bytes"), samples = request.number("samples");
  double wanted = request.number("ms") * 1e6;
  A allocator(request);
  cudaStream_t stream = own_stream(0);
  auto pairs = [&](uint64_t count) {
    for (uint64_t index = 0; index < count; ++index) allocator.free(allocator.allocate(bytes, stream), bytes, stream);
  };
  pairs(1000);
  uint64_t done = 0;
  Clock clock;
  double time = 0;
  for (; time < wanted; time = clock.nanoseconds()) {
    pairs(256);
    done += 256;
  }
  std::vector<uint64_t> ticks(samples), empty(samples);
  Clock whole;
  uint64_t start = __rdtsc();
  for (auto& sample : empty) {
    uint64_t before = __rdtsc();
    sample = __rdtsc() - before;
  }
  for (auto& sample : ticks) {
    uint64_t before = __rdtsc();
    pairs(1);
    sample = __rdtsc() - before;
  }
  double tick = whole.nanoseconds() / (__rdtsc() - start);
  auto at = [&](std::vector<uint64_t>& sorted, double share) {
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(share * (sorted.size() - 1))] * tick;
  };
  // Without what reading the counter takes.
  double reading = at(empty, 0.5);
  return {{"pair", time / done}, {"p50", at(ticks, 0.5) - reading}, {"p99", at(ticks, 0.99) - reading}};
}

// One thread allocates, another frees: nanoseconds of each side, without its waiting for the other.
template <class A>
Figures remote(const Request& request) {
  constexpr uint64_t BATCH = 64, DEPTH = 16;
  struct Side {
    alignas(64) std::atomic<uint64_t> batches{0};
  };
  uint64_t batches = request.number("batches"), warm = request.number("warm");
  A allocator(request);
  std::vector<size_t> bytes = sizes_of_thread(0, request.number("pattern"));
  std::vector<void*> blocks(DEPTH * BATCH);
  Side filled, emptied;
  double times[2] = {};
  in_threads(2, [&](int index, Team& team) {
    cudaStream_t stream = own_stream(0);
    for (uint64_t batch = 0; batch < warm + batches; ++batch) {
      while (index == 0 ? batch - emptied.batches >= DEPTH : filled.batches == batch) team.wait();
      void** mine = &blocks[batch % DEPTH * BATCH];
      const size_t* size = &bytes[batch * BATCH % bytes.size()];
      Clock clock;
      for (uint64_t block = 0; block < BATCH; ++block) {
        if (index == 0) {
          mine[block] = allocator.allocate(size[block], stream);
        } else {
          allocator.free(mine[block], size[block], stream);
        }
      }
      if (batch >= warm) times[index] += clock.nanoseconds();
      (index == 0 ? filled : emptied).batches = batch + 1;
    }
  });
  double count = batches * BATCH;
  return {{"remote_alloc", times[0] / count}, {"remote_free", times[1] / count}};
}

// Answers a request with this allocator.
template <class A>
Figures measured(const Request& request) {
  if (request.measure == "churn") return churn<A>(request);
  if (request.measure == "hit") return hit<A>(request);
  if (request.measure == "remote") return remote<A>(request);
  if (request.measure == "random") return random<A>(request);
  if (request.measure == "streams") return streams<A>(request);
  throw Skip("nobody measures " + request.measure + " here");
}
