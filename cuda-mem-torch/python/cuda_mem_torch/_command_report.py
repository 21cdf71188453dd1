"""``python -m cuda_mem_torch report``: snapshots as a page."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from cuda_mem_torch import _drawing, _terminal

_HELP = "draw memory snapshots as one HTML page"
_MORE = """\
A snapshot is what torch.cuda.memory._dump_snapshot() wrote, of PyTorch's own allocator or of this one, in any version of
PyTorch from 2.6 on. Neither PyTorch nor a GPU is needed here. The page needs nothing else: it can be mailed.

To make one, in a program:

    torch.cuda.memory._record_memory_history(stacks="python")
    ...
    torch.cuda.memory._dump_snapshot("a.pickle")
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Makes the command known."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("report", help=_HELP, description=f"{_HELP[0].upper()}{_HELP[1:]}.\n\n{_MORE}", formatter_class=formatter)
    parser.add_argument("recordings", nargs="+", type=Path, metavar="SNAPSHOT", help="a .pickle; or a trace, .csv or .csv.gz")
    parser.add_argument("-o", "--out", type=Path, metavar="PAGE", help="where the page goes; without, beside the snapshot, as .html")
    parser.add_argument("--before", type=Path, metavar="SNAPSHOT", help="an earlier snapshot: the page shows what grew since, line by line")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write the timeline for ui.perfetto.dev")
    parser.add_argument("--folded", type=Path, metavar="FILE", help="write live bytes at the peak by stack, for flame graphs")
    parser.add_argument("--device", type=int, metavar="N", help="the device to show first; without, the one that has most")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draws what was asked for."""
    out = arguments.out
    if out is None and arguments.perfetto is None and arguments.folded is None:
        first = arguments.recordings[0]
        # As a.html, of a.pickle and of a.pickle.gz alike; of run.rank1.pickle it is run.rank1.html.
        out = first.parent / f"{Path(first.name.removesuffix('.gz')).stem}.html"
    inputs = [*arguments.recordings, *([arguments.before] if arguments.before else [])]
    outputs = [path for path in (out, arguments.perfetto, arguments.folded) if path is not None]
    for path in outputs:
        for read in inputs:
            if path.exists() and read.exists() and os.path.samefile(path, read):
                raise ValueError(f"{path} would be written over: it is read")
    progress = _terminal.Progress()
    try:
        _drawing.draw(
            [_drawing.file(path) for path in arguments.recordings],
            page=out and _drawing.Page(out),
            perfetto=arguments.perfetto and _drawing.Page(arguments.perfetto),
            folded=arguments.folded and _drawing.Page(arguments.folded),
            before=arguments.before and _drawing.file(arguments.before),
            device=arguments.device,
            progress=progress.part,
        )
    finally:
        progress.end()
    for path in outputs:
        print(f"{path}: {_terminal.size(path.stat().st_size)}")
    if arguments.open and out is not None and not _terminal.show(out):
        print(f"no browser could be opened here: open {out.resolve().as_uri()}")
    return 0
