// Pinned host memory: PyTorch's host allocator over the pinned cache.
#include "allocator.hpp"
#include "host_history.hpp"
#include "thrown.hpp"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

namespace cuda_mem {

namespace {

/// Gives a block back: tensors end where nothing may be thrown.
void delete_pinned(void* block);

class PinnedAllocator;
std::atomic<PinnedAllocator*> the_pinned{nullptr};

using cuda_mem::add;

void add(c10::CachingAllocator::DurationStat& to, const cuda_mem_torch_duration& from) {
  to.min = to.min == 0 || from.min == 0 ? std::max(to.min, from.min) : std::min(to.min, from.min);
  to.max = std::max(to.max, from.max);
  to.total += from.total;
  to.count += from.count;
}

/// Every virtual function of the interface. There is one, and it is never destroyed. What PyTorch's own allocator gave out stays its own:
/// calls that name such memory go there.
class PinnedAllocator final : public at::HostAllocator {
 public:
  explicit PinnedAllocator(at::HostAllocator* before) : native_(before) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (at::HostAllocator* now = at::getHostAllocator(c10::kCUDA); C10_UNLIKELY(now != this)) {
      return now->allocate(bytes); // A storage that grows asks the allocator that made it.
    }
    if (bytes == 0) {
      return {nullptr, nullptr, &delete_pinned, c10::DeviceType::CPU};
    }
    if (C10_UNLIKELY(!open_.load(std::memory_order_acquire))) {
      open();
    }
    void* block = nullptr;
    check(cuda_mem_torch_pinned_malloc(bytes, &block));
    if (C10_UNLIKELY(cuda_mem_torch_pinned_is_allocated_by_driver())) {
      TORCH_WARN_ONCE(
          "cuda-mem: the driver refuses to register host memory (CUDA_ERROR_NOT_SUPPORTED, as under confidential computing), so it allocates "
          "pinned memory itself, which takes several times as long");
    }
    c10::DataPtr data{block, block, &delete_pinned, c10::DeviceType::CPU};
    history_.allocated(block, bytes);
    return data;
  }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  /// The block is the one of the tensor's storage, or begins at the address.
  bool record_event(void* pointer, void* context, c10::Stream stream) override {
    const c10::cuda::CUDAStream used(stream);
    for (void* block : {context, pointer}) {
      if (block == nullptr) {
        continue;
      }
      const int code = cuda_mem_torch_pinned_record(block, used.device_index(), used.stream());
      if (code == CUDA_MEM_TORCH_OK) {
        return true;
      }
      if (code != CUDA_MEM_TORCH_NOT_OURS) {
        check(code, used.device_index());
      }
    }
    return native_->record_event(pointer, context, stream);
  }

  void empty_cache() override {
    check_unless_parents(cuda_mem_torch_pinned_empty_cache());
    native_->empty_cache();
  }

  /// With those of PyTorch's own, which gave memory out before.
  at::HostStats get_stats() override {
    at::HostStats stats = native_->get_stats();
    cuda_mem_torch_pinned_stats ours{};
    check_unless_parents(cuda_mem_torch_pinned_statistics(&ours));
    add(stats.allocations, ours.allocations);
    add(stats.allocated_bytes, ours.allocated_bytes);
    add(stats.active_requests, ours.active_requests);
    add(stats.active_bytes, ours.active_bytes);
    add(stats.host_alloc_time, ours.host_alloc_time);
    add(stats.host_free_time, ours.host_free_time);
    stats.num_host_alloc += ours.num_host_alloc;
    stats.num_host_free += ours.num_host_free;
    return stats;
  }

  void reset_accumulated_stats() override {
    check_unless_parents(cuda_mem_torch_pinned_reset_accumulated_stats());
    native_->reset_accumulated_stats();
  }

  void reset_peak_stats() override {
    check_unless_parents(cuda_mem_torch_pinned_reset_peak_stats());
    native_->reset_peak_stats();
  }

  void begin_allocate_to_pool(MempoolId_t id, std::function<bool(c10::Stream)> filter) override {
    if (!open_.load(std::memory_order_acquire)) {
      open();
    }
    using Filter = std::function<bool(c10::Stream)>;
    check(cuda_mem_torch_pinned_begin_allocate_to_pool(pool_id(id), &accepts, new Filter(std::move(filter)), &end<Filter>));
    pool_uses_ += 1;
  }

  void end_allocate_to_pool(MempoolId_t id) override {
    constexpr int not_begun = CUDA_MEM_TORCH_POOL_NOT_BEGUN;
    const int code = open_.load(std::memory_order_acquire) ? cuda_mem_torch_pinned_end_allocate_to_pool(pool_id(id)) : not_begun;
    return code == not_begun ? native_->end_allocate_to_pool(id) : check(code); // Begun before this was in place, or by nobody.
  }

  void release_pool(MempoolId_t id) override {
    // Graphs of both may share a pool, and which one ends is not known. What its own graphs use the native one never gives out again.
    try {
      return native_->release_pool(id);
    } catch (const std::exception&) {
      // How it answers for a pool that it has not, or no more.
    }
    if (check_unless_parents(cuda_mem_torch_pinned_release_pool(pool_id(id)))) {
      pool_uses_ -= 1;
    }
  }

#if CUDA_MEM_HAS_HOST_HISTORY
  void record_history(
      bool enabled,
      c10::CachingDeviceAllocator::CreateContextFn recorder,
      size_t max_entries,
      c10::CachingDeviceAllocator::RecordContext when,
      bool clear) override {
    // It has what is registered past allocators, too.
    native_->record_history(enabled, recorder, max_entries, when, clear);
    history_.record(enabled, recorder, max_entries, when, clear);
  }

  bool is_history_enabled() const override {
    return history_.is_on();
  }

  /// A segment for each block that is in use.
  std::vector<at::HostSegmentInfo> get_segments() override {
    std::vector<at::HostSegmentInfo> segments = native_->get_segments();
    const auto add = [](void* data, void* block, size_t bytes) noexcept {
      at::HostSegmentInfo segment;
      segment.address = reinterpret_cast<size_t>(block);
      segment.size = bytes;
      segment.allocated = segment.active = true;
      static_cast<std::vector<at::HostSegmentInfo>*>(data)->push_back(std::move(segment));
    };
    const size_t first = segments.size();
    check_unless_parents(cuda_mem_torch_pinned_blocks(add, &segments));
    for (size_t at = first; at < segments.size(); ++at) {
      segments[at].context_when_allocated = history_.context_of(reinterpret_cast<void*>(segments[at].address));
    }
    return segments;
  }

  std::vector<c10::CachingDeviceAllocator::TraceEntry> get_traces() override {
    auto traces = native_->get_traces();
    auto ours = history_.traces();
    traces.insert(traces.end(), std::make_move_iterator(ours.begin()), std::make_move_iterator(ours.end()));
    std::stable_sort(traces.begin(), traces.end(), [](const auto& one, const auto& other) { return one.time_.t_ < other.time_.t_; });
    return traces;
  }

  void record_external_register(void* pointer, size_t bytes) override {
    native_->record_external_register(pointer, bytes);
  }

  void record_external_unregister(void* pointer) override {
    native_->record_external_unregister(pointer);
  }
#endif

  at::HostAllocator* native_allocator() const {
    return native_;
  }
  size_t pool_uses() const {
    return pool_uses_.load();
  }

  HostHistory history_;

 private:
  /// In the context that there is, as PyTorch's own does it: memory is pinned for all.
  void open() {
    const DeviceIndex device = c10::cuda::getDeviceIndexWithPrimaryContext().value_or(c10::cuda::current_device());
    check(cuda_mem_torch_pinned_open(device), device);
    open_.store(true, std::memory_order_release);
  }

  static bool accepts(void* data, void* /*stream*/) noexcept {
    return contained(
        [&] { return (*static_cast<std::function<bool(c10::Stream)>*>(data))(c10::cuda::getCurrentCUDAStream().unwrap()); },
        [](const std::string& why) {
          TORCH_WARN("cuda-mem: pinned memory goes to no pool, because its filter failed: ", why);
          return false;
        });
  }

  at::HostAllocator* native_;
  std::atomic<bool> open_{false};
  std::atomic<size_t> pool_uses_{0};
};

void delete_pinned(void* block) {
  if (block != nullptr) {
    the_pinned.load(std::memory_order_relaxed)->history_.freed(block);
    cuda_mem_torch_pinned_free(block);
  }
}

bool pinned_is_in_place() {
  PinnedAllocator* ours = the_pinned.load();
  return ours != nullptr && at::getHostAllocator(c10::kCUDA) == ours;
}

void put(at::HostAllocator* allocator) {
  const auto set = [&](uint8_t priority) { at::setHostAllocator(c10::kCUDA, allocator, priority); };
  TORCH_CHECK(
      put_in_place(set, [&] { return at::getHostAllocator(c10::kCUDA) == allocator; }),
      "another allocator of pinned memory is registered for CUDA and does not let go");
}

void install_pinned() {
  if (pinned_is_in_place()) {
    return;
  }
  if (the_pinned.load() == nullptr) {
    the_pinned.store(new PinnedAllocator(at::getHostAllocator(c10::kCUDA)));
  }
  put(the_pinned.load());
}

/// Refused while somebody has memory or a pool that PyTorch's own does not know: it would not wait for the streams that use it.
void uninstall_pinned() {
  if (!pinned_is_in_place()) {
    return;
  }
  TORCH_CHECK(
      the_pinned.load()->pool_uses() == 0, "CUDA graphs that share a pool with this library's pinned memory still live: delete them first");
  cuda_mem_torch_pinned_stats stats{};
  check(cuda_mem_torch_pinned_statistics(&stats));
  TORCH_CHECK(
      stats.active_bytes.current == 0, stats.active_bytes.current, " bytes of pinned memory are still in tensors: delete them first");
  check(cuda_mem_torch_pinned_empty_cache());
  the_pinned.load()->history_.record(false, nullptr, 0, HostHistory::Level::NEVER, true);
  put(the_pinned.load()->native_allocator());
}

} // namespace

} // namespace cuda_mem

/// Has PyTorch take pinned memory from the pinned cache; 0, or 1 with the reason in `text`.
EXPORT int cuda_mem_torch_shim_install_pinned(char* text, size_t capacity) {
  return cuda_mem::guarded(text, capacity, &cuda_mem::install_pinned);
}

/// Has PyTorch use its own pinned memory again, if none of this is in use; 0, or 1 with the reason in `text`.
EXPORT int cuda_mem_torch_shim_uninstall_pinned(char* text, size_t capacity) {
  return cuda_mem::guarded(text, capacity, &cuda_mem::uninstall_pinned);
}

/// Whether PyTorch takes pinned memory from the pinned cache.
EXPORT int cuda_mem_torch_shim_is_pinned_installed() {
  return cuda_mem::pinned_is_in_place() ? 1 : 0;
}
