"""Steps with names: each is run, judged and told in a line of its own."""

import os
import sys

STEPS = []


class Skip(Exception):
    """What the machine or the installed package lacks."""


def step(name):
    """Adds a function to the steps. What it returns stands in its line, so it must be the same on every machine."""

    def add(function):
        STEPS.append((name, function))
        return function

    return add


def expect(found, wanted, what):
    """Ends a step unless both are equal."""
    if found != wanted:
        raise AssertionError(f"{what} is {found!r}, not {wanted!r}")


def refused(call, kind, text):
    """Ends a step unless the call raises this kind of error with this text in it."""
    try:
        call()
    except kind as error:
        expect(text in str(error), True, f"{text!r} in {str(error)!r}")
        return
    raise AssertionError(f"no {kind.__name__} with {text!r}")


def run(script):
    """Runs the steps; the exit code is 0 if none failed and one passed."""
    width = max(len(name) for name, _ in STEPS) + 3
    passed = failed = 0
    for name, function in STEPS:
        try:
            result = "ok", function() or ""
            passed += 1
        except Skip as reason:
            result = "skipped", str(reason)
        except Exception as error:
            result = "FAILED", f"{type(error).__name__}: {error}"
            failed += 1
        print(f"{name:.<{width}} {result[0]:<8}{result[1]}".rstrip(), flush=True)
        record(script, name, result)
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if passed and not failed else 1


def record(script, name, result):
    """Appends to the file in which tests record what is compared between drivers."""
    path = os.environ.get("CUDA_MEM_RECORD")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{script}\t{name}\t{' '.join(result).strip()}\n")


def main(script):
    sys.exit(run(script))
