// Threads that work at the same time, and the clock that times them.
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <thread>
#include <vector>

struct Clock {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

  double nanoseconds() const {
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  }
};

// What the threads of a measurement know of each other.
class Team {
 public:
  explicit Team(int size) : size_(size) {}

  // Waits until all have come here.
  void meet() {
    int round = round_;
    if (++here_ == size_) {
      here_ = 0;
      ++round_;
    }
    while (round_ == round) wait();
  }

  // A moment for another thread; throws where one of them has failed, which would be waited for in vain.
  void wait() const {
    if (failed_) throw std::runtime_error("another thread has failed");
    std::this_thread::yield();
  }

  void fail() { failed_ = true; }

 private:
  int size_;
  std::atomic<int> here_{0}, round_{0};
  std::atomic<bool> failed_{false};
};

// Runs `work` in each of some threads; throws what the first of them threw.
template <class Work>
void in_threads(int count, Work work) {
  Team team(count);
  std::exception_ptr error;
  std::atomic<bool> claimed{false};
  std::vector<std::thread> threads;
  for (int index = 0; index < count; ++index) {
    threads.emplace_back([&, index] {
      try {
        cudaSetDevice(0);
        work(index, team);
      } catch (...) {
        if (!claimed.exchange(true)) error = std::current_exception();
        team.fail();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}
