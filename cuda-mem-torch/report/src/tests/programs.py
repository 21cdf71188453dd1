"""Runs small programs over an allocator of PyTorch's schema, and writes the snapshot that a version of PyTorch would dump.

    programs.py OUT PROGRAM VERSION

Prints JSON: the lines that the page has to name, and figures that it has to show. The programs are run as files of their own, so
frames and lines are those that Python has. Keys are those of the version: 2.9 has contexts of compilation, 2.11 metadata, 2.12 pools
in events, 2.14 host memory and annotations of tensors, 2.15 metadata in dictionaries.
"""

import json
import pickle
import sys

out, program, version = sys.argv[1], sys.argv[2], tuple(map(int, sys.argv[3].split(".")))
MIB = 1 << 20
clock = 1_750_000_000_000_000


def now():
    global clock
    clock += 37
    return clock


def frames():
    """The stack of the program, the innermost frame first; those of this file are the library's."""
    found, frame = [], sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__:
            found.append((name, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return [keep({"filename": file, "line": line, "name": name}) for file, line, name in [("/opt/venv/lib/python3.12/site-packages/torch/_tensor.py", 51, "empty"), *found]]


known = {}


def keep(frame):
    """One dictionary a frame, as PyTorch has."""
    return known.setdefault(tuple(frame.values()), frame)


class Memory:
    """A device, or pinned host memory: segments of 20 MiB, first fit, or whole segments for what is larger."""

    def __init__(self, device, base, host=False, expandable=False):
        self.device, self.next, self.host, self.expandable = device, base, host, expandable
        self.segments, self.blocks, self.trace = {}, {}, []
        self.metadata = "" if version < (2, 15) else {}
        self.limit = 1 << 50

    def log(self, action, addr, size, stream, pool, stack):
        entry = {"action": action, "size": size, "stream": stream, "time_us": now()}
        if version >= (2, 9):
            entry["compile_context"] = "N/A"
        if version >= (2, 11):
            entry["user_metadata"] = self.metadata
        entry["device_free" if action == "oom" else "addr"] = addr
        if version >= (2, 12):
            entry["pool_id"] = pool
        if version >= (2, 15) and not self.host:
            entry["internal_metadata"] = ""
        if stack is not None:
            entry["frames"] = stack
        self.trace.append(entry)

    def reserved(self):
        return sum(segment["size"] for segment in self.segments.values())

    def room(self, size, stream, pool):
        for start, segment in sorted(self.segments.items()):
            if (segment["stream"], segment["pool"]) != (stream, pool):
                continue
            at = start
            for address in sorted(a for a in self.blocks if start <= a < start + segment["size"]):
                if address - at >= size:
                    return at
                at = address + self.blocks[address]["size"]
            if start + segment["size"] - at >= size:
                return at
        return None

    def alloc(self, requested, stream=0, pool=(0, 0)):
        size, stack = -(-requested // 512) * 512, frames()
        at = self.room(size, stream, pool)
        if at is None:
            length = size if self.host else 2 * MIB if size <= MIB else max(20 * MIB, -(-size // (2 * MIB)) * 2 * MIB)
            if self.reserved() + length > self.limit:
                self.log("oom", self.limit - self.reserved(), length, stream, pool, stack)
                raise MemoryError(length)
            at = self.next
            self.next += length if self.expandable else length + 4 * MIB
            self.segments[at] = {"size": length, "stream": stream, "pool": pool, "frames": stack}
            self.log("segment_map" if self.expandable else "segment_alloc", at, length, stream, pool, stack)
        self.blocks[at] = {"size": size, "requested": requested, "frames": stack, "stream": stream, "pool": pool}
        self.log("alloc", at, requested, stream, pool, stack)
        return Tensor(self, at)

    def free(self, at):
        block = self.blocks[at]
        for action in ["free_requested", "free_completed"]:
            self.log(action, at, block["requested"], block["stream"], block["pool"], None)
        del self.blocks[at]

    def empty_cache(self):
        for start, segment in list(self.segments.items()):
            if not any(start <= a < start + segment["size"] for a in self.blocks):
                del self.segments[start]
                self.log("segment_unmap" if self.expandable else "segment_free", start, segment["size"], segment["stream"], segment["pool"], None)

    def annotate(self, tensor, text):
        self.trace.append({"action": "annotate", "addr": tensor.at, "size": 0, "stream": 0, "time_us": now(), "user_metadata": text})

    def listed(self):
        result = []
        for start, segment in sorted(self.segments.items()):
            inside, at = [], start
            end = start + segment["size"]
            for address in [*sorted(a for a in self.blocks if start <= a < end), end]:
                if address > at:
                    inside.append({"address": at, "size": address - at, "requested_size": 0, "state": "inactive", "frames": []})
                if address in self.blocks:
                    block = self.blocks[address]
                    inside.append({"address": address, "size": block["size"], "requested_size": block["requested"], "state": "active_allocated", "frames": block["frames"]})
                    at = address + block["size"]
            used = sum(block["size"] for block in inside if block["state"] != "inactive")
            entry = {"address": start, "total_size": segment["size"], "allocated_size": used, "active_size": used, "blocks": inside, "frames": segment["frames"]}
            if not self.host:
                entry |= {"device": self.device, "stream": segment["stream"], "segment_type": "large", "segment_pool_id": segment["pool"],
                          "is_expandable": self.expandable, "requested_size": used}
            result.append(entry)
        return result


class Tensor:
    def __init__(self, memory, at):
        self.memory, self.at = memory, at

    def __del__(self):
        self.memory.free(self.at)


gpu, other, host = Memory(0, 0x7F00_0000_0000), Memory(1, 0x7E00_0000_0000, expandable=True), Memory(0, 0x7D00_0000_0000, host=True)
annotations = []


def annotation(name, stage):
    annotations.append({"name": name, "stage": stage, "device": 0, "time_us": now()})


def run(file, text, **names):
    """Runs text as a file, and gives its names."""
    space = {"__name__": "__main__", "gpu": gpu, "other": other, "host": host, "annotation": annotation, "MIB": MIB, **names}
    exec(compile(text, file, "exec"), space)
    return space


SITE = "/opt/venv/lib/python3.12/site-packages"
expected = {}

if program == "leak":
    # The program of docs/pytorch.md, with its lines.
    kept = run("/home/user/leak.py", """import cuda_mem_torch
import torch

cuda_mem_torch.enable()
torch.cuda.memory._record_memory_history(stacks="python")

kept = []
batch = None
for step in range(200):
    batch = gpu.alloc(8 * MIB)
    if step % 5 == 0:
        kept.append(batch)
""".replace("import cuda_mem_torch\nimport torch", "\n").replace('cuda_mem_torch.enable()\ntorch.cuda.memory._record_memory_history(stacks="python")', "\n"))
    expected = {"lines": ["leak.py:10"], "blocks": 41}
elif program == "three":
    library = run(f"{SITE}/metrics/history.py", """entries = []


def remember(value):
    copy = gpu.alloc(value)
    entries.append(copy)
""")
    kept = run("/home/user/train.py", """cache, log = {}, []


def forward(step):
    activation = gpu.alloc(24 * MIB)
    hidden = gpu.alloc(12 * MIB)
    return activation, hidden


def validate(step):
    cache[step] = gpu.alloc(3 * MIB)


def train():
    weights = [gpu.alloc(16 * MIB) for _ in range(4)]
    for step in range(120):
        annotation("step", "START")
        result = forward(step)
        if step % 4 == 0:
            validate(step)
        if step % 6 == 0:
            log.append(gpu.alloc(2 * MIB))
        if step % 5 == 0:
            remember(1 * MIB + 512)
        del result
        annotation("step", "END")
    return weights


weights = train()
""", remember=library["remember"])
    expected = {"lines": ["train.py:11", "train.py:22", "metrics/history.py:5"]}
elif program == "fragmented":
    gpu.limit = 900 * MIB
    kept = run("/home/user/serve.py", """held, failed = [], None


def request():
    return gpu.alloc(18 * MIB)


def answer():
    return gpu.alloc(2 * MIB)


work = []
for _ in range(40):
    work.append(request())
    held.append(answer())
del work
try:
    large = gpu.alloc(300 * MIB)
except MemoryError as error:
    failed = error.args
""")
    expected = {"lines": ["serve.py:9", "serve.py:18"], "largest": 18 * MIB, "needed": 300 * MIB}
elif program == "pinned":
    kept = run("/home/user/loader.py", """ring = []


def fetch(step):
    staging = host.alloc(4 * MIB)
    ring.append(staging)


weights = gpu.alloc(512 * MIB)
for step in range(60):
    fetch(step)
    batch = gpu.alloc(4 * MIB)
""")
    expected = {"lines": ["loader.py:5"] if version >= (2, 14) else []}
else:
    # Everything that the schema of a version has.
    kept = run("/home/user/all.py", """def layer(width):
    return gpu.alloc(width, stream=7)


def graph():
    return gpu.alloc(6 * MIB, pool=(0, 1))


weights = [layer(5 * MIB) for _ in range(3)]
private = graph()
second = other.alloc(64 * MIB)
other.empty_cache()
annotation("epoch", "START")
for step in range(30):
    work = layer(3 * MIB)
    temporary = gpu.alloc(700)
annotation("epoch", "END")
""")
    gpu.metadata = {"phase": "validation", "epoch": 3} if version >= (2, 15) else "validation"
    late = run("/home/user/late.py", "late = gpu.alloc(9 * MIB)\n")
    if version >= (2, 14):
        gpu.annotate(kept["weights"][0], "embedding")
        staging = run("/home/user/host.py", "staging = host.alloc(32 * MIB)\n")
    # As cuda-mem says which pool sleeps with which tag.
    annotations.append({"name": "weights", "stage": "TAG", "pool_id": "0, 1", "device": 0, "time_us": 0})
    expected = {"lines": ["all.py:2", "late.py:1"]}

trace = gpu.trace + [{"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": now()}]
snapshot = {
    "segments": gpu.listed() + other.listed(),
    "device_traces": [trace, other.trace],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False, "roundup_power2_divisions": {"1": 0}},
    "external_annotations": annotations,
}
if version >= (2, 14):
    snapshot |= {"host_segments": host.listed(), "host_traces": host.trace}
with open(out, "wb") as file:
    pickle.dump(snapshot, file)
gpu.trace, other.trace, host.trace = [], [], []
live = lambda memory: sum(block["size"] for block in memory.blocks.values())
print(json.dumps(expected | {"live": live(gpu), "host": live(host), "reserved": gpu.reserved()}))
