#!/usr/bin/env python3
"""Writes allocation traces of programs that nobody recorded: `python3 ci/traces/generate.py OUT_DIR`.

The recorded traces choose the knobs of the allocator, so they cannot tell whether it does for programs that are only like them.
These do: programs as one would write them, and the recorded ones with other sizes, one behind the other, or two on two streams. Sixteen
of both are written with all sizes ten to sixty times smaller too, as `small_…`. What is written is the same every time.
"""

import argparse
import gzip
import random
from pathlib import Path

from programs import MIB, WRITTEN, Program, buckets

SECONDS_EACH = 60e-6  # Of an operation; recorded programs take 69 to 609 microseconds,
BYTES_A_SECOND = 0.2e12  # and allocate 0.05 to 0.21 TB a second.
RECORDED = ["gnn_sampling", "gpt2_fixed", "gpt2_varlen", "llama_lora_varlen", "prefetch_three_streams", "vision_multires"]


def recorded(name):
    with gzip.open(Path(__file__).parent / f"{name}.csv.gz", "rt") as lines:
        rows = [line.rstrip("\n").split(",") for line in lines if line[0] not in "#o"]
    return [(op, int(number), int(size or 0), int(stream)) for op, number, size, stream in rows]


def resized(rows, change):
    """`change` has the size and the number of each allocation."""
    return [(op, number, max(1, int(change(size, number))) if op == "a" else "", stream) for op, number, size, stream in rows]


def scaled(rows, factor):
    return resized(rows, lambda size, _: size * factor if size > MIB else size)


def jittered(rows, most):
    """Blocks of one size that are allocated soon one after another, such as gradients, change alike."""
    def change(size, number):
        return size * random.Random(f"{size} {number // 500}").uniform(1 - most, 1 + most) if size > MIB else size
    return resized(rows, change)


def renumbered(rows, by, streams=0):
    return [(op, number + by, size, stream + streams) for op, number, size, stream in rows]


def behind(first, second):
    """The second program runs when the first has freed everything."""
    ids = 1 + max(number for _, number, _, _ in first)
    streams = {number: stream for op, number, _, stream in first if op == "a"}
    left = streams.keys() - {number for op, number, _, _ in first if op == "f"}
    return first + [("f", number, "", streams[number]) for number in sorted(left)] + renumbered(second, ids)


def beside(first, second):
    """Two programs by turns, a hundredth of each at once, on streams of their own."""
    second = renumbered(second, 1 + max(row[1] for row in first), 1 + max(row[3] for row in first))
    parts = [[rows[len(rows) * part // 100:len(rows) * (part + 1) // 100] for rows in (first, second)] for part in range(100)]
    return [row for pair in parts for rows in pair for row in rows]


def programs():
    """The name and the rows of each trace."""
    for program in WRITTEN:
        program(p := Program(program.__name__))
        yield program.__name__, p.end()
    for streams in (2, 3, 4, 8):
        buckets(p := Program(f"buckets_{streams}"), streams)
        yield f"buckets_{streams}", p.end()
    known = {name: recorded(name) for name in RECORDED}
    for name, factors in zip(RECORDED, [(0.6, 0.97, 1.37), (1.13,), (0.8, 1.3), (0.83, 1.21), (0.88, 1.3), (0.75, 1.4)]):
        for factor in factors:
            yield f"{name}_{round(factor * 100)}", scaled(known[name], factor)
    gnn, _, gpt2, llama, _, vision = known.values()
    for name, rows in (("gnn_sampling", gnn), ("llama_lora_varlen", llama), ("vision_multires", vision)):
        yield f"{name}_jittered", jittered(rows, 0.25)
    yield "vision_then_gnn", behind(vision, gnn)
    yield "llama_twice", behind(llama, llama)
    yield "llama_beside_gpt2", beside(llama, gpt2)
    yield "gnn_beside_vision", beside(gnn, vision)
    yield from known.items()


def peak(rows):
    sizes, live, most = {}, 0, 0
    for op, number, size, _ in rows:
        if op == "a":
            sizes[number], live = size, live + size
            most = max(most, live)
        elif op == "f":
            live -= sizes[number]
    return most


# How many MB the smaller ones hold at most.
SMALL = {"graphs": 300, "detection": 260, "experts": 400, "evaluation_between": 350, "late_optimizer": 420, "two_models": 220,
         "batches_come_and_go": 190, "diffusion": 330, "generation_and_training": 240, "checkpointed": 460, "gnn_sampling": 380,
         "gpt2_fixed": 290, "gpt2_varlen": 440, "llama_lora_varlen": 360, "prefetch_three_streams": 310, "vision_multires": 250}


def write(folder, name, rows):
    sizes = [size for op, _, size, _ in rows if op == "a"]
    wall = max(SECONDS_EACH * sum(op != "c" for op, *_ in rows), sum(sizes) / BYTES_A_SECOND)
    with open(folder / f"{name}.csv.gz", "wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as text:
        text.write(f"# wall_s={wall:.3f} generated=1\nop,id,size,stream\n".encode())
        text.write("".join(f"{op},{number},{size if op == 'a' else ''},{stream}\n" for op, number, size, stream in rows).encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the traces go; it is made if need be")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in programs():
        if name not in RECORDED:
            write(folder, name, rows)
        if name in SMALL:
            factor = SMALL[name] * 1e6 / peak(rows)
            write(folder, f"small_{name}", resized(rows, lambda size, _: max(size * factor, 512)))
        print(name, f"{peak(rows) / 1e9:.2f} GB", len(rows), "events", flush=True)


if __name__ == "__main__":
    main()
