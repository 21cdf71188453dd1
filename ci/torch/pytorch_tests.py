"""PyTorch's own tests on our allocator, beside the native one:
`python3 ci/torch/pytorch_tests.py --pytorch-src DIR --wheel target/wheel/*.whl`.

DIR is PyTorch's source at the version that is installed. None of it is here: it is a checkout of the commit that the installed PyTorch
names as its own (`torch.version.git_version`), with `test/` as committed, so that the commit's hash pins every file. `--unpinned`
takes any other folder; the hashes of what ran are in the results either way. `test_cuda.py` needs the packages psutil and expecttest;
those that are not installed can be in a folder of PYTHONPATH.

Ways: `native`; `expandable`, which is native with `expandable_segments:True`; `ours`; and `plain`, which is native, the pool tests'
compiled allocator replaced by our plain functions. Each class runs in a process of its own, and in a fresh one after a test
that ended it. Ends with 1 if a test that passes natively does not pass with ours, and does not fail with expandable segments too; and if
none passes natively, for then nothing was compared.
"""

import argparse
import ast
import fnmatch
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run_all import Results, environment_of, install

HERE = Path(__file__).resolve().parent
CUDA, PROCESSES = "test/test_cuda.py", "test/test_multiprocessing.py"
# Of TestCuda, what allocates in a way of its own; of the tests of processes, what goes through CUDA.
MEMORY = ["*memory*", "*alloc*", "*pinned*", "*record_stream*", "*graph*", "*non_blocking*", "*fraction*", "*workspace*", "*cache*"]
CLASSES = [
    (CUDA, "TestMemPool", ["*"]),
    (CUDA, "TestBlockStateAbsorption", ["*"]),
    # The same class by its name of different versions.
    (CUDA, "TestCudaMallocAsync", ["*"]),
    (CUDA, "TestCudaAllocator", ["*"]),
    (CUDA, "TestCachingHostAllocatorCudaGraph", ["*"]),
    (CUDA, "TestCuda", MEMORY),
    (PROCESSES, "TestMultiprocessing", ["*cuda*", "test_event*"]),
]
WAYS = ["native", "expandable", "ours", "plain"]
# Seconds that one test may take.
TEST_LIMIT = 120

DUMMY = """
#include <stddef.h>
#include "cuda_mem_torch.h"

int called_dummy_alloc, called_dummy_free;

void *dummy_alloc(size_t bytes, int device, void *stream) {
  called_dummy_alloc = 123;
  return cuda_mem_torch_alloc(bytes, device, stream);
}

void dummy_free(void *address, size_t bytes, int device, void *stream) {
  called_dummy_free = 321;
  cuda_mem_torch_free(address, bytes, device, stream);
}
"""


def stop(text):
    print(text, file=sys.stderr)
    sys.exit(2)


def pinned(python, source):
    """Whether a folder is the source of the installed PyTorch, and why not."""
    ask = [python, "-c", "import torch; print(torch.version.git_version)"]
    wanted = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    git = ["git", "-C", str(source)]
    here = subprocess.run([*git, "rev-parse", "--show-toplevel", "HEAD"], capture_output=True, text=True).stdout.split()
    if len(here) != 2 or Path(here[0]).resolve() != source:
        return f"it is not a checkout of git's; the installed PyTorch was built from commit {wanted}"
    if here[1] != wanted:
        return f"its commit is {here[1]}; the installed PyTorch was built from {wanted}"
    if subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "test"]).returncode != 0:
        return "files of test/ were changed"
    return None


def tests_of(python, environment, file, klass):
    """The names of a class's tests. It is imported for them, because PyTorch makes some when it is."""
    text = file.read_text(encoding="utf-8")
    if not any(isinstance(node, ast.ClassDef) and node.name == klass for node in ast.walk(ast.parse(text))):
        return []
    code = (
        "import importlib, sys, unittest; sys.path.insert(0, sys.argv[1]); module, klass = sys.argv[2:]; del sys.argv[1:]; "
        "found = getattr(importlib.import_module(module), klass); print('TESTS', *unittest.TestLoader().getTestCaseNames(found))"
    )
    done = subprocess.run(
        [python, "-c", code, str(file.parent), file.stem, klass], env=environment, capture_output=True, text=True, timeout=300
    )
    listed = [line for line in done.stdout.splitlines() if line.startswith("TESTS")]
    if not listed:
        stop(f"{file.name} cannot be imported: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return listed[0].split()[1:]


class Runner:
    """Runs classes, each within its limit."""

    def __init__(self, python, folder, limit):
        self.python, self.folder, self.limit = str(python), folder, limit

    def environment(self, way):
        environment = environment_of(self.folder / "environment", way == "ours")
        if way == "expandable":
            environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        if way == "plain":
            environment["DUMMY_ALLOCATOR"] = str(self.dummy())
        return environment

    def dummy(self):
        """Our plain functions by the names that the pool tests give theirs."""
        library = self.folder / "libdummy.so"
        if not library.is_file():
            package = next(Path(self.folder).glob("environment/lib/python3*/site-packages/cuda_mem_torch"))
            source = self.folder / "dummy.c"
            source.write_text(DUMMY)
            link = [f"-L{package}", "-l:libcuda_mem_torch.so", f"-Wl,-rpath,{package}"]
            command = ["cc", "-shared", "-fPIC", "-I", str(package / "include"), "-o", str(library), str(source), *link]
            subprocess.run(command, check=True)
        return library

    def run(self, way, file, klass, names):
        """What came of each test, by name."""
        lines, outcomes, left = self.folder / "lines", {}, list(names)
        end = time.monotonic() + self.limit
        while left and time.monotonic() < end:
            lines.write_text("")
            command = [self.python, str(HERE / "one_class.py"), str(file), klass, str(lines), str(TEST_LIMIT), *left]
            seconds = end - time.monotonic()
            child = subprocess.Popen(
                command, env=self.environment(way), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                errors="replace", cwd=self.folder, start_new_session=True,
            )
            try:
                said, died = child.communicate(timeout=seconds)[1], f"the process ended with {child.returncode}"
            except subprocess.TimeoutExpired:
                # The tests' own children too.
                os.killpg(child.pid, 9)
                said, died = child.communicate()[1], f"it was stopped when the class's {self.limit} s were over"
            began = None
            for line in map(json.loads, lines.read_text().splitlines()):
                if line["test"] == "":
                    stop(line["why"])
                began = None if "outcome" in line else line["test"]
                if began is None:
                    outcomes[line["test"]] = line
            if began is not None:
                tail = " / ".join(part.strip() for part in said.strip().splitlines()[-12:])
                outcomes[began] = {"test": began, "outcome": "failed", "why": f"{died}: {tail[:800]}", "seconds": None}
            still = [name for name in left if name not in outcomes]
            if len(still) == len(left) and time.monotonic() < end:
                stop(f"{klass} ({way}): {died}: {said.strip()[-800:]}")
            left = still
        return outcomes | {name: {"test": name, "outcome": "not run", "why": "the class's time was over"} for name in left}


def table(rows, ways):
    """Counts by class, a column for each way."""
    print(f"\n| class | tests | {' | '.join(f'{way}: passed, failed, n/a, not run' for way in ways)} |")
    print(f"|---|---|{'---|' * len(ways)}")
    for klass in dict.fromkeys(row["class"] for row in rows):
        of = [row for row in rows if row["class"] == klass]
        cells = []
        for way in ways:
            outcomes = [row[way]["outcome"] for row in of if way in row]
            counts = [outcomes.count(outcome) for outcome in ("passed", "failed", "not applicable", "not run")]
            cells.append(", ".join(map(str, counts)) if outcomes else "")
        print(f"| {klass} | {len(of)} | {' | '.join(cells)} |")


def differences(rows, way):
    """Tests that pass natively and not this way; those of them that expandable segments do not fail too. What was left out or not reached
    did not pass."""
    worse = [row for row in rows if row.get("native", {}).get("outcome") == "passed" and row.get(way, {}).get("outcome") not in (None, "passed")]
    print(f"\nPasses natively, not with {way}: {len(worse)}")
    for row in worse:
        also = row.get("expandable", {}).get("outcome", "not run")
        print(f"- {row['class']}.{row['test']} (with expandable segments: {also})\n    {row[way]['outcome']}: {row[way]['why']}")
        if also == "failed":
            print(f"    expandable: {row['expandable']['why']}")
    return [row for row in worse if {row[way]["outcome"], row.get("expandable", {}).get("outcome")} != {"failed"}]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytorch-src", type=Path, required=True)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--unpinned", action="store_true", help="take a folder that is not PyTorch's commit")
    parser.add_argument("--ways", default="native,expandable,ours", help=f"of {', '.join(WAYS)}; by commas")
    parser.add_argument("--also", nargs="*", default=[], metavar="FILE:CLASS", help="further classes, of test/ or below it")
    parser.add_argument("--only", nargs="*", default=["*"], help="CLASS or CLASS.test, with * and ?")
    parser.add_argument("--limit-s", type=float, default=600, help="seconds that a class may take in each way")
    parser.add_argument("--out", type=Path, help="where the results go, as JSON")
    arguments = parser.parse_args()
    source, ways = arguments.pytorch_src.resolve(), arguments.ways.split(",")
    if unknown := [way for way in ways if way not in WAYS]:
        stop(f"no such way: {', '.join(unknown)}; accepted: {', '.join(WAYS)}")
    if "native" not in ways:
        stop("the way native is missing: the others are compared with it")
    if wrong := [also for also in arguments.also if also.count(":") != 1]:
        stop(f"{wrong[0]!r} is no class; accepted: FILE:CLASS, as test/test_cuda_trace.py:TestCudaTrace")
    classes = CLASSES + [(*also.split(":"), ["*"]) for also in arguments.also]
    files = list(dict.fromkeys(file for file, _, _ in classes))
    for file in files:
        if not (source / file).is_file():
            stop(f"{source} has no {file}: give a folder of PyTorch's source")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        results = Results()
        python = install(results, arguments.wheel.resolve(), folder / "environment")
        if any(row["state"] == "failed" for row in results.rows):
            sys.exit(2)
        not_pinned = pinned(python, source)
        if not_pinned and not arguments.unpinned:
            stop(f"{source}: {not_pinned}. With --unpinned it is taken as it is")
        runner = Runner(python, folder, arguments.limit_s)
        for file, klass, patterns in classes:
            # To list a class takes as long as to import PyTorch and the file.
            if not any(fnmatch.fnmatch(klass, only.partition(".")[0]) for only in arguments.only):
                continue
            names = [
                name
                for name in tests_of(str(python), runner.environment("native"), source / file, klass)
                if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
                and any(fnmatch.fnmatch(name_of, only) for only in arguments.only for name_of in (klass, f"{klass}.{name}"))
            ]
            of = {name: {"class": klass, "test": name} for name in names}
            for way in ways if names else []:
                if way == "plain" and klass != "TestMemPool":
                    continue
                began = time.monotonic()
                for name, line in runner.run(way, source / file, klass, names).items():
                    of[name][way] = {key: line.get(key) for key in ("outcome", "why", "seconds")}
                outcomes = [row[way]["outcome"] for row in of.values()]
                counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
                print(f"{klass} {way}: {counts} ({time.monotonic() - began:.0f} s)", flush=True)
                # At once: who stops the run early has seen them.
                for name, row in of.items():
                    if row[way]["outcome"] == "failed":
                        print(f"    {name}: {str(row[way]['why'])[-300:]}", flush=True)
            rows += of.values()
    hashes = {file: hashlib.sha256((source / file).read_bytes()).hexdigest() for file in files}
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"pinned": not_pinned or "yes", "sha256": hashes, "tests": rows}, indent=1))
    print(f"\npinned: {not_pinned or 'yes'}")
    for file, digest in hashes.items():
        print(f"{digest}  {file}")
    table(rows, ways)
    worse = [row for way in ways if way in ("ours", "plain") for row in differences(rows, way)]
    if not any(row.get("native", {}).get("outcome") == "passed" for row in rows):
        stop("no test passed natively: nothing was compared")
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
