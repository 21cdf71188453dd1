"""``libcuda_mem_torch.so``, through ctypes."""

from __future__ import annotations

import ctypes
import functools
import operator
from pathlib import Path
from typing import Callable, SupportsIndex

from cuda_mem_torch._errors import CudaMemError

ABI_VERSION = 8
FOLDER = Path(__file__).resolve().parent
PATH = FOLDER / "libcuda_mem_torch.so"

OK, INVALID_ARGUMENT, NOT_OURS, FORKED = 0, 1, 3, 4

NOTE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)


@functools.cache
def load() -> ctypes.CDLL:
    """The library, loaded once."""
    try:
        library = ctypes.CDLL(str(PATH))
    except OSError as error:
        raise CudaMemError(f"{PATH} could not be loaded: {error}. Install the wheel again") from error
    found = library.cuda_mem_torch_abi_version()
    if found != ABI_VERSION:
        raise CudaMemError(f"{PATH} has version {found} of the interface; this package needs {ABI_VERSION}: install the wheel again")
    library.cuda_mem_torch_last_error.restype = ctypes.c_char_p
    library.cuda_mem_torch_version.restype = ctypes.c_char_p
    library.cuda_mem_torch_pin_memory.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.cuda_mem_torch_unpin_memory.argtypes = [ctypes.c_void_p]
    library.cuda_mem_torch_set_settings.argtypes = [ctypes.c_char_p, ctypes.c_void_p, NOTE]
    library.cuda_mem_torch_write_snapshot.argtypes = [ctypes.c_char_p]
    library.cuda_mem_torch_forget_stream.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.cuda_mem_torch_hold_still.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
    library.cuda_mem_torch_let_move.argtypes = [ctypes.c_void_p]
    return library


def version() -> str:
    """The library's."""
    return str(load().cuda_mem_torch_version().decode())


def check(code: int) -> None:
    """Raises what a call of the library failed with."""
    if code == OK:
        return
    message = last_error()
    raise ValueError(message) if code == INVALID_ARGUMENT else CudaMemError(message)


def check_end(code: int) -> None:
    """As :func:`check`, of a call that ends something. In a forked child there is nothing to end: what it inherited is the parent's."""
    if code != FORKED:
        check(code)


def last_error() -> str:
    """Why the last call of this thread failed."""
    return str(load().cuda_mem_torch_last_error().decode())


def set_settings(text: str, note: Callable[[str], None]) -> None:
    """Checks settings in PyTorch's form and sets them; ``note`` hears of those that change nothing."""

    def told(_data: int | None, words: bytes) -> None:
        note(words.decode())

    check(load().cuda_mem_torch_set_settings(text.encode(), None, NOTE(told)))


def number(name: str, value: SupportsIndex) -> int:
    """An address, a size or a handle as the library takes it: ctypes would cut a number that does not fit."""
    try:
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; accepted: a whole number") from None
    if not 0 <= found < 1 << 64:
        raise ValueError(f"{name} is {value}; it must be from 0 to 2**64 - 1")
    return found


def word(what: str, text: str) -> bytes:
    """A text as the library takes it."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is {text!r}; accepted: text")
    encoded = text.encode()
    if b"\0" in encoded:
        # C would end it there.
        raise ValueError(f"{what} has a null byte")
    return encoded


def expect_tensor(value: object, on_device: bool = False) -> None:
    """Refuses what is no tensor, such as an array of NumPy's, by what it is, and a tensor of tensors, such as a sparse or distributed one. One
    that is not on a CUDA device, if it has to be there."""
    if not hasattr(value, "untyped_storage"):
        raise TypeError(f"a tensor is needed, and this is of the type {type(value).__name__}")
    try:
        value.untyped_storage().data_ptr()
    except RuntimeError:
        raise ValueError(
            f"the tensor, a {type(value).__name__}, has no memory of its own; accepted: the tensors that it is made of, such as to_local() or values()"
        ) from None
    if on_device and value.device.type != "cuda":
        raise ValueError(f"the tensor is on {value.device}; accepted: tensors on CUDA devices")


def device_number(index: int) -> int:
    """The number of a device as the library takes it, which says itself what there is: as :func:`number`, and -1 is all of them there."""
    if not 0 <= index < 1 << 31:
        raise ValueError(f"the device is {index}, which is none; accepted: a number from 0 on")
    return index


def address_of(name: str) -> int:
    """Where a function of the library is."""
    address = ctypes.cast(getattr(load(), name), ctypes.c_void_p).value
    assert address is not None, name
    return address
