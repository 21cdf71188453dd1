"""What PyTorch does without a kernel, on the simulated driver: `matrix.py` runs these, and the steps of `../steps.py` that launch
none. Copies run for real, so bytes can be compared."""

import ctypes
import gc
import os
import struct
import sys
import threading

import torch
from forked import code_of, fork

MIB = 1 << 20


def block(bytes=8 * MIB):
    return torch.empty(bytes, dtype=torch.uint8, device="cuda")


def numbered(count=64):
    return torch.arange(count, dtype=torch.uint8)


def start(tensor):
    """The first bytes of a tensor, on the host."""
    out = torch.empty(64, dtype=torch.uint8)
    out.copy_(tensor[:64])
    return out.tolist()


def late():
    early = block()
    pool = torch.cuda.MemPool()
    import cuda_mem_torch

    with torch.cuda.use_mem_pool(pool):
        pooled = block()
        try:
            cuda_mem_torch.enable()
            raise AssertionError("it was enabled inside use_mem_pool")
        except cuda_mem_torch.CudaMemError as error:
            assert "use_mem_pool is active" in str(error), error
    cuda_mem_torch.enable()
    assert torch.cuda.memory_allocated() == 16 * MIB
    fresh = block()
    early.record_stream(torch.cuda.Stream())
    fresh.record_stream(torch.cuda.Stream())
    with torch.cuda.use_mem_pool(pool):
        again = block()
    assert torch.cuda.memory_allocated() == 32 * MIB
    # Restored as graph trees do: what was recorded since is swapped for what is given the memory.
    same = torch._C._construct_storage_from_data_pointer(again.data_ptr(), again.device, 8 * MIB)
    state = torch._C._cuda_getCheckpointState(0, pool.id)
    torch._C._cuda_setCheckpointPoolState(0, state, [again.untyped_storage()._cdata], [same._cdata])
    assert torch._C._has_Standard_Deleter(same._cdata) and not torch._C._has_Standard_Deleter(again.untyped_storage()._cdata)
    assert torch.cuda.memory_allocated() == 32 * MIB
    # One that the native allocator has never heard of.
    later = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(later):
        ours = block()
    assert later.use_count() == 1 and len(later.snapshot()) == 1
    del early, pooled, again, same, state, pool, later, ours
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 8 * MIB


def receive(ours, queue, back):
    """The other process of those below."""
    if ours:
        import cuda_mem_torch

        cuda_mem_torch.enable()
    tensor = queue.get()
    back.put((torch.cuda.get_allocator_backend(), start(tensor)))
    del tensor
    gc.collect()
    torch.cuda.ipc_collect()


def spawned(*arguments):
    """Starts a receiver with an interpreter of its own; what waits for its end and gives its exit status."""
    process = torch.multiprocessing.get_context("spawn").Process(target=receive, args=arguments)
    process.start()
    return lambda: process.join(100) or process.exitcode


def share(receiver_is_ours, start=spawned):
    import cuda_mem_torch

    context = torch.multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    end = start(receiver_is_ours, queue, back)
    cuda_mem_torch.enable()
    # Of several handles, between others.
    small, tensor, above = block(MIB), block(19 * MIB), block(3 * MIB)
    tensor[:64].copy_(numbered())
    queue.put(tensor)
    backend, seen = back.get(timeout=100)
    code = end()
    assert (backend == "cuda-mem") == receiver_is_ours and seen == numbered().tolist()
    assert code == 0, code
    del small, above


def share_with_ours():
    share(True)


def share_with_native():
    share(False)


PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38
CAP_SYS_PTRACE = 19
EPERM = 1
PIDFD_GETFD = 438


def give_up_tracing():
    """As a process of an ordinary user is, or one in a container: it may not take the descriptors of a process that is not traceable."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0, ctypes.get_errno()
    for at in (0, 1, 2):
        data[at] &= ~(1 << CAP_SYS_PTRACE)
    assert libc.capset(header, data) == 0, ctypes.get_errno()


def filter_tracing():
    """As containers do that filter system calls."""

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("words", ctypes.c_void_p)]

    # The number of the call, a comparison, what is refused and what is not.
    words = [(0x20, 0, 0, 0), (0x15, 0, 1, PIDFD_GETFD), (0x06, 0, 0, 0x00050000 | EPERM), (0x06, 0, 0, 0x7FFF0000)]
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *word) for word in words))
    program = Program(len(words), ctypes.addressof(packed))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, ctypes.get_errno()
    assert libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()


def receive_refused(ours, filtered, queue, back):
    """The other process of the one below."""
    if ours:
        import cuda_mem_torch

        cuda_mem_torch.enable()
    filter_tracing() if filtered else give_up_tracing()
    back.put("ready")
    try:
        tensor = queue.get()
        back.put(("arrived", start(tensor)))
        del tensor
    except RuntimeError as error:
        back.put(("refused", str(error)))
    gc.collect()
    torch.cuda.ipc_collect()


def leave_out_events():
    """The simulator opens an event of another process by its descriptor, for which the real driver needs no right to trace."""
    share = torch.UntypedStorage._share_cuda_

    def share_without(storage):
        words = share(storage)
        torch.cuda.synchronize()
        return (*words[:-1], False)

    torch.UntypedStorage._share_cuda_ = share_without


def share_refused(receiver_is_ours, filtered):
    import cuda_mem_torch

    context = torch.multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    receiver = fork(receive_refused, receiver_is_ours, filtered, queue, back)
    cuda_mem_torch.enable()
    assert back.get(timeout=100) == "ready"
    if not filtered:
        leave_out_events()
        assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
    before = torch.cuda.memory_allocated()
    tensor = block(9 * MIB)
    tensor[:64].copy_(numbered())
    queue.put(tensor)
    what, told = back.get(timeout=100)
    if receiver_is_ours:
        assert (what, told) == ("arrived", numbered().tolist()), (what, told)
    else:
        assert what == "refused" and "pidfd_getfd: Operation not permitted" in told, (what, told)
    code = code_of(receiver)
    assert code == 0, code
    del tensor
    gc.collect()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == before, torch.cuda.memory_allocated()


def share_untraceable_with_ours():
    share_refused(True, False)


def share_untraceable_with_native():
    share_refused(False, False)


def share_filtered_with_ours():
    share_refused(True, True)


def share_filtered_with_native():
    share_refused(False, True)


def receive_without_numpy(ours, queue, back):
    """The other process of the one below."""
    sys.modules["numpy"] = None
    receive(ours, queue, back)


def descriptors(handle):
    """The numbers in a handle of PyTorch's for mapped memory. From version 3 on it says in between that they are descriptors."""
    (count,) = struct.unpack_from("Q", handle, 18)
    return struct.unpack_from(f"{count}i", handle, 26 if handle[0] < 3 else 34)


def file_of(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}"), os.stat(f"/proc/self/fd/{descriptor}").st_ino
    except FileNotFoundError:
        return None


def share_many():
    """Descriptors are counted by handles, whatever the tensors are."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    tensors = [block(MIB) for _ in range(1500)]
    kept = [tensor.untyped_storage()._share_cuda_() for tensor in tensors]
    made = {number: file_of(number) for words in kept for number in descriptors(words[1])}
    assert len(made) < 1500 // 2 and None not in made.values(), made
    # Of what it shared nothing stays open when the memory goes.
    for words in kept:
        torch.UntypedStorage._release_ipc_counter_cuda(words[4], words[5])
    del tensors, kept, words
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved()
    assert not [number for number, of in made.items() if file_of(number) == of]


def graph():
    """Memory of a graph on two streams, one of which was never seen before the capture."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    source, side, captured = block(64), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        first = block(3 * MIB)
        first[:64].copy_(source)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            second = block(3 * MIB)
            second[:64].copy_(first[:64])
        torch.cuda.current_stream().wait_stream(side)
    pools = [tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()]
    assert pools.count((1, 0)) == 2, pools
    source.copy_(numbered())
    captured.replay()
    torch.cuda.synchronize()
    assert start(second) == numbered().tolist()
    del first, second, captured
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert all(segment["segment_pool_id"] == (0, 0) for segment in torch.cuda.memory_snapshot())


def share_without_numpy():
    def start(*arguments):
        receiver = fork(receive_without_numpy, *arguments)
        return lambda: code_of(receiver)

    share(False, start)


def fill(bytes=128 * MIB):
    """As many tensors as there is memory for, and what is said then."""
    tensors = []
    try:
        while True:
            tensors.append(block(bytes))
    except torch.OutOfMemoryError as error:
        return tensors, str(error)


def late_limit():
    """A limit counts what both allocators hold."""
    import cuda_mem_torch

    torch.cuda.init()
    allowed = torch.cuda.mem_get_info()[1] // 2
    torch.cuda.set_per_process_memory_fraction(0.5)
    early, _ = fill()
    del early[len(early) // 2 :]
    torch.cuda.empty_cache()
    cuda_mem_torch.enable()
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    late, why = fill()
    assert 0 < torch.cuda.memory_reserved() <= allowed, (torch.cuda.memory_reserved(), allowed)
    assert len(late) >= allowed // 2 // (128 * MIB) - 1, len(late)
    assert "PyTorch's own allocator holds" in why, why
    # What goes of the one is there for the other.
    early.clear()
    torch.cuda.empty_cache()
    more, _ = fill()
    assert len(late) + len(more) >= allowed // (128 * MIB) - 1, (len(late), len(more))
    assert torch.cuda.memory_reserved() <= allowed
    torch.cuda.set_per_process_memory_fraction(0.75)
    more += fill()[0]
    assert allowed < torch.cuda.memory_reserved() <= allowed * 3 // 2
    # Afterwards it is the native allocator's.
    late.clear(), more.clear()
    torch.cuda.synchronize()
    cuda_mem_torch.disable()
    assert torch.cuda.get_per_process_memory_fraction() == 0.75


def late_at_the_limit():
    """Where nothing is left it is enabled, and nobody is told of a request that failed."""
    import cuda_mem_torch

    torch.cuda.init()
    torch.cuda.set_per_process_memory_fraction(0.25)
    early, _ = fill(64 * MIB)
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *words: seen.append(words))
    failed = torch.cuda.memory_stats()["num_ooms"]
    cuda_mem_torch.enable()
    assert torch.cuda.memory_stats()["num_ooms"] == failed and not seen
    assert len(early) > 1


def late_without_memory():
    """A device that has nothing left is named, whatever is free of another one."""
    import cuda_mem_torch

    torch.cuda.init()
    there = torch.empty(4, device="cuda:1")
    del there
    here = block(torch.cuda.mem_get_info()[0] // (2 * MIB) * 2 * MIB)
    try:
        cuda_mem_torch.enable()
        raise AssertionError("it was enabled")
    except cuda_mem_torch.CudaMemError as error:
        assert "device 0 has no memory left: call torch.cuda.empty_cache()" in str(error), error
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    del here
    torch.cuda.empty_cache()
    cuda_mem_torch.enable()


def reaches(device, tensor):
    """Whether the driver lets a device reach the memory of a tensor."""
    location, flags = (ctypes.c_int * 2)(1, device), ctypes.c_ulonglong()
    assert ctypes.CDLL("libcuda.so.1").cuMemGetAccess(ctypes.byref(flags), location, ctypes.c_uint64(tensor.data_ptr())) == 0
    return flags.value == 3


def late_peers():
    """Devices that reached each other's memory before `enable()` reach it afterwards; the others do not."""
    import cuda_mem_torch

    torch.empty(4, device="cuda:0").to("cuda:1")
    for _ in range(2):
        cuda_mem_torch.enable()
        there = torch.empty(MIB, device="cuda:1")
        here = torch.empty(MIB, device="cuda:0")
        assert reaches(0, there) and reaches(1, there) and not reaches(1, here)
        del there, here
        torch.cuda.synchronize()
        cuda_mem_torch.disable()


def late_without_peers():
    """Devices that did not reach each other's memory before `enable()` do not either afterwards, until PyTorch says so."""
    import cuda_mem_torch

    early = torch.empty(4, device="cuda:0"), torch.empty(4, device="cuda:1")
    cuda_mem_torch.enable()
    there = torch.empty(MIB, device="cuda:1")
    assert not reaches(0, there) and reaches(1, there)
    there[:4].copy_(early[0])
    assert reaches(0, there)


def late_capture():
    """What PyTorch's own allocator has cached is given back while nothing captures, and a capture is not disturbed by it."""
    import cuda_mem_torch

    early, used = block(), block()
    cuda_mem_torch.enable()
    side, captured, target = torch.cuda.Stream(), torch.cuda.CUDAGraph(), block(64)
    target.copy_(numbered())
    torch.cuda.synchronize()
    del early
    held = torch.cuda.memory_reserved()
    with torch.cuda.graph(captured, stream=side):
        first = block()
        first[:64].copy_(target)
        if torch.__version__ >= "2.13":
            used.record_stream(side)
        del used
        torch.cuda.empty_cache()
        other = threading.Thread(target=torch.cuda.empty_cache)
        other.start(), other.join()
        target.copy_(first[:64])
        assert torch.cuda.memory_reserved() >= held
    captured.replay()
    torch.cuda.synchronize()
    assert start(target) == numbered().tolist()
    held = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < held


def late_failed_capture():
    """A capture that failed is over, although its pool has not been told: what PyTorch's own allocator has cached is given back again."""
    import cuda_mem_torch

    early = block(64 * MIB)
    cuda_mem_torch.enable()
    block(64)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            torch.cuda.synchronize()
        raise AssertionError("it was captured")
    except RuntimeError:
        pass
    del early
    held = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= held - 64 * MIB, (torch.cuda.memory_reserved(), held)


def late_memory():
    """What PyTorch's own allocator has cached is there for requests."""
    import cuda_mem_torch

    bytes = torch.cuda.mem_get_info()[1] // 8 * 5
    early = block(bytes)
    del early
    cuda_mem_torch.enable()
    fresh = block(bytes)
    assert torch.cuda.memory_stats()["num_ooms"] == 0 and fresh.numel() == torch.cuda.memory_allocated()


def limits_are_the_last():
    """Of a limit the last word holds, whoever had it: what is said of it is what is enforced."""
    import cuda_mem_torch

    total = torch.cuda.mem_get_info()[1]

    def enforced(fraction, device=0):
        assert abs(torch.cuda.get_per_process_memory_fraction(device) - fraction) < 0.001, torch.cuda.get_per_process_memory_fraction(device)
        fits = torch.empty(int(total * (fraction - 0.05)), dtype=torch.uint8, device=f"cuda:{device}")
        del fits
        if fraction < 1.0:
            try:
                torch.empty(int(total * (fraction + 0.05)), dtype=torch.uint8, device=f"cuda:{device}")
                raise AssertionError(f"more than {fraction} was allocated")
            except torch.OutOfMemoryError:
                pass
        torch.cuda.empty_cache()

    # Of a device without a context, too, which has none yet.
    block(64)
    torch.cuda.set_per_process_memory_fraction(0.5, 1)
    torch.cuda.set_per_process_memory_fraction(0.3)
    torch._C._accelerator_setAllocatorSettings("per_process_memory_fraction:0.75")
    cuda_mem_torch.enable()
    assert not torch._C._cuda_hasPrimaryContext(1)
    enforced(0.3), enforced(0.5, 1)
    torch._C._accelerator_setAllocatorSettings("per_process_memory_fraction:1.0")
    cuda_mem_torch.enable(per_process_memory_fraction=0.25)
    enforced(0.25), enforced(0.25, 1)
    torch.cuda.set_per_process_memory_fraction(0.75)
    cuda_mem_torch.enable()
    enforced(0.75)
    # What is refused changes nothing.
    try:
        cuda_mem_torch.enable(roundup_power2_divisions=0, per_process_memory_fraction=0.1)
        raise AssertionError("it was accepted")
    except (RuntimeError, ValueError):
        pass
    enforced(0.75)
    cuda_mem_torch.disable()
    torch.cuda.set_per_process_memory_fraction(1.0)
    cuda_mem_torch.enable()
    # That of an option ends with it.
    enforced(1.0), enforced(0.5, 1)
    cuda_mem_torch.disable()


def context():
    """The driver has a current context after an allocation, as natively."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    driver, current = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    tensor = block()
    assert driver.cuCtxGetCurrent(ctypes.byref(current)) == 0 and current.value is not None
    del tensor


def innermost_pool():
    """Of a pool from before `enable()` and one from after it, nested either way, the inner one has an allocation."""
    import cuda_mem_torch

    def has(pool, tensor):
        of = lambda segment: segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"]
        return any(of(segment) for segment in pool.snapshot())

    torch.cuda.init()
    early = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(early):
        first = block()
    cuda_mem_torch.enable()
    late = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(early):
        with torch.cuda.use_mem_pool(late):
            inner = block()
        outer = block()
    assert has(late, inner) and has(early, outer) and has(early, first)
    with torch.cuda.use_mem_pool(late):
        with torch.cuda.use_mem_pool(early):
            inner = block()
        outer = block()
    assert has(early, inner) and has(late, outer)


def disabled_with_pools():
    """`disable()` is refused while tensors live whose streams the native allocator would not hear of."""
    import cuda_mem_torch

    torch.cuda.init()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        early = block()
    cuda_mem_torch.enable()
    with torch.cuda.use_mem_pool(pool):
        tensor = block()
    try:
        cuda_mem_torch.disable()
        raise AssertionError("it was disabled")
    except cuda_mem_torch.CudaMemError as error:
        assert "in pools from before still live, 1 of them" in str(error), error
    tensor.record_stream(torch.cuda.Stream())
    del tensor
    cuda_mem_torch.disable()
    assert torch.cuda.get_allocator_backend() == "native" and torch.cuda.memory_allocated() == 8 * MIB
    del early


class Wrapped(torch.Tensor):
    """A tensor that is made of another, as a ``DTensor`` is."""

    @staticmethod
    def __new__(cls, part):
        return torch.Tensor._make_wrapper_subclass(cls, part.shape, dtype=part.dtype, device=part.device)

    def __init__(self, part):
        self.part = part

    def __tensor_flatten__(self):
        return ["part"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, _context, _size, _stride):
        return cls(parts["part"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return function(*(getattr(arg, "part", arg) for arg in args), **(kwargs or {}))


def sleep_and_wake():
    """Tags under real tensors: what is in their scopes goes and comes back at its addresses, and nothing else."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    with cuda_mem_torch.tag("weights"):
        weights = [block(bytes) for bytes in (700, 3 * MIB, 40 * MIB)]
    other = block()
    numbers = [numbered() + at for at in range(4)]
    for tensor, number in zip(weights + [other], numbers):
        tensor[:64].copy_(number)
    at, values = torch.empty(1, 4, dtype=torch.int64, device="cuda"), torch.empty(4, device="cuda")
    sparse = torch.sparse_coo_tensor(at, values, (9,), is_coalesced=True, check_invariants=False)
    addresses, allocated, reserved = [tensor.data_ptr() for tensor in weights], torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for round in range(3):
        slept = cuda_mem_torch.sleep("weights")
        assert slept.freed == 62 * MIB and not slept.missing and not slept.kept, str(slept)
        assert torch.cuda.memory_allocated() == allocated and torch.cuda.memory_reserved() == reserved - 62 * MIB
        assert cuda_mem_torch.state()["weights"].asleep == 62 * MIB
        assert start(other) == numbers[3].tolist()
        assert cuda_mem_torch.read_backup(weights[1])[:64] == bytes(numbers[1].tolist())
        with cuda_mem_torch.tag("weights"):
            try:
                block()
                raise AssertionError("it was allocated")
            except RuntimeError as error:
                assert '"weights" sleeps: wake it' in str(error), error
        with cuda_mem_torch.checking():
            weights[0][:10].view(2, 5)
            other[:64].copy_(numbers[3])
            try:
                weights[1][:64].copy_(numbers[1])
                raise AssertionError("it was copied")
            except cuda_mem_torch.CudaMemError as error:
                assert "aten.copy_.default uses a tensor of shape (64,)" in str(error) and "'weights' sleeps" in str(error), error
            try:
                Wrapped(weights[1][:64]).copy_(numbers[1])
                raise AssertionError("it was copied")
            except cuda_mem_torch.CudaMemError as error:
                assert "'weights' sleeps" in str(error), error
            sparse.clone()
        if round == 2:
            # Freed asleep, as by a program that ends.
            del weights[1], numbers[1]
        cuda_mem_torch.wake()
        assert [start(tensor) for tensor in weights] == [number.tolist() for number in numbers[: len(weights)]]
        if round < 2:
            assert [tensor.data_ptr() for tensor in weights] == addresses
    # A pool as a whole, and what is kept of it.
    pool = torch.cuda.MemPool()
    cuda_mem_torch.tag("cache").add(pool)
    with torch.cuda.use_mem_pool(pool):
        cache = block(20 * MIB)
    with cuda_mem_torch.keep(cache[:100], reason="a transfer"):
        slept = cuda_mem_torch.sleep(["cache"], backup="discard")
    assert slept.freed == 0 and "kept 20.00 MiB for a transfer" in str(slept), str(slept)
    assert cuda_mem_torch.sleep(["cache"], backup="discard").freed == 20 * MIB
    cuda_mem_torch.wake("cache", restore=7)
    assert start(cache) == [7] * 64
    del cache, pool


PROGRAMS = [
    late, late_limit, late_at_the_limit, late_without_memory, late_peers, late_without_peers, late_capture, late_failed_capture, late_memory, limits_are_the_last, context, innermost_pool, disabled_with_pools, share_with_ours, share_with_native, share_without_numpy, share_untraceable_with_ours, share_untraceable_with_native,
    share_filtered_with_ours, share_filtered_with_native, share_many, graph, sleep_and_wake,
]

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
