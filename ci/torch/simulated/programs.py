"""What PyTorch does without a kernel, on the simulated driver: `run.py --python` starts these, and the steps of `../steps.py` that launch
none. Copies run for real, so bytes can be compared."""

import ctypes
import gc
import sys
import threading

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


def share(receiver_is_ours):
    import cuda_mem_torch
    import torch.multiprocessing as multiprocessing

    cuda_mem_torch.enable()
    tensor = block(3 * MIB)
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


def share_with_ours():
    share(True)


def share_with_native():
    share(False)


def receive_pieces(queue, back):
    """The other process of the one below."""
    first, again, parameter = queue.get(), queue.get(), queue.get()
    same = first.data_ptr() == again.data_ptr() == parameter.data_ptr()
    back.put((torch.cuda.get_allocator_backend(), start(first), same, type(parameter).__name__, tuple(parameter.shape)))
    try:
        first._typed_storage()._share_cuda_()
        raise AssertionError("what was received was sent on")
    except RuntimeError as error:
        assert "invalid device pointer" in str(error), error
    assert queue.get() == "written"
    back.put(start(first))
    first[64:128].copy_(numbered() + 100)
    torch.cuda.synchronize()
    back.put("wrote")
    from cuda_mem_torch import _sharing

    # What goes while a stream captures is closed behind the capture.
    captured, source = torch.cuda.CUDAGraph(), block(64)
    with torch.cuda.graph(captured):
        block(64).copy_(source)
        del first, again, parameter
        gc.collect()
        left = len(_sharing._leaving)
    captured.replay()
    torch.cuda.synchronize()
    other = queue.get()
    back.put((left, len(_sharing._leaving), start(other)))
    assert queue.get() == "enough"
    del other
    gc.collect()


def receive_beside_a_capture(queue, back):
    """The other process of the one below."""
    from cuda_mem_torch import _sharing

    received = [queue.get()]
    captured, source, target = torch.cuda.CUDAGraph(), block(64), block(64)
    with torch.cuda.graph(captured):
        target.copy_(source)
        # Of a thread that knows nothing of the capture.
        other = threading.Thread(target=received.pop)
        other.start()
        other.join()
        left = len(_sharing._leaving)
    source.copy_(numbered())
    captured.replay()
    torch.cuda.synchronize()
    _sharing._close_leaving()
    back.put((left, len(_sharing._leaving), start(target)))


def kind_of_handle(tensor):
    """Not by PyTorch's own function, which counts a receiver."""
    from cuda_mem_torch import _library

    handle, length, offset = ctypes.create_string_buffer(4096), ctypes.c_size_t(), ctypes.c_size_t()
    address = ctypes.c_void_p(tensor.data_ptr())
    _library.check(_library.load().cuda_mem_torch_ipc_share(address, handle, 4096, ctypes.byref(length), ctypes.byref(offset)))
    return handle.raw[1:2]


def share_pieces_with_native():
    """A block in pieces of several sizes, with neighbours, for a process that has enabled nothing."""
    import cuda_mem_torch
    import torch.multiprocessing as multiprocessing

    cuda_mem_torch.enable()
    small, below = block(1000), block(3 * MIB)
    tensor, above = block(9 * MIB), block(3 * MIB)
    assert kind_of_handle(tensor) == b"m"
    everything = torch.cuda.memory_allocated()
    for neighbour in (small, below, above):
        neighbour[:64].copy_(numbered() + 50)
    tensor[:64].copy_(numbered())
    context = multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=receive_pieces, args=(queue, back))
    process.start()
    queue.put(tensor)
    queue.put(tensor)
    queue.put(torch.nn.Parameter(tensor.view(torch.float32), requires_grad=False))
    backend, seen, same, name, shape = back.get(timeout=100)
    assert backend == "native" and same and seen == numbered().tolist()
    assert (name, shape) == ("Parameter", (9 * MIB // 4,))
    tensor[:64].copy_(numbered() + 10)
    torch.cuda.synchronize()
    queue.put("written")
    assert back.get(timeout=100) == (numbered() + 10).tolist()
    assert back.get(timeout=100) == "wrote"
    assert start(tensor[64:]) == (numbered() + 100).tolist() and start(tensor) == (numbered() + 10).tolist()
    # Freed, it stays as long as the other process has it, and serves somebody else then.
    another = block(11 * MIB)
    another[:64].copy_(numbered() + 20)
    address = tensor.data_ptr()
    del tensor
    gc.collect()
    assert torch.cuda.memory_allocated() == everything + 11 * MIB
    queue.put(another)
    assert back.get(timeout=100) == (1, 0, (numbered() + 20).tolist())
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == everything + 2 * MIB
    reused = block(9 * MIB)
    assert reused.data_ptr() == address
    for neighbour in (small, below, above):
        assert start(neighbour) == (numbered() + 50).tolist()
    queue.put("enough")
    process.join(100)
    assert process.exitcode == 0, process.exitcode
    del reused, another, above, below, neighbour
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    # Nothing is pinned any more.
    assert torch.cuda.memory_reserved() == 4 * MIB, torch.cuda.memory_reserved()


def share_pieces_beside_a_capture():
    """A thread that lets go of such a block while another one captures leaves the capture alone, and the block to its receiver."""
    import cuda_mem_torch
    import torch.multiprocessing as multiprocessing

    cuda_mem_torch.enable()
    small, below = block(1000), block(3 * MIB)
    tensor, above = block(9 * MIB), block(3 * MIB)
    assert kind_of_handle(tensor) == b"m"
    context = multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=receive_beside_a_capture, args=(queue, back))
    process.start()
    queue.put(tensor)
    assert back.get(timeout=100) == (1, 0, numbered().tolist())
    process.join(100)
    assert process.exitcode == 0, process.exitcode
    del small, below, tensor, above
    gc.collect()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == 0


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


PROGRAMS = [late, share_with_ours, share_with_native, share_pieces_with_native, share_pieces_beside_a_capture, graph]

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
