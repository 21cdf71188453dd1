"""Runs functions of a module, each in a process of its own: `forked.py MODULE JOBS NAME...`, in a folder for what they print.

The processes are forked when PyTorch has been imported, which takes longer than most of the functions. Prints a line of JSON for each."""

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


def main():
    import torch  # noqa: F401

    module, jobs, names = importlib.import_module(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    running = Running()
    for name in names:
        if len(running.started) == jobs:
            running.wait_for_one()
        pid = os.fork()
        if pid == 0:
            with open(f"{name}.log", "wb") as log:
                os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
            signal.alarm(LIMIT)
            # It ends as a program does, with what is registered for its end.
            return getattr(module, name)()
        running.add(pid, name)
    while running.started:
        running.wait_for_one()


if __name__ == "__main__":
    main()
