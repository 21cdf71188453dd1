"""What the commands write to a terminal."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Sequence


class Progress:
    """One line of a terminal that is written over; elsewhere nothing."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def say(self, text: str) -> None:
        """Shows a line in the place of the last one."""
        if self._shown:
            width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
            sys.stderr.write(f"\r\x1b[K{text[:width]}")
            sys.stderr.flush()

    def part(self, stage: str, done: int, total: int) -> None:
        """Shows how far a stage is."""
        self.say(f"{stage}: {100 * done // total} %" if total else f"{stage} ...")

    def end(self) -> None:
        """Takes the line away."""
        self.say("")


def size(bytes: float) -> str:
    """Bytes as people read them."""
    for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if bytes >= 1 << power:
            return f"{bytes / (1 << power):.2f} {name}"
    return f"{bytes:.0f} B"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows, the first of them titles, in columns: the first one begins at the left, the others end at the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    lines = ("   ".join([row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def show(page: Path) -> bool:
    """Opens a page in a browser, if there is one and somebody in front of it."""
    has_screen = sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return has_screen and sys.stdout.isatty() and webbrowser.open(page.resolve().as_uri())
