"""Two processes of a peer: one clock, and words that are waited for."""

import time

# By when who waits sleeps, in nanoseconds: as ours.
ASLEEP = 200_000

PATIENCE = 60

# What the other process says when it has come to it; any other text is a complaint.
WORDS = ("ready", "waiting", "closed")


def now():
    """Nanoseconds of the clock that all processes share."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def linger():
    """Until the other process sleeps, awake."""
    end = now() + ASLEEP
    while now() < end:
        pass


def complain(error):
    return f"{type(error).__name__}: {error}"


def hear(pipe):
    """What the other process says."""
    if not pipe.poll(PATIENCE):
        raise RuntimeError("the other process says nothing")
    said = pipe.recv()
    if isinstance(said, str) and said not in WORDS:
        raise RuntimeError(f"the other process: {said}")
    return said


def expect(pipe, word):
    said = hear(pipe)
    if said != word:
        raise RuntimeError(f"the other process says {said!r} in place of {word!r}")


def percentiles(values):
    """The half and the 99th of 100."""
    values = sorted(values)
    return {name: values[(len(values) - 1) * part // 100] for name, part in (("p50", 50), ("p99", 99))}
