"""Steps of `run_all.py` on tensors that other processes open: many under 1,024 descriptors, without the right to trace, and a graph's buffers.
`sharing.py NAME`; `--list` names them. Each prints its figures."""

import ctypes
import gc
import os
import pickle
import random
import resource
import signal
import struct
import time
from multiprocessing.reduction import ForkingPickler

from figures import GIB, MIB, Steps, pytorch

STEPS = Steps()
DESCRIPTORS = 1024
NOBODY = 65534
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
EPERM, PIDFD_GETFD = 1, 438
REFUSED = "pidfd_getfd: Operation not permitted"


def few_descriptors():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def control(option, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *words) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def deny_taking_descriptors():
    """As containers that filter system calls: `pidfd_getfd` answers EPERM, in every thread of this process from now on."""

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("words", ctypes.c_void_p)]

    # Load the call's number; if it is the one, refuse, else allow. The number is the same on every processor.
    words = [(0x20, 0, 0, 0), (0x15, 0, 1, PIDFD_GETFD), (0x06, 0, 0, 0x00050000 | EPERM), (0x06, 0, 0, 0x7FFF0000)]
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *word) for word in words))
    program = Program(len(words), ctypes.addressof(packed))
    control(PR_SET_NO_NEW_PRIVS, 1)
    number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
    set_filter, all_threads = 1, 1
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), set_filter, all_threads, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        raise AssertionError(f"the filter refuses more than it should: {error}") from error
    if libc.syscall(ctypes.c_long(PIDFD_GETFD), -1, 0, 0) == 0 or ctypes.get_errno() != EPERM:
        raise AssertionError("the filter does not refuse pidfd_getfd")


def ordinary_user():
    """Becomes one, if the process is root's."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    # Who changes users cannot be traced. A program that its user started can.
    control(PR_SET_DUMPABLE, 1)


class Marks:
    """The number of a tensor at its beginning, in its middle and at its end."""

    def __init__(self, torch):
        self.torch = torch
        self.numbers = torch.arange(251, dtype=torch.uint8).repeat_interleave(64).view(251, 64)
        self.seen = torch.empty(64, dtype=torch.uint8)

    @staticmethod
    def parts(tensor):
        middle = tensor.numel() // 2
        return tensor[:64], tensor[middle : middle + 64], tensor[-64:]

    def write(self, tensor, number):
        for part in self.parts(tensor):
            part.copy_(self.numbers[number % 251])

    def are(self, tensor, number):
        return all(self.torch.equal(self.seen.copy_(part), self.numbers[number % 251]) for part in self.parts(tensor))


def receive(arm, setup, queue, back):
    """The other process: opens what it is sent, looks at the bytes, writes others, and lets go."""
    few_descriptors()
    if setup is not None:
        setup()
    # Behind a change of the user, which undoes it.
    control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if arm is None:
        # It was forked with PyTorch as it is.
        import torch
    else:
        torch = pytorch(arm)
    import torch.multiprocessing  # noqa: F401

    back.put("ready")
    messages = queue.get()
    began, tensors, refused = time.monotonic(), [], []
    for message in messages:
        try:
            tensors.append(pickle.loads(message))
        except Exception as error:
            refused.append(f"{type(error).__name__}: {error}")
    seconds, marks = time.monotonic() - began, Marks(torch)
    wrong = sum(not marks.are(tensor, number) for number, tensor in enumerate(tensors))
    for number, tensor in enumerate(tensors):
        marks.write(tensor, number + 1)
    torch.cuda.synchronize()
    back.put(
        {
            "backend": torch.cuda.get_allocator_backend(), "opened": len(tensors), "refused": refused[:3], "wrong": wrong,
            "seconds": seconds, "descriptors": open_descriptors(),
        }
    )
    queue.get()
    del tensors
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.synchronize()
    back.put("done")


def send(torch, context, receiver, setup, sizes_of, pooled=False, prepare=None, refused=None):
    """Has another process open tensors of this one. `refused` is the text that it must answer with instead, where it cannot."""
    few_descriptors()
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=receive, args=(receiver, setup, queue, back), daemon=True)
    process.start()
    if prepare is not None:
        prepare()
    ready = back.get(timeout=100)
    assert ready == "ready", ready
    torch.cuda.init()
    sizes, before, marks = sizes_of(torch), torch.cuda.memory_allocated(), Marks(torch)
    block = lambda bytes: torch.empty(bytes, dtype=torch.uint8, device="cuda")
    if pooled:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            tensors = [block(size) for size in sizes]
    else:
        tensors = [block(size) for size in sizes]
    for number, tensor in enumerate(tensors):
        marks.write(tensor, number)
    torch.cuda.synchronize()
    began = time.monotonic()
    messages = [bytes(ForkingPickler.dumps(tensor)) for tensor in tensors]
    seconds = time.monotonic() - began
    queue.put(messages)
    told = back.get(timeout=200)
    count = len(tensors)
    STEPS.figure("tensors; bytes of them", f"{count}; {sum(sizes) / MIB:.0f}", "MiB")
    STEPS.figure("to share them here; to open them there", f"{seconds:.3f}; {told['seconds']:.3f}", "s")
    # Somebody else's process may not be looked into.
    if os.access("/proc/self/fd", os.R_OK):
        STEPS.at_most("descriptors open here", open_descriptors(), f"of {DESCRIPTORS}", DESCRIPTORS)
    STEPS.at_most("descriptors open there", told["descriptors"], f"of {DESCRIPTORS}", DESCRIPTORS)
    if refused is None:
        STEPS.figure("tensors opened", told["opened"], f"of {count}", "all", told["opened"] == count)
        STEPS.at_most("tensors with other bytes there", told["wrong"], "tensors", 0)
        back_again = sum(not marks.are(tensor, number + 1) for number, tensor in enumerate(tensors)) if told["opened"] == count else count
        STEPS.at_most("tensors without the bytes that were written there", back_again, "tensors", 0)
    else:
        is_so = told["opened"] == 0 and all(refused in text for text in told["refused"])
        STEPS.figure("what the receiver is told", "; ".join(told["refused"][:1]) or f"{told['opened']} opened", "", refused, is_so)
    for text in told["refused"] if refused is None else ():
        print(f"    {text}", flush=True)
    queue.put("over")
    assert back.get(timeout=100) == "done"
    process.join(100)
    assert process.exitcode == 0, process.exitcode
    tensors.clear()
    del tensor
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.synchronize()
    STEPS.at_most("bytes that did not come back", torch.cuda.memory_allocated() - before, "bytes", 0)
    return told


def between(sender, receiver, sizes_of, setup=None, **how):
    torch = pytorch(sender)
    import torch.multiprocessing as multiprocessing

    told = send(torch, multiprocessing.get_context("spawn"), receiver, setup, sizes_of, **how)
    assert told["backend"] == ("cuda-mem" if receiver == "cuda-mem" else "native"), told["backend"]


def many(_torch):
    return [MIB] * 10_000


def any_sizes(torch):
    """16 GiB, or what there is place for, of all magnitudes."""
    draw, sizes = random.Random(0), []
    most = min(16 * GIB, int(torch.cuda.mem_get_info()[0] * 0.8))
    while sum(sizes) < most - 256 * MIB:
        sizes.append(int(512 * (256 * MIB / 512) ** draw.random()))
    return sizes


def some(_torch):
    return [bytes for n in range(20) for bytes in (3000 + n, MIB, 9 * MIB, 21 * MIB + 512)]


def a_few(_torch):
    return [9 * MIB] * 10


@STEPS.step
def many_to_ours():
    between("cuda-mem", "cuda-mem", many)


@STEPS.step
def many_to_native():
    between("cuda-mem", "native", many)


@STEPS.step
def many_from_native():
    between("native", "cuda-mem", many)


@STEPS.step
def any_sizes_to_ours():
    between("cuda-mem", "cuda-mem", any_sizes)


@STEPS.step
def any_sizes_to_native():
    between("cuda-mem", "native", any_sizes)


@STEPS.step
def any_sizes_from_native():
    between("native", "cuda-mem", any_sizes)


@STEPS.step
def any_sizes_from_expandable():
    """The format that names handles, from PyTorch's own allocator."""
    between("expandable", "cuda-mem", any_sizes)


@STEPS.step
def pooled_to_ours():
    """The format that names a segment: private pools."""
    between("cuda-mem", "cuda-mem", some, pooled=True)


@STEPS.step
def pooled_to_native():
    between("cuda-mem", "native", some, pooled=True)


@STEPS.step
def pooled_from_native():
    between("native", "cuda-mem", some, pooled=True)


@STEPS.step
def filtered_to_ours():
    """The receiver may not take descriptors."""
    between("cuda-mem", "cuda-mem", some, setup=deny_taking_descriptors)


@STEPS.step
def filtered_to_native():
    """PyTorch's own error, and the memory comes back."""
    between("cuda-mem", "native", a_few, setup=deny_taking_descriptors, refused=REFUSED)


def ordinary_users(prepare):
    """Both are processes of an ordinary user, forked with everything loaded: that user may not be able to read where it lies."""
    torch = pytorch("cuda-mem")
    import torch.multiprocessing as multiprocessing

    scope = "/proc/sys/kernel/yama/ptrace_scope"
    found = open(scope).read().strip() if os.path.exists(scope) else "absent"
    STEPS.figure("kernel.yama.ptrace_scope", found, "")
    told = send(torch, multiprocessing.get_context("fork"), None, ordinary_user, some, prepare=prepare)
    STEPS.figure("the user of both", os.geteuid(), "", "not root", os.geteuid() != 0)
    assert told["backend"] == "cuda-mem", told["backend"]


@STEPS.step
def ordinary_user_to_ours():
    """As the host is."""
    ordinary_users(ordinary_user)


@STEPS.step
def untraceable_to_ours():
    """As with `ptrace_scope=1`: the receiver may not trace the sender."""

    def untraceable():
        ordinary_user()
        import torch

        # While it still may: the driver looks at this process in /proc.
        torch.empty(1, device="cuda")
        control(PR_SET_DUMPABLE, 0)

    ordinary_users(untraceable)


class Runtime:
    """CUDA's runtime as other libraries call it."""

    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_ubyte * 64)]

    def __init__(self, torch):
        major = torch.version.cuda.split(".")[0]
        # The one that PyTorch has loaded.
        self.runtime = ctypes.CDLL(f"libcudart.so.{major}")
        self.driver = ctypes.CDLL("libcuda.so.1")

    def check(self, name, code):
        if code != 0:
            raise RuntimeError(f"{name} answers {code}")

    def shared(self, address):
        """The handle of the memory that an address lies in, and how far in."""
        base, handle, range_start = ctypes.c_uint64(), self.Handle(), 11
        answered = self.driver.cuPointerGetAttribute(ctypes.byref(base), range_start, ctypes.c_uint64(address))
        self.check("cuPointerGetAttribute", answered)
        self.check("cudaIpcGetMemHandle", self.runtime.cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(base.value)))
        return bytes(handle.bytes), address - base.value

    def opened(self, handle):
        address, words, lazy_peer_access = ctypes.c_void_p(), self.Handle.from_buffer_copy(handle), 1
        self.check("cudaIpcOpenMemHandle", self.runtime.cudaIpcOpenMemHandle(ctypes.byref(address), words, lazy_peer_access))
        return address.value

    def read(self, address, count):
        host, to_host = ctypes.create_string_buffer(count), 2
        answered = self.runtime.cudaMemcpy(host, ctypes.c_void_p(address), ctypes.c_size_t(count), to_host)
        self.check("cudaMemcpy", answered)
        return host.raw

    def close(self, address):
        self.check("cudaIpcCloseMemHandle", self.runtime.cudaIpcCloseMemHandle(ctypes.c_void_p(address)))


def read_graph(queue, back):
    """The other rank: opens the buffers by their handles, and reads them each time that it is told."""
    import torch

    torch.cuda.init()
    torch.empty(1, device="cuda")
    try:
        runtime, opened = Runtime(torch), {}
        buffers = queue.get()
        for handle, _, _ in buffers:
            if handle not in opened:
                opened[handle] = runtime.opened(handle)
        back.put(len(opened))
        while queue.get() == "read":
            back.put([runtime.read(opened[handle] + offset, count) for handle, offset, count in buffers])
        for address in opened.values():
            runtime.close(address)
        back.put("done")
    except Exception as error:
        back.put(f"{type(error).__name__}: {error}")
        raise


@STEPS.step
def graph_buffers():
    """The buffers of a captured graph, registered with a second process by `cudaIpcGetMemHandle` and an offset, as an all-reduce over the
    memory of all ranks does it."""
    torch = pytorch("cuda-mem")
    import torch.multiprocessing as multiprocessing

    static = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
    graph, outputs = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for number, count in enumerate((4096, 300_000, 3 * MIB, 8 * MIB)):
            outputs.append(static[:count] + (number + 1))
    context = multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=read_graph, args=(queue, back), daemon=True)
    process.start()
    runtime = Runtime(torch)
    buffers = [(*runtime.shared(output.data_ptr()), output.numel()) for output in outputs]
    queue.put(buffers)
    opened = back.get(timeout=100)
    assert isinstance(opened, int), opened
    STEPS.figure("buffers; segments that the second process opened", f"{len(buffers)}; {opened}", "")
    STEPS.figure("offsets into their segments", [offset for _, offset, _ in buffers], "bytes")
    wrong = 0
    for turn in range(5):
        static.fill_(10 * turn)
        graph.replay()
        torch.cuda.synchronize()
        queue.put("read")
        read = back.get(timeout=100)
        assert isinstance(read, list), read
        wrong += sum(found != bytes([10 * turn + number + 1]) * count for number, (found, (_, _, count)) in enumerate(zip(read, buffers)))
    STEPS.at_most("buffers read wrongly in the second process", wrong, f"of {5 * len(buffers)}", 0)
    queue.put("end")
    assert back.get(timeout=100) == "done"
    process.join(100)
    assert process.exitcode == 0, process.exitcode
    del outputs, graph
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    pools = {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()}
    STEPS.figure("pools that are left", len(pools), "", "1, the default one", pools == {(0, 0)})


if __name__ == "__main__":
    STEPS.main()
