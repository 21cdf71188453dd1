// Puts the allocator into PyTorch's place for it, and takes it out again. Called through ctypes.
#include "allocator.hpp"
#include "old_system.hpp"
#include "streams.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/env.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

namespace cuda_mem {

using c10::CachingDeviceAllocator::SegmentInfo;

namespace {

std::mutex mutex;
std::atomic<Allocator*> the_allocator{nullptr};

bool is_in_place() {
  Allocator* ours = the_allocator.load();
  return ours != nullptr && native::allocator.load() == ours;
}

/// `2.11` of `2.11.0+cu130`.
std::string minor_version(const std::string& version) {
  const size_t major = version.find('.');
  return version.substr(0, version.find_first_of(".+", major + 1));
}

void put(native::CUDAAllocator* allocator) {
  // So that torch.accelerator asks the same one.
  const auto set = [&](uint8_t priority) { c10::SetAllocator(c10::kCUDA, allocator, priority); };
  TORCH_CHECK(
      put_in_place(set, [&] { return c10::GetAllocator(c10::kCUDA) == allocator; }), "another allocator is registered for CUDA and does not let go");
  // Last: a failure before this changes nothing.
  native::allocator.store(allocator);
}

/// The settings of the environment, by the names and in the order by which PyTorch looks.
std::string settings_of_environment() {
  for (const char* variable : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (const auto settings = c10::utils::get_env(variable)) {
      return *settings;
    }
  }
  return "";
}

/// Those at `enable()`, until the program says others. Never destroyed: threads may run on at the end of the process.
auto& environment = *new std::optional<std::string>();

/// Whether settings say of segments that they expand, or that they do not.
bool name_expandable(const std::string& settings) {
  const c10::CachingAllocator::ConfigTokenizer words(settings);
  for (size_t at = 0; at < words.size(); ++at) {
    if (words[at] == "expandable_segments") {
      return true;
    }
  }
  return false;
}

/// PyTorch's settings as they change.
void follow_settings() {
  auto& hook = c10::CachingAllocator::AcceleratorAllocatorConfig::getConfigParserHook();
  hook = [before = hook](const std::string& settings) {
    environment.reset();
    const bool is_ours = is_in_place();
    if (before) {
      has_native_name = is_ours;
      const auto again = c10::make_scope_exit([] { has_native_name = false; });
      before(settings);
    }
    if (is_ours) {
      the_allocator.load()->apply_settings(name_expandable(settings));
    }
  };
}

void refuse_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status{cudaStreamCaptureStatusNone};
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  TORCH_CHECK(
      status == cudaStreamCaptureStatusNone, "a CUDA graph is being captured: call enable() before or after the capture");
}

/// Allocates from the native allocator without regard to its limit, and without an error of its own, which its observers would hear of.
void* probe_of(native::CUDAAllocator* before, DeviceIndex device) {
  constexpr size_t segment = size_t{2} << 20;
  const auto is_free = [](const auto& block) { return !block.active; };
  const auto has_free = [&](const SegmentInfo& found) {
    return found.device == device && !found.is_large && std::any_of(found.blocks.begin(), found.blocks.end(), is_free);
  };
  const auto segments = before->snapshot({0, 0}, false).segments;
  TORCH_CHECK(
      before->getMemoryInfo(device).first > 2 * segment || std::any_of(segments.begin(), segments.end(), has_free),
      "device ", static_cast<int>(device), " has no memory left: call torch.cuda.empty_cache(), or delete a tensor, before enable()");
  const double fraction = before->getMemoryFraction(device);
  const auto limit_again = c10::make_scope_exit([&] { before->setMemoryFraction(fraction, device); });
  before->setMemoryFraction(1.0, device);
  return before->raw_alloc(512);
}

/// Refuses while allocations would go to a private pool of the native allocator, because a graph is being captured on a stream of
/// PyTorch's or this thread's, or `use_mem_pool` is active in this thread: it is not known which allocations would still go there.
void refuse_routed(native::CUDAAllocator* before, const std::vector<DeviceIndex>& devices) {
  // Of all devices first: what is allocated below could end the capture of another thread.
  for (const DeviceIndex device : devices) {
    const c10::cuda::CUDAGuard guard(device);
    refuse_capturing(c10::cuda::getCurrentCUDAStream(device));
    const auto own = own_streams(device);
    std::for_each(own.begin(), own.end(), refuse_capturing);
  }
  for (const DeviceIndex device : devices) {
    const c10::cuda::CUDAGuard guard(device);
    void* probe = probe_of(before, device);
    const auto address = reinterpret_cast<size_t>(probe);
    MempoolId_t pool{0, 0};
    for (const auto& segment : before->snapshot({0, 0}, false).segments) {
      if (address >= segment.address && address < segment.address + segment.total_size) {
        pool = segment.owner_private_pool_id;
      }
    }
    before->raw_delete(probe);
    TORCH_CHECK(
        pool == MempoolId_t(0, 0), "torch.cuda.use_mem_pool is active: call enable() before it begins or after it ends");
  }
}

/// What the program has set of the native allocator already holds here too; its history has to be asked for again.
void take_over(Allocator& ours, native::CUDAAllocator* before, int devices) {
  for (DeviceIndex device = 0; device < devices; ++device) {
    ours.set_limit(before->getMemoryFraction(device), device);
  }
  ours.init(devices);
  ours.enable(before->isEnabled());
  if (before->isHistoryEnabled() && !ours.isHistoryEnabled()) {
    TORCH_WARN(
        "cuda-mem: history is recorded of earlier memory only: call torch.cuda.memory._record_memory_history() again after enable()");
  }
}

/// What devices PyTorch has let reach each other's memory, by the driver: it does so once, and does not ask again.
void take_over_peers(const std::vector<DeviceIndex>& devices) {
  for (const DeviceIndex device : devices) {
    const c10::cuda::CUDAGuard guard(device);
    for (const DeviceIndex peer : devices) {
      const cudaError_t granted = device == peer ? cudaErrorInvalidDevice : cudaDeviceEnablePeerAccess(peer, 0);
      if (granted == cudaErrorPeerAccessAlreadyEnabled) {
        check(cuda_mem_torch_enable_peer_access(device, peer), device);
      } else if (granted == cudaSuccess) {
        C10_CUDA_CHECK(cudaDeviceDisablePeerAccess(peer));
      }
      (void)cudaGetLastError();
    }
  }
}

/// Has PyTorch's settings say that segments grow, shrink and move, as those of the default pool do, to whoever asks before it registers
/// memory by its address: NCCL's registration of all segments keeps away then. Not where the program has said that they do not.
/// Afterwards they are as the program gave them.
void say_expandable(bool is_so) {
  namespace settings = c10::CachingAllocator;
  static bool is_said = false;
  const std::string last = settings::getAllocatorSettings();
  if (is_so ? !settings::AcceleratorAllocatorConfig::use_expandable_segments() && !name_expandable(last) : is_said) {
    is_said = is_so;
    // PyTorch keeps this one until something else is said.
    settings::setAllocatorSettings(is_so ? "expandable_segments:True" : "expandable_segments:False");
    settings::setAllocatorSettings(last);
  }
}

void install(const std::string& version) {
  TORCH_CHECK(
      minor_version(version) == minor_version(TORCH_VERSION), "this shim was built for PyTorch ", TORCH_VERSION, ", and PyTorch is ", version);
  TORCH_CHECK(
      cuda_mem_torch_abi_version() == CUDA_MEM_TORCH_ABI_VERSION, "this shim was built for version ", CUDA_MEM_TORCH_ABI_VERSION,
      " of the interface, and libcuda_mem_torch.so has ", cuda_mem_torch_abi_version());
  if (is_in_place()) {
    // The caller may have reset the settings that the library has.
    the_allocator.load()->apply_settings();
    return;
  }
  native::CUDAAllocator* before = native::allocator.load();
  TORCH_CHECK(before != nullptr, "PyTorch was built without CUDA");
  TORCH_CHECK(
      before->name() == "native", "the allocator that is installed is \"", before->name(), "\"; this one takes the place of \"native\" only");
  const bool late = before->initialized();
  const int devices = late ? c10::cuda::device_count() : 0;
  const std::vector<DeviceIndex> used = used_devices(devices);
  refuse_routed(before, used);
  // Now: PyTorch compares a backend that its settings name with the allocator that is in place when it reads them.
  native::CUDAAllocatorConfig::instance();
  Allocator* ours = the_allocator.load();
  if (ours == nullptr) {
    ours = new Allocator(before);
    the_allocator.store(ours);
    check(cuda_mem_torch_ask_for_lasting(&lasts));
    follow_settings();
  }
  ours->native_allocator().set_late(late);
  if (late) {
    take_over(*ours, before, devices);
    take_over_peers(used);
  } else {
    // Before it is in place: PyTorch may refuse the environment. Not if late: the native allocator's own pools would go by it.
    say_expandable(true);
    // As natively: it counts no more once the program has said other settings.
    if ((environment = settings_of_environment()) != c10::CachingAllocator::getAllocatorSettings()) {
      environment.reset();
    }
  }
  put(ours);
}

void uninstall() {
  if (!is_in_place()) {
    return;
  }
  Allocator* ours = the_allocator.load();
  // The native allocator does not know these pools, and their owners end where nothing may be thrown.
  TORCH_CHECK(
      ours->pool_uses() == 0, "pools of torch.cuda.MemPool or of CUDA graphs are still in use, or were begun more often than released: delete those first");
  // The end of such a use would not come here, and the thread would stay in the pool.
  TORCH_CHECK(
      !ours->native_allocator().has_routes(),
      "torch.cuda.use_mem_pool is active, or a CUDA graph is captured, in a pool that was made before enable(): call disable() after it "
      "ends");
  // The native allocator does not know these blocks, and ignores the streams that are recorded for them.
  for (int device = 0; device < ours->device_count(); ++device) {
    const int64_t bytes = stats_of(static_cast<DeviceIndex>(device)).allocated_bytes.all.current;
    TORCH_CHECK(
        bytes == 0, bytes, " bytes of device ", device,
        " are still in tensors: delete them first, and cuBLAS's workspaces by torch._C._cuda_clearCublasWorkspaces()");
  }
  // The native allocator ignores the streams that are recorded for them, because their tensors name this one.
  const size_t routed = ours->native_allocator().kept_blocks();
  TORCH_CHECK(
      routed == 0, "tensors that were made since enable() in pools from before still live, ", routed, " of them: delete them first");
  // Nobody else may have looked whether the streams are done that used what was freed.
  ours->emptyCache({0, 0});
  const size_t uncached = cuda_mem_torch_uncached_blocks();
  TORCH_CHECK(
      uncached == 0, "tensors that were made while caching was off still live, ", uncached, " of them: delete them first");
  for (int device = 0; device < ours->device_count(); ++device) {
    const int64_t bytes = stats_of(static_cast<DeviceIndex>(device)).active_bytes.all.current;
    TORCH_CHECK(
        bytes == 0, bytes, " bytes of device ", device,
        " were freed, and streams still use them: call disable() once their work and their captures have ended");
  }
  // The limit was shared.
  for (DeviceIndex device = 0; device < ours->device_count(); ++device) {
    ours->native_allocator()->setMemoryFraction(ours->getMemoryFraction(device), device);
  }
  ours->native_allocator()->enable(ours->isEnabled());
  put(ours->native_allocator().get());
  say_expandable(false);
  const bool goes_on = ours->native_allocator().is_late() && ours->native_allocator()->isHistoryEnabled();
  const bool is_recorded = ours->isHistoryEnabled();
  cuda_mem_torch_stop_history();
  if (is_recorded && !goes_on) {
    TORCH_WARN("cuda-mem: history is not recorded any more: call torch.cuda.memory._record_memory_history() again after disable()");
  }
}

} // namespace

/// The environment counts as it is when CUDA is used first, as natively, unless the program has said other settings.
void Allocator::follow_environment() {
  enable(isEnabled());
  const std::string now = settings_of_environment();
  if (std::exchange(environment, std::nullopt).value_or(now) != now) {
    say_expandable(false);
    // PyTorch keeps these until something else is said.
    c10::CachingAllocator::setAllocatorSettings(
        "expandable_segments:False,large_segment_size_mb:20,per_process_memory_fraction:1.0,graph_capture_record_stream_reuse:False");
    c10::CachingAllocator::setAllocatorSettings(now);
    say_expandable(true);
  }
}

Allocator* installed() {
  return the_allocator.load(std::memory_order_relaxed);
}

int guarded(char* text, size_t capacity, const std::function<void()>& body) {
  try {
    const std::lock_guard<std::mutex> lock(mutex);
    body();
    return 0;
  } catch (const c10::Error& error) {
    std::snprintf(text, capacity, "%s", error.what_without_backtrace());
    return dynamic_cast<const c10::ValueError*>(&error) != nullptr ? 2 : 1;
  } catch (const std::exception& error) {
    std::snprintf(text, capacity, "%s", error.what());
  }
  return 1;
}

} // namespace cuda_mem

/// Installs the allocator in a PyTorch of this version; 0, or 1 with the reason in `text`, or 2 if that is a bad value.
EXPORT int cuda_mem_torch_shim_install(const char* torch_version, char* text, size_t capacity) {
  return cuda_mem::guarded(text, capacity, [=] { cuda_mem::install(torch_version); });
}

/// Has PyTorch use its own allocator again, if nothing is in use of this one; 0, or 1 with the reason in `text`.
EXPORT int cuda_mem_torch_shim_uninstall(char* text, size_t capacity) {
  return cuda_mem::guarded(text, capacity, &cuda_mem::uninstall);
}

/// 0 if PyTorch uses its own allocator, 1 if it uses this one from the start, 2 if the native one was in use before.
EXPORT int cuda_mem_torch_shim_state() {
  if (!cuda_mem::is_in_place()) {
    return 0;
  }
  return cuda_mem::installed()->native_allocator().is_late() ? 2 : 1;
}
