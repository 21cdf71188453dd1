"""As much of PyTorch as the child of `compare` asks for: an allocator that counts, of a device of 1 GiB."""

import types

from torch import cuda, optim

__version__ = "2.11.0+played"
version = types.SimpleNamespace(cuda="13.0")
OutOfMemoryError = cuda.OutOfMemoryError
_C = types.SimpleNamespace(
    _cuda_resetPeakMemoryStats=cuda.memory.reset_peak, _cuda_isHistoryEnabled=lambda: False, _accelerator_resetPeakStats=cuda.memory.reset_peak
)


def empty(size):
    """Memory of as many bytes, until nobody has it."""
    cuda.init()
    return cuda.memory.Block(size)
