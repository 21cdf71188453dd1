// Every virtual function of the shim, through the real libc10_cuda.so, on the simulated driver.
#include <cuda_mem_torch.h>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "streams.hpp"
#include "upstream.hpp"
#include "versions.hpp"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace c10::cuda::_internal {
// libtorch_cuda.so tells it; declared in no header that is installed.
C10_CUDA_API void setHasPrimaryContext(bool (*ask)(DeviceIndex));
} // namespace c10::cuda::_internal

extern "C" int cuda_mem_torch_shim_install(const char*, char*, size_t);
extern "C" int cuda_mem_torch_shim_uninstall(char*, size_t);
extern "C" int cuda_mem_torch_shim_state();

namespace CA = c10::cuda::CUDACachingAllocator;
using c10::MempoolId_t;

static const std::thread::id main_thread = std::this_thread::get_id();
static int checks = 0;
#define EXPECT(condition)                                              \
  do {                                                                 \
    ++checks;                                                          \
    if (!(condition)) {                                                \
      std::printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);      \
      std::exit(1);                                                    \
    }                                                                  \
  } while (false)

template <class F>
static std::string thrown(F body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

static bool has(const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) {
    std::printf("%s\n  is not in: %s\n", part.c_str(), text.c_str());
    return false;
  }
  return true;
}

static void install() {
  char text[4096] = "";
  if (cuda_mem_torch_shim_install(TORCH_VERSION, text, sizeof text) != 0) {
    std::printf("install: %s\n", text);
    std::exit(1);
  }
}

template <class F>
static void in_a_forked_child(F body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    std::_Exit(0);
  }
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int64_t allocated() {
  return CA::getDeviceStats(0).allocated_bytes[0].current;
}

// `operator new` fails once so many others have succeeded, in the thread that says so.
static thread_local long allocations_left = -1;

void* operator new(size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) {
    throw std::bad_alloc();
  }
  void* made = std::malloc(bytes == 0 ? 1 : bytes);
  if (made == nullptr) {
    throw std::bad_alloc();
  }
  return made;
}

void operator delete(void* pointer) noexcept {
  std::free(pointer);
}

void operator delete(void* pointer, size_t) noexcept {
  std::free(pointer);
}

/// A profiler that fails.
struct Failing final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    TORCH_CHECK(bytes < 0, "the profiler failed");
  }
  bool memoryProfilingEnabled() const override {
    return true;
  }
};

/// What a profiler is told.
struct Listening final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t total, size_t, c10::Device) override {
    told.emplace_back(bytes, total);
  }
  bool memoryProfilingEnabled() const override {
    return true;
  }
  std::vector<std::pair<int64_t, size_t>> told;
};

/// Cached memory at an address that is named, of whichever allocator has it.
static void at_addresses([[maybe_unused]] CA::CUDAAllocator* owner) {
#if CUDA_MEM_HAS_EXACT_ADDRESSES
  auto* block = static_cast<char*>(owner->raw_alloc(8 << 20));
  owner->raw_delete(block);
  char* middle = block + (3 << 20);
  const int64_t before = allocated();
  const std::string taken = "Could not allocate CUDA storage at exact address 0x";
  {
    const c10::DataPtr data = CA::allocateWithAddress((2 << 20) + 5, middle);
    EXPECT(data.get() == middle && data.get_deleter() == owner->raw_deleter() && data.device().index() == 0);
    EXPECT(allocated() == before + (2 << 20) + 512);
    EXPECT(has(thrown([&] { CA::allocateWithAddress(2 << 20, middle + (1 << 20)); }), taken));
  }
  EXPECT(allocated() == before);
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, 0));
    EXPECT(has(thrown([&] { CA::allocateWithAddress(2 << 20, middle); }), taken));
  }
  EXPECT(has(thrown([&] { CA::allocateWithAddress(512, middle + 100); }), "must be aligned to kMinBlockSize (512 bytes), got 0x"));
  EXPECT(CA::allocateWithAddress(0, middle + 100).get() == nullptr);
#endif
}

/// The size of the block comes and goes, whatever was asked for. Without caching nothing is told.
static void profiled() {
  const auto listening = std::make_shared<Listening>();
  const c10::DebugInfoGuard profiling(c10::DebugInfoKind::PROFILER_STATE, listening);
  for (const bool cached : {true, false}) {
    CA::enable(cached);
    CA::raw_delete(CA::raw_alloc(1000));
    CA::raw_delete(CA::raw_alloc((3 << 20) + 1));
  }
  CA::enable(true);
  const std::vector<std::pair<int64_t, size_t>> wanted{
      {1024, 1024}, {-1024, 0}, {(3 << 20) + 512, (3 << 20) + 512}, {-(3 << 20) - 512, 0}};
  EXPECT(listening->told == wanted);
}

/// Keeps what is warned of.
struct Warned final : c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    text += warning.msg();
  }
  std::string text;
};

struct Mark final : c10::GatheredContext {};
static std::shared_ptr<c10::GatheredContext> mark() {
  return std::make_shared<Mark>();
}

static void memory() {
  auto* accelerator = c10::getDeviceAllocator(c10::kCUDA);
  EXPECT(static_cast<CA::CUDAAllocator*>(accelerator) == CA::get() && CA::name() == "cuda-mem");
  const auto side = c10::cuda::getStreamFromPool(false, 0);
  {
    c10::DataPtr data = CA::get()->allocate(3 << 20);
    EXPECT(allocated() == 3 << 20);
    EXPECT(data.get_deleter() == CA::get()->raw_deleter() && CA::get()->is_simple_data_ptr(data));
    CA::recordStream(data, side);
    CA::recordStream(c10::DataPtr(), side);
    size_t bytes = 0;
    EXPECT(CA::getBaseAllocation(data.get(), &bytes) <= data.get() && bytes >= 3 << 20);
  }
  EXPECT(allocated() == 0);
  C10_CUDA_CHECK(cudaStreamSynchronize(side));
  EXPECT(CA::get()->allocate(0).get() == nullptr);
  void* raw = CA::raw_alloc(1000);
  void* streamed = CA::raw_alloc_with_stream(1000, side);
  EXPECT(raw != streamed && allocated() == 2048);
  CA::get()->copy_data(streamed, raw, 1000);
  EXPECT(CA::get()->memcpyAsync(raw, 0, streamed, 0, 1000, side, true) == cudaSuccess);
  C10_CUDA_CHECK(cudaStreamSynchronize(side));
  CA::raw_delete(raw);
  CA::raw_delete(streamed);
  CA::raw_delete(nullptr);
  {
    const c10::DebugInfoGuard profiling(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Failing>());
    EXPECT(has(thrown([] { CA::raw_alloc(1000); }), "the profiler failed") && allocated() == 0);
  }
  int local = 0;
  EXPECT(has(thrown([&] { CA::raw_delete(&local); }), "invalid device pointer"));
  EXPECT(thrown([&] { CA::getBaseAllocation(&local, nullptr); }).rfind("invalid device pointer: 0x", 0) == 0);
  EXPECT(thrown([&] { CA::shareIpcHandle(&local); }).rfind("invalid device pointer: 0x", 0) == 0);
  EXPECT(has(thrown([] { CA::get()->allocate(1ULL << 60); }), "more than 1EB"));
  EXPECT(has(thrown([] { CA::get()->allocate(32ULL << 40); }), "Tried to allocate 32768.00 GiB. GPU 0 has a total capacity of"));
  EXPECT(CA::getDeviceStats(0).num_ooms == 1);
  CA::setMemoryFraction(0.5, 0);
  EXPECT(CA::getMemoryFraction(0) == 0.5);
  CA::setMemoryFraction(1.0, 0);
  EXPECT(has(thrown([] { CA::setMemoryFraction(2.0, 0); }), "invalid fraction:2"));
  size_t largest = 0;
  CA::cacheInfo(0, &largest);
  EXPECT(largest > 0);
  CA::enable(false);
  EXPECT(!CA::isEnabled());
  CA::raw_delete(CA::raw_alloc(1000));
  CA::enable(true);
  EXPECT(CA::get()->getMemoryInfo(0).second > 0);
  EXPECT(!CA::getExpandableSegmentSizes(0).empty());
  // All devices are no device.
  for (const int none : {-1, 99}) {
    const auto device = static_cast<c10::DeviceIndex>(none);
    const std::string refused = "Invalid device argument " + std::to_string(none) + ": did you call init?";
    EXPECT(has(thrown([&] { CA::getDeviceStats(device); }), refused));
    EXPECT(has(thrown([&] { CA::resetPeakStats(device); }), refused));
    EXPECT(has(thrown([&] { CA::resetAccumulatedStats(device); }), refused));
  }
  CA::resetPeakStats(0);
  CA::resetAccumulatedStats(0);
  EXPECT(CA::getDeviceStats(0).allocation[0].allocated == 0);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  CA::emptyCache();
}

static void history() {
  static int64_t observed = 0;
  static int tracked = 0;
  CA::attachOutOfMemoryObserver([](int64_t, size_t bytes, size_t, size_t) { observed = static_cast<int64_t>(bytes); });
  CA::attachAllocatorTraceTracker([](const CA::TraceEntry& entry) { tracked += entry.action_ == CA::TraceEntry::ALLOC; });
  EXPECT(!CA::isHistoryEnabled());
  CA::recordHistory(true, &mark, 1000, CA::RecordContext::ALL, true, {"free_requested"});
  EXPECT(CA::isHistoryEnabled());
  CA::setUserMetadata("step");
  std::string compiled = "frame 0";
  CA::pushCompileContext(compiled);
  c10::DataPtr data = CA::get()->allocate(2 << 20);
  CA::popCompileContext();
  EXPECT(CA::getUserMetadata() == "step");
  CA::setUserMetadata("");
  CA::recordAnnotation({{"name", "here"}, {"stage", "START"}});
  thrown([] { CA::get()->allocate(32ULL << 40); });
  EXPECT(observed == 32LL << 40 && tracked == 1);
  const auto info = CA::snapshot();
  EXPECT(info.device_traces.size() == 2 && info.external_annotations.size() == 1);
  bool found = false;
  for (const auto& entry : info.device_traces[0]) {
    EXPECT(entry.action_ != CA::TraceEntry::FREE_REQUESTED);
    if (entry.action_ == CA::TraceEntry::ALLOC) {
      found = entry.context_ != nullptr && entry.user_metadata_ == "step" && entry.compile_context_ == "frame 0";
      EXPECT(entry.addr_ == reinterpret_cast<size_t>(data.get()) && entry.time_.t_ > 0);
    }
  }
  EXPECT(found);
  size_t live = 0;
  for (const auto& segment : info.segments) {
    // NCCL orders the segments of private pools alone.
    EXPECT(segment.registration_counter >= 0 || segment.owner_private_pool_id == MempoolId_t(0, 0));
    size_t sum = 0;
    for (const auto& block : segment.blocks) {
      sum += block.size;
      if (block.allocated) {
        live += block.size;
        EXPECT(dynamic_cast<Mark*>(block.context_when_allocated.get()) != nullptr);
      }
    }
    EXPECT(sum == segment.total_size);
  }
  EXPECT(live == 2 << 20);
  // Of annotations there are as many as of entries.
  CA::recordHistory(true, &mark, 3, CA::RecordContext::ALL, true, {});
  for (const char* name : {"1", "2", "3", "4", "5"}) {
    CA::recordAnnotation({{"name", name}});
  }
  const auto last = CA::snapshot().external_annotations;
  EXPECT(last.size() == 3 && last[0].metadata_.at("name") == "3" && last[2].metadata_.at("name") == "5");
  CA::recordHistory(true, &mark, 2, CA::RecordContext::ALL, false, {});
  EXPECT(CA::snapshot().external_annotations.size() == 2);
  CA::recordHistory(false, nullptr, 1, CA::RecordContext::NEVER, false, {});
  EXPECT(CA::snapshot({0, 0}, false).device_traces.empty() && CA::snapshot({0, 4711}).device_traces.size() == 2);
  EXPECT(!CA::isHistoryEnabled() && CA::snapshot().device_traces[0].empty());
}

/// What an observer throws reaches whoever asked for memory, before the others are told.
static void failing_observer() {
  static bool fails = true;
  static int told_next = 0;
  CA::attachOutOfMemoryObserver([](int64_t, size_t, size_t, size_t) {
    if (fails) {
      throw Upstream::Broken();
    }
  });
  CA::attachOutOfMemoryObserver([](int64_t, size_t, size_t, size_t) { ++told_next; });
  bool was_thrown = false;
  try {
    CA::raw_alloc(32ULL << 40);
  } catch (const Upstream::Broken&) {
    was_thrown = true;
  }
  EXPECT(was_thrown && told_next == 0);
  fails = false;
  EXPECT(has(thrown([] { CA::raw_alloc(32ULL << 40); }), "CUDA out of memory. ") && told_next == 1);
}

static void pools() {
  const MempoolId_t id{0, 1000};
  CA::createOrIncrefPool(0, id);
  CA::setNoSplit(0, id);
  CA::setUseOnOOM(0, id, false);
  const auto capturing = c10::cuda::getStreamFromPool(false, 0);
  const auto other = c10::cuda::getStreamFromPool(true, 0);
  void* inside = nullptr;
  {
    const c10::cuda::CUDAStreamGuard guard(capturing);
    CA::beginAllocateToPool(0, id, [&](cudaStream_t stream) { return stream == capturing.stream(); });
    EXPECT(CA::getPoolUseCount(0, id) == 2);
    C10_CUDA_CHECK(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeRelaxed));
    inside = CA::raw_alloc(4 << 20);
    cudaGraph_t graph = nullptr;
    C10_CUDA_CHECK(cudaStreamEndCapture(capturing, &graph));
    CA::endAllocateToPool(0, id);
  }
  void* outside = CA::raw_alloc_with_stream(4 << 20, other);
  const auto info = CA::snapshot(id);
  EXPECT(info.segments.size() == 1 && info.segments[0].owner_private_pool_id == id);
  EXPECT(info.segments[0].stream == capturing.stream() && info.segments[0].blocks.size() == 1);
  EXPECT(info.segments[0].address == reinterpret_cast<size_t>(inside));
  EXPECT(CA::checkPoolLiveAllocations(0, id, {inside}) && !CA::checkPoolLiveAllocations(0, id, {inside, outside}));
  const auto state = CA::getCheckpointState(0, id);
  const auto listening = std::make_shared<Listening>();
  auto delta = [&] {
    const c10::DebugInfoGuard profiling(c10::DebugInfoKind::PROFILER_STATE, listening);
    return CA::setCheckpointPoolState(0, state);
  }();
  EXPECT(delta.ptrs_freed.size() == 1 && delta.dataptrs_allocd.size() == 1);
  const std::vector<std::pair<int64_t, size_t>> wanted{{-(20 << 20), 4 << 20}, {20 << 20, 24 << 20}};
  EXPECT(listening->told == wanted);
  EXPECT(delta.dataptrs_allocd[0].get() == inside && delta.dataptrs_allocd[0].get_deleter() == CA::get()->raw_deleter());
  delta.dataptrs_allocd.clear();
  CA::raw_delete(outside);
  CA::releasePool(0, id);
  CA::releasePool(0, id);
  EXPECT(CA::getPoolUseCount(0, id) == 0);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  CA::emptyCache(id);
  EXPECT(CA::snapshot(id).segments.empty());
  EXPECT(has(thrown([&] { CA::checkPoolLiveAllocations(0, {0, 4711}, {}); }), "Could not find pool"));
}

/// PyTorch's own streams are known by their handles, whoever gives them another name, and while other threads are handed some.
static void own_streams() {
  const auto own = c10::cuda::getStreamFromPool(true, 0);
  {
    // As the code that AOTInductor compiles does.
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(own.stream(), 0));
    EXPECT(cuda_mem::lasts(0, own.stream()));
  }
  cudaStream_t other = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, 0));
  EXPECT(!cuda_mem::lasts(0, other));
  c10::cuda::getStreamFromPool(false, 1);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int at = 0; at < 3; ++at) {
    threads.emplace_back([&] {
      while (!over) {
        c10::cuda::getStreamFromPool(false, 1);
      }
    });
  }
  const auto streams = cuda_mem::own_streams(1);
  over = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  const auto [least, greatest] = c10::cuda::CUDAStream::priority_range();
  const std::set<cudaStream_t> distinct(streams.begin(), streams.end());
  EXPECT(streams.size() == distinct.size() && distinct.size() == 32 * static_cast<size_t>(least - greatest + 1));
}

/// Why a pool is refused is told in PyTorch's words, where it has some.
static void refused_pools() {
  const MempoolId_t id{0, 1500};
  const auto every = [](cudaStream_t) { return true; };
  const auto begins = [](const std::string& text, const std::string& words) { return has(text, words) && text.rfind(words, 0) == 0; };
  CA::beginAllocateToPool(0, id, every);
  EXPECT(begins(thrown([&] { CA::beginAllocateToPool(0, id, every); }), "beginAllocateToPool: already recording to mempool_id"));
  c10::DataPtr recorded = CA::get()->allocate(1 << 20);
  CA::endAllocateToPool(0, id);
  EXPECT(begins(thrown([&] { CA::endAllocateToPool(0, id); }), "endAllocatePool: not currently recording to mempool_id"));
  const auto state = CA::getCheckpointState(0, id);
  // Freed, it is still used by a stream that captures.
  const auto capturing = c10::cuda::getStreamFromPool(false, 0);
  C10_CUDA_CHECK(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeRelaxed));
  CA::recordStream(recorded, capturing);
  recorded.clear();
  const std::string pending = "blocks of the pool that were freed are still used by streams";
  EXPECT(has(thrown([&] { CA::getCheckpointState(0, id); }), pending));
  EXPECT(has(thrown([&] { CA::setCheckpointPoolState(0, state); }), pending));
  cudaGraph_t graph = nullptr;
  C10_CUDA_CHECK(cudaStreamEndCapture(capturing, &graph));
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  CA::emptyCache();
  EXPECT(CA::getCheckpointState(0, id) != nullptr);
  CA::releasePool(0, id);
  EXPECT(begins(thrown([&] { CA::getCheckpointState(0, id); }), "Could not find pool of id, or it is freeable"));
  EXPECT(begins(thrown([&] { CA::setCheckpointPoolState(0, state); }), "Not expected to checkpoint freeable graph"));
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  CA::emptyCache(id);
  EXPECT(begins(thrown([&] { CA::setCheckpointPoolState(0, state); }), "Could not find private pool id"));
}

/// Nobody's base class, and has none.
struct Odd final {};

static std::atomic<bool> breaks{false};

struct BreakingCallback final : c10::FreeMemoryCallback {
  bool Execute() override {
    if (breaks) {
      throw Odd();
    }
    return false;
  }
};
namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK("breaking", BreakingCallback)
} // namespace c10

/// Whatever functions of the program throw, the process goes on.
static void breaking() {
  const auto recorder = []() -> std::shared_ptr<c10::GatheredContext> {
    if (breaks) {
      throw Odd();
    }
    return nullptr;
  };
  CA::recordHistory(true, recorder, 1000, CA::RecordContext::ALL, true, {});
  CA::attachAllocatorTraceTracker([](const CA::TraceEntry&) {
    if (breaks) {
      throw Odd();
    }
  });
  const MempoolId_t id{0, 7000};
  CA::beginAllocateToPool(0, id, [](cudaStream_t) -> bool {
    if (breaks) {
      throw Odd();
    }
    return false;
  });
  breaks = true;
  c10::DataPtr data = CA::get()->allocate(1000);
  EXPECT(data.get() != nullptr);
  EXPECT(has(thrown([] { CA::get()->allocate(32ULL << 40); }), "CUDA out of memory"));
  data.clear();
  breaks = false;
  CA::endAllocateToPool(0, id);
  CA::releasePool(0, id);
}

/// A thread that the interpreter ends while it records is neither let through the library nor the end of the process.
static void ended_thread() {
  static std::atomic<bool> ending{false};
  const auto recorder = []() -> std::shared_ptr<c10::GatheredContext> {
    if (std::this_thread::get_id() == main_thread) {
      return nullptr;
    }
    ending = true;
    pthread_exit(nullptr);
  };
  CA::recordHistory(true, recorder, 1000, CA::RecordContext::ALL, true, {});
  std::thread([] { CA::get()->allocate(1000); }).detach();
  while (!ending) {
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT(CA::get()->allocate(1000).get() != nullptr);
  CA::recordHistory(false, nullptr, 1, CA::RecordContext::NEVER, true, {});
}

/// A pool whose segments another allocator gives, the upper one first: they are numbered as they came.
static void source(CA::CUDAAllocator* native) {
  const auto upstream = std::make_shared<Upstream>(native);
  const MempoolId_t id{0, 2000};
  void* lower = upstream->raw_alloc(40 << 20);
  void* upper = upstream->raw_alloc(20 << 20);
  EXPECT(lower < upper);
  upstream->raw_delete(lower);
  upstream->raw_delete(upper);
  CA::createOrIncrefPool(0, id, upstream);
  CA::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
  void* inside = CA::raw_alloc(2 << 20);
  void* second = CA::raw_alloc(40 << 20);
  CA::endAllocateToPool(0, id);
  EXPECT(inside == upper && second == lower);
  const auto segments = CA::snapshot(id).segments;
  const auto shared = CA::shareIpcHandle(second);
  EXPECT(shared.handle.size() == 66 && shared.handle[1] == 'c');
  EXPECT(segments.size() == 2 && segments[0].registration_counter == 1 && segments[1].registration_counter == 0);
  CA::raw_delete(inside);
  CA::raw_delete(second);
  CA::releasePool(0, id);
  CA::releasePool(0, id);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  CA::emptyCache(id);
}

/// A pool whose allocator throws: whoever asks for memory is thrown the same, at once. It is no lack of memory.
static void failing_source(CA::CUDAAllocator* native) {
  const auto upstream = std::make_shared<Upstream>(native);
  const MempoolId_t id{0, 2500};
  CA::createOrIncrefPool(0, id, upstream);
  CA::raw_delete(CA::raw_alloc(3 << 20));
  const auto before = CA::getDeviceStats(0);
  CA::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
  upstream->fails = true;
  bool was_thrown = false;
  try {
    CA::raw_alloc(2 << 20);
  } catch (const Upstream::Broken&) {
    was_thrown = true;
  }
  EXPECT(was_thrown && upstream->asked == 1);
  upstream->fails = false;
  CA::raw_delete(CA::raw_alloc(2 << 20));
  CA::endAllocateToPool(0, id);
  const auto after = CA::getDeviceStats(0);
  EXPECT(after.num_ooms == before.num_ooms && after.num_alloc_retries == before.num_alloc_retries);
  CA::releasePool(0, id);
  CA::releasePool(0, id);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  CA::emptyCache(id);
}

static void sharing() {
  c10::DataPtr data = CA::get()->allocate(3 << 20);
  const auto handle = CA::shareIpcHandle(data.get());
  EXPECT(handle.handle[0] == cuda_mem::handle_version && handle.handle[1] == 'e');
  const auto opened = CA::getIpcDevPtr(handle.handle);
  EXPECT(opened != nullptr && opened == CA::getIpcDevPtr(handle.handle));
  EXPECT(has(thrown([] { CA::getIpcDevPtr("\004e nonsense of a newer version"); }), "future version"));
  // One piece with a handle of a fabric, which has 64 bytes: the native allocator's.
  const int32_t process = getpid();
  const uint64_t pieces = 1;
  const uint64_t bytes = 2 << 20;
  const size_t header = cuda_mem::handle_version == 3 ? 34 : 26;
  std::string fabric(header + 64, '\xff');
  const int32_t of_fabric = 2;
  std::memcpy(&fabric[26], &of_fabric, sizeof of_fabric);
  fabric[0] = cuda_mem::handle_version;
  fabric[1] = 'e';
  std::memcpy(&fabric[2], &process, sizeof process);
  std::memcpy(&fabric[10], &bytes, sizeof bytes);
  std::memcpy(&fabric[18], &pieces, sizeof pieces);
  EXPECT(thrown([&] { CA::getIpcDevPtr(fabric); }).find("cuda-mem: ") == std::string::npos);
  CA::enablePeerAccess(0, 1);
}

/// The size of a segment of a private pool, which is a setting.
static size_t segment_size() {
  static uint64_t pools = 3000;
  const MempoolId_t id{0, pools++};
  CA::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
  void* inside = CA::raw_alloc(2 << 20);
  CA::endAllocateToPool(0, id);
  const size_t size = CA::snapshot(id).segments.at(0).total_size;
  CA::raw_delete(inside);
  CA::releasePool(0, id);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  CA::emptyCache(id);
  return size;
}

static void settings() {
  EXPECT(has(thrown([] { c10::CachingAllocator::setAllocatorSettings("backend:cudaMallocAsync"); }), "backend"));
  c10::CachingAllocator::setAllocatorSettings("large_segment_size_mb:40,max_split_size_mb:64");
  EXPECT(segment_size() == 40 << 20);
  EXPECT(CA::getDeviceStats(0).max_split_size == 64 << 20);
  // PyTorch's own allocator may be named, as in the environment.
  c10::CachingAllocator::setAllocatorSettings(" backend : native , roundup_power2_divisions:[64:8,>:1],large_segment_size_mb:40");
  EXPECT(segment_size() == 40 << 20 && CA::getDeviceStats(0).max_split_size == -1);
}

/// The driver refuses memory, and not for lack of it: that is told as PyTorch tells what CUDA refuses.
static void refused() {
  int code = 0;
  std::string text;
  try {
    CA::raw_alloc(1000);
  } catch (const c10::AcceleratorError& error) {
    code = error.get_error_code();
    text = error.what_without_backtrace();
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  }
  EXPECT(has(text, "CUDA error: an error of the simulated driver\ncuda-mem: ") && text.rfind("CUDA error: ", 0) == 0);
  EXPECT(has(text, "cuMemCreate") && code == 700);
  CA::raw_delete(CA::raw_alloc(1000));
}

/// The environment has every request go to the driver, whatever the program says.
static void uncached() {
  EXPECT(CA::isEnabled() != cuda_mem::says_forced_off);
  for (const bool value : {false, true}) {
    CA::enable(value);
    EXPECT(CA::isEnabled() == (value && !cuda_mem::says_forced_off));
    void* raw = CA::raw_alloc(1000);
    EXPECT(raw != nullptr && CA::getDeviceStats(0).reserved_bytes[0].current == 0);
    CA::raw_delete(raw);
  }
}

/// PyTorch could not make all of its streams when a pool was begun for the first time. The next time all of them are seen.
static void seeing() {
  const MempoolId_t id{0, 6000};
  const auto every = [](cudaStream_t) { return true; };
  EXPECT(thrown([&] { CA::beginAllocateToPool(0, id, every); }) != "nothing was thrown");
  CA::beginAllocateToPool(0, id, every);
  for (const int priority : {0, -1}) {
    const auto stream = c10::cuda::getStreamFromPool(priority, 0);
    C10_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CA::raw_delete(CA::raw_alloc_with_stream(1 << 20, stream));
    cudaGraph_t graph = nullptr;
    C10_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  }
  CA::endAllocateToPool(0, id);
  CA::releasePool(0, id);
}

/// A pool of the native allocator's is begun for both or for none, whichever allocation of the host's fails meanwhile.
static void begun_without_memory(CA::CUDAAllocator* native, const MempoolId_t& id) {
  const size_t segments = native->snapshot(id, false).segments.size();
  for (long succeeding = 0;; ++succeeding) {
    std::function<bool(cudaStream_t)> every = [](cudaStream_t) { return true; };
    bool began = true;
    allocations_left = succeeding;
    try {
      CA::get()->beginAllocateToPool(0, id, std::move(every));
    } catch (const std::bad_alloc&) {
      began = false;
    }
    allocations_left = -1;
    if (began) {
      EXPECT(succeeding > 0);
      CA::endAllocateToPool(0, id);
      break;
    }
    void* elsewhere = native->raw_alloc(1 << 20);
    EXPECT(native->snapshot(id, false).segments.size() == segments);
    native->raw_delete(elsewhere);
  }
  while (native->getPoolUseCount(0, id) > 1) {
    CA::releasePool(0, id);
  }
}

static bool is_near(double one, double other) {
  return one > other - 0.001 && one < other + 0.001;
}

/// What limited the native allocator limits both, now and from here on.
static void limits(CA::CUDAAllocator* native) {
  EXPECT(is_near(CA::getMemoryFraction(0), 0.5));
  EXPECT(!CA::isEnabled());
  CA::setMemoryFraction(0.25, 0);
  EXPECT(is_near(CA::getMemoryFraction(0), 0.25) && is_near(native->getMemoryFraction(0), 0.25));
  CA::setMemoryFraction(1.0, 0);
  CA::enable(true);
  EXPECT(CA::isEnabled() && native->isEnabled());
}

/// A checkpoint of a pool of the native allocator's is restored for tensors that PyTorch knows by the deleter that it sees now.
static void checkpointed_before(CA::CUDAAllocator* native) {
  const MempoolId_t id{0, 4200};
  native->createOrIncrefPool(0, id);
  CA::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
  void* inside = CA::raw_alloc(1 << 20);
  const auto state = CA::getCheckpointState(0, id);
  // The checkpoint does not know it, so nobody else frees it.
  CA::raw_alloc(1 << 20);
  CA::endAllocateToPool(0, id);
  for (const bool cached : {true, false}) {
    CA::enable(cached);
    auto delta = CA::setCheckpointPoolState(0, state);
    EXPECT(delta.ptrs_freed.size() == (cached ? 2 : 0) && delta.dataptrs_allocd.size() == 1);
    EXPECT(delta.dataptrs_allocd[0].get() == inside && delta.dataptrs_allocd[0].get_deleter() == CA::get()->raw_deleter());
  }
  CA::enable(true);
  EXPECT(CA::checkPoolLiveAllocations(0, id, {}));
  CA::releasePool(0, id);
  CA::releasePool(0, id);
}

/// Blocks of pools of the native allocator's are recorded and freed as they were allocated, whatever is said of caching since.
static void caching_switched_since(CA::CUDAAllocator* native) {
  const MempoolId_t id{0, 4300};
  native->createOrIncrefPool(0, id);
  CA::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
  c10::DataPtr first = CA::get()->allocate(2 << 20);
  c10::DataPtr second = CA::get()->allocate(2 << 20);
  CA::enable(false);
  c10::DataPtr third = CA::get()->allocate(2 << 20);
  CA::endAllocateToPool(0, id);
  const auto stats = native->getDeviceStats(0);
  const auto active = [&] { return native->getDeviceStats(0).active_bytes[0].current - stats.active_bytes[0].current; };
  CA::recordStream(second, c10::cuda::getStreamFromPool(false, 0));
  second.clear();
  EXPECT(active() == 0);
  first.clear();
  EXPECT(active() == -(2 << 20));
  CA::enable(true);
  third.clear();
  EXPECT(native->getDeviceStats(0).num_device_free == stats.num_device_free && native->snapshot(id, false).segments.size() == 1);
  CA::releasePool(0, id);
  CA::releasePool(0, id);
}

/// What the native allocator has cached goes back although allocations of the default stream go to a pool: it does not capture. It stays beside
/// those of a thread's own default stream: no other thread can ask whether that captures.
static void emptied_beside_a_pool(CA::CUDAAllocator* native) {
  const auto reserved = [&] { return native->getDeviceStats(0).reserved_bytes[0].current; };
  const MempoolId_t id{0, 4350};
  const MempoolId_t captured{0, 4360};
  native->raw_delete(native->raw_alloc(40 << 20));
  const int64_t before = reserved();
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(cudaStreamPerThread, 0));
    CA::beginAllocateToPool(0, captured, [](cudaStream_t) { return true; });
    C10_CUDA_CHECK(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeRelaxed));
    std::thread([] { CA::emptyCache(); }).join();
    EXPECT(reserved() == before);
    cudaGraph_t graph = nullptr;
    C10_CUDA_CHECK(cudaStreamEndCapture(cudaStreamPerThread, &graph));
    CA::endAllocateToPool(0, captured);
    CA::releasePool(0, captured);
  }
  CA::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
  CA::emptyCache();
  EXPECT(reserved() <= before - (40 << 20));
  CA::endAllocateToPool(0, id);
  CA::releasePool(0, id);
}

/// Of a rejected request each observer is told once, whoever rejects it, and what one throws is not the program's.
static void rejected([[maybe_unused]] CA::CUDAAllocator* native) {
#if CUDA_MEM_HAS_OOM_REJECTION
  static std::atomic<int> told{0};
  const auto tell = [](int64_t, size_t, size_t, size_t) { ++told; };
  const auto fail = [](int64_t, size_t, size_t, size_t) {
    ++told;
    throw std::runtime_error("the observer failed");
  };
  CA::attachOomRejectionObserver(tell);
  CA::attachOomRejectionObserver(fail);
  c10::CachingAllocator::setAllocatorSettings("per_process_memory_fraction:1.0,throw_on_cudamalloc_oom:True");
  EXPECT(has(thrown([] { CA::raw_alloc(32ULL << 40); }), "preemptively rejected") && told == 2);
  // It tells them in a thread of its own.
  EXPECT(has(thrown([&] { native->raw_alloc(32ULL << 40); }), "preemptively rejected"));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT(told == 4);
  c10::CachingAllocator::setAllocatorSettings("per_process_memory_fraction:1.0,throw_on_cudamalloc_oom:False");
#endif
}

/// Listeners that are attached here hear of both allocators, once of each event: the native one has pools after a late `enable()`, and all after
/// `disable()`.
static void heard_of_both(CA::CUDAAllocator* native) {
  static int observed = 0;
  static int tracked = 0;
  CA::attachOutOfMemoryObserver([](int64_t, size_t, size_t, size_t) { ++observed; });
  CA::attachAllocatorTraceTracker([](const CA::TraceEntry& entry) { tracked += entry.action_ == CA::TraceEntry::ALLOC; });
  for (CA::CUDAAllocator* one : {CA::get(), native}) {
    const int before = tracked;
    one->raw_delete(one->raw_alloc(1 << 20));
    EXPECT(tracked == before + 1);
    EXPECT(has(thrown([&] { one->raw_alloc(32ULL << 40); }), "CUDA out of memory. "));
  }
  EXPECT(observed == 2);
}

/// Memory that was freed keeps the allocator in place only as long as a stream uses it, here one that captures.
static void freed_and_still_used() {
  char text[4096] = "";
  c10::DataPtr recorded = CA::get()->allocate(1 << 20);
  const auto capturing = c10::cuda::getStreamFromPool(false, 0);
  C10_CUDA_CHECK(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeRelaxed));
  CA::recordStream(recorded, capturing);
  recorded.clear();
  EXPECT(cuda_mem_torch_shim_uninstall(text, sizeof text) == 1 && has(text, "1048576 bytes of device 0 were freed, and streams still use them"));
  cudaGraph_t graph = nullptr;
  C10_CUDA_CHECK(cudaStreamEndCapture(capturing, &graph));
}

/// PyTorch's settings hold, whenever they were changed.
static void settings_stay() {
  char text[4096] = "";
  settings();
  // As `enable()` does that is called again.
  EXPECT(cuda_mem_torch_set_settings("", nullptr, nullptr) == CUDA_MEM_TORCH_OK);
  install();
  EXPECT(segment_size() == 40 << 20);
  EXPECT(cuda_mem_torch_shim_uninstall(text, sizeof text) == 0);
  c10::CachingAllocator::setAllocatorSettings("large_segment_size_mb:60");
  install();
  EXPECT(segment_size() == 60 << 20);
}

/// The native allocator was in use: its tensors, pools and pointers go on.
static void late(CA::CUDAAllocator* native) {
  c10::DataPtr early = native->allocate(5 << 20);
  const MempoolId_t id{0, 4000};
  native->createOrIncrefPool(0, id);
  void* raw = native->raw_alloc(1 << 20);
  native->beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
  char text[4096] = "";
  EXPECT(cuda_mem_torch_shim_install(TORCH_VERSION, text, sizeof text) == 1 && has(text, "use_mem_pool is active"));
  native->endAllocateToPool(0, id);
  native->releasePool(0, id);
  // Another thread captures, into a pool of the native allocator's.
  const auto captured = c10::cuda::getStreamFromPool(true, 0);
  std::thread([&] { C10_CUDA_CHECK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed)); }).join();
  EXPECT(cuda_mem_torch_shim_install(TORCH_VERSION, text, sizeof text) == 1 && has(text, "a CUDA graph is being captured"));
  cudaGraph_t graph = nullptr;
  C10_CUDA_CHECK(cudaStreamEndCapture(captured, &graph));
  native->setMemoryFraction(0.5, 0);
  native->enable(false);
  install();
  limits(native);
  EXPECT(cuda_mem_torch_shim_state() == 2 && allocated() == 6 << 20);
  c10::DataPtr fresh = CA::get()->allocate(1 << 20);
  EXPECT(allocated() == 7 << 20);
  CA::recordStream(early, c10::cuda::getStreamFromPool(false, 0));
  CA::raw_delete(raw);
  EXPECT(CA::getPoolUseCount(0, id) == 1);
  begun_without_memory(native, id);
  CA::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
  void* pooled = CA::raw_alloc(1 << 20);
  c10::DataPtr recorded = CA::get()->allocate(1 << 20);
  CA::endAllocateToPool(0, id);
  EXPECT(native->snapshot(id, false).segments.size() == 1);
  CA::raw_delete(pooled);
  // Freed, it stays away until the stream's event is asked about.
  CA::recordStream(recorded, c10::cuda::getStreamFromPool(false, 0));
  const int64_t active = native->getDeviceStats(0).active_bytes[0].current;
  recorded.clear();
  EXPECT(native->getDeviceStats(0).active_bytes[0].current == active);
  CA::releasePool(0, id);
  CA::releasePool(0, id);
  early.clear();
  EXPECT(allocated() == 1 << 20);
  fresh.clear();
  checkpointed_before(native);
  caching_switched_since(native);
  emptied_beside_a_pool(native);
  heard_of_both(native);
  rejected(native);
  at_addresses(CA::get());
  at_addresses(native);
  // A thread that is inside of such a pool would stay there.
  const MempoolId_t routed{0, 4500};
  native->createOrIncrefPool(0, routed);
  CA::beginAllocateToPool(0, routed, [](cudaStream_t) { return true; });
  EXPECT(cuda_mem_torch_shim_uninstall(text, sizeof text) == 1 && has(text, "use_mem_pool is active"));
  CA::endAllocateToPool(0, routed);
  CA::releasePool(0, routed);
  CA::releasePool(0, routed);
  settings_stay();
}

int main(int count, char** words) {
  CA::CUDAAllocator* native = CA::get();
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  c10::cuda::set_device(0);
  if (count > 1 && std::strcmp(words[1], "late") == 0) {
    native->init(c10::cuda::device_count());
    late(native);
  } else if (count > 1 && std::strcmp(words[1], "seeing") == 0) {
    install();
    CA::init(c10::cuda::device_count());
    seeing();
  } else if (count > 1 && std::strcmp(words[1], "refused") == 0) {
    install();
    CA::init(c10::cuda::device_count());
    refused();
  } else if (count > 1 && std::strcmp(words[1], "uncached") == 0) {
    install();
    CA::init(c10::cuda::device_count());
    uncached();
  } else {
    install();
    EXPECT(cuda_mem_torch_shim_state() == 1 && !CA::get()->initialized());
    CA::init(c10::cuda::device_count());
    EXPECT(CA::get()->initialized());
    memory();
    at_addresses(CA::get());
    profiled();
    history();
    failing_observer();
    pools();
    own_streams();
    refused_pools();
    // Whoever asks hears that segments grow. The upstream of the pools below is the native allocator, whose own do not here.
    EXPECT(c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments());
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
    source(native);
    failing_source(native);
    heard_of_both(native);
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
    sharing();
    breaking();
    ended_thread();
    settings();
    char text[4096] = "";
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    CA::emptyCache();
    {
      c10::DataPtr held = CA::get()->allocate(1000);
      EXPECT(cuda_mem_torch_shim_uninstall(text, sizeof text) == 1 && has(text, "delete them first, and cuBLAS's workspaces by torch._C._cuda_clearCublasWorkspaces()"));
    }
    {
      CA::get()->enable(false);
      c10::DataPtr uncached = CA::get()->allocate(1000);
      CA::get()->enable(true);
      EXPECT(cuda_mem_torch_shim_uninstall(text, sizeof text) == 1 && has(text, "while caching was off still live, 1 of them"));
    }
    freed_and_still_used();
    const MempoolId_t id{0, 5000};
    CA::createOrIncrefPool(0, id);
    EXPECT(cuda_mem_torch_shim_uninstall(text, sizeof text) == 1 && has(text, "still in use"));
    in_a_forked_child([&] {
      EXPECT(CA::getPoolUseCount(0, id) == 1);
      CA::setUseOnOOM(0, id, true);
      CA::endAllocateToPool(0, id);
      CA::releasePool(0, id);
      CA::emptyCache(id);
#if CUDA_MEM_HAS_CONTEXT_FOR_POINTER
      EXPECT(CA::get()->getContextForPointer(text) == nullptr);
#endif
    });
    CA::releasePool(0, id);
    CA::recordHistory(true, nullptr, 10, CA::RecordContext::NEVER, true, {});
    const auto warns = [&] {
      Warned warned;
      const c10::WarningUtils::WarningHandlerGuard guard(&warned);
      EXPECT(cuda_mem_torch_shim_uninstall(text, sizeof text) == 0 && CA::get() == native);
      return has(warned.text, "_record_memory_history() again after disable()");
    };
    EXPECT(warns());
    // It ended with that, also in this allocator: the program may have stopped it meanwhile.
    install();
    EXPECT(cuda_mem_torch_shim_state() == 2 && !CA::isHistoryEnabled() && !warns());
    install();
    CA::recordHistory(true, nullptr, 10, CA::RecordContext::NEVER, true, {});
    EXPECT(!warns());
    EXPECT(cuda_mem_torch_shim_state() == 0 && c10::GetAllocator(c10::kCUDA) == native);
    EXPECT(!c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments());
  }
  std::printf("%d checks\n", checks);
  std::fflush(stdout);
  std::_Exit(0);
}
