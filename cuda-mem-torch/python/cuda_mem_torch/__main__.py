"""``python -m cuda_mem_torch``: what is here, and whether it fits together."""

import argparse
import sys

from cuda_mem_torch import _doctor


def main() -> int:
    """Says what was found; 0 if ``enable()`` can work."""
    argparse.ArgumentParser(prog="python -m cuda_mem_torch", description=__doc__).parse_args()
    return _doctor.diagnose()


sys.exit(main())
