"""PyTorch on cuda-mem's allocator.

    import cuda_mem_torch
    cuda_mem_torch.enable()

or, without touching the script, ``CUDA_MEM_TORCH=1 python train.py``. Everything that PyTorch offers for its own allocator works
as before: statistics, snapshots, history, graphs, pools, IPC, ``record_stream``, ``OutOfMemoryError``.
"""

from cuda_mem_torch import adapters, symmetric
from cuda_mem_torch._errors import CudaMemError, UnsupportedTorchError
from cuda_mem_torch._install import Enabled, disable, enable, is_enabled
from cuda_mem_torch._pinning import pin, pin_memory, pinned, unpin, unpin_memory
from cuda_mem_torch._pools import MemPool, plain_allocator
from cuda_mem_torch._recording import on_oom, record
from cuda_mem_torch._seeing import report, snapshot, stats
from cuda_mem_torch._sleep import checking, keep, on_backing_change, read_backup, set_limit, sleep, state, tag, wake
from cuda_mem_torch._stats import Stats, StreamStats
from cuda_mem_torch._still import hold_still
from cuda_mem_torch._streams import forget_stream

__version__ = "0.1.0"

__all__ = [
    "CudaMemError",
    "Enabled",
    "MemPool",
    "Stats",
    "StreamStats",
    "UnsupportedTorchError",
    "checking",
    "disable",
    "enable",
    "forget_stream",
    "hold_still",
    "is_enabled",
    "keep",
    "on_backing_change",
    "on_oom",
    "pin",
    "pin_memory",
    "pinned",
    "plain_allocator",
    "read_backup",
    "record",
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
