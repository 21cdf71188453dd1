"""Single steps of `run_all.py`, each in a process of its own: `steps.py NAME`. A step that returns is well; `--list` names them."""

import gc
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time

STEPS = {}
MIB = 1 << 20


def step(function):
    STEPS[function.__name__] = function
    return function


def enabled(**options):
    """PyTorch, on our allocator from the start."""
    import cuda_mem_torch
    import torch

    assert not torch.cuda.is_initialized()
    cuda_mem_torch.enable(**options)
    assert torch.cuda.get_allocator_backend() == "cuda-mem", torch.cuda.get_allocator_backend()
    return torch


def filled(torch, value, bytes=8 * MIB):
    return torch.full((bytes,), value, dtype=torch.uint8, device="cuda")


@step
def tensors():
    torch = enabled()
    blocks = [filled(torch, n % 251, (n + 1) * 100_003) for n in range(100)]
    assert all(bool((block == n % 251).all()) for n, block in enumerate(blocks))
    a = torch.randn(2048, 2048, device="cuda")
    assert torch.allclose((a @ a).cpu(), a.cpu() @ a.cpu(), atol=1e-1, rtol=1e-2)
    assert torch.empty(0, device="cuda").numel() == 0


@step
def by_variable():
    """Without a line of ours: CUDA_MEM_TORCH=1 is set."""
    import torch

    assert torch.cuda.get_allocator_backend() == "cuda-mem"
    assert torch.ones(10, device="cuda").sum().item() == 10


@step
def statistics():
    torch = enabled()
    cuda = torch.cuda
    before = cuda.memory_allocated()
    block = filled(torch, 1)
    assert cuda.memory_allocated() - before == 8 * MIB and cuda.memory_reserved() >= 8 * MIB
    peak = cuda.max_memory_allocated()
    del block
    assert cuda.memory_allocated() == before and cuda.max_memory_allocated() == peak
    cuda.reset_peak_memory_stats()
    cuda.reset_accumulated_memory_stats()
    assert cuda.max_memory_allocated() == before
    stats = cuda.memory_stats()
    assert stats["allocation.all.allocated"] == 0 and "num_ooms" in stats and len(stats) >= 9 * 12
    assert "Allocated memory" in cuda.memory_summary()
    cuda.synchronize()
    cuda.empty_cache()
    assert cuda.memory_reserved() <= 32 * MIB, cuda.memory_reserved()


@step
def history():
    torch = enabled()
    memory = torch.cuda.memory
    memory._record_memory_history(stacks="python")

    def here():
        return filled(torch, 1)

    block = here()
    memory._set_memory_metadata("mark")
    del block
    memory._set_memory_metadata("")
    kept = here()
    snapshot = memory._snapshot()
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert {"alloc", "free_requested", "free_completed", "segment_map"} <= set(actions), set(actions)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert all(sum(block["size"] for block in segment["blocks"]) == segment["total_size"] for segment in snapshot["segments"])
    mine = [block for block in blocks if block["state"] == "active_allocated" and block["size"] == 8 * MIB]
    assert len(mine) == 1 and any(frame["name"] == "here" for frame in mine[0]["frames"]), mine
    assert any(entry["user_metadata"] == "mark" for entry in snapshot["device_traces"][0])
    with tempfile.TemporaryDirectory() as folder:
        import cuda_mem_torch

        cuda_mem_torch.snapshot(f"{folder}/a.pickle")
        cuda_mem_torch.report(f"{folder}/a.html")
        with open(f"{folder}/a.pickle", "rb") as file:
            assert pickle.load(file)["segments"]
        viz = [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", f"{folder}/a.pickle", "-o", f"{folder}/b.html"]
        subprocess.run(viz, check=True, capture_output=True)
        assert os.path.getsize(f"{folder}/b.html") > 1000
        with open(f"{folder}/a.html", encoding="utf-8") as page:
            text = page.read()
        # Each frame of the page is a function's name, its file and the line.
        assert f"process {os.getpid()}" in text and '["here","' in text, "the page lacks the code that allocated"
    memory._record_memory_history(None)
    assert not memory._snapshot()["device_traces"][0]
    del kept


@step
def record_stream():
    torch = enabled()
    side = torch.cuda.Stream()
    for round in range(20):
        block = filled(torch, round)
        address = block.data_ptr()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            copy = block.clone()
        block.record_stream(side)
        del block
        other = filled(torch, 255)
        assert other.data_ptr() != address, "it is in use on the side stream"
        torch.cuda.synchronize()
        assert bool((copy == round).all()), round
        del other, copy


@step
def mem_pool():
    torch = enabled()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = filled(torch, 3)
        assert pool.use_count() == 2
    assert pool.use_count() == 1
    segments = pool.snapshot()
    assert len(segments) == 1 and tuple(segments[0]["segment_pool_id"]) == tuple(pool.id)
    outside = filled(torch, 4)
    low, bytes = segments[0]["address"], segments[0]["total_size"]
    assert low <= inside.data_ptr() < low + bytes and not low <= outside.data_ptr() < low + bytes
    del pool
    assert bool((inside == 3).all()), "a tensor outlives its pool"
    import cuda_mem_torch

    with torch.cuda.use_mem_pool(cuda_mem_torch.MemPool(no_split=True)):
        filled(torch, 5)


@step
def pool_of_plain_library():
    """PyTorch's own allocator, with ours behind a pool: segments alone, freed while a side stream writes."""
    import cuda_mem_torch
    import torch

    assert torch.cuda.get_allocator_backend() == "native"
    side = torch.cuda.Stream()
    for round in range(5):
        pool = cuda_mem_torch.MemPool()
        with torch.cuda.use_mem_pool(pool):
            block = filled(torch, round, 40 * MIB)
            with torch.cuda.stream(side):
                side.wait_stream(torch.cuda.current_stream())
                torch.cuda._sleep(50_000_000)
                block.add_(1)
        del block, pool
        torch.cuda.empty_cache()
        fresh = cuda_mem_torch.MemPool()
        with torch.cuda.use_mem_pool(fresh):
            again = filled(torch, 200, 40 * MIB)
            torch.cuda.synchronize()
            assert bool((again == 200).all()), round
        del again, fresh


@step
def graph():
    torch = enabled()
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).cuda()
    static = torch.randn(64, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(static)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = model(static)
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=captured.pool()):
        more = model(out)
    # Memory that was free during the capture must not be the graph's now.
    noise = [torch.full((n * 1000,), float("nan"), device="cuda") for n in range(1, 200)]
    for _ in range(10):
        static.copy_(torch.randn_like(static))
        captured.replay()
        second.replay()
        torch.cuda.synchronize()
        assert torch.allclose(out, model(static), atol=1e-5) and torch.allclose(more, model(out), atol=1e-5)
    del noise, captured, second, out, more
    gc.collect()
    torch.cuda.empty_cache()


@step
def graph_in_a_fresh_stream():
    """A stream of PyTorch's pool that is first allocated on while it captures."""
    torch = enabled()
    x = torch.ones(1000, device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        torch.cuda.current_stream().wait_stream(side)
        z = y + 1
    graph.replay()
    torch.cuda.synchronize()
    assert bool((z == 3).all())


@step
def graph_uses_memory_again():
    """A block that side streams used serves its graph again once they are joined, if that is asked for."""
    torch = enabled()
    block = lambda: torch.empty(4096, dtype=torch.uint8, device="cuda")
    sources = [torch.arange(start, start + 64, dtype=torch.uint8) for start in (0, 64)]
    inputs, out = [block(), block()], [block(), block(), block()]
    [into[:64].copy_(source) for into, source in zip(inputs, sources)]
    for reuse in (True, False):
        torch._C._accelerator_setAllocatorSettings(f"graph_capture_record_stream_reuse:{reuse}")
        main, sides, graph = torch.cuda.Stream(), [torch.cuda.Stream(), torch.cuda.Stream()], torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=main):
            shared = block()
            address = shared.data_ptr()
            shared.copy_(inputs[0])
            for side, into in zip(sides, out):
                side.wait_stream(main)
                with torch.cuda.stream(side):
                    into.copy_(shared)
                shared.record_stream(side)
            del shared
            main.wait_stream(sides[0])
            early = block()
            assert early.data_ptr() != address, "one stream was not joined yet"
            main.wait_stream(sides[1])
            late = block()
            assert (late.data_ptr() == address) == reuse, (late.data_ptr(), address)
            late.copy_(inputs[1])
            out[2].copy_(late)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        assert [into.cpu()[:64].tolist() for into in out] == [sources[at].tolist() for at in (0, 0, 1)]
        del early, late, graph
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    pools = {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()}
    assert pools == {(0, 0)}, pools


@step
def compiled_regions():
    """The history says which compiled region an entry is of, in PyTorch's words."""
    torch = enabled()
    memory = torch.cuda.memory
    block = lambda bytes: torch.empty(bytes, dtype=torch.uint8, device="cuda")

    def two_regions(x):
        inner = block(1000)
        y = x + 1
        torch._dynamo.graph_break()
        return y, block(2000)

    function = torch.compile(two_regions, backend="eager")
    memory._record_memory_history(context="all", compile_context=True)
    outside = block(3000)
    kept = function(torch.ones(3))
    entries = [entry for entry in memory._snapshot()["device_traces"][0] if entry["size"] in (1000, 2000, 3000)]
    memory._record_memory_history(None)
    regions = {entry["size"]: entry["compile_context"] for entry in entries if entry["action"] == "alloc"}
    expected = {3000: "N/A", 1000: "Torch-Compiled Region: 0/0", 2000: "Torch-Compiled Region: 1/0"}
    assert regions == expected, regions
    del outside, kept


@step
def compiled():
    torch = enabled()

    @torch.compile(mode="reduce-overhead")
    def f(x, w):
        return torch.relu(x @ w).sum(dim=0)

    w = torch.randn(512, 512, device="cuda")
    for _ in range(6):
        x = torch.randn(128, 512, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.allclose(f(x, w), torch.relu(x @ w).sum(dim=0), atol=1e-2, rtol=1e-2)


@step
def cudnn_benchmark():
    torch = enabled()
    torch.backends.cudnn.benchmark = True
    convolution = torch.nn.Conv2d(16, 32, 3).cuda()
    for size in (32, 48, 64):
        convolution(torch.randn(8, 16, size, size, device="cuda")).sum().backward()


@step
def out_of_memory():
    torch = enabled()
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda device, requested, total, free: seen.append((device, requested)))
    try:
        torch.empty(32 << 40, dtype=torch.uint8, device="cuda")
        raise AssertionError("32 TiB were given")
    except torch.OutOfMemoryError as error:
        text = str(error)
    assert text.startswith("CUDA out of memory. Tried to allocate 32768.00 GiB. GPU 0 has a total capacity of"), text
    assert seen == [(0, 32 << 40)], seen
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    fails = [True]

    def observe(*_told):
        if fails:
            raise KeyError(fails.pop())

    torch._C._cuda_attach_out_of_memory_observer(observe)
    for expected in (KeyError, torch.OutOfMemoryError):
        try:
            torch.empty(32 << 40, dtype=torch.uint8, device="cuda")
            raise AssertionError("32 TiB were given")
        except expected:
            pass
    free, _ = torch.cuda.mem_get_info()
    big = torch.empty(int(free * 0.8), dtype=torch.uint8, device="cuda")
    try:
        torch.empty(int(free * 0.5), dtype=torch.uint8, device="cuda")
        raise AssertionError("more was given than there is")
    except torch.OutOfMemoryError:
        pass
    del big
    # The ladder: all of it is free again, in another shape.
    parts = [torch.empty(int(free * 0.1), dtype=torch.uint8, device="cuda") for _ in range(8)]
    del parts
    try:
        torch.empty(1 << 60, dtype=torch.uint8, device="cuda")
        raise AssertionError("1 EiB was given")
    except torch.OutOfMemoryError as error:
        assert "more than 1EB" in str(error)


@step
def fraction():
    torch = enabled()
    torch.cuda.set_per_process_memory_fraction(0.1)
    assert abs(torch.cuda.get_per_process_memory_fraction() - 0.1) < 1e-6
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.empty(int(total * 0.2), dtype=torch.uint8, device="cuda")
        raise AssertionError("the limit does not hold")
    except torch.OutOfMemoryError:
        pass
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(int(total * 0.2), dtype=torch.uint8, device="cuda")


@step
def options():
    import cuda_mem_torch

    try:
        cuda_mem_torch.enable(max_split_size_mb=1)
        raise AssertionError("a bad value was taken")
    except ValueError as error:
        assert "max_split_size" in str(error), error
    torch = enabled(large_segment_size_mb=32, per_process_memory_fraction=0.5)
    filled(torch, 1)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:40")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        filled(torch, 1, 2 * MIB)
    assert pool.snapshot()[0]["total_size"] == 40 * MIB, pool.snapshot()


@step
def accelerator_memory():
    torch = enabled()
    block = filled(torch, 1)
    accelerator = torch.accelerator
    assert accelerator.memory_allocated() == torch.cuda.memory_allocated() == 8 * MIB
    accelerator.reset_peak_memory_stats()
    accelerator.empty_cache()
    assert accelerator.max_memory_allocated() == 8 * MIB
    del block


@step
def raw_blocks():
    torch = enabled()
    memory = torch.cuda.memory
    address = memory.caching_allocator_alloc(5 * MIB)
    assert torch.cuda.memory_allocated() == 5 * MIB
    memory.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == 0
    memory.caching_allocator_enable(False)
    torch.ones(1000, device="cuda").sum().item()
    memory.caching_allocator_enable(True)
    try:
        memory.caching_allocator_delete(12345)
        raise AssertionError("an address of nobody was taken back")
    except RuntimeError as error:
        assert "invalid device pointer" in str(error), error


def _child(ours, queue, back):
    import torch

    if ours:
        import cuda_mem_torch

        cuda_mem_torch.enable()
    tensor = queue.get()
    back.put((torch.cuda.get_allocator_backend(), int(tensor.sum().item())))
    tensor.add_(1)
    torch.cuda.synchronize()
    back.put("done")
    del tensor


def _between_processes(sender_is_ours, receiver_is_ours):
    import torch
    import torch.multiprocessing as multiprocessing

    if sender_is_ours:
        import cuda_mem_torch

        cuda_mem_torch.enable()
    context = multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=_child, args=(receiver_is_ours, queue, back))
    child.start()
    for bytes in (1000, 3 * MIB):
        tensor = torch.full((bytes,), 2, dtype=torch.uint8, device="cuda")
        if bytes == 1000:
            continue
        queue.put(tensor)
        backend, total = back.get(timeout=100)
        assert total == 2 * bytes and (backend == "cuda-mem") == receiver_is_ours
        assert back.get(timeout=100) == "done"
        assert int(tensor.sum().item()) == 3 * bytes
    child.join(100)
    assert child.exitcode == 0, child.exitcode


@step
def ipc_to_ours():
    _between_processes(True, True)


@step
def ipc_to_native():
    _between_processes(True, False)


@step
def ipc_from_native():
    _between_processes(False, True)


@step
def late_install():
    """A graph, a pool and tensors of the native allocator, used and destroyed after ours took over."""
    import torch

    early = filled(torch, 7)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        pooled = filled(torch, 8)
        import cuda_mem_torch

        try:
            cuda_mem_torch.enable()
            raise AssertionError("it was enabled inside use_mem_pool")
        except cuda_mem_torch.CudaMemError as error:
            assert "use_mem_pool is active" in str(error), error
    graph = torch.cuda.CUDAGraph()
    static = torch.ones(1000, device="cuda")
    with torch.cuda.graph(graph):
        out = static * 3
    before = torch.cuda.memory_allocated()
    cuda_mem_torch.enable()
    assert torch.cuda.get_allocator_backend() == "cuda-mem" and torch.cuda.memory_allocated() == before
    fresh = filled(torch, 9)
    assert torch.cuda.memory_allocated() == before + 8 * MIB
    early.record_stream(torch.cuda.Stream())
    with torch.cuda.use_mem_pool(pool):
        again = filled(torch, 10)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((out == 3).all()) and bool((early == 7).all()) and bool((pooled == 8).all()) and bool((again == 10).all())
    del early, pooled, again, pool, graph, out, static
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 8 * MIB, torch.cuda.memory_allocated()
    del fresh


@step
def disabled_again():
    torch = enabled()
    import cuda_mem_torch

    block = filled(torch, 1)
    try:
        cuda_mem_torch.disable()
        raise AssertionError("it was disabled while a tensor lives")
    except cuda_mem_torch.CudaMemError as error:
        assert "delete them first" in str(error), error
    # What was freed and recorded is pending until somebody looks whether the stream is done.
    block.record_stream(torch.cuda.Stream())
    del block
    torch.cuda.synchronize()
    cuda_mem_torch.disable()
    assert torch.cuda.get_allocator_backend() == "native" and not cuda_mem_torch.is_enabled()
    filled(torch, 1)
    cuda_mem_torch.enable()
    filled(torch, 1)


@step
def pinning():
    torch = enabled()
    import cuda_mem_torch

    host = torch.arange(1 << 20)
    assert not host.is_pinned()
    cuda_mem_torch.pin(host)
    assert host.is_pinned()
    assert torch.equal(host.to("cuda", non_blocking=True).cpu(), host)
    torch.cuda.synchronize()
    cuda_mem_torch.unpin(host)
    assert not host.is_pinned()


@step
def profiler():
    torch = enabled()
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as recorded:
        filled(torch, 1)
    assert any(event.self_device_memory_usage > 0 for event in recorded.key_averages())


@step
def threads():
    torch = enabled()
    wrong = []

    def work(seed):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for n in range(200):
                block = filled(torch, (seed + n) % 251, (n % 7 + 1) * 300_000)
                if not bool((block == (seed + n) % 251).all()):
                    wrong.append((seed, n))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert not wrong, wrong[:5]


@step
def forked_child():
    torch = enabled()
    block = filled(torch, 1)
    child = os.fork()
    if child == 0:
        del block
        gc.collect()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    assert bool((block == 1).all())


@step
def alive_at_exit():
    """Tensors, a pool and a graph that the interpreter's end finds."""
    global kept
    torch = enabled()
    pool = torch.cuda.MemPool()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.ones(1000, device="cuda")
    kept = [filled(torch, 1), pool, graph, out]


@step
def memcheck():
    """Training and generation under compute-sanitizer."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        print("skipped: compute-sanitizer is not installed")
        return
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mixed.py")
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, script, "--seconds", "5", "--small"]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout[-3000:] + done.stderr[-2000:]
    assert done.returncode == 0 and "ERROR SUMMARY: 0 errors" in said, said


@step
def two_devices():
    torch = enabled()
    if torch.cuda.device_count() < 2:
        print("skipped: there is one device")
        return
    one, other = torch.full((MIB,), 1, device="cuda:0"), torch.full((MIB,), 2, device="cuda:1")
    assert bool((one.to("cuda:1") + other == 3).all())
    one.record_stream(torch.cuda.Stream("cuda:1"))


def _rank(number, directory, work):
    """A rank of the steps below, with a device of its own."""
    torch = enabled()
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem

    torch.cuda.set_device(number)
    store = dist.FileStore(f"{directory}/store", 2)
    dist.init_process_group("gloo", store=store, rank=number, world_size=2)
    symm_mem.set_backend("CUDA_MEM")
    globals()[work](torch, symm_mem, dist, number)
    torch.cuda.synchronize()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def together(rank, *arguments):
    """Two ranks, each a process with a number. One that hangs is ended: it would be waited for when this process ends."""
    import torch.multiprocessing as multiprocessing

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        ranks = [context.Process(target=rank, args=(number, directory, *arguments), daemon=True) for number in range(2)]
        [process.start() for process in ranks]
        end = time.monotonic() + 200
        [process.join(max(0, end - time.monotonic())) for process in ranks]
        [process.kill() for process in ranks if process.is_alive()]
        [process.join() for process in ranks]
        assert [process.exitcode for process in ranks] == [0, 0], [process.exitcode for process in ranks]


def _on_two_devices(work):
    import torch

    if torch.cuda.device_count() < 2:
        print("skipped: there is one device")
        return
    together(_rank, work)


def _buffers_and_signals(torch, symm_mem, dist, number):
    tensor = symm_mem.empty(1 << 20, dtype=torch.float32, device=f"cuda:{number}")
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    for turn in range(5):
        tensor.fill_(10 * turn + number)
        handle.barrier(channel=0)
        theirs = handle.get_buffer(1 - number, (1 << 20,), torch.float32)
        assert bool((theirs == 10 * turn + 1 - number).all()), (turn, number)
        handle.barrier(channel=1)
        if number == 0:
            handle.put_signal(1, channel=2)
        else:
            handle.wait_signal(0, channel=2)


def _collectives(torch, symm_mem, dist, number):
    group = dist.group.WORLD.group_name
    tensor = symm_mem.empty(4096, dtype=torch.bfloat16, device=f"cuda:{number}")
    with torch.cuda.use_mem_pool(symm_mem.get_mem_pool(torch.device("cuda", number))):
        pooled = torch.empty(4096, dtype=torch.bfloat16, device=f"cuda:{number}")
    for mine in (tensor, pooled):
        symm_mem.rendezvous(mine, dist.group.WORLD)
        for turn in range(5):
            mine.fill_(turn + number)
            total = torch.ops.symm_mem.one_shot_all_reduce(mine, "sum", group)
            assert bool((total == 2 * turn + 1).all()), (turn, number)


def _functors(torch, symm_mem, dist, number):
    import cuda_mem_torch

    # The backend's first allocation joins the group that the pool is of.
    symm_mem.empty(16, device=f"cuda:{number}")
    with torch.cuda.use_mem_pool(cuda_mem_torch.symmetric.MemPool()):
        blocks = [torch.full((MIB,), 10 * n + number, dtype=torch.uint8, device=f"cuda:{number}") for n in range(4)]
    assert all(bool((block == 10 * n + number).all()) for n, block in enumerate(blocks))


@step
def symmetric_buffers():
    _on_two_devices("_buffers_and_signals")


@step
def symmetric_collectives():
    _on_two_devices("_collectives")


@step
def symmetric_functors():
    _on_two_devices("_functors")


@step
def without_it_a_plain_allocator_lacks_all_this():
    """The library through CUDAPluggableAllocator alone, to show the difference."""
    import torch

    from cuda_mem_torch import _library

    plain = torch.cuda.memory.CUDAPluggableAllocator(str(_library.PATH), "cuda_mem_torch_alloc", "cuda_mem_torch_free")
    torch.cuda.memory.change_current_allocator(plain)
    assert torch.ones(1000, device="cuda").sum().item() == 1000
    lacking = {
        "memory_stats": torch.cuda.memory_stats,
        "snapshot": torch.cuda.memory_snapshot,
        "MemPool": torch.cuda.MemPool,
        "history": torch.cuda.memory._record_memory_history,
    }
    for name, call in lacking.items():
        try:
            call()
            raise AssertionError(f"{name} works")
        except RuntimeError:
            pass


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print("\n".join(STEPS))
    else:
        STEPS[sys.argv[1]]()
