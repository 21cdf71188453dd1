// PyTorch's list of host allocators, which is in its library of kernels: programs with the shim alone go without that.
#include <ATen/core/CachingHostAllocator.h>

namespace at {

namespace {
HostAllocator* registered = nullptr;
}

void setHostAllocator(DeviceType /*device*/, HostAllocator* allocator, uint8_t /*priority*/) {
  registered = allocator;
}

HostAllocator* getHostAllocator(DeviceType /*device*/) {
  return registered;
}

} // namespace at
