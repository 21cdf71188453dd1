"""What PyTorch does without a kernel, on the simulated driver: `run.py --python` starts these, and the steps of `../steps.py` that launch
none. Copies run for real, so bytes can be compared."""

import gc
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
    # One that the native allocator has never heard of.
    later = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(later):
        ours = block()
    assert later.use_count() == 1 and len(later.snapshot()) == 1
    del early, pooled, again, pool, later, ours
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


PROGRAMS = [late, share_with_ours, share_with_native, graph]

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
