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
    parser.set_defaults(run=lambda _arguments: _doctor.diagnose())
    return run(parser.parse_args())


def run(arguments: argparse.Namespace) -> int:
    """Runs a command. What it cannot do is a line, and 1; what it was not meant to meet is a traceback."""
    try:
        code = int(arguments.run(arguments))
        # What was printed and cannot be written fails here, and not when the interpreter ends.
        print(end="", flush=True)
        return code
    except (CudaMemError, ValueError, OSError) as error:
        # A reader that has left, as `head` does, has what it wanted.
        if not isinstance(error, BrokenPipeError):
            print(f"error: {error}", file=sys.stderr)
        # Where that was the output, the interpreter would try it again.
        sys.stdout = sys.stderr
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
