"""How a peer takes part in `cargo xtask bench`: asked one line, it answers one line."""

import json
import sys
import time


def say(**answer):
    print(json.dumps(answer), flush=True)


class Skip(Exception):
    """The peer cannot do what it was asked for."""


def serve(versions, cases):
    """Answers until the standard input ends; `cases` maps a case's name to a function of the participant and its arguments."""
    say(ready=versions)
    for line in sys.stdin:
        participant, case, *arguments = line.split()
        try:
            if case not in cases:
                raise Skip(f"{case} is not among {', '.join(cases)}")
            arguments = dict(argument.split("=", 1) for argument in arguments)
            say(figures=cases[case](participant, arguments))
        except Skip as reason:
            say(skip=str(reason))
        except Exception as error:  # Whatever it is, the others go on.
            say(error=f"{type(error).__name__}: {error}")


def timed(work):
    """What `work` returns, and the seconds it took."""
    start = time.perf_counter_ns()
    result = work()
    return result, (time.perf_counter_ns() - start) / 1e9


def kib(path, name):
    with open(path) as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith(name + ":")), 0) << 10


class Reading:
    """What the kernel counts, in bytes: pages of this process, and what is left for others."""

    def __init__(self):
        self.resident = kib("/proc/self/status", "VmRSS")
        self.pinned = kib("/proc/self/status", "VmPin")
        self.available = kib("/proc/meminfo", "MemAvailable")

    def since(self, before, requested):
        """A page may be resident and pinned: the larger count is taken. A driver's own pages are in neither."""
        own = max(self.resident - before.resident, self.pinned - before.pinned, 0)
        return {"resident": own / requested, "taken": max(before.available - self.available, 0) / requested}
