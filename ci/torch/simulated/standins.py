"""Libraries that stand in for those that PyTorch is linked with and does not need here: cuBLAS, cuDNN, NCCL and so on.

PyTorch binds every symbol when it is loaded, so each one has to be there. They are read from PyTorch's own libraries: what those want
and neither they, nor CUDA's runtime, nor the system has. A function that is called after all says its name and ends the process."""

import re
import subprocess
from pathlib import Path

# Names that the interpreter has.
INTERPRETER = re.compile(r"_?Py")

TRAP = """\
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void trap(const char *name)
{
    static const char words[] = ": a stand-in of this library was called\\n";
    if (write(2, name, strlen(name)) < 0 || write(2, words, sizeof words - 1) < 0)
        _exit(99);
    abort();
}
"""


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def wanted_libraries(path):
    """The names of the libraries that one is linked with."""
    return [found[1] for line in lines("readelf", "-dW", str(path)) if (found := re.search(r"\(NEEDED\).*\[(.*)\]", line))]


def symbols(path, which):
    """Pairs of a symbol and its version, or no version, that a library defines or wants."""
    for line in lines("nm", "-D", "--with-symbol-versions", f"--{which}-only", str(path)):
        kind, name = line.split()[-2:]
        # A weak one may be absent.
        if which == "defined" or kind == "U":
            name, _, version = name.partition("@")
            yield name, version.lstrip("@")


def of_the_system():
    """Libraries that programs of this machine find by themselves, by name."""
    found = (re.match(r"\s+(\S+) \(.*x86-64.*\) => (.*)", line) for line in lines("/sbin/ldconfig", "-p"))
    return {match[1]: Path(match[2]) for match in found if match and not match[1].startswith("libcuda.")}


def make(torch, target, runtime):
    """Makes the libraries that those in the package `torch` lack, in `target`; how many functions they have, by library. `runtime` is the
    folder of those that are there."""
    theirs = [*sorted((torch / "lib").glob("*.so*")), *sorted(torch.glob("_C*.so"))]
    wanted = {name for path in theirs for name in wanted_libraries(path)}
    system = of_the_system()
    there = [*theirs, *runtime.glob("*.so*"), *(system[name] for name in wanted if name in system)]
    missing = sorted(wanted - {path.name for path in there} - system.keys() - {"libcuda.so.1"})
    defined = {name for path in there for name, _ in symbols(path, "defined")}
    functions = {name: {} for name in missing}
    for path in theirs:
        for name, version in symbols(path, "undefined"):
            if name not in defined and not INTERPRETER.match(name):
                # Without a version it may be in any of them.
                functions[version if version in functions else missing[0]][name] = version
    for library, names in functions.items():
        build(target / library, names)
    return {library: len(names) for library, names in functions.items()}


def build(path, names):
    """One library with traps of these names, which have a version or none."""
    source, exports = path.with_suffix(".c"), path.with_suffix(".map")
    source.write_text(TRAP + "".join(f'void {name}(void);\nvoid {name}(void) {{ trap("{name}"); }}\n' for name in sorted(names)))
    versions = sorted({version for version in names.values() if version})
    text = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name, of in names.items() if of == version)} }};\n" for version in versions
    )
    exports.write_text(text)
    script = [f"-Wl,--version-script={exports}"] if versions else []
    command = ["cc", "-O0", "-w", "-fno-builtin", "-fPIC", "-shared", f"-Wl,-soname,{path.name}", *script, "-o", str(path), str(source)]
    subprocess.run(command, check=True)
    source.unlink()
    exports.unlink()
