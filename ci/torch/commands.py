"""Steps of `run_all.py` on what the package's commands say: `compare` of a program, and `top` beside NVIDIA's tool. `commands.py NAME`;
`--list` names them. Each prints its figures."""

import functools
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import ARMS, MIB, Beside, Steps, pytorch, until_told

STEPS = Steps()
HERE = Path(__file__).resolve().parent
# Of `programs.py`: what each of them has to be installed for, beside PyTorch.
PROGRAMS = {"point_clouds": None, "vision_transformer": "timm", "translation": "transformers", "detection": "torchvision", "mixture_of_experts": None}
# Steps of each program, and how many of the programs are run: the first that can be.
COUNT, WANTED = 10, 3
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30, "TiB": 1 << 40}
SIZE = r"([\d.]+) (B|[KMGT]iB)"


def module(*words):
    """What a command of the package printed, and how it ended."""
    done = subprocess.run([sys.executable, "-m", "cuda_mem_torch", *map(str, words)], capture_output=True, text=True)
    return done.stdout, done.stderr, done.returncode


def bytes_of(number, unit):
    return float(number) * UNITS[unit]


def compare(program):
    """A program that nobody wrote for it, with the three allocators: the table has a row of each, and the page all three."""
    runnable = [name for name, needed in PROGRAMS.items() if needed is None or importlib.util.find_spec(needed)]
    if program not in runnable[:WANTED]:
        print(f"skipped: {PROGRAMS[program]} is not installed" if program not in runnable else f"skipped: {WANTED} others are run")
        return
    STEPS.at_least("programs", len(runnable), "programs", WANTED)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / f"{program}.html"
        out, errors, code = module("compare", "--steps", COUNT, "--out", page, "--", HERE / "programs.py", program, folder)
        print(out, flush=True)
        assert code == 0, errors[-1500:]
        rows = {row[1]: row for row in re.finditer(rf"^(\S+) +{SIZE} +{SIZE} +([\d.]+) +([\d.]+) +([\d.]+) +(\d+) +(\d+)$", out, re.MULTILINE)}
        assert list(rows) == list(ARMS), out
        live = {arm: bytes_of(row[2], row[3]) for arm, row in rows.items()}
        held = {arm: bytes_of(row[4], row[5]) for arm, row in rows.items()}
        # The same work, but for what each rounds up to.
        STEPS.at_most("peak live, of native's", live["cuda-mem"] / live["native"], "", 1.05)
        STEPS.at_most("peak reserved, of native's", held["cuda-mem"] / held["native"], "", 1.0)
        STEPS.figure("a step, of native's", float(rows["cuda-mem"][7]) / float(rows["native"][7]), "")
        text = page.read_text()
        STEPS.at_most("page", len(text) / 1e6, "MB", 30)
        missing = [arm for arm in ARMS if f'"name":"{arm}"' not in text]
        STEPS.figure("allocators that its page lacks", ", ".join(missing) or "none", "", "none", not missing)


# A step each: together they take longer than a step may.
for program in PROGRAMS:
    STEPS.steps[f"compare_{program}"] = functools.partial(compare, program)


@STEPS.part
def hold(mib):
    """A program with blocks on two streams, in a pool and in a tag."""
    torch = pytorch("cuda-mem")
    import cuda_mem_torch

    def block(share):
        return torch.full((mib * MIB // share,), 1, dtype=torch.uint8, device="cuda")

    kept, pool = [block(2)], torch.cuda.MemPool()
    with torch.cuda.stream(torch.cuda.Stream()):
        kept.append(block(4))
    with torch.cuda.use_mem_pool(pool):
        kept.append(block(8))
    with cuda_mem_torch.tag("weights"):
        kept.append(block(8))
    torch.cuda.synchronize()
    until_told().wait()
    return os.getpid()


def nvidias():
    """Bytes of each process, as NVIDIA's tool says them."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pairs = [line.split(", ") for line in told.splitlines() if line.strip()]
    return {int(pid): int(used) * MIB for pid, used in pairs if used.strip().isdecimal()}


@STEPS.step
def top_beside_nvidias_tool():
    """Two programs: `top` has of each what NVIDIA's tool has, and the streams, pools and tags of both."""
    sizes = (512, 1024)
    with Beside(hold, sizes[0]) as first, Beside(hold, sizes[1]) as second:
        before = nvidias()
        out, errors, code = module("top", "--once")
        after = nvidias()
        print(out, flush=True)
        assert code == 0, errors
        pids = [first.process.pid, second.process.pid]
    rows = {int(row[1]): row for row in re.finditer(rf"^ *(\d+)  \S+ +(?:{SIZE}|–) +(?:{SIZE}|–) +(?:{SIZE}|–) .*$", out, re.MULTILINE)}
    for pid, bytes in before.items():
        if after.get(pid) == bytes:
            row = rows.get(pid)
            shown = bytes_of(row[2], row[3]) if row and row[2] else 0
            # Two decimals of a GiB.
            STEPS.figure(f"process {pid}: {bytes / MIB:.0f} MiB of NVIDIA's tool, in top", shown / MIB, "MiB", "the same", abs(shown - bytes) <= 0.01 * bytes + MIB)
    # In a container NVIDIA's library knows its processes by other numbers; what they say themselves is there all the same.
    STEPS.figure("programs that NVIDIA's tool knows by their numbers", sum(pid in before for pid in pids), "of 2")
    for pid, mib in zip(pids, sizes):
        row = rows[pid]
        live = bytes_of(row[6], row[7]) / MIB
        STEPS.figure(f"process {pid}: live", live, "MiB", f"{mib} MiB and a hundredth", mib * 0.99 <= live <= mib * 1.01)
        # Until the next process, device or note.
        parts = list(itertools.takewhile(lambda line: line.startswith("           "), out[row.end() :].lstrip("\n").split("\n")))
        for wanted in ("default stream", "stream 0x", "pool ", "weights"):
            STEPS.figure(f"process {pid}: a row of {wanted.strip()}", sum(wanted in line for line in parts), "rows", "at least 1", any(wanted in line for line in parts))


if __name__ == "__main__":
    STEPS.main()
