"""The C++ shim on the simulated driver, with the real libc10_cuda.so: `python3 ci/torch/simulated/run.py --headers DIR`.

DIR is what `cargo xtask wheel` fetches (`target/wheel/torch-2.11.0`): PyTorch's and CUDA's headers and libraries. CUDA's runtime is
played by `cudart.c`. Needs `libcuda_mem_torch.so` and `libcuda_mem_sim.so`: `cargo build -p cuda-mem-torch -p cuda-mem-sim-library`."""

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--headers", type=Path, default=ROOT / "target/wheel/torch-2.11.0")
    parser.add_argument("--build", type=Path, default=ROOT / "target/debug", help="where cargo built the two libraries")
    arguments = parser.parse_args()
    headers, build = arguments.headers.resolve(), arguments.build.resolve()
    torch, cuda, crate = headers / "torch", headers / "nvidia/cu13", ROOT / "cuda-mem-torch"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "libcuda.so.1").symlink_to(build / "libcuda_mem_sim.so")
        (folder / "libcuda_mem_torch.so").symlink_to(build / "libcuda_mem_torch.so")
        cudart = folder / "libcudart.so.13"
        subprocess.run(
            ["cc", "-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wno-pedantic", "-Wl,-soname,libcudart.so.13",
             f"-Wl,--version-script={HERE / 'exports.map'}", "-isystem", str(cuda / "include"), "-o", str(cudart),
             str(HERE / "cudart.c"), str(HERE / "refused.c"), "-ldl"],
            check=True,
        )
        includes = [torch / "include", torch / "include/torch/csrc/api/include", cuda / "include"]
        words = [word for include in includes for word in ("-isystem", str(include))]
        shim = [str(path) for path in sorted((crate / "shim").glob("*.cpp"))]
        program = folder / "smoke"
        subprocess.run(
            ["c++", "-std=c++17", "-O0", "-g1", "-Wall", "-Wextra", "-Werror", "-DUSE_CUDA", *words, "-I", str(crate / "include"),
             "-I", str(crate / "shim"), "-o", str(program), str(HERE / "smoke.cpp"), *shim, f"-L{torch / 'lib'}", f"-L{folder}",
             "-lcuda_mem_torch", "-lc10", "-lc10_cuda", str(cudart), "-Wl,--allow-shlib-undefined"],
            check=True,
        )
        path = f"{folder}:{torch / 'lib'}"
        environment = os.environ | {
            "LD_LIBRARY_PATH": path,
            "CUDA_MEM_DRIVER": str(folder / "libcuda.so.1"),
            "CUDA_MEM_SIM": "devices=2",
        }
        for words in ([], ["late"]):
            subprocess.run([str(program), *words], env=environment, check=True, timeout=300)
    print("well")


if __name__ == "__main__":
    main()
