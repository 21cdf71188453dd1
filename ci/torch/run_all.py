"""Everything about PyTorch that needs a GPU, in one call: `python3 ci/torch/run_all.py --wheel target/wheel/*.whl`.

Installs the wheel into an environment of its own over the machine's packages, without a network; runs each step of `steps.py` and of the
files of measured steps in a process, which need a few GiB or the whole device, and steps on two devices are skipped where there is one; then
minutes of mixed work, the workloads by turns with the native allocator, and its C++ benchmark. Each step prints `ok` or `failed` with the
reason, and its figures; the last line counts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Files of steps: those of the second print figures, and may take twice as long.
STEPS, MEASURED = ["steps.py"], ["libraries.py", "sharing.py", "neighbours.py", "pinned.py", "sleep.py", "registered.py", "examples.py", "commands.py"]
# Programs of their own, which print tables.
COMPARED = ["mixed", "workloads", "allocbench"]


class Results:
    """What ran and what came of it."""

    def __init__(self):
        self.rows = []

    def add(self, name, state, reason="", seconds=0.0):
        self.rows.append({"step": name, "state": state, "reason": reason, "seconds": round(seconds, 1)})
        print(f"{state:8} {name} ({seconds:.1f} s){': ' + reason if reason else ''}", flush=True)

    def tell(self, printed):
        """The figures of the step that was added last."""
        self.rows[-1]["printed"] = printed.strip().splitlines()
        for line in self.rows[-1]["printed"]:
            print(f"    {line}", flush=True)

    def run(self, name, command, environment, limit):
        """One step; what it printed."""
        began = time.monotonic()
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired as error:
            text = (error.stdout or b"").decode(errors="replace")
            self.add(name, "failed", f"it ran past {limit} s; it had printed: {last(text)}", limit)
            return None
        seconds = time.monotonic() - began
        if done.returncode == 0 and not done.stdout.startswith("skipped"):
            self.add(name, "ok", "", seconds)
            self.tell(done.stdout)
            return done.stdout
        if done.returncode == 0:
            self.add(name, "skipped", last(done.stdout), seconds)
            return None
        self.add(name, "failed", f"rc {done.returncode}: {last(done.stderr) or last(done.stdout)}", seconds)
        self.tell(done.stdout)
        print("\n".join("    " + line for line in done.stderr.strip().splitlines()[-25:]), flush=True)
        return None


def last(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:400] if lines else ""


def environment_of(folder, ours):
    """The process's environment, with the allocator or without."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_MEM", "PYTORCH_"))}
    environment |= {"PYTHONUNBUFFERED": "1", "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    environment["PATH"] = f"{folder / 'bin'}:{environment['PATH']}"
    if ours:
        environment["CUDA_MEM_TORCH"] = "1"
    return environment


def install(results, wheel, folder):
    """The wheel in an environment over the machine's packages; its interpreter."""
    python = folder / "bin/python3"
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(folder)], check=True)
    site = next((folder / "lib").glob("python3*/site-packages"))
    # Of a virtual environment the new one would see the system's packages alone.
    (site / "parent.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")) + "\n")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    results.run("install", [*pip, "--target", str(site), str(wheel)], dict(os.environ), 300)
    results.run("fits", [str(python), "-m", "cuda_mem_torch"], environment_of(folder, False), 300)
    return python


def beside(results, python, folder, arguments):
    """What compares with the native allocator or takes long: programs of their own, which print their tables."""
    peers = arguments.peers
    programs = {
        "mixed": ["mixed.py", "--seconds", str(arguments.seconds)],
        "workloads": peers and ["workloads.py", "--peers", str(peers), "--rounds", str(arguments.rounds), "--history", "both", "--seconds", str(arguments.long_limit * 0.95)],
        "allocbench": peers and ["allocbench.py", "--peers", str(peers)],
    }
    for name, command in programs.items():
        if arguments.only and name not in arguments.only:
            continue
        if not command:
            results.add(name, "skipped", "--peers does not name the folder of workloads")
            continue
        script, *options = command
        began = time.monotonic()
        try:
            # They show how far they are themselves.
            done = subprocess.run([str(python), str(HERE / script), *options], env=environment_of(folder, False), timeout=arguments.long_limit)
            state, reason = ("ok", "") if done.returncode == 0 else ("failed", f"rc {done.returncode}")
        except subprocess.TimeoutExpired:
            state, reason = "failed", f"it ran past {arguments.long_limit} s"
        results.add(name, state, reason, time.monotonic() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--peers", type=Path, help="the folder of workloads.py, workloads_streams.py and allocbench.cpp; without, none are run")
    parser.add_argument("--rounds", type=int, default=9, help="of each workload")
    parser.add_argument("--seconds", type=float, default=480, help="of training and generation in one process")
    parser.add_argument("--only", nargs="*", help="steps, mixed, workloads and allocbench, by name; all by default")
    parser.add_argument("--out", type=Path, help="where results.json goes")
    parser.add_argument("--limit", type=int, default=240, help="seconds a step may take; one with figures twice as many")
    parser.add_argument("--long-limit", type=int, default=3600, help="seconds that each of the programs which compare may take")
    arguments = parser.parse_args()
    results = Results()
    # Which file a step is in.
    steps = {}
    for file in STEPS + MEASURED:
        listed = subprocess.run([sys.executable, str(HERE / file), "--list"], capture_output=True, text=True, check=True).stdout.split()
        assert not steps.keys() & set(listed), f"two steps of one name: {steps.keys() & set(listed)}"
        steps |= dict.fromkeys(listed, file)
    if unknown := set(arguments.only or []) - {*steps, *COMPARED}:
        parser.error(f"no such step: {', '.join(sorted(unknown))}; accepted: {', '.join([*steps, *COMPARED])}")
    wanted = lambda name: not arguments.only or name in arguments.only
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "environment"
        python = install(results, arguments.wheel.resolve(), folder)
        for step in filter(wanted, steps):
            command = [str(python), str(HERE / steps[step]), step]
            limit = arguments.limit * (2 if steps[step] in MEASURED else 1)
            results.run(step, command, environment_of(folder, step == "by_variable"), limit)
        beside(results, python, folder, arguments)
    states = [row["state"] for row in results.rows]
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "results.json").write_text(json.dumps({"steps": results.rows}, indent=1))
    print(f"{states.count('ok')} passed, {states.count('failed')} failed, {states.count('skipped')} skipped")
    sys.exit(1 if "failed" in states else 0)


if __name__ == "__main__":
    main()
