"""What the commands do without a GPU and without PyTorch, which `played_torch` plays for the programs that `compare` runs.

Run as ``python test_commands.py``, with the package on ``PYTHONPATH`` or installed, and the simulator as CUDA_MEM_DRIVER."""

import contextlib
import ctypes
import gzip
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import cuda_mem_torch
from cuda_mem_torch import _command_compare, _command_demo, _command_top, _compare_child, _compare_runs, _drawing, _leak, _library, _recording, _simulated, _terminal

PLAYED = Path(__file__).resolve().parent / "played_torch"


def command(*words, code=0, path=()):
    """What a command printed; its errors too, where it was to fail."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")])}
    run = [sys.executable, "-m", "cuda_mem_torch", *map(str, words)]
    # The package that is installed, and not one that lies where the tests are started.
    done = subprocess.run(run, env=environment, cwd=tempfile.gettempdir(), capture_output=True, text=True)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stdout + done.stderr


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def snapshot(self, name="a.pickle", steps=40):
        allocator = _simulated.Allocator()
        kept = _leak.train(allocator.empty, steps)
        path = self.folder / name
        path.write_bytes(pickle.dumps(allocator.snapshot()))
        del kept
        return path


class Report(InAFolder):
    def test_a_snapshot_in_a_file_is_drawn_without_pytorch(self):
        path = self.snapshot()
        said = command("report", path)
        page = self.folder / "a.html"
        self.assertTrue(said.startswith(f"{page}: ") and said.endswith("iB\n"), said)
        self.assertTrue("_leak.py" in page.read_text())
        before = page.read_text()
        page.unlink()
        command("report", path, "--out", self.folder / "b.html")
        self.assertTrue((self.folder / "b.html").read_text() == before)

    def test_snapshots_of_several_ranks_have_pages_of_their_own(self):
        data = self.snapshot().read_bytes()
        for name, opened, page in (("run.rank0.pickle", open, "run.rank0.html"), ("run.rank1.pickle.gz", gzip.open, "run.rank1.html")):
            with opened(self.folder / name, "wb") as file:
                file.write(data)
            self.assertTrue(command("report", self.folder / name).startswith(f"{self.folder / page}: "))

    def test_other_viewers_have_files_of_their_own(self):
        folded, perfetto = self.folder / "a.txt", self.folder / "a.json"
        said = command("report", self.snapshot(), "--folded", folded, "--perfetto", perfetto)
        self.assertEqual([line.split(": ")[0] for line in said.splitlines()], [str(perfetto), str(folded)], "no page was asked for")
        live = {line.rsplit(" ", 1)[0].rsplit(";", 1)[1]: int(line.rsplit(" ", 1)[1]) for line in folded.read_text().splitlines()}
        # Eight of 6 MiB that were kept, and the one of the step in which the peak is.
        self.assertEqual(sum(bytes for name, bytes in live.items() if name.startswith("load ") and "_leak.py:" in name), (8 * 6 + 10) << 20)
        self.assertTrue(json.loads(perfetto.read_text())["traceEvents"])

    def test_several_snapshots_share_a_page_and_one_has_its_before(self):
        early, late = self.snapshot("early.pickle", 20), self.snapshot("late.pickle", 60)
        page = self.folder / "both.html"
        command("report", early, late, "-o", page)
        text = page.read_text()
        self.assertTrue("early.pickle" in text and "late.pickle" in text)
        alone, compared = self.folder / "alone.html", self.folder / "compared.html"
        command("report", late, "-o", alone)
        command("report", late, "--before", early, "-o", compared)
        self.assertTrue("early.pickle" in compared.read_text() and "early.pickle" not in alone.read_text())
        self.assertIn("it is read", command("report", late, "--before", early, "-o", early, code=1))

    def test_what_cannot_be_drawn_is_named(self):
        whole = self.snapshot().read_bytes()
        for name, data in (("cut.pickle", whole[: len(whole) // 2]), ("empty.pickle", b""), ("foreign.pickle", b"\x89PNG\r\n\x1a\n\0")):
            (self.folder / name).write_bytes(data)
            said = command("report", self.folder / name, code=1)
            self.assertTrue(said.startswith("error: ") and name in said, said)
            self.assertEqual(len(said.splitlines()), 1, said)
            self.assertFalse((self.folder / name).with_suffix(".html").exists())
        self.assertIn("nothere.pickle", command("report", self.folder / "nothere.pickle", code=1))
        for nameless in ("", "/"):
            self.assertRegex(command("report", nameless, code=1), r"\Aerror: cannot read [./]: it is a folder\n\Z")

    def test_what_is_read_is_not_written_over(self):
        path = self.snapshot()
        data = path.read_bytes()
        self.assertIn("it is read", command("report", path, "-o", path, code=1))
        self.assertEqual(path.read_bytes(), data)

    def test_a_notebook_shows_the_page(self):
        page = _drawing.Page(self.folder / "a.html")
        self.assertIn("cannot be read", page._repr_html_())
        page.path.write_text('<p title="a">b & c</p>')
        self.assertIn('srcdoc="&lt;p title=&quot;a&quot;&gt;b &amp; c&lt;/p&gt;"', page._repr_html_())
        with mock.patch.object(_drawing, "_INLINE_BYTES", 3):
            self.assertNotIn("srcdoc", page._repr_html_())
        self.assertEqual((os.fspath(page), str(page)), (str(page.path),) * 2)

    def test_progress_is_told_and_errors_are_names(self):
        stages = []
        recording = _drawing.file(self.snapshot(), "named")
        page = _drawing.Page(self.folder / "a.html")
        _drawing.draw([recording], page=page, title="A title", progress=lambda *told: stages.append(told))
        self.assertTrue(stages)
        self.assertTrue("A title" in page.path.read_text())
        with self.assertRaisesRegex(ValueError, "named"):
            _drawing.draw([_drawing.Recording(b"nothing", "named")], page=page)


class Top(unittest.TestCase):
    def test_this_process_is_in_the_table_of_another(self):
        library, block = _library.load(), ctypes.c_void_p()
        self.assertEqual(library.cuda_mem_torch_malloc(0, ctypes.c_size_t(48 << 20), None, ctypes.byref(block)), 0)
        self.addCleanup(library.cuda_mem_torch_delete, block)
        lines = command("top", "--once").splitlines()
        at = next(place for place, line in enumerate(lines) if line.split()[:1] == [str(os.getpid())])
        self.assertIn("test_commands.py", lines[at])
        self.assertIn("default stream", lines[at + 1])
        live = lines[at + 1].split()[2:4]
        self.assertEqual(live[1], "MiB")
        self.assertGreaterEqual(float(live[0]), 48)

    def test_two_processes_have_rows_of_their_own(self):
        holds = "import ctypes, sys; from cuda_mem_torch import _library; library, block = _library.load(), ctypes.c_void_p(); " \
            "print(library.cuda_mem_torch_malloc(0, ctypes.c_size_t(int(sys.argv[1]) << 20), None, ctypes.byref(block)), flush=True); sys.stdin.read()"
        processes = {}
        for mib in (100, 300):
            child = subprocess.Popen([sys.executable, "-c", holds, str(mib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.addCleanup(child.communicate)
            self.assertEqual(child.stdout.readline(), "0\n")
            processes[str(child.pid)] = mib
        lines = command("top", "--once").splitlines()
        rows = {line.split()[0]: (line, under) for line, under in zip(lines, lines[1:]) if line.split()[:1] and line.split()[0] in processes}
        self.assertEqual(rows.keys(), processes.keys(), lines)
        for pid, (row, stream) in rows.items():
            # Live bytes of the process, and those of its only stream.
            self.assertRegex(row, rf"MiB +{processes[pid]}\.00 MiB +{processes[pid]}\.00 MiB +0 +0 ")
            self.assertRegex(stream, rf"MiB +{processes[pid]}\.00 MiB .*default stream")

    def test_where_there_is_no_gpu_it_says_so(self):
        library = mock.Mock()
        library.cuda_mem_torch_top_table.return_value = _command_top._UNSUPPORTED
        library.cuda_mem_torch_last_error.return_value = b"no GPU can be seen"
        said = io.StringIO()
        with mock.patch.object(_library, "load", lambda: library), contextlib.redirect_stderr(said):
            code = _command_top.run(types.SimpleNamespace(once=True, interval=1.0))
        self.assertEqual((code, said.getvalue()), (3, "error: no GPU can be seen\n"))

    @unittest.skipIf(Path("/dev/nvidiactl").exists(), "there is a driver")
    def test_without_a_driver_it_says_so_and_ends_with_3(self):
        # In a network of its own no other process of ours is found.
        alone = ["unshare", "--map-root-user", "--net"]
        if shutil.which(alone[0]) is None or subprocess.run([*alone, "true"], capture_output=True).returncode:
            self.skipTest("no network of its own can be had")
        done = subprocess.run([*alone, sys.executable, "-m", "cuda_mem_torch", "top", "--once"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertRegex(done.stderr, r"^error: no GPU can be seen: .*libnvidia-ml.*Is the driver installed, and passed into this container\?\n$")

    def test_an_interval_is_a_number_of_seconds(self):
        for text in ("0.001", "soon", "nan"):
            self.assertIn(f"{text} is not from 0.1 to 3600", command("top", "--interval", text, code=2))


class Output(InAFolder):
    def test_what_cannot_be_written_is_a_line(self):
        snapshot = self.snapshot()
        for words in ([], ["report", snapshot], ["top", "--once"]):
            with open("/dev/full", "w") as full:
                run = [sys.executable, "-m", "cuda_mem_torch", *map(str, words)]
                done = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True)
            if words != ["top", "--once"] or done.returncode != _command_top._NO_GPU:
                self.assertEqual((done.returncode, done.stderr), (1, "error: [Errno 28] No space left on device\n"), words)

    def test_a_reader_that_leaves_is_no_error(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([sys.executable, "-m", "cuda_mem_torch"], stdout=writer, stderr=subprocess.PIPE, text=True)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (1, ""))


class Demo(InAFolder):
    def test_the_page_names_the_line(self):
        page = self.folder / "demo.html"
        said = command("demo", "--simulated", "-o", page)
        self.assertIn("simulated", said)
        line = 1 + next(place for place, text in enumerate(Path(_leak.__file__).read_text().splitlines()) if "return empty((6" in text)
        self.assertTrue("leak.py" in page.read_text() and "_leak.py" not in page.read_text(), "a script as the user's own")
        folded = _drawing.Page(self.folder / "demo.txt")
        _drawing.draw([_drawing.Recording(pickle.dumps(_command_demo._without_gpu()), "demo")], folded=folded)
        self.assertIn(f"(leak.py:{line}) ", folded.path.read_text())

    def test_the_played_allocator_is_sound(self):
        allocator = _simulated.Allocator()
        kept = _leak.train(allocator.empty, 60)
        snapshot = allocator.snapshot()
        [segment] = snapshot["segments"]
        self.assertEqual(sum(block["size"] for block in segment["blocks"]), segment["total_size"])
        live = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
        self.assertEqual(len(live), 4 + 12)
        events = [entry["action"] for entry in snapshot["device_traces"][0]]
        self.assertEqual(events.count("alloc") - events.count("free_completed"), len(live))
        del kept
        self.assertEqual(allocator.snapshot()["segments"][0]["allocated_size"], 0)


PROGRAM = """\
import os, sys, torch
from torch.optim import Optimizer

def empty(size):
    try:
        return torch.empty(size)
    except torch.OutOfMemoryError:
        if "abort" in sys.argv:
            os._exit(9)
        raise

assert not torch.cuda.is_initialized(), "it may fork yet"
optimizer, other = Optimizer(), Optimizer()
if "enable" in sys.argv:
    import cuda_mem_torch
    said = cuda_mem_torch.enable(max_split_size_mb=100)
    assert isinstance(said, cuda_mem_torch.Enabled) and "is not enabled" in str(said) and said.torch == torch.__version__
    assert not cuda_mem_torch.is_enabled()
kept = [empty(100 << 20)]
for step in range(int(sys.argv[1])):
    batch = empty(20 << 20)
    if step == 1:
        torch._C._cuda_resetPeakMemoryStats(0)
    del batch
    optimizer.step()
    other.step()
if "fail" in sys.argv:
    raise KeyError("what the program says")
if "leave" in sys.argv or "leave_native" in sys.argv and "expandable" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
    os._exit(7)
if "wait" in sys.argv:
    import time
    time.sleep(60)
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
if "much" in sys.argv:
    torch.empty(2 << 30)
print("the last line")
"""


class Compare(InAFolder):
    def compare(self, *words, program=("10",), code=0):
        script = self.folder / "train.py"
        script.write_text(PROGRAM)
        options = ["--allocators", "native,expandable", *words]
        return command("compare", *options, "--", script, *program, path=[PLAYED], code=code)

    def run_once(self, *program, steps=None, timeout=60, **order):
        script = self.folder / "train.py"
        script.write_text(PROGRAM)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PLAYED), os.environ.get("PYTHONPATH", "")])}
        runner = _compare_runs.Runner([str(script), *program], self.folder, steps, timeout, environment=environment)
        return runner.run("native", "native", **order)

    def test_a_table_has_what_each_allocator_took(self):
        said = self.compare("--no-page", "--rounds", "2")
        rows = [line.split() for line in said.splitlines()]
        native = next(row for row in rows if row[:1] == ["native"])
        expandable = next(row for row in rows if row[:1] == ["expandable"])
        # The program reset its peaks, and they count all the same.
        self.assertEqual(native[1:6], ["120.00", "MiB", "180.00", "MiB", "1.500"])
        self.assertEqual(expandable[1:6], ["120.00", "MiB", "120.00", "MiB", "1.000"])
        self.assertIn("PyTorch 2.11.0+played   a played device   10 steps", said)
        self.assertTrue(said.endswith("Done.\n"), said)
        titles = next(line for line in said.splitlines() if line.startswith("ALLOCATOR"))
        row = next(line for line in said.splitlines() if line.startswith("native"))
        self.assertEqual(titles.index("PEAK LIVE") + len("PEAK LIVE"), row.index("120.00 MiB") + len("120.00 MiB"), "aligned")

    def test_a_page_has_all_of_them(self):
        page = self.folder / "compare.html"
        said = self.compare("-o", page)
        self.assertTrue(said.endswith(f"Done. Page: {page}\n"), said)
        text = page.read_text()
        self.assertTrue("native" in text and "expandable" in text)

    def test_the_smallest_limit_is_searched_for(self):
        said = self.compare("--no-page", "--limit")
        cells = {line.split()[0]: line.split()[-2:] for line in said.splitlines() if line.startswith(("native", "expandable"))}
        # Between what is live and what is reserved there is nothing to be had here.
        self.assertGreaterEqual(float(cells["native"][0]), 179)
        self.assertEqual(cells["expandable"], ["120.00", "MiB"])

    def test_a_limit_is_shared_among_devices(self):
        runner = _compare_runs.Runner(["train.py"], self.folder)

        def run(_allocator, _what, limit):
            # The second device needs 120 MiB.
            return _compare_runs.Run("end" if limit[1] >= 120 << 20 else "memory", "")

        free = _compare_runs.Run("end", "", peak_live=100 << 20, peak_reserved=200 << 20, reserved_of=[50 << 20, 150 << 20])
        with mock.patch.object(runner, "run", run):
            limit = runner.smallest_limit("native", free) / (1 << 20)
        self.assertTrue(160 <= limit <= 163.3, limit)

    def test_a_program_ends_after_its_steps(self):
        done = self.run_once("1000000", steps=6)
        self.assertEqual((done.end, done.steps), ("steps", 6), "of the first optimizer alone")
        self.assertGreater(done.seconds_a_step, 0)
        self.assertIsNone(self.run_once("2").seconds_a_step, "there is nothing to be timed")

    def test_how_a_program_failed_is_said(self):
        done = self.run_once("3", "fail")
        self.assertEqual((done.end, done.text), ("error", "KeyError: 'what the program says'"))
        done = self.run_once("3", "much")
        self.assertEqual((done.end, done.text), ("memory", "CUDA out of memory. Tried to allocate 2147483648 bytes"))
        self.assertEqual(done.peak_live, 120 << 20)
        done = self.run_once("3", "leave")
        self.assertEqual((done.end, done.text, done.went_well), ("crash", "the program ended with exit code 7 and left no result", False))
        said = self.compare("--no-page", program=("3", "fail"), code=1)
        self.assertIn("KeyError", said)
        self.assertIn("  | ", said)

    def test_a_run_that_crashes_takes_no_rows_with_it(self):
        why = "native round 1 of 2: the program ended with exit code 7 and left no result"
        said = self.compare("--no-page", "--rounds", "2", program=("3", "leave_native"), code=1)
        rows = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.startswith(("native  ", "expandable"))}
        self.assertEqual((rows["native"], rows["expandable"][:4]), (["-"] * 7 + ["crashed"], ["120.00", "MiB", "120.00", "MiB"]))
        self.assertIn("PyTorch 2.11.0+played   a played device   3 steps\n", said)
        self.assertIn("Not every run came to its end", said)
        self.assertIn(f"\nerror: 2 of 4 runs failed: {why}; native round 2 of 2: ", said)

    def test_a_run_that_lasts_too_long_is_a_row(self):
        done = self.run_once("3", "wait", timeout=1)
        self.assertEqual((done.end, done.text), ("timeout", "the program was still running after 1 s (--timeout)"))
        rows = _command_compare.rows({"native": [done, _compare_runs.Run("end", "", peak_live=100, peak_reserved=200)]}, {})
        self.assertEqual((rows[1][1], rows[1][-1]), ("100 B", "timed out"), "the figures of the other round")

    def test_a_search_for_a_limit_goes_on_after_a_crash(self):
        said = self.compare("--no-page", "--limit", program=("3", "abort"))
        row = next(line for line in said.splitlines() if line.startswith("native")).split()
        self.assertGreaterEqual(float(row[-2]), 179)

    def test_a_page_whose_run_crashed_says_so(self):
        runner = _compare_runs.Runner([str(self.folder / "nothere.py")], self.folder)
        (self.folder / "native-recorded.log").write_text("its last line")
        with mock.patch.object(runner, "run", lambda *_, record: _compare_runs.Run("crash", "why")):
            with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, r"native recorded: why\n  \| its last line"):
                _command_compare._draw(self.folder / "a.html", ["native"], runner, _terminal.Progress())

    def test_where_there_is_nothing_to_compare_there_is_no_table(self):
        for words in (("0", "fail"), ("3", "leave")):
            said = self.compare("--no-page", program=words, code=1)
            self.assertNotIn("ALLOCATOR", said)
            self.assertIn("error: there is nothing to compare: no run left figures of a finished step. 2 of 2 runs failed: native round 1 of 1: ", said)
        self.assertIn("2 steps, too few to be timed", self.compare("--no-page", program=("2",)))
        self.assertIn("1 step, too few", self.compare("--no-page", program=("1",)))
        self.assertIn("no step of an optimizer was seen", self.compare("--no-page", program=("0",)))

    def test_a_program_that_enables_it_is_compared_with_pytorchs_own(self):
        done = self.run_once("3", "enable")
        self.assertEqual((done.end, done.text), ("end", ""))

    def test_devices_that_the_program_hides_are_not_asked_for(self):
        visible = 2

        def memory_stats(device):
            if device >= visible:
                raise RuntimeError("Invalid device argument")
            return {"allocated_bytes.all.peak": 5, "reserved_bytes.all.peak": 7}

        memory = types.SimpleNamespace(memory_stats=memory_stats)
        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(memory=memory, device_count=lambda: visible), _C=types.SimpleNamespace())
        figures = _compare_child.Figures(torch)
        visible = 1
        self.assertEqual(figures.read(), {"peak_live": 5, "peak_reserved": 7, "reserved_of": [7], "retries": 0, "failed": 0})

    def test_a_child_that_the_program_forks_has_no_result(self):
        self.assertEqual(self.run_once("3", "fork").end, "end")

    def test_a_program_without_gpu_memory_is_told_what_to_name(self):
        script = self.folder / "launch.py"
        script.write_text("import torch")
        said = command("compare", "--no-page", "--allocators", "native", "--", script, path=[PLAYED], code=1)
        self.assertIn("Name the script of one rank", said)

    def test_what_is_no_program_is_refused_with_what_is(self):
        for words, text in (
            ([], "no program is named"), (["--"], "no program is named"), (["--", "python3"], "no program is named"),
            (["--", "nothere.py"], "there is no script nothere.py"), (["--steps", "3", "--", __file__], "at least 4"),
            (["--out", self.folder / "nowhere" / "a.html", "--", __file__], "nowhere for the page"),
            (["--out", self.folder, "--", __file__], f"{self.folder} is a folder, not a page"),
        ):
            self.assertIn(text, command("compare", *words, code=1))
        self.assertIn("accepted: native, expandable, cuda-mem", command("compare", "--allocators", "mine", "--", __file__, code=2))
        for seconds in ("0", "-1", "nan", "inf", "soon"):
            self.assertIn(f"{seconds!r} is no number of seconds above 0", command("compare", f"--timeout={seconds}", "--", __file__, code=2))
        for interpreter in ("python", "python3.11", "python3.13t", "python3.13d", "python3-dbg", "/usr/bin/python3.11-dbg"):
            self.assertEqual(_command_compare.program_of(["--", interpreter, "-m", "a.b", "-x"]), ["-m", "a.b", "-x"])
        # A script is no interpreter because its name begins with "python".
        (self.folder / "python_train.py").touch()
        program = [str(self.folder / "python_train.py"), __file__]
        self.assertEqual(_command_compare.program_of(["--", *program]), program)

    def test_settings_stay_but_for_what_chooses_an_allocator(self):
        environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64,backend:native", "CUDA_MEM_TORCH": "1", "A": "b"}
        chosen = _compare_runs.environment_of("native", environment)
        self.assertEqual(chosen, {"A": "b", "CUDA_MEM_TORCH": "0", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})
        chosen = _compare_runs.environment_of("expandable", environment)
        self.assertEqual(chosen["PYTORCH_CUDA_ALLOC_CONF"], "max_split_size_mb:64,expandable_segments:True")
        self.assertNotIn("PYTORCH_CUDA_ALLOC_CONF", _compare_runs.environment_of("cuda-mem", {}))

    def test_a_sentence_says_what_came_of_it(self):
        def run(reserved, step, end="end"):
            return _compare_runs.Run(end, "", 10, 5.0, step, 100, reserved)

        said = _command_compare.summary({"native": [run(200, 0.5)], "cuda-mem": [run(110, 0.51)]})
        self.assertEqual(said, "cuda-mem reserved 45 % less memory than native, and a step took 1.020 times as long.")
        said = _command_compare.summary({"native": [run(200, None)], "cuda-mem": [run(220, None)]})
        self.assertEqual(said, "cuda-mem reserved 10 % more memory than native, and the run took 1.000 times as long.")
        said = _command_compare.summary({"native": [run(200, None, "memory")], "cuda-mem": [run(220, None)]})
        self.assertIn("Not every run", said)
        for names in (("native", "expandable"), ("native", "cuda-mem", "expandable")):
            said = _command_compare.summary({name: [run(200, None, "error" if name == "expandable" else "end")] for name in names})
            self.assertIn("Not every run", said)
        rows = _command_compare.rows({"native": [run(200, None, "memory")], "cuda-mem": [run(220, None)]}, {})
        self.assertEqual([row[-1] for row in rows], ["", "out of memory", ""])

    def test_a_child_takes_its_order(self):
        order = {"allocator": "native", "out": str(self.folder / "out"), "steps": None, "limit": [130 << 20], "record": str(self.folder / "a.pickle")}
        script = self.folder / "train.py"
        script.write_text(PROGRAM)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PLAYED), os.environ.get("PYTHONPATH", "")])}
        child = [sys.executable, "-m", "cuda_mem_torch._compare_child", json.dumps(order), "--", str(script), "4"]
        subprocess.run(child, env=environment, check=True, capture_output=True)
        self.assertEqual(json.loads((self.folder / "out").read_text())["end"], "memory", "130 MiB are not enough for 120 with half as much again")
        self.assertEqual(pickle.loads((self.folder / "a.pickle").read_bytes())["segments"], [])


class Recording(InAFolder):
    """Of a PyTorch that is played."""

    def setUp(self):
        super().setUp()
        self.observers, self.history = [], []
        allocator = _simulated.Allocator()
        self.kept = allocator.empty(5 << 20)
        memory = types.SimpleNamespace(_snapshot=allocator.snapshot, _record_memory_history=self.record_history)
        self.torch = types.ModuleType("torch")
        self.torch.__version__, self.torch.version = "2.11.0", types.SimpleNamespace(cuda="13.0")
        self.torch.cuda = types.SimpleNamespace(memory=memory, init=lambda: None, get_allocator_backend=lambda: "native")
        attach = self.observers.append
        self.torch._C = types.SimpleNamespace(_cuda_isHistoryEnabled=lambda: bool(self.history), _cuda_attach_out_of_memory_observer=attach)
        for patch in (mock.patch.dict(sys.modules, {"torch": self.torch}), mock.patch.object(_recording, "_out_of_memory", _recording._OutOfMemory())):
            patch.start()
            self.addCleanup(patch.stop)

    def record_history(self, enabled="all", max_entries=0, stacks="all", record_pinned_host_memory=False):
        self.history[:] = [(max_entries, stacks, record_pinned_host_memory)] if enabled else []

    def test_a_part_of_a_program_is_recorded(self):
        path = self.folder / "run.html"
        with cuda_mem_torch.record(path, max_entries=77) as page:
            self.assertEqual(self.history, [(77, "python", True)])
        self.assertEqual((self.history, page.path.is_file()), ([], True))
        path.unlink()
        with self.assertRaises(KeyError), cuda_mem_torch.record(path):
            raise KeyError
        self.assertTrue(path.is_file(), "also when an exception ends it")
        self.history.append("somebody else's")
        with cuda_mem_torch.record(path):
            pass
        self.assertEqual(self.history, ["somebody else's"], "it goes on as it was")
        self.history.clear()
        with cuda_mem_torch.record(path):
            cuda_mem_torch.on_oom(self.folder / "oom.html")
        self.assertTrue(self.history, "the page of on_oom() has stacks")

    def test_a_page_that_cannot_be_written_hides_no_error(self):
        nowhere = self.folder / "nowhere" / "run.html"
        nowhere.parent.mkdir()
        with self.assertRaisesRegex(ValueError, "nowhere"), cuda_mem_torch.record(nowhere):
            nowhere.parent.rmdir()
        nowhere.parent.mkdir()
        with self.assertRaises(KeyError), self.assertLogs("cuda_mem_torch", "WARNING"), cuda_mem_torch.record(nowhere):
            nowhere.parent.rmdir()
            raise KeyError
        self.assertEqual(self.history, [])

    def test_a_folder_that_is_missing_is_named_at_once(self):
        nowhere = self.folder / "nowhere"
        for call in (cuda_mem_torch.on_oom, lambda path: cuda_mem_torch.record(path).__enter__()):
            with self.assertRaisesRegex(ValueError, f"there is no folder {nowhere} for the page"):
                call(nowhere / "page.html")
            for name in (self.folder, f"{self.folder}/", os.fsencode(self.folder)):
                with self.assertRaisesRegex(ValueError, f"{self.folder} is a folder, not a page"):
                    call(name)
        self.assertEqual((self.history, self.observers, _recording._out_of_memory.page), ([], [], None))

    def test_a_page_is_written_when_memory_runs_out(self):
        path = self.folder / "oom.html"
        cuda_mem_torch.on_oom(path)
        cuda_mem_torch.on_oom(path)
        [observer] = self.observers
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            observer(0, 3 << 30, 80 << 30, 1 << 20)
            path.unlink()
            observer(0, 3 << 30, 80 << 30, 1 << 20)
        self.assertFalse(path.exists(), "one a minute")
        self.assertEqual(said.getvalue(), f"cuda_mem_torch: GPU 0 ran out of memory at a request of 3.00 GiB; who holds it: {path}\n")

    def test_an_observer_never_raises(self):
        nowhere = self.folder / "nowhere"
        nowhere.mkdir()
        cuda_mem_torch.on_oom(nowhere / "oom.html")
        nowhere.rmdir()
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.observers[0](0, 1, 2, 3)
        self.assertIn("could not be written", said.getvalue())
        cuda_mem_torch.on_oom(None)
        self.assertIsNone(_recording._out_of_memory.page)

    def test_it_follows_to_another_allocator(self):
        _recording.follow(self.torch)
        self.assertEqual(self.observers, [], "nobody asked for it")
        cuda_mem_torch.on_oom(self.folder / "oom.html")
        self.torch.cuda.get_allocator_backend = lambda: "cuda-mem"
        self.history.clear()
        _recording.follow(self.torch)
        _recording.follow(self.torch)
        self.assertEqual((len(self.observers), len(self.history)), (2, 1))

    def test_bad_options_are_named_at_once(self):
        """Also where a recording runs already, so that a later enable() does not fail of them."""
        for _ in range(2):
            for error, options in ((ValueError, {"stacks": "cpp"}), (TypeError, {"max_entries": "many"}), (ValueError, {"max_entries": -1})):
                (value,) = options.values()
                for call in (cuda_mem_torch.on_oom, lambda **options: cuda_mem_torch.record(**options).__enter__()):
                    with self.assertRaisesRegex(error, f"is {value!r}; |is {value}; "):
                        call(**options)
            self.assertEqual((self.observers, _recording._out_of_memory.page), ([], None))
            self.history.append("somebody else's")

    def test_each_rank_has_a_page(self):
        of_rank = _recording._of_rank
        for name in ("a/oom.html", b"a/oom.html"):
            self.assertEqual(of_rank(name, {"RANK": "3", "WORLD_SIZE": "8"}), "a/oom-rank3.html")
        for environment in ({}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "x", "WORLD_SIZE": "8"}):
            self.assertEqual(of_rank("oom.html", environment), "oom.html")
        with mock.patch.dict(os.environ, {"RANK": "3", "WORLD_SIZE": "8"}), cuda_mem_torch.record(self.folder / "run.html"):
            pass
        self.assertEqual([path.name for path in self.folder.iterdir()], ["run-rank3.html"])


class Terminal(unittest.TestCase):
    def test_columns_are_aligned_and_sizes_have_units(self):
        self.assertEqual(_terminal.table([["A", "BB"], ["ccc", "d"]]), "A     BB\nccc    d")
        self.assertEqual([_terminal.size(bytes) for bytes in (7, 1536, 3 << 30)], ["7 B", "1.50 KiB", "3.00 GiB"])

    def test_nothing_is_shown_where_there_is_no_terminal(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            progress = _terminal.Progress()
            progress.part("reading", 1, 2)
            progress.end()
        self.assertEqual(said.getvalue(), "")


if __name__ == "__main__":
    unittest.main()
