"""Statistics, snapshots and the report page."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cuda_mem_torch import _drawing, _install, _stats, _torch
from cuda_mem_torch._errors import CudaMemError

if TYPE_CHECKING:
    import torch


def _enabled(what: str) -> Any:
    if not _install.is_enabled():
        raise CudaMemError(f"{what} describes memory of this allocator, which is not enabled: call cuda_mem_torch.enable() first")
    return _torch.load()


def stats(device: torch.device | int | str | None = None) -> _stats.Stats:
    """``torch.cuda.memory_stats()`` of a device, with what each stream and pool holds. Its text is a table."""
    torch = _enabled("stats()")
    index = _torch.device_index(device)
    return _stats.Stats(index, torch.cuda.memory_stats(index), torch.cuda.memory_snapshot(include_traces=False))


def snapshot(path: str | os.PathLike[str]) -> None:
    """Writes a snapshot of all memory, and the history if it is recorded, for https://pytorch.org/memory_viz and
    ``python -m torch.cuda._memory_viz``."""
    _enabled("snapshot()").cuda.memory._dump_snapshot(os.fspath(path))


def report(path: str | os.PathLike[str], device: torch.device | int | str | None = None) -> _drawing.Page:
    """Writes an HTML page of a device's memory, the one that has most unless one is named: its memory now, and, as far as
    the history is recorded (``torch.cuda.memory._record_memory_history()``), memory over time, addresses and the code that allocated them.
    The page needs no network and no other file. A notebook shows the result."""
    page = _drawing.Page(path)
    torch = _enabled("report()")
    index = None if device is None else _torch.device_index(device)
    _drawing.draw([_drawing.of_process(torch)], page=page, device=index)
    return page
