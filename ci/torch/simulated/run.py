"""The C++ shim on the simulated driver, with the real libc10_cuda.so: `python3 ci/torch/simulated/run.py --headers DIR`.

DIR is what `cargo xtask wheel` fetches (`target/wheel/torch-2.11.0`): PyTorch's and CUDA's headers and libraries. CUDA's runtime is
played by `cudart.c`. Needs `libcuda_mem_torch.so` and `libcuda_mem_sim.so`: `cargo build -p cuda-mem-torch -p cuda-mem-sim-library`.

With `--python`, an interpreter that has PyTorch 2.11 and the wheel, also what whole PyTorch does without launching a kernel."""

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CUDART = "libcudart.so.13"

PROGRAMS = [
    "late", "late_limit", "late_at_the_limit", "context", "innermost_pool", "disabled_with_pools", "share_with_ours", "share_with_native", "share_without_numpy", "share_untraceable_with_ours", "share_untraceable_with_native",
    "share_filtered_with_ours", "share_filtered_with_native", "share_many", "graph", "sleep_and_wake",
]
# Of groups.py.
GROUPS = ["symmetric", "symmetric_made_anew", "symmetric_tried_again", "symmetric_beside_a_capture", "symmetric_without_memory"]
# Of steps.py, with blocks that nothing is written to.
STEPS = [
    "statistics", "history", "out_of_memory", "fraction", "options", "accelerator_memory", "disabled_again", "graph_uses_memory_again",
    "compiled_regions",
]


def run_pytorch(python, folder, environment):
    """Programs of whole PyTorch. CUDA's real runtime stays for what the played one lacks, so that goes before it."""
    steps = (HERE.parent / "steps.py").read_text()
    filled = 'torch.full((bytes,), value, dtype=torch.uint8, device="cuda")'
    assert filled in steps
    (folder / "steps.py").write_text(steps.replace(filled, 'torch.empty(bytes, dtype=torch.uint8, device="cuda")'))
    for script in ("programs.py", "groups.py"):
        (folder / script).write_text((HERE / script).read_text())
    scarce = folder / "libscarce.so"
    subprocess.run(["c++", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-o", str(scarce), str(HERE / "scarce.cpp"), "-ldl"], check=True)
    environment = environment | {"LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": f"{folder / 'libcudart-played.so'}:{scarce}"}
    for script, names in (("programs.py", PROGRAMS), ("groups.py", GROUPS), ("steps.py", STEPS)):
        for name in names:
            subprocess.run([python, str(folder / script), name], env=environment, check=True, timeout=300, cwd=folder)
            print(f"ok {name}", flush=True)
    follow_the_guide(python, folder, environment)


def follow_the_guide(python, folder, environment):
    """The leak of docs/pytorch.md is found as it says, and mended."""
    guide = (ROOT / "docs/pytorch.md").read_text()
    program, printed = re.search(r"```python\n(# leak.py\n.*?)```.*?```text\n(.*?)```", guide, re.DOTALL).groups()
    mended, active, reserved = re.search(r"With `(.*?)` (\d+) MiB are active and (\d+) reserved", guide).groups()
    place = re.search(r"`(leak\.py:\d+)`", guide)[1]

    def run(text):
        (folder / "leak.py").write_text(text)
        done = subprocess.run(
            [python, str(folder / "leak.py")], env=environment, check=True, timeout=300, cwd=folder, capture_output=True, text=True
        )
        return done.stdout

    assert run(program) == printed, run(program)
    assert place in (folder / "leak.html").read_text(), place
    assert program.count("batch[:100]") == 1
    found = run(program.replace("batch[:100]", mended))
    assert found == f"active {active} MiB\nreserved {reserved} MiB\n", found
    print("ok guide", flush=True)


def compile_runtime(path, headers, *sources):
    """CUDA's runtime, played."""
    cuda = headers.resolve() / "nvidia/cu13/include"
    subprocess.run(
        ["cc", "-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{path.name}",
         f"-Wl,--version-script={HERE / 'exports.map'}", "-isystem", str(cuda), "-o", str(path),
         *(str(HERE / source) for source in sources), "-ldl"],
        check=True,
    )


def build_program(folder, headers, build, source, flags):
    """A program with the shim in it, and what it needs to run."""
    headers, build = headers.resolve(), build.resolve()
    torch, cuda, crate = headers / "torch", headers / "nvidia/cu13", ROOT / "cuda-mem-torch"
    (folder / "libcuda.so.1").symlink_to(build / "libcuda_mem_sim.so")
    (folder / "libcuda_mem_torch.so").symlink_to(build / "libcuda_mem_torch.so")
    compile_runtime(folder / CUDART, headers, "cudart.c", "refused.c")
    includes = [torch / "include", torch / "include/torch/csrc/api/include", cuda / "include"]
    words = [word for include in includes for word in ("-isystem", str(include))]
    shim = [str(path) for path in sorted((crate / "shim").glob("*.cpp"))]
    program = folder / "program"
    subprocess.run(
        ["c++", "-std=c++20", *flags, "-Wall", "-Wextra", "-Werror", "-DUSE_CUDA", *words, "-I", str(crate / "include"),
         "-I", str(crate / "shim"), "-o", str(program), str(HERE / source), *shim, f"-L{torch / 'lib'}", f"-L{folder}",
         "-lcuda_mem_torch", "-lc10", "-lc10_cuda", str(folder / CUDART), "-Wl,--allow-shlib-undefined"],
        check=True,
    )
    environment = os.environ | {
        "LD_LIBRARY_PATH": f"{folder}:{torch / 'lib'}",
        "CUDA_MEM_DRIVER": str(folder / "libcuda.so.1"),
        "CUDA_MEM_SIM": "devices=2",
    }
    return program, environment


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--headers", type=Path, default=ROOT / "target/wheel/torch-2.11.0")
    parser.add_argument("--build", type=Path, default=ROOT / "target/debug", help="where cargo built the two libraries")
    parser.add_argument("--python", help="an interpreter with PyTorch 2.11 and the wheel")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        program, environment = build_program(folder, arguments.headers, arguments.build, "smoke.cpp", ["-O0", "-g1"])
        # Two name the allocator that ours takes the place of. Where there is one device alone, nobody is asked which is current. The last two cannot make one of PyTorch's streams, or get memory, at first.
        for words, settings, more in (
            ([], "devices=2", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "0", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"}),
            (["late"], "devices=2", {"PYTORCH_ALLOC_CONF": "backend:native"}),
            (["late"], "devices=1", {}),
            (["uncached"], "devices=2", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
            (["uncached"], "devices=2", {"PYTORCH_NO_HIP_MEMORY_CACHING": "1"}),
            (["seeing"], "faults=cuStreamCreateWithPriority:40:2", {}),
            (["refused"], "faults=cuMemCreate:1:700", {}),
        ):
            chosen = environment | {"CUDA_MEM_SIM": settings} | more
            subprocess.run([str(program), *words], env=chosen, check=True, timeout=300)
        if arguments.python:
            (folder / CUDART).unlink()
            # The package brings its own, and there must be one.
            (folder / "libcuda_mem_torch.so").unlink()
            compile_runtime(folder / "libcudart-played.so", arguments.headers, "cudart.c")
            run_pytorch(arguments.python, folder, environment)
    print("well")


if __name__ == "__main__":
    main()
