"""What is here, and whether it fits together: what ``python -m cuda_mem_torch`` prints."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path
from typing import Iterator, NamedTuple

import cuda_mem_torch
from cuda_mem_torch import _install, _library, _settings, _shim, _torch

# What the library needs of the driver, as cuDriverGetVersion counts.
_OLDEST_DRIVER = 12020
_VIRTUAL_MEMORY = 102
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
# Each piece of memory that is shared takes a descriptor.
_DESCRIPTORS = 1024


class Finding(NamedTuple):
    """One line of the diagnosis: ``ok``, ``note`` where something is restricted, ``error`` where ``enable()`` or the variable cannot work."""

    state: str
    about: str
    text: str


def diagnose() -> int:
    """Prints what was found, and what keeps ``enable()`` or the variable from working. Gives 0 if nothing does, 1 if not."""
    errors = 0
    for finding in findings():
        errors += finding.state == "error"
        print(f"{finding.state:5}  {finding.about:8}  {finding.text}", flush=True)
    print("all well" if errors == 0 else f"not all is well: {errors} error{'s' if errors > 1 else ''}")
    return 1 if errors else 0


def findings() -> Iterator[Finding]:
    """Looks at one thing after the other."""
    for about, look in (("package", _package), ("PyTorch", _pytorch), ("driver", _driver), ("settings", _asked)):
        try:
            yield from look(about)
        except Exception as error:
            yield Finding("error", about, str(error))
    yield from _sharing("sharing")
    yield from _limits("limits")


def _package(about: str) -> Iterator[Finding]:
    _library.load()
    yield Finding("ok", about, f"cuda_mem_torch {cuda_mem_torch.__version__}, {_library.PATH}")


def _pytorch(about: str) -> Iterator[Finding]:
    torch = _torch.load()
    yield Finding("ok", about, f"{torch.__version__}, built for CUDA {torch.version.cuda}")
    _shim.load(torch)
    prebuilt = _shim.ALLOCATOR.prebuilt(_torch.version_of(torch.__version__))
    yield Finding("ok", "shim", str(prebuilt) if prebuilt.is_file() else "built on this machine")


def _driver(about: str) -> Iterator[Finding]:
    name = os.environ.get("CUDA_MEM_DRIVER", "libcuda.so.1")
    try:
        driver = ctypes.CDLL(name)
    except OSError as error:
        yield Finding("error", about, f"there is no CUDA driver: {error}")
        return
    version, count = ctypes.c_int(), ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDriverGetVersion(ctypes.byref(version)) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code != 0:
        yield Finding("error", about, f"{name} does not start: {_name_of(driver, code)}")
        return
    text = f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    if version.value < _OLDEST_DRIVER:
        yield Finding("error", about, f"{text}, which is too old; 12.2 is needed")
        return
    yield Finding("ok" if count.value else "error", about, f"{text}, {count.value} device{'' if count.value == 1 else 's'}")
    for index in range(count.value):
        yield _device(driver, index)


def _device(driver: ctypes.CDLL, index: int) -> Finding:
    """A device as the driver describes it. It is not used: that would take memory."""
    name, total, has = ctypes.create_string_buffer(100), ctypes.c_size_t(), ctypes.c_int()
    device = ctypes.c_int()
    code = (
        driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDeviceGetName(name, len(name), device)
        or driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
        or driver.cuDeviceGetAttribute(ctypes.byref(has), _VIRTUAL_MEMORY, device)
    )
    about = f"device {index}"
    if code != 0:
        return Finding("error", about, _name_of(driver, code))
    text = f"{name.value.decode(errors='replace')}, {total.value >> 20} MiB"
    if not has.value:
        return Finding("note", about, f"{text}; it has no virtual memory management: memory is in segments, which do not grow")
    return Finding("ok", about, text)


def _name_of(driver: ctypes.CDLL, code: int) -> str:
    name = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(name))
    return f"{(name.value or b'an error').decode()} ({code})"


def _asked(about: str) -> Iterator[Finding]:
    text = _settings.from_environment()
    backend = _settings.named(text, "backend")
    if backend not in (None, "native"):
        yield Finding("error", about, f"PyTorch's settings ask for backend:{backend}; native alone is replaced")
        return
    notes: list[str] = []
    _library.set_settings(text, notes.append)
    asked = os.environ.get(_install.VARIABLE, "")
    if (said := asked.strip().lower()) and said not in _install.ON + _install.OFF:
        yield Finding("error", about, f"{_install.VARIABLE}={asked}; {_install.ACCEPTED}")
        return
    if said in _install.ON and (autoload := os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1")) != "1":
        yield Finding("error", about, f"{_install.VARIABLE}={asked} does nothing: TORCH_DEVICE_BACKEND_AUTOLOAD={autoload} keeps PyTorch from looking at it")
        return
    yield Finding("ok", about, f"{_install.VARIABLE}={asked or 'unset'}, {text or 'no options in the environment'}")
    for note in notes:
        yield Finding("note", about, note)


def _sharing(about: str) -> Iterator[Finding]:
    scope = _PTRACE_SCOPE.read_text().strip() if _PTRACE_SCOPE.is_file() else "0"
    if scope in ("0", ""):
        yield Finding("ok", about, "processes of one user may open each other's tensors")
    else:
        yield Finding(
            "note",
            about,
            f"kernel.yama.ptrace_scope is {scope}: a process that receives tensors has to enable cuda_mem_torch too, or it is "
            "refused (pidfd_getfd: Operation not permitted)",
        )


def _limits(about: str) -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        yield Finding("note", about, f"ulimit -v is {addresses >> 20} MiB: addresses are reserved for far more memory than is used")
    if files != resource.RLIM_INFINITY and files <= _DESCRIPTORS:
        yield Finding("note", about, f"ulimit -n is {files}: each piece of memory that is shared with another process takes a descriptor")
    elif addresses == resource.RLIM_INFINITY:
        yield Finding("ok", about, "descriptors and addresses suffice")
