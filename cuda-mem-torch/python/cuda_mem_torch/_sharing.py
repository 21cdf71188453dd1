"""Tensors for processes on PyTorch's own allocator, by ``torch.multiprocessing``.

PyTorch's format for mapped memory has one size for all pieces. Where the pieces of a block differ in size, the library writes a kind
of its own, which PyTorch's allocator does not open. Such a tensor goes out with :class:`PieceStorage` in place of PyTorch's class of
storages, so that this package opens the memory, in whatever process, enabled or not. All else is as PyTorch does it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable

from cuda_mem_torch import _library

if TYPE_CHECKING:
    import torch

_IN_PIECES = b"\x02m"
# Of what `rebuild_cuda_tensor` takes.
_STORAGE_CLASS, _HANDLE = 4, 7

# Streams that PyTorch has of each priority.
_STREAMS = 32

# What nobody has any more and could not be closed because a stream captures; each says whether it is closed now.
_leaving: list[Callable[[], bool]] = []


def offer(torch: ModuleType) -> None:
    """Has tensors go out so that they can be opened."""
    from multiprocessing import reduction

    from torch.multiprocessing import reductions

    reduce = reductions.reduce_tensor
    if hasattr(reduce, "_cuda_mem_torch"):
        return

    @functools.wraps(reduce)
    def reduce_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
        rebuild, words = reduce(tensor)
        if rebuild is not reductions.rebuild_cuda_tensor or not (words[_HANDLE] or b"").startswith(_IN_PIECES):
            return rebuild, words
        return rebuild, (*words[:_STORAGE_CLASS], PieceStorage, *words[_STORAGE_CLASS + 1 :])

    reduce_tensor._cuda_mem_torch = True  # type: ignore[attr-defined]
    # The parts of nested and sparse tensors are reduced by this name, whole tensors by their types.
    reductions.reduce_tensor = reduce_tensor
    for kind in (*torch._tensor_classes, torch.Tensor, torch.nn.Parameter):
        reduction.register(kind, reduce_tensor)


class PieceStorage:
    """What ``rebuild_cuda_tensor`` asks of a class of storages, for memory in pieces of several sizes."""

    @staticmethod
    def _new_shared_cuda(
        device: int,
        handle: bytes,
        size: int,
        offset: int,
        counter: bytes,
        counter_offset: int,
        event: bytes,
        is_event_needed: bool,
    ) -> torch.UntypedStorage:
        import torch

        from cuda_mem_torch import _install

        if _install.is_enabled():
            return torch.UntypedStorage._new_shared_cuda(
                device, handle, size, offset, counter, counter_offset, event, is_event_needed
            )
        with torch.cuda.device(device):
            if is_event_needed:
                torch.cuda.Event.from_ipc_handle(torch.device("cuda", device), event).wait()
            memory = _Memory(device, handle, size, offset, counter, counter_offset)
            # Its storage keeps `memory`.
            return torch.as_tensor(memory, device=torch.device("cuda", device)).untyped_storage()

    @staticmethod
    def _new_with_weak_ptr(*words: Any) -> torch.UntypedStorage | None:
        import torch

        return torch.UntypedStorage._new_with_weak_ptr(*words)

    @staticmethod
    def _release_ipc_counter(*words: Any, device: Any = None) -> None:
        import torch

        torch.UntypedStorage._release_ipc_counter_cuda(*words)


class _Memory:
    """A use of another process's memory. It ends when the work that was given to the device is done; then the other process, which
    counts the uses, may free the memory."""

    def __init__(self, device: int, handle: bytes, size: int, offset: int, counter: bytes, counter_offset: int) -> None:
        import torch

        library = _library.load()
        _see_streams(torch, device)
        _close_leaving()
        base = ctypes.c_void_p()
        _library.check(library.cuda_mem_torch_ipc_open(device, handle, len(handle), ctypes.byref(base)))
        assert base.value is not None
        # All that the end takes: it may be the interpreter's end too, when nothing can be imported any more.
        release = functools.partial(torch.UntypedStorage._release_ipc_counter_cuda, counter, counter_offset)
        captures = torch._C._cuda_isCurrentStreamCapturing
        self._close = functools.partial(_close, library, device, base.value, captures, release)
        self._process = os.getpid()
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (base.value + offset, False),
            "strides": None,
            "version": 3,
        }

    def __del__(self) -> None:
        # Of a forked child it is the parent's.
        if getattr(self, "_process", None) == os.getpid():
            _leaving.append(self._close)
            _close_leaving()


@functools.cache
def _see_streams(torch: ModuleType, device: int) -> None:
    """Shows the library PyTorch's streams, so that it knows when one of them captures, whichever thread has it do so. They are few and
    live for ever, and handing each out once leaves the turn where it was."""
    see, (least, greatest) = _library.load().cuda_mem_torch_see_stream, torch.cuda.Stream.priority_range()
    see(device, torch.cuda.current_stream(device).cuda_stream)
    for priority in range(least, greatest - 1, -1):
        for _ in range(_STREAMS):
            see(device, torch.cuda.Stream(device, priority).cuda_stream)


def _close_leaving() -> None:
    for _ in range(len(_leaving)):
        try:
            close = _leaving.pop()
        except IndexError:  # Another thread was faster.
            return
        if not close():
            _leaving.insert(0, close)


def _close(
    library: ctypes.CDLL, device: int, address: int, captures: Callable[[], bool], release: Callable[[], None]
) -> bool:
    # The wait would end a capture, and the other process may use the memory behind it alone.
    if captures() or library.cuda_mem_torch_synchronize(device) == _library.CAPTURING:
        return False
    if library.cuda_mem_torch_ipc_close(address) not in (_library.OK, _library.FORKED):
        warnings.warn(f"memory of another process stays mapped: {_library.last_error()}", stacklevel=2)
    release()
    return True
