"""Steps of `run_all.py` on tags that sleep and wake: `sleep.py NAME`; `--list` names them. Each prints its figures. They need 26 GiB of a device
and 50 GiB of host memory."""

import ctypes
import os
import random
import signal
import sys
import threading
import time

from figures import GIB, MIB, Driver, Steps, alone, answer, pytorch, say, started, two_devices

STEPS = Steps()
TOTAL = 20 * GIB
PIECE = 64 * MIB
THREADS = 16


def spread(count, least, most, total=TOTAL):
    """So many sizes from `least` to `most` bytes, which add up to `total`: evenly over their magnitudes, bent so that the sum fits."""
    draw = random.Random(count)
    draws = [draw.random() for _ in range(count)]
    low, high = 0.01, 100.0
    for _ in range(60):
        bend = (low + high) / 2
        sizes = [int(least * (most / least) ** (draw**bend)) for draw in draws]
        low, high = (bend, high) if sum(sizes) > total else (low, bend)
    return [-(-size // 512) * 512 for size in sizes]


SIZES = {"2,000 blocks": (2000, MIB, 64 * MIB), "100,000 blocks": (100_000, 512, 64 * MIB)}


class Blocks:
    """Blocks whose every byte is known: parts of one pattern, each from a place of its own."""

    def __init__(self, torch, sizes):
        self.torch = torch
        self.pattern = torch.randint(0, 256, (max(sizes) + 4096,), dtype=torch.uint8, device="cuda")
        self.sizes, self.blocks = sizes, []

    def place(self, at):
        start = at * 977 % 4096
        return self.pattern[start : start + self.sizes[at]]

    def allocate(self):
        self.blocks = [self.torch.empty(size, dtype=self.torch.uint8, device="cuda") for size in self.sizes]
        for at, block in enumerate(self.blocks):
            block.copy_(self.place(at))
        self.addresses = [block.data_ptr() for block in self.blocks]
        self.torch.cuda.synchronize()

    def wrong(self):
        """How many blocks lost a byte or their address."""
        same = zip(self.blocks, self.addresses)
        moved = sum(block.data_ptr() != address for block, address in same)
        return moved + sum(not self.torch.equal(block, self.place(at)) for at, block in enumerate(self.blocks))


def link(torch):
    """Bytes a second from the device to pinned memory, and back: the best of five copies of 2 GiB."""
    host, device = torch.empty(2 * GIB, dtype=torch.uint8, pin_memory=True), torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    rates = []
    for target, source in ((host, device), (device, host)):
        best = min(timed(lambda: (target.copy_(source, non_blocking=True), torch.cuda.synchronize()))[0] for _ in range(5))
        rates.append(2 * GIB / best)
    del host, device
    torch._C._host_emptyCache()
    torch.cuda.empty_cache()
    return rates


def timed(work):
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


@STEPS.part
def free_bytes():
    """Another process: says what the device has free whenever it is asked."""
    driver = Driver()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(driver.free(), flush=True)
    return driver.free()


class Neighbour:
    def __enter__(self):
        self.process = started(free_bytes)
        assert self.process.stdout.readline().strip() == "ready"
        return self

    def free(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def __exit__(self, *_):
        answer(self.process)


@STEPS.part
def ours(kind):
    torch = pytorch("cuda-mem")
    import cuda_mem_torch

    down, up = link(torch)
    blocks = Blocks(torch, spread(*SIZES[kind]))
    with cuda_mem_torch.tag("weights"):
        blocks.allocate()
    torch.cuda.empty_cache()
    held, live = cuda_mem_torch.state()["weights"].awake, sum(blocks.sizes)
    sleeps, wakes, free, wrong = [], [], [], 0
    with Neighbour() as neighbour:
        for _ in range(4):
            before = neighbour.free()
            seconds, slept = timed(lambda: cuda_mem_torch.sleep("weights"))
            free.append((neighbour.free() - before) / slept.freed)
            assert not slept.missing and not slept.kept and not slept.refused, str(slept)
            sleeps.append(seconds)
            wakes.append(timed(lambda: cuda_mem_torch.wake("weights"))[0])
            wrong += blocks.wrong()
    return {"down": down, "up": up, "held": held, "live": live, "sleeps": sleeps, "wakes": wakes, "free": min(free), "wrong": wrong}


@STEPS.part
def memory_saver(kind):
    """torch_memory_saver's own way, with a backup on the host."""
    torch = pytorch("native")
    try:
        from torch_memory_saver import torch_memory_saver as saver
    except ImportError as error:
        return {"missing": str(error)}
    saver.hook_mode = "torch"
    blocks = Blocks(torch, spread(*SIZES[kind]))
    with saver.region(tag="weights", enable_cpu_backup=True):
        blocks.allocate()
    sleeps, wakes, wrong = [], [], 0
    for _ in range(3):
        sleeps.append(timed(lambda: (saver.pause("weights"), torch.cuda.synchronize()))[0])
        wakes.append(timed(lambda: (saver.resume("weights"), torch.cuda.synchronize()))[0])
        wrong += blocks.wrong()
    say({"sleeps": sleeps, "wakes": wakes, "wrong": wrong})
    # Its hook ends a process that frees outside a region, as interpreters do at their end.
    os._exit(0)


@STEPS.part
def cumem(kind):
    """vLLM's allocator for sleep mode."""
    torch = pytorch("native")
    try:
        from vllm.device_allocator.cumem import CuMemAllocator
    except ImportError as error:
        return {"missing": str(error)}
    allocator = CuMemAllocator.get_instance()
    blocks = Blocks(torch, spread(*SIZES[kind]))
    with allocator.use_memory_pool(tag="weights"):
        blocks.allocate()
    sleeps, wakes, wrong = [], [], 0
    for _ in range(3):
        sleeps.append(timed(lambda: (allocator.sleep(offload_tags=("weights",)), torch.cuda.synchronize()))[0])
        wakes.append(timed(lambda: (allocator.wake_up(), torch.cuda.synchronize()))[0])
        wrong += blocks.wrong()
    return {"sleeps": sleeps, "wakes": wakes, "wrong": wrong}


def backed_up(kind, share):
    found = alone(ours, kind, timeout=300)
    live, figure = found["live"], STEPS.figure
    figure(f"live in {kind}, held for it", (live / GIB, found["held"] / GIB), "GiB")
    figure("link down, up", (found["down"] / 1e9, found["up"] / 1e9), "GB/s")
    figure("first sleep, which makes the backup", found["sleeps"][0], "s")
    sleep, wake = min(found["sleeps"][1:]), min(found["wakes"])
    figure("sleep, wake", (sleep, wake), "s")
    STEPS.at_least("sleep, of the link's rate", live / sleep / found["down"], "", share)
    STEPS.at_least("wake, of the link's rate", live / wake / found["up"], "", share)
    STEPS.at_least("free for another process when sleep returns", found["free"], "of what went", 0.99)
    STEPS.at_most("blocks that lost a byte or their address", found["wrong"], "", 0)
    for peer in (memory_saver, cumem):
        try:
            of_peer = alone(peer, kind, timeout=300)
        except RuntimeError as error:
            of_peer = {"missing": str(error)[-300:]}
        if "missing" in of_peer:
            print(f"{peer.__name__}: not measured: {of_peer['missing']}")
            continue
        figure(f"{peer.__name__}: first sleep; sleep, wake", (of_peer["sleeps"][0], min(of_peer["sleeps"][1:]), min(of_peer["wakes"])), "s")


@STEPS.step
def two_thousand_blocks():
    backed_up("2,000 blocks", 0.9)


@STEPS.step
def a_hundred_thousand_blocks():
    backed_up("100,000 blocks", 0.8)


@STEPS.step
def first_sleep():
    """The first sleep beside what it is made of: pages that are touched, pinned and copied to."""
    torch = pytorch("cuda-mem")
    import cuda_mem_torch

    with cuda_mem_torch.tag("weights"):
        blocks = [torch.empty(512 * MIB, dtype=torch.uint8, device="cuda") for _ in range(TOTAL // (512 * MIB))]
    alone = []
    for _ in range(2):
        began = time.perf_counter()
        host = torch.empty(TOTAL, dtype=torch.uint8)
        part = TOTAL // THREADS
        writers = [threading.Thread(target=ctypes.memset, args=(host.data_ptr() + at * part, 1, part)) for at in range(THREADS)]
        [writer.start() for writer in writers]
        [writer.join() for writer in writers]
        cuda_mem_torch.pin(host)
        for at, block in enumerate(blocks):
            host[at * 512 * MIB : (at + 1) * 512 * MIB].copy_(block, non_blocking=True)
        torch.cuda.synchronize()
        alone.append(time.perf_counter() - began)
        cuda_mem_torch.unpin(host)
        del host
    seconds = timed(lambda: cuda_mem_torch.sleep("weights"))[0]
    STEPS.figure("touch, pin and copy alone", min(alone), "s")
    STEPS.at_most("first sleep", seconds, "s", 1.3 * min(alone))
    cuda_mem_torch.wake("weights")


class _Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int), ("device", ctypes.c_int), ("windows", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("place", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int)]


@STEPS.part
def bare():
    """Seconds of the driver's calls alone, to make and map as much in as many handles, and to unmap and release it: the best of three."""
    driver, count = Driver(), TOTAL // PIECE
    size, piece, address = ctypes.c_size_t(TOTAL), ctypes.c_size_t(PIECE), ctypes.c_uint64()
    driver.call("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
    properties, access = _Properties(1, 1, 1, 0, None, 0, 1, 0), _Access(1, 0, 3)
    make, unmake = [], []
    zero = ctypes.c_uint64(0)
    for _ in range(3):
        handles = [ctypes.c_uint64() for _ in range(count)]
        began = time.perf_counter()
        for handle in handles:
            driver.call("cuMemCreate", ctypes.byref(handle), piece, ctypes.byref(properties), zero)
        for at, handle in enumerate(handles):
            driver.call("cuMemMap", ctypes.c_uint64(address.value + at * PIECE), piece, ctypes.c_size_t(0), handle, zero)
        driver.call("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))
        mapped = time.perf_counter()
        driver.call("cuMemUnmap", address, size)
        for handle in handles:
            driver.call("cuMemRelease", handle)
        make.append(mapped - began)
        unmake.append(time.perf_counter() - mapped)
    return min(make), min(unmake)


@STEPS.step
def discarded():
    """Sleep without a backup and wake from nothing, beside bare calls of the driver."""
    make, unmake = alone(bare)
    torch = pytorch("cuda-mem")
    import cuda_mem_torch

    with cuda_mem_torch.tag("cache"):
        blocks = [torch.empty(512 * MIB, dtype=torch.uint8, device="cuda") for _ in range(TOTAL // (512 * MIB))]
    torch.cuda.synchronize()
    rounds = [(timed(lambda: cuda_mem_torch.sleep("cache", backup="discard"))[0], timed(lambda: cuda_mem_torch.wake("cache", restore=False))[0]) for _ in range(5)]
    STEPS.figure("bare: make and map, unmap and release", (make, unmake), "s")
    STEPS.at_most("sleep without a backup", min(sleep for sleep, _ in rounds), "s", 1.25 * unmake)
    STEPS.at_most("wake from nothing", min(wake for _, wake in rounds), "s", 1.25 * make)
    del blocks


def available():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def resident():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


@STEPS.step
def a_hundred_cycles():
    """What is had of everything is the same after each."""
    torch = pytorch("cuda-mem")
    import cuda_mem_torch

    sizes = spread(2000, 512, 8 * MIB, GIB)
    blocks = Blocks(torch, sizes)
    with cuda_mem_torch.tag("weights"):
        blocks.allocate()
    seen = []
    for _ in range(100):
        cuda_mem_torch.sleep("weights")
        cuda_mem_torch.wake("weights")
        state = cuda_mem_torch.state()["weights"]
        seen.append((torch.cuda.mem_get_info()[0], state.awake, state.backup, len(os.listdir("/proc/self/fd")), resident()))
    later = seen[20:]
    for name, at in (("device memory", 0), ("the tag's memory", 1), ("pinned memory", 2), ("descriptors", 3)):
        STEPS.at_most(f"growth of {name} in 80 cycles", abs(later[-1][at] - later[0][at]), "", 0)
    STEPS.at_most("VmRSS, a cycle", (later[-1][4] - later[0][4]) / len(later), "bytes", 64 << 10)
    STEPS.at_most("blocks that lost a byte or their address", blocks.wrong(), "", 0)


KILLED = ("before the first unmapping", "in the middle of a sleep", "asleep", "in the middle of a wake", "behind the last mapping")


@STEPS.part
def dies(when):
    """Is killed at one of the moments of `KILLED`."""
    torch = pytorch("cuda-mem")
    import cuda_mem_torch

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def change(change):
        if when == KILLED[0 if change.is_leaving else 4]:
            die()

    with cuda_mem_torch.tag("weights"):
        blocks = [torch.empty(512 * MIB, dtype=torch.uint8, device="cuda") for _ in range(16)]
    torch.cuda.synchronize()
    seconds = [timed(lambda: work("weights"))[0] for _ in range(2) for work in (cuda_mem_torch.sleep, cuda_mem_torch.wake)]
    cuda_mem_torch.on_backing_change(change)
    # The second of each has its backup.
    for work, moment, of in ((cuda_mem_torch.sleep, KILLED[1], seconds[2]), (cuda_mem_torch.wake, KILLED[3], seconds[3])):
        if when == moment:
            threading.Timer(of / 2, die).start()
        work("weights")
        if when == KILLED[2]:
            die()
    return len(blocks)


@STEPS.step
def killed():
    """What a process had that is killed asleep, or on the way there or back, comes back: device memory, and pinned memory."""
    driver = Driver()
    for when in KILLED:
        before, host = driver.free(), available()
        process = started(dies, when)
        process.communicate(timeout=100)
        assert process.returncode == -signal.SIGKILL, (when, process.returncode)
        end = time.monotonic() + 20
        while driver.free() < before and time.monotonic() < end:
            time.sleep(0.05)
        STEPS.at_most(f"device memory that is lost when one is killed {when}", before - driver.free(), "bytes", 0)
        while available() < host - GIB and time.monotonic() < end:
            time.sleep(0.05)
        STEPS.at_most("host memory, of 8 GiB", max(0, host - available()), "bytes", GIB)


@STEPS.step
def graphs():
    """Graphs that were captured before replay after: kernels, copies and memsets, their own pool asleep too. Something else trains meanwhile."""
    torch = pytorch("cuda-mem")
    import cuda_mem_torch

    tag, pool, graph = cuda_mem_torch.tag("graphs"), torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    tag.add(pool)
    with tag:
        weights, source = torch.full((MIB,), 3.0, device="cuda"), torch.zeros(MIB, device="cuda")
        target, copied = torch.zeros(MIB, device="cuda"), torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=pool):
        target.zero_()
        target += (source * weights).relu() + 1
        copied.copy_(target)
    trained = torch.zeros(MIB, device="cuda")
    for round in range(5):
        source.fill_(round)
        # One runs when it is put to sleep, on a stream that nobody recorded.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.replay()
        slept = cuda_mem_torch.sleep("graphs")
        assert slept.freed and not slept.refused, str(slept)
        trained += torch.ones(MIB, device="cuda")
        cuda_mem_torch.wake("graphs")
        assert bool((copied == 3 * round + 1).all()), round
        source.fill_(round + 10)
        copied.zero_()
        graph.replay()
        assert bool((copied == 3 * (round + 10) + 1).all()), round
    assert bool((trained == 5).all())
    STEPS.figure("replays that were right", 10, "")


@STEPS.step
def graphs_beside_a_peer():
    """A graph that reads and writes tagged memory of two devices replays after both slept: whole copies, and strided ones, which are a kernel
    of one device over memory of the other."""
    torch = pytorch("cuda-mem")
    import cuda_mem_torch

    if not two_devices(torch):
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(1):
        # Kernels of a copy run on either device's stream, and none can be captured from a legacy one.
        torch.cuda.set_stream(torch.cuda.Stream())
    with cuda_mem_torch.tag("near"):
        own, back = torch.zeros(MIB, device="cuda:0"), torch.zeros(MIB, device="cuda:0")
    with torch.cuda.device(1), cuda_mem_torch.tag("far"):
        weights, written = torch.full((MIB,), 3.0, device="cuda:1"), torch.zeros(MIB, device="cuda:1")

    def work():
        back.copy_(weights)
        back.mul_(own)
        written.copy_(back)
        written[::2].copy_(back[::2] + 1)

    # Before, so that peers have access.
    work()
    for device in range(2):
        torch.cuda.synchronize(device)
    with torch.cuda.graph(graph):
        work()
    for round in range(5):
        own.fill_(round + 1)
        for name, device in (("near", 0), ("far", 1)) if round % 2 else (("far", 1), ("near", 0)):
            slept = cuda_mem_torch.sleep(name, device=device)
            assert slept.freed and not slept.refused and not slept.missing, str(slept)
        for name, device in (("near", 0), ("far", 1)):
            cuda_mem_torch.wake(name, device=device)
        graph.replay()
        torch.cuda.synchronize(0)
        expected = 3 * (round + 1)
        assert bool((written[1::2] == expected).all()) and bool((written[::2] == expected + 1).all()) and bool((weights == 3).all()), round
    STEPS.figure("replays that were right", 5, "")


@STEPS.step
def compiled_and_slept():
    """A region that was compiled before goes on after."""
    torch = pytorch("cuda-mem")
    import cuda_mem_torch

    with cuda_mem_torch.tag("weights"):
        model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
    run = torch.compile(model, mode="reduce-overhead")
    given = torch.randn(64, 1024, device="cuda")
    with torch.no_grad():
        expected = model(given).clone()
        for _ in range(4):
            run(given)
        for _ in range(3):
            assert cuda_mem_torch.sleep("weights").freed
            cuda_mem_torch.wake("weights")
            torch.compiler.cudagraph_mark_step_begin()
            assert torch.allclose(run(given), expected, rtol=1e-2, atol=1e-2)
    STEPS.figure("regions that were right", 3, "")


if __name__ == "__main__":
    STEPS.main()
