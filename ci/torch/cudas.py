"""The C++ shim against the headers of the oldest and the newest CUDA: `python3 ci/torch/cudas.py [VERSION...]`.

One build of the shim serves all of them; here it is compiled only, for each PyTorch. `cargo xtask wheel` fetches PyTorch's headers;
those of CUDA are fetched once."""

import argparse
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CRATE = ROOT / "cuda-mem-torch"
sys.path.append(str(CRATE / "python"))
from build_wheel import TORCHES, fetch, version_of  # noqa: E402
from cuda_mem_torch import _shim  # noqa: E402

# The packages with the headers of each, which for CUDA 12 are the runtime's and the compiler's.
CUDAS = {
    "12.6": ["nvidia-cuda-runtime-cu12==12.6.*", "nvidia-cuda-nvcc-cu12==12.6.*"],
    "13.2": ["nvidia-cuda-runtime==13.2.*", "nvidia-cuda-crt==13.2.*"],
}


def headers(folder, packages):
    """The folders of headers in these packages, brought once."""
    if not folder.is_dir():
        download = folder.with_name(f"{folder.name}.download")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(download)]
        subprocess.run([*pip, *packages], check=True)
        for wheel in download.glob("*.whl"):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(folder, [name for name in file.namelist() if "/include/" in name])
            wheel.unlink()
        download.rmdir()
    return sorted(folder.glob("nvidia/*/include"))


def compile_only(version, root, includes):
    """What the compiler says of the shim."""
    said = ""
    for part in _shim.PARTS:
        words = _shim.compile_command(part, version, "c++", Path(os.devnull), root / "torch/include", includes, root / "torch/lib", CRATE / "shim")
        words = [word for word in words if not word.startswith(("-l", "-L", "-Wl,")) and word != "-shared"]
        command = [*words, "-I", str(CRATE / "include"), "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
        said += subprocess.run(command, capture_output=True, text=True).stderr
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of PyTorch [default: {' '.join(TORCHES)}]")
    parser.add_argument("--cuda", action="append", choices=CUDAS, help="one of CUDA's, instead of both")
    parser.add_argument("--out", type=Path, default=ROOT / "target/wheel", help="where headers are kept")
    arguments = parser.parse_args()
    roots = [fetch(arguments.out / f"torch-{version}", version) for version in arguments.versions or TORCHES]
    pairs = [(root, cuda) for cuda in arguments.cuda or CUDAS for root in roots]
    includes = {cuda: headers(arguments.out / f"cuda-{cuda}", CUDAS[cuda]) for cuda in arguments.cuda or CUDAS}
    failed = False
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = pool.map(lambda pair: compile_only(version_of(pair[0]), pair[0], includes[pair[1]]), pairs)
        for (root, cuda), text in zip(pairs, said):
            failed |= bool(text)
            print(f"{'FAILED' if text else 'ok'} {root.name} CUDA {cuda}\n{text}".rstrip(), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
