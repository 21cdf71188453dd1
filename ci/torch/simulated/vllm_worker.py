"""vLLM's own worker over tags, on the simulated driver: `matrix.py` runs these with the PyTorch that vLLM is made for.

Of its wheel, which `VLLM_WHEEL` names, a few files are imported as they are; stand-ins are there for all that they import beside those."""

import contextlib
import gc
import importlib.abc
import importlib.util
import inspect
import logging
import os
import sys
import types
import zipfile

import torch
from programs import block, numbered, start

MIB = 1 << 20
OWN = {
    "vllm.compilation.cudagraph_pool", "vllm.device_allocator", "vllm.device_allocator.alloc_conf", "vllm.device_allocator.cumem",
    "vllm.device_allocator.sleep_mode_backend", "vllm.envs", "vllm.plugins", "vllm.v1.worker.gpu_worker", "vllm.v1.worker.worker_base",
}
CUDA = types.SimpleNamespace(
    is_cuda_alike=lambda: True, is_cuda=lambda: True, is_rocm=lambda: False, is_xpu=lambda: False, is_cpu=lambda: False, device_type="cuda"
)
# What they import and these programs use.
GIVEN = {
    "vllm.config": {"set_current_vllm_config": lambda _config: contextlib.nullcontext()},
    "vllm.distributed.device_communicators.pynccl_allocator": {"set_graph_pool_id": lambda _id: None},
    "vllm.distributed.ec_transfer": {"has_ec_transfer": lambda: False},
    "vllm.distributed.kv_transfer": {"has_kv_transfer_group": lambda: False},
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.platforms": {"current_platform": CUDA},
    "vllm.tracing": {"instrument": lambda **_: lambda function: function},
    "vllm.utils.gpu_sync_debug": {"with_gpu_sync_check": lambda function: function},
    "vllm.utils.mem_utils": {"format_gib": lambda size: f"{size / 2**30:.2f}"},
    "vllm.utils.torch_utils": {"PIN_MEMORY": True, "set_torch_threads_for_runtime": lambda: None},
}


class StandIn(types.ModuleType):
    """Has any name that is no module's, as a class of nothing."""

    def __init__(self, name, wheel):
        super().__init__(name)
        self.__wheel = wheel

    def __getattr__(self, name):
        if name.startswith("_") or self.__wheel.place(f"{self.__name__}.{name}"):
            raise AttributeError(name)
        return self.__dict__.setdefault(name, type(name, (), {}))


class Wheel(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of vLLM: its own out of the wheel, or stand-ins."""

    def __init__(self, path):
        self.files = zipfile.ZipFile(path)

    def place(self, name):
        path = name.replace(".", "/")
        return next((file for file in (f"{path}/__init__.py", f"{path}.py") if file in self.files.NameToInfo), None)

    def find_spec(self, name, _path, _target=None):
        # What is compiled is not there for those who look for it.
        if name.partition(".")[0] == "vllm" and (name == "vllm" or self.place(name)):
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None if spec.name in OWN else StandIn(spec.name, self)

    def exec_module(self, module):
        if module.__name__ in OWN:
            place = self.place(module.__name__)
            if not place.endswith("/__init__.py"):
                module.__package__ = module.__name__.rpartition(".")[0]
            exec(compile(self.files.read(place), f"vllm.whl/{place}", "exec"), module.__dict__)
        else:
            vars(module).update(GIVEN.get(module.__name__, {}))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(block(24 * MIB), requires_grad=False)
        self.register_buffer("table", block(MIB))


class Runner:
    """Plays the runner of models."""

    def load_model(self, load_dummy_weights):
        self.model = Model()
        # What is converted while it loads.
        block(32 * MIB)

    def get_draft_model(self):
        return None


def worker_of(backend):
    """The worker before it has a model, with the adapter installed as vLLM does it in each of its processes."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    logging.basicConfig(level=logging.INFO)
    sys.meta_path.insert(0, Wheel(os.environ["VLLM_WHEEL"]))
    # Some of it is there before the adapter.
    from vllm.compilation.cudagraph_pool import capture_pool
    from vllm.v1.worker.gpu_worker import Worker

    os.environ["VLLM_PLUGINS"] = "cuda_mem"
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    model = types.SimpleNamespace(
        enable_cumem_allocator=True, enable_sleep_mode=True, sleep_mode_backend=backend, enable_nccl_comm_suspend=False,
        sleep_preserve_parameter_names=[],
    )
    config = types.SimpleNamespace(model_config=model, weight_transfer_config=None, use_cumem_cudagraph_pool=True)
    worker = object.__new__(Worker)
    worker.vllm_config, worker.model_config, worker.model_runner, worker.device = config, model, Runner(), torch.device("cuda:0")
    worker._sleep_mode_backend = None
    worker._sleep_saved_buffers, worker._sleep_saved_draft_buffers, worker._sleep_saved_parameters = {}, {}, {}
    return worker, capture_pool


def asleep():
    import cuda_mem_torch

    return {name for name, state in cuda_mem_torch.state().items() if state.is_asleep}


def serve(backend):
    worker, capture_pool = worker_of(backend)
    state = worker.sleep_mode_backend.state
    worker.load_model()
    model, tags = worker.model_runner.model, {"weights", "kv_cache", "runtime", "cudagraph"}
    # As for the cache of a model.
    with worker._maybe_get_memory_pool_context("runtime"):
        table = block()
        with worker._maybe_get_memory_pool_context("kv_cache"):
            cache = block(100 * MIB)
    captured = torch.cuda.CUDAGraph()
    with capture_pool(None, worker.vllm_config) as pool, torch.cuda.graph(captured, pool=pool):
        inside = block(3 * MIB)
        inside[:64].copy_(model.weight[:64])
        table[64:128].copy_(inside[:64])
    other = block()
    tensors = [model.weight, model.table, table, cache, other]
    for number, tensor in enumerate(tensors):
        tensor[:64].copy_(numbered() + number)
    addresses = [tensor.data_ptr() for tensor in tensors]

    def expect(*numbers):
        assert [tensor.data_ptr() for tensor in tensors] == addresses
        assert [start(tensors[number]) for number in numbers] == [(numbered() + number).tolist() for number in numbers]

    def replay():
        table[64:128].copy_(torch.zeros(64, dtype=torch.uint8))
        captured.replay()
        torch.cuda.synchronize()
        assert start(table[64:]) == start(model.weight)

    replay()
    # One instance in a process, as vLLM wants it.
    try:
        worker.load_model()
        raise AssertionError("it was loaded twice")
    except AssertionError as error:
        assert "one instance per process" in str(error), error
    for level in (1, 2, 1):
        free = torch.cuda.mem_get_info()[0]
        worker.sleep(level)
        # All of it, and nothing of what it converted was left in the tag.
        freed = torch.cuda.mem_get_info()[0] - free
        assert 24 + 1 + 100 + 8 + 3 <= freed / MIB < 24 + 1 + 100 + 8 + 3 + 32, freed / MIB
        assert asleep() == tags and state() == "SUSPENDED"
        expect_allocation_refused(worker)
        worker.wake_up(["weights"])
        assert asleep() == {"kv_cache"}
        if level == 1:
            expect(0, 1, 2, 4)
        else:
            # Weights are loaded again; the buffers are vLLM's to save.
            expect(1, 2, 4)
            model.weight[:64].copy_(numbered())
        replay()
        assert backend == "cumem" or state() == "SUSPENDED"
        worker.wake_up(["kv_cache"])
        assert asleep() == set() and state() == "RUNNING"
        cache[:64].copy_(numbered() + 3)
        expect(0, 1, 2, 3, 4)
    worker.discard(("kv_cache",))
    assert asleep() == {"kv_cache"} and state() == "SUSPENDED"
    worker.wake_up()
    expect(0, 1, 2, 4)
    replay()
    # When the model is gone there is room for another.
    del model, worker.model_runner.model, cache, table, inside, captured, tensors, tensor
    gc.collect()
    worker.load_model()
    worker.sleep()
    worker.wake_up()


def expect_allocation_refused(worker):
    with worker._maybe_get_memory_pool_context("kv_cache"):
        try:
            block()
            raise AssertionError("it was allocated")
        except RuntimeError as error:
            assert '"kv_cache" sleeps' in str(error), error


def vllm_with_its_own_backend():
    serve("cumem")


def vllm_with_the_registered_backend():
    serve("cuda_mem")


def vllm_finds_all_that_it_calls():
    """Every method that its allocator has, with the same parameters."""
    worker_of("cuda_mem")
    from vllm import device_allocator
    from vllm.device_allocator.cumem import CuMemAllocator
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

    ours = device_allocator.get_mem_allocator_instance()
    # Those of a singleton, which the worker calls when there is one.
    of_one = {"get_instance", "release_pools", "close", "instance", "default_tag"}
    names = {name for of in (device_allocator.MemAllocator, CuMemAllocator) for name in vars(of) if not name.startswith("_")} - of_one
    assert names == {"use_memory_pool", "sleep", "discard", "wake_up", "get_current_usage", "cudagraph_pool"}, names
    for name in names:
        theirs = list(inspect.signature(getattr(CuMemAllocator, name)).parameters)[1:]
        assert list(inspect.signature(getattr(ours, name)).parameters) == theirs, name
    backend = SleepModeBackendFactory.create_backend(types.SimpleNamespace(sleep_mode_backend="cuda_mem"))
    told = {name: getattr(backend, name)() for name, of in vars(type(backend).__mro__[2]).items() if isinstance(of, classmethod)}
    assert told == {
        "is_supported": True, "preserves_communicators": True, "preserves_compiled_artifacts": True,
        "preserves_graphs_with_communicators": False, "supports_durable_storage": False,
    }, told


PROGRAMS = [vllm_with_its_own_backend, vllm_with_the_registered_backend, vllm_finds_all_that_it_calls]
