"""Snapshots of PyTorch with each allocator, for the tests of the page: `python3 ci/torch/simulated/snapshots.py VERSION...`.

Runs one program with each version on the simulated driver, in the environments of `matrix.py`, and writes what `_dump_snapshot` gives into
`cuda-mem-torch/report/src/tests/snapshots`, with what the program held beside it. Versions that are older than those that the package is
for have CUDA 12 and their own allocator alone.
"""

import argparse
import gzip
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import matrix
import whole

TARGET = whole.ROOT / "cuda-mem-torch/report/src/tests/snapshots"
FIGURES = TARGET / "figures.json"
# Where the program is, as the snapshot has it, and where PyTorch is.
PROGRAM, PACKAGES = "/home/user/program.py", "/opt/venv/lib/python3/site-packages"

# Two devices, pools, streams, annotations, metadata, pinned memory and a lack of memory, without a kernel.
TEXT = """\
import inspect, json, sys
import torch

MIB, memory = 1 << 20, torch.cuda.memory
torch.cuda.init()
accepted = inspect.signature(memory._record_memory_history_impl).parameters
wanted = {"global_record_annotations": True, "record_pinned_host_memory": True}
memory._record_memory_history(stacks="python", **{name: value for name, value in wanted.items() if name in accepted})


def block(mib, device=0):
    return torch.empty(mib * MIB, dtype=torch.uint8, device=f"cuda:{device}")


def layer(mib):
    with torch.cuda.stream(side):
        return block(mib)


def graph(pool):
    with torch.cuda.use_mem_pool(pool):
        return block(6)


side, pool = torch.cuda.Stream(), torch.cuda.MemPool()
weights, private = [layer(5) for _ in range(3)], graph(pool)
second = block(64, device=1)
kept = []
for step in range(20):
    with torch.autograd.profiler.record_function("step"):
        work = layer(3)
        if step % 4 == 0:
            kept.append(block(2))
        del work
if hasattr(memory, "_set_memory_metadata"):
    memory._set_memory_metadata({"phase": "validation"} if sys.argv[2] == "new" else "phase validation")
    said = block(9)
    memory._set_memory_metadata("")
if hasattr(memory, "_annotate_tensor"):
    memory._annotate_tensor(weights[0], "embedding")
staging = [torch.empty(4 * MIB, dtype=torch.uint8, pin_memory=True) for _ in range(3)]
torch.cuda.set_per_process_memory_fraction(200 * MIB / torch.cuda.mem_get_info()[1])
try:
    block(300)
except torch.cuda.OutOfMemoryError:
    pass
memory._dump_snapshot(sys.argv[1])
print(json.dumps({"version": torch.__version__, "live": [torch.cuda.memory_allocated(n) for n in range(2)], "reserved": [torch.cuda.memory_reserved(n) for n in range(2)]}))
"""

KINDS = {"native": {}, "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "ours": {"CUDA_MEM_TORCH": "require"}}

# What is asked of NVIDIA's management library: expandable segments ask whether memory can be told to other hosts. It cannot.
MANAGEMENT = """\
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) { (void)bus; *device = 0; return 0; }
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *list) { (void)device; (void)list; *count = 0; return 0; }
"""
# Of CUDA 12, by version: its runtime and the compiler's headers, which those of the runtime include.
OLDER = {"2.6.0": ("12.4.127", "12.4.131"), "2.9.1": ("12.8.90", "12.8.93")}
# PyTorch 2.6 asks the driver for a function by the name that it had at first, which the simulator does not have.
FIRST_NAME = """\
int cuStreamWriteValue32_v2(void *stream, unsigned long long address, unsigned value, unsigned flags);
int cuStreamWriteValue32(void *stream, unsigned long long address, unsigned value, unsigned flags)
{
    return cuStreamWriteValue32_v2(stream, address, value, flags);
}
"""
REFUSED = [
    "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlSystemGetCudaDriverVersion_v2",
]


def renamed(value, names):
    """A value with the beginnings of paths replaced."""
    match value:
        case str():
            for old, new in names:
                value = value.replace(old, new)
            return value
        case dict():
            # One dictionary a frame stays one.
            for key in value:
                value[key] = renamed(value[key], names)
            return value
        case list():
            value[:] = [renamed(item, names) for item in value]
            return value
    return value


def note(name, figures):
    """What the program held, beside what the others did."""
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted((known | {name: figures}).items())]
    FIGURES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def library(path, text, *linked):
    words = ["cc", "-shared", "-fPIC", "-o", path, "-Wl,--no-as-needed", *linked, "-x", "c", "-"]
    subprocess.run(words, input=text, check=True, text=True)


def older(folder, version, arguments):
    """As `matrix.environment` and `whole.prepare`, for a version of `OLDER`."""
    runtime, compiler = OLDER[version]
    required = [f"torch=={version}", f"{matrix.RUNTIME}-cu12=={runtime}", f"nvidia-cuda-nvcc-cu12=={compiler}", *matrix.DEPENDENCIES]
    matrix.download(arguments.downloads, required)
    python, packages = matrix.fresh(folder / "python", required, arguments.downloads, "nvidia/cuda_runtime/lib")
    include = packages / "nvidia/cuda_runtime/include"
    (include / "crt").symlink_to(packages / "nvidia/cuda_nvcc/include/crt")
    variables = whole.prepare(folder / "scratch", arguments.simulator, include, 12)
    driver = (folder / "scratch/libcuda.so.1").rename(folder / "scratch/libcuda-simulated.so")
    library(folder / "scratch/libcuda.so.1", FIRST_NAME, driver)
    return python, packages, variables, ["native", "expandable"]


def supported(folder, version, arguments):
    python, packages = matrix.environment(folder / "python", version, arguments.downloads, arguments.wheel)
    variables = whole.prepare(folder / "scratch", arguments.simulator, packages / "nvidia/cu13/include")
    return python, packages, variables, list(KINDS)


def take(version, arguments):
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "scratch").mkdir()
        python, packages, variables, kinds = (older if version in OLDER else supported)(folder, version, arguments)
        refused = "".join(f"int {name}(void) {{ return 3; }}\n" for name in REFUSED)
        library(folder / "scratch/libnvidia-ml.so.1", MANAGEMENT + refused)
        program, out = folder / "program.py", folder / "out.pickle"
        program.write_text(TEXT)
        newest = [int(part) for part in version.split(".")[:2]] >= [2, 15]
        command = [python, program, out, "new" if newest else "old"]
        names = [(str(program), PROGRAM), (str(packages), PACKAGES)]
        for kind in kinds:
            done = subprocess.run(command, env=variables | KINDS[kind], cwd=folder, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
            told, name = done.stdout.splitlines()[-1], f"{'.'.join(version.split('.')[:2])}-{kind}"
            with open(TARGET / f"{name}.pickle.gz", "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                pickle.dump(renamed(pickle.loads(out.read_bytes()), names), packed)
            note(name, json.loads(told))
            print(f"{name}: {(TARGET / f'{name}.pickle.gz').stat().st_size} bytes, {told}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION", help=f"of PyTorch: {' '.join([*OLDER, *matrix.VERSIONS])}")
    parser.add_argument("--wheel", type=Path, required=True, help="the package, which an environment of matrix.py has")
    parser.add_argument("--simulator", type=Path, required=True, help="the simulated driver")
    parser.add_argument("--downloads", type=Path, default=whole.ROOT / "target/torch-matrix/downloads")
    arguments = parser.parse_args()
    TARGET.mkdir(exist_ok=True)
    for version in arguments.versions:
        take(version, arguments)


if __name__ == "__main__":
    main()
