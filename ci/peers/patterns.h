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
#include <cuda_runtime.h>
#include <x86intrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <vector>

#include "protocol.h"
#include "team.h"

// Throws when the runtime refuses.
inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code));
}

// A stream for each thread, made once: allocators remember streams for longer than a measurement.
inline cudaStream_t own_stream(size_t index) {
  static std::vector<cudaStream_t> streams;
  while (streams.size() <= index) {
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    streams.push_back(stream);
  }
  return streams[index];
}

// 64 live blocks of one thread; a step frees one of them and allocates another.
template <class A>
class Churner {
 public:
  static constexpr int LIVE = 64, SIZES = 1024;

  Churner(A& allocator, cudaStream_t stream, int index, uint64_t pattern)
      : allocator_(allocator), stream_(stream), sizes_(SIZES) {
    std::mt19937 engine(index);
    for (auto& bytes : sizes_) {
      double random = std::generate_canonical<double, 32>(engine);
      bytes = pattern == 0 ? 512 : static_cast<size_t>(512 * std::exp2(random * (pattern == 1 ? 10 : 16)));
    }
  }

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
  double wanted = request.number("ms") * 1e6;
  A allocator(request);
  own_stream(threads - 1);
  std::vector<double> times(threads);
  std::atomic<int64_t> live{0}, most{0};
  std::atomic<bool> enough{false};
  in_threads(threads, [&](int index, Team& team) {
    Churner<A> churner(allocator, own_stream(index), index, pattern);
    Clock clock;
    churner.steps(warm);
    // The clock is looked at seldom enough to cost nothing, and often enough that all end together.
    uint64_t piece = clock.nanoseconds() / warm > 2000 ? 16 : 256, done = 0;
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
    // What is live at once, counted when no clock runs.
    int64_t mine = 0;
    for (int step = 0; step < 2 * Churner<A>::SIZES; ++step) {
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
  std::vector<size_t> bytes(Churner<A>::SIZES);
  std::mt19937 engine(0);
  bool fixed = request.number("pattern") == 0;
  for (auto& size : bytes) {
    double random = std::generate_canonical<double, 32>(engine);
    size = fixed ? 512 : static_cast<size_t>(512 * std::exp2(random * 10));
  }
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

// RMM's random-allocation benchmark: milliseconds of all of its operations, on the default stream.
template <class A>
Figures random(const Request& request) {
  size_t allocations = request.number("n"), largest = request.number("mib") << 20, limit = size_t{16000} << 20;
  A allocator(request);
  struct Block {
    void* address;
    size_t bytes;
  };
  size_t most_bytes = 0, most_blocks = 0;
  auto all = [&] {
    std::default_random_engine engine;
    std::uniform_int_distribution<size_t> size_of(1, largest), index_of(0, allocations - 1);
    std::uniform_int_distribution<int> choice_of(0, 99);
    std::vector<Block> live;
    size_t made = 0, total = 0;
    for (size_t step = 0; step < 2 * allocations; ++step) {
      size_t bytes = size_of(engine);
      bool allocate = live.empty() || (choice_of(engine) < 73 && made < allocations && total + bytes < limit);
      if (allocate) {
        try {
          live.push_back({allocator.allocate(bytes, nullptr), bytes});
          ++made;
          total += bytes;
          most_bytes = std::max(most_bytes, total);
          most_blocks = std::max(most_blocks, live.size());
        } catch (const std::bad_alloc&) {
          allocate = false;
        }
      }
      if (!allocate && !live.empty()) {
        size_t index = index_of(engine) % live.size();
        Block block = live[index];
        std::swap(live[index], live.back());
        live.pop_back();
        allocator.free(block.address, block.bytes, nullptr);
        total -= block.bytes;
      }
    }
    for (const Block& block : live) allocator.free(block.address, block.bytes, nullptr);
  };
  for (uint64_t round = 0; round < request.number("warm"); ++round) all();
  Clock clock;
  all();
  return {{"random", clock.nanoseconds() / 1e6},
          {"live", most_bytes / 1048576.0},
          {"blocks", static_cast<double>(most_blocks)}};
}

// Occupies its stream for a time.
static const char* const SPIN = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin_ns(.param .u64 duration)
{
    .reg .pred %p;
    .reg .b64 %wanted, %begin, %now;
    ld.param.u64 %wanted, [duration];
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %p, %now, %wanted;
    @%p bra again;
    ret;
}
)";

// RMM's multi-stream benchmark: microseconds of kernels on several streams, each with a buffer that is freed behind it.
template <class A>
Figures streams(const Request& request) {
  uint64_t count = request.number("streams"), kernels = request.number("kernels"), times = request.number("times");
  uint64_t spin = request.number("spin");
  static cudaKernel_t kernel = [] {
    cudaLibrary_t library;
    cudaKernel_t found = nullptr;
    check(cudaLibraryLoadData(&library, SPIN, nullptr, nullptr, 0, nullptr, nullptr, 0), "cudaLibraryLoadData");
    check(cudaLibraryGetKernel(&found, library, "spin_ns"), "cudaLibraryGetKernel");
    return found;
  }();
  A allocator(request);
  if (request.number("prewarm")) {
    std::vector<void*> buffers;
    for (uint64_t index = 0; index < count; ++index) buffers.push_back(allocator.allocate(8, own_stream(index)));
    for (uint64_t index = 0; index < count; ++index) allocator.free(buffers[index], 8, own_stream(index));
  }
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  Clock clock;
  for (uint64_t round = 0; round < times; ++round) {
    for (uint64_t index = 0; index < kernels; ++index) {
      cudaStream_t stream = own_stream(index % count);
      void* buffer = allocator.allocate(8, stream);
      void* arguments[] = {&spin};
      check(cudaLaunchKernel(kernel, dim3(1), dim3(1), arguments, 0, stream), "cudaLaunchKernel");
      allocator.free(buffer, 8, stream);
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  return {{"streams", clock.nanoseconds() / 1e3 / times}};
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
