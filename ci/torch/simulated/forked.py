"""Runs programs, each in a process of its own: `forked.py JOBS MODULE.NAME...`, in a folder for what they print.

The processes are forked when PyTorch has been imported, which takes longer than most of the programs. Prints a line of JSON for each."""

import gc
import importlib
import json
import os
import signal
import sys
import time

# Seconds for one of them.
LIMIT = 300


class Running:
    """Processes that were started and have not ended."""

    def __init__(self):
        self.started = {}

    def add(self, pid, name):
        self.started[pid] = name, time.monotonic()

    def wait_for_one(self):
        pid, status = os.wait()
        name, began = self.started.pop(pid)
        seconds = round(time.monotonic() - began, 1)
        print(json.dumps({"name": name, "code": os.waitstatus_to_exitcode(status), "seconds": seconds}), flush=True)


def fork(work, *arguments):
    """Calls a function in another process, which ends as a program does; its number. Before CUDA is used in this one. What is open around the
    call is closed in both."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIMIT)
        work(*arguments)
        sys.exit()
    return pid


def code_of(pid):
    """The exit status of such a process, when it has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def logged(name, work):
    """Calls a function that prints into a file."""
    with open(f"{name}.log", "wb") as log:
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
    work()


def program_of(module, name):
    return getattr(importlib.import_module(module), name)


def main():
    # With what PyTorch imports at the first snapshot.
    import torch._inductor  # noqa: F401

    jobs, names = int(sys.argv[1]), sys.argv[2:]
    programs = {name: program_of(*name.split(".")) for name in names}
    # What is there outlives every program: none has to look through it at its end.
    gc.freeze()
    running = Running()
    for name in names:
        if len(running.started) == jobs:
            running.wait_for_one()
        running.add(fork(logged, name, programs[name]), name)
    while running.started:
        running.wait_for_one()


if __name__ == "__main__":
    main()
