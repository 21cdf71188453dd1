"""The PyTorch that is here, and whether it is one that this package knows."""

from __future__ import annotations

import importlib
from types import ModuleType

from cuda_mem_torch._errors import UnsupportedTorchError

SUPPORTED = (2, 11)


def version_of(text: str) -> tuple[int, int]:
    """Major and minor of a version such as ``2.11.0+cu130``."""
    try:
        major, minor = text.split("+")[0].split(".")[:2]
        return int(major), int(minor)
    except ValueError:
        raise UnsupportedTorchError(f"PyTorch says that its version is {text!r}, which is none") from None


def check_version(text: str) -> None:
    """Refuses versions whose allocator interface is another than the one that was built for."""
    found = version_of(text)
    wanted = ".".join(map(str, SUPPORTED))
    if found < SUPPORTED:
        raise UnsupportedTorchError(
            f"PyTorch is {text}, which is too old: cuda_mem_torch needs {wanted}. Upgrade PyTorch: pip install 'torch=={wanted}.*'"
        )
    if found > SUPPORTED:
        raise UnsupportedTorchError(
            f"PyTorch is {text}, which is too new: this cuda_mem_torch was built for {wanted}. Upgrade cuda_mem_torch, or use"
            f" PyTorch {wanted}: its allocator interface changes from one minor version to the next"
        )


def load() -> ModuleType:
    """PyTorch, if it is one that the allocator can be put into."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise UnsupportedTorchError(
            f"PyTorch could not be imported ({error}). Install it first: pip install 'torch=={'.'.join(map(str, SUPPORTED))}.*'"
        ) from error
    check_version(torch.__version__)
    if torch.version.cuda is None:
        raise UnsupportedTorchError(
            f"PyTorch {torch.__version__} was built without CUDA; install a build with it (https://pytorch.org/get-started)"
        )
    return torch
