"""A program that leaks, for ``python -m cuda_mem_torch demo``: each step makes a batch, and every fifth one is kept by mistake."""

from __future__ import annotations

from typing import Any, Callable

MIB = 1 << 20
STEPS = 200


def train(empty: Callable[[int], Any], steps: int = STEPS) -> list[Any]:
    """Runs ``steps`` steps with the memory that ``empty(bytes)`` makes, and gives back what is left of it."""
    weights = [empty(24 * MIB) for _ in range(4)]
    losses: list[Any] = []
    for step in range(steps):
        batch = load(empty, step)
        hidden = forward(empty, batch, step)
        if step % 5 == 0:
            # A hundred bytes, to be printed at the end. But a view keeps all of its batch.
            losses.append(batch[:100])
        del hidden
    return weights + losses


def load(empty: Callable[[int], Any], step: int) -> Any:
    """A batch: sentences are of many lengths."""
    return empty((6 + step * 7 % 5) * MIB)


def forward(empty: Callable[[int], Any], batch: Any, step: int) -> list[Any]:
    """What a step needs for a moment."""
    return [empty((2 + (step + layer) % 3) * MIB) for layer in range(3)]
