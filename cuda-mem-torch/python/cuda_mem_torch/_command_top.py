"""``python -m cuda_mem_torch top``: who uses which GPU."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import sys

from cuda_mem_torch import _library

_HELP = "show who uses which GPU"
_MORE = """\
Processes are listed as NVIDIA's management library knows them. Processes that use this allocator, of the same user, say
themselves what their streams and pools have. Neither PyTorch nor a CUDA context is needed.

Columns: MEMORY is what the process has of the device, RESERVED what its allocator has from the driver, LIVE what tensors
have, PEAK LIVE the most of that, RETRIES how often memory had to be given back first, OOM how many requests failed.

Exit code 3: there is no GPU or no driver.
"""

_UNSUPPORTED = 9
_NO_GPU = 3


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Makes the command known."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("top", help=_HELP, description=f"{_HELP[0].upper()}{_HELP[1:]}.\n\n{_MORE}", formatter_class=formatter)
    parser.add_argument("--once", action="store_true", help="print the table once; so it is where the output is no terminal")
    parser.add_argument("--interval", type=_seconds, default=1.0, metavar="SECONDS", help="how often to look (default: 1)")
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.1 <= (seconds := float(text)) <= 3600:
            return seconds
    raise argparse.ArgumentTypeError(f"{text} is not from 0.1 to 3600 seconds")


def run(arguments: argparse.Namespace) -> int:
    """Shows it, on a terminal until the user presses q."""
    library = _library.load()
    if arguments.once or not sys.stdout.isatty():
        code = _print(library)
    else:
        library.cuda_mem_torch_top.argtypes = [ctypes.c_uint64]
        code = library.cuda_mem_torch_top(int(arguments.interval * 1000))
    if code == _UNSUPPORTED:
        print(f"error: {_library.last_error()}", file=sys.stderr)
        return _NO_GPU
    _library.check(code)
    return 0


def _print(library: ctypes.CDLL) -> int:
    parts: list[str] = []

    def told(_data: int | None, text: bytes) -> None:
        parts.append(text.decode(errors="replace"))

    code = int(library.cuda_mem_torch_top_table(None, _library.NOTE(told)))
    # Here an output that is closed raises; within a call of the library it could not.
    print("".join(parts), end="")
    return code
