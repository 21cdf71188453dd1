"""Steps of `run_all.py` on torch_memory_saver's own examples, over tags: `examples.py NAME`; `--list` names them. `MEMORY_SAVER_EXAMPLES` is the
folder `test/examples` of its sources, and the package 0.0.10 must be there; without either a step is skipped."""

import importlib
import importlib.util
import os
import sys

from figures import Steps, alone, pytorch, two_devices

STEPS = Steps()
FOLDER = "MEMORY_SAVER_EXAMPLES"
# The file, its function, and the way that it is told to hook in. `preload` asks for regions of graphs, which tags have without a library.
ON_ONE = [
    ("simple", "run", "torch"), ("simple", "run", "preload"), ("cuda_graph", "run", "torch"), ("cuda_graph", "run", "preload"),
    ("rl_example", "run", "torch"), ("rl_example", "run", "preload"),
]
ON_TWO = [("multi_device_torch_mode", "run", "torch"), ("cpu_backup", "run_multi_device_mmap_restore", "torch")]
WHOLE_PROCESS = {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}
# What does not work, how it says so, and why.
LISTED = [
    ("cpu_backup", "run", "torch", {}, "AttributeError", "it reads a retained backup of what is awake; ours can be read of what sleeps alone"),
    ("disk_backup", "run", "torch", {}, "CudaMemError", "backups on disk are not here"),
    ("training_engine", "run", "preload", WHOLE_PROCESS, "", "a region of the whole process is its preloaded library's"),
    ("nested_region", "run", "preload", WHOLE_PROCESS, "", "it asks that library which region it is in"),
    ("cuda_vmm_granularity", "run", "preload", WHOLE_PROCESS, "", "it allocates by cudaMalloc, which that library replaces"),
]


@STEPS.part
def run(file, function, hook_mode):
    """One example with the adapter: nothing, or how it failed."""
    pytorch("cuda-mem")
    from cuda_mem_torch import adapters

    adapters.torch_memory_saver()
    sys.path.insert(0, os.environ[FOLDER])
    try:
        getattr(importlib.import_module(file), function)(hook_mode)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def is_there():
    if not os.environ.get(FOLDER) or importlib.util.find_spec("torch_memory_saver") is None:
        print(f"skipped: {FOLDER} does not name a folder, or torch_memory_saver is not installed")
        return False
    return True


def work(examples):
    for file, function, hook_mode in examples:
        failed = alone(run, file, function, hook_mode)
        STEPS.figure(f"{file}.{function}, {hook_mode}", failed or "right", "", "right", not failed)


@STEPS.step
def memory_saver_examples():
    if is_there():
        work(ON_ONE)


@STEPS.step
def memory_saver_examples_on_two():
    import torch

    if is_there() and two_devices(torch):
        work(ON_TWO)


@STEPS.step
def memory_saver_examples_that_fail():
    """Each still does what it is listed for."""
    if not is_there():
        return
    for file, function, hook_mode, environment, kind, why in LISTED:
        failed = alone(run, file, function, hook_mode, environment=environment)
        STEPS.figure(f"{file}.{function}, {hook_mode}: {why}", failed or "right", "", f"fails {kind}".strip(), failed.startswith(kind) and failed != "")


if __name__ == "__main__":
    STEPS.main()
