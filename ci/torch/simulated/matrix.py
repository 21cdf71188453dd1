"""The wheel in fresh environments, one for each PyTorch, on the simulated driver: `python3 ci/torch/simulated/matrix.py`.

For each version: a virtual environment with PyTorch's wheel, its dependencies in Python and CUDA's runtime, without the CUDA libraries
that it is linked with, for which others stand in (`standins.py`); `pip install` of the one wheel; the doctor and the programs of
`whole.py`. Prints a table. Needs the wheel (`cargo xtask wheel`) and builds the simulated driver unless one is named. Downloads are kept; environments go when they have been used."""

import argparse
import os
import shutil
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import standins
import whole

ROOT = whole.ROOT
sys.path.append(str(ROOT / "cuda-mem-torch/python"))
from build_wheel import TORCHES as VERSIONS  # noqa: E402

# What PyTorch imports beside itself.
DEPENDENCIES = ["filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "numpy", "setuptools", "sympy", "typing-extensions"]
RUNTIME = "nvidia-cuda-runtime"
CRT = "nvidia-cuda-crt"
# vLLM, of which a few files run, and the PyTorch that it is made for.
VLLM, PYTORCH_OF_VLLM = "vllm==0.33.0", "2.14."
# Seconds for what pip does.
LIMIT = 600


def pip(*words):
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    subprocess.run(command, check=True, timeout=LIMIT)


def found(downloads, requirement):
    """The wheel that was brought for one, if any."""
    name, _, version = requirement.replace("-", "_").partition("==")
    return max(downloads.glob(f"{name}-{version.rstrip('*.')}*.whl"), default=None)


def download(downloads, requirements):
    """Brings wheels that are not there yet."""
    missing = [requirement for requirement in requirements if found(downloads, requirement) is None]
    if missing:
        pip("download", "--no-deps", "--only-binary", ":all:", "--dest", str(downloads), *missing)


def required(version):
    return [f"torch=={version}", f"{RUNTIME}==13.0.*", f"{CRT}==13.0.*", *DEPENDENCIES]


def fresh(folder, requirements, downloads, libraries):
    """An environment with PyTorch alone, and stand-ins beside CUDA's runtime; its interpreter and its packages."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin/python"
    packages = next(folder.glob("lib/python3*/site-packages"))
    # As they are: pip takes the digests of their gigabytes, three times as long.
    for requirement in requirements:
        with zipfile.ZipFile(found(downloads, requirement)) as file:
            file.extractall(packages)
    standins.make(packages / "torch", packages / libraries, packages / libraries)
    return python, packages


def environment(folder, version, downloads, wheel):
    """A fresh environment with the package; its interpreter and its packages."""
    python, packages = fresh(folder, required(version), downloads, "nvidia/cu13/lib")
    pip("--python", str(python), "install", "--no-compile", "--no-index", "--no-deps", str(wheel))
    return python, packages


def run_version(version, arguments):
    """The results with one PyTorch."""
    folder = arguments.out / version
    if arguments.python:
        python, packages = Path(arguments.python), None
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages = Path(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    else:
        python, packages = environment(folder / "python", version, arguments.downloads, arguments.wheel)
    scratch = folder / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    variables = whole.prepare(scratch, arguments.simulator, packages / "nvidia/cu13/include")
    groups = arguments.only or whole.GROUPS
    if vllm := version.startswith(PYTORCH_OF_VLLM) and next(arguments.downloads.glob("vllm-*.whl"), None):
        variables["VLLM_WHEEL"] = str(vllm.resolve())
    else:
        groups = [group for group in groups if group != "vllm_worker"]
    for result in whole.run(str(python.absolute()), scratch, variables, arguments.jobs, groups):
        print(f"{'ok' if result.passed else 'FAILED'} {version} {result.group} {result.name} ({result.seconds:.1f} s)", flush=True)
        if not result.passed:
            print("".join(f"    {line}\n" for line in result.printed.splitlines()[-30:]), flush=True)
        yield result
    if not arguments.keep and not arguments.python:
        shutil.rmtree(folder)


def table(results):
    """Versions by groups: how many programs passed of how many."""
    groups = list(dict.fromkeys(result.group for rows in results.values() for result in rows))
    rows = [["PyTorch", *groups]]
    for version, of in results.items():
        counts = []
        for group in groups:
            states = [result.passed for result in of if result.group == group]
            counts.append(f"{sum(states)}/{len(states)}" if states else "-")
        rows.append([version, *counts])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of PyTorch [default: {' '.join(VERSIONS)}]")
    parser.add_argument("--wheel", type=Path, help="the package [default: the one in target/wheel]")
    parser.add_argument("--simulator", type=Path, help="the simulated driver, built before")
    parser.add_argument("--out", type=Path, default=ROOT / "target/torch-matrix", help="where downloads are kept and environments made")
    parser.add_argument("--jobs", type=int, default=max(1, os.cpu_count() // 2), help="programs of a version at a time; two versions are run at a time")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--python", help="an interpreter that has PyTorch and the wheel, instead of fresh environments")
    parser.add_argument("--only", action="append", choices=whole.GROUPS, help="a group of programs, instead of all")
    arguments = parser.parse_args()
    arguments.downloads = arguments.out / "downloads"
    arguments.downloads.mkdir(parents=True, exist_ok=True)
    if arguments.wheel is None and not arguments.python:
        wheels = sorted((ROOT / "target/wheel").glob("cuda_mem_torch-*.whl"))
        if len(wheels) != 1:
            parser.error(f"there are {len(wheels)} wheels in target/wheel: build one (cargo xtask wheel), or name one (--wheel)")
        arguments.wheel = wheels[0]
    if arguments.simulator is None:
        subprocess.run(["cargo", "build", "--quiet", "--package", "cuda-mem-sim-library"], cwd=ROOT, check=True)
        arguments.simulator = ROOT / "target/debug/libcuda_mem_sim.so"
    versions = arguments.versions or VERSIONS
    if arguments.python:
        ask = "from importlib.metadata import version; print(version('torch'))"
        versions = [subprocess.run([arguments.python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()]
    began = time.monotonic()
    for version in versions if not arguments.python else []:
        download(arguments.downloads, required(version) + [VLLM] * version.startswith(PYTORCH_OF_VLLM))
    # Two beside each other: much of each is one process alone.
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(versions, pool.map(lambda version: list(run_version(version, arguments)), versions)))
    failed = sum(not result.passed for of in results.values() for result in of)
    total = sum(map(len, results.values()))
    print(f"\n{table(results)}\n\n{total - failed} passed, {failed} failed, {time.monotonic() - began:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
