// Streams of PyTorch's, which the library has to see before they capture.
#pragma once

#include <cuda_mem_torch.h>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <mutex>
#include <unordered_set>

namespace cuda_mem {

/// Visits all streams that PyTorch hands out of a device. They are few, live for ever, and each is handed out once.
template <class Visit>
void visit_streams(c10::DeviceIndex device, const Visit& visit) {
  constexpr int streams_in_a_pool = 32;
  const auto [least, greatest] = c10::cuda::CUDAStream::priority_range();
  for (int priority = least; priority >= greatest; --priority) {
    for (int turn = 0; turn < streams_in_a_pool; ++turn) {
      visit(c10::cuda::getStreamFromPool(priority, device));
    }
  }
}

/// Whether a stream lasts as long as the process: all of PyTorch's do, and others' (`torch.cuda.ExternalStream`), whose identity for
/// PyTorch is their handle, end when their owners like.
inline bool lasts(int device, void* handle) noexcept {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    // PyTorch has the same number for an external stream without a handle. A thread's own default stream may capture: it is not meant.
    return true;
  }
  try {
    const auto index = static_cast<c10::DeviceIndex>(device);
    const auto stream = c10::cuda::getCurrentCUDAStream(index);
    if (stream.stream() == handle) {
      return stream.id() != c10::cuda::getStreamFromExternal(stream.stream(), index).id();
    }
    const c10::cuda::CUDAGuard guard(index);
    bool is_own = false;
    visit_streams(index, [&](const c10::cuda::CUDAStream& own) { is_own |= own.stream() == handle; });
    return is_own;
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
  static auto& seen = *new std::unordered_set<int>(); // Also for threads that run on at the end of the process.
  const std::lock_guard<std::mutex> lock(mutex);
  if (seen.count(device) != 0) {
    return;
  }
  bool all = true;
  visit_streams(device, [&](cudaStream_t stream) { all &= see(stream); });
  // Otherwise, as when something is thrown, the next call looks again.
  if (all) {
    seen.insert(device);
  }
}

} // namespace cuda_mem
