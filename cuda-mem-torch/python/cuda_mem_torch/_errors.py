"""What can go wrong."""


class CudaMemError(RuntimeError):
    """A call failed; the text says what to do next."""


class UnsupportedTorchError(CudaMemError):
    """PyTorch is missing, too old, too new or built without CUDA."""
