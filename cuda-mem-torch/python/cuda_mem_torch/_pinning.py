"""Host memory that is pinned where it is."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Iterator

from cuda_mem_torch import _library

if TYPE_CHECKING:
    import torch


def pin_memory(data_ptr: int, size: int) -> None:
    """Pins ``size`` bytes at an address, for all devices. They stay mapped until they are unpinned. As
    ``torch.cuda._pin_memory_utils.pin_memory``."""
    _library.check(_library.load().cuda_mem_torch_pin_memory(_library.number("data_ptr", data_ptr), _library.number("size", size)))


def unpin_memory(data_ptr: int) -> None:
    """Unpins what was pinned at an address, which no device uses any more."""
    _library.check_end(_library.load().cuda_mem_torch_unpin_memory(_library.number("data_ptr", data_ptr)))


# Of each address that :func:`pin` pinned, what unpins it when its memory goes.
_pinned: dict[int, weakref.finalize] = {}


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Pins the memory of a CPU tensor where it is, without a copy: ``is_pinned()`` is true then. Gives the same tensor. It is unpinned by
    :func:`unpin`, or when its memory goes: before that, copies from it must be done. It must not grow meanwhile (``resize_``)."""
    _cpu_storage(tensor)
    import torch

    # Before that PyTorch asks nobody, and says that nothing is pinned.
    torch.cuda.init()
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    pin_memory(address, storage.nbytes())
    forget = weakref.finalize(storage, _unpin_quietly, address)
    # The process's end unpins everything; the driver may be gone by then.
    forget.atexit = False
    _pinned[address] = forget
    return tensor


def unpin(tensor: torch.Tensor) -> torch.Tensor:
    """Unpins a tensor that :func:`pin` pinned, or a view of it. Copies from it must be done."""
    _cpu_storage(tensor)
    address = tensor.untyped_storage().data_ptr()
    unpin_memory(address)
    if address in _pinned:
        _pinned.pop(address).detach()
    return tensor


@contextlib.contextmanager
def pinned(*tensors: torch.Tensor) -> Iterator[None]:
    """Within ``with pinned(*tensors):`` the memory of these CPU tensors is pinned where it is. At the end copies from them must be done."""
    with contextlib.ExitStack() as held:
        for tensor in tensors:
            held.callback(unpin, pin(tensor))
        yield


def _unpin_quietly(address: int) -> None:
    """Before the memory goes: nobody can be told of an error."""
    _pinned.pop(address, None)
    _library.load().cuda_mem_torch_unpin_memory(address)


def _cpu_storage(tensor: torch.Tensor) -> None:
    _library.expect_tensor(tensor)
    if tensor.device.type != "cpu":
        raise ValueError(f"the tensor is on {tensor.device}; only CPU tensors can be pinned")
    if tensor.untyped_storage().nbytes() == 0:
        raise ValueError("the tensor has no memory, so there is nothing to pin")
