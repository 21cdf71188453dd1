"""``python -m cuda_mem_torch``: what is here, and whether it fits together."""

import argparse
import sys

from cuda_mem_torch import __version__, _library, _shim, _torch


def main() -> int:
    """Says what was found; 0 if ``enable()`` can work."""
    argparse.ArgumentParser(prog="python -m cuda_mem_torch", description=__doc__).parse_args()
    print(f"cuda_mem_torch {__version__}, {_library.PATH}")
    try:
        torch = _torch.load()
        print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.device_count()} devices")
        _shim.load(torch)
        prebuilt = _shim.ALLOCATOR.prebuilt(_torch.version_of(torch.__version__))
        print(f"shim: {prebuilt if prebuilt.is_file() else 'built on this machine'}")
    except Exception as error:
        print(f"error: {error}")
        return 1
    return 0


sys.exit(main())
