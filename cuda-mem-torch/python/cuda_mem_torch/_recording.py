"""Pages of what a program does: of a part of it, and of the moment when memory runs out. With PyTorch's own allocator too."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import os
import sys
import time
from types import ModuleType
from typing import Any, Iterator

from cuda_mem_torch import _drawing, _library, _terminal
from cuda_mem_torch._errors import CudaMemError

_log = logging.getLogger("cuda_mem_torch")

# How many events are kept, the newest ones.
_ENTRIES = 1_000_000
# A program that goes on after it ran out of memory, and does so again and again, shall not write a page each time.
_PAUSE_SECONDS = 60.0


def pytorch() -> ModuleType:
    """Any PyTorch with CUDA: nothing is put into it."""
    try:
        torch = importlib.import_module("torch")
    except Exception as error:
        raise CudaMemError(f"PyTorch could not be imported ({error})") from error
    if torch.version.cuda is None:
        raise CudaMemError(f"PyTorch {torch.__version__} was built without CUDA, so it has no history of its memory")
    return torch


def start(torch: ModuleType, entries: int, stacks: str) -> bool:
    """Has PyTorch record what happens, pinned host memory included where it can (2.14); whether it did not already."""
    _library.number("max_entries", entries)
    if stacks not in ("python", "all"):
        raise ValueError(f"stacks is {stacks!r}; accepted: 'python', 'all'")
    # Before that there is no allocator that could be asked.
    torch.cuda.init()
    if torch._C._cuda_isHistoryEnabled():
        return False
    memory = torch.cuda.memory
    accepted = inspect.signature(getattr(memory, "_record_memory_history_impl", memory._record_memory_history)).parameters
    pinned = {"record_pinned_host_memory": True} if "record_pinned_host_memory" in accepted else {}
    memory._record_memory_history(max_entries=entries, stacks=stacks, **pinned)
    return True


@contextlib.contextmanager
def record(
    path: str | os.PathLike[str] = "run.html", *, max_entries: int = _ENTRIES, stacks: str = "python"
) -> Iterator[_drawing.Page]:
    """Records the events of memory inside of ``with``, and writes a page of them at the end, also when an exception ends it.

        with cuda_mem_torch.record("run.html"):
            train()

    Works with PyTorch's own allocator and with this one. ``stacks`` is PyTorch's: ``"python"``, or ``"all"`` with those of C++, which
    takes much longer. A recording that runs already goes on as it is. Ranks of ``torchrun`` write a page each, ``run-rank0.html`` and so on.
    In a notebook, what ``with ... as page`` gives shows the page. Raises ``ValueError`` if there is no folder for it.
    """
    page = _page(path)
    torch = pytorch()
    started, process = start(torch, max_entries, stacks), os.getpid()
    try:
        yield page
    finally:
        failing = sys.exc_info()[0] is not None
        try:
            # In a forked child it is the parent's.
            if os.getpid() == process:
                _drawing.draw([_drawing.of_process(torch)], page=page, title=f"process {process}")
        except Exception as error:
            # The program's own exception says more.
            if not failing:
                raise
            _log.warning("%s could not be written: %s", page, error)
        finally:
            # If on_oom() was called inside, its page needs the history.
            if started and _out_of_memory.page is None:
                torch.cuda.memory._record_memory_history(enabled=None)


class _OutOfMemory:
    """Writes a page when memory runs out."""

    def __init__(self) -> None:
        self.page: _drawing.Page | None = None
        self.options: tuple[int, str] = (_ENTRIES, "python")
        self._heard: set[str] = set()
        self._last: float | None = None

    def attach(self, torch: ModuleType, entries: int, stacks: str) -> None:
        """Listens to the allocator that is installed, once: none can be left again. Has it record its history."""
        start(torch, entries, stacks)
        self.options = (entries, stacks)
        allocator = str(torch.cuda.get_allocator_backend())
        if allocator not in self._heard:
            torch._C._cuda_attach_out_of_memory_observer(self.hear)
            # This allocator passes its observers on to PyTorch's own.
            self._heard |= {allocator, "native"}

    def hear(self, device: int, asked: int, total: int, free: int) -> None:
        """What PyTorch calls. An exception here would end the program in the place of the error that it can handle."""
        now, page = time.monotonic(), self.page
        if page is None or (self._last is not None and now - self._last < _PAUSE_SECONDS):
            return
        self._last = now
        words = f"GPU {device} ran out of memory at a request of {_terminal.size(asked)}"
        try:
            _drawing.draw([_drawing.of_process(sys.modules["torch"])], page=page, title=f"process {os.getpid()}: {words}")
            print(f"cuda_mem_torch: {words}; who holds it: {page}", file=sys.stderr)
        except Exception as error:
            print(f"cuda_mem_torch: {words}; {page} could not be written: {error}", file=sys.stderr)


_out_of_memory = _OutOfMemory()


def on_oom(
    path: str | os.PathLike[str] | None = "oom.html", *, max_entries: int = _ENTRIES, stacks: str = "python"
) -> None:
    """Writes a page when memory runs out: which lines of code hold it, and what was free then. At most one page a minute.

        cuda_mem_torch.on_oom("oom.html")

    Works with PyTorch's own allocator and with this one. It records the history from now on, for the stacks. Ranks of
    ``torchrun`` write a page each, ``oom-rank0.html`` and so on. ``None`` ends it. Raises ``ValueError`` if there is no folder for the page.
    """
    if path is None:
        _out_of_memory.page = None
        return
    page = _page(path)
    torch = pytorch()
    _out_of_memory.attach(torch, max_entries, stacks)
    _out_of_memory.page = page


def _page(path: str | os.PathLike[str]) -> _drawing.Page:
    """Where this process's page goes. A folder that is missing would otherwise show when the page is written, behind all of the work."""
    name = os.path.abspath(os.fsdecode(_of_rank(path, os.environ)))
    folder = os.path.dirname(name)
    if not os.path.isdir(folder):
        raise ValueError(f"there is no folder {folder} for the page")
    if os.path.isdir(name):
        raise ValueError(f"{name} is a folder, not a page")
    return _drawing.Page(name)


def _of_rank(path: str | os.PathLike[str], environment: Any) -> str | os.PathLike[str]:
    rank = environment.get("RANK", "")
    if not rank.isdecimal() or environment.get("WORLD_SIZE", "1") == "1":
        return path
    stem, ending = os.path.splitext(os.fsdecode(path))
    return f"{stem}-rank{rank}{ending}"


def follow(torch: ModuleType) -> None:
    """Another allocator was installed: what listened goes on with it."""
    if _out_of_memory.page is not None:
        _out_of_memory.attach(torch, *_out_of_memory.options)
