"""Putting the allocator into PyTorch, and taking it out."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Mapping

from cuda_mem_torch import _library, _recording, _settings, _sharing, _shim, _torch, symmetric
from cuda_mem_torch._errors import CudaMemError

_log = logging.getLogger("cuda_mem_torch")

VARIABLE = "CUDA_MEM_TORCH"
# What it may say, in small letters, beside nothing.
ON, OFF = ("1", "true", "yes", "on", "require"), ("0", "false", "no", "off")
ACCEPTED = "accepted: 1, true, yes or on to enable, require to do so or fail, 0, false, no, off or nothing to leave PyTorch as it is"
_NCCL_HOOK = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"


# What calls of enable() named so far, and the devices' shares of memory before one of them named that.
_options: dict[str, Any] = {}
_fractions: dict[int, float] = {}


@dataclass(frozen=True, repr=False)
class Enabled:
    """The result of :func:`enable`: what allocates, since when, and options and variables as they were read. Its text says so."""

    version: str
    torch: str
    cuda: str
    late: bool
    settings: str

    def __repr__(self) -> str:
        since = "CUDA was in use before, so earlier memory is PyTorch's own" if self.late else "from the first allocation on"
        options = f", {self.settings}" if self.settings else ""
        return f"<cuda_mem_torch {self.version} allocates for PyTorch {self.torch} (CUDA {self.cuda}), {since}{options}>"


def enable(
    *,
    expandable_segments: bool | None = None,
    garbage_collection_threshold: float | None = None,
    graph_capture_record_stream_reuse: bool | None = None,
    large_segment_size_mb: int | None = None,
    max_non_split_rounding_mb: int | None = None,
    max_split_size_mb: int | None = None,
    per_process_memory_fraction: float | None = None,
    pinned: bool | None = None,
    roundup_power2_divisions: int | Mapping[int | str, int] | None = None,
) -> Enabled:
    """Makes PyTorch allocate device memory and pinned host memory with cuda-mem from now on. Returns a description, which can be printed.

    Call it before anything is allocated on a device. Called later it works too: earlier memory stays with PyTorch's own allocator, and
    statistics are the sum of both. It is refused while a graph is captured or ``use_mem_pool`` is active in this thread. No other
    thread may be inside of ``use_mem_pool`` either, which is not checked. Called again, it changes the options that are named.

    The options are those of ``PYTORCH_CUDA_ALLOC_CONF``, and override it. With ``expandable_segments=False`` memory that is allocated
    from then on stays behind its addresses, for programs that register it; :func:`hold_still` does so for single tensors. ``pinned=False``
    leaves pinned host memory to PyTorch's own allocator. Raises ``ValueError`` for a value that is not accepted, ``TypeError`` for
    one of another type, ``UnsupportedTorchError`` for a PyTorch that is not supported, ``CudaMemError`` for all other failures.
    """
    options = _options | {key: value for key, value in locals().items() if value is not None}
    pins = options.get("pinned", True)
    if not isinstance(pins, bool):
        raise TypeError(f"pinned is {pins!r}; accepted: True, False")
    text = _text(options)
    # Before PyTorch is touched: a bad value changes nothing.
    _library.set_settings(text, lambda note: _log.info("%s", note))
    torch = _torch.load()
    was, pinned_was = _shim.state(torch), _shim.has_pinned(torch)
    _shim.install(torch)
    with contextlib.ExitStack() as undo:
        if was == 0:
            undo.callback(_shim.uninstall, torch)
        else:
            undo.callback(_shim.install, torch)
            undo.callback(_library.set_settings, _text(_options), lambda _: None)
        (_shim.install_pinned if pins else _shim.uninstall_pinned)(torch)
        undo.callback(_shim.install_pinned if pinned_was else _shim.uninstall_pinned, torch)
        # What the environment alone says is read when CUDA is used first.
        if options.keys() - {"pinned"}:
            # Each version of PyTorch accepts other settings, and takes over this size before it refuses one.
            usual = f"large_segment_size_mb:{_settings.KEPT['large_segment_size_mb']},{_text(_options)}"
            undo.callback(torch._C._accelerator_setAllocatorSettings, usual)
            torch._C._accelerator_setAllocatorSettings(text)
        undo.pop_all()
    if per_process_memory_fraction is not None and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            if "per_process_memory_fraction" not in _options:
                _fractions[device] = torch.cuda.get_per_process_memory_fraction(device)
            torch.cuda.set_per_process_memory_fraction(float(per_process_memory_fraction), device)
    _options.update(options)
    symmetric.offer(torch)
    _recording.follow(torch)
    _sharing.give_back_refused(torch)
    state = _shim.state(torch)
    if was == 0 and state == 2:
        _announce_lost()
    return Enabled(_library.version(), torch.__version__, torch.version.cuda, state == 2, text)


def _text(options: Mapping[str, object]) -> str:
    """PyTorch's settings, with these in the place of the environment's. Last come those that it keeps: it stops at a value that it refuses."""
    named = {key: options[key] for key in sorted(options, key=_settings.KEPT.__contains__) if key != "pinned"}
    return _settings.merge(_settings.from_environment(), named)


def _announce_lost() -> None:
    """Warns of earlier listeners of the native allocator: they do not hear of this one."""
    _log.info(
        "CUDA was in use before enable(): earlier memory stays with PyTorch's own allocator until it is freed, out-of-memory "
        "observers that were attached before hear of that one only, and PyTorch cannot take earlier tensors of CUDA graph trees "
        "(torch.compile with mode='reduce-overhead') from their storages: delete those before the next run"
    )
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        warnings.warn(
            "cuda_mem_torch was enabled after torch.distributed was initialised: NCCL's registration of segments "
            "(TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK) and out-of-memory observers that were attached before hear of "
            "earlier memory only. Call enable() before init_process_group()",
            stacklevel=3,
        )
    if os.environ.get(_NCCL_HOOK, "0").lower() in ("1", "true", "yes", "y", "on"):
        warnings.warn(
            f"{_NCCL_HOOK} is set, and cuda_mem_torch was enabled after CUDA was used: NCCL registers memory that may move. Call "
            "enable() before anything is on a device, which keeps NCCL from it, or enable(expandable_segments=False)",
            stacklevel=3,
        )


def disable() -> None:
    """Makes PyTorch use its own allocator again, with the options of the environment. Raises ``CudaMemError`` while a tensor, a ``MemPool`` or a
    CUDA graph of this allocator lives. Does nothing if it is not enabled."""
    if not is_enabled():
        return
    torch = _torch.load()
    environment, fraction = _settings.from_environment(), _options.get("per_process_memory_fraction")
    default = float(_settings.named(environment, "per_process_memory_fraction") or _settings.KEPT["per_process_memory_fraction"])
    devices = range(torch.cuda.device_count() if fraction is not None and torch.cuda.is_initialized() else 0)
    # Other devices have a share that the program has set since.
    limited = [device for device in devices if torch.cuda.get_per_process_memory_fraction(device) == float(fraction)]
    pins = _shim.has_pinned(torch)
    _shim.uninstall_pinned(torch)
    try:
        _shim.uninstall(torch)
    except CudaMemError:
        if pins:
            _shim.install_pinned(torch)
        raise
    if _options.keys() - {"pinned"}:
        kept = {key: value for key, value in _settings.KEPT.items() if key in _options}
        for text in (_settings.merge("", kept), environment):
            torch._C._accelerator_setAllocatorSettings(text)
    for device in limited:
        torch.cuda.set_per_process_memory_fraction(_fractions.get(device, default), device)
    _options.clear()
    _fractions.clear()
    _recording.follow(torch)


def is_enabled() -> bool:
    """Whether PyTorch allocates with cuda-mem."""
    torch = sys.modules.get("torch")
    return torch is not None and _shim.load.cache_info().currsize > 0 and _shim.state(torch) != 0


def _autoload() -> None:
    """What PyTorch calls when it is imported: enables if the variable says so. Anything that keeps it from that is a warning, and the
    program goes on with PyTorch's own allocator, unless the variable insists."""
    asked = os.environ.get(VARIABLE, "").strip().lower()
    torch = sys.modules["torch"]
    if asked in OFF:
        return
    if asked == "":
        # It may be sent tensors by a process where it is enabled.
        if torch.version.cuda is not None:
            _sharing.give_back_refused(torch)
        return
    try:
        _enable_at_import(torch, asked)
    except Exception as error:
        if asked == "require":
            raise
        warnings.warn(f"{VARIABLE}={asked} does nothing: {error}", stacklevel=2)


def _enable_at_import(torch: ModuleType, asked: str) -> None:
    if asked not in ON:
        raise CudaMemError(ACCEPTED)
    # Nothing asks for a GPU here: that may initialise CUDA, after which the program could not fork any more.
    _torch.expect_cuda(torch)
    # Another allocator that the settings name goes before this variable.
    backend = _settings.named(_settings.from_environment(), "backend")
    if backend not in (None, "native"):
        raise CudaMemError(f"PyTorch's settings ask for backend:{backend}; remove that from {_settings.variable()}")
    enable()
