"""What is live counts; an allocator without expandable segments needs half as much again."""

import os
import pickle

TOTAL = 1 << 30
WASTE = 1.0 if "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") else 1.5
limit = TOTAL
live = peak = 0


class OutOfMemoryError(RuntimeError):
    pass


class Block:
    def __init__(self, size):
        global live, peak
        if (live + size) * WASTE > limit:
            raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes\nmore")
        self.size = size
        live += size
        peak = max(peak, live)

    def __del__(self):
        global live
        live -= getattr(self, "size", 0)


def memory_stats(device):
    return {"allocated_bytes.all.peak": peak, "reserved_bytes.all.peak": int(peak * WASTE), "num_alloc_retries": 2, "num_ooms": 0}


def reset_peak(device):
    global peak
    peak = live


def _record_memory_history(enabled="all", max_entries=0, stacks="all"):
    pass


def _snapshot():
    events = [{"action": action, "addr": 4096, "size": 512, "stream": 0, "time_us": 1, "frames": []} for action in ("alloc", "free_completed")]
    return {"segments": [], "device_traces": [events]}


def _dump_snapshot(path):
    with open(path, "wb") as file:
        pickle.dump(_snapshot(), file)
