// Statistics, snapshots and history.
#include "allocator.hpp"
#include "thrown.hpp"

#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace cuda_mem {

using c10::GatheredContext;
using c10::CachingDeviceAllocator::AnnotationEntry;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;

namespace {

/// What the program says of a call, as the library keeps it.
using Context = std::shared_ptr<GatheredContext>;

std::atomic<native::CreateContextFn> recorder{nullptr};
/// Of what is said of memory after it was allocated; and the actions that are not recorded, a bit for each.
std::atomic<native::CreateContextFn> note_recorder{nullptr};
std::atomic<uint32_t> skipped_actions{0};

void* gather() noexcept {
  const auto create = recorder.load();
  if (create == nullptr) {
    return nullptr;
  }
  // An entry without a context is better than none.
  return contained(
      [&]() -> void* { return new Context(create()); }, [](const std::string&) -> void* { return nullptr; });
}

Context context(void* from) {
  return from == nullptr ? nullptr : *static_cast<Context*>(from);
}

TraceEntry trace_entry(const cuda_mem_torch_trace_entry& from) {
  return TraceEntry(
      static_cast<TraceEntry::Action>(from.action),
      static_cast<DeviceIndex>(from.device),
      from.address,
      from.size,
      from.stream,
      pool_id(from.pool),
      c10::getApproximateTime(),
      context(from.context),
      // As PyTorch writes that nothing was compiled.
      *from.compile_context == '\0' ? "N/A" : from.compile_context,
      from.user_metadata);
}

void visit_segment(void* data, const cuda_mem_torch_segment* from) noexcept {
  SegmentInfo to;
  to.device = static_cast<DeviceIndex>(from->device);
  to.address = reinterpret_cast<size_t>(from->address);
  to.total_size = from->total_size;
  to.requested_size = from->requested_size;
  to.allocated_size = from->allocated_size;
  to.active_size = from->active_size;
  to.stream = from->stream;
  to.is_large = from->is_large;
  to.is_expandable = from->is_expandable;
  to.owner_private_pool_id = pool_id(from->pool);
  // NCCL registers a private pool's segments in this order, which has to be the same in all processes.
  to.registration_counter = static_cast<int32_t>(std::min<int64_t>(from->serial, std::numeric_limits<int32_t>::max()));
  to.context_when_allocated = context(from->context);
  static_cast<native::SnapshotInfo*>(data)->segments.push_back(std::move(to));
}

void visit_block(void* data, const cuda_mem_torch_block* from) noexcept {
  BlockInfo to;
  to.size = from->size;
  to.requested_size = from->requested_size;
  to.allocated = from->allocated;
  to.active = from->active;
  to.context_when_allocated = context(from->context);
  static_cast<native::SnapshotInfo*>(data)->segments.back().blocks.push_back(std::move(to));
}

void visit_trace(void* data, const cuda_mem_torch_trace_entry* from) noexcept {
  auto& traces = static_cast<native::SnapshotInfo*>(data)->device_traces;
  const auto device = static_cast<size_t>(from->device);
  if (traces.size() <= device) {
    traces.resize(device + 1);
  }
  TraceEntry entry = trace_entry(*from);
  entry.time_.t_ = static_cast<c10::time_t>(from->time_us);
  traces[device].push_back(std::move(entry));
}

/// An annotation, which PyTorch's schema lets say anything: its viewers look at those that start and end.
void visit_tag(void* data, int device, cuda_mem_torch_pool_id pool, const char* name) noexcept {
  AnnotationEntry entry(static_cast<DeviceIndex>(device), c10::getApproximateTime());
  entry.time_.t_ = 0;
  entry.recordUserMetadata("name", name);
  entry.recordUserMetadata("stage", "TAG");
  entry.recordUserMetadata("pool_id", std::to_string(pool.first) + ", " + std::to_string(pool.second));
  static_cast<native::SnapshotInfo*>(data)->external_annotations.push_back(std::move(entry));
}

#if CUDA_MEM_HAS_CONTEXT_FOR_POINTER
/// The allocated block at an address, as the only one of its segment; without one the segment has none.
SegmentInfo find(const void* pointer) {
  native::SnapshotInfo info;
  const cuda_mem_torch_visitor visitor{&info, &visit_segment, &visit_block, nullptr, nullptr};
  check_unless_parents(cuda_mem_torch_snapshot(CUDA_MEM_TORCH_ALL_DEVICES, {0, 0}, false, &visitor));
  const auto address = reinterpret_cast<size_t>(pointer);
  for (SegmentInfo& segment : info.segments) {
    for (const BlockInfo& block : std::exchange(segment.blocks, {})) {
      if (block.allocated && address >= segment.address && address - segment.address < block.size) {
        segment.blocks.push_back(block);
        return segment;
      }
      segment.address += block.size;
    }
  }
  return {};
}
#endif

/// PyTorch's observers of requests that there is no memory for. The library has one for all: after one has thrown no other is told.
auto& observers = *new Told<native::OutOfMemoryObserver>();

void tell_observers(void* /*data*/, int64_t device, size_t requested, size_t total, size_t free) noexcept {
  // Of a request that was not made here, so that nobody was thrown it.
  thrown_by_observer.forget();
#if CUDA_MEM_HAS_OOM_REJECTION
  if (contained(
          [&] { return is_rejected(installed(), requested, static_cast<DeviceIndex>(device)); }, [](const std::string&) { return false; })) {
    // It has observers of its own.
    return;
  }
#endif
  contained(
      [&] { observers.tell(device, requested, total, free); }, [](const std::string&) { thrown_by_observer.keep(); });
}

void track(void* data, const cuda_mem_torch_trace_entry* entry) noexcept {
  contained(
      [&] { (*static_cast<native::AllocatorTraceTracker*>(data))(trace_entry(*entry)); },
      [](const std::string& why) { TORCH_WARN("cuda-mem: a trace tracker failed: ", why); });
}

/// Forgets the oldest.
template <class Entry>
void keep_last(std::deque<Entry>& entries, size_t most) {
  while (entries.size() > most) {
    entries.pop_front();
  }
}

thread_local std::string user_metadata;
/// What is compiled in the thread, as the library has it too.
thread_local std::vector<std::string> compile_contexts;

} // namespace

DeviceStats Allocator::getDeviceStats(DeviceIndex device) {
  const auto ours = stats_of(device);
  DeviceStats stats = native_.is_late() ? native_->getDeviceStats(device) : DeviceStats{};
  add(stats.allocation, ours.allocation);
  add(stats.segment, ours.segment);
  add(stats.active, ours.active);
  add(stats.inactive_split, ours.inactive_split);
  add(stats.allocated_bytes, ours.allocated_bytes);
  add(stats.reserved_bytes, ours.reserved_bytes);
  add(stats.active_bytes, ours.active_bytes);
  add(stats.inactive_split_bytes, ours.inactive_split_bytes);
  add(stats.requested_bytes, ours.requested_bytes);
  add(stats.oversize_allocations, ours.oversize_allocations);
  add(stats.oversize_segments, ours.oversize_segments);
  stats.num_alloc_retries += ours.num_alloc_retries;
  stats.num_ooms += ours.num_ooms;
  stats.num_sync_all_streams += ours.num_sync_all_streams;
  stats.num_device_alloc += ours.num_device_alloc;
  stats.num_device_free += ours.num_device_free;
  stats.max_split_size = ours.max_split_size;
#if CUDA_MEM_HAS_OOM_REJECTION
  const int64_t rejected = rejections.counts[device];
  // The library counts those too. Both may have been reset in between.
  stats.num_ooms -= std::min(rejected, ours.num_ooms);
  stats.num_oom_rejections += rejected;
#endif
#if CUDA_MEM_HAS_STATS_OF_POOLS
  const auto note = [](void* data, cuda_mem_torch_pool_id id, cuda_mem_torch_stat_array bytes) noexcept {
    add(static_cast<DeviceStats*>(data)->reserved_bytes_by_private_pools[{id.first, id.second}], bytes);
  };
  check(cuda_mem_torch_reserved_by_private_pools(device, &stats, note), device);
#endif
  return stats;
}

void Allocator::resetAccumulatedStats(DeviceIndex device) {
  [[maybe_unused]] const bool is_here = check_unless_parents(cuda_mem_torch_reset_accumulated_stats(device), device);
#if CUDA_MEM_HAS_OOM_REJECTION
  if (is_here) {
    rejections.counts[device] = 0;
  }
#endif
  if (native_.is_late()) {
    native_->resetAccumulatedStats(device);
  }
}

void Allocator::resetPeakStats(DeviceIndex device) {
  check_unless_parents(cuda_mem_torch_reset_peak_stats(device), device);
  if (native_.is_late()) {
    native_->resetPeakStats(device);
  }
}

std::vector<native::StreamSegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex device) {
  auto sizes = native_.is_late() ? native_->getExpandableSegmentSizes(device) : std::vector<native::StreamSegmentSize>{};
  const auto note = [](void* data, void* stream, bool is_small, uint64_t bytes) noexcept {
    static_cast<std::vector<native::StreamSegmentSize>*>(data)->emplace_back(
        static_cast<cudaStream_t>(stream), is_small, bytes);
  };
  check(cuda_mem_torch_expandable_segment_sizes(device, &sizes, note), device);
  return sizes;
}

native::SnapshotInfo Allocator::snapshot(MempoolId_t id, bool include_traces) {
  // Settings and pinned memory, and what it has itself if it was in use before.
  native::SnapshotInfo info = native_->snapshot(id, include_traces);
  if (include_traces) {
    info.device_traces.resize(std::max(info.device_traces.size(), static_cast<size_t>(device_count_.load())));
  }
  const cuda_mem_torch_visitor visitor{&info, &visit_segment, &visit_block, &visit_trace, &visit_tag};
  if (!check_unless_parents(cuda_mem_torch_snapshot(CUDA_MEM_TORCH_ALL_DEVICES, pool_id(id), include_traces, &visitor))) {
    TORCH_WARN_ONCE("cuda-mem: the snapshot of a forked child has no device memory: that is the parent's");
    return info;
  }
  std::sort(info.segments.begin(), info.segments.end(), [](const SegmentInfo& one, const SegmentInfo& other) {
    return std::tie(one.device, one.address) < std::tie(other.device, other.address);
  });
  const std::lock_guard<std::mutex> lock(annotations_mutex_);
  if (include_traces) {
    for (const TraceEntry& entry : notes_) {
      info.device_traces[static_cast<size_t>(entry.device_)].push_back(entry);
    }
    info.external_annotations.insert(info.external_annotations.end(), annotations_.begin(), annotations_.end());
  }
  for (auto& trace : info.device_traces) {
    std::stable_sort(trace.begin(), trace.end(), [](const TraceEntry& one, const TraceEntry& other) {
      return one.time_.t_ < other.time_.t_;
    });
    if (!notes_.empty() && trace.size() > most_annotations_) {
      trace.erase(trace.begin(), trace.end() - static_cast<ptrdiff_t>(most_annotations_));
    }
  }
  return info;
}

void Allocator::recordHistory(
    bool enabled,
    native::CreateContextFn create,
    size_t max_entries,
    native::RecordContext when,
    bool clear,
    const std::vector<std::string>& skip_actions) {
  uint32_t skipped = 0;
  for (const auto& action : skip_actions) {
    skipped |= 1U << static_cast<unsigned>(c10::CachingDeviceAllocator::parseTraceEntryAction(action));
  }
  TORCH_CHECK(
      when == native::RecordContext::NEVER || create != nullptr, "a context recorder is needed to record contexts");
  recorder.store(enabled ? create : nullptr);
  note_recorder.store(enabled && when >= native::RecordContext::ALLOC ? create : nullptr);
  skipped_actions.store(skipped);
  cuda_mem_torch_history_options options{};
  options.max_entries = std::max<size_t>(max_entries, 1);
  options.context = static_cast<uint32_t>(when);
  options.skip_actions = skipped;
  options.gather = create == nullptr ? nullptr : &gather;
  options.release = &end<Context>;
  options.clear = clear;
  if (!check_unless_parents(enabled ? cuda_mem_torch_record_history(&options) : cuda_mem_torch_stop_history())) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(annotations_mutex_);
    most_annotations_ = std::max<size_t>(max_entries, 1);
    if (!enabled || clear) {
      annotations_.clear();
      notes_.clear();
    }
    keep_last(annotations_, most_annotations_);
    keep_last(notes_, most_annotations_);
  }
  if (native_.is_late()) {
    native_->recordHistory(enabled, create, max_entries, when, clear, skip_actions);
  }
}

void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) {
  if (!isHistoryEnabled()) {
    return;
  }
  AnnotationEntry entry(current_device(), c10::getApproximateTime());
  entry.time_.t_ = c10::getTime() / 1000;
  for (const auto& [key, value] : metadata) {
    entry.recordUserMetadata(key, value);
  }
  const std::lock_guard<std::mutex> lock(annotations_mutex_);
  annotations_.push_back(std::move(entry));
  keep_last(annotations_, most_annotations_);
}

void Allocator::pushCompileContext(std::string& context) {
  compile_contexts.push_back(context);
  check_unless_parents(cuda_mem_torch_push_compile_context(context.c_str()));
}

void Allocator::popCompileContext() {
  if (!compile_contexts.empty()) {
    compile_contexts.pop_back();
  }
  check_unless_parents(cuda_mem_torch_pop_compile_context());
}

void Allocator::setUserMetadata(const std::string& metadata) {
  user_metadata = metadata;
  check_unless_parents(cuda_mem_torch_set_user_metadata(metadata.c_str()));
}

std::string Allocator::getUserMetadata() {
  return user_metadata;
}

void Allocator::attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) {
  // Of requests to the pools that it had before, and of all once it is in place again, as below.
  native_->attachOutOfMemoryObserver(observer);
  observers.add(std::move(observer));
  [[maybe_unused]] static const bool attached = [] {
    check_unless_parents(cuda_mem_torch_attach_oom_observer(&tell_observers, nullptr));
    return true;
  }();
}

#if CUDA_MEM_HAS_OOM_REJECTION
Rejections& rejections = *new Rejections();

bool is_rejected(Allocator* allocator, size_t bytes, DeviceIndex device) {
  if (!native::CUDAAllocatorConfig::throw_on_cudamalloc_oom()) {
    return false;
  }
  const auto reserved = static_cast<size_t>(allocator->getDeviceStats(device).reserved_bytes[0].current);
  const auto total = static_cast<double>(allocator->getMemoryInfo(device).second);
  const double share = static_cast<double>(reserved + bytes) / total;
  // Natively the program's own share is looked at first.
  const double limit = allocator->getMemoryFraction(device);
  return share > native::CUDAAllocatorConfig::per_process_memory_fraction() && (limit == 1.0 || share <= limit);
}

void Allocator::attachOomRejectionObserver(native::OomRejectionObserver observer) {
  native_->attachOomRejectionObserver(observer);
  rejections.observers.add(std::move(observer));
}
#endif

#if CUDA_MEM_HAS_CONTEXT_FOR_POINTER
std::shared_ptr<GatheredContext> Allocator::getContextForPointer(const void* pointer) {
  const SegmentInfo found = find(pointer);
  if (found.blocks.empty()) {
    return native_.is_late() ? native_->getContextForPointer(pointer) : nullptr;
  }
  return found.blocks[0].context_when_allocated;
}
#endif

#if CUDA_MEM_HAS_ANNOTATIONS
bool Allocator::supportsUserMetadata() {
  return true;
}

void Allocator::annotateMemory(const void* pointer, const std::string& metadata) {
  size_t bytes = 0;
  if (cuda_mem_torch_block_bytes(pointer, &bytes) != CUDA_MEM_TORCH_OK || bytes == 0) {
    // It refuses what it does not know, also while nothing is recorded.
    return native_->annotateMemory(pointer, metadata);
  }
  if (!isHistoryEnabled() || (skipped_actions.load() >> TraceEntry::ANNOTATE & 1U) != 0) {
    return;
  }
  const auto create = note_recorder.load();
  Context context = create == nullptr ? nullptr : create();
  const SegmentInfo found = find(pointer);
  if (found.blocks.empty()) {
    // Another thread has freed it.
    return;
  }
  TraceEntry entry(
      TraceEntry::Action::ANNOTATE,
      found.device,
      found.address,
      found.blocks[0].requested_size,
      found.stream,
      found.owner_private_pool_id,
      c10::getApproximateTime(),
      std::move(context),
      compile_contexts.empty() ? "N/A" : compile_contexts.back(),
      metadata);
  entry.time_.t_ = c10::getTime() / 1000;
  const std::lock_guard<std::mutex> lock(annotations_mutex_);
  notes_.push_back(std::move(entry));
  keep_last(notes_, most_annotations_);
}
#endif

void Allocator::attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) {
  native_->attachAllocatorTraceTracker(tracker);
  // Never detached, so never freed.
  check_unless_parents(cuda_mem_torch_attach_trace_tracker(&track, new native::AllocatorTraceTracker(std::move(tracker))));
}

} // namespace cuda_mem
