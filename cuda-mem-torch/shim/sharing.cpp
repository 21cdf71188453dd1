// Blocks between processes, in PyTorch's format.
#include "allocator.hpp"

namespace cuda_mem {

native::ShareableHandle Allocator::shareIpcHandle(void* pointer) {
  size_t length = 0;
  size_t offset = 0;
  const int code = cuda_mem_torch_ipc_share(pointer, handle_version, nullptr, 0, &length, &offset);
  if (code == CUDA_MEM_TORCH_NOT_OURS && native_.is_late()) {
    return native_->shareIpcHandle(pointer);
  }
  check_block(code, pointer);
  std::string handle(length, '\0');
  auto* bytes = reinterpret_cast<uint8_t*>(handle.data());
  check_block(cuda_mem_torch_ipc_share(pointer, handle_version, bytes, handle.size(), &length, &offset), pointer);
  return {static_cast<ptrdiff_t>(offset), std::move(handle)};
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle) {
  const DeviceIndex device = current_device();
  void* base = nullptr;
  const auto* bytes = reinterpret_cast<const uint8_t*>(handle.data());
  const int code = cuda_mem_torch_ipc_open(device, bytes, handle.size(), &base);
  // Memory of `cudaMalloc`, handles of a fabric, and what it refuses by its own words.
  if (code == CUDA_MEM_TORCH_NOT_OURS || code == CUDA_MEM_TORCH_UNSUPPORTED) {
    return native_->getIpcDevPtr(std::move(handle));
  }
  check(code, device);
  return {base, [](void* opened) {
            const int code = cuda_mem_torch_ipc_close(opened);
            if (code != CUDA_MEM_TORCH_OK && code != CUDA_MEM_TORCH_FORKED) {
              TORCH_WARN("cuda-mem: memory of another process stays mapped: ", cuda_mem_torch_last_error());
            }
          }};
}

} // namespace cuda_mem
