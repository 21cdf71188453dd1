"""The child of `pytorch_tests.py`: runs tests of one class and writes a line of JSON for each as it ends.

`one_class.py FILE CLASS LINES SECONDS NAME...`. A line is `{"test", "outcome", "why", "seconds"}`; the name alone is written before the test
begins, so that the parent knows in which one the process died. Ends early after an error of CUDA's, which stays with the process: the
parent goes on in a fresh one.
"""

import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
import unittest
from pathlib import Path

# What CUDA says of a context that is lost.
LOST = ("CUDA error", "AcceleratorError", "cudaError")


def reason(error):
    """The assertion that failed, and the line of the test that made it."""
    lines = "".join(traceback.format_exception_only(error[0], error[1])).strip()
    frames = [frame for frame in traceback.extract_tb(error[2]) if "/test/" in frame.filename]
    where = f" [{Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line}]" if frames else ""
    return lines[:800] + where


class Lines(unittest.TestResult):
    """Writes what comes of each test, at once."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def write(self, **line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def startTest(self, test):
        super().startTest(test)
        self.began, self.outcome = time.monotonic(), ("passed", "")
        self.write(test=test._testMethodName)

    def stopTest(self, test):
        super().stopTest(test)
        outcome, why = self.outcome
        self.write(test=test._testMethodName, outcome=outcome, why=why, seconds=round(time.monotonic() - self.began, 2))

    def failed(self, error):
        self.outcome = ("failed", reason(error))
        if any(word in self.outcome[1] for word in LOST):
            self.stop()

    def addFailure(self, test, error):
        self.failed(error)

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.failed(error)

    def addSkip(self, test, why):
        # A part that is skipped does not undo one that failed.
        if self.outcome[0] == "passed":
            self.outcome = ("not applicable", why)

    def addUnexpectedSuccess(self, test):
        self.outcome = ("failed", "it was expected to fail, and passed")


def with_our_plain_functions(library):
    """Where a test would compile an allocator of its own, it is given ours."""
    from torch.utils import cpp_extension

    def load_inline(name, *arguments, **options):
        assert name == "dummy_allocator", name
        return library

    cpp_extension.load_inline = load_inline


def main():
    file, klass, lines, seconds, *names = sys.argv[1:]
    # PyTorch's test library reads the arguments when it is imported.
    del sys.argv[1:]
    sys.path.insert(0, str(Path(file).parent))
    with open(lines, "a", encoding="utf-8") as out:
        result = Lines(out)
        try:
            cases = getattr(importlib.import_module(Path(file).stem), klass)
        except Exception as error:
            result.write(test="", outcome="failed", why=f"{Path(file).name} cannot be imported: {error!r}")
            return
        if library := os.environ.get("DUMMY_ALLOCATOR"):
            with_our_plain_functions(library)
        for name in names:
            # A thread of C's ends the process if the test hangs, whoever holds the interpreter.
            faulthandler.dump_traceback_later(float(seconds), exit=True)
            unittest.TestSuite([cases(name)]).run(result)
            faulthandler.cancel_dump_traceback_later()
            if result.shouldStop:
                break


if __name__ == "__main__":
    main()
