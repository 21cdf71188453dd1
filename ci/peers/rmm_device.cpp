// RMM's device resources. They are built as RMM's benchmarks build them, and for churn as large as it needs.
#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/version_config.hpp>

#include "patterns.h"

// Bytes that a resource takes beforehand: as little as the sixteen threads can do with, or what RMM's benchmarks say.
static size_t initial(const Request& request, double share_of_free, size_t less = 0) {
  if (request.measure != "random") return size_t{16} << 30;
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return (static_cast<size_t>(free * share_of_free) - less) / 256 * 256;
}

template <class Resource>
struct Rmm {
  template <class... Arguments>
  explicit Rmm(Arguments&&... arguments) : resource(std::forward<Arguments>(arguments)...) {}
  // Nothing of it is in use when it goes.
  ~Rmm() { cudaDeviceSynchronize(); }

  void* allocate(size_t bytes, cudaStream_t stream) { return resource.allocate(stream, bytes, 256); }
  void free(void* block, size_t bytes, cudaStream_t stream) { resource.deallocate(stream, block, bytes, 256); }
  double reserved() { return NAN; }

  Resource resource;
};

struct Cuda : Rmm<rmm::mr::cuda_memory_resource> {
  explicit Cuda(const Request&) {}
};

struct Pool : Rmm<rmm::mr::pool_memory_resource> {
  explicit Pool(const Request& request) : Rmm(rmm::mr::cuda_memory_resource{}, initial(request, 0.5)) {}
};

struct Arena : Rmm<rmm::mr::arena_memory_resource> {
  explicit Arena(const Request& request)
      : Rmm(rmm::mr::cuda_memory_resource{}, initial(request, 1.0, size_t{64} << 20)) {}
};

// Powers of two up to 4 MiB in bins, the rest from a pool.
struct Binning : Rmm<rmm::mr::binning_memory_resource> {
  explicit Binning(const Request& request)
      : Rmm(rmm::mr::pool_memory_resource{rmm::mr::cuda_memory_resource{}, initial(request, 0.5)}, 18, 22) {}
};

struct CudaAsync : Rmm<rmm::mr::cuda_async_memory_resource> {
  explicit CudaAsync(const Request&) {}

  double reserved() {
    uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(resource.pool_handle(), cudaMemPoolAttrReservedMemHigh, &bytes),
          "cudaMemPoolGetAttribute");
    return bytes;
  }
};

int main() {
  cudaError_t code = cudaSetDevice(0);
  if (code != cudaSuccess) {
    say("skip", quoted(cudaGetErrorString(code)));
    return 0;
  }
  cudaFree(nullptr);
  std::string version = std::to_string(RMM_VERSION_MAJOR) + "." + std::to_string(RMM_VERSION_MINOR) + "." +
                        std::to_string(RMM_VERSION_PATCH);
  return serve({{"rmm", version}}, [](const Request& request) {
    if (request.participant == "rmm-cuda") return measured<Cuda>(request);
    if (request.participant == "rmm-pool") return measured<Pool>(request);
    if (request.participant == "rmm-arena") return measured<Arena>(request);
    if (request.participant == "rmm-binning") return measured<Binning>(request);
    if (request.participant == "rmm-cuda_async") return measured<CudaAsync>(request);
    throw Skip("nobody here is " + request.participant);
  });
}
