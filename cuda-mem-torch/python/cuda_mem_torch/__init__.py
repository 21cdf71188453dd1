"""PyTorch on cuda-mem's allocator.

    import cuda_mem_torch
    cuda_mem_torch.enable()

or, without touching the script, ``CUDA_MEM_TORCH=1 python train.py``. Everything that PyTorch offers for its own allocator works
as before: statistics, snapshots, history, graphs, pools, IPC, ``record_stream``, ``OutOfMemoryError``.
"""

from cuda_mem_torch import symmetric
from cuda_mem_torch._errors import CudaMemError, UnsupportedTorchError
from cuda_mem_torch._install import disable, enable, is_enabled
from cuda_mem_torch._pinning import pin, pin_memory, unpin, unpin_memory
from cuda_mem_torch._pools import MemPool, plain_allocator
from cuda_mem_torch._seeing import report, snapshot, stats
from cuda_mem_torch._sleep import checking, keep, on_backing_change, read_backup, set_limit, sleep, state, tag, wake
from cuda_mem_torch._streams import forget_stream

__version__ = "0.1.0"

__all__ = [
    "CudaMemError",
    "MemPool",
    "UnsupportedTorchError",
    "checking",
    "disable",
    "enable",
    "forget_stream",
    "is_enabled",
    "keep",
    "on_backing_change",
    "pin",
    "pin_memory",
    "plain_allocator",
    "read_backup",
    "report",
    "set_limit",
    "sleep",
    "snapshot",
    "state",
    "stats",
    "symmetric",
    "tag",
    "unpin",
    "unpin_memory",
    "wake",
]
