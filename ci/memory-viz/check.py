"""Opens a snapshot of `cargo run -p cuda-mem-pool --example snapshot FILE` with PyTorch's own tools.

    python ci/memory-viz/check.py FILE [MemoryViz.js]

Needs PyTorch of any kind, without a GPU; where there is none it says so and checks nothing. With the web viewer's script, which
is torch/utils/viz/MemoryViz.js of PyTorch's repository, it also runs the viewer's own reader over the file, in node.
"""

import json
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile

VIEWER = """
const load = code => new Function('buffer', code);
const [, , code, file] = process.argv;
const fs = require('fs');
const bytes = fs.readFileSync(file);
const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
const snapshot = load(fs.readFileSync(code, 'utf8'))(buffer);
console.log(JSON.stringify(snapshot, (_, v) => typeof v === 'bigint' ? 'bigint ' + v : v));
"""


def memory_viz(*arguments):
    command = [sys.executable, "-m", "torch.cuda._memory_viz", *map(str, arguments)]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def function(source, name):
    """The text of a function of the viewer."""
    return re.search(rf"^function {name}\(.*?^}}", source, re.S | re.M).group()


def in_the_viewer(script, snapshot, folder):
    source = script.read_text()
    reader = "unpickleData" if "function unpickleData(" in source else "unpickle"
    names = ["version_space", "annotate_snapshot", reader]
    body = "\n".join(function(source, name) for name in names)
    code = folder / "viewer.js"
    code.write_text(f"{body}\nconst snapshot = {reader}(buffer); annotate_snapshot(snapshot); return snapshot;")
    main = folder / "main.js"
    main.write_text(VIEWER)
    output = subprocess.run(["node", main, code, snapshot], check=True, text=True, stdout=subprocess.PIPE).stdout
    seen = json.loads(output)
    assert "bigint" not in output, "a number that the viewer cannot add to others"
    actions = [entry["action"] for entry in seen["device_traces"][0]]
    ours = pickle.loads(snapshot.read_bytes())
    recorded = [entry["action"] for entry in ours["device_traces"][0]]
    # A free that completes at once becomes one event there.
    assert actions.count("free") > 0, actions
    for action in ["alloc", "segment_map", "segment_unmap", "oom"]:
        assert actions.count(action) == recorded.count(action) > 0, actions
    sizes = [[block["size"] for block in segment["blocks"]] for segment in ours["segments"]]
    assert [[block["size"] for block in segment["blocks"]] for segment in seen["segments"]] == sizes
    print("web viewer: read and annotated", len(actions), "events")


def main():
    snapshot = pathlib.Path(sys.argv[1]).resolve()
    try:
        import torch
    except ImportError:
        return print("SKIPPED: there is no torch to open the snapshot with")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        stats = memory_viz("stats", snapshot)
        segments = pickle.loads(snapshot.read_bytes())["segments"]
        total = lambda key: sum(segment[key] for segment in segments) / (1 << 20)
        expected = [f"segments: {len(segments)}", f"total_reserved: {total('total_size'):.1f}MiB"]
        for line in [*expected, f"total_allocated: {total('allocated_size'):.1f}MiB"]:
            assert line in stats, stats
        trace = memory_viz("trace", snapshot)
        assert "# 1.0GiB requested" in trace, trace
        for plot in ["trace_plot", "segment_plot"]:
            page = folder / f"{plot}.html"
            memory_viz(plot, snapshot, "-o", page)
            assert "snapshot.pickle" in page.read_text(), plot
        print(f"torch {torch.__version__}: stats, trace, trace_plot and segment_plot open it")
        if len(sys.argv) > 2:
            in_the_viewer(pathlib.Path(sys.argv[2]), snapshot, folder)


main()
