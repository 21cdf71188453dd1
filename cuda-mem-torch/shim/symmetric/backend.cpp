// PyTorch's symmetric memory over the C interface of cuda-mem-torch: the backend CUDA_MEM. A library of its own, because it needs
// libtorch_cpu, which the allocator does without.
//
// Holds no Python and takes no GIL. PyTorch may hold it around any of these calls, joining included: other threads of Python stand
// still then. So nothing here may need another thread of Python to go on, and a group's store must be one of PyTorch's own, in C++.
#include "memory.hpp"
#include "old_system.hpp"

#include <cstdio>
#include <map>

namespace cuda_mem {
namespace {

using c10d::symmetric_memory::GroupInfo;
using c10d::symmetric_memory::SymmetricMemory;
using c10d::symmetric_memory::SymmetricMemoryAllocator;

/// The group of all ranks, as init_process_group names it.
constexpr const char* EVERYBODY = "0";

/// What PyTorch chooses by set_backend("CUDA_MEM").
class Backend final : public SymmetricMemoryAllocator {
 public:
  /// Memory without a group's name is for all ranks.
  void* alloc(size_t size, int device, const std::optional<std::string>& group) override {
    auto joined = join(group.value_or(EVERYBODY), device);
    // Its place in the books is made before, so that nothing can fail once there is memory.
    std::map<uintptr_t, Block> made;
    made.emplace(0, Block{size, joined, {}});
    auto entry = made.extract(made.begin());
    void* address = nullptr;
    check(cuda_mem_torch_symm_malloc(device, size, joined->name().c_str(), &address));
    entry.key() = reinterpret_cast<uintptr_t>(address);
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.insert(std::move(entry));
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
    // Tensors end here: nothing may be thrown. The handles end with the block.
    const int code = cuda_mem_torch_symm_delete(block.joined->device(), address);
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
    std::shared_ptr<Joined> joined;
    c10::intrusive_ptr<SymmetricMemory> known;
    bool another = false;
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
      joined = found->second.joined;
      const auto handle = found->second.handles.find(offset);
      if (handle != found->second.handles.end()) {
        known = handle->second;
      }
      const auto place = places_.find(joined->asked());
      another = place != places_.end() && place->second.joined != nullptr && place->second.joined != joined;
    }
    const std::string& name = joined->asked();
    TORCH_CHECK(
        !group.has_value() || *group == name, "cuda-mem: the tensor was allocated for group \"", name, "\" and cannot be used in \"",
        *group, "\": memory without a group's name is for all ranks; for a group, allocate with its name");
    // Operators come here with every call: who has a handle does not ask the store again.
    const bool is_it = known != nullptr ? fits(*joined) : joined->is(ranks(name));
    TORCH_CHECK(
        is_it && !another, "cuda-mem: the tensor's memory is of a group \"", name,
        "\" that has ended: its process group was destroyed and made anew since. Allocate the tensor anew; "
        "cuda_mem_torch.symmetric.leave() after destroy_process_group() gives back what PyTorch keeps of the old one");
    if (known != nullptr) {
      return known;
    }
    cuda_mem_torch_symm_handle* handle = nullptr;
    check(cuda_mem_torch_symm_rendezvous(joined->device(), address, joined->name().c_str(), &handle));
    auto memory = c10::make_intrusive<Memory>(Handle(handle), joined->device());
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
  /// Virtual since PyTorch 2.12, so it does not say `override`.
  bool has_allocation(void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return find(address) != blocks_.end();
  }

  /// Leaves a group; whether it was joined.
  bool leave(const std::string& name) {
    const auto joined = put(place(name), nullptr);
    if (joined != nullptr) {
      joined->leave();
    }
    return joined != nullptr;
  }

 private:
  struct Block {
    size_t size = 0;
    std::shared_ptr<Joined> joined;
    /// By the offset of the rendezvous' address.
    std::map<size_t, c10::intrusive_ptr<SymmetricMemory>> handles;
  };

  /// Of the groups that have a name, the one that was joined last.
  struct Place {
    /// Held while all ranks are waited for, by those that want the same group.
    std::mutex joining;
    /// With `mutex_`.
    std::shared_ptr<Joined> joined;
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

  /// It stays where it is.
  Place& place(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return places_[name];
  }

  /// What was there before.
  std::shared_ptr<Joined> put(Place& place, std::shared_ptr<Joined> joined) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(place.joined, std::move(joined));
  }

  /// The ranks that have the name now: the process group's, or as set_group_info says, which stays when a process group is made anew.
  static GroupInfo ranks(const std::string& name) {
    try {
      const auto group = c10d::resolve_process_group(name);
      return {group->getRank(), group->getSize(), group->getStore()};
    } catch (const c10::Error&) {
      return c10d::symmetric_memory::get_group_info(name);
    }
  }

  /// Whether the ranks that have the name now, if any have it, may be the group's.
  static bool fits(const Joined& joined) {
    try {
      return joined.has_numbers(ranks(joined.asked()));
    } catch (const c10::Error&) {
      return true;
    }
  }

  /// Every rank comes here with its first allocation for the group.
  std::shared_ptr<Joined> join(const std::string& name, int device) {
    Place& place = this->place(name);
    const std::lock_guard<std::mutex> lock(place.joining);
    const GroupInfo group = ranks(name);
    std::shared_ptr<Joined> joined;
    {
      const std::lock_guard<std::mutex> looking(mutex_);
      joined = place.joined;
    }
    if (joined != nullptr && joined->is(group)) {
      TORCH_CHECK(
          joined->device() == device, "cuda-mem: group \"", name, "\" was joined with device ", joined->device(), ", not ", device);
      return joined;
    }
    leave(name);
    joined = std::make_shared<Joined>(name, device, group);
    put(place, joined);
    return joined;
  }

  /// Of both below, held for as long as it takes to look.
  std::mutex mutex_;
  std::map<std::string, Place> places_;
  std::map<uintptr_t, Block> blocks_;
};

/// The one that PyTorch is given.
const c10::intrusive_ptr<Backend>& backend() {
  static const auto made = c10::make_intrusive<Backend>();
  return made;
}

/// What `body` gives, or 1 with what it threw in `text`.
template <class Body>
int guarded(char* text, size_t capacity, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    std::snprintf(text, capacity, "%s", error.what());
    return 1;
  }
}

} // namespace
} // namespace cuda_mem

/// Makes the backend known to PyTorch, once; 0, or 1 with the reason in `text`.
extern "C" __attribute__((visibility("default"))) int cuda_mem_torch_symmetric_register(char* text, size_t capacity) {
  return cuda_mem::guarded(text, capacity, [] {
    static const int once = [] {
      TORCH_CHECK(
          cuda_mem_torch_abi_version() == CUDA_MEM_TORCH_ABI_VERSION, "built for version ", CUDA_MEM_TORCH_ABI_VERSION,
          " of the interface; libcuda_mem_torch.so has ", cuda_mem_torch_abi_version());
      c10d::symmetric_memory::register_availability(cuda_mem::NAME, cuda_mem::backend());
      return 0;
    }();
    return once;
  });
}

/// Leaves a group that the backend has joined: 0, 2 if there is none, or 1 with the reason in `text`.
extern "C" __attribute__((visibility("default"))) int cuda_mem_torch_symmetric_leave(const char* name, char* text, size_t capacity) {
  return cuda_mem::guarded(text, capacity, [&] { return cuda_mem::backend()->leave(name) ? 0 : 2; });
}
