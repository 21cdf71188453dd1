// Blocks, their streams, and how the allocator is set up.
#include "allocator.hpp"
#include "thrown.hpp"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/env.h>

#include <algorithm>

namespace cuda_mem {

void check(int code, DeviceIndex device) {
  if (C10_LIKELY(code == CUDA_MEM_TORCH_OK)) {
    return;
  }
  const std::string message = cuda_mem_torch_last_error();
  switch (code) {
    case CUDA_MEM_TORCH_OUT_OF_MEMORY:
      TORCH_CHECK_WITH(OutOfMemoryError, false, message);
    case CUDA_MEM_TORCH_FORKED:
      TORCH_CHECK(
          false, "Cannot use the CUDA memory of the parent in a forked subprocess. To use CUDA with multiprocessing, you must use "
          "the 'spawn' start method");
    case CUDA_MEM_TORCH_INVALID_ARGUMENT:
      // As PyTorch's own allocator says it, which programs may look for.
      TORCH_CHECK(
          device == no_device || (device >= 0 && device < c10::cuda::device_count()), "Invalid device argument ",
          static_cast<int>(device), ": did you call init? ", message);
      TORCH_CHECK_VALUE(false, "cuda-mem: ", message);
    case CUDA_MEM_TORCH_SOURCE_FAILED:
      thrown_by_source.pass_on();
      [[fallthrough]];
    default: {
      const std::string text = "cuda-mem: " + message + (device >= 0 ? " (device " + std::to_string(device) + ")" : "");
      if (const int refused = cuda_mem_torch_last_driver_code(); code == CUDA_MEM_TORCH_DRIVER && refused != 0) {
        // As PyTorch's own checks of CUDA's calls, which programs tell by type and code. The runtime's codes are the driver's.
        const std::string why = std::string("CUDA error: ") + cudaGetErrorString(static_cast<cudaError_t>(refused)) + "\n" + text;
        throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, refused, why);
      }
      TORCH_CHECK(false, text);
    }
  }
}

bool check_unless_parents(int code, DeviceIndex device) {
  if (code == CUDA_MEM_TORCH_FORKED) {
    return false;
  }
  check(code, device);
  return true;
}

cuda_mem_torch_device_stats stats_of(DeviceIndex device) {
  cuda_mem_torch_device_stats stats{};
  check(cuda_mem_torch_stats(device, &stats), device);
  return stats;
}

void check_block(int code, const void* pointer) {
  TORCH_CHECK(code != CUDA_MEM_TORCH_NOT_OURS, "invalid device pointer: ", pointer, "\ncuda-mem: ", cuda_mem_torch_last_error());
  check(code);
}

namespace {

constexpr size_t one_exabyte = 1152921504606846976ULL;

/// Tells PyTorch's profiler of bytes of a block that came or went, as its own allocator does: of cached blocks alone.
void report(void* pointer, int64_t bytes, DeviceIndex device) {
  const auto stats = stats_of(device);
  c10::reportMemoryUsageToProfiler(
      pointer,
      bytes,
      static_cast<size_t>(stats.allocated_bytes.all.current),
      static_cast<size_t>(stats.reserved_bytes.all.current),
      c10::Device(c10::kCUDA, device));
}

/// PyTorch's callbacks for memory that libraries keep, such as what other processes are done with; then its own allocator.
bool free_memory(void* /*data*/, size_t /*requested*/) noexcept {
  bool freed = false;
  const auto ask = [&](const std::string& whom, const auto& body) {
    freed |= contained(body, [&](const std::string& why) {
      TORCH_WARN("cuda-mem: ", whom, " could not free memory: ", why);
      return false;
    });
  };
  for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    ask("the callback " + name, [&] { return c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute(); });
  }
  ask("PyTorch's own allocator", [] { return installed()->empty_natively({0, 0}); });
  return freed;
}

/// Whether PyTorch's sanitizer or profiler may want to be told of blocks.
inline bool is_watched() {
  return C10_UNLIKELY(c10::impl::GPUTrace::get_trace() != nullptr) ||
      C10_UNLIKELY(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr);
}

/// Tells of a new block, which goes back if somebody who is told throws.
[[gnu::cold]] void tell_allocated(void* pointer, DeviceIndex device) {
  try {
    if (const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace(); interpreter != nullptr) {
      (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
    }
    size_t bytes = 0;
    if (c10::memoryProfilingEnabled()) {
      check(cuda_mem_torch_block_bytes(pointer, &bytes), device);
    }
    if (bytes != 0) {
      report(pointer, static_cast<int64_t>(bytes), device);
    }
  } catch (...) {
    cuda_mem_torch_delete(pointer);
    throw;
  }
}

/// Frees a block and tells of it.
[[gnu::cold]] int delete_watched(void* pointer) {
  const int device = cuda_mem_torch_device_of(pointer);
  // The native allocator tells of its own.
  if (device < 0) {
    return cuda_mem_torch_delete(pointer);
  }
  if (const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace(); interpreter != nullptr) {
    (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
  }
  size_t bytes = 0;
  if (c10::memoryProfilingEnabled()) {
    cuda_mem_torch_block_bytes(pointer, &bytes);
  }
  const int code = cuda_mem_torch_delete(pointer);
  if (code == CUDA_MEM_TORCH_OK && bytes != 0) {
    report(pointer, -static_cast<int64_t>(bytes), static_cast<DeviceIndex>(device));
  }
  return code;
}

/// What is done about a block that the library did not take.
[[gnu::cold]] void keep_deleting(void* pointer, int code) {
  switch (code) {
    // A forked child destroys what it inherited: it is the parent's.
    case CUDA_MEM_TORCH_FORKED:
      return;
    case CUDA_MEM_TORCH_NOT_OURS:
      if (Allocator* allocator = installed(); allocator != nullptr && allocator->native_allocator().is_late()) {
        Native& native = allocator->native_allocator();
        const c10::DeleterFnPtr deleter = native.deleter_of(pointer);
        // Before somebody else can have it.
        native.forget_block(pointer);
        deleter == nullptr ? native->raw_delete(pointer) : deleter(pointer);
        return;
      }
      TORCH_CHECK(false, "invalid device pointer: ", pointer);
    default:
      // Deleters run where nothing may be thrown.
      TORCH_WARN("cuda-mem: a block could not be freed: ", cuda_mem_torch_last_error());
  }
}

/// What PyTorch's own allocator has since before this one, of memory that the message counts as somebody else's.
std::string held_natively(Allocator* allocator, DeviceIndex device) {
  if (!allocator->native_allocator().is_late()) {
    return "";
  }
  const int64_t bytes = allocator->native_allocator()->getDeviceStats(device).reserved_bytes[0].current;
  return bytes == 0 ? "" : " PyTorch's own allocator holds " + std::to_string(bytes >> 20) + " MiB since before enable().";
}

/// Counts a request that is rejected, and says so.
std::string rejected([[maybe_unused]] Allocator* allocator, [[maybe_unused]] size_t bytes, [[maybe_unused]] DeviceIndex device) {
#if CUDA_MEM_HAS_OOM_REJECTION
  if (!is_rejected(allocator, bytes, device)) {
    return "";
  }
  const auto reserved = static_cast<size_t>(allocator->getDeviceStats(device).reserved_bytes[0].current);
  rejections.counts[device] += 1;
  contained(
      [&] { rejections.observers.tell(device, bytes, reserved, allocator->getMemoryInfo(device).second); },
      [](const std::string& why) { TORCH_WARN("cuda-mem: an observer of rejected requests failed: ", why); });
  return "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit.\n";
#else
  return "";
#endif
}

/// Throws why there is no block.
[[noreturn, gnu::cold]] void refuse(int code, size_t bytes, DeviceIndex device) {
  if (code == CUDA_MEM_TORCH_OUT_OF_MEMORY) {
    const std::string message = cuda_mem_torch_last_error();
    cuda_mem_torch_device_stats stats{};
    if (c10::memoryProfilingEnabled() && cuda_mem_torch_stats(device, &stats) == CUDA_MEM_TORCH_OK) {
      c10::reportOutOfMemoryToProfiler(
          static_cast<int64_t>(bytes),
          static_cast<size_t>(stats.allocated_bytes.all.current),
          static_cast<size_t>(stats.reserved_bytes.all.current),
          c10::Device(c10::kCUDA, device));
    }
    thrown_by_observer.pass_on();
    Allocator* allocator = installed();
    TORCH_CHECK_WITH(OutOfMemoryError, false, rejected(allocator, bytes, device), message, held_natively(allocator, device));
  }
  check(code, device);
  TORCH_CHECK(false, "cuda-mem: no memory and no reason");
}

} // namespace

void delete_block(void* pointer) {
  if (pointer == nullptr) {
    return;
  }
  const int code = is_watched() ? delete_watched(pointer) : cuda_mem_torch_delete(pointer);
  if (C10_UNLIKELY(code != CUDA_MEM_TORCH_OK)) {
    keep_deleting(pointer, code);
  }
}

/// Memory of a pool that the native allocator had before.
void* Allocator::obtain_natively(size_t bytes, DeviceIndex device, cudaStream_t stream) {
  share_limit(device);
  void* pointer = native_->raw_alloc_with_stream(bytes, stream);
  native_.keep_block(pointer, native_->raw_deleter());
  share_limit(device);
  return pointer;
}

inline void* Allocator::obtain(size_t bytes, DeviceIndex device, cudaStream_t stream) {
  if (native_.takes(device, stream)) {
    return obtain_natively(bytes, device, stream);
  }
  void* pointer = nullptr;
  const int code = cuda_mem_torch_malloc(device, bytes, stream, &pointer);
  if (C10_UNLIKELY(code != CUDA_MEM_TORCH_OK)) {
    refuse(code, bytes, device);
  }
  if (is_watched()) {
    tell_allocated(pointer, device);
  }
  return pointer;
}

c10::DataPtr Allocator::allocate(size_t bytes) {
  if (C10_UNLIKELY(native::get() != this)) {
    return native::get()->allocate(bytes); // disable() came since: a storage that grows asks the allocator that made it.
  }
  TORCH_CHECK_WITH(
      OutOfMemoryError, bytes < one_exabyte, "CUDA out of memory. Tried to allocate more than 1EB memory.");
  const DeviceIndex device = current_device();
  void* pointer = bytes == 0 ? nullptr : obtain(bytes, device, c10::cuda::getCurrentCUDAStream(device));
  return {pointer, pointer, &delete_block, c10::Device(c10::kCUDA, device)};
}

#if CUDA_MEM_HAS_EXACT_ADDRESSES
c10::DataPtr Allocator::allocateWithAddress(size_t bytes, void* address) {
  if (bytes == 0) {
    return allocate(0);
  }
  TORCH_CHECK(
      reinterpret_cast<uintptr_t>(address) % 512 == 0, "mallocWithAddress: addr must be aligned to kMinBlockSize (512 bytes), got ", address);
  const DeviceIndex device = current_device();
  const int code = cuda_mem_torch_malloc_at(device, bytes, c10::cuda::getCurrentCUDAStream(device), address);
  if (code == CUDA_MEM_TORCH_NOT_OURS && native_.is_late()) {
    return native_->allocateWithAddress(bytes, address);
  }
  TORCH_CHECK(code != CUDA_MEM_TORCH_NOT_OURS, "Could not allocate CUDA storage at exact address ", address);
  check(code, device);
  if (is_watched()) {
    tell_allocated(address, device);
  }
  return {address, address, &delete_block, c10::Device(c10::kCUDA, device)};
}
#endif

void Allocator::copy_data(void* target, const void* source, std::size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(target, source, bytes, cudaMemcpyDeviceToDevice));
}

void* Allocator::raw_alloc(size_t bytes) {
  return bytes == 0 ? nullptr : raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream(current_device()));
}

void* Allocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return bytes == 0 ? nullptr : obtain(bytes, current_device(), stream);
}

void Allocator::init(int device_count) {
  const std::lock_guard<std::mutex> lock(init_mutex_);
  if (device_count_.load() == 0 && !native_.is_late()) {
    follow_environment();
  }
  check(cuda_mem_torch_init(device_count));
  // What is forwarded to it needs its devices; it allocates nothing.
  native_->init(device_count);
  if (device_count_.load() == 0 && device_count > 0) {
    // Once, also if the settings below are refused and PyTorch comes again.
    check(cuda_mem_torch_attach_oom_reclaimer(&free_memory, nullptr));
  }
  if (device_count > device_count_.load()) {
    device_count_.store(device_count);
  }
  // All that there are, also those that are not initialised.
  one_device_.store(c10::cuda::device_count() == 1);
  if (device_count == 0) {
    return;
  }
  // Each time: they may have changed while PyTorch allocated itself.
  apply_settings();
}

void Allocator::apply_settings(bool names_expandable) {
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  cuda_mem_torch_options options{};
  // PyTorch takes more than the library has numbers for. Nothing is as large either way.
  constexpr size_t largest = one_exabyte - (size_t{1} << 20);
  options.large_segment_size = std::min(Config::large_segment_size(), largest);
  const size_t split = Config::max_split_size();
  options.max_split_size = split == std::numeric_limits<size_t>::max() ? UINT64_MAX : split;
  options.max_non_split_rounding_size = std::max<uint64_t>(Config::max_non_split_rounding_size(), options.large_segment_size);
  const auto& divisions = Config::roundup_power2_divisions();
  for (size_t at = 0; at < std::size(options.roundup_power2_divisions) && at < divisions.size(); ++at) {
    options.roundup_power2_divisions[at] = divisions[at];
  }
  options.garbage_collection_threshold = Config::garbage_collection_threshold();
  if (!check_unless_parents(cuda_mem_torch_set_options(&options))) {
    return;
  }
  check(cuda_mem_torch_set_graph_capture_record_stream_reuse(native::CUDAAllocatorConfig::graph_capture_record_stream_reuse()));
  if (names_expandable || native_.names_expandable) {
    native_.names_expandable = true;
    check(cuda_mem_torch_set_expandable_segments(Config::use_expandable_segments()));
  }
#if CUDA_MEM_HAS_HOST_LIMITS
  cuda_mem_torch_pinned_set_max_cached_size(Config::pinned_max_cached_size());
#endif
#if CUDA_MEM_HAS_OOM_REJECTION
  // PyTorch's own looks at the settings' share then, as they are. What the program has set is another, which holds again afterwards.
  using Own = native::CUDAAllocatorConfig;
  rejected_beyond_.store(Own::throw_on_cudamalloc_oom() ? Own::per_process_memory_fraction() : 1.0);
#endif
  // Also if they name none: the library may have been told of another.
  for (DeviceIndex device = 0; device < device_count_.load(); ++device) {
    set_limit(getMemoryFraction(device), device);
  }
}

void Allocator::emptyCache(MempoolId_t id) {
  if (check_unless_parents(cuda_mem_torch_empty_cache(CUDA_MEM_TORCH_ALL_DEVICES, pool_id(id), nullptr))) {
    empty_natively(id);
  }
}

bool Allocator::empty_natively(MempoolId_t id) {
  if (!native_.is_late() || native_.is_beside_captures()) {
    return false;
  }
  int64_t freed = 0;
  const auto add = [&](int64_t sign) {
    for (DeviceIndex device = 0; device < device_count_.load(); ++device) {
      freed += sign * native_->getDeviceStats(device).reserved_bytes[0].current;
    }
  };
  add(1);
  native_->emptyCache(id);
  add(-1);
  for (DeviceIndex device = 0; device < device_count_.load(); ++device) {
    share_limit(device);
  }
  return freed > 0;
}

double Allocator::getMemoryFraction(DeviceIndex device) {
  // Says whether there is such a device.
  double fraction = 1.0;
  check(cuda_mem_torch_memory_fraction(device, &fraction), device);
  const std::lock_guard<std::mutex> lock(limits_mutex_);
  const auto found = limits_.find(device);
  return found == limits_.end() ? native::CUDAAllocatorConfig::per_process_memory_fraction() : found->second;
}

void Allocator::setMemoryFraction(double fraction, DeviceIndex device) {
  TORCH_CHECK(fraction >= 0.0 && fraction <= 1.0, "invalid fraction:", fraction, ". Please set within [0, 1].");
  set_limit(fraction, device);
}

void Allocator::set_limit(double fraction, DeviceIndex device) {
  check(cuda_mem_torch_set_memory_fraction(device, std::min(fraction, rejected_beyond_.load())), device);
  {
    const std::lock_guard<std::mutex> lock(limits_mutex_);
    limits_[device] = fraction;
  }
  if (native_.is_late() && fraction == 1.0) {
    native_->setMemoryFraction(fraction, device);
  }
  share_limit(device);
}

/// Has each of the two allocators count what the other one holds of a limit for both.
void Allocator::share_limit(DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(limits_mutex_);
  const auto found = limits_.find(device);
  const double limit = std::min(found == limits_.end() ? 1.0 : found->second, rejected_beyond_.load());
  if (!native_.is_late() || limit == 1.0) {
    return;
  }
  const auto stats = stats_of(device);
  const auto ours = static_cast<double>(stats.reserved_bytes.all.current);
  const auto theirs = static_cast<double>(native_->getDeviceStats(device).reserved_bytes[0].current);
  // Of a device that nobody uses nothing is asked, which would make a context on it.
  const double total = ours + theirs == 0.0 ? 1.0 : static_cast<double>(getMemoryInfo(device).second);
  const auto left_by = [&](double other) { return std::max(limit - other / total, 0.0); };
  check(cuda_mem_torch_set_memory_fraction(device, left_by(theirs)), device);
  native_->setMemoryFraction(left_by(ours), device);
}

void Allocator::enable(bool value) {
  // As PyTorch's own allocator reads it: once, and nobody turns caching on then.
  static const bool is_forced_off = c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING").value_or(false) ||
      c10::utils::check_env("PYTORCH_NO_HIP_MEMORY_CACHING").value_or(false);
  enabled_.store(value && !(is_forced_off && says_forced_off));
  cuda_mem_torch_enable(value && !is_forced_off);
  if (native_.is_late()) {
    native_->enable(value);
  }
}

void Allocator::cacheInfo(DeviceIndex device, size_t* largest) {
  check(cuda_mem_torch_cache_info(device, largest), device);
  if (native_.is_late()) {
    native_->cacheInfo(device, largest);
  }
}

void* Allocator::getBaseAllocation(void* pointer, size_t* bytes) {
  void* base = nullptr;
  size_t size = 0;
  const int code = cuda_mem_torch_base_allocation(pointer, &base, &size);
  if (code == CUDA_MEM_TORCH_NOT_OURS && native_.is_late()) {
    return native_->getBaseAllocation(pointer, bytes);
  }
  check_block(code, pointer);
  if (bytes != nullptr) {
    *bytes = size;
  }
  return base;
}

void Allocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (data.get() == nullptr) {
    return;
  }
  if (data.get_deleter() != &delete_block) {
    // Its own blocks it knows; of others, such as those of other processes, nobody here decides.
    return native_->recordStream(data, stream);
  }
  const int code = cuda_mem_torch_record_stream(data.get(), stream.device_index(), stream.stream());
  TORCH_CHECK(code != CUDA_MEM_TORCH_NOT_OURS || native_.is_late(), "No allocated block can be found for ", data.get());
  if (code != CUDA_MEM_TORCH_NOT_OURS) {
    check_unless_parents(code, stream.device_index());
    return;
  }
  // A block of one of its pools, which it knows by its own deleter. Without a context nothing is deleted.
  native_->recordStream(c10::DataPtr(data.get(), nullptr, native_.deleter_of(data.get()), data.device()), stream);
}

cudaError_t Allocator::memcpyAsync(
    void* target,
    int target_device,
    const void* source,
    int source_device,
    size_t bytes,
    cudaStream_t stream,
    bool p2p_enabled) {
  if (p2p_enabled || target_device == source_device) {
    return cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  // Mapped memory of a device that the other does not reach.
  return cudaMemcpyPeerAsync(target, target_device, source, source_device, bytes, stream);
}

void Allocator::enablePeerAccess(DeviceIndex device, DeviceIndex peer) {
  native_->enablePeerAccess(device, peer);
  check(cuda_mem_torch_enable_peer_access(device, peer), device);
}

} // namespace cuda_mem
