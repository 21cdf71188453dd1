"""What can go wrong."""


class CudaMemError(RuntimeError):
    """A call failed; the text says what to do next."""

    # Where programs find it, which tracebacks and pickles name.
    __module__ = "cuda_mem_torch"


class UnsupportedTorchError(CudaMemError):
    """PyTorch is missing, too old, too new or built without CUDA."""

    __module__ = "cuda_mem_torch"
