// Memory of the host that runs out where a test wants it: preloaded, it has one `operator new` of the backend's own code fail.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <new>

static thread_local long left = -1;

/// The allocation fails that comes after so many others of this thread; a negative number lets all succeed.
extern "C" void fail_allocation(long after) {
  left = after;
}

/// How many more would have to come.
extern "C" long allocations_left() {
  return left;
}

static bool is_of_the_backend(void* caller) {
  Dl_info found;
  return dladdr(caller, &found) != 0 && std::strstr(found.dli_fname, "cuda_mem_torch_symmetric") != nullptr;
}

void* operator new(size_t bytes) {
  if (left >= 0 && is_of_the_backend(__builtin_return_address(0)) && left-- == 0) {
    throw std::bad_alloc();
  }
  void* made = std::malloc(bytes == 0 ? 1 : bytes);
  if (made == nullptr) {
    throw std::bad_alloc();
  }
  return made;
}
