"""Options as keywords, and PyTorch's settings as text."""

from __future__ import annotations

import numbers
import operator
import os
from typing import Mapping

# In the order in which PyTorch looks, whatever it is built for; it takes the first alone.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

BOOLEANS = ("expandable_segments", "graph_capture_record_stream_reuse")
# What PyTorch does not reset when it is given other settings, with its defaults; those of enable() alone.
KEPT = {"expandable_segments": False, "graph_capture_record_stream_reuse": False, "large_segment_size_mb": 20, "per_process_memory_fraction": 1.0}


def number_text(value: object) -> str | None:
    """A number as Python writes its own, whichever library's it is; None of what is no number."""
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return repr(float(value))
    try:
        return str(operator.index(value))
    except TypeError:
        return None


def value_text(key: str, value: object) -> str:
    """A value as PyTorch writes it."""
    if isinstance(value, bool):
        return str(value)
    number = number_text(value)
    if number is not None:
        return number
    if isinstance(value, Mapping) and key == "roundup_power2_divisions":
        return "[" + ",".join(f"{number_text(size) or size}:{number_text(steps) or steps}" for size, steps in value.items()) + "]"
    if key in BOOLEANS:
        raise TypeError(f"{key} is {value!r}; accepted: True, False")
    accepted = "a number, or {MiB: steps, ..., '>': steps}" if key == "roundup_power2_divisions" else "a number"
    raise TypeError(f"{key} is {value!r}; accepted: {accepted}")


def variable(environment: Mapping[str, str] = os.environ) -> str:
    """The variable that PyTorch takes its settings from."""
    return next((name for name in VARIABLES if name in environment), VARIABLES[0])


def from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """What PyTorch takes from the environment."""
    return environment.get(variable(environment), "")


def merge(environment: str, options: Mapping[str, object]) -> str:
    """The environment's settings, with keywords in the place of those of the same name."""
    given = {key: value for key, value in options.items() if value is not None}
    kept = [pair for pair in split(environment) if pair.split(":")[0] not in given]
    return ",".join(kept + [f"{key}:{value_text(key, value)}" for key, value in given.items()])


def named(text: str, key: str) -> str | None:
    """The value that settings give a key, the last one if there are several."""
    values = [pair.partition(":")[2] for pair in split(text) if pair.partition(":")[0] == key]
    return values[-1] if values else None


def split(text: str) -> list[str]:
    """The pairs of settings; commas within brackets part none."""
    pairs, depth = [""], 0
    for letter in text:
        if letter.isspace():
            continue
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            pairs.append("")
        else:
            pairs[-1] += letter
    return [pair for pair in pairs if pair]
