"""PyTorch's allocator from C++, native and ours: `python3 ci/torch/allocbench.py --peers DIR`, in an environment that has the wheel.

Builds DIR's `allocbench.cpp` against the installed PyTorch and calls it in three processes: native, ours, and ours while a thread reads
`torch.cuda.memory_stats()` without pause. Needs a C++ compiler. Prints nanoseconds for a free and an allocation, ours over native beside
what is wanted, and what the reader costs: it is told and decides nothing. Ends with 1 where there is nothing to tell.
"""

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

LINE = re.compile(r"^(\S+)\s+threads=\s*(\d+)\s+torch\s+([0-9.]+)", re.MULTILINE)


def build(source, folder):
    """The program as a library, so that it can be called where the allocator was enabled."""
    from torch.utils.cpp_extension import CUDA_HOME, include_paths, library_paths

    cuda = Path(CUDA_HOME or "/usr/local/cuda")
    out = folder / "allocbench.so"
    include = [f"-I{path}" for path in [*include_paths(), cuda / "include"]]
    library = [f"-L{path}" for path in [*library_paths(), cuda / "lib64"]]
    flags = ["-O2", "-std=c++17", "-fPIC", "-shared"]
    names = ["-lc10_cuda", "-lc10", "-lcudart", "-lpthread"]
    subprocess.run(["c++", *flags, *include, str(source), *library, *names, "-o", str(out)], check=True)
    return out


def measure(library, *way):
    """What the program printed, in a process of its own."""
    command = [sys.executable, __file__, "--call", str(library), *way]
    text = subprocess.run(command, capture_output=True, text=True)
    found = {(pattern, int(threads)): float(ns) for pattern, threads, ns in LINE.findall(text.stdout)}
    if text.returncode != 0 or not found:
        sys.exit(f"{' '.join(way) or 'native'}: rc {text.returncode}\n{text.stdout}\n{text.stderr}")
    return found


def call(library, ours, is_read):
    import torch

    def read():
        while True:
            torch.cuda.memory_stats()

    if ours:
        import cuda_mem_torch

        cuda_mem_torch.enable()
    torch.cuda.init()
    if is_read:
        threading.Thread(target=read, daemon=True).start()
    ctypes.CDLL(library).main()
    sys.stdout.flush()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, help="the folder of allocbench.cpp")
    parser.add_argument("--call", help=argparse.SUPPRESS)
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        call(arguments.call, arguments.ours, arguments.read)
    if arguments.peers is None:
        parser.error("--peers is missing")
    with tempfile.TemporaryDirectory() as folder:
        library = build(arguments.peers / "allocbench.cpp", Path(folder))
        native, ours, read = measure(library), measure(library, "--ours"), measure(library, "--ours", "--read")
    print("| pattern | threads | native, ns | ours, ns | ours/native | wanted | statistics read, ns | read/not |\n|---|---|---|---|---|---|---|---|")
    compared, missed = 0, 0
    for (pattern, threads), theirs in native.items():
        ratio, wanted = ours[pattern, threads] / theirs, {1: 1 / 4, 16: 1 / 50}.get(threads)
        compared, missed = compared + (wanted is not None), missed + (wanted is not None and ratio > wanted)
        beside, alone = read[pattern, threads], ours[pattern, threads]
        print(f"| {pattern} | {threads} | {theirs:.1f} | {alone:.1f} | {ratio:.4f} | {'' if wanted is None else f'≤ {wanted:.2f}'} | {beside:.1f} | {beside / alone:.3f} |")
    print(f"{len(native)} rows, {missed} of {compared} above what is wanted")
    sys.exit(0 if compared else 1)


if __name__ == "__main__":
    main()
