"""Steps of `run_all.py` on pinned host memory through PyTorch, beside PyTorch's own: `pinned.py NAME`; `--list` names them. Each prints its
figures."""

import ctypes
import mmap
import os
import statistics
import threading
import time

from figures import GIB, MIB, Beside, Driver, Steps, alone, pytorch, until_told

STEPS = Steps()
THREADS = 16


def available():
    """Bytes of host memory that can be had."""
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":") for line in file)
    return int(lines["MemAvailable"].split()[0]) * 1024


def touch(bytes):
    """Writes to so much memory and gives it back: a guest's memory that was never used is slow at first, whoever has it."""
    region = mmap.mmap(-1, bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    part = bytes // THREADS
    writers = [threading.Thread(target=ctypes.memset, args=(start + at * part, 1, part)) for at in range(THREADS)]
    [writer.start() for writer in writers]
    [writer.join() for writer in writers]


def pinning(arm):
    """PyTorch, whose pinned memory is the arm's. Ours is exact where PyTorch rounds to a power of two: that tells whose it is."""
    torch = pytorch(arm)
    torch.cuda.init()
    torch.empty(1, device="cuda")
    block = torch.empty(5 * MIB, dtype=torch.uint8, pin_memory=True)
    bytes = torch.cuda.host_memory_stats()["active_bytes.current"]
    del block
    if arm == "cuda-mem" and bytes >= 8 * MIB:
        raise AssertionError("pinned memory is PyTorch's own: 8 MiB are in use for a request of 5")
    torch._C._host_emptyCache()
    return torch


@STEPS.part
def ready(arm, bytes):
    """Seconds until so many bytes can be used, and until all of them were uploaded once."""
    torch = pinning(arm)
    target = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    began = time.perf_counter()
    block = torch.empty(bytes, dtype=torch.uint8, pin_memory=True)
    there = time.perf_counter()
    for start in range(0, bytes, GIB):
        part = block[start : start + GIB]
        target[: part.numel()].copy_(part, non_blocking=True)
    torch.cuda.synchronize()
    uploaded = time.perf_counter()
    assert block.is_pinned() and block.numel() == bytes
    return {"ready": there - began, "uploaded": uploaded - began}


@STEPS.step
def ready_16_gib():
    """How long it takes until 16 GiB are pinned: ours, PyTorch's default, and PyTorch's registration by eight threads."""
    bytes, arms, found = 16 * GIB, ("cuda-mem", "native", "registered"), {}
    assert available() > bytes + 4 * GIB, f"{available() / GIB:.0f} GiB of host memory are available"
    touch(min(2 * bytes, available() // 2))
    for turn in range(3):
        for arm in arms[turn:] + arms[:turn]:
            found.setdefault(arm, []).append(alone(ready, arm, bytes))
    for what in ("ready", "uploaded"):
        seconds = {arm: statistics.median(run[what] for run in runs) for arm, runs in found.items()}
        for arm in arms:
            STEPS.figure(f"16 GiB {what}, {arm}", seconds[arm], "s")
        for arm, bound in (("native", 5.0), ("registered", 1.5)):
            name, ratio = f"16 GiB {what}, {arm} / ours", seconds[arm] / seconds["cuda-mem"]
            if what == "ready":
                STEPS.at_least(name, ratio, "times", bound)
            else:
                STEPS.figure(name, ratio, "times")


ARMS = ("cuda-mem", "native")
SIZES = {"4 KiB": 4096, "1 MiB": MIB, "3 MiB": 3 * MIB, "64 MiB": 64 * MIB}


@STEPS.part
def hits():
    """Nanoseconds of one allocation and free of sizes that are in the cache, ours and PyTorch's own by turns: processes differ by more than
    these two do."""
    torch, found = pinning("cuda-mem"), {}
    import cuda_mem_torch

    def turn(arm, bytes):
        cuda_mem_torch.enable(pinned=arm == "cuda-mem")
        for _ in range(200):
            torch.empty(bytes, dtype=torch.uint8, pin_memory=True)
        began = time.perf_counter_ns()
        for _ in range(3000):
            torch.empty(bytes, dtype=torch.uint8, pin_memory=True)
        return (time.perf_counter_ns() - began) / 3000

    for name, bytes in SIZES.items():
        turns = [{arm: turn(arm, bytes) for arm in ARMS[:: 1 if at % 2 else -1]} for at in range(24)]
        found[name] = {arm: statistics.median(turn[arm] for turn in turns) for arm in ARMS}
        found[name]["ratio"] = statistics.median(turn["cuda-mem"] / turn["native"] for turn in turns)
    return found


@STEPS.step
def hit_from_python():
    """`torch.empty(bytes, pin_memory=True)` of a cached size: the median of five processes."""
    runs = [alone(hits) for _ in range(5)]
    for name in SIZES:
        for arm in ARMS:
            STEPS.figure(f"a hit of {name}, {arm}, by process", sorted(round(run[name][arm]) for run in runs), "ns")
        STEPS.at_most(f"a hit of {name}, ours / native", statistics.median(run[name]["ratio"] for run in runs), "times", 1.0)


@STEPS.part
def ask_all_the_time():
    """Another program of the host: asks what is free, and allocates and frees 2 MiB, until it is told to end. How long its calls take."""
    driver = Driver()
    driver.release(driver.allocate(2 * MIB))
    waits, over = [], until_told()
    while not over.is_set():
        began = time.perf_counter()
        driver.free()
        asked = time.perf_counter()
        address = driver.allocate(2 * MIB)
        allocated = time.perf_counter()
        driver.release(address)
        freed = time.perf_counter()
        waits += [asked - began, allocated - asked, freed - allocated]
    waits.sort()
    return {"calls": len(waits), "longest": waits[-1], "of_100": waits[min(len(waits) - 1, int(len(waits) * 0.99))]}


@STEPS.part
def pin_beside(arm, count, bytes):
    """Pins so many blocks while the other program runs, and what its calls took."""
    torch = pinning(arm) if arm else None
    with Beside(ask_all_the_time) as other:
        began = time.perf_counter()
        if arm:
            blocks = [torch.empty(bytes, dtype=torch.uint8, pin_memory=True) for _ in range(count)]
            seconds = time.perf_counter() - began
            assert all(block.is_pinned() for block in blocks)
        else:
            time.sleep(2)
            seconds = time.perf_counter() - began
    return other.answer | {"seconds": seconds}


@STEPS.step
def neighbour_waits():
    """What the driver's calls of another process take while 64 GiB are pinned here, in blocks of 1 GiB and of 16. A block is one registration,
    since the driver copies from no two at a time (code 1), and a registration holds the driver's lock for some 22 ms a GiB."""
    pinned = 64 if available() > 104 * GIB else 48
    assert available() > (pinned + 8) * GIB, f"{available() / GIB:.0f} GiB of host memory are available"
    touch(pinned * GIB)
    for arm, large in ((None, 1), ("cuda-mem", 1), ("native", 1), ("registered", 1), ("cuda-mem", 16), ("registered", 16)):
        told = alone(pin_beside, arm, pinned // large, large * GIB)
        name = f"{arm or 'nobody'} pins blocks of {large} GiB"
        STEPS.figure(f"{name}: time of {pinned if arm else 0} GiB", told["seconds"], f"s, {told['calls']} calls beside it")
        longest = (f"{name}: the longest call of the neighbour", told["longest"] * 1000, "ms")
        of_100 = (f"{name}: 99 of 100 calls of the neighbour", told["of_100"] * 1000, "ms")
        if arm == "cuda-mem":
            STEPS.at_most(*longest, 50.0)
            STEPS.at_most(*of_100, 5.0)
        else:
            STEPS.figure(*longest)
            STEPS.figure(*of_100)


BATCH, BATCHES = 128, 50


class Images:
    """A data set of images of numbers: made quickly, so that pinning counts."""

    def __len__(self):
        return BATCH * (BATCHES + 1)

    def __getitem__(self, number):
        import torch

        return torch.full((3, 224, 224), float(number % 251))


@STEPS.part
def loaded(arm):
    """A pinned loader: until its first batch, then fifty batches on their way to the device."""
    torch = pinning(arm)
    torch.cuda.reset_peak_host_memory_stats()
    # Batches of workers go through /dev/shm.
    place = os.statvfs("/dev/shm")
    workers = 4 if place.f_bavail * place.f_frsize > GIB else 0
    loader = torch.utils.data.DataLoader(Images(), batch_size=BATCH, num_workers=workers, pin_memory=True)
    began = time.perf_counter()
    batches = iter(loader)
    batch = next(batches)
    first, wrong = time.perf_counter() - began, 0
    assert batch.is_pinned()
    began = time.perf_counter()
    for number, batch in enumerate(batches, 1):
        there = batch.to("cuda", non_blocking=True)
        del batch
        # The pinned memory is free for the loader as soon as the copy is done, and not before.
        expected = torch.arange(number * BATCH, (number + 1) * BATCH) % 251
        wrong += not torch.equal(there[:, 0, 0, 0].cpu(), expected.float()) or not torch.equal(there[:, 2, 223, 223].cpu(), expected.float())
    seconds = time.perf_counter() - began
    stats = torch.cuda.host_memory_stats()
    return {"workers": workers, "first": first, "seconds": seconds, "bytes": stats["allocated_bytes.peak"], "batches": number, "wrong": wrong}


@STEPS.step
def data_loader():
    """`DataLoader(pin_memory=True)` beside PyTorch's own pinned memory."""
    found = {"cuda-mem": [], "native": []}
    for turn in range(3):
        for arm in list(found)[:: -1 if turn % 2 else 1]:
            found[arm].append(alone(loaded, arm))
    middle = {arm: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for arm, runs in found.items()}
    STEPS.figure("workers of the loader", middle["native"]["workers"], "")
    units = {"first": ("time to the first batch", "s", 1), "seconds": (f"time of {BATCHES} batches", "s", 1), "bytes": ("pinned", "MiB", MIB)}
    for key, (name, unit, scale) in units.items():
        for arm in found:
            STEPS.figure(f"{name}, {arm}", middle[arm][key] / scale, unit)
        ratio = (f"{name}, ours / native", middle["cuda-mem"][key] / middle["native"][key], "times")
        if key == "bytes":
            STEPS.at_most(*ratio, 1.0)
        else:
            STEPS.figure(*ratio)
    STEPS.at_most("batches with other bytes", max(run["wrong"] for run in found["cuda-mem"]), f"of {BATCHES}", 0)
    assert middle["cuda-mem"]["batches"] == BATCHES, middle


if __name__ == "__main__":
    STEPS.main()
