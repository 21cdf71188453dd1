"""What was once found wrong, each as a program that fails where it is: `matrix.py` runs them."""

import atexit
import contextlib
import ctypes
import gc
import json
import mmap
import os
import pickle
import random
import re
import shutil
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import torch
from forked import code_of, fork
from programs import MIB, block, numbered, start


def refused(kind, wanted, work):
    try:
        work()
    except kind as error:
        assert wanted in str(error), error
        return
    raise AssertionError(f"it was not refused: {wanted}")


def ended(program, *arguments, **variables):
    """What came of a program in another process, with environment variables that are read when CUDA is used first."""
    output, errors = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")

    def work():
        os.dup2(output.fileno(), 1), os.dup2(errors.fileno(), 2)
        os.environ.update(variables)
        program(*arguments)

    code = code_of(fork(work))
    output.seek(0), errors.seek(0)
    return SimpleNamespace(code=code, output=output.read(), errors=errors.read())


def options_add_up():
    """A second `enable()` keeps what the first one named; it gives what runs; names are public."""
    import cuda_mem_torch

    def settings():
        return torch.cuda.memory._snapshot()["allocator_settings"]

    cuda_mem_torch.enable(max_split_size_mb=64)
    block()
    assert settings()["max_split_size"] == 64 * MIB, settings()
    running = cuda_mem_torch.enable(garbage_collection_threshold=0.8)
    now = settings()
    assert (now["max_split_size"], now["garbage_collection_threshold"]) == (64 * MIB, 0.8), now
    cuda_mem_torch.enable(per_process_memory_fraction=0.25)
    cuda_mem_torch.enable()
    assert [torch.cuda.get_per_process_memory_fraction(device) for device in range(2)] == [0.25, 0.25]
    assert isinstance(running, cuda_mem_torch.Enabled) and not running.late
    assert f"PyTorch {torch.__version__}" in repr(running) and "max_split_size_mb:64" in repr(running), running
    assert cuda_mem_torch.CudaMemError.__module__ == "cuda_mem_torch"
    assert isinstance(cuda_mem_torch.MemPool, type) and isinstance(cuda_mem_torch.MemPool(), cuda_mem_torch.MemPool)
    assert not isinstance(3, cuda_mem_torch.MemPool)
    torch.cuda.empty_cache()
    cuda_mem_torch.disable()
    cuda_mem_torch.enable()
    assert settings()["max_split_size"] != 64 * MIB, "they end with disable()"


def options_end_with_what_named_them():
    """What PyTorch keeps until something else is said does not outlive `disable()`, nor a call that is refused."""
    import cuda_mem_torch

    def kept():
        pool, settings = torch.cuda.MemPool(), torch.cuda.memory._snapshot()["allocator_settings"]
        with torch.cuda.use_mem_pool(pool):
            block(2 * MIB)
        expands, reuses = settings["expandable_segments"], settings["graph_capture_record_stream_reuse"]
        return pool.snapshot()[0]["total_size"] // MIB, expands, reuses, torch.cuda.get_per_process_memory_fraction()

    block(64)
    natively = kept()
    assert natively == (20, False, False, 1.0), natively
    cuda_mem_torch.enable(large_segment_size_mb=40, expandable_segments=True, graph_capture_record_stream_reuse=True, per_process_memory_fraction=0.5)
    assert kept() == (40, True, True, 0.5), kept()
    others = {"large_segment_size_mb": 60, "expandable_segments": False, "graph_capture_record_stream_reuse": False, "per_process_memory_fraction": 0.25}
    refused(ValueError, "has to be power of 2", lambda: cuda_mem_torch.enable(roundup_power2_divisions=0, **others))
    assert kept() == (40, True, True, 0.5), kept()
    there = pinned(64)
    refused(cuda_mem_torch.CudaMemError, "still in tensors", lambda: cuda_mem_torch.enable(pinned=False, **others))
    assert kept() == (40, True, True, 0.5), kept()
    del there
    gc.collect()
    torch.cuda.synchronize()
    cuda_mem_torch.disable()
    assert kept() == natively, kept()
    refused(ValueError, "has to be power of 2", lambda: cuda_mem_torch.enable(roundup_power2_divisions=0, **others))
    assert kept() == natively, kept()
    # What the program says stays.
    torch._C._accelerator_setAllocatorSettings("graph_capture_record_stream_reuse:True")
    for options in {"pinned": False}, {"max_split_size_mb": 64}:
        cuda_mem_torch.enable(**options)
        cuda_mem_torch.disable()
        assert kept() == (20, False, True, 1.0), kept()


def settings_tell_of_expandable_segments():
    """NCCL keeps from registering segments that move by asking PyTorch's setting, which says what is so, and afterwards what the program had."""
    import cuda_mem_torch

    def setting():
        return torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]

    assert not setting()
    cuda_mem_torch.enable()
    block()
    assert setting()
    cuda_mem_torch.enable(max_split_size_mb=64)
    assert setting() and torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] == 64 * MIB
    # As vLLM does around its own pools.
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")
    assert not setting()
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.cuda.memory._set_allocator_settings("max_split_size_mb:32")
    cuda_mem_torch.enable()
    assert setting()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    cuda_mem_torch.disable()
    assert not setting()


def the_environment_counts_at_the_first_use():
    """What the program puts there after `enable()` holds, as natively, until CUDA is used; not before keywords."""

    def program(options, later):
        import cuda_mem_torch

        cuda_mem_torch.enable(**options)
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = later
        expands, settings = is_expandable(block(30 * MIB)), torch.cuda.memory._snapshot()["allocator_settings"]
        print(settings["max_split_size"] // MIB, settings["expandable_segments"], expands, torch.cuda.get_per_process_memory_fraction())

    def said():
        import cuda_mem_torch

        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
        cuda_mem_torch.enable()
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:64"
        print(is_expandable(block(30 * MIB)))

    def uncached():
        import cuda_mem_torch

        cuda_mem_torch.enable()
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        print(block().numel(), torch.cuda.memory_reserved())

    for options, later, wanted in (
        ({}, "backend:native,max_split_size_mb:64", "64 True True 1.0\n"),
        ({}, "max_split_size_mb:64,expandable_segments:False", "64 False False 1.0\n"),
        ({}, "max_split_size_mb:64, expandable_segments : True", "64 True True 1.0\n"),
        ({"max_split_size_mb": 40}, "max_split_size_mb:64", "40 True True 0.5\n"),
    ):
        for earlier in ("max_split_size_mb:32,per_process_memory_fraction:0.5", "per_process_memory_fraction:0.5,expandable_segments:False"):
            done = ended(program, options | {"expandable_segments": True} if options else {}, later, PYTORCH_CUDA_ALLOC_CONF=earlier)
            assert (done.code, done.output) == (0, wanted), (earlier, later, done)
    assert ended(uncached).output == f"{8 * MIB} 0\n"
    assert ended(said).output == "False\n", "the program has said others"


def what_pytorch_refuses_changes_nothing():
    """A value that this package takes and this version of PyTorch does not, before CUDA is used, after it, and when it is enabled already."""
    import cuda_mem_torch

    def refuses(backend):
        refused(ValueError, "has to be power of 2", lambda: cuda_mem_torch.enable(roundup_power2_divisions=0, max_split_size_mb=64))
        assert cuda_mem_torch.is_enabled() == (backend == "cuda-mem") and torch.cuda.get_allocator_backend() == backend

    def settings():
        return torch.cuda.memory._snapshot()["allocator_settings"]

    refuses("native")
    refuses("native")
    early = block()
    was = settings()
    refuses("native")
    assert settings() == was, settings()
    cuda_mem_torch.enable(expandable_segments=True)
    was = settings()
    refuses("cuda-mem")
    assert settings()["max_split_size"] == was["max_split_size"], settings()
    cuda_mem_torch.disable()
    assert not settings()["expandable_segments"], "the environment does not say so"
    del early


def is_expandable(tensor):
    found = [one for one in torch.cuda.memory_snapshot() if one["address"] <= tensor.data_ptr() < one["address"] + one["total_size"]]
    assert [one["segment_pool_id"] for one in found] == [(0, 0)], found
    return found[0]["is_expandable"]


def segments_stay_while_the_setting_is_off():
    """A scope without expandable segments, as vLLM has around its own pools, gets segments that never move and say so, until they go back; as
    natively they can be named to others by `cudaIpcGetMemHandle`. What there was stays where it is. With `enable()` it is for good."""
    import cuda_mem_torch

    def has_handle(tensor):
        runtime = ctypes.CDLL("libcudart-played.so")
        has = runtime.cudaIpcGetMemHandle(ctypes.create_string_buffer(64), ctypes.c_void_p(tensor.data_ptr())) == 0
        runtime.cudaGetLastError()
        return has

    cuda_mem_torch.enable()
    for switch in (torch.cuda.memory._set_allocator_settings, torch._C._accelerator_setAllocatorSettings):
        before = block(30 * MIB)
        before[:64].copy_(numbered())
        assert is_expandable(before) and not has_handle(before)
        switch("expandable_segments:False")
        with torch.cuda.stream(torch.cuda.Stream()):
            assert not is_expandable(block(MIB))
        off, address = block(50 * MIB), before.data_ptr()
        assert not is_expandable(off) and has_handle(off)
        assert is_expandable(before) and start(before) == numbered().tolist()
        del before
        first = off.data_ptr()
        del off
        again = block(50 * MIB)
        assert again.data_ptr() == first and not is_expandable(again)
        switch("max_split_size_mb:64")
        assert not is_expandable(block(60 * MIB)), "what is not named stays"
        switch("expandable_segments:True")
        assert not is_expandable(again) and has_handle(again)
        after = block(30 * MIB)
        assert is_expandable(after) and after.data_ptr() == address
        del after, again
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved()
    # What the program has said last counts for the native allocator, whose expandable segments ask libraries that are not played here.
    switch("expandable_segments:False")
    cuda_mem_torch.disable()
    cuda_mem_torch.enable(expandable_segments=False)
    still = block()
    assert not is_expandable(still) and not torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]
    cuda_mem_torch.enable(max_split_size_mb=64)
    assert not is_expandable(block(64 * MIB))
    cuda_mem_torch.enable(expandable_segments=True)
    assert is_expandable(block(30 * MIB)) and not is_expandable(still)
    del still
    torch.cuda.synchronize()
    cuda_mem_torch.disable()


def segments_stay_while_the_setting_is_off_late():
    """What the program has said since `enable()` came late holds, whoever calls `enable()` again for something else."""
    import cuda_mem_torch

    early = block(64)
    cuda_mem_torch.enable()
    assert is_expandable(block(30 * MIB)), "PyTorch's setting is of its own segments"
    if since(15):
        torch._C._accelerator_setAllocatorSettings("expandable_segments_reserve:0.5")
        assert is_expandable(block(35 * MIB)), "that is another setting"
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    assert not is_expandable(block(30 * MIB))
    cuda_mem_torch.enable(garbage_collection_threshold=0.8)
    assert not is_expandable(block(40 * MIB))
    cuda_mem_torch.enable()
    assert not is_expandable(block(50 * MIB))
    torch.cuda.synchronize()
    cuda_mem_torch.disable()
    cuda_mem_torch.enable()
    assert is_expandable(block(60 * MIB)), "it ends with disable()"
    del early


def memory_is_held_still():
    """What is registered by its address is backed until its registration ends, whatever becomes of the tensor."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    tensor = block(40 * MIB)
    with cuda_mem_torch.hold_still(tensor, block(0)):
        del tensor
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() >= 40 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved()
    # A storage that begins inside of a block.
    tensor = torch.from_dlpack(block()[4096:])
    with cuda_mem_torch.hold_still(tensor):
        del tensor
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() >= 8 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved()
    with torch.cuda.use_mem_pool(cuda_mem_torch.MemPool()):
        with cuda_mem_torch.hold_still(block()):
            pass
    for call in (cuda_mem_torch.hold_still, cuda_mem_torch.keep):
        refused(ValueError, "is on cpu; accepted: tensors on CUDA devices", lambda: call(torch.empty(1)).__enter__())
    refused(ValueError, "is on cpu; accepted: tensors on CUDA devices", lambda: cuda_mem_torch.read_backup(torch.empty(1)))

    class Wrapped(torch.Tensor):
        """As a DTensor is: its memory is that of the tensor in it."""

        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=inner.device)

        @classmethod
        def __torch_dispatch__(cls, *_):
            raise NotImplementedError

    for tensor in (Wrapped(block()), torch.empty(3, layout=torch.sparse_coo, device="cuda"), Wrapped(torch.empty(3))):
        call = (lambda tensor: cuda_mem_torch.hold_still(tensor).__enter__()) if tensor.is_cuda else cuda_mem_torch.pin
        refused(ValueError, f"a {type(tensor).__name__}, has no memory of its own; accepted: the tensors that it is made of", lambda: call(tensor))


def statistics_print_themselves():
    import cuda_mem_torch

    cuda_mem_torch.enable()
    kept, side = block(64 * MIB), torch.cuda.Stream()
    with torch.cuda.stream(side):
        other = block(3 * MIB)
    stats = cuda_mem_torch.stats()
    assert stats["active_bytes.all.current"] == stats.active == 67 * MIB <= stats.reserved
    assert abs(stats.ratio - stats.reserved / stats.active) < 1e-9
    rows = {row.stream: row for row in stats.streams}
    assert rows[side.cuda_stream].active == 3 * MIB and sum(row.reserved for row in stats.streams) == stats.reserved
    assert "67.00 MiB" in str(stats) and hex(side.cuda_stream) in str(stats), str(stats)
    assert "<table>" in stats._repr_html_() and "67.00 MiB" in repr(stats)
    # They leave nothing in the history, and read none of it.
    torch.cuda.memory._record_memory_history()
    snapshots = lambda: [entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]].count("snapshot")
    before = snapshots()
    cuda_mem_torch.stats()
    assert snapshots() <= before + 1
    torch.cuda.memory._record_memory_history(None)
    del kept, other


def snapshots_have_native_keys():
    """Readers of snapshots find in ours what natively they find."""

    def program(is_ours, path):
        if is_ours:
            import cuda_mem_torch

            cuda_mem_torch.enable()
        torch.cuda.memory._record_memory_history(stacks="python")
        kept = [block((n % 5 + 1) * MIB) for n in range(20)][::4]
        torch.cuda.memory._dump_snapshot(path)
        del kept

    def snapshot(is_ours):
        path = Path(f"keys-{is_ours}.pickle")
        assert code_of(fork(program, is_ours, path)) == 0
        return pickle.loads(path.read_bytes())

    native, ours = snapshot(False), snapshot(True)
    assert sorted(ours) == sorted(native)
    keys = lambda of: sorted(set().union(*of))
    assert keys(ours["segments"]) == keys(native["segments"])
    blocks = lambda of: keys(block for segment in of["segments"] for block in segment["blocks"])
    assert blocks(ours) == blocks(native)
    assert keys(ours["device_traces"][0]) == keys(native["device_traces"][0])
    allocated = lambda of: sorted(entry["size"] for entry in of["device_traces"][0] if entry["action"] == "alloc")
    assert allocated(ours) == allocated(native)
    assert all(entry["frames"] for entry in ours["device_traces"][0] if entry["action"] == "alloc")


def statistics_are_those_of_expandable_segments():
    """A program that changes its settings on the way has, of the default pool, the figures that it has natively with expandable segments. Without
    them a block of PyTorch's own also has what is left of its segment, up to 1 MiB."""
    if since(12):
        # PyTorch 2.15 asks NVML before it maps such a segment, and crashes where that is not.
        return

    def program(is_ours):
        if is_ours:
            import cuda_mem_torch

            cuda_mem_torch.enable()
        chance, kept, seen = random.Random(1), {}, []
        settings = ("max_split_size_mb:32", "roundup_power2_divisions:4", "garbage_collection_threshold:0.6", "")
        for step in range(600):
            turn = chance.random()
            if kept and turn < 0.45:
                del kept[chance.choice(sorted(kept))]
            elif turn < 0.48:
                torch._C._accelerator_setAllocatorSettings(chance.choice(settings))
            elif turn < 0.5:
                torch.cuda.empty_cache()
            else:
                kept[step] = block(int(2 ** chance.uniform(3, 26)))
            if step % 100 == 99:
                counted = ("active", "allocated", "allocation", "requested")
                seen.append({name: count for name, count in torch.cuda.memory_stats().items() if name.startswith(counted)})
        print(json.dumps(seen))

    def seen(is_ours):
        done = ended(program, is_ours, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
        assert done.code == 0, done
        return json.loads(done.output)

    native, ours = seen(False), seen(True)
    assert len(native) == 6 and native[5]["allocation.large_pool.freed"] > 0
    assert ours == native, [(name, count, ours[5][name]) for name, count in native[5].items() if ours[5][name] != count]


def a_pool_beside_the_native_allocator():
    """`MemPool()` without `enable()`; what asks for the allocator says that it is not enabled."""
    import cuda_mem_torch

    pool = cuda_mem_torch.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = block(3 * MIB)
    assert torch.cuda.get_allocator_backend() == "native"
    assert sum(segment["total_size"] for segment in pool.snapshot()) >= 3 * MIB
    for asks in (cuda_mem_torch.stats, lambda: cuda_mem_torch.report("x.html")):
        refused(cuda_mem_torch.CudaMemError, "not enabled", asks)
    refused(cuda_mem_torch.CudaMemError, "tags and limits are of this allocator, which is not enabled", lambda: cuda_mem_torch.set_limit(MIB))
    # PyTorch's own takes an allocator first: by position the two would mean other things.
    refused(TypeError, "positional argument", lambda: cuda_mem_torch.MemPool(None, True))
    tensor[:64].copy_(numbered())
    assert start(tensor) == numbered().tolist()
    del tensor, pool


def a_stream_of_others_is_destroyed():
    """CuPy, RAPIDS and DALI destroy their streams when they like."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    block(64)
    assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
    stream = torch.cuda.ExternalStream(handle.value)
    kept = block(9 * MIB)
    with torch.cuda.stream(stream):
        gone = block(8 * MIB)
    kept.record_stream(stream)
    held = torch.cuda.memory_reserved()
    del gone, kept
    torch.cuda.synchronize()
    assert driver.cuStreamDestroy_v2(handle) == 0
    del stream
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0 and torch.cuda.memory_reserved() < held, torch.cuda.memory_reserved()
    assert len([block(1 << 30) for _ in range(7)]) == 7


def ids_are_no_handles_of_streams():
    """The driver would follow what is no address."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    stream = torch.cuda.Stream()
    refused(ValueError, f"{stream.stream_id} is no stream", lambda: torch.cuda.caching_allocator_alloc(1000, stream=stream.stream_id))
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(1000, stream=stream))


def observers_beside_threads():
    """Observers of failed requests take the interpreter's lock, in eight threads at once."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *words: seen.append(words))

    def ask():
        for _ in range(20):
            with contextlib.suppress(torch.OutOfMemoryError):
                block(100 << 30)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join(100) for thread in threads]
    assert len(seen) == 160 and not any(thread.is_alive() for thread in threads), len(seen)


def a_failed_request_says_what_there_was():
    import cuda_mem_torch

    cuda_mem_torch.enable()
    kept, stream = [block(512 * MIB) for _ in range(4)], torch.cuda.Stream()
    with torch.cuda.stream(stream):
        kept.append(block(300 * MIB))
    del kept[1]
    try:
        block(100 << 30)
        raise AssertionError("there was memory")
    except torch.OutOfMemoryError as error:
        text = str(error)
    for words in ("CUDA out of memory. Tried to allocate 100.00 GiB", "the longest piece 512.00 MiB", "largest block that would have fitted"):
        assert words in text, text
    cuda_mem_torch.report("there.html")
    refused((OSError, ValueError, cuda_mem_torch.CudaMemError), "nowhere", lambda: cuda_mem_torch.report("/nowhere/r.html"))
    refused((ValueError, cuda_mem_torch.CudaMemError), "7", lambda: cuda_mem_torch.report("there.html", device=7))
    # PyTorch keeps a workspace of each stream's first matrix product.
    refused(cuda_mem_torch.CudaMemError, "delete them first, and cuBLAS's workspaces by torch._C._cuda_clearCublasWorkspaces()", cuda_mem_torch.disable)
    assert callable(torch._C._cuda_clearCublasWorkspaces)
    refused(TypeError, "accepted: a number", lambda: cuda_mem_torch.enable(max_split_size_mb="64"))


def failed_requests_write_pages_after_disable():
    """Whoever asked for a page has it from the allocator that is there."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    cuda_mem_torch.on_oom("disabled.html")
    cuda_mem_torch.disable()
    refused(torch.OutOfMemoryError, "Tried to allocate", lambda: block(100 << 30))
    assert Path("disabled.html").exists()


def a_request_that_hardly_fails_says_so():
    """Memory has the granularity of handles: what is left of a device that is nearly full is no block, and nobody is told to ask again."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    kept = [block(1 << 30) for _ in range(7)]
    refused(torch.OutOfMemoryError, "What would help: free ", lambda: kept.append(block(1 << 30)))
    try:
        block(1 << 30)
    except torch.OutOfMemoryError as error:
        (most,) = re.findall(r"largest block that would have fitted has ([0-9.]+) MiB", str(error))
    kept.append(block(int(float(most) * MIB)))
    assert len(kept) == 8


def mistakes_with_tags_are_named():
    """Who passes something else, shares memory of a tag, or sleeps within a capture or a registrant, is told what is wrong."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    tag, sleep, wake = cuda_mem_torch.tag, cuda_mem_torch.sleep, cuda_mem_torch.wake
    with tag("weights"):
        weights = block()
    for name in (5, None):
        refused(TypeError, f"the tag is {name}; accepted: text", lambda: tag(name))
    refused(TypeError, "tags is 5; accepted: a name, several", lambda: sleep(5))
    refused(ValueError, 'has no tag "typo"; it has "weights"', lambda: sleep("typo"))
    for restore in (256, -1, "x", 1.5, None):
        refused(ValueError, f"restore is {restore!r}; accepted: True, False, a byte", lambda: wake("weights", restore=restore))
    for pool in (None, 5, (1, 2, 3)):
        refused(TypeError, "accepted: a MemPool", lambda: tag("cache").add(pool))
    refused(TypeError, "what can be called", lambda: cuda_mem_torch.on_backing_change(5))
    takes_tensors = (cuda_mem_torch.pin, cuda_mem_torch.unpin, cuda_mem_torch.read_backup)
    for call in (*takes_tensors, lambda value: cuda_mem_torch.keep(value).__enter__(), lambda value: cuda_mem_torch.hold_still(value).__enter__()):
        refused(TypeError, "of the type list", lambda: call([weights]))
    refused(TypeError, "accepted: a torch.cuda.Stream", lambda: cuda_mem_torch.forget_stream(None))
    refused(RuntimeError, 'is of the tag "weights", and memory of tags is not shared', weights.untyped_storage()._share_cuda_)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        block(64).copy_(block(64))
        refused(cuda_mem_torch.CudaMemError, "putting a tag to sleep is not possible while", sleep)
    with cuda_mem_torch.on_backing_change(lambda change: sleep("weights")):
        assert "another call is at work" in str(sleep("weights"))
        wake()

    class Model:
        def hear(self, _change):
            pass

    model = Model()
    with cuda_mem_torch.on_backing_change(model.hear):
        pass
    known = weakref.ref(model)
    del model
    gc.collect()
    assert known() is None, "what was registered is the program's alone once it is removed"
    pool = torch.cuda.MemPool()
    tag("cache").add(pool)
    refused(cuda_mem_torch.CudaMemError, "a source of its own or a tag", lambda: tag("other").add(pool))
    # What is said to fit there does.
    cuda_mem_torch.set_limit(100 * MIB)
    with tag("more"):
        refused(torch.OutOfMemoryError, "largest block that would have fitted has 80.00 MiB", lambda: block(200 * MIB))
        block(80 * MIB)
    # Of what sleeps nothing is held.
    with tag("asleep"):
        asleep = block(40 * MIB)
    sleep("asleep", backup="discard")
    refused(torch.OutOfMemoryError, "Of the allocated memory 8.00 MiB is allocated by PyTorch, and 12.00 MiB is reserved", lambda: block(200 * MIB))
    del asleep


def pools_of_tags_go_with_their_graphs():
    """A graph's pool that a tag was given by its handle is given back with the graph, as without a tag, also under torch_memory_saver's name;
    and serves the tag again if it is given again."""
    import cuda_mem_torch
    from cuda_mem_torch import adapters

    cuda_mem_torch.enable()
    block(64)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, saver = torch.cuda.mem_get_info()[0], adapters._MemorySaver()
    own, theirs = torch.cuda.graph_pool_handle(), torch.cuda.graph_pool_handle()

    def held():
        torch.cuda.empty_cache()
        return sum(segment["total_size"] for segment in torch.cuda.memory_snapshot() if segment["segment_pool_id"] != (0, 0)) // MIB

    def of_a_tag(graph):
        cuda_mem_torch.tag("graphs").add(own)
        return torch.cuda.graph(graph, pool=own)

    def of_the_saver(graph):
        return saver.cuda_graph(graph, None, None, "global", "graphs", False)

    def of_the_saver_by_a_handle(graph):
        return saver.cuda_graph(graph, theirs, None, "global", "graphs", False)

    for capture in (of_a_tag, of_the_saver, of_the_saver_by_a_handle):
        for _ in range(3):
            graphs, inside = [torch.cuda.CUDAGraph() for _ in range(2)], []
            for graph in graphs:
                with capture(graph):
                    inside.append(block(100 * MIB))
                graph.replay()
            assert cuda_mem_torch.sleep("graphs", backup="discard").freed == 200 * MIB
            cuda_mem_torch.wake("graphs", restore=False)
            graphs.pop().reset()
            inside.clear()
            # A pool of two is the other one's still.
            assert held() == (100 if capture is of_the_saver else 200), (capture, held())
            graphs.pop().reset()
            del graph
            assert held() == 0, (capture, held())
    # Nobody came for this one.
    cuda_mem_torch.tag("graphs").add(own)
    torch._C._cuda_releasePool(0, own)
    pool = torch.cuda.MemPool()
    cuda_mem_torch.tag("graphs").add(pool)
    refused(cuda_mem_torch.CudaMemError, "pools", cuda_mem_torch.disable)
    del pool
    cuda_mem_torch.disable()
    assert torch.cuda.mem_get_info()[0] == free


def captures_go_over_devices():
    """What a capture allocates on a stream of another device, which joined it by an event, is the graph's, as natively."""
    import cuda_mem_torch

    def captured():
        graph, joined, ends = torch.cuda.CUDAGraph(), torch.cuda.Event(), torch.cuda.Event()
        with torch.cuda.graph(graph):
            near = block()
            joined.record()
            with torch.cuda.stream(torch.cuda.Stream(device=1)):
                torch.cuda.current_stream().wait_event(joined)
                there = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda:1")
                ends.record()
            torch.cuda.current_stream().wait_event(ends)
        graph.replay()
        torch.cuda.synchronize()
        return near, there

    torch.empty(1, device="cuda:1")
    captured()
    torch.cuda.empty_cache()
    cuda_mem_torch.enable()
    for _ in range(3):
        captured()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated(1) == 0


def mistaken_devices_are_named():
    """What is no device is refused by its value, which PyTorch itself takes for the current one. Numbers of other libraries are numbers."""
    import cuda_mem_torch

    class Number:
        def __index__(self):
            return 1

    cuda_mem_torch.enable()
    torch.cuda.init()
    sleep, state, stats = cuda_mem_torch.sleep, cuda_mem_torch.state, cuda_mem_torch.stats
    calls = [
        stats, state, lambda device: sleep(device=device), lambda device: cuda_mem_torch.wake(device=device), lambda device: cuda_mem_torch.tag("a", device),
        lambda device: cuda_mem_torch.set_limit(None, device), lambda device: cuda_mem_torch.report("a.html", device), lambda device: cuda_mem_torch.forget_stream(4096, device),
    ]
    for call in calls:
        for device in (1.5, [], b"cuda:1", object):
            refused(TypeError, f"the device is {device!r}; accepted: a number, text as 'cuda:1'", lambda: call(device))
        refused(ValueError, "the device is -1, which is none; accepted", lambda: call(-1))
    with cuda_mem_torch.tag("there", 1):
        there = torch.empty(8 * MIB, device="cuda:1")
    for device in (1, Number(), "cuda:1", torch.device("cuda", 1), torch.cuda.device(1)):
        assert "there" in state(device) and stats(device).device == 1
    assert "there" not in state() and "there" not in state("cuda")
    join = cuda_mem_torch.symmetric.join
    for wrong in (lambda: join("a", -1, 1, "/tmp"), lambda: join("a", 0, -1, "/tmp")):
        refused(ValueError, "it must be from 0 to 2**64 - 1", wrong)
    for timeout in (-1, float("nan"), float("inf"), "60"):
        refused(ValueError, f"timeout is {timeout!r}; accepted: seconds", lambda: join("a", 0, 1, "/tmp", timeout=timeout))
    refused(TypeError, "NoneType", lambda: join("a", 0, 1, None))
    refused(TypeError, "the name is 5; accepted: text", lambda: join(5, 0, 1, "/tmp"))
    del there


def what_is_left_keeps_it_enabled():
    """`disable()` says what of it still lives, and leaves nothing."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    kept, pool = [block(bytes) for bytes in (1000, 3 * MIB, 100 * MIB)], torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept.append(block(3 * MIB))
    refused(cuda_mem_torch.CudaMemError, "pools", cuda_mem_torch.disable)
    kept.clear()
    refused(cuda_mem_torch.CudaMemError, "pools", cuda_mem_torch.disable)
    del pool
    cuda_mem_torch.disable()
    assert (torch.cuda.get_allocator_backend(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == ("native", 0, 0)


def captures_beside_threads():
    """A graph is captured in one thread while others allocate and empty the cache."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    block(64)
    over, errors = threading.Event(), []

    def disturb():
        try:
            while not over.is_set():
                blocks = [block((n + 1) << 18) for n in range(20)]
                del blocks
                torch.cuda.empty_cache()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=disturb, daemon=True) for _ in range(3)]
    [thread.start() for thread in threads]
    try:
        for _ in range(10):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                captured = block(5 * MIB)
                captured.copy_(torch.empty_like(captured))
            graph.replay()
    finally:
        over.set()
        [thread.join(60) for thread in threads]
    assert not errors, errors


def a_capture_that_begins_twice_ends_with_its_graph():
    """What a beginning that failed leaves of a pool ends with the pool's last use: the graph's end may throw nothing."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        inside = block()
        refused(RuntimeError, "", graph.capture_begin)
        graph.capture_end()
    del graph, inside
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0 and start(block()) is not None


def snapshots_go_from_device_to_device():
    """Segments of a device follow each other, wherever they lie."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    kept = []
    for n in range(6):
        with torch.cuda.device(1 - n % 2):
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                kept.append((pool, block()))
    devices = [segment["device"] for segment in torch.cuda.memory_snapshot()]
    assert devices == sorted(devices) and set(devices) == {0, 1}, devices


def threads_that_outlive_the_program():
    """Daemon threads that allocate, with the history on, end with the process: no hang."""

    def program():
        import cuda_mem_torch

        def loop():
            while True:
                block(MIB)

        cuda_mem_torch.enable()
        block(1)
        torch.cuda.memory._record_memory_history(stacks="python")
        for _ in range(3):
            threading.Thread(target=loop, daemon=True).start()
        time.sleep(0.5)
        print("over", flush=True)

    done = ended(program)
    assert "over" in done.output, done
    # PyTorch itself ends so, natively too, where a thread is unwound inside of its own code.
    assert done.code in (0, -6), done


def a_forked_child_ends_as_natively():
    """What programs call at their end, and what sets or resets something, is nothing in a forked child, which has none of the memory: natively it
    goes well too. Its snapshot says so once."""

    def program():
        import cuda_mem_torch

        cuda_mem_torch.enable()
        memory, parent = torch.cuda.memory, os.getpid()
        memory._record_memory_history(**({"record_pinned_host_memory": True} if since(14) else {}))
        kept, pinned = torch.empty(1000, device="cuda"), torch.empty(1000, pin_memory=True)

        @atexit.register
        def end():
            memory._dump_snapshot("ended.pickle")
            assert os.getpid() == parent or torch.cuda.memory_snapshot() == []
            memory._set_memory_metadata("the end")
            torch._C._accelerator_setAllocatorSettings("max_split_size_mb:64,per_process_memory_fraction:0.5")
            torch._C._cuda_attach_out_of_memory_observer(print)
            torch._C._host_emptyCache()
            torch.cuda.reset_peak_host_memory_stats()
            torch.cuda.reset_accumulated_host_memory_stats()
            torch.cuda.host_memory_stats()
            memory._record_memory_history(None)
            print("ended", kept.numel(), pinned.numel())

        # The child leaves the pool, too.
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            if os.fork() == 0:
                sys.exit(7)
        print("status", os.waitstatus_to_exitcode(os.wait()[1]))

    done = ended(program)
    expected = ["ended 1000 1000", "status 7", "ended 1000 1000"]
    assert done.code == 0 and done.output.splitlines() == expected and "Traceback" not in done.errors, done
    assert done.errors.count("the snapshot of a forked child has no device memory") == 1, done


def a_forked_child_leaves_scopes():
    """The scopes that it was forked in are its parent's, and end there."""

    def program():
        import cuda_mem_torch

        cuda_mem_torch.enable()
        held, there, page = block(4 * MIB), torch.empty(MIB), Path(tempfile.mkdtemp(), "run.html")
        with contextlib.ExitStack() as scopes:
            scopes.enter_context(cuda_mem_torch.record(page))
            scopes.enter_context(cuda_mem_torch.tag("weights"))
            scopes.enter_context(cuda_mem_torch.hold_still(held))
            scopes.enter_context(cuda_mem_torch.pinned(there))
            scopes.enter_context(cuda_mem_torch.on_backing_change(print))
            if os.fork() == 0:
                cuda_mem_torch.forget_stream(4096, 0)
                cuda_mem_torch.symmetric.leave()
                sys.exit(7)
            print("status", os.waitstatus_to_exitcode(os.wait()[1]), "written", page.exists())
        shutil.rmtree(page.parent)

    done = ended(program)
    assert (done.code, done.output) == (0, "status 7 written False\n") and "Traceback" not in done.errors, done


def blocks_of_the_end_are_silent():
    """Without caching the driver frees each block; what PyTorch frees when the driver has gone is no failure to tell of."""

    def program():
        import cuda_mem_torch

        cuda_mem_torch.enable()
        block(9 * MIB).untyped_storage()._share_cuda_()
        print("over", flush=True)

    done = ended(program, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    # PyTorch keeps it for a receiver until its own end, and may crash there.
    assert "over" in done.output and "cuda-mem" not in done.errors, done


def new_streams_each_step():
    """vllm-project/vllm#52950: a step that makes new streams strands memory with each of PyTorch's 32."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    size = 384 * MIB
    weights = block(size)
    for _ in range(40):
        for stream in [torch.cuda.Stream() for _ in range(2)]:
            with torch.cuda.stream(stream):
                stream.wait_stream(torch.cuda.current_stream())
                packed = block(size)
                packed[:64].copy_(weights[:64])
            stream.synchronize()
            del packed
    # A step has three buffers, on three streams; natively each of the 32 keeps one.
    assert torch.cuda.memory_reserved() <= 3.2 * size, torch.cuda.memory_reserved()


def pinned_in_place_again():
    """Memory that was pinned in place and went unpinned leaves nothing behind (pytorch/pytorch#131270); mistakes do not reach later calls."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    mapped = lambda: torch.frombuffer(mmap.mmap(-1, 8 * MIB), dtype=torch.uint8)
    pin, unpin = cuda_mem_torch.pin, cuda_mem_torch.unpin

    def fine(tensor):
        there = block(64)
        there.copy_(tensor[:64], non_blocking=True)
        torch.cuda.synchronize()
        assert start(there) == tensor[:64].tolist()

    block(64)
    tensor = mapped()
    for _ in range(3):
        assert pin(tensor).is_pinned()
        fine(tensor)
        assert not unpin(tensor).is_pinned()
    refused(cuda_mem_torch.CudaMemError, "", lambda: unpin(tensor))
    refused(ValueError, "no memory", lambda: pin(torch.empty(0, dtype=torch.uint8)))
    fine(tensor)
    # Two views of one storage.
    one, other = tensor[: 3 * MIB], tensor[3 * MIB :]
    pin(one)
    refused(cuda_mem_torch.CudaMemError, "", lambda: pin(other))
    assert one.is_pinned() and other.is_pinned()
    unpin(other)
    assert not tensor.is_pinned()
    with cuda_mem_torch.pinned(tensor):
        assert tensor.is_pinned()
    assert not tensor.is_pinned()
    # Gone without being unpinned, by all its views.
    for _ in range(3):
        tensor = mapped()
        view = pin(tensor)[5:]
        del tensor
        gc.collect()
        assert view.is_pinned()
        del view
        gc.collect()


def pinned(bytes):
    return torch.empty(bytes, dtype=torch.uint8, pin_memory=True)


@contextlib.contextmanager
def held(stream):
    """Within it the stream waits."""
    driver, word = ctypes.CDLL("libcuda.so.1"), block(4)
    word.copy_(torch.zeros(4, dtype=torch.uint8))
    other, address = torch.cuda.Stream(), ctypes.c_uint64(word.data_ptr())
    torch.cuda.synchronize()
    assert driver.cuStreamWaitValue32_v2(ctypes.c_void_p(stream.cuda_stream), address, 1, 1) == 0
    yield
    assert driver.cuStreamWriteValue32_v2(ctypes.c_void_p(other.cuda_stream), address, 1, 0) == 0
    torch.cuda.synchronize()


def pinned_memory_is_of_the_cache():
    """Pinned memory has exact sizes, serves again behind the copies that use it, is counted as PyTorch counts, and goes back."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    stats = torch.cuda.host_memory_stats
    block(64)
    first = pinned(5 * MIB)
    assert first.is_pinned() and first[7:].is_pinned() and not torch.empty(1).is_pinned()
    assert stats()["active_bytes.current"] == 5 * MIB, stats()
    address = first.data_ptr()
    del first
    assert stats()["active_bytes.current"] == 0 and stats()["allocated_bytes.current"] >= 5 * MIB, stats()
    first = pinned(5 * MIB)
    assert first.data_ptr() == address and stats()["active_requests.allocated"] == 2
    first.fill_(3)
    copied, stream = numbered().pin_memory(), torch.cuda.Stream()
    assert copied.is_pinned() and copied.tolist() == numbered().tolist()
    there = block(5 * MIB)
    with held(stream):
        with torch.cuda.stream(stream):
            there.copy_(first, non_blocking=True)
        del first
        other = pinned(5 * MIB)
        assert other.data_ptr() != address, "it serves again under the copy"
    assert start(there) == [3] * len(start(there))
    again = pinned(5 * MIB)
    assert again.data_ptr() == address
    # By a pointer alone, as of a tensor that others made of it.
    assert torch.from_numpy(again.numpy()).is_pinned()
    refused(RuntimeError, "", lambda: pinned(1 << 52))
    refused(cuda_mem_torch.CudaMemError, "pinned memory are still in tensors", cuda_mem_torch.disable)
    refused(cuda_mem_torch.CudaMemError, "pinned memory are still in tensors", lambda: cuda_mem_torch.enable(pinned=False))
    refused(TypeError, "accepted: True, False", lambda: cuda_mem_torch.enable(pinned=1))
    assert cuda_mem_torch.is_enabled()
    del other, again, copied, there
    torch._C._host_emptyCache()
    assert stats()["allocated_bytes.current"] == 0 and stats()["num_host_free"] > 0, stats()
    took = lambda: [stats()[f"host_alloc_time.{name}"] for name in ("max", "min", "total", "count")]
    assert all(took()), took()
    torch.cuda.reset_peak_host_memory_stats()
    assert took()[:2] == [0, 0] and all(took()[2:]), took()
    torch.cuda.reset_accumulated_host_memory_stats()
    assert took() == [0] * 4, took()
    assert stats()["active_bytes.peak"] == 0 and stats()["active_requests.allocated"] == 0, stats()
    loader = torch.utils.data.DataLoader([torch.full((1000,), float(at)) for at in range(64)], batch_size=8, pin_memory=True)
    for number, batch in enumerate(loader):
        there = batch.to("cuda", non_blocking=True)
        assert batch.is_pinned() and there.cpu().tolist() == batch.tolist() and batch[1, 0] == number * 8 + 1
    assert stats()["active_requests.allocated"] == 8, stats()
    del batch, there, loader
    gc.collect()
    torch.cuda.empty_cache()
    cuda_mem_torch.disable()
    natively = pinned(5 * MIB)
    assert stats()["active_bytes.current"] == 8 * MIB, "PyTorch's own rounds to a power of two"
    del natively


def earlier_pinned_memory_is_native():
    """Pinned memory that PyTorch's own allocator gave out before stays its own, and serves again behind the copies that use it."""
    import cuda_mem_torch

    block(64)
    before = pinned(4 * MIB)
    cuda_mem_torch.enable()
    assert torch.cuda.host_memory_stats()["active_bytes.current"] == 4 * MIB, "statistics are the sum of both"
    stream, there = torch.cuda.Stream(), block(4 * MIB)
    address = before.data_ptr()
    before.fill_(5)
    with held(stream):
        with torch.cuda.stream(stream):
            there.copy_(before, non_blocking=True)
        del before
        cuda_mem_torch.enable(pinned=False)
        other = pinned(4 * MIB)
        assert other.data_ptr() != address, "it serves again under the copy"
        other.fill_(6)
    assert start(there) == [5] * len(start(there))
    assert pinned(4 * MIB).data_ptr() == address
    del other
    cuda_mem_torch.enable(pinned=True)
    assert pinned(5 * MIB).is_pinned()


def graphs_have_pinned_memory():
    """Pinned memory that a graph captured serves nobody else until the graph is reset; from before the capture it stays its owner's."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    there, before = block(3 * MIB), pinned(3 * MIB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        there.copy_(before, non_blocking=True)
        within = pinned(3 * MIB)
        there.copy_(within, non_blocking=True)
    address, earlier = within.data_ptr(), before.data_ptr()
    del within
    other = pinned(3 * MIB)
    assert other.data_ptr() not in (address, earlier)
    del other
    refused(cuda_mem_torch.CudaMemError, "CUDA graphs", lambda: cuda_mem_torch.enable(pinned=False))
    del before
    torch.cuda.synchronize()
    graph.reset()
    del graph
    gc.collect()
    held_now = torch.cuda.host_memory_stats()
    assert held_now["active_requests.current"] == 0, held_now


def graphs_of_both_allocators_share_a_pool():
    """Of the graphs of a pool one was captured with PyTorch's own pinned memory: its end leaves the other what that has captured."""
    import cuda_mem_torch

    def captured(*pool):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, *pool):
            there.copy_(pinned(3 * MIB), non_blocking=True)
        return graph

    def freed():
        torch._C._host_emptyCache()
        return torch.cuda.host_memory_stats()["num_host_free"]

    for late in (False, True):
        if not late:
            cuda_mem_torch.enable(pinned=False)
        there = block(3 * MIB)
        earlier = captured()
        cuda_mem_torch.enable(pinned=True)
        later = captured(earlier.pool())
        before = freed()
        earlier.reset()
        assert freed() == before, "the other one still uses it"
        later.replay()
        torch.cuda.synchronize()
        later.reset()
        assert freed() > before
        del there, earlier, later
        torch.cuda.synchronize()
        cuda_mem_torch.disable()


def pinned_memory_is_recorded():
    """The history has pinned memory, where PyTorch's own has it."""
    if not since(14):
        return
    import cuda_mem_torch

    cuda_mem_torch.enable()
    block(64)
    torch.cuda.memory._record_memory_history(record_pinned_host_memory=True)
    kept = pinned(3 * MIB)
    address = pinned(2 * MIB).data_ptr()
    snapshot = torch.cuda.memory._snapshot()
    actions = [(entry["action"], entry["size"]) for entry in snapshot["host_traces"] if entry["addr"] == address]
    assert actions == [("alloc", 2 * MIB), ("free_requested", 2 * MIB), ("free_completed", 2 * MIB)], snapshot["host_traces"]
    found = [segment for segment in snapshot["host_segments"] if segment["address"] == kept.data_ptr()]
    assert [segment["total_size"] for segment in found] == [3 * MIB], snapshot["host_segments"]
    torch.cuda.memory._record_memory_history(None)


def what_ends_behind_disable_has_ended():
    """A registrant and a tag's scope end behind `disable()`, too; history and caching that the program has switched off stay off."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    block(64)
    told = []
    with cuda_mem_torch.on_backing_change(told.append):
        cuda_mem_torch.disable()
    cuda_mem_torch.enable()
    with cuda_mem_torch.tag("left"):
        cuda_mem_torch.disable()
    cuda_mem_torch.enable()
    outside = block()
    left = cuda_mem_torch.state().get("left")
    assert left is None or left.awake == 0, left
    with cuda_mem_torch.tag("weights"):
        within = block()
    cuda_mem_torch.sleep("weights", backup="discard")
    cuda_mem_torch.wake("weights")
    assert told == [], "it was removed"
    del outside, within
    gc.collect()
    torch.cuda.memory._record_memory_history()
    cuda_mem_torch.disable()
    torch.cuda.memory._record_memory_history(None)
    cuda_mem_torch.enable()
    assert not torch._C._cuda_isHistoryEnabled()
    torch.cuda.memory.caching_allocator_enable(False)
    cuda_mem_torch.disable()
    block()
    assert torch.cuda.memory_reserved() == 0, "it is cached again"


def storages_that_grow_behind_disable_are_native():
    """A storage asks the allocator that made it; what it gets then is PyTorch's own, and is kept for the streams that are recorded."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    ours, empty, host = block(), block(0), pinned(0)
    ours.untyped_storage().resize_(0)
    torch.cuda.synchronize()
    cuda_mem_torch.disable()
    ours.untyped_storage().resize_(8 * MIB)
    assert torch.cuda.memory_allocated() == 8 * MIB
    ours.copy_(torch.full((8 * MIB,), 7, dtype=torch.uint8))
    stream, read = torch.cuda.Stream(), block()
    with held(stream):
        with torch.cuda.stream(stream):
            read.copy_(ours, non_blocking=True)
        ours.record_stream(stream)
        ours.untyped_storage().resize_(0)
        empty.resize_(8 * MIB).copy_(torch.full((8 * MIB,), 9, dtype=torch.uint8))
    assert start(read) == [7] * 64, start(read)
    host.resize_(4 * MIB)
    assert host.is_pinned() and torch.cuda.host_memory_stats()["active_bytes.current"] == 4 * MIB


def operators_of_operators_are_looked_through():
    """`checking()` changes nothing for operators that take functions."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    block(64)
    with cuda_mem_torch.checking():
        more = torch.ops.higher_order.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(3),))
    assert more.tolist() == [2.0] * 3


# Of later versions. Where PyTorch has not got it, the natural answer is looked for.
def since(minor):
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, minor)


def requests_are_rejected_first():
    """2.12: `throw_on_cudamalloc_oom`, its count and its words; before, the setting is refused by PyTorch."""
    import cuda_mem_torch

    option = "throw_on_cudamalloc_oom:True"
    cuda_mem_torch.enable(per_process_memory_fraction=0.25)
    block(64)
    if not since(12):
        refused(ValueError, "throw_on_cudamalloc_oom", lambda: torch.cuda.memory._set_allocator_settings(option))
        assert "num_oom_rejections" not in torch.cuda.memory_stats()
        return
    torch.cuda.memory._set_allocator_settings(f"per_process_memory_fraction:0.25,{option}")
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *words: seen.append(words))
    counted = lambda: [torch.cuda.memory_stats()[name] for name in ("num_ooms", "num_oom_rejections")]
    assert counted() == [0, 0]
    # The settings' share was the program's at first, which is looked at before.
    refused(torch.OutOfMemoryError, "Tried to allocate", lambda: block(torch.cuda.mem_get_info()[1] // 2))
    assert counted() == [1, 0] and len(seen) == 1, (counted(), seen)
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.reset_accumulated_memory_stats()
    seen.clear()
    refused(torch.OutOfMemoryError, "preemptively rejected", lambda: block(torch.cuda.mem_get_info()[1] // 2))
    assert counted() == [0, 1] and seen == [], (counted(), seen)
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["num_oom_rejections"] == 0
    # A share that the settings get later holds with it, too.
    block(torch.cuda.mem_get_info()[1] // 6)
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings(f"per_process_memory_fraction:0.125,{option}")
    refused(torch.OutOfMemoryError, "preemptively rejected", lambda: block(torch.cuda.mem_get_info()[1] // 6))
    # What the program sets itself rejects nothing: PyTorch looks at the settings' share alone.
    torch.cuda.memory._set_allocator_settings(f"per_process_memory_fraction:1.0,{option}")
    refused(torch.OutOfMemoryError, "preemptively rejected", lambda: block(torch.cuda.mem_get_info()[1] * 2))
    torch.cuda.set_per_process_memory_fraction(0.125)
    torch.cuda.reset_accumulated_memory_stats()
    refused(torch.OutOfMemoryError, "Tried to allocate", lambda: block(torch.cuda.mem_get_info()[1] // 6))
    assert counted() == [1, 0] and len(seen) == 1, (counted(), seen)
    # The settings' share is not the program's, and ends with the setting.
    torch.cuda.set_per_process_memory_fraction(0.75)
    torch.cuda.memory._set_allocator_settings(f"per_process_memory_fraction:0.25,{option}")
    assert torch.cuda.get_per_process_memory_fraction() == 0.75
    refused(torch.OutOfMemoryError, "preemptively rejected", lambda: block(torch.cuda.mem_get_info()[1] // 2))
    torch.cuda.memory._set_allocator_settings("per_process_memory_fraction:1.0,throw_on_cudamalloc_oom:False")
    block(torch.cuda.mem_get_info()[1] // 2)
    refused(torch.OutOfMemoryError, "6.00 GiB allowed", lambda: block(torch.cuda.mem_get_info()[1] // 8 * 7))


def allocations_have_a_traceback():
    """2.12: who allocated what is at an address."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    torch.cuda.memory._record_memory_history(stacks="python")
    tensor = block()
    if not since(12):
        assert not hasattr(torch.cuda.memory, "_allocation_traceback")
        return
    found = torch.cuda.memory._allocation_traceback(tensor.data_ptr() + 100)
    assert "experiments.py" in str(found) and "allocations_have_a_traceback" in str(found), found


def statistics_name_private_pools():
    """2.13: what each private pool has reserved, which stays when the pool goes, as natively."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    key = "reserved_bytes_by_private_pools"

    def of(pool):
        # A pool that has had no segment is not among them.
        return torch.cuda.memory_stats_as_nested_dict().get(key, {}).get(pool)

    outside, pool = block(64), torch.cuda.MemPool()
    number, before = pool.id, torch.cuda.memory_stats()["reserved_bytes.all.current"]
    with torch.cuda.use_mem_pool(pool):
        small, large = torch.empty(1000, device="cuda"), block(30)
    if not since(13):
        assert not [name for name in torch.cuda.memory_stats() if name.startswith(key)]
        return
    grown = torch.cuda.memory_stats()["reserved_bytes.all.current"] - before
    assert of(number)["all"] == {"current": grown, "peak": grown, "allocated": grown, "freed": 0}, of(number)
    assert of(number)["small_pool"]["current"] == 2 * MIB and of(number)["large_pool"]["current"] == grown - 2 * MIB
    assert torch.cuda.memory_stats()[f"{key}.{number[0]}_{number[1]}.all.current"] == grown
    del small, large, pool
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert of(number)["all"] == {"current": 0, "peak": grown, "allocated": grown, "freed": grown}, of(number)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    assert of(number)["all"] == dict.fromkeys(("current", "peak", "allocated", "freed"), 0), of(number)
    del outside


def tensors_are_annotated():
    """2.14: words about memory that was allocated before."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    torch.cuda.memory._record_memory_history()
    tensor = torch.empty(1000, dtype=torch.uint8, device="cuda")
    if not since(14):
        assert not hasattr(torch.cuda.memory, "_annotate_tensor")
        return
    assert torch.cuda.memory._memory_metadata_supported()
    refused(RuntimeError, "no live allocation found", lambda: torch._C._cuda_annotateMemory(tensor.data_ptr() + 512, "within"))

    def annotate():
        torch.cuda.memory._annotate_tensor(tensor, "the keys")

    annotate()
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    # It looks for the block without a trace.
    assert not [entry for entry in entries if entry["action"] == "snapshot"], entries
    refused(RuntimeError, "no live allocation found", lambda: torch.cuda.memory._annotate_tensor(torch.empty(0, device="cuda"), "nobody's"))
    noted = [entry for entry in entries if entry["action"] == "annotate"]
    assert [(entry["addr"], entry["size"], entry["user_metadata"]) for entry in noted] == [(tensor.data_ptr(), 1000, "the keys")], noted
    assert "annotate" in [frame["name"] for frame in noted[0]["frames"]], noted

    def recorded(**options):
        torch.cuda.memory._record_memory_history(clear_history=True, **options)
        annotate()
        annotate()
        tensors = [torch.empty_like(tensor), torch.empty_like(tensor)]
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
        del tensors
        return [(entry["action"], "frames" in entry) for entry in entries if entry["action"] in ("alloc", "annotate")]

    assert recorded(max_entries=3) == [("annotate", True), ("alloc", True), ("alloc", True)]
    assert recorded(skip_actions=["annotate"]) == [("alloc", True)] * 2
    assert recorded(context="state") == [("annotate", False)] * 2 + [("alloc", False)] * 2
    torch.cuda.memory._record_memory_history(None)
    refused(RuntimeError, "no live allocation found", lambda: torch._C._cuda_annotateMemory(0, "nobody's"))


def annotations_name_what_is_compiled():
    """2.14: as entries of blocks do."""
    if not since(14):
        return
    import cuda_mem_torch

    cuda_mem_torch.enable()
    torch.cuda.memory._record_memory_history(compile_context=True)
    tensor = block()

    def region(x):
        y = x + 1
        torch.cuda.memory._annotate_tensor(tensor, "within")
        return y

    torch.compile(region, backend="eager")(torch.ones(3))
    torch.cuda.memory._annotate_tensor(tensor, "behind")
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    noted = [(entry["user_metadata"], entry["compile_context"]) for entry in entries if entry["action"] == "annotate"]
    assert noted == [("within", "Torch-Compiled Region: 0/0"), ("behind", "N/A")], noted
    torch.cuda.memory._record_memory_history(None)


def segments_may_be_larger_than_all():
    """PyTorch reads -1 as the largest number. What is set beside it, or later, holds."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    small = block(64)

    def set(text):
        torch.cuda.memory._set_allocator_settings(text)
        return torch.cuda.memory._snapshot()["allocator_settings"]

    assert set("large_segment_size_mb:-1,garbage_collection_threshold:0.5")["garbage_collection_threshold"] == 0.5
    assert set("garbage_collection_threshold:0.75")["garbage_collection_threshold"] == 0.75
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        refused(torch.OutOfMemoryError, "Tried to allocate 2.00 MiB", lambda: block(2 * MIB))
        large = block(20 * MIB)
    set("large_segment_size_mb:20,max_split_size_mb:64")
    with torch.cuda.use_mem_pool(pool):
        kept = block(2 * MIB)
    del small, large, kept


def later_settings_are_accepted():
    """Settings of later versions, from the environment as from `enable()`, change nothing that is not so already."""

    def program():
        import cuda_mem_torch

        cuda_mem_torch.enable()
        block(1)
        print(torch.cuda.get_allocator_backend())

    settings = {
        12: "throw_on_cudamalloc_oom:True,pinned_free_catch_all:True",
        13: "pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:512",
        15: "expandable_segments_reserve:0.5,expandable_segments_reserve_by_class:[kv:0.25,weights:8G]",
    }
    for minor, text in settings.items():
        done = ended(program, PYTORCH_CUDA_ALLOC_CONF=text)
        if since(minor):
            assert done.code == 0 and "cuda-mem" in done.output, done
        else:
            assert done.code != 0, done


PROGRAMS = [
    options_add_up, options_end_with_what_named_them, settings_tell_of_expandable_segments, the_environment_counts_at_the_first_use, what_pytorch_refuses_changes_nothing, segments_stay_while_the_setting_is_off, segments_stay_while_the_setting_is_off_late, memory_is_held_still, statistics_print_themselves, snapshots_have_native_keys,
    statistics_are_those_of_expandable_segments, a_pool_beside_the_native_allocator, a_stream_of_others_is_destroyed, ids_are_no_handles_of_streams, observers_beside_threads, a_failed_request_says_what_there_was, failed_requests_write_pages_after_disable,
    a_request_that_hardly_fails_says_so, mistakes_with_tags_are_named, pools_of_tags_go_with_their_graphs, captures_go_over_devices, mistaken_devices_are_named, what_is_left_keeps_it_enabled, captures_beside_threads, a_capture_that_begins_twice_ends_with_its_graph, snapshots_go_from_device_to_device,
    threads_that_outlive_the_program, a_forked_child_ends_as_natively, a_forked_child_leaves_scopes, blocks_of_the_end_are_silent, new_streams_each_step, pinned_in_place_again, pinned_memory_is_of_the_cache, earlier_pinned_memory_is_native, graphs_have_pinned_memory, graphs_of_both_allocators_share_a_pool,
    pinned_memory_is_recorded, what_ends_behind_disable_has_ended, storages_that_grow_behind_disable_are_native, operators_of_operators_are_looked_through, requests_are_rejected_first, allocations_have_a_traceback, statistics_name_private_pools, tensors_are_annotated, annotations_name_what_is_compiled,
    segments_may_be_larger_than_all, later_settings_are_accepted,
]
