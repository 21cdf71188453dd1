// What functions of the program throw where nothing may be thrown.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace cuda_mem {

/// Keeps what was thrown in a function that the library calls, for the end of the call that it was called in. One for each thread.
class Thrown {
 public:
  /// In a `catch`.
  void keep() noexcept {
    kept_ = std::current_exception();
  }
  void forget() noexcept {
    kept_ = nullptr;
  }
  /// Throws it, if there is something.
  void pass_on() {
    if (kept_ != nullptr) {
      std::rethrow_exception(std::exchange(kept_, nullptr));
    }
  }

 private:
  std::exception_ptr kept_;
};

/// Of the allocators that pools have their segments from.
inline thread_local Thrown thrown_by_source;
/// Of observers of requests that there is no memory for.
inline thread_local Thrown thrown_by_observer;

/// In a `catch`: what was caught, in words.
inline std::string caught() noexcept {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "what was thrown is no std::exception";
  }
}

} // namespace cuda_mem
