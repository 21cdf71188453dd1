"""Everything about PyTorch that needs a GPU, in one call: `python3 ci/torch/run_all.py --wheel target/wheel/*.whl`.

Installs the wheel into an environment of its own over the machine's packages, without a network; runs each step of `steps.py` in a
process; then the workloads, native and ours by turns. Each step prints `ok` or `failed` with the reason; the last line counts.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ONE_STREAM = ["gpt2_fixed", "gpt2_varlen", "llama_lora_varlen", "vision_multires", "gnn_sampling"]
MANY_STREAMS = ["prefetch_three_streams"]


class Results:
    """What ran and what came of it."""

    def __init__(self):
        self.rows = []

    def add(self, name, state, reason="", seconds=0.0):
        self.rows.append({"step": name, "state": state, "reason": reason, "seconds": round(seconds, 1)})
        print(f"{state:8} {name} ({seconds:.1f} s){': ' + reason if reason else ''}", flush=True)

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
            return done.stdout
        if done.returncode == 0:
            self.add(name, "skipped", last(done.stdout), seconds)
            return None
        self.add(name, "failed", f"rc {done.returncode}: {last(done.stderr) or last(done.stdout)}", seconds)
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


def figures(text):
    """What a workload printed."""
    found = {key: float(value) for key, value in re.findall(r"\b(secs|ratio|to_active|n_alloc)=([0-9.]+)", text)}
    loss = re.search(r"last loss (\S+)", text)
    return found | {"loss": loss[1] if loss else None}


def interval(ratios, rounds=4000):
    """The 95 % interval of the median of paired ratios."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[int(rounds * 0.025)], medians[int(rounds * 0.975)]


def workload(results, python, folder, script, name, rounds, limit):
    """Native and ours by turns; a row of the table."""
    native, ours = [], []
    for turn in range(rounds):
        pair = [(native, False), (ours, True)]
        # Whoever goes second finds warmer files.
        for into, is_ours in pair if turn % 2 == 0 else reversed(pair):
            label = f"workload {name} {'ours' if is_ours else 'native'} {turn + 1}"
            command = [str(python), str(script), name, tempfile.gettempdir()]
            text = results.run(label, command, environment_of(folder, is_ours), limit)
            if text is None:
                return None
            into.append(figures(text))
    ratios = [mine["secs"] / theirs["secs"] for mine, theirs in zip(ours, native)]
    low, high = interval(ratios)
    return {
        "workload": name,
        "rounds": rounds,
        "time": round(statistics.median(ratios), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "native_reserved": native[0]["ratio"],
        "ours_reserved": max(run["ratio"] for run in ours),
        "ours_reserved_to_active": max(run.get("to_active", run["ratio"]) for run in ours),
        "losses_equal": {run["loss"] for run in native} == {run["loss"] for run in ours},
        "loss": ours[0]["loss"],
    }


def table(rows):
    print("\n| workload | time ours/native (95 %) | reserved/allocated native | ours | losses equal |\n|---|---|---|---|---|")
    for row in rows:
        time_text = f"{row['time']:.3f} ({row['low']:.3f}–{row['high']:.3f})"
        print(f"| {row['workload']} | {time_text} | {row['native_reserved']:.3f} | {row['ours_reserved']:.3f} | {row['losses_equal']} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--peers", type=Path, help="the folder of workloads.py and workloads_streams.py; without, none are run")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", help="steps and workloads, by name; all by default")
    parser.add_argument("--out", type=Path, help="where results.json goes")
    parser.add_argument("--limit", type=int, default=240, help="seconds a step may take")
    arguments = parser.parse_args()
    results, rows = Results(), []
    wanted = lambda name: not arguments.only or name in arguments.only
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "environment"
        python = install(results, arguments.wheel.resolve(), folder)
        listed = subprocess.run([sys.executable, str(HERE / "steps.py"), "--list"], capture_output=True, text=True, check=True)
        for step in filter(wanted, listed.stdout.split()):
            command = [str(python), str(HERE / "steps.py"), step]
            results.run(step, command, environment_of(folder, step == "by_variable"), arguments.limit)
        for script, names in (("workloads.py", ONE_STREAM), ("workloads_streams.py", MANY_STREAMS)):
            for name in filter(wanted, names if arguments.peers else []):
                row = workload(results, python, folder, arguments.peers / script, name, arguments.rounds, arguments.limit)
                rows += [row] if row else []
    if rows:
        table(rows)
    states = [row["state"] for row in results.rows]
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "results.json").write_text(json.dumps({"steps": results.rows, "workloads": rows}, indent=1))
    print(f"{states.count('ok')} passed, {states.count('failed')} failed, {states.count('skipped')} skipped")
    sys.exit(1 if "failed" in states else 0)


if __name__ == "__main__":
    main()
