"""What is in a wheel, and that it is the same each time."""

import csv
import importlib.util
import io
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

PYTHON = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("build_wheel", PYTHON / "build_wheel.py")
build_wheel = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(build_wheel)
TAG = build_wheel.TAG.format("x86_64")


class Wheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.binary = self.folder / "libcuda_mem_torch.so"
        self.binary.write_bytes(b"\x7fELF library")
        self.shim = self.folder / "libcuda_mem_torch_shim_2_11.so"
        self.shim.write_bytes(b"\x7fELF shim")
        self.path = build_wheel.pack(build_wheel.contents(self.binary, [self.shim]), self.folder, TAG)

    def test_it_has_everything_and_nothing_else(self):
        with zipfile.ZipFile(self.path) as wheel:
            names = set(wheel.namelist())
            record = list(csv.reader(io.StringIO(wheel.read("cuda_mem_torch-0.1.0.dist-info/RECORD").decode())))
            entry_points = wheel.read("cuda_mem_torch-0.1.0.dist-info/entry_points.txt").decode()
        self.assertEqual({name for name, _, _ in record}, names)
        for name in (
            "__init__.py", "_install.py", "py.typed", "libcuda_mem_torch.so", "libcuda_mem_torch_shim_2_11.so",
            "shim/allocator.hpp", "shim/install.cpp", "shim/symmetric/backend.cpp", "include/cuda_mem_torch.h",
        ):
            self.assertIn(f"cuda_mem_torch/{name}", names)
        kinds = {Path(name).suffix for name in names if name.startswith("cuda_mem_torch/")}
        self.assertEqual(kinds, {".py", ".typed", ".so", ".hpp", ".cpp", ".h"})
        self.assertIn("[torch.backends]\ncuda_mem_torch = cuda_mem_torch._install:_autoload", entry_points)
        self.assertIn("[vllm.general_plugins]\ncuda_mem = cuda_mem_torch.adapters:_vllm_plugin", entry_points)
        self.assertTrue(self.path.name.endswith("-py3-none-linux_x86_64.whl"))

    def test_there_is_a_shim_for_each_supported_version(self):
        sys.path.insert(0, str(PYTHON))
        from cuda_mem_torch import _torch

        minors = [tuple(map(int, version.split(".")[:2])) for version in build_wheel.TORCHES]
        self.assertEqual(minors, list(_torch.SUPPORTED))

    def test_what_older_systems_lack_is_named(self):
        listed = "\n".join(
            ["                 U dlopen@GLIBC_2.34", "                 U memcpy@GLIBC_2.14", "                 U _Znwm@GLIBCXX_3.4",
             "                 U _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv@CXXABI_1.3.13", "                 w __gmon_start__"]
        )
        with mock.patch.object(build_wheel.subprocess, "run", return_value=mock.Mock(stdout=listed)):
            named = ["dlopen@GLIBC_2.34", "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv@CXXABI_1.3.13"]
            self.assertEqual(build_wheel.newer_symbols(self.binary), named)
            with self.assertRaisesRegex(SystemExit, "libcuda_mem_torch.so: dlopen@GLIBC_2.34"):
                build_wheel.expect_old_system([self.binary])
        old = build_wheel.pack(build_wheel.contents(self.binary, [self.shim]), self.folder / "old", build_wheel.OLD_TAG.format("aarch64"))
        self.assertTrue(old.name.endswith("-py3-none-manylinux_2_28_aarch64.whl"))
        with zipfile.ZipFile(old) as wheel:
            self.assertIn(b"Tag: py3-none-manylinux_2_28_aarch64", wheel.read("cuda_mem_torch-0.1.0.dist-info/WHEEL"))

    def test_it_is_the_same_each_time(self):
        first = self.path.read_bytes()
        again = build_wheel.pack(build_wheel.contents(self.binary, [self.shim]), self.folder / "again", TAG)
        self.assertEqual(first, again.read_bytes())

    def test_a_wheel_that_auditwheel_would_change_is_not_accepted(self):
        def repaired(command, check):
            name, of, added = changed
            with zipfile.ZipFile(self.path) as wheel:
                files = {name: wheel.read(name) for name in wheel.namelist()}
            with zipfile.ZipFile(Path(command[command.index("--wheel-dir") + 1]) / name, "w") as wheel:
                for name, data in (files | {of: added}).items():
                    wheel.writestr(name, data)

        same = ("cuda_mem_torch/libcuda_mem_torch.so", b"\x7fELF library")
        for *changed, text in (
            (self.path.name, *same, None),
            (self.path.name.replace("linux", "manylinux_2_34"), *same, "auditwheel would make .*manylinux_2_34"),
            (self.path.name, "cuda_mem_torch.libs/libz.so", b"", "or change what is in it"),
        ):
            with mock.patch.object(build_wheel.subprocess, "run", repaired):
                if text is None:
                    build_wheel.expect_whole(self.path)
                else:
                    with self.assertRaisesRegex(SystemExit, text):
                        build_wheel.expect_whole(self.path)

    def test_pip_installs_it(self):
        target = self.folder / "installed"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", str(target), str(self.path)], check=True)
        found = "from importlib.metadata import entry_points as e; print([p.value for p in e(group='torch.backends')])"
        # The folder of tests is not on the path: what is imported is what was installed.
        done = subprocess.run(
            [sys.executable, "-c", f"import cuda_mem_torch; {found}; print(cuda_mem_torch.__file__)"],
            env={"PYTHONPATH": str(target)}, cwd=self.folder, capture_output=True, text=True, check=True,
        )
        self.assertIn("cuda_mem_torch._install:_autoload", done.stdout)
        self.assertIn(str(target), done.stdout)


if __name__ == "__main__":
    unittest.main()
