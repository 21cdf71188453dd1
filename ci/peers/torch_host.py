"""PyTorch's pinned memory: ready time, cached pairs from Python and from C++, what a mix of sizes holds.

The shared library made of torch_host.cpp may be given as the argument; settings come from PYTORCH_CUDA_ALLOC_CONF.
"""

import ctypes
import sys

import rounds

try:
    import torch
except ImportError as error:
    rounds.say(skip=str(error))
    sys.exit()

native = None
if len(sys.argv) > 1:
    native = ctypes.CDLL(sys.argv[1])
    native.pair_ns.restype = ctypes.c_double
    native.pair_ns.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int]


def pinned(size):
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def give_back():
    torch._C._host_emptyCache()


def check(block):
    """The block's beginning, middle and end travel to the device and back."""
    if not block.is_pinned():
        raise RuntimeError("the block is not pinned")
    piece = min(block.numel(), 1 << 20)
    for offset in (0, (block.numel() - piece) // 2, block.numel() - piece):
        part = block[offset : offset + piece]
        part.copy_(torch.randint(0, 256, (piece,), dtype=torch.uint8))
        if not torch.equal(part.cuda().cpu(), part):
            raise RuntimeError(f"the device saw other bytes than those at {offset}")


def ready(_participant, arguments):
    size = int(arguments["bytes"])
    give_back()
    before = rounds.Reading()
    block, seconds = rounds.timed(lambda: pinned(size))
    figures = rounds.Reading().since(before, size)
    check(block)
    del block
    _, release = rounds.timed(give_back)
    return figures | {"ready": seconds, "release": release}


def pair(participant, arguments):
    size, threads, pairs = (int(arguments[key]) for key in ("bytes", "threads", "pairs"))
    if participant == "pytorch-cpp":
        if native is None:
            raise rounds.Skip("its C++ part did not compile")
        return {"pair": native.pair_ns(size, threads, pairs)}

    def all_pairs():
        for _ in range(pairs):
            pinned(size)

    pinned(size)
    return {"pair": rounds.timed(all_pairs)[1] * 1e9 / pairs}


def mix(_participant, arguments):
    sizes = [int(size) for size in arguments["sizes"].split(",")]
    give_back()
    stats = torch.cuda.host_memory_stats()
    counted, before = stats.get("allocated_bytes.current", 0), rounds.Reading()
    blocks, seconds = rounds.timed(lambda: [pinned(size) for size in sizes])
    figures = rounds.Reading().since(before, sum(sizes))
    held = torch.cuda.host_memory_stats()["allocated_bytes.current"] - counted
    for block in blocks:
        block[0] = block[-1] = 1
    del blocks, block
    give_back()
    return figures | {"ready": seconds, "held": held / sum(sizes)}


torch.zeros(1, device="cuda")
pinned(4096)
rounds.serve(
    {"torch": torch.__version__, "cuda": torch.version.cuda},
    {"ready": ready, "pair": pair, "mix": mix},
)
