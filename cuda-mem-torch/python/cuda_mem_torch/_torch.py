"""The PyTorch that is here, and whether it is one that this package knows."""

from __future__ import annotations

import importlib
import operator
import re
from types import ModuleType
from typing import SupportsIndex

from cuda_mem_torch import _library
from cuda_mem_torch._errors import UnsupportedTorchError

# What there are shims for. The allocator's interface changes from one minor version to the next, and not within one.
SUPPORTED = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
_RANGE = f"{SUPPORTED[0][0]}.{SUPPORTED[0][1]} to {SUPPORTED[-1][0]}.{SUPPORTED[-1][1]}"
_NEWEST = f"pip install 'torch=={SUPPORTED[-1][0]}.{SUPPORTED[-1][1]}.*'"

_RELEASE = re.compile(r"\d+\.\d+\.\d+(\+(cu\d+|cpu|xpu|rocm[\d.]+))?")


def version_of(text: str) -> tuple[int, int]:
    """Major and minor of a version such as ``2.11.0+cu130``."""
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None:
        raise UnsupportedTorchError(f"PyTorch says that its version is {text!r}, which is none; supported are the releases {_RANGE}")
    return int(found[1]), int(found[2])


def check_version(text: str) -> None:
    """Refuses all but releases of the versions whose allocator interface is known."""
    found = version_of(text)
    if found < SUPPORTED[0]:
        raise UnsupportedTorchError(f"PyTorch is {text}, which is too old; supported are the releases {_RANGE}: {_NEWEST}")
    if found > SUPPORTED[-1]:
        raise UnsupportedTorchError(
            f"PyTorch is {text}, which is too new; supported are the releases {_RANGE}: upgrade cuda_mem_torch, or {_NEWEST}"
        )
    if _RELEASE.fullmatch(text) is None:
        raise UnsupportedTorchError(
            f"PyTorch is {text}, which is no release but a nightly, a candidate or a vendor's build: its allocator interface may be"
            f" another than the release's; supported are the releases {_RANGE}: pip install 'torch=={found[0]}.{found[1]}.*'"
        )


def expect_cuda(torch: ModuleType) -> None:
    """Refuses builds without CUDA, by what they are for."""
    if torch.version.cuda is None:
        others = {"ROCm": getattr(torch.version, "hip", None), "XPU": getattr(torch.version, "xpu", None)}
        built = next((name for name, version in others.items() if version), "the CPU alone")
        raise UnsupportedTorchError(
            f"PyTorch {torch.__version__} was built without CUDA, for {built}; install a build with it (https://pytorch.org/get-started)"
        )


def load() -> ModuleType:
    """PyTorch, if it is one that the allocator can be put into."""
    try:
        torch = importlib.import_module("torch")
    except Exception as error:
        raise UnsupportedTorchError(f"PyTorch could not be imported ({error}). Install it first: {_NEWEST}") from error
    check_version(torch.__version__)
    expect_cuda(torch)
    return torch


def device_index(device: object) -> int:
    """The number of a device, the current one for None. PyTorch takes everything that it does not know for the current one too."""
    if not isinstance(device, SupportsIndex):
        torch = load()
        if not (device is None or isinstance(device, (str, torch.device, torch.cuda.device))):
            raise TypeError(f"the device is {device!r}; accepted: a number, text as 'cuda:1', a torch.device, None for the current one")
        index = torch.cuda._utils._get_device_index(device, optional=True)
        # None where there is no current one, of which this says why.
        device = torch.cuda.current_device() if index is None else index
    return _library.device_number(operator.index(device))
