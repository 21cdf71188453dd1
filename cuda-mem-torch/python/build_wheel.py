"""Packs the wheel: the package, the library, the header, the shim's sources and the shim itself. `cargo xtask wheel` calls it.

The same inputs give the same bytes. One wheel serves every Python 3: nothing in it is linked against Python."""

import argparse
import base64
import hashlib
import itertools
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
CRATE = HERE.parent
NAME = "cuda_mem_torch"
# Of systems like the one that it is built on, and of every one that PyTorch runs on.
TAG = "py3-none-linux_{}"
OLD_TAG = "py3-none-manylinux_2_28_{}"
# The newest versions of symbols that those have.
OLD_SYSTEM = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}

# The PyTorch releases that shims are built for, one of each minor version, and what of their packages is needed: headers, and the
# libraries that the shims are linked with, which bring what their C++ library has of newer ones.
TORCHES = ["2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"]
TORCH = ["torch/include/", "torch/lib/libc10.so", "torch/lib/libc10_cuda.so"]
# CUDA's, which serve for all of them; the library for what runs on the simulator.
CUDA = {
    "nvidia-cuda-runtime==13.0.*": ["nvidia/cu13/include/", "nvidia/cu13/lib/"],
    "nvidia-cuda-crt==13.0.*": ["nvidia/cu13/include/"],
}

METADATA = """\
Metadata-Version: 2.4
Name: cuda-mem-torch
Version: {version}
Summary: PyTorch on cuda-mem's allocator
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Requires-Python: >=3.9
Project-URL: Source, {repository}
Description-Content-Type: text/markdown

{description}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: cargo xtask wheel
Root-Is-Purelib: false
Tag: {tag}
"""

# How `import torch` finds the package: it asks whoever is listed here, and the package looks at CUDA_MEM_TORCH.
ENTRY_POINTS = f"""\
[torch.backends]
{NAME} = {NAME}._install:_autoload

[vllm.general_plugins]
cuda_mem = {NAME}.adapters:_vllm_plugin
"""


def fetch(folder: Path, version: str, processor: str = platform.machine()) -> Path:
    """The headers of a PyTorch, with CUDA's, brought once."""
    if folder.is_dir():
        return folder
    partial = folder.with_name(folder.name + ".partial")
    for package, wanted in {f"torch=={version}": TORCH, **CUDA}.items():
        download = partial / "download"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        if processor != platform.machine():
            pip += [word for system in ("manylinux_2_28", "manylinux2014") for word in ("--platform", f"{system}_{processor}")]
            # One that has a build of each.
            pip += ["--python-version", "3.12"]
        if subprocess.run([*pip, "--dest", str(download), package]).returncode:
            sys.exit(f"{package} could not be fetched: name a folder with the headers (--headers), or leave the shim to the user's machine (--no-shim)")
        for wheel in download.glob("*.whl"):
            with zipfile.ZipFile(wheel) as file:
                names = [name for name in file.namelist() if name.startswith(tuple(wanted))]
                file.extractall(partial, names)
            wheel.unlink()
    partial.rename(folder)
    return folder


def version_of(root: Path) -> tuple[int, int]:
    """Of the PyTorch whose headers are in `root`."""
    text = (root / "torch/include/torch/headeronly/version.h").read_text()
    major, minor = (re.search(rf"#define TORCH_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR"))
    return int(major), int(minor)


def compiler_for(processor: str) -> str:
    """The one whose C++ library is PyTorch's."""
    return "c++" if processor == platform.machine() else f"{processor}-linux-gnu-g++"


def build_shims(roots: list[Path], library: Path, out: Path, compiler: str) -> list[Path]:
    """Compiles the shim's parts against the headers in each root, as the package does on a user's machine; as many at a time as there are
    processors."""
    sys.path.insert(0, str(HERE))
    from cuda_mem_torch import _shim

    def build(part: Any, root: Path) -> Path:
        version = version_of(root)
        return build_part(_shim, part, version, root, library, out / part.file(version), compiler)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(build, *zip(*itertools.product(_shim.PARTS, roots))))


def build_part(shim: ModuleType, part: Any, version: tuple[int, int], root: Path, library: Path, target: Path, compiler: str) -> Path:
    """Compiles one of them. What it needs beside PyTorch's core libraries is large and not fetched: an empty library of the name
    stands for it."""
    torch, cuda = root / "torch", root / "nvidia/cu13"
    with tempfile.TemporaryDirectory() as stubs:
        for name in part.needs:
            empty = [compiler, "-shared", f"-Wl,-soname,lib{name}.so", "-x", "c++", "/dev/null", "-o", f"{stubs}/lib{name}.so"]
            subprocess.run(empty, check=True)
        words = shim.compile_command(part, version, compiler, target, torch / "include", [cuda / "include"], torch / "lib", CRATE / "shim")
        # In the workspace the rest lies elsewhere than in a wheel, and in it beside each other.
        places = ["-I", str(CRATE / "include"), f"-L{library.parent}", f"-L{stubs}"]
        words = [word for word in words if not word.startswith("-Wl,-rpath")]
        subprocess.run([*words, *places, "-Wall", "-Wextra", "-Wl,-rpath,$ORIGIN"], check=True)
    return target


def contents(library: Path, shims: list[Path]) -> dict[str, bytes]:
    """Every file of the package, by its name in the wheel."""
    files = {}
    for path in sorted((HERE / NAME).glob("*")):
        if path.suffix == ".py" or path.name == "py.typed":
            files[f"{NAME}/{path.name}"] = path.read_bytes()
    for path in sorted((CRATE / "shim").glob("**/*.[ch]pp")):
        files[f"{NAME}/{path.relative_to(CRATE)}"] = path.read_bytes()
    files[f"{NAME}/include/cuda_mem_torch.h"] = (CRATE / "include/cuda_mem_torch.h").read_bytes()
    files[f"{NAME}/libcuda_mem_torch.so"] = library.read_bytes()
    for shim in shims:
        files[f"{NAME}/{shim.name}"] = shim.read_bytes()
    return files


def newer_symbols(path: Path) -> list[str]:
    """The symbols of a library that older systems lack."""
    wanted = subprocess.run(["nm", "-D", "--undefined-only", "--with-symbol-versions", str(path)], check=True, capture_output=True, text=True)
    found = (re.search(r"\S+@(GLIBC|GLIBCXX|CXXABI)_([\d.]+)$", line) for line in wanted.stdout.splitlines())
    return [symbol[0] for symbol in found if symbol and tuple(map(int, symbol[2].split("."))) > OLD_SYSTEM[symbol[1]]]


def expect_old_system(libraries: list[Path]) -> None:
    """Ends if a library needs a newer system than PyTorch does."""
    newer = {path.name: symbols for path in libraries if (symbols := newer_symbols(path))}
    if newer:
        oldest = ", ".join(f"{name} {'.'.join(map(str, version))}" for name, version in OLD_SYSTEM.items())
        sys.exit("\n".join([f"these need a newer system than {oldest}:", *(f"{name}: {' '.join(symbols)}" for name, symbols in newer.items())]))


def expect_whole(wheel: Path) -> None:
    """Ends if `auditwheel` would change the wheel: another tag, or a library that it would add."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["repair", "--exclude", "libc10*", "--exclude", "libtorch*", "--wheel-dir", folder, str(wheel)]
        subprocess.run([sys.executable, "-m", "auditwheel", *words], check=True)
        repaired = next(Path(folder).iterdir())
        if repaired.name != wheel.name or read(repaired) != read(wheel):
            sys.exit(f"auditwheel would make {repaired.name} of {wheel.name}, or change what is in it")


def read(wheel: Path) -> dict[str, list[bytes]]:
    """The lines of every file in it, those of the record in order."""
    with zipfile.ZipFile(wheel) as file:
        files = {name: file.read(name).splitlines() for name in file.namelist() if not name.endswith("/")}
    return {name: sorted(lines) if name.endswith("/RECORD") else lines for name, lines in files.items()}


def pack(files: dict[str, bytes], out: Path, tag: str) -> Path:
    """Writes the wheel."""
    version = re.search(r'__version__ = "(.+)"', files[f"{NAME}/__init__.py"].decode())[1]
    info = f"{NAME}-{version}.dist-info"
    files = dict(files)
    repository = re.search(r'^repository = "(.+)"', (CRATE.parent / "Cargo.toml").read_text(), re.M)[1]
    description = (CRATE.parent / "docs/pytorch.md").read_text()
    files[f"{info}/METADATA"] = METADATA.format(version=version, repository=repository, description=description).encode()
    files[f"{info}/WHEEL"] = WHEEL.format(tag=tag).encode()
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    for license in ("LICENSE-APACHE", "LICENSE-MIT"):
        files[f"{info}/licenses/{license}"] = (CRATE.parent / license).read_bytes()
    record = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{NAME}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            # The oldest time that the format knows, so that no build differs by its time.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            wheel.writestr(entry, data)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", dest="binary", type=Path, required=True, help="libcuda_mem_torch.so")
    parser.add_argument("--out", type=Path, required=True, help="where the wheel goes")
    shim = parser.add_mutually_exclusive_group()
    shim.add_argument(
        "--headers", type=Path, action="append", help="a folder with torch/ and nvidia/cu13/, instead of fetching those of each version"
    )
    shim.add_argument("--torch", action="append", choices=TORCHES, help="a version to build the shim for, instead of all")
    shim.add_argument("--no-shim", action="store_true", help="leave building the shim to the user's machine")
    parser.add_argument("--old-system", action="store_true", help="for every system that PyTorch runs on, which auditwheel checks")
    parser.add_argument("--processor", default=platform.machine(), help="which the library is for; another one's wheel goes into a folder of its name")
    arguments = parser.parse_args()
    processor = arguments.processor
    out = arguments.out if processor == platform.machine() else arguments.out / processor
    out.mkdir(parents=True, exist_ok=True)
    built: list[Path] = []
    if not arguments.no_shim:
        headers = arguments.headers or [fetch(out / f"torch-{version}", version, processor) for version in arguments.torch or TORCHES]
        built = build_shims([root.resolve() for root in headers], arguments.binary.resolve(), out, compiler_for(processor))
    if arguments.old_system:
        expect_old_system([arguments.binary, *built])
    for earlier in out.glob(f"{NAME}-*.whl"):
        earlier.unlink()
    path = pack(contents(arguments.binary, built), out, (OLD_TAG if arguments.old_system else TAG).format(processor))
    if arguments.old_system:
        expect_whole(path)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {len(built)} libraries of the shim, {'in it' if built else 'built where it is installed'}")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as failed:
        # It has said why by itself.
        sys.exit(f"{failed.cmd[0]} failed with exit code {failed.returncode}")
