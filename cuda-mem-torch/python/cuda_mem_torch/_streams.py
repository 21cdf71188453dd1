"""Streams of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

from cuda_mem_torch import _library, _torch

if TYPE_CHECKING:
    import torch

_DEFAULT = (0, 1)


def forget_stream(stream: torch.cuda.Stream | SupportsIndex, device: torch.device | int | str | None = None) -> None:
    """Says that another library is about to destroy a stream that PyTorch allocated on (``torch.cuda.ExternalStream``). To be called
    before that, when it is given no more work: streams that were allocated on are asked now and then whether they capture, and the
    driver crashes over one that is no more. Tensors may outlive the stream. What was free of it serves others once its work is
    done. A stream that was never allocated on is nothing.

    ``stream`` is a stream of PyTorch's, or the handle of one with its ``device``. Raises ``ValueError`` for one that PyTorch keeps
    for itself and for a handle without a device, ``CudaMemError`` while the stream captures; then it is not forgotten."""
    if isinstance(stream, SupportsIndex):
        if device is None:
            raise ValueError("a handle does not say of which device its stream is: forget_stream(handle, device)")
        # ctypes would cut a number that does not fit, which another stream may have.
        handle, index = _library.number("the handle", stream), _torch.device_index(device)
    else:
        if not hasattr(stream, "cuda_stream"):
            raise TypeError(f"the stream is {stream!r}; accepted: a torch.cuda.Stream, or a handle with its device")
        handle, index = stream.cuda_stream, stream.device_index
        if device is not None and _torch.device_index(device) != index:
            raise ValueError(f"the stream is of device {index}, not of {device}")
        # The lowest bit of the number says that PyTorch made it.
        if stream.stream_id & 1:
            raise ValueError("the stream is of PyTorch's own, which live as long as the process and are handed out again")
    if handle in _DEFAULT:
        raise ValueError("the default stream of a device is never destroyed")
    _library.check_end(_library.load().cuda_mem_torch_forget_stream(index, handle))
