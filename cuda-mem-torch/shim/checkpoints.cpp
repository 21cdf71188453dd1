// The layouts of private pools, kept and made again.
#include "allocator.hpp"

#include <c10/core/Allocator.h>

#include <numeric>
#include <unordered_map>

namespace cuda_mem {

namespace {

/// The layout of a pool of this allocator.
struct State final : native::AllocatorState {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() override {
    cuda_mem_torch_free_checkpoint(checkpoint);
  }
  MempoolId_t pool;
  cuda_mem_torch_checkpoint* checkpoint = nullptr;
};

struct Delta {
  DeviceIndex device;
  native::CheckpointDelta told;
};

/// The bytes of blocks that somebody has.
using Bytes = std::unordered_map<void*, size_t>;

void note_bytes(void* data, const cuda_mem_torch_block* block) noexcept {
  if (block->allocated) {
    static_cast<Bytes*>(data)->emplace(block->address, block->size);
  }
}

/// Those of a pool, if PyTorch's profiler wants to hear of blocks.
Bytes bytes_to_report(DeviceIndex device, const MempoolId_t& pool) {
  Bytes bytes;
  if (c10::memoryProfilingEnabled()) {
    const cuda_mem_torch_visitor visitor{&bytes, nullptr, &note_bytes, nullptr, nullptr};
    check(cuda_mem_torch_snapshot(device, pool_id(pool), false, &visitor), device);
  }
  return bytes;
}

/// Tells PyTorch's profiler of the blocks of a pool that went, and of those that came, one after the other.
void report_restored(const Delta& delta, const Bytes& before, const Bytes& now) {
  const auto stats = stats_of(delta.device);
  int64_t total = stats.allocated_bytes.all.current;
  const auto add = [](int64_t sum, const Bytes::value_type& block) { return sum + static_cast<int64_t>(block.second); };
  total = std::accumulate(before.begin(), before.end(), total, add) - std::accumulate(now.begin(), now.end(), int64_t{0}, add);
  const auto tell = [&](void* pointer, const Bytes& all, int64_t sign) {
    const auto found = all.find(pointer);
    if (found == all.end()) {
      return;
    }
    const int64_t bytes = sign * static_cast<int64_t>(found->second);
    total += bytes;
    c10::reportMemoryUsageToProfiler(
        pointer, bytes, total, stats.reserved_bytes.all.current, c10::Device(c10::kCUDA, delta.device));
  };
  for (void* pointer : delta.told.ptrs_freed) {
    tell(pointer, before, -1);
  }
  for (const c10::DataPtr& data : delta.told.dataptrs_allocd) {
    tell(data.get(), now, 1);
  }
}

/// Throws if a pool's layout is refused because blocks are still used. PyTorch has no words for that.
void check_pending(int code) {
  check_reason(
      code,
      CUDA_MEM_TORCH_POOL_PENDING,
      "blocks of the pool that were freed are still used by streams that were recorded for them; torch.cuda.synchronize() and "
      "torch.cuda.empty_cache() bring them back");
}

void note_freed(void* data, void* pointer) noexcept {
  static_cast<Delta*>(data)->told.ptrs_freed.push_back(pointer);
}

void note_allocated(void* data, void* pointer) noexcept {
  auto* delta = static_cast<Delta*>(data);
  delta->told.dataptrs_allocd.emplace_back(pointer, pointer, &delete_block, c10::Device(c10::kCUDA, delta->device));
}

} // namespace

std::shared_ptr<native::AllocatorState> Allocator::getCheckpointState(DeviceIndex device, MempoolId_t id) {
  if (is_native_pool(device, id)) {
    return native_->getCheckpointState(device, id);
  }
  auto state = std::make_shared<State>();
  state->pool = id;
  const int code = cuda_mem_torch_checkpoint_pool(device, pool_id(id), &state->checkpoint);
  check_pending(code);
  for (const int reason : {CUDA_MEM_TORCH_POOL_UNKNOWN, CUDA_MEM_TORCH_POOL_RELEASED}) {
    check_reason(code, reason, "Could not find pool of id, or it is freeable");
  }
  check(code, device);
  return state;
}

native::CheckpointDelta Allocator::setCheckpointPoolState(
    DeviceIndex device,
    std::shared_ptr<native::AllocatorState> state) {
  const auto ours = std::dynamic_pointer_cast<State>(state);
  if (ours == nullptr) {
    native::CheckpointDelta told = native_->setCheckpointPoolState(device, std::move(state));
    for (const void* pointer : told.ptrs_freed) {
      native_.forget_block(pointer);
    }
    // PyTorch gives these to storages, which it knows later by the deleter that it sees now.
    for (c10::DataPtr& data : told.dataptrs_allocd) {
      native_.keep_block(data.get(), data.get_deleter());
      [[maybe_unused]] const bool was_native = data.compare_exchange_deleter(data.get_deleter(), &delete_block);
    }
    return told;
  }
  const Bytes before = bytes_to_report(device, ours->pool);
  Delta delta{device, {}};
  const int code = cuda_mem_torch_restore_pool(device, ours->checkpoint, &delta, &note_freed, &note_allocated);
  check_pending(code);
  check_reason(code, CUDA_MEM_TORCH_POOL_UNKNOWN, "Could not find private pool id");
  check_reason(code, CUDA_MEM_TORCH_POOL_RELEASED, "Not expected to checkpoint freeable graph");
  check(code, device);
  if (c10::memoryProfilingEnabled()) {
    report_restored(delta, before, bytes_to_report(device, ours->pool));
  }
  return std::move(delta.told);
}

} // namespace cuda_mem
