"""Device memory that stays behind its addresses."""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Iterator

from cuda_mem_torch import _library

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def hold_still(*tensors: torch.Tensor) -> Iterator[None]:
    """Within ``with hold_still(*tensors):`` the memory of these CUDA tensors stays behind its addresses, for libraries that register it by
    address: RDMA, UCX, GPUDirect storage, NCCL windows. It does so too when a tensor is freed within. Afterwards it may move, so the
    registration has to end before. Memory of a tag stays awake when the tag is put to sleep. That of other pools, of PyTorch's own
    allocator, and of tensors that were made while ``expandable_segments`` was off never moves and is nothing here: it stays as long as the
    tensor alone.

    Raises ``TypeError`` for what is no tensor, ``ValueError`` for a tensor that is not on a CUDA device or is made of others (a ``DTensor``:
    name its ``to_local()``), before anything is held."""
    for tensor in tensors:
        _library.expect_tensor(tensor, on_device=True)
    with contextlib.ExitStack() as held:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            held.callback(_let_move, _hold(storage.data_ptr(), storage.nbytes()))
        yield


def _hold(address: int, bytes: int) -> ctypes.c_void_p:
    still = ctypes.c_void_p()
    # A tensor without memory has address 0.
    code = _library.load().cuda_mem_torch_hold_still(address, bytes, ctypes.byref(still)) if address else _library.OK
    # PyTorch's own allocator does not move what it has given out.
    if code != _library.NOT_OURS:
        _library.check(code)
    return still


def _let_move(still: ctypes.c_void_p) -> None:
    _library.check_end(_library.load().cuda_mem_torch_let_move(still))
