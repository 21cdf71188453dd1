// A free and an allocation, 64 live blocks, through PyTorch's interfaces: `pairs.py` counts the instructions of `pairs`.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_mem_torch.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace c10::cuda::_internal {
// libtorch_cuda.so tells it; declared in no header that is installed.
C10_CUDA_API void setHasPrimaryContext(bool (*ask)(DeviceIndex));
} // namespace c10::cuda::_internal

extern "C" int cuda_mem_torch_shim_install(const char*, char*, size_t);

namespace CA = c10::cuda::CUDACachingAllocator;

struct Way {
  const char* name;
  void* (*allocate)(size_t, cudaStream_t);
  void (*free)(void*);
};

static void* through_library(size_t bytes, cudaStream_t stream) {
  void* found = nullptr;
  return cuda_mem_torch_malloc(0, bytes, stream, &found) == CUDA_MEM_TORCH_OK ? found : nullptr;
}

// As a tensor has its memory, but for what makes the tensor.
static void* as_tensor(size_t bytes, cudaStream_t) {
  return c10::GetAllocator(c10::kCUDA)->allocate(bytes).release_context();
}

static const Way ways[] = {
    {"raw", [](size_t bytes, cudaStream_t stream) { return CA::raw_alloc_with_stream(bytes, stream); }, CA::raw_delete},
    {"tensor", as_tensor, [](void* block) { c10::GetAllocator(c10::kCUDA)->raw_deleter()(block); }},
    {"library", through_library, [](void* block) { cuda_mem_torch_delete(block); }},
};

extern "C" __attribute__((noinline)) void pairs(
    const Way& way, const std::vector<size_t>& sizes, std::vector<void*>& live, cudaStream_t stream, int count) {
  for (int i = 0; i < count; ++i) {
    void*& block = live[(i * 29) & 63];
    if (block != nullptr) {
      way.free(block);
    }
    block = way.allocate(sizes[i & 1023], stream);
    if (block == nullptr) {
      std::abort();
    }
  }
}

/// `pairs (ours | native) WAY DOUBLINGS COUNT THREADS`: sizes from 512 bytes to so many times doubled; each thread has a stream.
int main(int count, char** words) {
  if (count != 6) {
    return 2;
  }
  c10::cuda::_internal::setHasPrimaryContext(+[](c10::DeviceIndex) { return true; });
  char text[4096] = "";
  if (std::string(words[1]) == "ours" && cuda_mem_torch_shim_install("2.11.0+cu130", text, sizeof text) != 0) {
    std::printf("%s\n", text);
    return 1;
  }
  CA::init(1);
  cudaSetDevice(0);
  std::mt19937 random(0);
  std::vector<size_t> sizes(1024);
  for (size_t& size : sizes) {
    size = static_cast<size_t>(512 * std::pow(2.0, std::generate_canonical<double, 32>(random) * std::atoi(words[3])));
  }
  const Way* wanted = std::find_if(std::begin(ways), std::end(ways), [&](const Way& way) { return words[2] == std::string(way.name); });
  if (wanted == std::end(ways)) {
    return 2;
  }
  const auto work = [&] {
    cudaSetDevice(0);
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
    std::vector<void*> live(64);
    pairs(*wanted, sizes, live, stream, 4096);
    for (void*& block : live) {
      wanted->free(block);
      block = nullptr;
    }
    pairs(*wanted, sizes, live, stream, std::atoi(words[4]));
  };
  std::vector<std::thread> threads;
  for (int number = 0; number < std::atoi(words[5]); ++number) {
    threads.emplace_back(work);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::_Exit(0);
}
