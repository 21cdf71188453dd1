// What happened to pinned memory lately, since the PyTorch that records it.
#pragma once

#include "thrown.hpp"

#include <cuda_mem_torch.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cuda_mem {

/// Allocations and frees of pinned blocks. A free is recorded as completed where it is asked for.
class HostHistory {
 public:
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  using Level = c10::CachingDeviceAllocator::RecordContext;
  using Context = std::shared_ptr<c10::GatheredContext>;

  bool is_on() const {
    return on_.load(std::memory_order_relaxed);
  }

  void record(bool enabled, c10::CachingDeviceAllocator::CreateContextFn recorder, size_t max_entries, Level when, bool clear) {
    const std::lock_guard<std::mutex> lock(mutex_);
    recorder_ = recorder;
    level_ = enabled ? when : Level::NEVER;
    if (enabled) {
      most_ = max_entries;
    } else {
      contexts_.clear();
    }
    if (clear) {
      entries_.clear();
    }
    on_.store(enabled, std::memory_order_relaxed);
  }

  void allocated(void* block, size_t bytes) {
    if (C10_LIKELY(!is_on())) {
      return;
    }
    Context context = gather(Level::STATE);
    const std::lock_guard<std::mutex> lock(mutex_);
    add(Entry::ALLOC, block, bytes, level_ >= Level::ALLOC ? context : nullptr);
    contexts_[block] = std::move(context);
  }

  /// Called before the block goes back.
  void freed(void* block) noexcept {
    if (C10_LIKELY(!is_on())) {
      return;
    }
    contained(
        [&] {
          size_t bytes = 0;
          if (cuda_mem_torch_pinned_block_bytes(block, &bytes) != CUDA_MEM_TORCH_OK) {
            return;
          }
          const Context context = gather(Level::ALL);
          // Ends without the lock: it may be the last of a Python object.
          Context last;
          const std::lock_guard<std::mutex> lock(mutex_);
          if (const auto found = contexts_.find(block); found != contexts_.end()) {
            last = std::move(found->second);
            contexts_.erase(found);
          }
          const Context& shown = context ? context : last;
          add(Entry::FREE_REQUESTED, block, bytes, level_ >= Level::ALLOC ? shown : nullptr);
          add(Entry::FREE_COMPLETED, block, bytes, level_ >= Level::ALLOC ? shown : nullptr);
        },
        [](const std::string& /*why*/) {});
  }

  Context context_of(void* block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = contexts_.find(block);
    return found == contexts_.end() ? nullptr : found->second;
  }

  /// The entries, the oldest first, with their times in microseconds.
  std::vector<Entry> traces() {
    const auto nanoseconds = clock_.makeConverter();
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Entry> found(entries_.begin(), entries_.end());
    for (Entry& entry : found) {
      entry.time_.t_ = nanoseconds(entry.time_.approx_t_) / 1000;
    }
    return found;
  }

 private:
  Context gather(Level from) {
    c10::CachingDeviceAllocator::CreateContextFn recorder = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      recorder = level_ >= from ? recorder_ : nullptr;
    }
    // Without the lock: it takes the interpreter's.
    return recorder == nullptr ? nullptr : recorder();
  }

  void add(Entry::Action action, void* block, size_t bytes, Context context) {
    entries_.emplace_back(
        action,
        c10::DeviceIndex{-1},
        reinterpret_cast<size_t>(block),
        bytes,
        nullptr,
        c10::MempoolId_t{0, 0},
        c10::getApproximateTime(),
        std::move(context));
    while (entries_.size() > most_) {
      entries_.pop_front();
    }
  }

  std::atomic<bool> on_{false};
  std::mutex mutex_;
  c10::CachingDeviceAllocator::CreateContextFn recorder_{nullptr};
  Level level_{Level::NEVER};
  size_t most_{0};
  std::deque<Entry> entries_;
  /// Of blocks that somebody has.
  std::unordered_map<void*, Context> contexts_;
  c10::ApproximateClockToUnixTimeConverter clock_;
};

} // namespace cuda_mem

