"""``python -m cuda_mem_torch``: what is here, and whether it fits together. With a command, what the command says."""

import argparse
import sys

from cuda_mem_torch import __version__, _command_compare, _command_demo, _command_report, _command_top, _library, _shim, _torch
from cuda_mem_torch._errors import CudaMemError

_COMMANDS = (_command_report, _command_compare, _command_top, _command_demo)
_INTERRUPTED = 130


def main() -> int:
    """Says what was found; 0 if ``enable()`` can work."""
    parser = argparse.ArgumentParser(prog="python -m cuda_mem_torch", description=__doc__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in _COMMANDS:
        command.add_to(commands)
    arguments = parser.parse_args()
    if hasattr(arguments, "run"):
        return run(arguments)
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


def run(arguments: argparse.Namespace) -> int:
    """Runs a command. What it cannot do is a line, and 1; what it was not meant to meet is a traceback."""
    try:
        return int(arguments.run(arguments))
    except (CudaMemError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
