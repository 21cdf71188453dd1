// What each version of PyTorch has. The only place where versions are told apart.
#pragma once

#include <torch/headeronly/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11 || TORCH_VERSION_MINOR > 15
#error "the shim is for PyTorch 2.11 to 2.15"
#endif

// name                              first version  what it is
// CUDA_MEM_HAS_OOM_REJECTION        2.12           attachOomRejectionObserver, throw_on_cudamalloc_oom, DeviceStats::num_oom_rejections
// CUDA_MEM_HAS_CONTEXT_FOR_POINTER  2.12           getContextForPointer
// handle_version                    2.13           the version of handles for other processes
// CUDA_MEM_HAS_STATS_OF_POOLS       2.13           DeviceStats::reserved_bytes_by_private_pools
// says_forced_off                   2.13           isEnabled is false where the environment has turned caching off
// CUDA_MEM_HAS_EXACT_ADDRESSES      2.13           allocateWithAddress
// CUDA_MEM_HAS_CAPTURE_MARKS        2.13           markCaptureBegin, markCaptureEnd
// CUDA_MEM_HAS_HOST_LIMITS          2.13           pinned_max_cached_size, pinned_max_round_threshold
// CUDA_MEM_HAS_HOST_HISTORY         2.14           of HostAllocator: record_history, is_history_enabled, get_segments, get_traces,
//                                                  record_external_register, record_external_unregister
// CUDA_MEM_HAS_ANNOTATIONS          2.14           supportsUserMetadata, annotateMemory, TraceEntry::ANNOTATE
#define CUDA_MEM_HAS_OOM_REJECTION (TORCH_VERSION_MINOR >= 12)
#define CUDA_MEM_HAS_CONTEXT_FOR_POINTER (TORCH_VERSION_MINOR >= 12)
#define CUDA_MEM_HAS_STATS_OF_POOLS (TORCH_VERSION_MINOR >= 13)
#define CUDA_MEM_HAS_EXACT_ADDRESSES (TORCH_VERSION_MINOR >= 13)
#define CUDA_MEM_HAS_CAPTURE_MARKS (TORCH_VERSION_MINOR >= 13)
#define CUDA_MEM_HAS_HOST_LIMITS (TORCH_VERSION_MINOR >= 13)
#define CUDA_MEM_HAS_ANNOTATIONS (TORCH_VERSION_MINOR >= 14)
#define CUDA_MEM_HAS_HOST_HISTORY (TORCH_VERSION_MINOR >= 14)

namespace cuda_mem {

/// The version of the handles that PyTorch's own allocator makes and opens for other processes.
constexpr unsigned char handle_version = TORCH_VERSION_MINOR >= 13 ? 3 : 2;
constexpr bool says_forced_off = TORCH_VERSION_MINOR >= 13;

} // namespace cuda_mem
