"""Memory of a tag goes back to the device, and comes back at the same addresses."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import operator
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, SupportsIndex

from cuda_mem_torch import _install, _library, _terminal, _torch
from cuda_mem_torch._errors import CudaMemError

if TYPE_CHECKING:
    import torch

    Device = torch.device | int | str | None
    Tags = str | Iterable[str] | None

_TAGS = "accepted: a name, several, or None for all"
_BACKUPS = {"pinned": 0, "discard": 1}
_RESTORE_BACKUP, _RESTORE_NOTHING = -1, -2


class _Range(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class _Slept(ctypes.Structure):
    _fields_ = [("freed", ctypes.c_size_t), ("saved", ctypes.c_size_t), ("missing", ctypes.c_size_t)]


class _State(ctypes.Structure):
    _fields_ = [
        ("awake_bytes", ctypes.c_size_t), ("asleep_bytes", ctypes.c_size_t), ("backup_bytes", ctypes.c_size_t), ("is_asleep", ctypes.c_bool)
    ]


_KEPT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _Range, ctypes.c_size_t, ctypes.c_char_p)
_REFUSED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _Range, ctypes.c_char_p)
_NOTICE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p)
_TAG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_State))
_TAG_OF = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_bool)
_CHANGE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_bool, ctypes.POINTER(_Range), ctypes.c_size_t
)


class _Visitor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kept", _KEPT), ("refused", _REFUSED), ("notice", _NOTICE)]


class _PoolId(ctypes.Structure):
    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


@dataclasses.dataclass(frozen=True)
class Kept:
    """A range that stayed awake, the bytes that stayed for it, and the reason."""

    address: int
    size: int
    stayed: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Notice:
    """The call of a registrant for a change: how long it took, and its error."""

    callback: Callable[[BackingChange], object] | None
    seconds: float
    error: str | None


@dataclasses.dataclass(frozen=True)
class Slept:
    """The result of :func:`sleep`, in bytes. ``missing`` was given back and is not free: another holder has it, or another process took it."""

    freed: int
    saved: int
    missing: int
    kept: list[Kept]
    refused: list[tuple[int, int, str]]
    notices: list[Notice]

    def __str__(self) -> str:
        lines = [f"freed {_terminal.size(self.freed)}, saved {_terminal.size(self.saved)}"]
        if self.missing:
            lines.append(f"missing {_terminal.size(self.missing)}: another holder (an export, an import) has it, or another process took it")
        lines += [f"kept {_terminal.size(kept.stayed)} for {kept.reason} ({kept.size} bytes at {kept.address:#x})" for kept in self.kept]
        lines += [f"refused {_terminal.size(size)} at {address:#x}: {why}" for address, size, why in self.refused]
        return "\n".join(lines + _failures(self.notices))


class Woken(list[Notice]):
    """The result of :func:`wake`: the calls of registrants, as a list, and the bytes that woke of each tag that slept."""

    def __init__(self, notices: Iterable[Notice], tags: dict[str, int]) -> None:
        super().__init__(notices)
        self.tags = tags

    def __str__(self) -> str:
        of = f" of {', '.join(self.tags)}" if self.tags else ": no tag slept"
        lines = [f"woke {_terminal.size(sum(self.tags.values()))}{of}"]
        return "\n".join(lines + _failures(self))

    def __repr__(self) -> str:
        return f"Woken({super().__repr__()}, tags={self.tags!r})"


@dataclasses.dataclass(frozen=True)
class TagState:
    """How much of a tag is awake, in bytes; ``backup`` is pinned host memory."""

    is_asleep: bool
    awake: int
    asleep: int
    backup: int


@dataclasses.dataclass(frozen=True)
class BackingChange:
    """Memory of a tag is about to go, or has come: addresses with their sizes."""

    device: int
    tag: str
    is_leaving: bool
    ranges: list[tuple[int, int]]


class Registrant:
    """A callback of :func:`on_backing_change`, until :meth:`remove`."""

    def __init__(self, callback: Callable[[BackingChange], object]) -> None:
        if not callable(callback):
            raise TypeError(f"callback is {callback!r}; accepted: what can be called with a BackingChange")
        self._callback: Callable[[BackingChange], object] | None = callback
        self._error = ""

        def change(_data: int | None, device: int, tag: bytes, is_leaving: bool, ranges: Any, count: int) -> int:
            self._error, callback = "", self._callback
            if callback is None:  # a change that was under way when it was removed
                return 0
            try:
                told = [(ranges[at].address or 0, ranges[at].bytes) for at in range(count)]
                callback(BackingChange(device, tag.decode(), is_leaving, told))
            except BaseException as error:  # noqa: BLE001 - nothing may be thrown into the library, which reports it
                self._error = f"{type(error).__name__}: {error}"
                return 1
            return 0

        self._change, number = _CHANGE(change), ctypes.c_uint64()
        _library.check(_load().cuda_mem_torch_attach_backing_change(self._change, None, ctypes.byref(number)))
        self.number = number.value
        # The library calls it until it is detached.
        _REGISTRANTS[self.number] = self

    def remove(self) -> None:
        """Detaches the callback. Calling it again does nothing."""
        if _REGISTRANTS.pop(self.number, None) is not None:
            _library.check_end(_library.load().cuda_mem_torch_detach_backing_change(self.number))
            # A change that is under way in another thread may still be told. What the program passed is not kept for it.
            self._callback = None
            _REMOVED.append(self._change)

    def __enter__(self) -> Registrant:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


_REGISTRANTS: dict[int, Registrant] = {}
_REMOVED: list[Any] = []


class Tag:
    """A tag of a device: what is allocated in ``with`` is the tag's, and sleeps and wakes with it. Scopes nest."""

    def __init__(self, name: str, device: Device = None) -> None:
        self.name, self.device, self._word = name, _torch.device_index(device), _library.word("the tag", name)

    def __enter__(self) -> Tag:
        _library.check(_load().cuda_mem_torch_enter_tag(self.device, self._word))
        return self

    def __exit__(self, *_: object) -> None:
        _library.check_end(_library.load().cuda_mem_torch_leave_tag(self.device, self._word))

    def add(self, pool: torch.cuda.MemPool | tuple[int, int]) -> None:
        """Gives it a ``MemPool``, or a graph's pool by its handle, that has no memory yet: all of its memory is the tag's. A handle's pool is
        there until the last graph that uses it has gone, and can be given again then."""
        id = getattr(pool, "id", pool)
        if not (isinstance(id, tuple) and len(id) == 2):
            raise TypeError(f"the pool is {pool!r}; accepted: a MemPool, or the handle of a graph's pool, which is two numbers")
        numbers = [_library.number("a number of the pool's handle", number) for number in id]
        _library.check(_load().cuda_mem_torch_add_pool_to_tag(self.device, self._word, _PoolId(*numbers)))

    def prepare(self) -> int:
        """Allocates the host memory for the next sleep ahead, for the memory that is live now; returns its bytes."""
        return self._backup("cuda_mem_torch_prepare_backup")

    def release_backup(self) -> int:
        """Frees the host memory that is kept for the next sleep; returns its bytes."""
        return self._backup("cuda_mem_torch_release_backup")

    def _backup(self, function: str) -> int:
        size = ctypes.c_size_t()
        _library.check(getattr(_load(), function)(self.device, self._word, ctypes.byref(size)))
        return size.value

    def __repr__(self) -> str:
        return f"<cuda_mem_torch tag {self.name!r} of cuda:{self.device}>"


def tag(name: str, device: Device = None) -> Tag:
    """The tag of that name of a device, the current one unless one is named: ``with cuda_mem_torch.tag("weights"): ...``."""
    return Tag(name, device)


def sleep(tags: Tags = None, backup: str = "pinned", device: Device = None) -> Slept:
    """Puts tags to sleep, all that the device has unless some are named: their memory goes back to the driver, their addresses stay.
    ``backup`` is ``"pinned"`` or ``"discard"``. Waits for the device first; nothing that uses the memory may be queued before
    :func:`wake`. What has to stay is named in the result."""
    if backup not in tuple(_BACKUPS):
        raise ValueError(f"backup is {backup!r}; accepted: {', '.join(map(repr, _BACKUPS))}")
    number, words = _torch.device_index(device), _words(tags)
    kept: list[Kept] = []
    refused: list[tuple[int, int, str]] = []
    notices: list[Notice] = []
    visitor = _visitor(kept, refused, notices)
    slept = _Slept()
    _library.check(_load().cuda_mem_torch_sleep(number, words, len(words), _BACKUPS[backup], ctypes.byref(slept), ctypes.byref(visitor)))
    return Slept(slept.freed, slept.saved, slept.missing, kept, refused, notices)


def wake(tags: Tags = None, restore: bool | int = True, device: Device = None) -> Woken:
    """Wakes tags at the addresses that they had, all or none. With ``restore=True`` memory has its old bytes where there is a backup, and
    undefined ones where that was discarded; with ``False`` undefined ones; with a number from 0 to 255 that in each byte. Raises if there is not enough memory: all of them sleep on, and it can be tried again.
    The result is a list of the calls of registrants; its text says what woke."""
    restored, number, words = _restored(restore), _torch.device_index(device), _words(tags)
    notices: list[Notice] = []
    visitor = _visitor([], [], notices)
    # The call itself does not say what slept.
    names = [word.decode() for word in words]
    asleep = {name: state.asleep for name, state in _states(number).items() if state.is_asleep and (not names or name in names)}
    _library.check(_load().cuda_mem_torch_wake(number, words, len(words), restored, ctypes.byref(visitor)))
    return Woken(notices, asleep)


def _restored(restore: object) -> int:
    if isinstance(restore, bool):
        return _RESTORE_BACKUP if restore else _RESTORE_NOTHING
    if isinstance(restore, SupportsIndex) and 0 <= operator.index(restore) <= 255:
        return operator.index(restore)
    raise ValueError(f"restore is {restore!r}; accepted: True, False, a byte from 0 to 255")


@contextlib.contextmanager
def keep(tensor: torch.Tensor, reason: str = "kept by the program") -> Iterator[torch.Tensor]:
    """Has the memory of a tensor of a tag stay awake in ``with``: a library registered it, or another process has it."""
    _library.expect_tensor(tensor, on_device=True)
    storage, kept, why = tensor.untyped_storage(), ctypes.c_void_p(), _library.word("the reason", reason)
    _library.check(_load().cuda_mem_torch_keep(storage.data_ptr(), storage.nbytes(), why, ctypes.byref(kept)))
    try:
        yield tensor
    finally:
        _library.check_end(_library.load().cuda_mem_torch_let_move(kept))


def state(device: Device = None) -> dict[str, TagState]:
    """How much of each tag of a device is awake."""
    return _states(_torch.device_index(device))


def _states(device: int) -> dict[str, TagState]:
    found: dict[str, TagState] = {}

    def told(_data: int | None, _device: int, tag: bytes, state: Any) -> None:
        now = state[0]
        found[tag.decode()] = TagState(now.is_asleep, now.awake_bytes, now.asleep_bytes, now.backup_bytes)

    _library.check(_load().cuda_mem_torch_tags(device, None, _TAG(told)))
    return found


def read_backup(tensor: torch.Tensor) -> bytes:
    """The bytes of a contiguous tensor whose tag sleeps, as its backup has them."""
    _library.expect_tensor(tensor, on_device=True)
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous")
    size, read = tensor.numel() * tensor.element_size(), ctypes.c_size_t()
    target = (ctypes.c_char * size)()
    _library.check(_load().cuda_mem_torch_read_backup(tensor.data_ptr(), target, size, ctypes.byref(read)))
    if read.value < size:
        raise CudaMemError(f"the backup has {read.value} of the tensor's {size} bytes; the others were discarded")
    return target.raw


def on_backing_change(callback: Callable[[BackingChange], object]) -> Registrant:
    """Calls ``callback`` before memory of a tag goes and after it came, with no lock held, in the order of registration. Exceptions that it
    raises are reported by :func:`sleep` and :func:`wake`, and stop nothing."""
    return Registrant(callback)


def set_limit(size: int | None, device: Device = None) -> int:
    """Sets the most bytes that may be held of a device; None is no limit. It may be less than is held: what is free goes back now, and the
    result is how much."""
    freed = ctypes.c_size_t()
    most = (1 << 64) - 1 if size is None else _library.number("size", size)
    _library.check(_load().cuda_mem_torch_set_limit(_torch.device_index(device), most, ctypes.byref(freed)))
    return freed.value


@contextlib.contextmanager
def checking() -> Iterator[None]:
    """In ``with``, an operation on a tensor whose memory sleeps raises, and names the tag. For debugging: each operation is looked at, but
    for those on sparse tensors."""
    torch = _torch.load()
    from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
    from torch.utils._pytree import tree_flatten

    def look_at(value: Any, function: str) -> None:
        if is_traceable_wrapper_subclass(value):
            # It is made of other tensors, as a DTensor is, and has no memory itself.
            for name in value.__tensor_flatten__()[0]:
                look_at(getattr(value, name), function)
        elif isinstance(value, torch.Tensor) and value.is_cuda and value.layout == torch.strided:
            _refuse_asleep(value, function)

    class Checking(TorchDispatchMode):
        supports_higher_order_operators = True

        def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # Views and shapes read no memory. Operators of operators are no views.
            if not getattr(function, "is_view", False):
                for value in tree_flatten((args, kwargs or {}))[0]:
                    look_at(value, str(function))
            return function(*args, **(kwargs or {}))

    with Checking():
        yield


def _refuse_asleep(tensor: torch.Tensor, function: str) -> None:
    asleep: list[str] = []

    def told(_data: int | None, _device: int, tag: bytes, is_asleep: bool) -> None:
        if is_asleep:
            asleep.append(tag.decode())

    # Of memory that no tag has it says so, which is no error here.
    _load().cuda_mem_torch_tag_of(tensor.data_ptr(), None, _TAG_OF(told))
    if asleep:
        what = f"a tensor of shape {tuple(tensor.shape)} at {tensor.data_ptr():#x}"
        raise CudaMemError(f"{function} uses {what}, whose tag {asleep[0]!r} sleeps: wake it first")


def _visitor(kept: list[Kept], refused: list[tuple[int, int, str]], notices: list[Notice]) -> _Visitor:
    def of_kept(_data: int | None, range: _Range, stayed: int, reason: bytes) -> None:
        kept.append(Kept(range.address or 0, range.bytes, stayed, reason.decode()))

    def of_refused(_data: int | None, range: _Range, why: bytes) -> None:
        refused.append((range.address or 0, range.bytes, why.decode()))

    def of_notice(_data: int | None, number: int, nanoseconds: int, error: bytes | None) -> None:
        registrant = _REGISTRANTS.get(number)
        text = None if error is None else (registrant and registrant._error) or error.decode()
        notices.append(Notice(registrant and registrant._callback, nanoseconds / 1e9, text))

    return _Visitor(None, _KEPT(of_kept), _REFUSED(of_refused), _NOTICE(of_notice))


def _load() -> ctypes.CDLL:
    if not _install.is_enabled():
        raise CudaMemError("tags and limits are of this allocator, which is not enabled: call cuda_mem_torch.enable() first")
    library = _library.load()
    if not getattr(library, "has_types_of_sleep", False):
        pointer, size, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
        library.cuda_mem_torch_enter_tag.argtypes = library.cuda_mem_torch_leave_tag.argtypes = [ctypes.c_int, word]
        library.cuda_mem_torch_add_pool_to_tag.argtypes = [ctypes.c_int, word, _PoolId]
        library.cuda_mem_torch_sleep.argtypes = [ctypes.c_int, pointer, size, ctypes.c_int, pointer, pointer]
        library.cuda_mem_torch_wake.argtypes = [ctypes.c_int, pointer, size, ctypes.c_int, pointer]
        library.cuda_mem_torch_keep.argtypes = [pointer, size, word, pointer]
        library.cuda_mem_torch_tags.argtypes = [ctypes.c_int, pointer, _TAG]
        library.cuda_mem_torch_tag_of.argtypes = [pointer, pointer, _TAG_OF]
        library.cuda_mem_torch_prepare_backup.argtypes = [ctypes.c_int, word, pointer]
        library.cuda_mem_torch_release_backup.argtypes = [ctypes.c_int, word, pointer]
        library.cuda_mem_torch_read_backup.argtypes = [pointer, pointer, size, pointer]
        library.cuda_mem_torch_attach_backing_change.argtypes = [_CHANGE, pointer, pointer]
        library.cuda_mem_torch_detach_backing_change.argtypes = [ctypes.c_uint64]
        library.cuda_mem_torch_set_limit.argtypes = [ctypes.c_int, size, pointer]
        library.has_types_of_sleep = True
    return library


def _words(tags: Tags) -> Any:
    if not (tags is None or isinstance(tags, Iterable)):
        raise TypeError(f"tags is {tags!r}; {_TAGS}")
    names = [] if tags is None else [tags] if isinstance(tags, (str, bytes)) else list(tags)
    if tags is not None and not names:
        raise ValueError(f"tags is empty; {_TAGS}")
    return (ctypes.c_char_p * len(names))(*(_library.word("a tag", name) for name in names))


def _failures(notices: Iterable[Notice]) -> list[str]:
    return [f"a registrant failed: {one.error}" for one in notices if one.error]
