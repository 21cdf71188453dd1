"""Host memory that is pinned where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_mem_torch import _library

if TYPE_CHECKING:
    import torch


def pin_memory(data_ptr: int, size: int) -> None:
    """Pins ``size`` bytes at an address, for all devices. They stay mapped until they are unpinned. As
    ``torch.cuda._pin_memory_utils.pin_memory``."""
    _library.check(_library.load().cuda_mem_torch_pin_memory(_library.number("data_ptr", data_ptr), _library.number("size", size)))


def unpin_memory(data_ptr: int) -> None:
    """Unpins what was pinned at an address, which no device uses any more."""
    _library.check(_library.load().cuda_mem_torch_unpin_memory(_library.number("data_ptr", data_ptr)))


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Pins the memory of a CPU tensor where it is, without a copy: ``is_pinned()`` is true then. Gives the same tensor, to be
    given to :func:`unpin` before its memory goes."""
    _cpu_storage(tensor)
    import torch

    # Before that PyTorch asks nobody, and says that nothing is pinned.
    torch.cuda.init()
    storage = tensor.untyped_storage()
    pin_memory(storage.data_ptr(), storage.nbytes())
    return tensor


def unpin(tensor: torch.Tensor) -> torch.Tensor:
    """Unpins a tensor that :func:`pin` pinned, or a view of it. Copies from it must be done."""
    _cpu_storage(tensor)
    unpin_memory(tensor.untyped_storage().data_ptr())
    return tensor


def _cpu_storage(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise ValueError(f"the tensor is on {tensor.device}; only CPU tensors can be pinned")
    if tensor.untyped_storage().nbytes() == 0:
        raise ValueError("the tensor has no memory, so there is nothing to pin")
