"""``python -m cuda_mem_torch demo``: a leak, and the page that names its line."""

from __future__ import annotations

import argparse
import copy
import importlib
import pickle
from pathlib import Path
from typing import Any, Callable

from cuda_mem_torch import _drawing, _leak, _recording, _simulated, _terminal

_HELP = "run a small program that leaks, and show the page that names the line"
_MORE = """\
With PyTorch and a GPU it runs there, with PyTorch's own allocator; elsewhere on an allocator that only counts.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Makes the command known."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("demo", help=_HELP, description=f"{_HELP[0].upper()}{_HELP[1:]}.\n\n{_MORE}", formatter_class=formatter)
    parser.add_argument("-o", "--out", type=Path, default=Path("demo.html"), metavar="PAGE", help="where the page goes (default: demo.html)")
    parser.add_argument("--simulated", action="store_true", help="without the GPU, though there is one")
    parser.add_argument("--no-open", action="store_true", help="write the page and open no browser")
    parser.set_defaults(run=run)


def _program() -> Callable[[Callable[[int], Any]], list[Any]]:
    """The program as a script of the user's own would be: its stacks say ``leak.py``."""
    names: dict[str, Any] = {"__name__": "leak"}
    exec(compile(Path(_leak.__file__).read_text(encoding="utf-8"), "leak.py", "exec"), names)
    train: Callable[[Callable[[int], Any]], list[Any]] = names["train"]
    return train


def _on_gpu() -> dict[str, Any] | None:
    """The snapshot of a run on a GPU; None without one."""
    try:
        torch = importlib.import_module("torch")
        usable = torch.cuda.is_available()
    except Exception:
        # Whatever keeps PyTorch from working here.
        return None
    if not usable:
        return None
    _recording.start(torch, 1_000_000, "python")
    kept = _program()(lambda size: torch.empty(size, dtype=torch.uint8, device="cuda"))
    snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    del kept
    torch.cuda.memory._record_memory_history(enabled=None)
    return snapshot


def _without_gpu() -> dict[str, Any]:
    allocator = _simulated.Allocator()
    kept = _program()(allocator.empty)
    # It shares the list of events with the allocator, which hears of the ends of these.
    snapshot = copy.deepcopy(allocator.snapshot())
    del kept
    return snapshot


def run(arguments: argparse.Namespace) -> int:
    """Runs the program and draws the page."""
    page = _drawing.Page(arguments.out)
    print(f"leak.py ({_leak.__file__}) keeps {_leak.STEPS // 5} batches that it does not need.")
    snapshot = None if arguments.simulated else _on_gpu()
    where = "on the GPU" if snapshot else "simulated: it ran on no GPU"
    recording = _drawing.Recording(pickle.dumps(snapshot or _without_gpu()), f"demo ({where})")
    _drawing.draw([recording], page=page, title=f"A leak ({where})")
    opened = not arguments.no_open and _terminal.show(page.path)
    print(f"The page names the line. Figures {where}.\n{page}: {'opened' if opened else 'open it in a browser'}")
    return 0
