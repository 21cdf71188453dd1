"""PyTorch on cuda-mem's allocator.

    import cuda_mem_torch
    cuda_mem_torch.enable()

or, without touching the script, ``CUDA_MEM_TORCH=1 python train.py``. Everything that PyTorch offers for its own allocator works
as before: statistics, snapshots, history, graphs, pools, IPC, ``record_stream``, ``OutOfMemoryError``.
"""

from cuda_mem_torch import symmetric
from cuda_mem_torch._errors import CudaMemError, UnsupportedTorchError
from cuda_mem_torch._install import Enabled, disable, enable, is_enabled
from cuda_mem_torch._pinning import pin, pin_memory, pinned, unpin, unpin_memory
from cuda_mem_torch._pools import MemPool, plain_allocator
from cuda_mem_torch._seeing import report, snapshot, stats
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
    "disable",
    "enable",
    "forget_stream",
    "hold_still",
    "is_enabled",
    "pin",
    "pin_memory",
    "pinned",
    "plain_allocator",
    "report",
    "snapshot",
    "stats",
    "symmetric",
    "unpin",
    "unpin_memory",
]
