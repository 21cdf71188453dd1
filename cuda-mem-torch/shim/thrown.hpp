// What functions of the program throw where nothing may be thrown.
#pragma once

#include <cxxabi.h>
#include <unistd.h>

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

/// Runs a function of the program where nothing may be thrown. What it throws, whatever that is, is handed to `failed` in words.
///
/// A thread that the interpreter ends while it waits for its lock is unwound by the system (`pthread_exit`). That may neither be
/// caught nor go on through the library, so the thread rests here until the process has ended, as later interpreters have it.
template <class Body, class Failed>
auto contained(const Body& body, const Failed& failed) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const abi::__forced_unwind&) {
    for (;;) {
      pause();
    }
  } catch (...) {
    return failed(caught());
  }
}

} // namespace cuda_mem
