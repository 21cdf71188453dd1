"""Runs of a program in processes of their own, for ``python -m cuda_mem_torch compare``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Mapping, Sequence

from cuda_mem_torch import _settings
from cuda_mem_torch._compare_child import OURS

NATIVE, EXPANDABLE = "native", "expandable"
ALLOCATORS = (NATIVE, EXPANDABLE, OURS)

# How much of what a program wrote is shown when it failed.
_LINES = 15
# A search for the smallest limit ends within this share of it.
_WITHIN = 0.02


@dataclass(frozen=True)
class Run:
    """What a run took. ``end`` is how it ended: ``end``, ``steps``, ``memory`` (there was not enough), ``error``; or, with no figures,
    ``crash`` or ``timeout``."""

    end: str
    text: str
    steps: int = 0
    seconds: float = 0.0
    seconds_a_step: float | None = None
    peak_live: int = 0
    peak_reserved: int = 0
    # Of each device.
    reserved_of: Sequence[int] = ()
    retries: int = 0
    failed: int = 0
    torch: str = ""
    device: str = ""

    @property
    def went_well(self) -> bool:
        return self.end in ("end", "steps")

    @property
    def has_figures(self) -> bool:
        return self.end not in ("crash", "timeout")


@dataclass
class Runner:
    """Starts a program again and again."""

    program: list[str]
    folder: Path
    steps: int | None = None
    timeout: float | None = None
    # Hears every half second what runs, and for how long.
    tick: Callable[[str, float], None] = lambda what, seconds: None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def run(self, allocator: str, what: str, limit: list[int] | None = None, record: Path | None = None) -> Run:
        """Runs it once. One that did not even come to its end or to an exception has no figures."""
        out, log = self.folder / "result.json", self.folder / f"{what.replace(' ', '-')}.log"
        out.unlink(missing_ok=True)
        order = {"allocator": allocator, "out": str(out), "steps": self.steps, "limit": limit, "record": record and str(record)}
        command = [sys.executable, "-m", "cuda_mem_torch._compare_child", json.dumps(order), "--", *self.program]
        with open(log, "wb") as written:
            code = self._wait(subprocess.Popen(command, env=environment_of(allocator, self.environment), stdout=written, stderr=written), what)
        if code is None:
            return Run("timeout", f"the program was still running after {self.timeout:.0f} s (--timeout)")
        if not out.is_file():
            return Run("crash", f"the program ended with {_code_text(code)} and left no result")
        return Run(**json.loads(out.read_text()))

    def _wait(self, process: subprocess.Popen[bytes], what: str) -> int | None:
        """The exit code; None if it was still running at the timeout."""
        begun = time.monotonic()
        try:
            while True:
                seconds = time.monotonic() - begun
                self.tick(what, seconds)
                if self.timeout is not None and seconds > self.timeout:
                    return None
                try:
                    return process.wait(0.5)
                except subprocess.TimeoutExpired:
                    pass
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def log_of(self, what: str) -> str:
        """What a run wrote last."""
        log = self.folder / f"{what.replace(' ', '-')}.log"
        lines = log.read_text(errors="replace").splitlines()[-_LINES:]
        return "\n".join(f"  | {line}" for line in lines)

    def smallest_limit(self, allocator: str, run: Run) -> int:
        """The smallest limit, of those that were tried, at which the program ran: between what it had live and what it took without one."""
        too_small, enough = run.peak_live, run.peak_reserved
        while enough - too_small > _WITHIN * enough:
            limit = (too_small + enough) // 2
            # Shared among the devices as what was reserved of them.
            limits = [limit * reserved // run.peak_reserved for reserved in run.reserved_of]
            if self.run(allocator, f"{allocator} within {limit >> 20} MiB", limit=limits).went_well:
                enough = limit
            else:
                too_small = limit
        return enough


def _code_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def environment_of(allocator: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a run: as it is, but for what chooses an allocator."""
    settings = _settings.split(_settings.from_environment(environment))
    kept = [pair for pair in settings if pair.partition(":")[0] not in ("expandable_segments", "backend")]
    if allocator == EXPANDABLE:
        kept.append("expandable_segments:True")
    # The child enables ours itself, before the program begins.
    chosen = {name: value for name, value in environment.items() if name not in (*_settings.VARIABLES, "CUDA_MEM_TORCH")}
    chosen["CUDA_MEM_TORCH"] = "0"
    if kept:
        chosen[_settings.VARIABLES[0]] = ",".join(kept)
    return chosen
