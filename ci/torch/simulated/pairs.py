"""Instructions of a free and an allocation through PyTorch's interfaces, native and ours, on the simulated driver, where streams cost
nothing: `python3 ci/torch/simulated/pairs.py --headers DIR`. Needs Valgrind, a C++ compiler and the libraries as a wheel has them:
`cargo build --profile bundle -p cuda-mem-torch-library -p cuda-mem-sim-library`. DIR is as for `run.py`.

It counts what is the same on every run and every machine; what takes time on a GPU's host `ci/torch/allocbench.py` measures."""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

from run import ROOT, build_program

FLAGS = ["-O2", "-g1", "-DNDEBUG", "-fno-plt"]
PATTERNS = [("512 B", 0), ("to 512 KiB", 10), ("to 32 MiB", 16)]
WAYS = [("raw", "native"), ("raw", "ours"), ("tensor", "native"), ("tensor", "ours"), ("library", "ours")]


def instructions(program, environment, whose, way, doublings, count, threads):
    """Of all that `pairs` does in all threads, the first round left to warm up being the same for both counts."""
    words = ["valgrind", "--tool=callgrind", "--toggle-collect=pairs", "--callgrind-out-file=/dev/null"]
    words += [str(program), whose, way, str(doublings), str(count), str(threads)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--headers", type=Path, default=ROOT / "target/wheel/torch-2.11.0")
    parser.add_argument("--build", type=Path, default=ROOT / "target/bundle", help="where cargo built the two libraries")
    parser.add_argument("--threads", type=int, default=1, help="each on a stream of its own, one after the other as Valgrind runs them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        program, environment = build_program(Path(scratch), arguments.headers, arguments.build, "pairs.cpp", FLAGS)
        # Of one device, and small: a debugger's host has few addresses.
        environment["CUDA_MEM_SIM"] = f"no-data,no-misuse,memory={arguments.threads}GiB"
        print("| pattern | " + " | ".join(f"{way}, {whose}" for way, whose in WAYS) + " |")
        print("|---" * (len(WAYS) + 1) + "|")
        for pattern, doublings in PATTERNS:
            counted = []
            for way, whose in WAYS:
                few, many = (instructions(program, environment, whose, way, doublings, count, arguments.threads) for count in (2048, 10240))
                counted.append((many - few) / 8192 / arguments.threads)
            print(f"| {pattern} | " + " | ".join(f"{count:.0f}" for count in counted) + " |", flush=True)


if __name__ == "__main__":
    main()
