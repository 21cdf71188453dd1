// What functions of the program throw where nothing may be thrown.
#pragma once

#include <cxxabi.h>
#include <unistd.h>

#include <exception>
#include <new>
#include <string>
#include <utility>

namespace cuda_mem {

/// The end of an `exception_ptr`, and its throw, by the names that libstdc++ has always had: the members that newer headers inline
/// call functions that older systems lack.
extern "C" void cuda_mem_end_exception(void* pointer) noexcept;
extern "C" [[noreturn]] void cuda_mem_throw_exception(void* pointer);
__asm__(".symver cuda_mem_end_exception, _ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3");
__asm__(".symver cuda_mem_throw_exception, _ZSt17rethrow_exceptionNSt15__exception_ptr13exception_ptrE@CXXABI_1.3.3");

/// Keeps what was thrown in a function that the library calls, for the end of the call that it was called in. One for each thread.
class Thrown {
 public:
  constexpr Thrown() = default;
  Thrown(const Thrown&) = delete;
  Thrown& operator=(const Thrown&) = delete;
  ~Thrown() {
    forget();
  }

  /// In a `catch`.
  void keep() noexcept {
    forget();
    // Made where it stays: no copy, no end.
    new (&kept_) std::exception_ptr(std::current_exception());
  }
  void forget() noexcept {
    if (kept_ != nullptr) {
      cuda_mem_end_exception(&kept_);
      kept_ = nullptr;
    }
  }
  /// Throws it, if there is something.
  void pass_on() {
    if (kept_ != nullptr) {
      Thrown thrown;
      std::swap(thrown.kept_, kept_);
      // It counts for itself what it throws.
      cuda_mem_throw_exception(&thrown.kept_);
    }
  }

 private:
  /// What an `exception_ptr` is.
  void* kept_{nullptr};
  static_assert(sizeof(std::exception_ptr) == sizeof(void*));
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
