#!/usr/bin/env python3
"""Draws docs/reserved.svg: what three allocators reserve for a recorded program while it runs, and what it has active.

    for a in native expandable caching; do
        cargo xtask replay ci/traces/gpt2_varlen.csv.gz --backend model --lag 100 --allocator $a --calls target/$a.calls.csv.gz
    done
    python3 ci/traces/picture.py target/native.calls.csv.gz target/expandable.calls.csv.gz target/caching.calls.csv.gz > docs/reserved.svg
"""
import gzip, sys

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 280, 34, 30, 144, 34
POINTS = 240
LINES = [("native", "native", 4), ("expandable segments", "expandable", -2), ("cuda-mem", "ours", 12)]  # label, class, where the label is


def series(path):
    """Reserved and active bytes after each allocation."""
    reserved, active, held, blocks, out = 0, 0, {}, {}, []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            event = line.rstrip().split(",")[1:]
            kind = event[0]
            if kind in ("create", "malloc"):
                held[kind, event[1]] = int(event[2])
                reserved += int(event[2])
            elif kind in ("release", "mfree"):
                reserved -= held.pop(("create" if kind == "release" else "malloc", event[1]))
            elif kind == "alloc":
                blocks[event[1]] = int(event[3])
                active += int(event[3])
                out.append((reserved, active))
            elif kind == "free" and len(event) == 2 or kind == "done":
                active -= blocks.pop(event[1], 0)
    return out


def path(values, top):
    """The highest value of each piece, as steps of a line."""
    x = lambda i: LEFT + (WIDTH - LEFT - RIGHT) * i / POINTS
    y = lambda value: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top
    pieces = [max(values[i * len(values) // POINTS : max((i + 1) * len(values) // POINTS, i * len(values) // POINTS + 1)]) for i in range(POINTS)]
    return "M" + "L".join(f"{x(i):.0f} {y(v):.0f}H{x(i + 1):.0f}" for i, v in enumerate(pieces)), y(pieces[-1])


def main():
    runs = [series(name) for name in sys.argv[1:4]]
    gib = 1 << 30
    top = (max(max(r for r, _ in run) for run in runs) // gib + 1) * gib
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif" font-size="12">')
    print("<title>Memory reserved while GPT-2 trains on batches of any length</title>")
    print("<style>text{fill:#57606a}.grid{stroke:#8886;stroke-width:.5}path{fill:none;stroke-width:2}.native{stroke:#d1495b}.expandable{stroke:#bf8700}.ours{stroke:#1a7f64}.active{fill:#8883;stroke:none}"
          "@media(prefers-color-scheme:dark){text{fill:#a6adb6}.native{stroke:#ff7b88}.expandable{stroke:#e3b341}.ours{stroke:#3fc9a0}}</style>")
    print(f'<text x="{LEFT}" y="16">GiB reserved, GPT-2 on batches of any length as recorded (model of the driver, device 100 operations behind)</text>')
    step = max(1, top // gib // 5)
    for value in range(0, top // gib + 1, step):
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value * gib / top
        print(f'<path class="grid" d="M{LEFT} {y:.0f}H{WIDTH - RIGHT}"/><text x="{LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{value}</text>')
    area, _ = path([active for _, active in runs[2]], top)
    floor = HEIGHT - BOTTOM
    print(f'<path class="active" d="{area}V{floor}H{LEFT}Z"/>')
    for (label, name, below), run in zip(LINES, runs):
        line, y = path([reserved for reserved, _ in run], top)
        print(f'<path class="{name}" d="{line}"/><text x="{WIDTH - RIGHT + 6}" y="{y + below:.0f}">{label}</text>')
    print(f'<text x="{WIDTH - RIGHT + 6}" y="{floor - 24}">in use (shaded)</text>')
    print(f'<text x="{(WIDTH - RIGHT + LEFT) // 2}" y="{HEIGHT - 10}" text-anchor="middle">time, in allocations ({len(runs[0]):,})</text>')
    print("</svg>")


main()
