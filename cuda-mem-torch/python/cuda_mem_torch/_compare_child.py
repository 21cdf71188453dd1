"""Runs a program with one allocator and writes down what it took: the child of ``python -m cuda_mem_torch compare``.

    python -m cuda_mem_torch._compare_child ORDER -- train.py --epochs 1

ORDER is a JSON object: ``allocator``; ``out``, where the result goes; ``steps``, after how many the program ends; ``limit``, bytes of each device;
``record``, where a snapshot with its history goes. The last three may be null. The result is a JSON object with ``end``: ``"end"``, ``"steps"``,
``"memory"`` or ``"error"``, with its ``text``; and the figures."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from cuda_mem_torch._install import Enabled

OURS = "cuda-mem"

# Steps that are not timed: they compile, choose kernels, and get memory for the first time.
_WARM_UP = 2
_ENTRIES = 300_000


class Enough(BaseException):
    """The program has taken as many steps as it was to take. No ``except Exception`` of the program's stops it."""


class Steps:
    """Counts and times the steps of the program's first optimizer; others go along with it."""

    def __init__(self, torch: ModuleType, most: int | None) -> None:
        self.count = 0
        self.begun: float | None = None
        self._torch, self._most, self._first = torch, most, None
        # `torch.optim` takes the name away again.
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(self._step)

    def _step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._first is None:
            self._first = id(optimizer)
        if id(optimizer) != self._first:
            return
        self.count += 1
        if self.count == _WARM_UP:
            # Once: what was given to the device before is not timed.
            self._torch.cuda.synchronize()
            self.begun = time.perf_counter()
        if self.count == self._most:
            raise Enough

    def seconds_a_step(self) -> float | None:
        """With the device's work, which is done by now; None for too few steps."""
        timed = self.count - _WARM_UP
        return None if self.begun is None or timed < 1 else (time.perf_counter() - self.begun) / timed


class Figures:
    """Peaks and counts of all devices, also of the time before a program resets them."""

    def __init__(self, torch: ModuleType) -> None:
        self._cuda = torch.cuda
        self._peaks: dict[int, list[int]] = {}
        self._counts = [0, 0]
        for name in ("_cuda_resetPeakMemoryStats", "_cuda_resetAccumulatedMemoryStats", "_accelerator_resetPeakStats", "_accelerator_resetAccumulatedStats"):
            self._keep_before(torch._C, name, counts="Accumulated" in name)

    def _keep_before(self, module: Any, name: str, counts: bool) -> None:
        reset = getattr(module, name, None)
        if reset is None:
            return

        def keep_and_reset(*args: Any) -> Any:
            self._look(counts)
            return reset(*args)

        setattr(module, name, keep_and_reset)

    def _look(self, counts: bool) -> None:
        # Asked anew: the program may have hidden some (CUDA_VISIBLE_DEVICES) before it used any.
        for device in range(self._cuda.device_count()):
            stats = self._cuda.memory.memory_stats(device)
            live, reserved = self._peaks.get(device, (0, 0))
            live = max(live, stats.get("allocated_bytes.all.peak", 0))
            self._peaks[device] = [live, max(reserved, stats.get("reserved_bytes.all.peak", 0))]
            if counts:
                self._counts[0] += stats.get("num_alloc_retries", 0)
                self._counts[1] += stats.get("num_ooms", 0)

    def read(self) -> dict[str, Any]:
        """The sums over all devices, and what was reserved of each."""
        self._look(counts=True)
        live, reserved = ([peaks[place] for peaks in self._peaks.values()] for place in (0, 1))
        sums = {"peak_live": sum(live), "peak_reserved": sum(reserved)}
        return {**sums, "reserved_of": reserved, "retries": self._counts[0], "failed": self._counts[1]}


class NotEnabled(Enabled):
    """What a program gets from ``enable()`` in a run with another allocator."""

    def __repr__(self) -> str:
        return f"<cuda_mem_torch {self.version} is not enabled: this run is with another allocator>"


def _limit(torch: ModuleType, limits: list[int]) -> None:
    for device, bytes in enumerate(limits):
        # A device that the program does not use gets no context here.
        if bytes:
            total = torch.cuda.mem_get_info(device)[1]
            torch.cuda.set_per_process_memory_fraction(min(1.0, bytes / total), device)


def _run(program: list[str]) -> None:
    """As ``python`` runs it."""
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = program
    sys.path[0] = str(Path(program[0]).resolve().parent)
    runpy.run_path(program[0], run_name="__main__")


def _end_of(torch: ModuleType, program: list[str]) -> tuple[str, str]:
    """How the program ended, and why."""
    try:
        _run(program)
    except Enough:
        return "steps", ""
    except SystemExit as exit:
        return ("end", "") if exit.code in (None, 0) else ("error", f"exit code {exit.code}")
    except getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError) as error:
        traceback.print_exc()
        return "memory", str(error).split("\n")[0]
    except BaseException as error:
        traceback.print_exc()
        return "error", f"{type(error).__name__}: {error}"
    return "end", ""


def main(order: dict[str, Any], program: list[str]) -> None:
    """Runs it as it is ordered."""
    import torch

    import cuda_mem_torch
    from cuda_mem_torch import _recording

    if order["allocator"] == OURS:
        cuda_mem_torch.enable()
    else:
        # A program may call it itself; its row would have the figures of another allocator.
        told = cuda_mem_torch.__version__, torch.__version__, torch.version.cuda
        setattr(cuda_mem_torch, "enable", lambda **_options: NotEnabled(*told, late=torch.cuda.is_initialized(), settings=""))
    own = os.getpid()

    def begin() -> None:
        # A child that the program forks inherits this call, and is not measured.
        if order["limit"] and os.getpid() == own:
            _limit(torch, order["limit"])
        if order["record"] and os.getpid() == own:
            _recording.start(torch, _ENTRIES, "python")

    # As soon as the program initialises CUDA, and no sooner: it may fork before, or choose among the devices.
    torch.cuda._lazy_call(begin)
    figures, steps, begun = Figures(torch), Steps(torch, order["steps"]), time.perf_counter()
    end, text = _end_of(torch, program)
    if os.getpid() != own:
        # A child that the program forked has come to its end here. The result is the program's.
        sys.exit(end == "error")
    result = {"end": end, "text": text, "steps": steps.count}
    if torch.cuda.is_initialized():
        if end != "memory":
            torch.cuda.synchronize()
        result["device"] = torch.cuda.get_device_name()
        result["seconds_a_step"] = steps.seconds_a_step()
    result.update(figures.read(), seconds=time.perf_counter() - begun, torch=torch.__version__)
    if order["record"]:
        # A program that has not initialised it leaves a snapshot too.
        torch.cuda.init()
        torch.cuda.memory._dump_snapshot(order["record"])
    Path(order["out"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[3:])
