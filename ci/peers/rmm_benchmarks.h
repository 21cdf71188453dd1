// Two of RMM's own benchmarks, for any allocator as patterns.h describes it.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <new>
#include <random>
#include <vector>

#include "protocol.h"
#include "runtime.h"
#include "team.h"

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
  double wanted = request.number("ms") * 1e6, repetitions = 0;
  all();
  Clock clock;
  for (; repetitions == 0 || clock.nanoseconds() < wanted; ++repetitions) all();
  return {{"random", clock.nanoseconds() / repetitions / 1e6},
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
