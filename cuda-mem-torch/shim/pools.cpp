// Private pools, also those that the native allocator had before.
#include "allocator.hpp"
#include "streams.hpp"
#include "thrown.hpp"

#include <c10/cuda/CUDAGuard.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <iterator>

namespace cuda_mem {

bool Native::has_pool(DeviceIndex device, const MempoolId_t& id) const {
  if (!is_late()) {
    return false;
  }
  try {
    return allocator_->getPoolUseCount(device, id) > 0;
  } catch (const c10::Error&) {
    // How it answers for a pool that it never had.
    return false;
  }
}

void Native::enter(DeviceIndex device, const MempoolId_t& id, std::shared_ptr<Filter> filter, bool is_native) {
  if (is_late()) {
    const std::lock_guard<std::recursive_mutex> lock(routes_mutex_);
    const bool is_guest = !lasts(device, c10::cuda::getCurrentCUDAStream(device).stream());
    routes_.push_back({device, id, std::move(filter), is_native, is_guest});
    routed_.fetch_add(is_native ? 1 : 0);
  }
}

void Native::leave(DeviceIndex device, const MempoolId_t& id) {
  const std::lock_guard<std::recursive_mutex> lock(routes_mutex_);
  const auto is_it = [&](const Route& route) { return route.device == device && route.id == id; };
  const auto found = std::find_if(routes_.rbegin(), routes_.rend(), is_it);
  if (found != routes_.rend()) {
    routed_.fetch_sub(found->is_native ? 1 : 0);
    routes_.erase(std::next(found).base());
  }
}

bool Native::has_route(DeviceIndex device, cudaStream_t stream) const {
  const std::lock_guard<std::recursive_mutex> lock(routes_mutex_);
  // The last that began is the innermost.
  const auto takes = [&](const Route& route) { return route.device == device && (*route.filter)(stream); };
  const auto found = std::find_if(routes_.rbegin(), routes_.rend(), takes);
  return found != routes_.rend() && found->is_native;
}

bool Native::is_beside_captures() const {
  std::unique_lock<std::recursive_mutex> lock(routes_mutex_);
  const auto routes = routes_;
  lock.unlock();
  // Of a guest's capture the library knows only once it has allocated there.
  const auto captures = [](const Route& route) {
    return route.is_guest || cuda_mem_torch_synchronize(route.device) != CUDA_MEM_TORCH_OK;
  };
  return std::any_of(routes.begin(), routes.end(), captures);
}

bool Allocator::is_native_pool(DeviceIndex device, const MempoolId_t& id) {
  uint64_t ours = 0;
  const int code = cuda_mem_torch_pool_use_count(device, pool_id(id), &ours);
  return check_unless_parents(code, device) && ours == 0 && native_.has_pool(device, id);
}

namespace {

bool accepts(void* data, void* stream) noexcept {
  return contained(
      [&] { return (**static_cast<std::shared_ptr<Filter>*>(data))(static_cast<cudaStream_t>(stream)); },
      [](const std::string& why) {
        TORCH_WARN("cuda-mem: a pool's filter failed, so the allocation goes elsewhere: ", why);
        return false;
      });
}

/// Another allocator, which a pool has its segments from.
struct Source {
  std::shared_ptr<native::CUDAAllocator> allocator;
  DeviceIndex device;
};

void* source_alloc(void* data, size_t bytes) noexcept {
  auto* source = static_cast<Source*>(data);
  return contained(
      [&] {
        const c10::cuda::CUDAGuard guard(source->device);
        return source->allocator->raw_alloc(bytes);
      },
      [](const std::string& why) -> void* {
        thrown_by_source.keep();
        cuda_mem_torch_source_failed(why.c_str());
        return nullptr;
      });
}

void source_free(void* data, void* pointer, size_t /*bytes*/) noexcept {
  auto* source = static_cast<Source*>(data);
  contained(
      [&] {
        const c10::cuda::CUDAGuard guard(source->device);
        source->allocator->raw_delete(pointer);
      },
      [](const std::string& why) { TORCH_WARN("cuda-mem: the pool's allocator could not free: ", why); });
}

} // namespace

void check_reason(int code, int reason, const char* words) {
  TORCH_CHECK(code != reason, words, "\ncuda-mem: ", cuda_mem_torch_last_error());
}

void Allocator::createOrIncrefPool(
    DeviceIndex device,
    MempoolId_t id,
    std::shared_ptr<native::CUDAAllocator> allocator) {
  if (is_native_pool(device, id)) {
    return native_->createOrIncrefPool(device, id, std::move(allocator));
  }
  cuda_mem_torch_source source{nullptr, &source_alloc, &source_free, &end<Source>};
  if (allocator != nullptr && allocator.get() != this && allocator.get() != native_.get()) {
    source.data = new Source{std::move(allocator), device};
  }
  check(cuda_mem_torch_create_or_incref_pool(device, pool_id(id), source.data == nullptr ? nullptr : &source), device);
  pool_uses_.fetch_add(1);
}

void Allocator::beginAllocateToPool(
    DeviceIndex device,
    MempoolId_t id,
    std::function<bool(cudaStream_t)> filter) {
  const auto shared = std::make_shared<Filter>(std::move(filter));
  see_streams(device);
  // A capture that begins here may go on to streams of other devices.
  const auto used = used_devices(device_count());
  std::for_each(used.begin(), used.end(), see_streams);
  if (is_native_pool(device, id)) {
    // Before, so that both know of it or none does.
    native_.enter(device, id, shared, true);
    auto undone = c10::make_scope_exit([&] { native_.leave(device, id); });
    native_->beginAllocateToPool(device, id, *shared);
    return undone.release();
  }
  const int code = cuda_mem_torch_begin_allocate_to_pool(
      device, pool_id(id), &accepts, new std::shared_ptr<Filter>(shared), &end<std::shared_ptr<Filter>>);
  check_reason(code, CUDA_MEM_TORCH_POOL_BEGUN, "beginAllocateToPool: already recording to mempool_id");
  check(code, device);
  pool_uses_.fetch_add(1);
  native_.enter(device, id, shared, false);
}

void Allocator::endAllocateToPool(DeviceIndex device, MempoolId_t id) {
  if (is_native_pool(device, id)) {
    native_->endAllocateToPool(device, id);
    return native_.leave(device, id);
  }
  const int code = cuda_mem_torch_end_allocate_to_pool(device, pool_id(id));
  check_reason(code, CUDA_MEM_TORCH_POOL_NOT_BEGUN, "endAllocatePool: not currently recording to mempool_id");
  if (check_unless_parents(code, device)) {
    native_.leave(device, id);
  }
}

void Allocator::releasePool(DeviceIndex device, MempoolId_t id) {
  if (is_native_pool(device, id)) {
    return native_->releasePool(device, id);
  }
  // One that was made for a tag has no use before its first.
  const bool has_use = getPoolUseCount(device, id) > 0;
  if (check_unless_parents(cuda_mem_torch_release_pool(device, pool_id(id)), device)) {
    pool_uses_.fetch_sub(has_use ? 1 : 0);
    // The last use ends the route.
    if (getPoolUseCount(device, id) == 0) {
      native_.leave(device, id);
    }
  }
}

int Allocator::getPoolUseCount(DeviceIndex device, MempoolId_t id) {
  uint64_t count = 0;
  if (!check_unless_parents(cuda_mem_torch_pool_use_count(device, pool_id(id), &count), device)) {
    return 1;
  }
  return count == 0 && native_.has_pool(device, id) ? native_->getPoolUseCount(device, id) : static_cast<int>(count);
}

void Allocator::setUseOnOOM(DeviceIndex device, MempoolId_t id, bool use_on_oom) {
  if (is_native_pool(device, id)) {
    return native_->setUseOnOOM(device, id, use_on_oom);
  }
  check_unless_parents(cuda_mem_torch_set_use_on_oom(device, pool_id(id), use_on_oom), device);
}

void Allocator::setNoSplit(DeviceIndex device, MempoolId_t id) {
  if (is_native_pool(device, id)) {
    return native_->setNoSplit(device, id);
  }
  check(cuda_mem_torch_set_no_split(device, pool_id(id)), device);
}

bool Allocator::checkPoolLiveAllocations(
    DeviceIndex device,
    MempoolId_t id,
    const std::unordered_set<void*>& expected) {
  if (is_native_pool(device, id)) {
    return native_->checkPoolLiveAllocations(device, id, expected);
  }
  const std::vector<const void*> addresses(expected.begin(), expected.end());
  bool are = false;
  const int code =
      cuda_mem_torch_check_pool_live_allocations(device, pool_id(id), addresses.data(), addresses.size(), &are);
  check_reason(code, CUDA_MEM_TORCH_POOL_UNKNOWN, "Could not find pool of id");
  check(code, device);
  return are;
}

} // namespace cuda_mem
