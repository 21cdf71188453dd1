"""Steps of `run_all.py` with libraries that look at PyTorch's memory themselves: NCCL, whose communicators register it, and CuPy, whose streams
end. `libraries.py NAME`; `--list` names them. Steps on two devices are skipped where there is one."""

import gc
import random
import tempfile

from figures import MIB, Steps, answer, pytorch, started, two_devices

STEPS = Steps()


def group(torch, rank, folder):
    """Joins two ranks over NCCL, each with a device of its own; the communicator."""
    import datetime

    import torch.distributed as dist

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    store = dist.FileStore(f"{folder}/store", 2)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2, timeout=timeout, device_id=device)
    # It is made by the first collective.
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize()
    return dist, dist.group.WORLD._get_backend(device)


def reduced_wrongly(torch, dist, tensor, rank, turns):
    """How many of some all-reduces came out wrong."""
    wrong = 0
    for turn in range(turns):
        tensor.fill_(turn + rank)
        dist.all_reduce(tensor)
        wrong += not bool((tensor == 2 * turn + 1).all())
    return wrong


@STEPS.part
def registered(rank, folder, whose):
    """The rank of the step below."""
    torch = pytorch("cuda-mem")
    dist, backend = group(torch, rank, folder)
    if whose == "NCCL's":
        pool = torch.cuda.MemPool(backend.mem_allocator)
    else:
        import cuda_mem_torch

        pool = cuda_mem_torch.MemPool()
    with torch.cuda.use_mem_pool(pool):
        first = torch.empty(4 * MIB, dtype=torch.float32, device="cuda")
    backend.register_mem_pool(pool)
    wrong = reduced_wrongly(torch, dist, first, rank, 20)
    # Segments that come and go while the pool is registered.
    for turn in range(10):
        with torch.cuda.use_mem_pool(pool):
            later = torch.empty((turn + 1) * 6 * MIB, dtype=torch.float32, device="cuda")
        wrong += reduced_wrongly(torch, dist, later, rank, 3)
        del later
    segments = len(pool.snapshot())
    # As a program does that forgets to take the registration back, for ours: the segments go with the pool.
    if whose == "NCCL's":
        backend.deregister_mem_pool(pool)
    del first, pool
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    left = sum(tuple(segment["segment_pool_id"]) != (0, 0) for segment in torch.cuda.memory_snapshot())
    again = torch.empty(4 * MIB, dtype=torch.float32, device="cuda")
    wrong += reduced_wrongly(torch, dist, again, rank, 20)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return {"wrong": wrong, "segments": segments, "left": left}


def on_two_ranks(part, *arguments, environment=None):
    """What both ranks of a part answer."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [started(part, rank, folder, *arguments, environment=environment) for rank in range(2)]
        return [answer(process, 150) for process in ranks]


@STEPS.step
def nccl_register_mem_pool():
    """A pool that is registered with a communicator: of NCCL's own memory, and of ours."""
    import torch

    if not two_devices(torch):
        return
    for whose in ("NCCL's", "ours"):
        for rank, told in enumerate(on_two_ranks(registered, whose)):
            name = f"a pool of {whose} memory, rank {rank}"
            STEPS.at_most(f"{name}: all-reduces that came out wrong", told["wrong"], "of 70", 0)
            STEPS.at_least(f"{name}: segments while it is registered", told["segments"], "segments", 1)
            STEPS.at_most(f"{name}: segments left behind its end", told["left"], "segments", 0)


@STEPS.part
def hooked(rank, folder):
    """The rank of the step below: memory of the default pool comes and goes, and what was freed is used for other sizes."""
    torch = pytorch("cuda-mem")
    dist, _ = group(torch, rank, folder)
    # Both ranks draw the same sizes, and one has its memory almost full, so that handles move.
    draw, kept, wrong = random.Random(0), [], 0
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.0, 4096 * MIB / total))
    for turn in range(300):
        count = int(1024 * (64 * MIB / 1024) ** draw.random())
        while kept and (sum(one.numel() for one in kept) + count) * 4 > 3600 * MIB:
            del kept[draw.randrange(len(kept))]
        kept.append(torch.empty(count, dtype=torch.float32, device="cuda"))
        one = kept[draw.randrange(len(kept))]
        one.fill_(turn + rank)
        dist.all_reduce(one)
        wrong += not bool((one == 2 * turn + 1).all())
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return {"wrong": wrong, "moves": moved(torch)}


def moved(torch):
    stats = torch.cuda.memory_stats()
    return {"handles mapped": stats["num_device_alloc"], "unmapped": stats["num_device_free"]}


@STEPS.step
def nccl_allocator_hook():
    """`TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK`: PyTorch registers every segment, but for memory that may move."""
    import torch

    if not two_devices(torch):
        return
    environment = {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}
    for rank, told in enumerate(on_two_ranks(hooked, environment=environment)):
        STEPS.at_most(f"rank {rank}: all-reduces that came out wrong", told["wrong"], "of 300", 0)
        STEPS.figure(f"rank {rank}: device allocations and frees", told["moves"], "")


@STEPS.step
def expandable_in_settings():
    """What PyTorch's setting says is so: of segments that may move it says so, and it can be turned off for a while."""
    torch = pytorch("cuda-mem")
    memory = torch.cuda.memory
    setting = lambda: memory._snapshot()["allocator_settings"]["expandable_segments"]
    segment_of = lambda tensor: next(
        one for one in torch.cuda.memory_snapshot() if one["address"] <= tensor.data_ptr() < one["address"] + one["total_size"]
    )
    before = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    STEPS.figure("expandable_segments in a snapshot", setting(), "", "True", setting() is True)
    mine = segment_of(before)["is_expandable"]
    STEPS.figure("is_expandable of a segment of the default pool", mine, "", "True", mine is True)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        pooled = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    of_pool = segment_of(pooled)["is_expandable"]
    STEPS.figure("is_expandable of a segment of a private pool", of_pool, "", "False", of_pool is False)
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    STEPS.figure("the setting, turned off", setting(), "", "False", setting() is False)
    off = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
    still = segment_of(off)["is_expandable"]
    STEPS.figure("is_expandable of a segment that was made meanwhile", still, "", "False", still is False)
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    STEPS.figure("the setting, turned on again", setting(), "", "True", setting() is True)
    for tensor in (before, pooled, off):
        tensor.fill_(7)
        assert bool((tensor == 7).all())


def used_and_destroyed(torch, cupy, turn):
    """A stream of CuPy's that PyTorch allocates on and has recorded, and that ends while tensors of it live."""
    recorded = torch.ones(8 * MIB, device="cuda")
    stream = cupy.cuda.Stream(non_blocking=True)
    external = torch.cuda.ExternalStream(stream.ptr)
    external.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(external):
        mine = torch.full((8 * MIB,), float(turn), device="cuda")
        freed = torch.empty(24 * MIB, device="cuda")
        mine.add_(recorded)
    recorded.record_stream(external)
    with stream:
        array = cupy.asarray(mine)
        array += 1
    del freed, recorded
    # Its work may run yet when the stream is destroyed, as it may natively.
    del external, array
    stream = None
    gc.collect()
    return mine


@STEPS.step
def destroyed_cupy_stream():
    """Streams of CuPy are used, recorded and destroyed; then the cache is emptied, and the memory serves other work."""
    try:
        import cupy
    except ImportError as error:
        print(f"skipped: CuPy cannot be imported: {error}")
        return
    torch = pytorch("cuda-mem")
    wrong = 0
    for turn in range(10):
        mine = used_and_destroyed(torch, cupy, turn)
        torch.cuda.synchronize()
        wrong += not bool((mine == turn + 2).all())
        torch.cuda.empty_cache()
        more = [torch.full((64 * MIB,), turn, dtype=torch.uint8, device="cuda") for _ in range(50)]
        wrong += not all(bool((one == turn).all()) for one in more)
        del mine, more
    # The ladder asks every stream that it knows.
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
        raise AssertionError("32 TiB were given")
    except torch.OutOfMemoryError:
        pass
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    STEPS.at_most("blocks with other bytes", wrong, "blocks", 0)
    STEPS.at_most("bytes in use behind all", torch.cuda.memory_allocated(), "bytes", 0)
    graph, static = torch.cuda.CUDAGraph(), torch.ones(1000, device="cuda")
    with torch.cuda.graph(graph):
        doubled = static * 2
    graph.replay()
    torch.cuda.synchronize()
    assert bool((doubled == 2).all())


if __name__ == "__main__":
    STEPS.main()
