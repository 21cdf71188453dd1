"""Gives tensors back that this process cannot open.

A tensor of another process comes with a count of its users there. PyTorch gives the count back when the tensor is freed, and keeps it
if the memory cannot be opened: the sender could never free it.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any


def give_back_refused(torch: ModuleType) -> None:
    """Has ``torch.multiprocessing`` give the count back of a tensor whose import fails."""
    from torch.multiprocessing import reductions

    rebuild = reductions.rebuild_cuda_tensor
    signature = inspect.signature(rebuild)
    # Another library's function (SGLang puts one here) names no arguments; it calls the one that was here before.
    if hasattr(rebuild, "_cuda_mem_torch") or "storage_handle" not in signature.parameters:
        return

    @functools.wraps(rebuild)
    def rebuild_cuda_tensor(*words: Any, **named: Any) -> Any:
        said = signature.bind(*words, **named).arguments
        key = (said["storage_handle"], said["storage_offset_bytes"])
        # Of what is open here already PyTorch gives the count back at once.
        is_counted = bool(key[0] and said["storage_size_bytes"]) and reductions.storage_from_cache(said["storage_cls"], key) is None
        before = reductions.shared_cache.get(key)
        try:
            return rebuild(*words, **named)
        except BaseException:
            # A storage that was made gives it back itself.
            if is_counted and reductions.shared_cache.get(key) is before:
                said["storage_cls"]._release_ipc_counter(
                    said["ref_counter_handle"], said["ref_counter_offset"], device=said["storage_device"]
                )
            raise

    rebuild_cuda_tensor._cuda_mem_torch = True  # type: ignore[attr-defined]
    # Tensors name it by its place in the module, where the receiver looks it up.
    reductions.rebuild_cuda_tensor = rebuild_cuda_tensor
