"""An allocator that only counts, for demonstrations without a GPU. It records what PyTorch would, and gives a snapshot of it."""

from __future__ import annotations

import sys
from typing import Any

_PAGE = 2 << 20
_BASE = 0x7F00_0000_0000
# An allocation takes as long as a step of a program that computes something.
_MICROSECONDS = 1500


class Block:
    """Memory, until nobody has it or a view of it."""

    def __init__(self, allocator: Allocator, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        self.address, self.size, self.frames = address, size, frames
        self._allocator = allocator

    def __getitem__(self, _part: slice) -> Block:
        # A view: it keeps all of it.
        return self

    def __del__(self) -> None:
        self._allocator.free(self)


class Allocator:
    """Gives the first gap that is long enough, and grows at its end."""

    def __init__(self) -> None:
        self.trace: list[dict[str, Any]] = []
        self._live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self._mapped = 0

    def empty(self, size: int) -> Block:
        """Memory of ``size`` bytes, with the stack of who asks for it."""
        frames = _frames()
        address = self._gap(size)
        if address + size > _BASE + self._mapped:
            grown = -(-(address + size - _BASE - self._mapped) // _PAGE) * _PAGE
            self._log("segment_map", _BASE + self._mapped, grown, frames)
            self._mapped += grown
        self._live[address] = (size, frames)
        self._log("alloc", address, size, frames)
        return Block(self, address, size, frames)

    def free(self, block: Block) -> None:
        """Takes it back."""
        del self._live[block.address]
        for action in ("free_requested", "free_completed"):
            self._log(action, block.address, block.size, block.frames)

    def snapshot(self) -> dict[str, Any]:
        """What there is and what happened, as ``torch.cuda.memory._snapshot()`` has it."""
        blocks, at = [], _BASE
        for address in [*sorted(self._live), _BASE + self._mapped]:
            if address > at:
                blocks.append({"address": at, "size": address - at, "requested_size": 0, "state": "inactive", "frames": []})
            size, frames = self._live.get(address, (0, []))
            if size:
                blocks.append({"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames})
            at = address + size
        live = sum(size for size, _ in self._live.values())
        segment = {
            "device": 0, "address": _BASE, "total_size": self._mapped, "allocated_size": live, "active_size": live, "requested_size": live,
            "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": True, "frames": [], "blocks": blocks,
        }  # fmt: skip
        return {
            "segments": [segment], "device_traces": [self.trace], "allocator_settings": {"expandable_segments": True}, "external_annotations": [],
        }  # fmt: skip

    def _gap(self, size: int) -> int:
        at = _BASE
        for address in sorted(self._live):
            if address - at >= size:
                break
            at = address + self._live[address][0]
        return at

    def _log(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        time = 1_700_000_000_000_000 + _MICROSECONDS * len(self.trace)
        self.trace.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": time, "frames": frames})


def _frames() -> list[dict[str, Any]]:
    frame: Any = sys._getframe(2)
    frames = []
    while frame is not None:
        frames.append({"filename": frame.f_code.co_filename, "line": frame.f_lineno, "name": frame.f_code.co_name})
        frame = frame.f_back
    return frames
