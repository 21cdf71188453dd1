// An allocator of somebody else, for a pool that has its segments from there.
#pragma once

#include "versions.hpp"

#include <c10/cuda/CUDACachingAllocator.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Gives what PyTorch's own gives, and does nothing else: as `CUDAPluggableAllocator` over two functions.
class Upstream final : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  using Base = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  using Index = c10::DeviceIndex;
  /// What it throws while `fails`. It is nobody's base class, and has none.
  struct Broken final {};
  explicit Upstream(Base* native) : native_(native) {}

  void* raw_alloc(size_t bytes) override {
    asked += 1;
    if (fails) {
      throw Broken();
    }
    return native_->raw_alloc(bytes);
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override { return native_->raw_alloc_with_stream(bytes, stream); }
  void raw_delete(void* pointer) override { native_->raw_delete(pointer); }

  c10::DataPtr allocate(size_t) override { refuse(); }
  void copy_data(void*, const void*, size_t) const override { refuse(); }
  bool initialized() override { refuse(); }
  void emptyCache(c10::MempoolId_t) override { refuse(); }
  using Base::recordStream;
  void recordStream(const c10::DataPtr&, c10::cuda::CUDAStream) override { refuse(); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(Index) override { refuse(); }
  void resetAccumulatedStats(Index) override { refuse(); }
  void resetPeakStats(Index) override { refuse(); }
  void init(int) override { refuse(); }
  double getMemoryFraction(Index) override { refuse(); }
  void setMemoryFraction(double, Index) override { refuse(); }
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(Index) override { refuse(); }
  void enable(bool) override { refuse(); }
  bool isEnabled() const override { refuse(); }
  void cacheInfo(Index, size_t*) override { refuse(); }
  void* getBaseAllocation(void*, size_t*) override { refuse(); }
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(c10::MempoolId_t, bool) override { refuse(); }
  void beginAllocateToPool(Index, c10::MempoolId_t, std::function<bool(cudaStream_t)>) override { refuse(); }
  void endAllocateToPool(Index, c10::MempoolId_t) override { refuse(); }
  void releasePool(Index, c10::MempoolId_t) override { refuse(); }
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void*) override { refuse(); }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { refuse(); }
  void recordHistory(
      bool, c10::cuda::CUDACachingAllocator::CreateContextFn, size_t, c10::cuda::CUDACachingAllocator::RecordContext, bool,
      const std::vector<std::string>&) override { refuse(); }
  void attachOutOfMemoryObserver(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver) override { refuse(); }
#if CUDA_MEM_HAS_OOM_REJECTION
  void attachOomRejectionObserver(c10::cuda::CUDACachingAllocator::OomRejectionObserver) override { refuse(); }
#endif
  void attachAllocatorTraceTracker(c10::cuda::CUDACachingAllocator::AllocatorTraceTracker) override { refuse(); }
  void enablePeerAccess(Index, Index) override { refuse(); }
  cudaError_t memcpyAsync(void*, int, const void*, int, size_t, cudaStream_t, bool) override { refuse(); }
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> getCheckpointState(Index, c10::MempoolId_t) override { refuse(); }
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      Index, std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState>) override { refuse(); }
  std::string name() override { return "upstream"; }

  bool fails{false};
  int asked{0};

 private:
  [[noreturn]] static void refuse() {
    TORCH_CHECK(false, "a pool asks its source for memory alone");
  }

  Base* native_;
};
