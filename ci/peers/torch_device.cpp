// PyTorch's device allocator without Python in between, and beside it the driver's stream-ordered pool.
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include "patterns.h"

namespace torch_cache = c10::cuda::CUDACachingAllocator;

struct PyTorch {
  explicit PyTorch(const Request&) { torch_cache::resetPeakStats(0); }
  ~PyTorch() { torch_cache::emptyCache(); }

  void* allocate(size_t bytes, cudaStream_t stream) {
    try {
      return torch_cache::raw_alloc_with_stream(bytes, stream);
    } catch (const c10::OutOfMemoryError&) {
      throw std::bad_alloc();
    }
  }
  void free(void* block, size_t, cudaStream_t) { torch_cache::raw_delete(block); }
  // Of all kinds together, which is the first.
  double reserved() { return torch_cache::getDeviceStats(0).reserved_bytes[0].peak; }
};

struct MallocAsync {
  explicit MallocAsync(const Request&) {
    check(cudaDeviceGetDefaultMemPool(&pool_, 0), "cudaDeviceGetDefaultMemPool");
    set(cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
    set(cudaMemPoolAttrReservedMemHigh, 0);
  }
  ~MallocAsync() {
    cudaDeviceSynchronize();
    cudaMemPoolTrimTo(pool_, 0);
  }

  void* allocate(size_t bytes, cudaStream_t stream) {
    void* block;
    cudaError_t code = cudaMallocAsync(&block, bytes, stream);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw std::bad_alloc();
    }
    check(code, "cudaMallocAsync");
    return block;
  }
  void free(void* block, size_t, cudaStream_t stream) { cudaFreeAsync(block, stream); }
  double reserved() {
    uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemHigh, &bytes), "cudaMemPoolGetAttribute");
    return bytes;
  }

 private:
  void set(cudaMemPoolAttr attribute, uint64_t value) {
    check(cudaMemPoolSetAttribute(pool_, attribute, &value), "cudaMemPoolSetAttribute");
  }

  cudaMemPool_t pool_ = nullptr;
};

int main() {
  cudaError_t code = cudaSetDevice(0);
  if (code != cudaSuccess) {
    say("skip", quoted(cudaGetErrorString(code)));
    return 0;
  }
  cudaFree(nullptr);
  torch_cache::init(1);
  int runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  return serve({{"torch", TORCH_VERSION}, {"cuda", std::to_string(runtime)}}, [](const Request& request) {
    if (request.participant == "pytorch") return measured<PyTorch>(request);
    if (request.participant == "cudaMallocAsync") return measured<MallocAsync>(request);
    throw Skip("nobody here is " + request.participant);
  });
}
