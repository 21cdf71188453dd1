// What a rank has after the rendezvous.
#pragma once

#include "joined.hpp"

#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <memory>
#include <utility>
#include <vector>

namespace cuda_mem {

/// Closes a handle. At the end of the process the driver may have gone.
struct Close {
  void operator()(cuda_mem_torch_symm_handle* handle) const noexcept {
    if (!c10d::symmetric_memory::is_finalizing()) {
      cuda_mem_torch_symm_close(handle);
    }
  }
};
using Handle = std::unique_ptr<cuda_mem_torch_symm_handle, Close>;

/// An allocation on every rank.
class Memory final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  Memory(Handle handle, int device) : handle_(std::move(handle)), device_(device) {
    check(cuda_mem_torch_symm_describe(handle_.get(), &info_, nullptr, nullptr));
    buffers_.resize(info_.world_size);
    pads_.resize(info_.world_size);
    check(cuda_mem_torch_symm_describe(handle_.get(), &info_, buffers_.data(), pads_.data()));
    const size_t wanted = c10d::symmetric_memory::get_signal_pad_size();
    TORCH_CHECK(
        wanted <= info_.signal_pad_size, "cuda-mem: signal pads have ", info_.signal_pad_size, " bytes; set_signal_pad_size() asked for ",
        wanted);
    void* buffers = nullptr;
    void* pads = nullptr;
    check(cuda_mem_torch_symm_device_addresses(handle_.get(), &buffers, &pads));
    buffers_on_device_ = static_cast<void**>(buffers);
    pads_on_device_ = static_cast<void**>(pads);
  }

  std::vector<void*> get_buffer_ptrs() override {
    return buffers_;
  }
  std::vector<void*> get_signal_pad_ptrs() override {
    return pads_;
  }
  void** get_buffer_ptrs_dev() override {
    return buffers_on_device_;
  }
  void** get_signal_pad_ptrs_dev() override {
    return pads_on_device_;
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
    check(cuda_mem_torch_symm_barrier(handle_.get(), stream(), at_least_zero(channel, "channel"), timeout_ms));
  }
  /// Signals are counted: nothing is waited for, whatever the timeout.
  void put_signal(int to, int channel, size_t) override {
    check(cuda_mem_torch_symm_put_signal(handle_.get(), stream(), at_least_zero(to, "the rank"), at_least_zero(channel, "channel")));
  }
  void wait_signal(int from, int channel, size_t timeout_ms) override {
    check(cuda_mem_torch_symm_wait_signal(
        handle_.get(), stream(), at_least_zero(from, "the rank"), at_least_zero(channel, "channel"), timeout_ms));
  }

 private:
  void* stream() const {
    return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_)).stream();
  }

  Handle handle_;
  int device_;
  cuda_mem_torch_symm_info info_{};
  std::vector<void*> buffers_;
  std::vector<void*> pads_;
  /// The handle's, which outlive the kernels that read them.
  void** buffers_on_device_ = nullptr;
  void** pads_on_device_ = nullptr;
};

} // namespace cuda_mem
