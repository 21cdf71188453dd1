// A group of ranks, from the store of PyTorch's process group.
#pragma once

#include "streams.hpp"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

namespace cuda_mem {

constexpr const char* NAME = "CUDA_MEM";

inline void check(int code) {
  TORCH_CHECK(code == CUDA_MEM_TORCH_OK, "cuda-mem: ", cuda_mem_torch_last_error());
}

inline size_t at_least_zero(int value, const char* what) {
  TORCH_CHECK(value >= 0, "cuda-mem: ", what, " is ", value, "; accepted: from 0 on");
  return static_cast<size_t>(value);
}

/// A new directory, where the ranks find each other.
inline std::string meeting_place() {
  const char* place = getenv("TMPDIR");
  std::string made = std::string(place != nullptr ? place : "/tmp") + "/cuda-mem-XXXXXX";
  TORCH_CHECK(mkdtemp(made.data()) != nullptr, "cuda-mem: ", made, ": ", strerror(errno));
  return made;
}

/// A group that this process has joined. A process group that is made anew may have the name of one that was destroyed, and is
/// another group.
///
/// What the ranks tell each other in the store, under CUDA_MEM/<the group's name>/:
///
///     attempts            how often rank 0 began
///     directory/<n>       where they meet in the n-th attempt; "given up" if rank 0 failed; gone once all have met
///     tried/<rank>        the last attempt in which the rank took part: it waits for a later one
///     joined/<rank>       the group that the rank has joined over this store
class Joined {
 public:
  /// Returns when all ranks are there.
  Joined(const std::string& asked, int device, const c10d::symmetric_memory::GroupInfo& group)
      : asked_(asked), device_(device), rank_(group.rank), size_(group.world_size) {
    see_streams(static_cast<c10::DeviceIndex>(device));
    c10d::Store& store = *group.store;
    const std::string tried = key("tried/" + std::to_string(rank_));
    int64_t attempt = 0;
    std::string directory;
    // Gone again whatever fails. Each rank has a socket in it, so that whoever goes last finds it empty.
    const auto gone = c10::make_scope_exit([&] { rmdir(directory.c_str()); });
    if (rank_ == 0) {
      directory = meeting_place();
      attempt = store.add(key("attempts"), 1);
      store.set(place(attempt), directory);
    } else {
      const int64_t before = store.add(tried, 0);
      attempt = std::max(before + 1, store.add(key("attempts"), 0));
      std::string told;
      while ((told = store.get_to_str(place(attempt))) == GIVEN_UP) {
        ++attempt;
      }
      store.add(tried, attempt - before);
      directory = told;
    }
    // What mkdtemp chose tells this group from an earlier one of the name.
    name_ = asked_ + "." + directory.substr(directory.size() - 6);
    const int code = cuda_mem_torch_symm_join(
        device, name_.c_str(), at_least_zero(rank_, "the rank"), at_least_zero(size_, "the number of ranks"), directory.c_str(),
        static_cast<uint64_t>(std::max<int64_t>(store.getTimeout().count(), 0)));
    if (code != CUDA_MEM_TORCH_OK) {
      const std::string reason = cuda_mem_torch_last_error();
      if (rank_ == 0) {
        store.set(place(attempt), GIVEN_UP);
      }
      TORCH_CHECK(false, "cuda-mem: ", reason);
    }
    try {
      store.set(joined(), name_);
      if (rank_ == 0) {
        store.deleteKey(place(attempt));
      }
    } catch (...) {
      leave();
      throw;
    }
  }

  /// Nothing is allocated for it any more. Its memory stays until it is deleted.
  void leave() const noexcept {
    const int code = cuda_mem_torch_symm_leave(name_.c_str());
    if (code != CUDA_MEM_TORCH_OK && code != CUDA_MEM_TORCH_FORKED) {
      TORCH_WARN("cuda-mem: ", cuda_mem_torch_last_error());
    }
  }

  /// Whether it is the group of these ranks. The store is asked, not kept: a store that somebody keeps goes on listening after its
  /// process group was destroyed, and its address may be another's by now.
  bool is(const c10d::symmetric_memory::GroupInfo& group) const {
    return has_numbers(group) && group.store->check({joined()}) && group.store->get_to_str(joined()) == name_;
  }

  /// Whether the rank and the number of ranks are the same.
  bool has_numbers(const c10d::symmetric_memory::GroupInfo& group) const {
    return rank_ == group.rank && size_ == group.world_size;
  }

  /// As PyTorch calls it.
  const std::string& asked() const {
    return asked_;
  }
  /// As the library calls it.
  const std::string& name() const {
    return name_;
  }
  int device() const {
    return device_;
  }

 private:
  static constexpr const char* GIVEN_UP = "given up";

  std::string key(const std::string& what) const {
    return std::string(NAME) + "/" + asked_ + "/" + what;
  }
  std::string place(int64_t attempt) const {
    return key("directory/" + std::to_string(attempt));
  }
  std::string joined() const {
    return key("joined/" + std::to_string(rank_));
  }

  std::string asked_;
  std::string name_;
  int device_;
  int rank_;
  int size_;
};

} // namespace cuda_mem
