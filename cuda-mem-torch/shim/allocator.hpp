// PyTorch's allocator interface over the C interface of cuda-mem-torch. Holds no Python.
#pragma once

#include <cuda_mem_torch.h>

#include "versions.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

// Functions that the library is given are `noexcept`: nothing may be thrown through it.
namespace cuda_mem {

namespace native = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

inline cuda_mem_torch_pool_id pool_id(const MempoolId_t& id) {
  return {id.first, id.second};
}

inline MempoolId_t pool_id(const cuda_mem_torch_pool_id& id) {
  return {id.first, id.second};
}

/// Of a call that names no device.
constexpr DeviceIndex no_device = std::numeric_limits<DeviceIndex>::min();

/// Throws what a call of the library failed with, as PyTorch's own allocator would.
void check(int code, DeviceIndex device = no_device);

/// As above, for a call that takes a block.
void check_block(int code, const void* pointer);

/// The library's figures of a device.
cuda_mem_torch_device_stats stats_of(DeviceIndex device);

/// Adds the library's figures to PyTorch's own. The peaks of two are at most their sum; when each was is not known.
inline void add(c10::CachingAllocator::Stat& to, const cuda_mem_torch_stat& from) {
  to.current += from.current;
  to.peak += from.peak;
  to.allocated += from.allocated;
  to.freed += from.freed;
}

inline void add(c10::CachingAllocator::StatArray& to, const cuda_mem_torch_stat_array& from) {
  add(to[0], from.all);
  add(to[1], from.small_pool);
  add(to[2], from.large_pool);
}

/// Has PyTorch take an allocator, by `set` with a priority; whether `is_there` says so. One that was registered with a priority has to be outbid.
template <class Set, class IsThere>
bool put_in_place(const Set& set, const IsThere& is_there) {
  for (const uint8_t priority : {uint8_t{0}, uint8_t{255}}) {
    set(priority);
    if (is_there()) {
      return true;
    }
  }
  return false;
}

/// Throws if a pool was refused for this reason, with what PyTorch says of it before our words.
void check_reason(int code, int reason, const char* words);

/// Throws if a call failed that gives nothing back. False, and nothing is thrown, if it came from a forked child: what that inherited is the
/// parent's, so it has nothing to change, as natively. It hears of it where it wants memory.
bool check_unless_parents(int code, DeviceIndex device = no_device);

/// Gives a block back, whoever's it is: the deleter of all tensors that are made here.
void delete_block(void* pointer);

/// While this thread has PyTorch read settings: they may name its own allocator, in whose place this one is.
inline thread_local bool has_native_name{false};

/// Ends what the library was given of this type.
template <class T>
void end(void* data) noexcept {
  delete static_cast<T*>(data);
}

/// Whether an allocation for a stream goes to a pool.
using Filter = std::function<bool(cudaStream_t)>;

/// What the native allocator had before this one was installed, and has for as long as it lives.
class Native {
 public:
  explicit Native(native::CUDAAllocator* allocator) : allocator_(allocator) {}

  native::CUDAAllocator* operator->() const {
    return allocator_;
  }
  native::CUDAAllocator* get() const {
    return allocator_;
  }

  /// Whether it was in use already, so that it has memory, pools and history of its own.
  bool is_late() const {
    return late_.load(std::memory_order_relaxed);
  }
  void set_late(bool late) {
    late_.store(late, std::memory_order_relaxed);
    names_expandable = !late;
  }
  /// Whether segments are expandable as the settings say: not if it came first, until the program has named it since.
  std::atomic<bool> names_expandable{true};

  /// Whether a pool is its own.
  bool has_pool(DeviceIndex device, const MempoolId_t& id) const;

  /// Allocations that go to a pool, its own, or while it came late one of this allocator: the innermost has an allocation.
  void enter(DeviceIndex device, const MempoolId_t& id, std::shared_ptr<Filter> filter, bool is_native);
  void leave(DeviceIndex device, const MempoolId_t& id);
  /// Whether some thread allocates to a pool of its own.
  bool has_routes() const {
    return routed_.load() != 0;
  }
  /// Whether a stream captures where some thread allocates to a pool, of which it may know nothing. A capture that failed leaves its pool so.
  bool is_beside_captures() const;
  bool takes(DeviceIndex device, cudaStream_t stream) const {
    return C10_UNLIKELY(routed_.load(std::memory_order_relaxed) != 0) && has_route(device, stream);
  }
  /// Blocks of its own that were given out here, and how each is freed, caching on or off: tensors do not name it as theirs.
  void keep_block(const void* block, c10::DeleterFnPtr deleter) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[block] = deleter;
  }
  /// How such a block is freed; null for another.
  c10::DeleterFnPtr deleter_of(const void* block) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(block);
    return found == blocks_.end() ? nullptr : found->second;
  }
  void forget_block(const void* block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.erase(block);
  }
  size_t kept_blocks() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return blocks_.size();
  }

 private:
  bool has_route(DeviceIndex device, cudaStream_t stream) const;

  struct Route {
    DeviceIndex device;
    MempoolId_t id;
    std::shared_ptr<Filter> filter;
    bool is_native;
    /// It began on a stream that does not last.
    bool is_guest;
  };

  native::CUDAAllocator* allocator_;
  std::atomic<bool> late_{false};
  std::atomic<size_t> routed_{0};
  mutable std::mutex mutex_;
  /// Held while filters are asked, as natively: a thread that ends a route waits for them.
  mutable std::recursive_mutex routes_mutex_;
  /// As they began, those of this allocator too while it came late.
  std::vector<Route> routes_;
  std::unordered_map<const void*, c10::DeleterFnPtr> blocks_;
};

/// Every virtual function of the interface of the PyTorch that this is built for. There is one, and it is never destroyed.
class Allocator final : public native::CUDAAllocator {
 public:
  explicit Allocator(native::CUDAAllocator* before) : native_(before) {}

  // c10::Allocator
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override {
    return &delete_block;
  }
  void copy_data(void* target, const void* source, std::size_t bytes) const override;

  // c10::DeviceAllocator
  bool initialized() override {
    return device_count_.load() > 0;
  }
  void emptyCache(MempoolId_t id) override;
  using native::CUDAAllocator::recordStream;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;

  // CUDAAllocator
  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* pointer) override {
    delete_block(pointer);
  }
  void init(int device_count) override;
  double getMemoryFraction(DeviceIndex device) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;
  void enable(bool value) override;
  bool isEnabled() const override {
    return enabled_.load();
  }
  void cacheInfo(DeviceIndex device, size_t* largest) override;
  void* getBaseAllocation(void* pointer, size_t* bytes) override;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  native::SnapshotInfo snapshot(MempoolId_t id, bool include_traces) override;
  void beginAllocateToPool(DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId_t id) override;
#if CUDA_MEM_HAS_CAPTURE_MARKS
  void markCaptureBegin(DeviceIndex device) override {
    native_->markCaptureBegin(device);
  }
  void markCaptureEnd(DeviceIndex device) override {
    native_->markCaptureEnd(device);
  }
#endif
  void releasePool(DeviceIndex device, MempoolId_t id) override;
  int getPoolUseCount(DeviceIndex device, MempoolId_t id) override;
  void createOrIncrefPool(
      DeviceIndex device,
      MempoolId_t id,
      std::shared_ptr<native::CUDAAllocator> allocator) override;
  void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool use_on_oom) override;
  void setNoSplit(DeviceIndex device, MempoolId_t id) override;
  bool checkPoolLiveAllocations(
      DeviceIndex device,
      MempoolId_t id,
      const std::unordered_set<void*>& expected) override;
  native::ShareableHandle shareIpcHandle(void* pointer) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  bool isHistoryEnabled() override {
    return cuda_mem_torch_is_history_enabled();
  }
  void recordHistory(
      bool enabled,
      native::CreateContextFn recorder,
      size_t max_entries,
      native::RecordContext when,
      bool clear,
      const std::vector<std::string>& skip_actions) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) override;
  void pushCompileContext(std::string& context) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override;
  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override;
  cudaError_t memcpyAsync(
      void* target,
      int target_device,
      const void* source,
      int source_device,
      size_t bytes,
      cudaStream_t stream,
      bool p2p_enabled) override;
  std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id) override;
  native::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device,
      std::shared_ptr<native::AllocatorState> state) override;
  std::string name() override {
    return has_native_name ? "native" : "cuda-mem";
  }
#if CUDA_MEM_HAS_OOM_REJECTION
  void attachOomRejectionObserver(native::OomRejectionObserver observer) override;
#endif
#if CUDA_MEM_HAS_CONTEXT_FOR_POINTER
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) override;
#endif
#if CUDA_MEM_HAS_EXACT_ADDRESSES
  c10::DataPtr allocateWithAddress(size_t bytes, void* address) override;
#endif
#if CUDA_MEM_HAS_ANNOTATIONS
  bool supportsUserMetadata() override;
  void annotateMemory(const void* pointer, const std::string& metadata) override;
#endif

  /// Takes over PyTorch's settings as they are now; whether segments are expandable if `names_expandable`, or it was so before. The share of
  /// memory is theirs at first, and while they have requests beyond it rejected.
  void apply_settings(bool names_expandable = false);
  /// Has the native allocator give back what it has cached, if it came first and nothing may capture; whether it had something.
  bool empty_natively(MempoolId_t id);
  /// Sets the share of a device's memory that this allocator and the native one may have together.
  void set_limit(double fraction, DeviceIndex device);
  Native& native_allocator() {
    return native_;
  }
  int device_count() const {
    return device_count_.load();
  }
  /// How many uses there are of pools here: of a `MemPool` or a graph, whose end comes here too.
  size_t pool_uses() const {
    return pool_uses_.load();
  }

 private:
  /// The current device. Where there is one alone nobody is asked.
  DeviceIndex current_device() const {
    return C10_LIKELY(one_device_.load(std::memory_order_relaxed)) ? DeviceIndex{0} : c10::cuda::current_device();
  }
  void* obtain(size_t bytes, DeviceIndex device, cudaStream_t stream);
  void* obtain_natively(size_t bytes, DeviceIndex device, cudaStream_t stream);
  bool is_native_pool(DeviceIndex device, const MempoolId_t& id);
  void share_limit(DeviceIndex device);
  void follow_environment();

  Native native_;
  std::atomic<int> device_count_{0};
  std::atomic<bool> one_device_{false};
  std::atomic<size_t> pool_uses_{0};
  /// Of each device, the share of its memory that may be had.
  std::mutex limits_mutex_;
  std::unordered_map<int, double> limits_;
  /// The settings' share, which holds beside those while requests beyond it are rejected.
  std::atomic<double> rejected_beyond_{1.0};
  /// What the program last said, which the environment may overrule.
  std::atomic<bool> enabled_{true};
  std::mutex init_mutex_;
  std::mutex annotations_mutex_;
  /// The last ones, the oldest first: as many as the history may have entries.
  std::deque<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;
  size_t most_annotations_{1};
  /// What was said of memory after it was allocated, likewise.
  std::deque<c10::CachingDeviceAllocator::TraceEntry> notes_;
};

/// Functions of the program that are told of something, in their order, until the process has ended. They are not copied themselves: a copy of
/// what holds an object of Python's would count it without the GIL.
template <class Function>
class Told {
 public:
  void add(Function function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    all_.push_back(std::make_shared<Function>(std::move(function)));
  }
  template <class... Words>
  void tell(Words... words) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto all = all_;
    lock.unlock();
    for (const auto& function : all) {
      (*function)(words...);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Function>> all_;
};

#if CUDA_MEM_HAS_OOM_REJECTION
/// Requests beyond the limit that were to be refused before the driver is asked, by device, and the observers of such requests.
struct Rejections {
  std::array<std::atomic<int64_t>, C10_COMPILE_TIME_MAX_GPUS> counts{};
  Told<native::OomRejectionObserver> observers;
};

extern Rejections& rejections;

/// Whether a request is beyond the share of memory that the settings name, where such are to be refused before the driver is asked.
bool is_rejected(Allocator* allocator, size_t bytes, DeviceIndex device);
#endif

/// The one that is installed, or was.
Allocator* installed();

/// Runs a function that changes what is installed, one at a time; 0, or 1 with what it threw in `text`.
int guarded(char* text, size_t capacity, const std::function<void()>& body);

} // namespace cuda_mem
