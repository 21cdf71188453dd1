"""What the package does without a GPU: options, errors, and that what it needs is in it.

Run as ``python test_package.py``, with the package on ``PYTHONPATH`` or installed. PyTorch is played where it is needed."""

import os
import subprocess
import sys
import tempfile
import types
import unittest
import warnings
from pathlib import Path
from unittest import mock

import cuda_mem_torch
from cuda_mem_torch import _doctor, _drawing, _install, _library, _pinning, _seeing, _settings, _sharing, _shim, _torch


def fake_torch(version="2.11.0+cu130", cuda="13.0"):
    torch = types.ModuleType("torch")
    torch.__version__ = version
    torch.version = types.SimpleNamespace(cuda=cuda)
    torch.cuda = types.SimpleNamespace()
    return torch


class Versions(unittest.TestCase):
    def load(self, torch):
        with mock.patch.dict(sys.modules, {"torch": torch}):
            return _torch.load()

    def test_the_supported_one_is_taken(self):
        for version in ("2.11.0+cu130", "2.11.0+cu126", "2.12.1", "2.13.0+cu130", "2.14.1", "2.15.0+cu132"):
            self.assertEqual(self.load(fake_torch(version)).__version__, version)
        self.assertEqual(_torch.version_of("2.11.1a0+git1234"), (2, 11))

    def test_others_are_refused_with_what_to_do(self):
        refused = {
            "2.9.1": "2.9.1, which is too old; supported are the releases 2.11 to 2.15: pip install 'torch==2.15",
            "2.16.0+cu132": "2.16.0.cu132, which is too new; supported.*upgrade cuda_mem_torch",
            "2.15.0.dev20260901+cu130": "2.15.0.dev20260901.cu130, which is no release but a nightly.*torch==2.15",
            "2.12.0a0+git1234": "a candidate or a vendor's build.*torch==2.12",
            "2.13.0a0+1234567890.nv26.06": "a vendor's build",
            "2.13.0rc1": "a candidate",
            "main": "which is none; supported",
        }
        for version, text in refused.items():
            with self.assertRaisesRegex(cuda_mem_torch.UnsupportedTorchError, text):
                self.load(fake_torch(version))
        for version, built, hip in (("2.11.0+cpu", "the CPU alone", None), ("2.13.0+rocm7.0", "ROCm", "7.0.51831")):
            torch = fake_torch(version, None)
            torch.version.hip = hip
            with self.assertRaisesRegex(cuda_mem_torch.UnsupportedTorchError, f"built without CUDA, for {built}"):
                self.load(torch)

    def test_a_missing_one_is_said_to_be(self):
        with self.assertRaisesRegex(cuda_mem_torch.UnsupportedTorchError, "Install it first: pip install"):
            self.load(None)

    def test_enable_says_so_too(self):
        with mock.patch.dict(sys.modules, {"torch": None}), mock.patch.object(_library, "set_settings"):
            with self.assertRaisesRegex(cuda_mem_torch.UnsupportedTorchError, "could not be imported"):
                cuda_mem_torch.enable()


class Sharing(unittest.TestCase):
    """What goes to other processes, of a PyTorch that is played."""

    def rebuilt(self, fails, opens=False, known=False, handle=b"\x02e"):
        """Whether a rebuild of a tensor raised, and how often its count was given back."""
        torch, reductions = fake_torch(), types.ModuleType("torch.multiprocessing.reductions")
        reductions.shared_cache, storage_class = {}, mock.Mock()
        reductions.storage_from_cache = lambda cls, key: "storage" if known else None

        def rebuild_cuda_tensor(
            storage_cls, storage_device, storage_handle, storage_size_bytes, storage_offset_bytes, ref_counter_handle, ref_counter_offset
        ):
            if opens:
                reductions.shared_cache[storage_handle, storage_offset_bytes] = "storage"
            if fails:
                raise RuntimeError("pidfd_getfd: Operation not permitted")

        reductions.rebuild_cuda_tensor = rebuild_cuda_tensor
        multiprocessing = types.ModuleType("torch.multiprocessing")
        multiprocessing.reductions = reductions
        modules = {"torch": torch, "torch.multiprocessing": multiprocessing, "torch.multiprocessing.reductions": reductions}
        with mock.patch.dict(sys.modules, modules):
            _sharing.give_back_refused(torch)
            first = reductions.rebuild_cuda_tensor
            _sharing.give_back_refused(torch)
        self.assertIs(reductions.rebuild_cuda_tensor, first)
        self.assertEqual(first.__qualname__, rebuild_cuda_tensor.__qualname__)
        try:
            first(storage_class, 0, handle, 8, 16, b"counter", ref_counter_offset=5)
            raised = False
        except RuntimeError:
            raised = True
        for call in storage_class._release_ipc_counter.mock_calls:
            self.assertEqual(call, mock.call(b"counter", 5, device=0))
        return raised, storage_class._release_ipc_counter.call_count

    def test_a_refused_import_gives_the_count_back(self):
        self.assertEqual(self.rebuilt(fails=True), (True, 1))

    def test_a_count_is_given_back_once(self):
        self.assertEqual(self.rebuilt(fails=False), (False, 0))
        # The storage gives it back, or PyTorch did.
        self.assertEqual(self.rebuilt(fails=True, opens=True), (True, 0))
        self.assertEqual(self.rebuilt(fails=True, known=True), (True, 0))
        # Nothing was counted.
        self.assertEqual(self.rebuilt(fails=True, handle=None), (True, 0))

    def test_what_another_library_put_there_stays(self):
        """SGLang's and those like it, whose arguments have no names."""
        torch, reductions = fake_torch(), types.ModuleType("torch.multiprocessing.reductions")
        reductions.rebuild_cuda_tensor = theirs = lambda *words: words
        multiprocessing = types.ModuleType("torch.multiprocessing")
        multiprocessing.reductions = reductions
        modules = {"torch": torch, "torch.multiprocessing": multiprocessing, "torch.multiprocessing.reductions": reductions}
        with mock.patch.dict(sys.modules, modules):
            _sharing.give_back_refused(torch)
        self.assertIs(reductions.rebuild_cuda_tensor, theirs)


class Settings(unittest.TestCase):
    def test_keywords_go_before_the_environment(self):
        environment = "max_split_size_mb:200, roundup_power2_divisions:[64:8,>:1],expandable_segments:True"
        text = _settings.merge(environment, {"max_split_size_mb": 100, "garbage_collection_threshold": None})
        self.assertEqual(text, "roundup_power2_divisions:[64:8,>:1],expandable_segments:True,max_split_size_mb:100")
        text = _settings.merge("", {"roundup_power2_divisions": {4: 2, ">": 1}})
        self.assertEqual(text, "roundup_power2_divisions:[4:2,>:1]")
        text = _settings.merge("", {"graph_capture_record_stream_reuse": True})
        self.assertEqual(text, "graph_capture_record_stream_reuse:True")

    def test_numbers_of_other_libraries_are_written_as_pythons(self):
        class Half(float):
            def __repr__(self):
                return f"np.float64({float(self)})"

        class Whole:
            def __index__(self):
                return 100

            def __repr__(self):
                return "np.int64(100)"

        for value, text in ((0.5, "0.5"), (Half(0.5), "0.5"), (100, "100"), (Whole(), "100"), (True, "True")):
            self.assertEqual(_settings.value_text("max_split_size_mb", value), text)
        text = _settings.value_text("roundup_power2_divisions", {Whole(): Whole(), ">": 1})
        self.assertEqual(text, "[100:100,>:1]")

    def test_a_key_has_the_value_that_was_given_last(self):
        text = "backend:native, roundup_power2_divisions:[64:8,>:1],backend:cudaMallocAsync"
        self.assertEqual(_settings.named(text, "backend"), "cudaMallocAsync")
        self.assertEqual(_settings.named(text, "roundup_power2_divisions"), "[64:8,>:1]")
        self.assertIsNone(_settings.named(text, "max_split_size_mb"))

    def test_the_first_variable_counts(self):
        self.assertEqual(_settings.from_environment({}), "")
        both = {"PYTORCH_ALLOC_CONF": "a:1", "PYTORCH_CUDA_ALLOC_CONF": "b:1"}
        self.assertEqual(_settings.from_environment(both), "b:1")
        self.assertEqual(_settings.from_environment({"PYTORCH_ALLOC_CONF": "a:1"}), "a:1")

    def test_what_is_no_value_is_refused(self):
        with self.assertRaisesRegex(TypeError, "accepted: a number"):
            _settings.merge("", {"max_split_size_mb": "many"})
        with self.assertRaisesRegex(TypeError, "accepted: True, False"):
            _settings.merge("", {"graph_capture_record_stream_reuse": "yes"})

    def test_the_library_checks_them(self):
        notes = []
        _library.set_settings("max_split_size_mb:128,release_lock_on_cudamalloc:False", notes.append)
        self.assertEqual(len(notes), 1)
        self.assertIn("release_lock_on_cudamalloc:False changes nothing", notes[0])
        _library.set_settings("graph_capture_record_stream_reuse:True", notes.append)
        self.assertEqual(len(notes), 1)
        with self.assertRaisesRegex(ValueError, "accepted: True, False"):
            _library.set_settings("graph_capture_record_stream_reuse:1", notes.append)
        with self.assertRaisesRegex(ValueError, 'max_split_size_mb is invalid: "1"; accepted: at least large_segment_size_mb, which is 20'):
            _library.set_settings("max_split_size_mb:1", notes.append)
        with self.assertRaisesRegex(ValueError, "the settings are backend"):
            _library.set_settings("max_split:1", notes.append)
        _library.set_settings("", notes.append)


class Enabling(unittest.TestCase):
    """What `enable()` asks of the library and of a PyTorch that is played."""

    def setUp(self):
        self.torch = fake_torch("2.15.0+cu132", "13.2")
        self.torch._C = types.SimpleNamespace(_accelerator_setAllocatorSettings=mock.Mock())
        self.torch.cuda.is_initialized = lambda: False
        self.state = 1
        patches = [
            mock.patch.dict(sys.modules, {"torch": self.torch}),
            mock.patch.dict(os.environ, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:100"}),
            mock.patch.object(_shim, "install"),
            mock.patch.object(_shim, "uninstall"),
            mock.patch.object(_shim, "has_pinned", lambda torch: False),
            mock.patch.object(_shim, "install_pinned"),
            mock.patch.object(_shim, "uninstall_pinned"),
            mock.patch.object(_shim, "state", lambda torch: self.state),
            mock.patch.object(_install.symmetric, "offer"),
            mock.patch.object(_sharing, "give_back_refused"),
            mock.patch.dict(_install._options, clear=True),
            mock.patch.dict(_install._fractions, clear=True),
        ]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(_library.set_settings, "", lambda note: None)

    def test_options_add_up(self):
        given = self.torch._C._accelerator_setAllocatorSettings
        cuda_mem_torch.enable(max_split_size_mb=64)
        given.assert_called_with("max_split_size_mb:64")
        cuda_mem_torch.enable(garbage_collection_threshold=0.5, expandable_segments=True)
        # Last what PyTorch keeps: a value that it refuses comes before.
        added = "max_split_size_mb:64,garbage_collection_threshold:0.5,expandable_segments:True"
        given.assert_called_with(added)
        with self.assertRaises(ValueError):
            cuda_mem_torch.enable(max_split_size_mb=1)
        self.assertEqual(cuda_mem_torch.enable().settings, added)

    def test_a_refused_call_leaves_what_there_was(self):
        given = self.torch._C._accelerator_setAllocatorSettings
        given.side_effect = [None, ValueError("refused"), None]
        cuda_mem_torch.enable(large_segment_size_mb=40)
        with self.assertRaisesRegex(ValueError, "refused"):
            cuda_mem_torch.enable(large_segment_size_mb=60, pinned=False)
        given.assert_called_with("large_segment_size_mb:20,max_split_size_mb:100,large_segment_size_mb:40")
        _shim.uninstall.assert_not_called()
        # Before PyTorch's settings are touched.
        _shim.uninstall_pinned.side_effect = cuda_mem_torch.CudaMemError("still in tensors")
        with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "still in tensors"):
            cuda_mem_torch.enable(expandable_segments=False, pinned=False)
        self.assertEqual(given.call_count, 3)
        self.state = 0
        with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "still in tensors"):
            cuda_mem_torch.enable(pinned=False)
        _shim.uninstall.assert_called_once_with(self.torch)

    def test_options_end_with_disable(self):
        given, fractions = self.torch._C._accelerator_setAllocatorSettings, {0: 0.5, 1: 1.0}
        self.torch.cuda = types.SimpleNamespace(
            is_initialized=lambda: True, device_count=lambda: 2, get_per_process_memory_fraction=fractions.get,
            set_per_process_memory_fraction=lambda fraction, device: fractions.update({device: fraction}),
        )
        with mock.patch.object(_install, "is_enabled", return_value=True):
            for share in (0.25, 0.125):
                cuda_mem_torch.enable(per_process_memory_fraction=share)
            fractions[1] = 0.75
            cuda_mem_torch.disable()
            self.assertEqual(fractions, {0: 0.5, 1: 0.75}, "the program has said another one")
            # What the program has said of others stays.
            self.assertEqual(given.call_args_list[-2:], [mock.call("per_process_memory_fraction:1.0"), mock.call("max_split_size_mb:100")])
            # Named before CUDA was used, so that nothing was there before.
            self.torch.cuda.is_initialized = lambda: False
            cuda_mem_torch.enable(per_process_memory_fraction=0.125)
            self.torch.cuda.is_initialized, fractions[0] = lambda: True, 0.125
            with mock.patch.dict(os.environ, {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.875"}):
                cuda_mem_torch.disable()
            self.assertEqual(fractions, {0: 0.875, 1: 0.75})

    def test_it_gives_what_runs(self):
        running = cuda_mem_torch.enable()
        self.assertEqual((running.torch, running.cuda, running.late), ("2.15.0+cu132", "13.2", False))
        for words in ("PyTorch 2.15.0+cu132 (CUDA 13.2)", "from the first allocation on", "max_split_size_mb:100"):
            self.assertIn(words, repr(running))
        self.state = 2
        self.assertIn("earlier memory is PyTorch's own", repr(cuda_mem_torch.enable()))
        # The program may still change the environment.
        self.torch._C._accelerator_setAllocatorSettings.assert_not_called()

    def test_pinned_memory_may_stay_pytorchs(self):
        cuda_mem_torch.enable()
        _shim.install_pinned.assert_called_once_with(self.torch)
        cuda_mem_torch.enable(pinned=False)
        _shim.uninstall_pinned.assert_called_once_with(self.torch)
        # It stays so until something else is named, and is none of PyTorch's settings.
        self.assertEqual(cuda_mem_torch.enable().settings, "max_split_size_mb:100")
        _shim.install_pinned.assert_called_once_with(self.torch)
        with self.assertRaisesRegex(TypeError, "pinned is 3; accepted: True, False"):
            cuda_mem_torch.enable(pinned=3)

    def test_names_are_public(self):
        for kind in (cuda_mem_torch.CudaMemError, cuda_mem_torch.UnsupportedTorchError):
            self.assertEqual(kind.__module__, "cuda_mem_torch")
        self.torch.cuda.MemPool = type("MemPool", (), {})
        self.assertIsInstance(self.torch.cuda.MemPool(), cuda_mem_torch.MemPool)
        self.assertNotIsInstance(3, cuda_mem_torch.MemPool)


class Reports(unittest.TestCase):
    def report(self, path):
        """Where a report is written, of a PyTorch that is played."""
        torch = fake_torch()
        torch.cuda.memory = types.SimpleNamespace(_snapshot=dict)
        with mock.patch.object(_seeing, "_enabled", lambda what: torch), mock.patch.object(_drawing, "draw") as draw:
            page = cuda_mem_torch.report(path)
        self.assertIs(draw.call_args.kwargs["page"], page)
        return bytes(page)

    def test_a_path_is_bytes_of_the_file_system(self):
        self.assertEqual(self.report(Path("a/ü.html")), os.fsencode("a/ü.html"))
        self.assertEqual(self.report(b"a/\xff.html"), b"a/\xff.html")

    def test_a_path_that_c_would_cut_is_refused_as_open_does(self):
        for path in ("a.html\0.txt", b"a.html\0.txt"):
            with self.assertRaisesRegex(ValueError, "null"):
                self.report(path)


class Autoload(unittest.TestCase):
    def autoload(self, value, torch=None):
        with mock.patch.dict(os.environ, {"CUDA_MEM_TORCH": value}), mock.patch.dict(sys.modules, {"torch": torch}):
            _install._autoload()

    def test_nothing_happens_unless_it_is_asked_for(self):
        with mock.patch.object(_install, "enable") as enable, mock.patch.object(_sharing, "give_back_refused") as give_back:
            for value in ("0", "false", "No", "off"):
                self.autoload(value, fake_torch())
            give_back.assert_not_called()
            # A process that asks for nothing gives tensors back that it is sent and cannot open.
            self.autoload("", fake_torch())
            give_back.assert_called_once()
        enable.assert_not_called()

    def test_all_ways_to_say_yes_enable(self):
        with mock.patch.object(_install, "enable") as enable:
            for value in ("1", "true", "Yes", "on ", "require"):
                self.autoload(value, fake_torch())
        self.assertEqual(enable.call_count, 5)

    def test_what_keeps_it_from_enabling_is_a_warning(self):
        """Not the end of ``import torch``, unless the variable insists."""
        with mock.patch.object(_install, "enable", side_effect=cuda_mem_torch.UnsupportedTorchError("PyTorch is 2.99")) as enable:
            with self.assertWarnsRegex(UserWarning, "CUDA_MEM_TORCH=1 does nothing: PyTorch is 2.99"):
                self.autoload("1", fake_torch())
            with self.assertRaisesRegex(cuda_mem_torch.UnsupportedTorchError, "2.99"):
                self.autoload("require", fake_torch())
            self.assertEqual(enable.call_count, 2)
            with self.assertWarnsRegex(UserWarning, "CUDA_MEM_TORCH=maybe does nothing: accepted: 1, true"):
                self.autoload("maybe", fake_torch())
            self.assertEqual(enable.call_count, 2)

    def test_without_cuda_it_warns(self):
        with self.assertWarnsRegex(UserWarning, "built without CUDA"):
            self.autoload("1", fake_torch("2.11.0+cpu", None))

    def test_another_backend_that_is_asked_for_stays(self):
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:20,backend:cudaMallocAsync,release_lock_on_cudamalloc:none"}
        with mock.patch.object(_install, "enable") as enable, mock.patch.dict(os.environ, settings):
            with self.assertWarnsRegex(UserWarning, "does nothing: PyTorch's settings ask for backend:cudaMallocAsync"):
                self.autoload("1", fake_torch())
            enable.assert_not_called()
            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:native"
            self.autoload("1", fake_torch())
        enable.assert_called_once_with()

    def test_importing_initialises_nothing(self):
        torch = fake_torch()
        torch.cuda.is_available = mock.Mock()
        with mock.patch.object(_install, "enable") as enable:
            self.autoload("1", torch)
        enable.assert_called_once_with()
        torch.cuda.is_available.assert_not_called()


class Parts(unittest.TestCase):
    def test_nothing_is_enabled(self):
        self.assertFalse(cuda_mem_torch.is_enabled())
        cuda_mem_torch.disable()
        with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "call cuda_mem_torch.enable"):
            cuda_mem_torch.stats()

    def test_the_package_imports_without_pytorch(self):
        words = "import sys, cuda_mem_torch; assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", words], check=True)

    def test_a_compiler_is_told_everything(self):
        paths = [Path("/t/include"), [Path("/c/include")], Path("/t/lib")]
        command = _shim.compile_command(_shim.ALLOCATOR, (2, 11), "c++", Path("/x/shim.so"), *paths)
        sources = {Path(word).name for word in command if word.endswith(".cpp")}
        self.assertEqual(sources, {"shim.cpp"})
        self.assertIn("-ltorch_cpu", command)
        self.assertIn("-L/t/lib", command)
        # One build for every CUDA.
        self.assertFalse([word for word in command if "cudart" in word])
        command = _shim.compile_command(_shim.SYMMETRIC, (2, 14), "c++", Path("/x/symmetric.so"), *paths)
        self.assertIn("-std=c++20", command)
        self.assertEqual({Path(word).name for word in command if word.endswith(".cpp")}, {"backend.cpp"})
        self.assertIn("-ltorch_cpu", command)
        self.assertEqual(_shim.SYMMETRIC.prebuilt((2, 14)).name, "libcuda_mem_torch_symmetric_2_14.so")

    def test_without_headers_the_build_says_what_to_install(self):
        with tempfile.TemporaryDirectory() as folder:
            torch = fake_torch()
            torch.__file__ = f"{folder}/torch/__init__.py"
            with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder, "CXX": "c++"}):
                with mock.patch.object(_shim, "cuda_folders", lambda: [Path(folder)]):
                    with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "pip install nvidia-cuda-crt"):
                        _shim.build(torch)

    def test_only_cpu_memory_is_pinned(self):
        storage = types.SimpleNamespace(data_ptr=lambda: 0, nbytes=lambda: 0)
        tensor = types.SimpleNamespace(device=types.SimpleNamespace(type="cpu"), untyped_storage=lambda: storage)
        with self.assertRaisesRegex(ValueError, "no memory"):
            _pinning.pin(tensor)
        tensor.device = types.SimpleNamespace(type="cuda")
        with self.assertRaisesRegex(ValueError, "only CPU tensors"):
            _pinning.unpin(tensor)

    def test_pinning_reaches_the_driver(self):
        import ctypes

        memory = ctypes.create_string_buffer(8192)
        cuda_mem_torch.pin_memory(ctypes.addressof(memory), 8192)
        with self.assertRaises(cuda_mem_torch.CudaMemError):
            cuda_mem_torch.pin_memory(ctypes.addressof(memory), 8192)
        cuda_mem_torch.unpin_memory(ctypes.addressof(memory))

    def test_numbers_that_are_no_memory_are_named(self):
        for address, size, error in ((4096, -1, "size is -1; it must be"), (-4096, 1, "data_ptr is -4096"), (4096, 1 << 64, "size is")):
            with self.assertRaisesRegex(ValueError, error):
                cuda_mem_torch.pin_memory(address, size)
        with self.assertRaises(TypeError):
            cuda_mem_torch.pin_memory(4096.5, 1)

    def test_a_driver_that_is_not_there_is_no_wrong_argument(self):
        words = "import cuda_mem_torch\ntry: cuda_mem_torch.pin_memory(4096, 1)\nexcept cuda_mem_torch.CudaMemError as error: print(error)"
        environment = os.environ | {"CUDA_MEM_DRIVER": "/nowhere/libcuda.so.1"}
        said = subprocess.run([sys.executable, "-c", words], env=environment, check=True, capture_output=True, text=True).stdout
        self.assertIn("CUDA_MEM_DRIVER", said)

    def test_a_device_that_is_none_is_not_drawn(self):
        for device in (-1, 1 << 32):
            with self.assertRaisesRegex(ValueError, f"the device is {device}, which is none; accepted: a number from 0 on"):
                _drawing.draw([], device=device)

    def test_the_doctor_says_what_does_not_fit(self):
        """Here PyTorch is missing; the driver is the simulated one, or none."""
        def diagnosed(**variables):
            words = "import sys; sys.modules['torch'] = None; from cuda_mem_torch import _doctor; sys.exit(_doctor.diagnose())"
            done = subprocess.run([sys.executable, "-c", words], env=os.environ | variables, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, done)
            return done.stdout

        said = diagnosed()
        self.assertRegex(said, r"ok +package +cuda_mem_torch")
        self.assertRegex(said, r"error +PyTorch +PyTorch could not be imported")
        self.assertRegex(said, r"ok +driver +for CUDA \d+\.\d+, \d+ device")
        self.assertRegex(said, r"ok +device 0 ")
        self.assertIn("not all is well: 1 error\n", said)
        self.assertRegex(diagnosed(CUDA_MEM_DRIVER="/nowhere/libcuda.so.1"), "error +driver +there is no CUDA driver: /nowhere")
        said = diagnosed(PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
        self.assertRegex(said, "error +settings +PyTorch's settings ask for backend:cudaMallocAsync")
        self.assertRegex(diagnosed(CUDA_MEM_TORCH="2"), "error +settings +CUDA_MEM_TORCH=2; accepted: 1, true")
        # PyTorch takes all but 1 for no.
        for value in ("0", "true", ""):
            said = diagnosed(CUDA_MEM_TORCH="1", TORCH_DEVICE_BACKEND_AUTOLOAD=value)
            self.assertRegex(said, f"error +settings +CUDA_MEM_TORCH=1 does nothing: TORCH_DEVICE_BACKEND_AUTOLOAD={value} keeps")
        self.assertRegex(diagnosed(CUDA_MEM_TORCH="1", TORCH_DEVICE_BACKEND_AUTOLOAD="1"), "ok +settings +CUDA_MEM_TORCH=1")
        self.assertRegex(diagnosed(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:1"), "error +settings +max_split_size_mb is invalid")

    def test_the_doctor_names_what_restricts(self):
        with tempfile.TemporaryDirectory() as folder:
            scope = Path(folder, "ptrace_scope")
            scope.write_text("1\n")
            with mock.patch.object(_doctor, "_PTRACE_SCOPE", scope):
                (finding,) = _doctor._sharing("sharing")
        self.assertEqual(finding.state, "note")
        self.assertIn("ptrace_scope is 1", finding.text)
        limits = {_doctor.resource.RLIMIT_NOFILE: (256, 256), _doctor.resource.RLIMIT_AS: (1 << 30, 1 << 30)}
        with mock.patch.object(_doctor.resource, "getrlimit", limits.get):
            notes = [finding.text for finding in _doctor._limits("limits")]
        self.assertEqual([note.split(" is ")[0] for note in notes], ["ulimit -v", "ulimit -n"])

    def test_pins_end_with_their_memory_or_scope(self):
        import ctypes

        class Storage:
            """As PyTorch's, which is an object as long as its memory."""

            def __init__(self):
                self.memory = ctypes.create_string_buffer(8192)

            def data_ptr(self):
                return ctypes.addressof(self.memory)

            def nbytes(self):
                return 8192

        def tensor():
            storage = Storage()
            return types.SimpleNamespace(device=types.SimpleNamespace(type="cpu"), untyped_storage=lambda: storage)

        torch = fake_torch()
        torch.cuda.init = lambda: None
        with mock.patch.dict(sys.modules, {"torch": torch}):
            one = tensor()
            for _ in range(2):
                with cuda_mem_torch.pinned(one):
                    with self.assertRaises(cuda_mem_torch.CudaMemError):
                        cuda_mem_torch.pin(one)
            cuda_mem_torch.pin(one)
            address = one.untyped_storage().data_ptr()
            memory = one.untyped_storage().memory
            del one
            # It was unpinned when its storage went.
            cuda_mem_torch.pin_memory(address, 8192)
            cuda_mem_torch.unpin_memory(address)
            self.assertEqual(len(memory), 8192)
        self.assertFalse(_pinning._pinned)

    def test_only_device_memory_is_held_still(self):
        storage = types.SimpleNamespace(data_ptr=lambda: 4096)
        tensor = types.SimpleNamespace(device=types.SimpleNamespace(type="cpu"), untyped_storage=lambda: storage)
        with self.assertRaisesRegex(ValueError, "accepted: tensors on CUDA devices"):
            with cuda_mem_torch.hold_still(tensor):
                self.fail("it was held")
        with self.assertRaisesRegex(TypeError, "a tensor is needed, and this is of the type list"):
            with cuda_mem_torch.hold_still([tensor]):
                self.fail("it was held")

    def test_statistics_print_themselves(self):
        blocks = [{"size": 3 << 20, "state": "inactive"}, {"size": 5 << 20, "state": "active_allocated"}]
        segment = {"device": 0, "stream": 0x70, "segment_pool_id": (0, 0), "total_size": 8 << 20, "active_size": 5 << 20, "blocks": blocks}
        figures = {"allocated_bytes.all.current": 5 << 20, "active_bytes.all.current": 5 << 20, "reserved_bytes.all.current": 8 << 20, "num_ooms": 2}
        stats = cuda_mem_torch.Stats(0, figures, [segment, segment | {"device": 1}])
        self.assertEqual((stats.reserved, stats.active, stats.ratio, stats["num_ooms"]), (8 << 20, 5 << 20, 1.6, 2))
        self.assertEqual(stats.streams, [cuda_mem_torch.StreamStats(0x70, (0, 0), 8 << 20, 5 << 20, 3 << 20, 3 << 20)])
        for words in ("device 0", "8.00 MiB", "1.600", "out of memory 2 times", "0x70", "default", "3.00 MiB"):
            self.assertIn(words, str(stats))
        self.assertEqual(stats._repr_html_().count("<table>"), 2)
        self.assertEqual(repr(stats), "<Stats of device 0: 5.00 MiB active of 8.00 MiB reserved>")

    def test_the_command_takes_no_other_words(self):
        for words, code in ((["--help"], 0), (["nonsense"], 2)):
            done = subprocess.run([sys.executable, "-m", "cuda_mem_torch", *words], capture_output=True, text=True)
            self.assertEqual(done.returncode, code, done.stderr)

    def test_a_forgotten_stream_is_known_no_more(self):
        import ctypes

        driver, library = ctypes.CDLL(os.environ["CUDA_MEM_DRIVER"]), _library.load()
        context, block, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.assertEqual(driver.cuInit(0), 0)
        self.assertEqual(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), 0)
        self.assertEqual(driver.cuCtxSetCurrent(context), 0)
        self.assertEqual(driver.cuStreamCreate(ctypes.byref(stream), 1), 0)
        external = types.SimpleNamespace(device_index=0, cuda_stream=stream.value, stream_id=stream.value)

        def allocate():
            code = library.cuda_mem_torch_malloc(0, ctypes.c_size_t(3 << 20), stream, ctypes.byref(block))
            return code or library.cuda_mem_torch_delete(block)

        def beside_a_capture(do):
            self.assertEqual(driver.cuStreamBeginCapture_v2(stream, 2), 0)
            try:
                return do()
            finally:
                self.assertEqual(driver.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_void_p())), 0)

        for forget in (lambda: cuda_mem_torch.forget_stream(external), lambda: cuda_mem_torch.forget_stream(stream.value, 0)):
            self.assertEqual(allocate(), 0)
            with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "captur"):
                beside_a_capture(forget)
            self.assertEqual(beside_a_capture(allocate), 0, "it was not forgotten")
            # Once more is nothing.
            forget(), forget()
            self.assertEqual(beside_a_capture(allocate), 7, "it has to be seen before")

    def test_only_streams_of_others_are_forgotten(self):
        forget = cuda_mem_torch.forget_stream
        with self.assertRaisesRegex(ValueError, r"forget_stream\(handle, device\)"):
            forget(4096)
        with self.assertRaisesRegex(ValueError, "never destroyed"):
            forget(0, 0)
        of_a_pool = types.SimpleNamespace(device_index=0, cuda_stream=4096, stream_id=3)
        with self.assertRaisesRegex(ValueError, "of PyTorch's own"):
            forget(of_a_pool)
        with self.assertRaisesRegex(ValueError, "the device is 9"):
            forget(4096, 9)
        external = types.SimpleNamespace(device_index=0, cuda_stream=4096, stream_id=4096)
        with self.assertRaisesRegex(ValueError, "of device 0, not of 1"):
            forget(external, 1)

    def test_numbers_that_are_no_stream_are_named(self):
        class Handle:
            def __index__(self):
                return 4096

        cuda_mem_torch.forget_stream(Handle(), 0)
        for handle in (-1, 1 << 64):
            with self.assertRaisesRegex(ValueError, rf"the handle is {handle}; it must be from 0 to 2\*\*64 - 1"):
                cuda_mem_torch.forget_stream(handle, 0)
        with self.assertRaisesRegex(ValueError, "the device is 4294967296"):
            cuda_mem_torch.forget_stream(4096, 1 << 32)

    def test_everything_public_is_documented(self):
        for name in cuda_mem_torch.__all__:
            self.assertTrue(getattr(cuda_mem_torch, name).__doc__, name)
        self.assertTrue((_library.FOLDER / "py.typed").is_file())


class Sleep(unittest.TestCase):
    """Tags on the simulator, with tensors and PyTorch played."""

    def setUp(self):
        torch = fake_torch()
        torch.cuda._utils = types.SimpleNamespace(_get_device_index=lambda device, optional: 0 if device is None else int(device))
        for patch in (mock.patch.object(_install, "is_enabled", return_value=True), mock.patch.object(_torch, "load", return_value=torch)):
            patch.start()
            self.addCleanup(patch.stop)

    def tensor(self, size):
        import ctypes

        block = ctypes.c_void_p()
        _library.check(_library.load().cuda_mem_torch_malloc(0, ctypes.c_size_t(size), None, ctypes.byref(block)))
        self.addCleanup(lambda: _library.check(_library.load().cuda_mem_torch_delete(block)))
        storage = types.SimpleNamespace(data_ptr=lambda: block.value, nbytes=lambda: size)
        return types.SimpleNamespace(
            untyped_storage=lambda: storage, data_ptr=lambda: block.value, is_contiguous=lambda: True, numel=lambda: size,
            element_size=lambda: 1, shape=(size,), device=types.SimpleNamespace(type="cuda"),
        )

    def test_a_tag_sleeps_and_wakes(self):
        with cuda_mem_torch.tag("python") as tag, cuda_mem_torch.tag("inner"):
            inner = self.tensor(12 << 20)
        with tag:
            tensor = self.tensor(80 << 20)
        self.assertEqual(repr(tag), "<cuda_mem_torch tag 'python' of cuda:0>")
        heard = []
        with cuda_mem_torch.on_backing_change(lambda change: heard.append((change.tag, change.is_leaving, change.ranges))) as registrant:
            failing = cuda_mem_torch.on_backing_change(lambda _change: 1 / 0)
            with cuda_mem_torch.keep(tensor, reason="NCCL"):
                slept = cuda_mem_torch.sleep("python")
            self.assertEqual((slept.freed, slept.saved, slept.missing), (0, 0, 0), "all of it was kept")
            self.assertEqual([(kept.stayed, kept.reason) for kept in slept.kept], [(80 << 20, "NCCL")])
            self.assertIn("kept 80.00 MiB for NCCL (83886080 bytes at 0x", str(slept))
            slept = cuda_mem_torch.sleep(["python"], backup="pinned")
            self.assertEqual((slept.freed, slept.saved, slept.kept), (80 << 20, 80 << 20, []))
            self.assertEqual(str(slept), "freed 80.00 MiB, saved 80.00 MiB\na registrant failed: ZeroDivisionError: division by zero")
            self.assertEqual([told.error for told in slept.notices], [None, "ZeroDivisionError: division by zero"])
            state = cuda_mem_torch.state()
            self.assertEqual(state["python"], cuda_mem_torch._sleep.TagState(True, 0, 80 << 20, 80 << 20))
            self.assertFalse(state["inner"].is_asleep)
            self.assertEqual(len(cuda_mem_torch.read_backup(tensor)), 80 << 20)
            with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "whose tag 'python' sleeps"):
                cuda_mem_torch._sleep._refuse_asleep(tensor, "aten.add")
            cuda_mem_torch._sleep._refuse_asleep(inner, "aten.add")
            with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, '"python" sleeps'), tag:
                self.tensor(1 << 20)
            woken = cuda_mem_torch.wake("python", restore=7)
            self.assertEqual(str(woken), "woke 80.00 MiB of python\na registrant failed: ZeroDivisionError: division by zero")
            # A list, as those have it that go through it.
            self.assertEqual([told.error for told in woken], [None, "ZeroDivisionError: division by zero"])
            self.assertEqual((len(woken), isinstance(woken, list), woken.tags), (2, True, {"python": 80 << 20}))
            self.assertEqual(repr(woken), f"Woken({list(woken)!r}, tags={{'python': {80 << 20}}})")
            failing.remove()
        registrant.remove()
        ranges = [(tensor.data_ptr(), 80 << 20)]
        self.assertEqual(heard, [("python", True, ranges), ("python", False, ranges)])
        cuda_mem_torch.sleep(backup="discard")
        self.assertTrue(all(state.is_asleep for state in cuda_mem_torch.state().values()))
        woken = cuda_mem_torch.wake((name for name in ["inner", "python"]), restore=False)
        self.assertEqual((sorted(woken.tags.items()), woken), ([("inner", 12 << 20), ("python", 80 << 20)], []))
        self.assertRegex(str(woken), r"\Awoke 92\.00 MiB of (inner, python|python, inner)\Z")
        self.assertEqual(str(cuda_mem_torch.wake(["inner", "inner"])), "woke 0 B: no tag slept")
        cuda_mem_torch.sleep(["inner", "inner"], backup="discard")
        self.assertEqual(str(cuda_mem_torch.wake(restore=False)), "woke 12.00 MiB of inner", "and not of what was awake")
        self.assertEqual(len(heard), 2)
        self.assertEqual(tag.release_backup(), 80 << 20)
        self.assertEqual((tag.prepare(), tag.release_backup()), (80 << 20, 80 << 20))
        self.assertGreaterEqual(cuda_mem_torch.set_limit(1 << 20), 0)
        cuda_mem_torch.set_limit(None)

    def test_torch_memory_saver_works_on_tags(self):
        from cuda_mem_torch import adapters

        # As release 0.0.10 has it, whose methods hand on to `_impl`.
        module = types.ModuleType("torch_memory_saver")
        facade = module.torch_memory_saver = types.SimpleNamespace(_impl=None)
        with mock.patch.dict(sys.modules, {"torch_memory_saver": module}):
            for value, retains in (("", False), ("0", False), ("1", True), ("TRUE", True)):
                with mock.patch.dict(os.environ, {"TMS_RETAIN_CPU_BACKUP": value}):
                    self.assertEqual(adapters._MemorySaver()._binary_wrapper.cdll.tms_get_retain_cpu_backup(), retains)
            adapters.torch_memory_saver()
            adapters.torch_memory_saver()
            saver = facade._impl
            facade._impl = object()
            with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "was used already"):
                adapters.torch_memory_saver()
        region = {"enable_disk_backup": False, "cpu_backup_backend": None}
        with saver.region(tag="saver", enable_cpu_backup=True, **region):
            weights = self.tensor(12 << 20)
        with saver.region(tag="saver", enable_cpu_backup=False, **region):
            cache = self.tensor(20 << 20)
        with saver.region(tag="other", enable_cpu_backup=False, **region):
            other = self.tensor(30 << 20)

        def asleep():
            return {name: state.asleep >> 20 for name, state in cuda_mem_torch.state().items() if state.asleep}

        saver.pause(tag="saver")
        self.assertEqual(asleep(), {"saver": 20, "saver with backup": 12})
        self.assertEqual(len(cuda_mem_torch.read_backup(weights)), 12 << 20)
        with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "the backup has 0 of"):
            cuda_mem_torch.read_backup(cache)
        saver.resume(tag="saver")
        self.assertEqual((asleep(), cuda_mem_torch.state()["saver with backup"].backup), ({}, 0))
        saver._binary_wrapper.cdll.tms_set_retain_cpu_backup(True)
        self.assertTrue(saver._binary_wrapper.cdll.tms_get_retain_cpu_backup())
        saver.pause(tag=None)
        self.assertEqual(asleep(), {"saver": 20, "saver with backup": 12, "other": 30})
        saver.resume(tag="other")
        self.assertFalse(cuda_mem_torch.state()["other"].is_asleep)
        saver.resume(tag=None)
        self.assertEqual((asleep(), cuda_mem_torch.state()["saver with backup"].backup), ({}, 12 << 20))
        self.assertIsNone(saver.get_cpu_backup(other))
        with saver.region(tag="saver with backup", enable_cpu_backup=False, **region):
            lost = self.tensor(22 << 20)
        saver.pause(tag="saver with backup")
        self.assertEqual(asleep(), {"saver with backup again": 22}, "another tag's backup is not discarded")
        saver.resume(tag=None)
        del lost
        with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "backups on disk"):
            with saver.region(tag="saver", enable_cpu_backup=False, enable_disk_backup=True):
                pass

    def test_vllm_sleeps_on_tags(self):
        from cuda_mem_torch import adapters

        self.addCleanup(sys.modules.pop, "cuda_mem_torch._vllm", None)
        self.addCleanup(adapters._vllm_allocator.cache_clear)
        _torch.load().cuda.empty_cache = lambda: None
        # As release 0.33 has them: `ci/torch/simulated/vllm_worker.py` runs its own files.
        names = ["vllm", "vllm.device_allocator", "vllm.device_allocator.sleep_mode_backend", "vllm.device_allocator.cumem", "vllm.worker"]
        modules = {name: types.ModuleType(name) for name in names}
        package, device, backend, cumem, worker = modules.values()
        package.device_allocator = device
        device.DEFERRABLE_TAGS = ("weights", "kv_cache")
        device.get_mem_allocator_instance = worker.get_mem_allocator_instance = lambda: None
        cumem.CuMemAllocator = types.SimpleNamespace(instance=object())

        class CuMemBackend:
            def suspend(self, level=1):
                offloaded = ("weights", "runtime") if level == 1 else ("runtime",)
                device.get_mem_allocator_instance().sleep(offload_tags=offloaded)

            def resume(self, tags=None):
                device.get_mem_allocator_instance().wake_up(tags)

            def discard(self, tags):
                device.get_mem_allocator_instance().discard(tags)

        registered = []
        backend.CuMemBackend = CuMemBackend
        backend.SleepModeBackendFactory = types.SimpleNamespace(register_backend=lambda *of: registered.append(of))
        with mock.patch.dict(sys.modules, modules):
            with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "was used already"):
                adapters.vllm()
            cumem.CuMemAllocator.instance = None
            with mock.patch.dict(os.environ, {"VLLM_PLUGINS": "others"}):
                adapters._vllm_plugin()
            self.assertEqual(registered, [])
            with mock.patch.dict(os.environ, {"VLLM_PLUGINS": "others,cuda_mem"}):
                adapters._vllm_plugin()
                adapters._vllm_plugin()
            self.assertEqual(registered, [("cuda_mem", "cuda_mem_torch._vllm", "CudaMemBackend")])
            from cuda_mem_torch._vllm import CudaMemBackend

            allocator, ours = worker.get_mem_allocator_instance(), CudaMemBackend()
            self.assertIs(allocator, device.get_mem_allocator_instance())
            self.assertEqual(allocator.get_current_usage(), 0)
            allocator.sleep()
            held = {}
            for number, tag in enumerate(("weights", "kv_cache", "runtime")):
                with allocator.use_memory_pool(tag=tag):
                    held[tag] = self.tensor((10 + 10 * number) << 20)
            self.assertEqual(allocator.get_current_usage() >> 20, 10 + 20 + 30)

            def asleep():
                return {name: state.backup >> 20 for name, state in cuda_mem_torch.state().items() if state.is_asleep}

            ours.suspend(level=1)
            self.assertEqual((asleep(), ours._state), ({"weights": 10, "kv_cache": 0, "runtime": 30}, "SUSPENDED"))
            self.assertEqual(allocator.get_current_usage() >> 20, 10 + 20 + 30)
            with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, '"weights" sleeps'), allocator.use_memory_pool("weights"):
                self.tensor(1 << 20)
            # What sleeps keeps its backup, whatever is asked for.
            ours.discard(("weights", "kv_cache"))
            ours.resume(["weights"])
            self.assertEqual((asleep(), ours._state), ({"kv_cache": 0}, "SUSPENDED"))
            ours.resume()
            self.assertEqual((asleep(), ours._state), ({}, "RUNNING"))
            ours.discard(("kv_cache",))
            self.assertEqual((list(asleep()), ours._state), (["kv_cache"], "SUSPENDED"))
            with mock.patch.object(cuda_mem_torch._sleep, "wake", side_effect=cuda_mem_torch.CudaMemError("no memory")):
                with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "no memory"):
                    ours.resume()
            self.assertEqual(ours._state, "SUSPENDED")
            ours.resume(["kv_cache"])
            self.assertTrue(CudaMemBackend.is_supported() and CudaMemBackend.preserves_communicators())
            self.assertTrue(CudaMemBackend.preserves_compiled_artifacts())
            self.assertFalse(CudaMemBackend.preserves_graphs_with_communicators() or CudaMemBackend.supports_durable_storage())

    def test_what_is_wrong_is_named(self):
        for call, error in (
            (lambda: cuda_mem_torch.sleep(backup="disk"), "backup is 'disk'; accepted: 'pinned', 'discard'"),
            (lambda: cuda_mem_torch.wake(restore=256), "restore is 256; accepted: True, False, a byte"),
            (lambda: cuda_mem_torch.sleep("mistyped"), 'device 0 has no tag "mistyped"; it has'),
            (lambda: cuda_mem_torch.sleep([]), "tags is empty"),
            (lambda: cuda_mem_torch.tag("a\0b"), "null byte"),
            (lambda: cuda_mem_torch.set_limit(-1), "size is -1"),
            (lambda: cuda_mem_torch.sleep(backup=["pinned"]), r"backup is \['pinned'\]; accepted: 'pinned', 'discard'"),
        ):
            with self.assertRaisesRegex(ValueError, error):
                call()
        with self.assertRaisesRegex(TypeError, "a tag is b'python'; accepted: text"):
            cuda_mem_torch.wake(b"python")
        with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "is no memory of any tag"), cuda_mem_torch.keep(self.tensor(100)):
            pass
        with mock.patch.object(_install, "is_enabled", return_value=False):
            with self.assertRaisesRegex(cuda_mem_torch.CudaMemError, "not enabled: call cuda_mem_torch.enable"):
                cuda_mem_torch.sleep()


if __name__ == "__main__":
    unittest.main()
