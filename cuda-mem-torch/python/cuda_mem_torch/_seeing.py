"""What there is, and what happened."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cuda_mem_torch import _install, _torch
from cuda_mem_torch._errors import CudaMemError

if TYPE_CHECKING:
    import torch


def _enabled(what: str) -> Any:
    if not _install.is_enabled():
        raise CudaMemError(f"{what} tells of this allocator, which is not enabled: call cuda_mem_torch.enable() first")
    return _torch.load()


def stats(device: torch.device | int | str | None = None) -> dict[str, Any]:
    """``torch.cuda.memory_stats()`` of a device."""
    return dict(_enabled("stats()").cuda.memory_stats(device))


def snapshot(path: str | os.PathLike[str]) -> None:
    """Writes what there is, and the history if it is recorded, for https://pytorch.org/memory_viz and
    ``python -m torch.cuda._memory_viz``."""
    _enabled("snapshot()").cuda.memory._dump_snapshot(os.fspath(path))


def report(path: str | os.PathLike[str]) -> None:
    """Writes an HTML page of what there is, and of the history if it is recorded. PyTorch draws it."""
    torch = _enabled("report()")
    from torch.cuda import _memory_viz

    page = _memory_viz.trace_plot(torch.cuda.memory._snapshot())
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)
