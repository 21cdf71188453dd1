"""Writes a memory snapshot of a small allocator, as PyTorch would pickle it, and what its figures are.

The allocator runs forwards and keeps its own account after every event; the report reads the snapshot backwards. Usage:
snapshot.py OUT EVENTS RING SEED, prints JSON: live, pending and reserved bytes at each moment of what the ring kept.
"""

import json
import pickle
import random
import sys

GRAIN, PAGE, SMALL = 512, 2 << 20, 1 << 20
out, events, ring, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(seed)
base = 0x7F0000000000
stacks = [
    [
        {"filename": f"/opt/model/layer{n}.py", "line": 10 + n, "name": f"forward<{n}>"},
        {"filename": "/opt/train.py", "line": 7, "name": "main"},
        {"filename": "??", "line": 0, "name": "at::empty_cuda"},
    ]
    for n in range(5)
]

segments = {}  # address: [size, stream, expandable]
blocks = {}  # address: [size, requested, stream, state, frames]
trace, account = [], []


def log(action, addr, size, stream, frames=None):
    entry = {"action": action, "size": size, "stream": stream, "time_us": 1_700_000_000_000_000 + 13 * len(trace)}
    entry["device_free" if action == "oom" else "addr"] = addr
    if frames is not None:
        entry["frames"] = frames
    trace.append(entry)
    state = lambda wanted: sum(block[0] for block in blocks.values() if block[3] == wanted)
    account.append([state("active_allocated"), state("active_pending_free"), sum(s[0] for s in segments.values())])


def room(size, stream):
    """The first gap of a segment of the stream that is long enough."""
    for start, (length, owner, _) in sorted(segments.items()):
        if owner != stream:
            continue
        at = start
        for address in sorted(a for a in blocks if start <= a < start + length):
            if address - at >= size:
                return at
            at = address + blocks[address][0]
        if start + length - at >= size:
            return at
    return None


def grow(size, stream):
    """The expandable segment of stream 0 grows at its end; others get segments of their own."""
    length = -(-size // PAGE) * PAGE
    if stream == 0:
        start = base
        held = segments.get(start, [0, 0, True])[0]
        segments[start] = [held + length, 0, True]
        log("segment_map", start + held, length, 0)
    else:
        start = max([base + (1 << 40)] + [a + s[0] + PAGE for a, s in segments.items()])
        segments[start] = [length, stream, False]
        log("segment_alloc", start, length, stream)


def alloc():
    requested = chance.choice([chance.randrange(1, 4096), chance.randrange(4096, SMALL), chance.randrange(SMALL, 9 << 20)])
    size, stream, frames = -(-requested // GRAIN) * GRAIN, chance.choice([0, 0, 7]), chance.choice(stacks)
    if room(size, stream) is None:
        grow(size, stream)
        if room(size, stream) is None:
            grow(size, stream)
    at = room(size, stream)
    blocks[at] = [size, requested, stream, "active_allocated", frames]
    log("alloc", at, requested, stream, frames)


def free(address):
    _, requested, stream, _, frames = blocks[address]
    blocks[address][3] = "active_pending_free"
    log("free_requested", address, requested, stream, frames)
    if chance.random() < 0.8:
        complete(address)


def complete(address):
    _, requested, stream, _, frames = blocks.pop(address)
    log("free_completed", address, requested, stream, frames)


def shrink():
    """Gives back the empty tail of the expandable segment, and segments without blocks."""
    for start, (length, stream, expandable) in list(segments.items()):
        inside = [a + blocks[a][0] for a in blocks if start <= a < start + length]
        used = -(-(max(inside, default=start) - start) // PAGE) * PAGE
        if expandable and used < length:
            segments[start][0] = used
            if not used:
                del segments[start]
            log("segment_unmap", start + used, length - used, stream)
        elif not expandable and not inside:
            del segments[start]
            log("segment_free", start, length, stream)


while len(trace) < events:
    live = [a for a in blocks if blocks[a][3] == "active_allocated"]
    late = [a for a in blocks if blocks[a][3] == "active_pending_free"]
    what = chance.random()
    if what < 0.52 or not live:
        alloc()
    elif what < 0.94:
        free(chance.choice(live))
    elif what < 0.97 and late:
        complete(chance.choice(late))
    elif what < 0.99:
        shrink()
    else:
        log("oom", 123 << 20, 8 << 30, 0)

listed = []
for start, (length, stream, expandable) in sorted(segments.items()):
    inside, at = [], start
    for address in sorted(a for a in blocks if start <= a < start + length) + [start + length]:
        if address > at:
            inside.append({"address": at, "size": address - at, "requested_size": 0, "state": "inactive", "frames": []})
        if address in blocks:
            size, requested, _, state, frames = blocks[address]
            inside.append({"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames})
            at = address + size
    active = [block for block in inside if block["state"] != "inactive"]
    listed.append(
        {
            "device": 1,
            "address": start,
            "total_size": length,
            "allocated_size": sum(b["size"] for b in active if b["state"] == "active_allocated"),
            "active_size": sum(block["size"] for block in active),
            "requested_size": sum(block["requested_size"] for block in active),
            "stream": stream,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": expandable,
            "frames": [],
            "blocks": inside,
        }
    )

kept = trace[-ring:]
snapshot = {"segments": listed, "device_traces": [[], kept], "allocator_settings": {"expandable_segments": True}, "external_annotations": []}
with open(out, "wb") as file:
    pickle.dump(snapshot, file, protocol=chance.choice([2, 3, 4, 5]))
before = account[-ring - 1] if len(account) > ring else [0, 0, 0]
print(json.dumps({"account": [before] + account[-ring:], "out_of_memory": sum(e["action"] == "oom" for e in kept),
                  "allocations": sum(e["action"] == "alloc" for e in kept)}))
