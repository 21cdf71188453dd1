"""``python -m cuda_mem_torch compare``: one program with each allocator."""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Sequence

from cuda_mem_torch import _drawing, _terminal
from cuda_mem_torch._compare_runs import ALLOCATORS, EXPANDABLE, NATIVE, OURS, Run, Runner
from cuda_mem_torch._errors import CudaMemError

_HELP = "run a program with PyTorch's allocator, with expandable segments and with this one"
_MORE = """\
    python -m cuda_mem_torch compare --steps 50 -- train.py --epochs 1
    python -m cuda_mem_torch compare -- -m my_package.train

The program runs by turns with each allocator, in processes of its own, and one more time with each for the page, with its
history recorded. A step is a step of the program's first optimizer, timed from the third one to the program's end; the
device's work is waited for before and after. --steps leaves out what follows the last step, such as saving a model.
Programs that start others (torchrun) are not seen into: name the script of one rank.

Columns: PEAK LIVE is the most that tensors had, PEAK RESERVED the most that the allocator had from the driver, RETRIES how
often memory had to be given back first, FAILED how many requests failed, and RUNS IN, with --limit, the smallest limit at
which the program was seen to run. Figures are sums over the devices of the process, and medians of the rounds.
"""

# What stands behind the row of an allocator with which a run did not go well.
_ENDS = {"memory": "out of memory", "error": "failed", "crash": "crashed", "timeout": "timed out"}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Makes the command known."""
    formatter = argparse.RawDescriptionHelpFormatter
    usage = "python -m cuda_mem_torch compare [options] -- train.py ..."
    parser = commands.add_parser("compare", help=_HELP, usage=usage, description=f"{_HELP[0].upper()}{_HELP[1:]}.\n\n{_MORE}", formatter_class=formatter)
    parser.add_argument("--steps", type=_count, metavar="N", help="end the program after N steps; at least 4, of which 2 are not timed")
    parser.add_argument("--rounds", type=_count, default=1, metavar="N", help="how many times with each allocator (default: 1)")
    parser.add_argument("--limit", action="store_true", help="search for the smallest limit at which it runs: some more runs with each")
    parser.add_argument("--allocators", type=_names, default=ALLOCATORS, metavar="A,B", help=f"which ones (default: {','.join(ALLOCATORS)})")
    parser.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="how long a run may take (default: as long as it takes)")
    parser.add_argument("-o", "--out", type=Path, default=Path("compare.html"), metavar="PAGE", help="where the page goes (default: compare.html)")
    parser.add_argument("--no-page", action="store_true", help="no page, and no runs for it")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM", help="a script or -m MODULE, with its arguments")
    parser.set_defaults(run=run, parser=parser)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in ALLOCATORS:
            raise argparse.ArgumentTypeError(f"{name!r} is no allocator; accepted: {', '.join(ALLOCATORS)}")
    return names


def program_of(words: list[str]) -> list[str]:
    """The program as the child takes it: without what parts it from the options, and without the interpreter."""
    words = words[1:] if words[:1] == ["--"] else words
    if words and re.fullmatch(r"python[\d.]*[dt]*(-dbg)?", Path(words[0]).name):
        words = words[1:]
    if not words or words == ["-m"]:
        raise ValueError("no program is named: compare -- train.py, or compare -- -m MODULE")
    if words[0] != "-m" and not Path(words[0]).is_file():
        raise ValueError(f"there is no script {words[0]}: compare -- train.py, or compare -- -m MODULE")
    return words


def run(arguments: argparse.Namespace) -> int:
    """Runs the program and prints the table. Raises ``CudaMemError`` if it failed with an allocator, or if there is nothing to compare."""
    program = program_of(arguments.program)
    if arguments.steps is not None and arguments.steps < 4:
        raise ValueError(f"--steps is {arguments.steps}; at least 4: the first 2 are not timed")
    if not arguments.no_page and (arguments.out.is_dir() or not arguments.out.parent.is_dir()):
        mistaken = f"{arguments.out} is a folder, not a page"
        raise ValueError(mistaken if arguments.out.is_dir() else f"there is no folder {arguments.out.parent} for the page")
    progress = _terminal.Progress()
    with tempfile.TemporaryDirectory(prefix="cuda-mem-compare-") as folder:
        runner = Runner(program, Path(folder), arguments.steps, arguments.timeout)
        runner.tick = lambda what, seconds: progress.say(f"{what}: {seconds:.0f} s")
        try:
            return _compare(arguments, runner, progress)
        finally:
            progress.end()


def _compare(arguments: argparse.Namespace, runner: Runner, progress: _terminal.Progress) -> int:
    runs: dict[str, list[Run]] = {name: [] for name in arguments.allocators}
    failures: list[str] = []
    for turn in range(1, arguments.rounds + 1):
        for name in arguments.allocators:
            what = f"{name} round {turn} of {arguments.rounds}"
            done = runner.run(name, what)
            runs[name].append(done)
            if not done.went_well:
                progress.end()
                failures.append(f"{what}: {done.text}")
                print(f"{failures[-1]}\n{runner.log_of(what)}", file=sys.stderr)
    every = [done for of_one in runs.values() for done in of_one]
    failed = f"{len(failures)} of {len(every)} runs failed: {'; '.join(failures)}"
    # What ended before its first step says nothing of the allocator.
    told = [done for done in every if done.went_well or done.steps]
    if not told:
        raise CudaMemError(f"there is nothing to compare: no run left figures of a finished step. {failed}")
    if not any(done.peak_reserved for done in told):
        nothing = "the program allocated nothing on a GPU in its own process: does it start others? Name the script of one rank"
        raise CudaMemError(f"{nothing}. {failed}" if failures else nothing)
    limits = {name: runner.smallest_limit(name, of_one[-1]) for name, of_one in runs.items() if arguments.limit and of_one[-1].went_well}
    progress.end()
    some = max(told, key=lambda done: done.steps)
    print("   ".join(filter(None, (" ".join(runner.program), f"PyTorch {some.torch}", some.device, steps_text(some)))))
    # Before the runs for the page, which may fail as any.
    print(f"\n{_terminal.table(rows(runs, limits))}\n", flush=True)
    page = None if arguments.no_page or failures else _draw(arguments.out, arguments.allocators, runner, progress)
    print(f"{summary(runs)}{'' if page is None else f' Page: {page}'}")
    if failures:
        raise CudaMemError(failed)
    return 0


def steps_text(run: Run) -> str:
    """How many steps a run had, and whether they were too few for their time."""
    if not run.steps:
        return "no step of an optimizer was seen"
    count = f"{run.steps} step{'s' * (run.steps > 1)}"
    return count if run.seconds_a_step is not None else f"{count}, too few to be timed (at least 3)"


def rows(runs: dict[str, list[Run]], limits: dict[str, int]) -> list[list[str]]:
    """The table, its titles first."""
    titles = ["ALLOCATOR", "PEAK LIVE", "PEAK RESERVED", "RESERVED / LIVE", "S / STEP", "S / RUN", "RETRIES", "FAILED"]
    table = [titles + ["RUNS IN"] * bool(limits)]
    for name, of_one in runs.items():
        if not any(done.has_figures for done in of_one):
            cells = [name] + ["-"] * (len(titles) - 1)
        else:
            live, reserved, steps, seconds, retries, failed = _medians(of_one)
            cells = [name, _terminal.size(live), _terminal.size(reserved), f"{reserved / live:.3f}" if live else "-"]
            cells += ["-" if steps is None else f"{steps:.4f}", f"{seconds:.1f}", f"{retries:.0f}", f"{failed:.0f}"]
        if limits:
            cells.append(_terminal.size(limits[name]) if name in limits else "-")
        ends = [_ENDS[done.end] for done in of_one if done.end in _ENDS]
        # The last one, also where a later round went well.
        table.append(cells + ends[-1:])
    width = max(map(len, table))
    return [row + [""] * (width - len(row)) for row in table]


def _medians(runs: Sequence[Run]) -> tuple[float, float, float | None, float, float, float]:
    runs = [done for done in runs if done.has_figures]
    timed = [done.seconds_a_step for done in runs if done.seconds_a_step is not None]
    live, reserved, seconds, retries, failed = (
        statistics.median(getattr(done, name) for done in runs) for name in ("peak_live", "peak_reserved", "seconds", "retries", "failed")
    )
    return live, reserved, statistics.median(timed) if timed else None, seconds, retries, failed


def summary(runs: dict[str, list[Run]]) -> str:
    """What another allocator would help, in a sentence."""
    if not all(done.went_well for of_one in runs.values() for done in of_one):
        return "Not every run came to its end: see above."
    other = next((name for name in (NATIVE, EXPANDABLE) if name in runs), None)
    if OURS not in runs or other is None:
        return "Done."
    (_, ours, own_step, own_seconds, *_), (_, theirs, step, seconds, *_) = _medians(runs[OURS]), _medians(runs[other])
    less = f"{100 * abs(1 - ours / theirs):.0f} % {'less' if ours <= theirs else 'more'}" if theirs else "as much"
    took = f"a step took {own_step / step:.3f}" if own_step and step else f"the run took {own_seconds / seconds:.3f}"
    return f"{OURS} reserved {less} memory than {other}, and {took} times as long."


def _draw(page: Path, names: Sequence[str], runner: Runner, progress: _terminal.Progress) -> Path:
    recordings = []
    for name in names:
        snapshot = runner.folder / f"{name}.pickle"
        what = f"{name} recorded"
        done = runner.run(name, what, record=snapshot)
        if not done.has_figures:
            raise CudaMemError(f"{what}: {done.text}\n{runner.log_of(what)}")
        recordings.append(_drawing.file(snapshot, name))
    try:
        _drawing.draw(recordings, page=_drawing.Page(page), title=" ".join(runner.program), progress=progress.part)
    finally:
        progress.end()
    return page
