// PyTorch's symmetric memory over the C interface of cuda-mem-torch: the backend CUDA_MEM. A library of its own, because it needs
// libtorch_cpu, which the allocator does without. Holds no Python.
#include <cuda_mem_torch.h>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>
#include <torch/version.h>

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace cuda_mem {
namespace {

using c10d::symmetric_memory::GroupInfo;
using c10d::symmetric_memory::SymmetricMemory;
using c10d::symmetric_memory::SymmetricMemoryAllocator;

constexpr const char* NAME = "CUDA_MEM";
/// The group of all ranks, as init_process_group names it.
constexpr const char* EVERYBODY = "0";

void check(int code) {
  TORCH_CHECK(code == CUDA_MEM_TORCH_OK, "cuda-mem: ", cuda_mem_torch_last_error());
}

size_t at_least_zero(int value, const char* what) {
  TORCH_CHECK(value >= 0, "cuda-mem: ", what, " is ", value, "; accepted: from 0 on");
  return static_cast<size_t>(value);
}

/// An allocation on every rank.
class Memory final : public SymmetricMemory {
 public:
  Memory(cuda_mem_torch_symm_handle* handle, int device) : handle_(handle), device_(device) {
    try {
      check(cuda_mem_torch_symm_describe(handle_, &info_, nullptr, nullptr));
      buffers_.resize(info_.world_size);
      pads_.resize(info_.world_size);
      check(cuda_mem_torch_symm_describe(handle_, &info_, buffers_.data(), pads_.data()));
      const size_t wanted = c10d::symmetric_memory::get_signal_pad_size();
      TORCH_CHECK(
          wanted <= info_.signal_pad_size, "cuda-mem: signal pads have ", info_.signal_pad_size, " bytes; set_signal_pad_size() asked for ",
          wanted);
      std::vector<void*> addresses(buffers_);
      addresses.insert(addresses.end(), pads_.begin(), pads_.end());
      const size_t bytes = addresses.size() * sizeof(void*);
      const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_));
      on_device_ = static_cast<void**>(c10::cuda::CUDACachingAllocator::raw_alloc(bytes));
      C10_CUDA_CHECK(cudaMemcpy(on_device_, addresses.data(), bytes, cudaMemcpyHostToDevice));
    } catch (...) {
      release();
      throw;
    }
  }

  ~Memory() override {
    release();
  }

  std::vector<void*> get_buffer_ptrs() override {
    return buffers_;
  }
  std::vector<void*> get_signal_pad_ptrs() override {
    return pads_;
  }
  void** get_buffer_ptrs_dev() override {
    return on_device_;
  }
  void** get_signal_pad_ptrs_dev() override {
    return on_device_ + info_.world_size;
  }
  size_t get_buffer_size() override {
    return info_.buffer_size;
  }
  size_t get_offset() override {
    return info_.offset;
  }
  bool has_multicast_support() override {
    return false;
  }
  void* get_multicast_ptr() override {
    return nullptr;
  }
  bool world_within_direct_access() override {
    return true;
  }
  int get_rank() override {
    return static_cast<int>(info_.rank);
  }
  int get_world_size() override {
    return static_cast<int>(info_.world_size);
  }
  c10::Device get_device() override {
    return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device_));
  }

  void barrier(int channel, size_t timeout_ms) override {
    check(cuda_mem_torch_symm_barrier(handle_, stream(), at_least_zero(channel, "channel"), timeout_ms));
  }
  /// Signals are counted: nothing is waited for, whatever the timeout.
  void put_signal(int to, int channel, size_t) override {
    check(cuda_mem_torch_symm_put_signal(handle_, stream(), at_least_zero(to, "the rank"), at_least_zero(channel, "channel")));
  }
  void wait_signal(int from, int channel, size_t timeout_ms) override {
    check(cuda_mem_torch_symm_wait_signal(
        handle_, stream(), at_least_zero(from, "the rank"), at_least_zero(channel, "channel"), timeout_ms));
  }

 private:
  void* stream() const {
    return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_)).stream();
  }

  /// Nothing may be thrown here. At the end of the process the driver may have gone.
  void release() noexcept {
    if (c10d::symmetric_memory::is_finalizing()) {
      return;
    }
    try {
      if (on_device_ != nullptr) {
        c10::cuda::CUDACachingAllocator::raw_delete(on_device_);
      }
    } catch (const std::exception& error) {
      TORCH_WARN("cuda-mem: ", error.what());
    }
    cuda_mem_torch_symm_close(handle_);
  }

  cuda_mem_torch_symm_handle* handle_;
  int device_;
  cuda_mem_torch_symm_info info_{};
  std::vector<void*> buffers_;
  std::vector<void*> pads_;
  /// Of each rank the buffer, then of each the pad.
  void** on_device_ = nullptr;
};

/// What PyTorch chooses by set_backend("CUDA_MEM").
class Backend final : public SymmetricMemoryAllocator {
 public:
  /// Memory without a group's name is for all ranks.
  void* alloc(size_t size, int device, const std::optional<std::string>& group) override {
    const std::string name = group.value_or(EVERYBODY);
    join(name, device);
    void* address = nullptr;
    check(cuda_mem_torch_symm_malloc(device, size, name.c_str(), &address));
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(address)] = Block{size, device, name, {}};
    return address;
  }

  void free(void* address) override {
    if (c10d::symmetric_memory::is_finalizing()) {
      return;
    }
    Block block;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = blocks_.find(reinterpret_cast<uintptr_t>(address));
      if (found == blocks_.end()) {
        return;
      }
      block = std::move(found->second);
      blocks_.erase(found);
    }
    // Tensors end here: nothing may be thrown.
    const int code = cuda_mem_torch_symm_delete(block.device, address);
    if (code != CUDA_MEM_TORCH_OK && code != CUDA_MEM_TORCH_FORKED) {
      TORCH_WARN("cuda-mem: ", cuda_mem_torch_last_error());
    }
  }

  size_t get_alloc_size(void* address) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = find(address);
    TORCH_CHECK(found != blocks_.end(), address, " is not in symmetric memory of ", NAME);
    return found->second.size;
  }

  c10::intrusive_ptr<SymmetricMemory> rendezvous(void* address, const std::optional<std::string>& group) override {
    std::string name;
    int device = 0;
    size_t offset = 0;
    uintptr_t begin = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = find(address);
      if (found == blocks_.end()) {
        TORCH_WARN(address, " is not in symmetric memory of ", NAME, ": was the tensor allocated by symm_mem.empty()?");
        return nullptr;
      }
      begin = found->first;
      offset = reinterpret_cast<uintptr_t>(address) - begin;
      name = found->second.group;
      device = found->second.device;
      const auto known = found->second.handles.find(offset);
      TORCH_CHECK(
          !group.has_value() || *group == name, "cuda-mem: the tensor was allocated for group \"", name, "\" and cannot be used in \"",
          *group, "\": memory without a group's name is for all ranks; for a group, allocate with its name");
      if (known != found->second.handles.end()) {
        return known->second;
      }
    }
    cuda_mem_torch_symm_handle* handle = nullptr;
    check(cuda_mem_torch_symm_rendezvous(device, address, name.c_str(), &handle));
    auto memory = c10::make_intrusive<Memory>(handle, device);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(begin);
    if (found != blocks_.end()) {
      found->second.handles.emplace(offset, memory);
    }
    return memory;
  }

  bool has_multicast_support(int) override {
    return false;
  }
  c10::DeviceType supported_device_type() override {
    return c10::kCUDA;
  }
  std::string name() override {
    return NAME;
  }

 private:
  struct Block {
    size_t size = 0;
    int device = 0;
    std::string group;
    /// By the offset of the rendezvous' address.
    std::map<size_t, c10::intrusive_ptr<SymmetricMemory>> handles;
  };

  std::map<uintptr_t, Block>::iterator find(void* address) {
    const auto wanted = reinterpret_cast<uintptr_t>(address);
    auto found = blocks_.upper_bound(wanted);
    if (found == blocks_.begin()) {
      return blocks_.end();
    }
    --found;
    return wanted - found->first < std::max<size_t>(found->second.size, 1) ? found : blocks_.end();
  }

  /// The ranks of a group, as set_group_info or the process group says.
  static GroupInfo ranks(const std::string& name) {
    try {
      return c10d::symmetric_memory::get_group_info(name);
    } catch (const c10::Error&) {
      const auto group = c10d::resolve_process_group(name);
      return {group->getRank(), group->getSize(), group->getStore()};
    }
  }

  /// Every rank comes here with its first allocation for the group.
  void join(const std::string& name, int device) {
    const std::lock_guard<std::mutex> lock(joining_);
    const auto known = groups_.find(name);
    if (known != groups_.end()) {
      TORCH_CHECK(
          known->second == device, "cuda-mem: group \"", name, "\" was joined with device ", known->second, ", not ", device);
      return;
    }
    const GroupInfo group = ranks(name);
    const std::string key = std::string(NAME) + "/" + name + "/directory";
    std::string directory;
    if (group.rank == 0) {
      const char* place = getenv("TMPDIR");
      directory = std::string(place != nullptr ? place : "/tmp") + "/cuda-mem-XXXXXX";
      TORCH_CHECK(mkdtemp(directory.data()) != nullptr, "cuda-mem: ", directory, ": ", strerror(errno));
      group.store->set(key, directory);
    } else {
      directory = group.store->get_to_str(key);
    }
    const int code = cuda_mem_torch_symm_join(
        device, name.c_str(), static_cast<size_t>(group.rank), static_cast<size_t>(group.world_size), directory.c_str(),
        static_cast<uint64_t>(std::max<int64_t>(group.store->getTimeout().count(), 0)));
    if (group.rank == 0) {
      rmdir(directory.c_str());
    }
    check(code);
    groups_.emplace(name, device);
  }

  std::mutex joining_;
  std::map<std::string, int> groups_;
  std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;
};

} // namespace
} // namespace cuda_mem

/// Makes the backend known to PyTorch, once; 0, or 1 with the reason in `text`.
extern "C" __attribute__((visibility("default"))) int cuda_mem_torch_symmetric_register(char* text, size_t capacity) {
  try {
    static const bool once = [] {
      TORCH_CHECK(
          cuda_mem_torch_abi_version() == CUDA_MEM_TORCH_ABI_VERSION, "built for version ", CUDA_MEM_TORCH_ABI_VERSION,
          " of the interface; libcuda_mem_torch.so has ", cuda_mem_torch_abi_version());
      c10d::symmetric_memory::register_availability(cuda_mem::NAME, c10::make_intrusive<cuda_mem::Backend>());
      return true;
    }();
    return once ? 0 : 1;
  } catch (const std::exception& error) {
    if (text != nullptr && capacity > 0) {
      const size_t length = std::min(strlen(error.what()), capacity - 1);
      std::memcpy(text, error.what(), length);
      text[length] = '\0';
    }
    return 1;
  }
}
