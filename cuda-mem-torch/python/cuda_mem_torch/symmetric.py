"""Symmetric memory: the same buffer on every rank of a group, each rank with the addresses of all.

    import torch.distributed._symmetric_memory as symm_mem
    cuda_mem_torch.enable()                     # registers the backend
    symm_mem.set_backend("CUDA_MEM")
    tensor = symm_mem.empty(1 << 20, device=device)
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)

The ranks are processes of one host. Memory without a group's name is for all ranks; every rank allocates the same in the same order. What
PyTorch says of its own backend ``CUDA`` holds, except that there is no multicast.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from cuda_mem_torch import _library, _shim, _torch
from cuda_mem_torch._errors import CudaMemError

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("cuda_mem_torch")

BACKEND = "CUDA_MEM"
# The group of all ranks, as init_process_group names it.
EVERYBODY = "0"
_FAILED = 1


def register() -> None:
    """Makes the backend known to PyTorch, for ``symm_mem.set_backend("CUDA_MEM")``. :func:`cuda_mem_torch.enable` does it where it can;
    this says why it could not, and does it without the allocator. Again, it does nothing."""
    _register(_torch.load())


@functools.cache
def _register(torch: ModuleType) -> ctypes.CDLL:
    if not torch.distributed.is_available():
        raise CudaMemError("this PyTorch was built without torch.distributed, of which symmetric memory is a part")
    backend = _shim.loaded(torch, _shim.SYMMETRIC)
    backend.cuda_mem_torch_symmetric_register.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    backend.cuda_mem_torch_symmetric_leave.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    text = ctypes.create_string_buffer(_shim.TEXT)
    if backend.cuda_mem_torch_symmetric_register(text, _shim.TEXT) != 0:
        raise CudaMemError(text.value.decode(errors="replace"))
    return backend


def offer(torch: ModuleType) -> None:
    """As :func:`register`, where nothing has to be compiled for it."""
    if not _shim.SYMMETRIC.prebuilt(_torch.version_of(torch.__version__)).is_file():
        return
    try:
        _register(torch)
    except CudaMemError as error:
        _log.info("the backend %s is not there: %s", BACKEND, error)


def join(name: str, rank: int, world_size: int, directory: str, device: int | None = None, timeout: float = 60.0) -> None:
    """Joins a group for :func:`MemPool` without ``torch.distributed``: returns when all ranks are there. ``directory`` is one for all.
    With the backend it is not needed: the first allocation joins."""
    ordinal, ranks = _torch.device_index(device), (_library.number("rank", rank), _library.number("world_size", world_size))
    if not isinstance(timeout, (int, float)) or not 0 <= timeout < 1 << 32:
        raise ValueError(f"timeout is {timeout!r}; accepted: seconds, from 0 on")
    join = _library.load().cuda_mem_torch_symm_join
    join.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_uint64]
    _library.check(join(ordinal, _library.word("the name", name), *ranks, _library.word("the directory", os.fspath(directory)), int(timeout * 1000)))


def leave(name: str = EVERYBODY) -> None:
    """Leaves a group that :func:`join` or the backend has joined; every rank does. Nothing is allocated for it any more, and it ends with
    its last tensor. PyTorch's own pool of symmetric memory lets go of what it keeps, if the backend had joined the group.

    After ``dist.destroy_process_group()``: a process group that is made anew is another group, also under the same name."""
    torch, word = _torch.load(), _library.word("the name", name)
    if _register.cache_info().currsize:
        text = ctypes.create_string_buffer(_shim.TEXT)
        code = _register(torch).cuda_mem_torch_symmetric_leave(word, text, _shim.TEXT)
        if code == _FAILED:
            raise CudaMemError(text.value.decode(errors="replace"))
        if code == _library.OK:
            # What they keep may be of this group.
            getattr(sys.modules.get("torch.distributed._symmetric_memory"), "_symm_mem_pools", {}).clear()
            return
    leave = _library.load().cuda_mem_torch_symm_leave
    leave.argtypes = [ctypes.c_char_p]
    _library.check_end(leave(word))


@functools.cache
def allocator() -> torch.cuda.memory.CUDAPluggableAllocator:
    """Symmetric memory as a ``CUDAPluggableAllocator``, for ``torch.cuda.MemPool``: of the group that was joined first with the device."""
    torch = _torch.load()
    _library.load()
    return torch.cuda.memory.CUDAPluggableAllocator(str(_library.PATH), "cuda_mem_torch_symm_alloc", "cuda_mem_torch_symm_free")


def MemPool() -> torch.cuda.MemPool:
    """A ``torch.cuda.MemPool`` of symmetric memory. Its segments are not split, so that each tensor has a signal pad of its own, and it
    lends nothing to others, so that all ranks allocate alike."""
    return _torch.load().cuda.MemPool(allocator().allocator(), use_on_oom=False, no_split=True)
