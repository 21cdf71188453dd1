"""Others' names for sleep and wake, installed by name. Nothing is imported before that."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import sys
import types
from typing import TYPE_CHECKING, Any, Callable, Iterator

from cuda_mem_torch import _sleep, _torch
from cuda_mem_torch._errors import CudaMemError

if TYPE_CHECKING:
    import torch


def torch_memory_saver() -> None:
    """Has ``torch_memory_saver.torch_memory_saver`` work on tags of this allocator, which must be enabled: its ``region``, ``cuda_graph``,
    ``disable``, ``pause``, ``resume``, ``get_cpu_backup``, ``retain_cpu_backup`` and ``memory_margin_bytes``, as release 0.0.10 has them. Before
    its first use. Backups on disk raise."""
    from torch_memory_saver import torch_memory_saver as facade

    _sleep._load()
    if facade._impl is not None and not isinstance(facade._impl, _MemorySaver):
        raise CudaMemError("torch_memory_saver was used already: install the adapter before its first region")
    facade._impl = facade._impl or _MemorySaver()


class _MemorySaver:
    """What the facade of torch_memory_saver calls. What has a backup and what has none are tags of their own."""

    def __init__(self) -> None:
        self._is_xpu = False
        # By its name there, whether it has a backup, and the device.
        self._tags: dict[tuple[str, bool, int], _sleep.Tag] = {}
        # The first tag of a pool that was passed, by the device and the pool's handle.
        self._pools: dict[tuple[Any, ...], _sleep.Tag] = {}
        self._retains = os.environ.get("TMS_RETAIN_CPU_BACKUP", "").lower() in ("1", "true", "yes")
        self._binary_wrapper = types.SimpleNamespace(
            cdll=types.SimpleNamespace(
                set_memory_margin_bytes=self._set_margin, tms_get_retain_cpu_backup=lambda: self._retains,
                tms_set_retain_cpu_backup=self._set_retains, tms_set_disk_backup_dir=lambda _path: _refuse_disk(True),
            )
        )

    def _tag(self, name: str, has_backup: bool) -> _sleep.Tag:
        key = (name, has_backup, _torch.device_index(None))
        if key not in self._tags:
            text = f"{name} with backup" if has_backup else name
            # A name there may be what another one is called here.
            while any(found.name == text and other != [name, has_backup] for (*other, _), found in self._tags.items()):
                text += " again"
            self._tags[key] = _sleep.Tag(text)
        return self._tags[key]

    @contextlib.contextmanager
    def region(
        self, tag: str, enable_cpu_backup: bool, enable_disk_backup: bool = False, cpu_backup_backend: str | None = None
    ) -> Iterator[None]:
        _refuse_disk(enable_disk_backup)
        with self._tag(tag, enable_cpu_backup):
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self, cuda_graph: Any, pool: Any, stream: Any, capture_error_mode: str, tag: str, enable_cpu_backup: bool,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        torch, found = _torch.load(), self._tag(tag, enable_cpu_backup)
        if pool is None:
            pool = torch.cuda.graph_pool_handle()
        else:
            found = self._pools.setdefault((found.device, *getattr(pool, "id", pool)), found)
        # Each time: the pool ends with the last of its graphs.
        found.add(pool)
        with torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode):
            yield

    @contextlib.contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:
        torch = _torch.load()
        # The pool that was begun last has what is allocated.
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            yield

    def _chosen(self, tag: str | None) -> dict[int, list[tuple[bool, _sleep.Tag]]]:
        """Those of that name, or all, by device."""
        chosen: dict[int, list[tuple[bool, _sleep.Tag]]] = {}
        for (name, has_backup, device), found in self._tags.items():
            if tag in (None, name):
                chosen.setdefault(device, []).append((has_backup, found))
        return chosen

    def pause(self, tag: str | None) -> None:
        for device, tags in self._chosen(tag).items():
            for has_backup in (True, False):
                if names := [found.name for backed, found in tags if backed == has_backup]:
                    _sleep.sleep(names, "pinned" if has_backup else "discard", device)

    def resume(self, tag: str | None) -> None:
        for device, tags in self._chosen(tag).items():
            _sleep.wake([found.name for _, found in tags], True, device)
            if not self._retains:
                for has_backup, found in tags:
                    if has_backup:
                        found.release_backup()

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor | None:
        """A copy in any case. None of what is awake."""
        torch = _torch.load()
        try:
            data = bytearray(_sleep.read_backup(x))
        except CudaMemError:
            return None
        return torch.frombuffer(data, dtype=torch.uint8).view(x.dtype).view(x.shape)

    def _set_margin(self, bytes: int) -> None:
        total = _torch.load().cuda.get_device_properties(_torch.device_index(None)).total_memory
        _sleep.set_limit(max(total - bytes, 0))

    def _set_retains(self, value: bool) -> None:
        self._retains = bool(value)


def _refuse_disk(wanted: bool) -> None:
    if wanted:
        raise CudaMemError("backups on disk are not here: use enable_cpu_backup=True")


def vllm() -> None:
    """Has sleep mode of vLLM 0.33 work on tags of this allocator, which must be enabled, under either of its backends: its own, ``"cumem"``,
    and ``"cuda_mem"``, which is registered. In each process with a worker, before it loads a model; ``VLLM_PLUGINS=cuda_mem`` calls it in all."""
    _sleep._load()
    from vllm import device_allocator
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

    theirs = device_allocator.get_mem_allocator_instance
    if theirs is _vllm_allocator:
        return
    cumem = sys.modules.get("vllm.device_allocator.cumem")
    if cumem is not None and cumem.CuMemAllocator.instance is not None:
        raise CudaMemError("vLLM's own allocator for sleep mode was used already: install the adapter before a model is loaded")
    SleepModeBackendFactory.register_backend("cuda_mem", "cuda_mem_torch._vllm", "CudaMemBackend")
    # Whoever imported the name has it.
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and vars(module).get("get_mem_allocator_instance") is theirs:
            setattr(module, "get_mem_allocator_instance", _vllm_allocator)


def _vllm_plugin() -> None:
    """What vLLM calls in each of its processes, of every plugin unless some are named. This one is installed by name."""
    if "cuda_mem" in os.environ.get("VLLM_PLUGINS", "").split(","):
        vllm()


class _VllmAllocator:
    """vLLM's ``MemAllocator``, and what its ``CuMemAllocator`` has beside that. Its tags are those of this allocator."""

    def __init__(self) -> None:
        self._tags: dict[tuple[str, int], _sleep.Tag] = {}
        self._graphs: dict[int, torch.cuda.MemPool] = {}

    def _tag(self, name: str) -> _sleep.Tag:
        key = (name, _torch.device_index(None))
        return self._tags.setdefault(key, _sleep.Tag(*key))

    def _names(self, chosen: Callable[[str], bool]) -> dict[int, list[str]]:
        """The tags that were used and are chosen, by device."""
        names: dict[int, list[str]] = {}
        for name, device in self._tags:
            if chosen(name):
                names.setdefault(device, []).append(name)
        return names

    def _states(self) -> Iterator[_sleep.TagState]:
        for device, names in self._names(lambda _name: True).items():
            states = _sleep.state(device)
            yield from (states[name] for name in names if name in states)

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        with self._tag("default" if tag is None else tag):
            yield
        # What loading took and gave back is for untagged memory again.
        _torch.load().cuda.empty_cache()

    @contextlib.contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        device = _torch.device_index(None)
        if device not in self._graphs:
            pool = _torch.load().cuda.MemPool()
            self._tag("cudagraph").add(pool)
            self._graphs[device] = pool
        yield self._graphs[device].id

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """These tags get a backup, all others none. What sleeps already keeps what it has."""
        backed = ("default",) if offload_tags is None else _tuple(offload_tags)
        self._put_to_sleep("pinned", lambda name: name in backed)
        self._put_to_sleep("discard", lambda name: name not in backed)
        gc.collect()
        # Memory without a tag that is free goes too.
        _torch.load().cuda.empty_cache()

    def discard(self, tags: tuple[str, ...] | str) -> None:
        discarded = _tuple(tags)
        self._put_to_sleep("discard", lambda name: name in discarded)

    def _put_to_sleep(self, backup: str, chosen: Callable[[str], bool]) -> None:
        for device, names in self._names(chosen).items():
            slept = _sleep.sleep(names, backup, device)
            # Below vLLM's own logger, so that it is shown where its lines are.
            logging.getLogger("vllm.cuda_mem").info("cuda:%d, tags %s, backup %s: %s", device, ", ".join(names), backup, slept)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """These, and those that vLLM never leaves asleep; all of them, or none of a device."""
        from vllm.device_allocator import DEFERRABLE_TAGS

        for device, names in self._names(lambda name: tags is None or name in tags or name not in DEFERRABLE_TAGS).items():
            _sleep.wake(names, True, device)

    def get_current_usage(self) -> int:
        """Bytes of all its tags, awake or asleep, when what nobody uses has gone: vLLM asks whether another instance is there."""
        # One use is the pool's own.
        self._graphs = {device: pool for device, pool in self._graphs.items() if pool.use_count() > 1}
        _torch.load().cuda.empty_cache()
        return sum(state.awake + state.asleep for state in self._states())

    def is_asleep(self) -> bool:
        return any(state.is_asleep for state in self._states())


@functools.cache
def _vllm_allocator() -> _VllmAllocator:
    """Takes the place of vLLM's ``get_mem_allocator_instance``."""
    return _VllmAllocator()


def _tuple(tags: tuple[str, ...] | str) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)
