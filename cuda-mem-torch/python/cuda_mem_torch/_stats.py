"""Statistics whose text is a table."""

from __future__ import annotations

import html
from functools import cached_property
from typing import Any, Mapping, NamedTuple

from cuda_mem_torch import _terminal


class StreamStats(NamedTuple):
    """Memory of a stream in a pool, in bytes: ``longest`` is the longest free piece."""

    stream: int
    pool: tuple[int, int]
    reserved: int
    active: int
    free: int
    longest: int


class Stats(dict[str, Any]):
    """``torch.cuda.memory_stats()`` of a device, as a dictionary with PyTorch's keys. The most used figures are attributes; all sizes are bytes.
    ``print`` and notebooks show a table."""

    def __init__(self, device: int, stats: Mapping[str, Any], segments: Any) -> None:
        super().__init__(stats)
        self.device = device
        self._segments = segments

    def _current(self, name: str) -> int:
        return int(self.get(f"{name}_bytes.all.current", 0))

    def _peak(self, name: str) -> int:
        return int(self.get(f"{name}_bytes.all.peak", 0))

    @property
    def allocated(self) -> int:
        """Bytes of tensors."""
        return self._current("allocated")

    @property
    def active(self) -> int:
        """Bytes of tensors, and of freed memory that other streams still use."""
        return self._current("active")

    @property
    def reserved(self) -> int:
        """Bytes that the allocator holds of the device."""
        return self._current("reserved")

    @property
    def ratio(self) -> float:
        """Reserved over active bytes; 1 if none is active."""
        return self.reserved / self.active if self.active else 1.0

    @cached_property
    def streams(self) -> list[StreamStats]:
        """Each stream and pool when the statistics were made, by what it holds."""
        found: dict[tuple[int, tuple[int, int]], list[int]] = {}
        for segment in self._segments:
            if segment["device"] != self.device:
                continue
            counts = found.setdefault((segment["stream"], tuple(segment["segment_pool_id"])), [0, 0, 0, 0])
            free = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
            counts[0] += segment["total_size"]
            counts[1] += segment["active_size"]
            counts[2] += sum(free)
            counts[3] = max([counts[3], *free])
        rows = [StreamStats(stream, pool, *counts) for (stream, pool), counts in found.items()]
        return sorted(rows, key=lambda row: -row.reserved)

    def _figures(self) -> list[tuple[str, str, str]]:
        names = ("allocated", "active", "reserved")
        return [(name, _terminal.size(self._current(name)), _terminal.size(self._peak(name))) for name in names]

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (hex(row.stream), "default" if row.pool == (0, 0) else f"{row.pool[0]}, {row.pool[1]}", *map(_terminal.size, row[2:]))
            for row in self.streams
        ]

    def __repr__(self) -> str:
        return f"<Stats of device {self.device}: {_terminal.size(self.active)} active of {_terminal.size(self.reserved)} reserved>"

    def __str__(self) -> str:
        lines = [f"device {self.device}", _terminal.table([("", "now", "peak"), *self._figures()])]
        lines.append(f"reserved / active {self.ratio:.3f}, out of memory {self.get('num_ooms', 0)} times")
        if self.streams:
            lines += ["", _terminal.table([_HEADS, *self._rows()])]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        tables = [(("", "now", "peak"), self._figures()), (_HEADS, self._rows())]
        return f"<p>device {self.device}, reserved / active {self.ratio:.3f}</p>" + "".join(
            _html(heads, rows) for heads, rows in tables if rows
        )


_HEADS = ("stream", "pool", "reserved", "active", "free", "longest free")


def _html(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def line(kind: str, words: tuple[str, ...]) -> str:
        return "<tr>" + "".join(f"<{kind}>{html.escape(word)}</{kind}>" for word in words) + "</tr>"

    return "<table>" + line("th", heads) + "".join(line("td", row) for row in rows) + "</table>"
