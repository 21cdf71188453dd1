// Streams of PyTorch's, which the library has to see before they capture.
#pragma once

#include <cuda_mem_torch.h>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace cuda_mem {

/// The devices that were used: others have no memory and no captures.
inline std::vector<c10::DeviceIndex> used_devices(int devices) {
  std::vector<c10::DeviceIndex> used;
  for (c10::DeviceIndex device = 0; device < devices; ++device) {
    if (c10::cuda::hasPrimaryContext(device)) {
      used.push_back(device);
    }
  }
  return used;
}

/// All streams that PyTorch hands out of a device: few, and for ever. They are handed out in turn, to other threads in between too.
inline std::vector<cudaStream_t> own_streams(c10::DeviceIndex device) {
  constexpr size_t streams_in_a_pool = 32;
  static std::mutex mutex;
  // Also for threads that run on at the end of the process.
  static auto& known = *new std::map<std::pair<int, int>, std::set<cudaStream_t>>();
  const std::lock_guard<std::mutex> lock(mutex);
  const c10::cuda::CUDAGuard guard(device);
  const auto [least, greatest] = c10::cuda::CUDAStream::priority_range();
  std::vector<cudaStream_t> all;
  for (int priority = least; priority >= greatest; --priority) {
    auto& own = known[{device, priority}];
    for (size_t turn = 0; own.size() < streams_in_a_pool && turn < 100 * streams_in_a_pool; ++turn) {
      own.insert(c10::cuda::getStreamFromPool(priority, device).stream());
    }
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

/// Whether a stream lasts as long as the process: all of PyTorch's do, by whatever name; others' end when their owners like.
inline bool lasts(int device, void* handle) noexcept {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    // PyTorch has the same number for an external stream without a handle. A thread's own default stream may capture: it is not meant.
    return true;
  }
  try {
    const auto own = own_streams(static_cast<c10::DeviceIndex>(device));
    return std::find(own.begin(), own.end(), handle) != own.end();
  } catch (...) {
    return false;
  }
}

/// Shows the library the current stream of a device, and once all that PyTorch hands out: it has to see a stream before it captures.
inline void see_streams(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard guard(device);
  // What cannot be seen, because it captures, is refused when it allocates.
  const auto see = [&](cudaStream_t stream) { return cuda_mem_torch_see_stream(device, stream) == CUDA_MEM_TORCH_OK; };
  see(c10::cuda::getCurrentCUDAStream(device));
  static std::mutex mutex;
  static auto& seen = *new std::set<int>(); // As above.
  const std::lock_guard<std::mutex> lock(mutex);
  if (seen.count(device) != 0) {
    return;
  }
  const auto own = own_streams(device);
  // Otherwise, as when something is thrown, the next call looks again.
  if (static_cast<size_t>(std::count_if(own.begin(), own.end(), see)) == own.size()) {
    seen.insert(device);
  }
}

} // namespace cuda_mem
