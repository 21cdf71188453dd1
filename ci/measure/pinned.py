# Topic 8: what PyTorch pays for one pinned allocation and its free, from Python and (if the small extension was built)
# from C++, when its cache has a block and when it has none.
import ctypes, json, os, statistics, sys, time

import torch


def put(name, value, unit):
    print(f"{'pinned':10} {name:78} {value:14.6g} {unit}", flush=True)
    with open(os.environ.get("MEASURE_JSON", "results.jsonl"), "a") as f:
        f.write(json.dumps({"topic": "pinned", "name": name, "value": value, "unit": unit}) + "\n")


def pair(make, inner, rounds):
    """Median over rounds of the mean nanoseconds of one allocation and its free."""
    times = []
    for r in range(rounds + 3):
        a = time.perf_counter_ns()
        for _ in range(inner):
            make()
        b = time.perf_counter_ns()
        if r >= 3:
            times.append((b - a) / inner)
    return statistics.median(times)


torch.cuda.init()
torch.zeros(1, device="cuda")
print("torch", torch.__version__)
SIZES = [(4 << 10, "4 KiB"), (1 << 20, "1 MiB"), (64 << 20, "64 MiB")]
for n, label in SIZES:
    a = time.perf_counter_ns()
    t = torch.empty(n, dtype=torch.uint8, pin_memory=True)
    b = time.perf_counter_ns()
    put(f"torch.empty(pin_memory=True), {label}, first time", (b - a) / 1e3, "us")
    del t
    base = pair(lambda: torch.empty(n, dtype=torch.uint8), 1000 if n < 1 << 20 else 200, 15)
    hit = pair(lambda: torch.empty(n, dtype=torch.uint8, pin_memory=True), 1000, 15)
    put(f"torch.empty(pin_memory=True) + free, {label}, cached", hit, "ns")
    put(f"torch.empty() + free, {label}, pageable", base, "ns")
    s = torch.cuda.Stream()
    d = torch.empty(n, dtype=torch.uint8, device="cuda")

    def used():
        t = torch.empty(n, dtype=torch.uint8, pin_memory=True)
        with torch.cuda.stream(s):
            d.copy_(t, non_blocking=True)

    for k in range(3):
        used()
    torch.cuda.synchronize()
    if n <= 1 << 20:
        put(f"pinned + copy_(non_blocking) + free, {label}", pair(used, 200, 7), "ns")
        torch.cuda.synchronize()
        t = torch.empty(n, dtype=torch.uint8, pin_memory=True)

        def copy_only():
            with torch.cuda.stream(s):
                d.copy_(t, non_blocking=True)

        put(f"copy_(non_blocking) alone, {label}", pair(copy_only, 200, 7), "ns")
        torch.cuda.synchronize()
x = torch.empty(1 << 20, dtype=torch.uint8)
put("Tensor.pin_memory(), 1 MiB, cached", pair(lambda: x.pin_memory(), 200, 9), "ns")
p = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
put("Tensor.is_pinned(), pinned", pair(lambda: p.is_pinned(), 1000, 9), "ns")
put("Tensor.is_pinned(), pageable", pair(lambda: x.is_pinned(), 1000, 9), "ns")
# A size just over a power of two shows the rounding of the cache.
try:
    torch.cuda.host_memory_stats
    before = torch.cuda.host_memory_stats().get("allocated_bytes.current")
    t = torch.empty((32 << 20) + 1, dtype=torch.uint8, pin_memory=True)
    after = torch.cuda.host_memory_stats().get("allocated_bytes.current")
    put("host_memory_stats allocated_bytes for a request of 32 MiB + 1", after - before, "bytes")
    del t
except Exception as e:
    print("host_memory_stats:", e)
so = sys.argv[1] if len(sys.argv) > 1 else ""
if so and os.path.exists(so):
    lib = ctypes.CDLL(so)
    lib.pinned_pair_ns.restype = ctypes.c_double
    lib.pinned_pair_ns.argtypes = [ctypes.c_size_t, ctypes.c_int]
    lib.pinned_pair_threads_ns.restype = ctypes.c_double
    lib.pinned_pair_threads_ns.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
    for n, label in SIZES:
        lib.pinned_pair_ns(n, 1000)
        put(f"C++ host allocator: allocate + free, {label}, cached", statistics.median(lib.pinned_pair_ns(n, 2000) for _ in range(9)), "ns")
        for th in (4, 16):
            if n <= 1 << 20:
                put(f"C++ host allocator: allocate + free, {label}, cached, {th} threads", statistics.median(lib.pinned_pair_threads_ns(n, 2000, th) for _ in range(3)), "ns")
else:
    print("no C++ extension: skipped")
