"""What PyTorch does without a kernel, on the simulated driver: `run.py --python` starts these, and the steps of `../steps.py` that launch
none. Copies run for real, so bytes can be compared."""

import ctypes
import gc
import os
import struct
import sys

import torch

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


def share(receiver_is_ours, receive=receive):
    import cuda_mem_torch
    import torch.multiprocessing as multiprocessing

    cuda_mem_torch.enable()
    # Of several handles, between others.
    small, tensor, above = block(MIB), block(19 * MIB), block(3 * MIB)
    tensor[:64].copy_(numbered())
    context = multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=receive, args=(receiver_is_ours, queue, back))
    process.start()
    queue.put(tensor)
    backend, seen = back.get(timeout=100)
    process.join(100)
    assert (backend == "cuda-mem") == receiver_is_ours and seen == numbered().tolist()
    assert process.exitcode == 0, process.exitcode
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
    import torch.multiprocessing as multiprocessing

    cuda_mem_torch.enable()
    context = multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=receive_refused, args=(receiver_is_ours, filtered, queue, back))
    process.start()
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
    process.join(100)
    assert process.exitcode == 0, process.exitcode
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
    share(False, receive_without_numpy)


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


PROGRAMS = [
    late, late_limit, late_at_the_limit, context, innermost_pool, disabled_with_pools, share_with_ours, share_with_native, share_without_numpy, share_untraceable_with_ours, share_untraceable_with_native,
    share_filtered_with_ours, share_filtered_with_native, share_many, graph,
]

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
