"""Recordings as a page. The library draws, so that neither PyTorch nor a GPU is needed."""

from __future__ import annotations

import ctypes
import html
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Callable, Sequence, Union

from cuda_mem_torch import _library

AnyPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
# What is being done, how much of it is done, and how much there is; 0 if that is not known.
Progress = Callable[[str, int, int], None]

# A larger page is shown as a link: a notebook would keep a copy of it in its own file.
_INLINE_BYTES = 8 << 20


class Page:
    """A page that was written. ``os.fspath()`` gives its path, and a notebook shows it."""

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(os.fsdecode(path))
        # As bytes, which need not be UTF-8.
        self._file = os.fsencode(path)
        if b"\0" in self._file:
            # C would end the path there.
            raise ValueError("embedded null byte")

    def __fspath__(self) -> str:
        return str(self.path)

    def __bytes__(self) -> bytes:
        return self._file

    def __repr__(self) -> str:
        return f"Page({str(self.path)!r})"

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        name = html.escape(str(self.path), quote=True)
        try:
            size = self.path.stat().st_size
            if size <= _INLINE_BYTES:
                text = html.escape(self.path.read_text(encoding="utf-8"), quote=True)
                return f'<iframe srcdoc="{text}" title="{name}" style="width:100%;height:800px;border:0"></iframe>'
        except OSError as error:
            return f"<p>{name} cannot be read: {html.escape(str(error))}</p>"
        return f'<p><a href="{name}" target="_blank">{name}</a> ({size / 1e6:.0f} MB)</p>'


@dataclass(frozen=True)
class Recording:
    """A snapshot or a trace: the path of its file, or its bytes with a name."""

    source: AnyPath
    name: str | None = None
    is_file: bool = False


def file(path: AnyPath, name: str | None = None) -> Recording:
    """The recording in a file."""
    return Recording(bytes(Page(path)), name, is_file=True)


def of_process(torch: ModuleType) -> Recording:
    """What PyTorch has recorded of this process, and its memory now."""
    return Recording(pickle.dumps(torch.cuda.memory._snapshot()), f"process {os.getpid()}")


class _Recording(ctypes.Structure):
    _fields_ = [("path", ctypes.c_char_p), ("data", ctypes.c_char_p), ("size", ctypes.c_size_t), ("name", ctypes.c_char_p)]


_PROGRESS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)


class _Drawing(ctypes.Structure):
    _fields_ = [
        ("inputs", ctypes.POINTER(_Recording)),
        ("count", ctypes.c_size_t),
        ("before", ctypes.POINTER(_Recording)),
        ("title", ctypes.c_char_p),
        ("device", ctypes.c_int),
        ("page", ctypes.c_char_p),
        ("perfetto", ctypes.c_char_p),
        ("folded", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("progress", _PROGRESS),
    ]


def _told(recording: Recording) -> _Recording:
    name = None if recording.name is None else recording.name.encode()
    data = os.fsencode(recording.source)
    return _Recording(path=data, name=name) if recording.is_file else _Recording(data=data, size=len(data), name=name)


def draw(
    inputs: Sequence[Recording],
    *,
    page: Page | None = None,
    perfetto: Page | None = None,
    folded: Page | None = None,
    before: Recording | None = None,
    title: str | None = None,
    device: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Draws recordings, of which several share the page, and writes what was asked for. Raises ``ValueError`` for what cannot be read or
    written, with which file it is and what is wrong."""
    if device is not None and not 0 <= device < 1 << 31:
        raise ValueError(f"the device is {device}, which is none; accepted: a number from 0 on")
    told = (_Recording * len(inputs))(*map(_told, inputs))

    def tell(_data: int | None, stage: bytes, done: int, total: int) -> None:
        if progress is not None:
            progress(stage.decode(), done, total)

    drawing = _Drawing(
        inputs=told,
        count=len(inputs),
        before=None if before is None else ctypes.pointer(_told(before)),
        title=None if title is None else title.encode(),
        device=-1 if device is None else device,
        page=None if page is None else bytes(page),
        perfetto=None if perfetto is None else bytes(perfetto),
        folded=None if folded is None else bytes(folded),
        progress=_PROGRESS(tell),
    )
    _library.check(_library.load().cuda_mem_torch_draw(ctypes.byref(drawing)))
