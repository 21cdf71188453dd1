// What Python calls through ctypes.
#pragma once

#include <cuda_mem_torch.h>

#include <c10/util/Exception.h>

#include <exception>
#include <mutex>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace cuda_mem {

inline std::mutex one_at_a_time;

/// Runs a function that may change what is installed; what it returns, or 1 with what it threw in `text`.
template <class Body>
int guarded(char* text, size_t capacity, const Body& body) noexcept {
  std::string why;
  try {
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    return body();
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
  } catch (const std::exception& error) {
    why = error.what();
  }
  if (text != nullptr && capacity > 0) {
    text[why.copy(text, capacity - 1)] = '\0';
  }
  return 1;
}

/// Throws if the library has another interface than the one that this was built with.
inline void expect_interface() {
  TORCH_CHECK(
      cuda_mem_torch_abi_version() == CUDA_MEM_TORCH_ABI_VERSION, "this shim was built for version ", CUDA_MEM_TORCH_ABI_VERSION,
      " of the interface, and libcuda_mem_torch.so has ", cuda_mem_torch_abi_version());
}

} // namespace cuda_mem
