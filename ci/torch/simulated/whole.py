"""What whole PyTorch does on the simulated driver: groups of programs, without a kernel. `matrix.py` runs them with each version.

CUDA's runtime is played by `cudart.c`; the real one stays for what the played one lacks, so that goes before it."""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import imports

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

# Of ../steps.py, with blocks that nothing is written to: those that launch no kernel.
STEPS = [
    "statistics", "history", "out_of_memory", "fraction", "options", "accelerator_memory", "disabled_again", "graph_uses_memory_again",
    "compiled_regions",
]


@dataclass(frozen=True)
class Result:
    """What came of a program."""

    group: str
    name: str
    passed: bool
    seconds: float
    printed: str


def compile_runtime(path, cuda_include, *sources, version=13):
    """CUDA's runtime, played."""
    exports = path.with_suffix(".map")
    exports.write_text(f"libcudart.so.{version} {{ global: cuda*; local: *; }};\n")
    subprocess.run(
        ["cc", "-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{path.name}",
         f"-Wl,--version-script={exports}", "-isystem", str(cuda_include), "-o", str(path),
         *(str(HERE / source) for source in sources), "-ldl"],
        check=True,
    )


def prepare(folder, simulator, cuda_include, version=13):
    """What the programs need, in a folder; the environment that they run in."""
    compile_runtime(folder / "libcudart-played.so", cuda_include, "cudart.c", version=version)
    scarce = folder / "libscarce.so"
    subprocess.run(["c++", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-o", str(scarce), str(HERE / "scarce.cpp"), "-ldl"], check=True)
    (folder / "libcuda.so.1").symlink_to(simulator.resolve())
    steps = (HERE.parent / "steps.py").read_text()
    filled = 'torch.full((bytes,), value, dtype=torch.uint8, device="cuda")'
    assert filled in steps
    (folder / "steps.py").write_text(steps.replace(filled, 'torch.empty(bytes, dtype=torch.uint8, device="cuda")'))
    for script in ("imports.py", "programs.py", "groups.py", "experiments.py", "vllm_worker.py", "forked.py"):
        (folder / script).write_text((HERE / script).read_text())
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_MEM", "PYTORCH_", "PYTHON"))}
    return clean | {
        "CUDA_MEM_DRIVER": str(folder / "libcuda.so.1"),
        "CUDA_MEM_SIM": "devices=2,ended-streams-fault",
        "LD_LIBRARY_PATH": str(folder),
        # By name: a path may have spaces, at which this variable is parted.
        "LD_PRELOAD": "libcudart-played.so:libscarce.so",
    }


# Those that are modules, and all.
MODULES = ["imports", "programs", "experiments", "groups", "steps", "vllm_worker"]
GROUPS = ["doctor", *MODULES, "guide"]


def run(python, folder, environment, jobs, groups):
    """Groups of programs with an interpreter that has PyTorch and the wheel; a result each, as they end."""
    if "doctor" in groups:
        yield from diagnosed(python, folder, environment)
    if "imports" in groups:
        yield from imported(python, folder, environment)
    if names := [f"{module}.{name}" for module in MODULES if module in groups for name in names_of(module)]:
        yield from forked(python, folder, environment, jobs, names)
    if "guide" in groups:
        yield guided(python, folder, environment)


def names_of(module):
    """The programs that a module lists."""
    if module == "steps":
        return STEPS
    if module == "imports":
        return [*imports.LATER]
    text = (HERE / f"{module}.py").read_text()
    return re.search(r"^PROGRAMS = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)[1].replace(",", " ").split()


def forked(python, folder, environment, jobs, names):
    command = [python, "forked.py", str(jobs), *names]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        left, other = set(names), ""
        for line in process.stdout:
            if not line.startswith('{"name"'):
                other += line
                continue
            told = json.loads(line)
            left.remove(told["name"])
            printed = (folder / f"{told['name']}.log").read_text(errors="replace") + f"exit status {told['code']}\n"
            group, name = told["name"].split(".")
            code, words = imports.LATER[name][2:] if group == "imports" else (0, "")
            yield Result(group, name, told["code"] == code and words in printed, told["seconds"], printed)
    for name in sorted(left):
        yield Result(*name.split("."), False, 0.0, other)


def ended(python, folder, environment, words):
    """What a program printed, and its exit status."""
    done = subprocess.run(
        [python, *words], cwd=folder, env=environment, timeout=240, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.stdout + f"exit status {done.returncode}\n", done.returncode


def diagnosed(python, folder, environment):
    """`python -m cuda_mem_torch`, with a driver and without one; and what calls of the package say without one."""
    words = ["-m", "cuda_mem_torch"]
    printed, code = ended(python, folder, environment, words)
    yield Result("doctor", "a driver", code == 0 and "all well" in printed, 0.0, printed)
    alone = {name: value for name, value in environment.items() if not name.startswith(("LD_", "CUDA_MEM"))}
    printed, code = ended(python, folder, alone, words)
    yield Result("doctor", "no driver", code == 1 and "libcuda.so.1" in printed, 0.0, printed)
    printed, code = ended(python, folder, alone, ["-c", "import imports; imports.calls_without_a_driver()"])
    yield Result("doctor", "calls without a driver", code == 0, 0.0, printed)


def imported(python, folder, environment):
    for name, (variables, program, wanted, words) in imports.AFRESH.items():
        printed, code = ended(python, folder, environment | variables, ["-c", imports.IMPORT + program])
        yield Result("imports", name, code == wanted and words in printed, 0.0, printed)


def guided(python, folder, environment):
    """The leak of docs/pytorch.md is found as it says, and mended."""
    guide = (ROOT / "docs/pytorch.md").read_text()
    program, told = re.search(r"```python\n(# leak.py\n.*?)```.*?```text\n(.*?)```", guide, re.DOTALL).groups()
    mended, active, reserved = re.search(r"With `(.*?)` (\d+) MiB are active and (\d+) reserved", guide).groups()
    place = re.search(r"`(leak\.py:\d+)`", guide)[1]
    assert program.count("batch[:100]") == 1
    seen = ""
    for text, wanted in ((program, told), (program.replace("batch[:100]", mended), f"active {active} MiB\nreserved {reserved} MiB\n")):
        (folder / "leak.py").write_text(text)
        printed, code = ended(python, folder, environment, ["leak.py"])
        seen += printed
        if code != 0 or wanted not in printed:
            return Result("guide", "leak", False, 0.0, seen)
    # The page has each frame as a function's name, its file and the line.
    file, line = place.split(":")
    return Result("guide", "leak", f'{file}",{line}]' in (folder / "leak.html").read_text(), 0.0, seen)
