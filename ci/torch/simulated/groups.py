"""Symmetric memory of whole PyTorch on the simulated driver, without a kernel: `matrix.py` runs these."""

import gc
import glob
import os
import shutil
import sys
import tempfile
import threading
import time
from datetime import timedelta

import torch
from forked import code_of, fork
from programs import numbered, start


def joined(number, directory, store="store"):
    """A rank, numbered so in a process group of two, and its symmetric memory."""
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem

    import cuda_mem_torch

    store = dist.FileStore(f"{directory}/{store}", 2)
    dist.init_process_group("gloo", store=store, rank=number, world_size=2)
    cuda_mem_torch.symmetric.register()
    symm_mem.set_backend("CUDA_MEM")
    return dist, symm_mem, store


def apart(device, bytes=4096):
    """A tensor that no pool stands behind: it is allocated and freed when it comes and goes."""
    from torch._C._distributed_c10d import _SymmetricMemory

    return _SymmetricMemory.empty_strided_p2p((bytes,), (1,), torch.uint8, device)


def refused(wanted, work):
    try:
        work()
    except (RuntimeError, ValueError) as error:
        assert wanted in str(error), error
        return
    raise AssertionError(f"it was not refused: {wanted}")


def together(rank):
    """Two ranks, each a process with a number."""
    directory = tempfile.mkdtemp()
    ranks = [fork(rank, number, directory) for number in range(2)]
    codes = [code_of(pid) for pid in ranks]
    shutil.rmtree(directory)
    assert codes == [0, 0], codes


def use(number, directory):
    """What the other one wrote."""
    import cuda_mem_torch

    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    cuda_mem_torch.enable()
    dist, symm_mem, _ = joined(number, directory)
    assert symm_mem.get_backend(device) == "CUDA_MEM"
    tensor = symm_mem.empty(4096, dtype=torch.uint8, device=device)
    pooled = None
    with torch.cuda.use_mem_pool(symm_mem.get_mem_pool(device)):
        pooled = torch.empty(4096, dtype=torch.uint8, device=device)
    # Since 2.12.
    is_symmetric = getattr(symm_mem, "is_symm_mem_tensor", None)
    assert is_symmetric is None or not is_symmetric(torch.empty(4096, dtype=torch.uint8, device=device))
    for mine in (tensor, pooled):
        assert is_symmetric is None or is_symmetric(mine) and is_symmetric(mine[16:])
        mine[:64].copy_(numbered() + number)
        handle = symm_mem.rendezvous(mine, dist.group.WORLD)
        assert (handle.rank, handle.world_size, handle.buffer_size >= 4096) == (number, 2, True)
        assert len(handle.buffer_ptrs) == 2 and handle.signal_pad_size == 9216
        assert handle.signal_pad_ptrs_dev - handle.buffer_ptrs_dev == 16
        handle.barrier(channel=1)
        theirs = handle.get_buffer(1 - number, (4096,), torch.uint8)
        assert start(theirs) == (numbered() + 1 - number).tolist()
        if number == 0:
            handle.put_signal(1, channel=2)
        else:
            handle.wait_signal(0, channel=2)
        handle.barrier(channel=1)
        torch.cuda.synchronize()
        del theirs, handle
    pool = cuda_mem_torch.symmetric.MemPool()
    with torch.cuda.use_mem_pool(pool):
        functors = torch.empty(4096, dtype=torch.uint8, device=device)
    functors[:64].copy_(numbered())
    assert start(functors) == numbered().tolist()
    del tensor, pooled, functors, mine, pool
    gc.collect()
    # Without a process group: joined and left by hand.
    cuda_mem_torch.symmetric.join("alone", 0, 1, f"{directory}/alone-{number}")
    theirs = symm_mem.get_mem_pool(device)
    cuda_mem_torch.symmetric.leave("alone")
    assert symm_mem.get_mem_pool(device) is theirs, "it has nothing of that group"
    refused('no group is called "alone"', lambda: cuda_mem_torch.symmetric.leave("alone"))
    del theirs
    dist.barrier()
    dist.destroy_process_group()


def change_places(number, directory):
    """The process group is made anew under its name, with the ranks the other way round; then once more."""
    import cuda_mem_torch

    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    cuda_mem_torch.enable()
    dist, symm_mem, _ = joined(number, directory)
    old = symm_mem.empty(4096, dtype=torch.uint8, device=device)
    old[:64].copy_(numbered())
    assert symm_mem.rendezvous(old, dist.group.WORLD).rank == number

    def pooled():
        with torch.cuda.use_mem_pool(symm_mem.get_mem_pool(device)):
            return torch.empty(4096, dtype=torch.uint8, device=device)

    address = pooled().data_ptr()
    functors = cuda_mem_torch.symmetric.MemPool()
    with torch.cuda.use_mem_pool(functors):
        other = torch.empty(4096, dtype=torch.uint8, device=device)
    other[:64].copy_(numbered() + 7)
    dist.barrier()
    dist.destroy_process_group()

    now = 1 - number
    dist, symm_mem, _ = joined(now, directory, "second")
    refused("has ended", lambda: symm_mem.rendezvous(old, dist.group.WORLD))
    kept = pooled()
    assert kept.data_ptr() == address, "PyTorch's pool has kept it"
    refused("symmetric.leave()", lambda: symm_mem.rendezvous(kept, dist.group.WORLD))
    del kept
    cuda_mem_torch.symmetric.leave()
    fresh = pooled()
    exchange(symm_mem.rendezvous(fresh, dist.group.WORLD), fresh, now)
    # The memory of the group before is there as long as its tensors are.
    assert start(old) == numbered().tolist()
    assert start(other) == (numbered() + 7).tolist()
    del old, other, functors
    dist.barrier()
    dist.destroy_process_group()

    # Without a word.
    dist, symm_mem, _ = joined(now, directory, "third")
    last = symm_mem.empty(4096, dtype=torch.uint8, device=device)
    exchange(symm_mem.rendezvous(last, dist.group.WORLD), last, now)
    refused("has ended", lambda: symm_mem.rendezvous(fresh[16:], dist.group.WORLD))
    del fresh, last
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def exchange(handle, mine, number):
    """What the other one wrote, among two."""
    mine[:64].copy_(numbered() + number)
    assert (handle.rank, handle.world_size) == (number, 2)
    handle.barrier(channel=0)
    assert start(handle.get_buffer(1 - number, (4096,), torch.uint8)) == (numbered() + 1 - number).tolist()
    handle.barrier(channel=0)
    torch.cuda.synchronize()


def come_late(number, directory):
    """Rank 0 does not find rank 1 and tries again; rank 1 comes before it does."""
    os.environ["TMPDIR"] = directory
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    dist, symm_mem, store = joined(number, directory)
    if number == 0:
        store.set_timeout(timedelta(seconds=1))
        refused("ranks [1]", lambda: apart(device))
        store.set_timeout(timedelta(seconds=20))
        store.set("given up", "")
        store.wait(["coming"])
        # For rank 1 to look at what there is of the first attempt.
        time.sleep(1)
    else:
        store.set_timeout(timedelta(seconds=20))
        store.wait(["given up"])
        store.set("coming", "")
    tensor = apart(device)
    assert symm_mem.rendezvous(tensor, dist.group.WORLD).rank == number
    dist.barrier()
    left = glob.glob(f"{directory}/cuda-mem-*")
    assert not left, left
    del tensor
    dist.barrier()
    dist.destroy_process_group()


def symmetric():
    together(use)


def symmetric_made_anew():
    together(change_places)


def symmetric_tried_again():
    together(come_late)


def symmetric_beside_a_capture():
    """PyTorch's own allocator, and a capture that begins before anything was allocated on its stream: what is collected there waits."""
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem

    import cuda_mem_torch

    assert torch.cuda.get_allocator_backend() == "native"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    cuda_mem_torch.symmetric.register()
    symm_mem.set_backend("CUDA_MEM")
    device = torch.device("cuda", 0)
    kept = [apart(device) for _ in range(4)]
    [symm_mem.rendezvous(tensor, dist.group.WORLD) for tensor in kept]
    addresses = [tensor.data_ptr() for tensor in kept]
    source, target = torch.empty(64, dtype=torch.uint8, device=device), torch.empty(64, dtype=torch.uint8, device=device)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=torch.cuda.Stream()):
        kept.pop()
        # Of what another thread captures it knows by the stream.
        other = threading.Thread(target=kept.pop)
        other.start()
        other.join()
        target.copy_(source)
    source.copy_(numbered())
    captured.replay()
    torch.cuda.synchronize()
    assert start(target) == numbered().tolist()
    with torch.cuda.stream(external()):
        begun = torch.cuda.CUDAGraph()
        begun.capture_begin(capture_error_mode="relaxed")
        kept.pop()
        target.copy_(source)
        begun.capture_end()
    kept.clear()
    # All of it is used again.
    again = [apart(device) for _ in range(4)]
    assert sorted(tensor.data_ptr() for tensor in again) == sorted(addresses)
    del again
    cuda_mem_torch.symmetric.leave()
    refused('no group is called "0"', cuda_mem_torch.symmetric.leave)
    dist.destroy_process_group()


def symmetric_without_memory():
    """Whichever allocation of the backend's own code fails, on the host, nothing stays behind of what the library had given."""
    import ctypes

    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem

    import cuda_mem_torch

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    cuda_mem_torch.symmetric.register()
    symm_mem.set_backend("CUDA_MEM")
    device = torch.device("cuda", 0)
    everything = ctypes.CDLL(None)
    everything.fail_allocation.argtypes, everything.allocations_left.restype = [ctypes.c_long], ctypes.c_long

    def one_that_fails(work):
        """As many times as there are allocations; how many there were."""
        for number in range(1000):
            everything.fail_allocation(number)
            try:
                work()
            except (MemoryError, RuntimeError) as error:
                assert "bad_alloc" in str(error), error
                continue
            finally:
                still = everything.allocations_left()
                everything.fail_allocation(-1)
            assert still >= 0
            return number

    # So that the group is there, and what is made once.
    symm_mem.rendezvous(apart(device), dist.group.WORLD)
    gc.collect()
    cuda_mem_torch.symmetric.leave()
    before = torch.cuda.mem_get_info(device)[0]
    tensor = apart(device)
    assert one_that_fails(lambda: apart(device)) >= 1
    assert one_that_fails(lambda: symm_mem.rendezvous(tensor, dist.group.WORLD)) >= 1
    del tensor
    gc.collect()
    cuda_mem_torch.symmetric.leave()
    held = before - torch.cuda.mem_get_info(device)[0]
    assert held == 0, held
    dist.destroy_process_group()


def external():
    """A stream that is not PyTorch's."""
    import ctypes

    stream = ctypes.c_void_p()
    assert ctypes.CDLL(None).cudaStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
    return torch.cuda.ExternalStream(stream.value)


PROGRAMS = [symmetric, symmetric_made_anew, symmetric_tried_again, symmetric_beside_a_capture, symmetric_without_memory]

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
