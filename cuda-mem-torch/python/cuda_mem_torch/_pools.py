"""Pools of memory, with and without the allocator being enabled."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from cuda_mem_torch import _install, _library, _torch

if TYPE_CHECKING:
    import torch

_HOOKS = {
    "set_reset_fn": "cuda_mem_torch_plain_reset",
    "set_memory_fraction_fn": "cuda_mem_torch_plain_memory_fraction",
    "set_base_alloc_fn": "cuda_mem_torch_plain_base_alloc",
    "set_record_stream_fn": "cuda_mem_torch_plain_record_stream",
}


@functools.cache
def plain_allocator() -> torch.cuda.memory.CUDAPluggableAllocator:
    """The library as a plain ``CUDAPluggableAllocator``, with its hooks set. For pools beside PyTorch's own allocator; a program
    that wants all of it calls :func:`enable`."""
    torch = _torch.load()
    _library.load()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        str(_library.PATH), "cuda_mem_torch_alloc", "cuda_mem_torch_free"
    )
    for setter, function in _HOOKS.items():
        getattr(allocator.allocator(), setter)(_library.address_of(function))
    return allocator


class _Kind(type):
    """Has ``isinstance(pool, MemPool)`` be true of every pool of PyTorch's, as which they are made."""

    def __instancecheck__(cls, value: object) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(value, torch.cuda.MemPool)


class MemPool(metaclass=_Kind):
    """A ``torch.cuda.MemPool`` for ``torch.cuda.use_mem_pool``, whose memory comes from here: as one of the installed
    allocator's private pools, or through :func:`plain_allocator` where that is PyTorch's own."""

    def __new__(cls, *, use_on_oom: bool = False, no_split: bool = False) -> torch.cuda.MemPool:  # type: ignore[misc]
        torch = _torch.load()
        if _install.is_enabled():
            return torch.cuda.MemPool(use_on_oom=use_on_oom, no_split=no_split)
        return torch.cuda.MemPool(plain_allocator().allocator(), use_on_oom=use_on_oom, no_split=no_split)
