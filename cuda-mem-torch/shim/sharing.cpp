// Blocks between processes, in PyTorch's format.
#include "allocator.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstring>

namespace cuda_mem {

namespace {

/// Whether the library opens what another process told of: memory in pieces with a descriptor for each. A handle of `cudaMalloc`
/// memory is the native allocator's, which knows older forms of it too, and so are pieces with handles of a fabric, which are
/// longer.
bool is_in_pieces(const std::string& handle) {
  constexpr char version = 2;
  constexpr size_t kind = 1;
  constexpr size_t count_at = 18;
  constexpr size_t header = 26;
  if (handle.size() <= kind || handle[0] != version) {
    return false;
  }
  if (handle[kind] != 'e') {
    return handle[kind] == 'm';
  }
  if (handle.size() < header) {
    return false;
  }
  uint64_t count = 0;
  std::memcpy(&count, handle.data() + count_at, sizeof count);
  return (handle.size() - header) / sizeof(int) == count && (handle.size() - header) % sizeof(int) == 0;
}

} // namespace

native::ShareableHandle Allocator::shareIpcHandle(void* pointer) {
  size_t length = 0;
  size_t offset = 0;
  const int code = cuda_mem_torch_ipc_share(pointer, nullptr, 0, &length, &offset);
  if (code == CUDA_MEM_TORCH_NOT_OURS && native_.is_late()) {
    return native_->shareIpcHandle(pointer);
  }
  check_block(code, pointer);
  std::string handle(length, '\0');
  auto* bytes = reinterpret_cast<uint8_t*>(handle.data());
  check_block(cuda_mem_torch_ipc_share(pointer, bytes, handle.size(), &length, &offset), pointer);
  return {static_cast<ptrdiff_t>(offset), std::move(handle)};
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle) {
  if (!is_in_pieces(handle)) {
    return native_->getIpcDevPtr(std::move(handle));
  }
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  void* base = nullptr;
  check(
      cuda_mem_torch_ipc_open(device, reinterpret_cast<const uint8_t*>(handle.data()), handle.size(), &base), device);
  return {base, [](void* opened) {
            const int code = cuda_mem_torch_ipc_close(opened);
            if (code != CUDA_MEM_TORCH_OK && code != CUDA_MEM_TORCH_FORKED) {
              TORCH_WARN("cuda-mem: memory of another process stays mapped: ", cuda_mem_torch_last_error());
            }
          }};
}

} // namespace cuda_mem
