"""What there is, and what happened."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

from cuda_mem_torch import _drawing, _install, _stats, _torch
from cuda_mem_torch._errors import CudaMemError

if TYPE_CHECKING:
    import torch


def _enabled(what: str) -> Any:
    if not _install.is_enabled():
        raise CudaMemError(f"{what} tells of this allocator, which is not enabled: call cuda_mem_torch.enable() first")
    return _torch.load()


def stats(device: torch.device | int | str | None = None) -> _stats.Stats:
    """``torch.cuda.memory_stats()`` of a device, with what each stream and pool holds; prints itself as a table."""
    torch = _enabled("stats()")
    index = _torch.device_index(device)
    return _stats.Stats(index, torch.cuda.memory_stats(index), torch.cuda.memory_snapshot(include_traces=False))


def snapshot(path: str | os.PathLike[str]) -> None:
    """Writes what there is, and the history if it is recorded, for https://pytorch.org/memory_viz and
    ``python -m torch.cuda._memory_viz``."""
    _enabled("snapshot()").cuda.memory._dump_snapshot(os.fspath(path))


def report(path: str | os.PathLike[str], device: torch.device | int | str | None = None) -> _drawing.Page:
    """Writes an HTML page of a device's memory, the first that has any unless one is named: what there is now, and memory over
    time, addresses and who allocated them as far as the history is recorded (``torch.cuda.memory._record_memory_history()``).
    It needs nothing else: no network, no other file. A notebook shows what this gives."""
    page = _drawing.Page(path)
    torch = _enabled("report()")
    index = None if device is None else _torch.device_index(device)
    recording = _drawing.Recording(pickle.dumps(torch.cuda.memory._snapshot()), f"process {os.getpid()}")
    _drawing.draw([recording], page=page, device=index)
    return page
