"""The C++ side: every virtual function of PyTorch's allocator interface, built for each minor version of it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Callable

from cuda_mem_torch import _library
from cuda_mem_torch._errors import CudaMemError
from cuda_mem_torch._torch import version_of

SOURCES = _library.FOLDER / "shim"
TEXT = 4096


@dataclass(frozen=True)
class Part:
    """One library of the C++ side."""

    name: str
    # All of it: the file that is compiled.
    source: str
    # What it needs of PyTorch beside the two core libraries.
    needs: tuple[str, ...] = ()

    def prebuilt(self, version: tuple[int, int]) -> Path:
        """Where a wheel has it that brings it for a version of PyTorch."""
        return _library.FOLDER / self.file(version)

    def file(self, version: tuple[int, int]) -> str:
        return f"libcuda_mem_torch_{self.name}_{version[0]}_{version[1]}.so"


ALLOCATOR = Part("shim", "shim.cpp", ("torch_cpu",))
SYMMETRIC = Part("symmetric", "symmetric/backend.cpp", ("torch_cpu",))
# First the one that takes longest to compile.
PARTS = [SYMMETRIC, ALLOCATOR]


def compile_command(
    part: Part,
    version: tuple[int, int],
    compiler: str,
    target: Path,
    torch_include: Path,
    cuda_includes: list[Path],
    torch_lib: Path,
    sources: Path = SOURCES,
) -> list[str]:
    """How a part is compiled and linked against an installed PyTorch. What it calls of CUDA's runtime is found where PyTorch's own
    library finds it, so that one build serves every CUDA that there is a PyTorch for."""
    standard = "c++20" if version >= (2, 14) else "c++17"
    words = [compiler, f"-std={standard}", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-plt", "-shared", "-DNDEBUG", "-DUSE_CUDA", "-DUSE_C10D", "-o", str(target)]
    words += [str(sources / part.source)]
    for folder in [torch_include, torch_include / "torch/csrc/api/include", *cuda_includes]:
        words += ["-isystem", str(folder)]
    words += ["-I", str(sources), "-I", str(_library.FOLDER / "include")]
    words += [f"-L{torch_lib}", f"-L{_library.FOLDER}", "-Wl,--no-as-needed", "-lcuda_mem_torch", "-lc10", "-lc10_cuda"]
    words += [f"-l{library}" for library in part.needs]
    return words + [f"-Wl,-rpath,{_library.FOLDER}"]


def cuda_folders() -> list[Path]:
    """Where CUDA may be: the packages that PyTorch brought, and the toolkit."""
    try:
        import nvidia

        roots = [Path(root) for root in nvidia.__path__]
        packages = [folder for root in roots for folder in [*root.glob("cu[0-9]*"), root / "cuda_runtime", root / "cuda_nvcc"]]
    except ImportError:
        packages = []
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return [*packages, Path(toolkit), Path(toolkit) / "targets/x86_64-linux"]


def build(torch: ModuleType, part: Part = ALLOCATOR) -> Path:
    """Compiles a part on this machine, once for each PyTorch and each state of the sources."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise CudaMemError("this wheel brings no shim for this PyTorch, and there is no C++ compiler to build it with: install g++")
    digest = hashlib.sha256(f"{torch.__version__} {_library.PATH} {_library.PATH.stat().st_mtime_ns}".encode())
    for source in sorted(SOURCES.glob("**/*.[ch]pp")):
        digest.update(source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cuda_mem_torch"
    target = cache / f"{part.name}-{digest.hexdigest()[:16]}.so"
    if target.is_file():
        return target
    folders = cuda_folders()
    includes = [folder / "include" for folder in folders if (folder / "include/cuda_runtime_api.h").is_file()]
    if not any((include / "crt/host_config.h").is_file() for include in includes):
        raise CudaMemError(
            "CUDA's headers are needed to build the shim, and crt/host_config.h is not among those of "
            f"{', '.join(map(str, folders))}: pip install nvidia-cuda-crt, or set CUDA_HOME"
        )
    root = Path(torch.__file__).resolve().parent
    cache.mkdir(parents=True, exist_ok=True)
    # Made beside and renamed, so that processes that start together do not see half of it.
    partial = cache / f"partial-{part.name}-{os.getpid()}.so"
    command = compile_command(part, version_of(torch.__version__), compiler, partial, root / "include", includes, root / "lib")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise CudaMemError(f"the shim could not be built for PyTorch {torch.__version__}:\n{' '.join(command)}\n{done.stderr}")
    partial.rename(target)
    return target


@functools.cache
def loaded(torch: ModuleType, part: Part) -> ctypes.CDLL:
    """A part for this PyTorch, loaded once. PyTorch's libraries are loaded already."""
    _library.load()
    prebuilt = part.prebuilt(version_of(torch.__version__))
    path = prebuilt if prebuilt.is_file() else build(torch, part)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CudaMemError(f"{path} could not be loaded into PyTorch {torch.__version__}: {error}") from error


@functools.cache
def load(torch: ModuleType) -> ctypes.CDLL:
    """The allocator for this PyTorch."""
    shim = loaded(torch, ALLOCATOR)
    shim.cuda_mem_torch_shim_install.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    for function in (shim.cuda_mem_torch_shim_uninstall, shim.cuda_mem_torch_shim_install_pinned, shim.cuda_mem_torch_shim_uninstall_pinned):
        function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return shim


def _check(function: Callable[..., int], *arguments: bytes) -> None:
    text = ctypes.create_string_buffer(TEXT)
    if code := function(*arguments, text, TEXT):
        raise (ValueError if code == 2 else CudaMemError)(text.value.decode(errors="replace"))


def install(torch: ModuleType) -> None:
    """Has PyTorch allocate here from now on."""
    _check(load(torch).cuda_mem_torch_shim_install, torch.__version__.encode())


def uninstall(torch: ModuleType) -> None:
    """Has PyTorch allocate itself again."""
    _check(load(torch).cuda_mem_torch_shim_uninstall)


def install_pinned(torch: ModuleType) -> None:
    """Has PyTorch take pinned memory here from now on."""
    _check(load(torch).cuda_mem_torch_shim_install_pinned)


def uninstall_pinned(torch: ModuleType) -> None:
    """Has PyTorch pin memory itself again."""
    _check(load(torch).cuda_mem_torch_shim_uninstall_pinned)


def has_pinned(torch: ModuleType) -> bool:
    """Whether PyTorch takes pinned memory here."""
    return bool(load(torch).cuda_mem_torch_shim_is_pinned_installed())


def state(torch: ModuleType) -> int:
    """0 if PyTorch uses its own allocator, 1 if it uses this one from the start, 2 if its own was in use before."""
    return int(load(torch).cuda_mem_torch_shim_state())
