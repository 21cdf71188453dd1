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
    """The numbers in a handle of PyTorch's for mapped memory."""
    (count,) = struct.unpack_from("Q", handle, 18)
    return struct.unpack_from(f"{count}i", handle, 26)


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


PROGRAMS = [
    late, share_with_ours, share_with_native, share_without_numpy, share_untraceable_with_ours, share_untraceable_with_native,
    share_filtered_with_ours, share_filtered_with_native, share_many, graph,
]

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
