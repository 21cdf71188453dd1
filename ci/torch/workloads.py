"""Workloads with the native allocator, with the same and expandable segments, and with ours, by turns:
`python3 ci/torch/workloads.py --peers DIR`, in an environment that has the wheel.

DIR holds `workloads.py` and `workloads_streams.py`; with `--programs` it is `programs.py` beside this file that is run. Everything is imported once; each run is a forked child, so that what is timed is the
workload and not the start of Python. Before the turns one native run, which does not count, warms the files. Of each run: its own
wall time; of it what comes after the model was last moved, which leaves out that the processor makes the weights; every loss that `backward` was called on, what PyTorch reserved and had active at their peaks, and what the driver
says the device held more than before (NVML, looked at from this process every 5 ms).

All workloads have a round before any has the next, and after each round there is its line and the file of `--out` anew: who ends it early has
seen what there was. With `--limit-of-active` each round is followed by one with a limit, and a second table compares each arm with itself. Ends with 1 where a run failed or a workload had no round, where losses are equal natively and differ with ours, and where
ours reserves more than the bounds below. Time without a limit decides nothing: hosts differ more than it may.
"""

import argparse
import ast
import ctypes
import functools
import io
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path

ONE_STREAM = ["gpt2_fixed", "gpt2_varlen", "llama_lora_varlen", "vision_multires", "gnn_sampling"]
MANY_STREAMS = ["prefetch_three_streams"]
MODULES = [
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "peft",
    "torchvision",
    "torch_geometric.nn",
    "timm",
    "transformers.models.t5.modeling_t5",
]
MIB = 1 << 20
ARMS = ("native", "expandable", "cuda-mem")
# What may be reserved for each byte that is reserved with expandable segments, with one stream and with several, and MiB that the driver may
# have given beyond what is reserved, more than natively.
HELD, HELD_BY_MANY, BEYOND = 1.06, 1.12, 64
# What a run with a limit may take of the time without.
LIMITED = 1.10


class Device:
    """What the driver says of the first visible device, without a context in this process."""

    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    def __init__(self):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.check(self.nvml.nvmlInit_v2())
        self.handle = ctypes.c_void_p()
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        if first.isdigit():
            self.check(self.nvml.nvmlDeviceGetHandleByIndex_v2(int(first), ctypes.byref(self.handle)))
        else:
            self.check(self.nvml.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(self.handle)))

    @staticmethod
    def check(code):
        if code != 0:
            raise RuntimeError(f"NVML says {code}")

    def used(self):
        memory = self.Memory()
        self.check(self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory)))
        return memory.used

    def settled(self):
        """Once nothing of the child before is there any more."""
        used = self.used()
        while True:
            time.sleep(0.2)
            if (now := self.used()) == used:
                return now
            used = now


def leaves_the_device_alone(module):
    """Whether a child can still use CUDA after this process has imported it, tried in a process forked for it."""
    prober = os.fork()
    if prober == 0:
        status = 1
        try:
            __import__(module)
            if (user := os.fork()) == 0:
                try:
                    sys.modules["torch"].cuda.init()
                    os._exit(0)
                finally:
                    os._exit(1)
            status = os.waitstatus_to_exitcode(os.waitpid(user, 0)[1])
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(prober, 0)[1]) == 0


def imported():
    """What the workloads use, as far as it is there and forked children can use CUDA after it."""
    import torch

    for module in MODULES:
        if leaves_the_device_alone(module):
            __import__(module)
        else:
            print(f"{module} is imported in each run", flush=True)
    return torch


def child(torch, script, name, arm, history, traces, options, allowed):
    """Runs the script as it is; what it printed and what PyTorch says afterwards."""
    if arm == "cuda-mem":
        import cuda_mem_torch

        cuda_mem_torch.enable(**options)
    elif arm == "expandable":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    # The context is there before the clock starts, with a limit and without.
    torch.cuda.synchronize()
    if allowed is not None:
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / torch.cuda.get_device_properties(0).total_memory))
    losses, backward, to, moved = [], torch.Tensor.backward, torch.nn.Module.to, [0.0]

    def moving(self, *arguments, **named):
        result = to(self, *arguments, **named)
        moved[0] = time.time()
        return result

    def remembering(self, *arguments, **named):
        if self.numel() == 1:
            losses.append(self.detach().clone())
        return backward(self, *arguments, **named)

    def ended(code=0):
        raise SystemExit(code)

    torch.Tensor.backward, torch.nn.Module.to, os_exit, os._exit = remembering, moving, os._exit, ended
    folder = traces if traces and arm == "native" else tempfile.mkdtemp()
    sys.argv = [str(script), name, str(folder)] + (["record"] if history else [])
    printed, sys.stdout = sys.stdout, io.StringIO()
    space = {"__name__": "__main__", "__file__": str(script)}
    try:
        exec(compile(script.read_text(), str(script), "exec"), space)
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.stdout, os._exit = printed, os_exit
    if not losses and "loss" in space:
        losses.append(space["loss"])
    stats = torch.cuda.memory_stats()
    return {
        "backend": torch.cuda.get_allocator_backend(),
        "seconds": space["dt"],
        "steps": space["t0"] + space["dt"] - max(moved[0], space["t0"]),
        "reserved": stats["reserved_bytes.all.peak"],
        "active": stats["active_bytes.all.peak"],
        "out_of_memory": stats["num_ooms"],
        "losses": [float(loss).hex() for loss in losses],
        "last_loss": float(losses[-1]) if losses else None,
    }


def run(torch, device, traces, options, script, name, arm, history, limit, allowed=None):
    """One run in a child, which may hold so many bytes; what came of it, or the reason that nothing did."""
    before = device.settled()
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(read)
        try:
            text = json.dumps(child(torch, script, name, arm, history, traces, options, allowed))
        except BaseException as error:
            text = json.dumps({"failed": traceback.format_exc(), "lacked_memory": isinstance(error, torch.OutOfMemoryError)})
        with os.fdopen(write, "w") as out:
            out.write(text)
        os._exit(0)
    os.close(write)
    peak, over = [0], threading.Event()

    def look():
        while not over.wait(0.005):
            peak[0] = max(peak[0], device.used() - before)

    looker = threading.Thread(target=look)
    looker.start()
    killer = threading.Timer(limit, os.kill, (process, 9))
    killer.start()
    with os.fdopen(read) as answer:
        text = answer.read()
    over.set()
    os.waitpid(process, 0)
    killer.cancel()
    looker.join()
    found = json.loads(text) if text else {"failed": f"it ended without a word, or ran past {limit} s"}
    return found | {"driver": peak[0]}


def interval(ratios, rounds=4000):
    """The 95 % interval of the median of paired ratios."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[int(rounds * 0.025)], medians[int(rounds * 0.975)]


def compared(native, ours):
    """How the losses of all rounds are."""
    if () in native | ours:
        return "none in a run"
    if len(native) > 1:
        return "vary natively"
    return "equal" if native == ours else "differ"


def missed(row):
    """What the row has that it must not have."""
    most = HELD_BY_MANY if row["workload"] in MANY_STREAMS else HELD
    found = {
        f"reserves {row['ours_of_expandable']:.4f} of what expandable segments reserve, more than {most}": row["ours_of_expandable"] > most,
        f"the driver gave {row['driver_beyond_native_mib']:.0f} MiB more, of at most {BEYOND}": row["driver_beyond_native_mib"] > BEYOND,
        f"losses: {row['losses']}": row["losses"] not in ("equal", "vary natively"),
    }
    return [what for what, is_so in found.items() if is_so]


def paired(ours, native, key):
    """The median of the ratios of pairs, and its interval."""
    ratios = [mine[key] / theirs[key] for mine, theirs in zip(ours, native)]
    return statistics.median(ratios), *interval(ratios)


def row_of(name, history, native, expandable, ours):
    """What the rounds say together."""
    beyond = lambda runs: statistics.median(run["driver"] - run["reserved"] for run in runs)
    # Both are PyTorch's own: sums of atomics come out differently with other addresses.
    losses = {tuple(run["losses"]) for run in native + expandable}
    return {
        "workload": name,
        "history": history,
        "rounds": len(native),
        "native_seconds": statistics.median(run["seconds"] for run in native),
        "ours_seconds": statistics.median(run["seconds"] for run in ours),
        "time": paired(ours, native, "seconds"),
        "time_of_steps": paired(ours, native, "steps"),
        "time_of_steps_expandable": paired(expandable, native, "steps"),
        "native_held": max(run["reserved"] / run["active"] for run in native),
        "ours_held": max(run["reserved"] / run["active"] for run in ours),
        # What is active depends on who has streams wait for each other: these can be compared.
        "native_reserved_mib": max(run["reserved"] for run in native) / MIB,
        "expandable_reserved_mib": max(run["reserved"] for run in expandable) / MIB,
        "ours_reserved_mib": max(run["reserved"] for run in ours) / MIB,
        "ours_of_expandable": max(run["reserved"] for run in ours) / max(run["reserved"] for run in expandable),
        # Of the driver's figure the context's own share is what the native allocator does not reserve either.
        "driver_beyond_native_mib": (beyond(ours) - beyond(native)) / MIB,
        "losses": compared(losses, {tuple(run["losses"]) for run in ours}),
        "last_loss": ours[-1]["last_loss"],
    }


class Turns:
    """The runs of a workload so far, natively and with ours by turns."""

    def __init__(self, script, name, history, factor=None):
        self.script, self.name, self.history, self.factor = script, name, history, factor
        self.of, self.is_warm, self.failed = {arm: [] for arm in ARMS}, False, False
        # With a limit: pairs of a run and the one without a limit of the same round, and how many runs failed.
        self.limited, self.lacked, self.allowed = {arm: [] for arm in ARMS}, dict.fromkeys(ARMS, 0), 0

    def __str__(self):
        return f"{self.name}, history" if self.history else self.name

    def run(self, again, arm, limit, end):
        """One run; nothing if it failed, or the time was over before it was."""
        left = end - time.monotonic()
        if left <= 0:
            return None
        found = again(self.script, self.name, arm, self.history, min(limit, left))
        if not found.get("failed"):
            return found
        if time.monotonic() < end:
            self.failed = True
            print(f"failed   {self} {arm}: {found['failed']}", flush=True)
        return None

    def round(self, number, again, limit, end):
        """One run of each, which count if all ended in time; whether they did."""
        self.is_warm = self.is_warm or self.run(again, "native", limit, end) is not None
        if not self.is_warm:
            return False
        found = {}
        # Whoever goes next finds the device as the last left it.
        first = (number - 1) % len(ARMS)
        for arm in ARMS[first:] + ARMS[:first]:
            run = self.run(again, arm, limit, end)
            if run is None:
                return False
            backend = "cuda-mem" if arm == "cuda-mem" else "native"
            assert run["backend"] == backend, run["backend"]
            held, loss = run["reserved"] / run["active"], run["last_loss"]
            print(f"ok       {self} {arm} {number}: {run['seconds']:.3f} s, {run['steps']:.3f} of steps, held {held:.4f}, last loss {loss}", flush=True)
            found[arm] = run
        for arm, run in found.items():
            self.of[arm].append(run)
        if self.factor is not None:
            self.round_with_limit(number, again, limit, end, found)
        return True

    def round_with_limit(self, number, again, limit, end, free):
        """One run of each that may hold the factor times what was active at the peak without a limit, by whoever had the least."""
        self.allowed = int(self.factor * min(run["active"] for run in free.values()))
        first = number % len(ARMS)
        for arm in ARMS[first:] + ARMS[:first]:
            left = end - time.monotonic()
            if left <= 0:
                return
            run = again(self.script, self.name, arm, self.history, min(limit, left), allowed=self.allowed)
            if not run.get("failed"):
                self.limited[arm].append((run, free[arm]))
                print(f"ok       {self} {arm} {number}, {self.allowed / MIB:.0f} MiB: {run['seconds']:.3f} s, {run['out_of_memory']} times out of memory", flush=True)
            elif time.monotonic() < end:
                self.lacked[arm] += 1
                why = run["failed"].strip().splitlines()[-1][:300]
                print(f"{'no room ' if run.get('lacked_memory') else 'failed  '} {self} {arm} {number}, {self.allowed / MIB:.0f} MiB: {why}", flush=True)

    def rows_with_limit(self):
        """What the runs with a limit say, a row for each arm that had any."""
        return [row_with_limit(self, arm) for arm in ARMS if self.limited[arm] or self.lacked[arm]]

    def row(self):
        return row_of(self.name, self.history, *self.of.values()) if self.of["native"] else None


def row_with_limit(turns, arm):
    """The runs of an arm with a limit beside those of the same rounds without."""
    pairs, losses = turns.limited[arm], {tuple(run["losses"]) for run in turns.of["native"]}
    limited, free = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return {
        "workload": turns.name,
        "history": turns.history,
        "arm": arm,
        "factor": turns.factor,
        "allowed_mib": turns.allowed / MIB,
        "rounds": len(pairs) + turns.lacked[arm],
        "failed": turns.lacked[arm],
        "out_of_memory": max((run["out_of_memory"] for run in limited), default=None),
        "seconds": statistics.median(run["seconds"] for run in limited) if pairs else None,
        "time": paired(limited, free, "seconds") if pairs else None,
        "time_of_steps": paired(limited, free, "steps") if pairs else None,
        "losses": compared(losses, {tuple(run["losses"]) for run in limited}) if pairs else "none in a run",
    }


def missed_with_limit(row):
    """What a row with a limit has that it must not have. The others are beside ours for the record."""
    if row["arm"] != "cuda-mem":
        return []
    found = {
        f"{row['failed']} of {row['rounds']} runs failed at {row['allowed_mib']:.0f} MiB": row["failed"] > 0,
        f"with a limit, losses: {row['losses']}": row["losses"] not in ("equal", "vary natively"),
    }
    if row["time"] is not None:
        found[f"takes {row['time'][0]:.3f} of its time without a limit, more than {LIMITED}"] = row["time"][0] > LIMITED
    return [what for what, is_so in found.items() if is_so]


def table_with_limit(rows):
    head = ["workload", "history", "MiB allowed", "arm", "rounds", "failed", "out of memory, at most", "s", "of the time without (95 %)", "of the steps (95 %)", "losses"]
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        ratio = lambda key: "{:.3f} ({:.3f}–{:.3f})".format(*row[key]) if row[key] else "none"
        cells = [
            row["workload"], "on" if row["history"] else "off", f"{row['allowed_mib']:.0f}", row["arm"], str(row["rounds"]), str(row["failed"]),
            str(row["out_of_memory"]), f"{row['seconds']:.2f}" if row["seconds"] is not None else "none", ratio("time"), ratio("time_of_steps"),
            row["losses"],
        ]
        print(f"| {' | '.join(cells)} |")


def option(text):
    """`KEY=VALUE` with a value as Python writes it."""
    key, is_there, value = text.partition("=")
    if not is_there:
        raise argparse.ArgumentTypeError(f"{text!r} is no KEY=VALUE")
    try:
        return key, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return key, value


def take_turns(workloads, rounds, limit, seconds, again, tell):
    """A round of every workload, then the next, so that whenever the time is over all have had about as many. `tell` is told of each."""
    end = time.monotonic() + seconds
    for number in range(1, rounds + 1):
        for turns in workloads:
            if time.monotonic() >= end:
                return
            if not turns.failed and turns.round(number, again, limit, end):
                tell(turns.row())


def line(row):
    cells = [
        row["workload"],
        "on" if row["history"] else "off",
        str(row["rounds"]),
        f"{row['ours_seconds']:.2f}",
        f"{row['native_seconds']:.2f}",
        *("{:.3f} ({:.3f}–{:.3f})".format(*row[key]) for key in ("time", "time_of_steps", "time_of_steps_expandable")),
        f"{row['native_held']:.3f}",
        f"{row['ours_held']:.4f}",
        f"{row['native_reserved_mib']:.0f}",
        f"{row['expandable_reserved_mib']:.0f}",
        f"{row['ours_reserved_mib']:.0f}",
        f"{row['driver_beyond_native_mib']:+.0f}",
        row["losses"],
        f"{row['last_loss']:.9f}" if row["last_loss"] is not None else "none",
    ]
    return f"| {' | '.join(cells)} |"


def table(rows):
    head = ["workload", "history", "rounds", "ours s", "native s", "ours/native (95 %)", "of the steps", "expandable, of the steps", "held, native", "held, ours", "MiB, native", "MiB, expandable", "MiB, ours", "driver, MiB more", "losses", "last loss"]
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    print("\n".join(line(row) for row in rows))


def write(out, rows):
    """All that there is, whole whenever this process ends."""
    partial = out.with_name(out.name + ".partial")
    partial.write_text(json.dumps(rows, indent=1))
    partial.replace(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--peers", type=Path, help="the folder of workloads.py and workloads_streams.py")
    which.add_argument("--programs", action="store_true", help="the programs beside this file, that nobody tuned the allocator for")
    parser.add_argument("--traces", type=Path, help="with --history, the folder that the native runs' recordings are written to")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", help="workloads, by name; all by default")
    parser.add_argument("--history", choices=["off", "on", "both"], default="off", help="whether PyTorch records every allocation")
    parser.add_argument("--deterministic", action="store_true", help="PyTorch's deterministic algorithms: losses can be compared bit for bit, times are others")
    parser.add_argument("--limit", type=int, default=120, help="seconds a run may take")
    parser.add_argument("--seconds", type=float, default=3600, help="after which this ends, with the rounds that were whole by then; the table says how many")
    parser.add_argument("--limit-of-active", type=float, metavar="FACTOR", help="after each round one more of each arm, which may hold so many times what was active at the peak, by whoever had the least")
    parser.add_argument("--enable", type=option, nargs="*", default=[], metavar="KEY=VALUE", help="options that enable() is given with ours")
    parser.add_argument("--out", type=Path, help="the file that the table is written to as JSON, after each round anew")
    arguments = parser.parse_args()
    # Otherwise who asks whether there is a device initialises it, and no child could use it any more.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # Python warns of forking beside threads; none of them holds a lock of ours.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    if arguments.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    began = time.monotonic()
    torch, device = imported(), Device()
    if arguments.deterministic:
        # What has no such way is warned of and stays as it is: then losses vary natively, and the table says so.
        torch.use_deterministic_algorithms(True, warn_only=True)
        warnings.filterwarnings("ignore", ".*deterministic", UserWarning)
    if arguments.programs:
        # It imports PyTorch, which must find the environment as it is by now.
        import programs

        script = Path(__file__).with_name("programs.py")
        MANY_STREAMS.extend(program.__name__ for program in programs.ON_MANY_STREAMS)
        scripts = [(script, [program.__name__ for program in programs.ON_ONE_STREAM + programs.ON_MANY_STREAMS])]
    else:
        scripts = [(arguments.peers / "workloads.py", ONE_STREAM), (arguments.peers / "workloads_streams.py", MANY_STREAMS)]
    workloads = [
        Turns(script, name, history, arguments.limit_of_active)
        for script, names in scripts
        for name in names
        if not arguments.only or name in arguments.only
        for history in {"off": [False], "on": [True], "both": [False, True]}[arguments.history]
    ]

    def rows_so_far():
        return [row for turns in workloads if (row := turns.row())]

    def limited_so_far():
        return [row for turns in workloads for row in turns.rows_with_limit()]

    def tell(row):
        print(line(row), flush=True)
        if arguments.out:
            write(arguments.out, rows_so_far())
            if arguments.limit_of_active is not None:
                write(arguments.out.with_suffix(".limited.json"), limited_so_far())

    again = functools.partial(run, torch, device, arguments.traces, dict(arguments.enable))
    take_turns(workloads, arguments.rounds, arguments.limit, arguments.seconds - (time.monotonic() - began), again, tell)
    rows, limited, failed = rows_so_far(), limited_so_far(), sum(turns.failed for turns in workloads)
    if rows:
        table(rows)
    if limited:
        table_with_limit(limited)
    not_reached = [str(turns) for turns in workloads if not turns.of["native"] and not turns.failed]
    if not_reached:
        print(f"no round in {arguments.seconds:.0f} s: {'; '.join(not_reached)}")
    beyond = [(row["workload"], what) for row in rows for what in missed(row)]
    beyond += [(row["workload"], what) for row in limited for what in missed_with_limit(row)]
    for name, what in beyond:
        print(f"missed   {name}: {what}")
    print(f"{len(rows)} workloads compared, {failed} failed, {len(not_reached)} not reached, {len(beyond)} bounds missed")
    sys.exit(0 if rows and not failed and not not_reached and not beyond else 1)


if __name__ == "__main__":
    main()
