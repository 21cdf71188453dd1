"""``python -m cuda_mem_torch``: what is here, and whether it fits together. With a command, what the command says."""

import argparse
import sys

from cuda_mem_torch import _command_compare, _command_demo, _command_report, _command_top, _doctor
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
    return run(arguments) if hasattr(arguments, "run") else _doctor.diagnose()


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
