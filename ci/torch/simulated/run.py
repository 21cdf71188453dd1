"""The C++ shim on the simulated driver, with the real libc10_cuda.so: `python3 ci/torch/simulated/run.py --headers DIR`.

DIR is what `cargo xtask wheel` fetches (`target/wheel/torch-2.11.0`): PyTorch's and CUDA's headers and libraries. CUDA's runtime is
played by `cudart.c`. Needs `libcuda_mem_torch.so` and `libcuda_mem_sim.so`: `cargo build -p cuda-mem-torch-library -p cuda-mem-sim-library`.

Whole PyTorch is `matrix.py`'s."""

import argparse
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from whole import compile_runtime

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CUDART = "libcudart.so.13"


def build_program(folder, headers, build, source, flags):
    """A program with the shim in it, and what it needs to run."""
    headers, build = headers.resolve(), build.resolve()
    torch, cuda, crate = headers / "torch", headers / "nvidia/cu13", ROOT / "cuda-mem-torch"
    (folder / "libcuda.so.1").symlink_to(build / "libcuda_mem_sim.so")
    (folder / "libcuda_mem_torch.so").symlink_to(build / "libcuda_mem_torch.so")
    compile_runtime(folder / CUDART, cuda / "include", "cudart.c", "refused.c")
    includes = [torch / "include", torch / "include/torch/csrc/api/include", cuda / "include"]
    words = [word for include in includes for word in ("-isystem", str(include))]
    program = folder / "program"
    subprocess.run(
        ["c++", "-std=c++20", *flags, "-Wall", "-Wextra", "-Werror", "-DUSE_CUDA", *words, "-I", str(crate / "include"),
         "-I", str(crate / "shim"), "-o", str(program), str(HERE / source), str(HERE / "registry.cpp"), str(crate / "shim/shim.cpp"), f"-L{torch / 'lib'}", f"-L{folder}",
         "-lcuda_mem_torch", "-lc10", "-lc10_cuda", str(folder / CUDART), "-Wl,--allow-shlib-undefined"],
        check=True,
    )
    environment = os.environ | {
        "LD_LIBRARY_PATH": f"{folder}:{torch / 'lib'}",
        "CUDA_MEM_DRIVER": str(folder / "libcuda.so.1"),
        "CUDA_MEM_SIM": "devices=2",
    }
    return program, environment


# Words, the simulator's settings, and more variables. Two name the allocator that ours takes the place of. Where there is one device alone,
# nobody is asked which is current. The last two cannot make one of PyTorch's streams, or get memory, at first.
RUNS = (
    ([], "devices=2", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "0", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"}),
    (["late"], "devices=2", {"PYTORCH_ALLOC_CONF": "backend:native"}),
    (["late"], "devices=1", {}),
    (["uncached"], "devices=2", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
    (["uncached"], "devices=2", {"PYTORCH_NO_HIP_MEMORY_CACHING": "1"}),
    (["seeing"], "faults=cuStreamCreateWithPriority:40:2", {}),
    (["refused"], "faults=cuMemCreate:1:700", {}),
)


def check(headers, build):
    """Builds the program for a PyTorch and runs it in every way; its headers."""
    with tempfile.TemporaryDirectory() as scratch:
        program, environment = build_program(Path(scratch), headers, build, "smoke.cpp", ["-O0"])
        for words, settings, more in RUNS:
            chosen = environment | {"CUDA_MEM_SIM": settings} | more
            subprocess.run([str(program), *words], env=chosen, check=True, timeout=300)
    return headers


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--headers", type=Path, action="append", help="once for each PyTorch [default: target/wheel/torch-2.11.0]")
    parser.add_argument("--build", type=Path, default=ROOT / "target/debug", help="where cargo built the two libraries")
    arguments = parser.parse_args()
    # Compiling is most of it, and one compiler's.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for headers in pool.map(partial(check, build=arguments.build), arguments.headers or [ROOT / "target/wheel/torch-2.11.0"]):
            print(f"well with {headers.name}")


if __name__ == "__main__":
    main()
