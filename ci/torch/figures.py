"""What the files of measured steps share: how steps are listed and run, how a figure is printed, and processes beside a step."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading

MIB, GIB = 1 << 20, 1 << 30
# PyTorch's allocator, the same with expandable segments, and ours.
ARMS = ("native", "expandable", "cuda-mem")
SETTINGS = {
    "expandable": "expandable_segments:True",
    "registered": "pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
}
_ANSWER = "answer "
_PR_SET_PDEATHSIG = 1


class Steps:
    """The steps of a file, and the parts of them that have a process of their own."""

    def __init__(self):
        self.steps, self.parts, self.missed = {}, {}, []

    def step(self, function):
        self.steps[function.__name__] = function
        return function

    def part(self, function):
        self.parts[function.__name__] = function
        return function

    def figure(self, name, value, unit, wanted="for the record", holds=True):
        """Prints a figure. One that does not hold fails the step at its end, after all others were printed."""
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        print(f"{name}: {text} {unit}; wanted: {wanted}{'' if holds else '; MISSED'}", flush=True)
        if not holds:
            self.missed.append(f"{name} is {text} {unit}, wanted: {wanted}")

    def at_most(self, name, value, unit, bound):
        self.figure(name, value, unit, f"at most {bound:g}", value <= bound)

    def at_least(self, name, value, unit, bound):
        self.figure(name, value, unit, f"at least {bound:g}", value >= bound)

    def main(self):
        """`--list`, a step's name, or `--part` and what `started` passes."""
        asked = sys.argv[1] if len(sys.argv) > 1 else "--help"
        if asked in ("-h", "--help"):
            print(f"{sys.modules['__main__'].__doc__}\nSteps: {', '.join(self.steps)}")
        elif asked not in ("--list", "--part") and asked not in self.steps:
            sys.exit(f"there is no step {asked}; there are {', '.join(self.steps)}")
        elif asked == "--list":
            print("\n".join(self.steps))
        elif sys.argv[1] == "--part":
            # Whoever ends a step that takes too long ends its parts.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
            say(self.parts[sys.argv[2]](*json.loads(sys.argv[3])))
        else:
            self.steps[sys.argv[1]]()
            if self.missed:
                raise AssertionError("; ".join(self.missed))


def say(answer):
    """What a part returns; one that does not come to its end says it itself."""
    print(_ANSWER + json.dumps(answer), flush=True)


def pytorch(arm):
    """PyTorch, with an allocator of `ARMS` or a setting of `SETTINGS`, from the start."""
    import torch

    assert not torch.cuda.is_initialized()
    if arm == "cuda-mem":
        import cuda_mem_torch

        cuda_mem_torch.enable()
    elif arm in SETTINGS:
        torch._C._accelerator_setAllocatorSettings(SETTINGS[arm])
    backend = torch.cuda.get_allocator_backend()
    assert backend == ("cuda-mem" if arm == "cuda-mem" else "native"), backend
    return torch


def started(part, *arguments, environment=None):
    """A part of a step in a fresh process, which runs beside this one until `answer` is asked for."""
    file = os.path.abspath(sys.modules[part.__module__].__file__)
    command = [sys.executable, file, "--part", part.__name__, json.dumps(arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | (environment or {})
    )


def answer(process, timeout=200):
    """What a part returned, once it has ended. Raises what it wrote if it failed."""
    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
        raise RuntimeError(f"a part ran past {timeout} s; it had printed: {out[-500:]} {errors[-1500:]}") from None
    lines = [line for line in out.splitlines() if line.startswith(_ANSWER)]
    if process.returncode != 0 or not lines:
        raise RuntimeError(f"a part ended with {process.returncode}: {out[-500:]} {errors[-1500:]}")
    return json.loads(lines[-1].removeprefix(_ANSWER))


def alone(part, *arguments, environment=None, timeout=200):
    """What a part returns that has a process of its own."""
    return answer(started(part, *arguments, environment=environment), timeout)


class Beside:
    """A part that is told to go on and to end by its standard input: it prints `ready` when it is. Its answer is there afterwards."""

    def __init__(self, part, *arguments):
        self.process, self.answer = started(part, *arguments), None

    def __enter__(self):
        line = self.process.stdout.readline().strip()
        if line != "ready":
            raise RuntimeError(f"the process beside this one is not ready: {line} {self.process.communicate()[1][-1500:]}")
        return self

    def __exit__(self, kind, _error, _trace):
        if kind is not None:
            self.process.kill()
            self.process.communicate()
            return
        # It ends when its standard input does.
        self.answer = answer(self.process)


def until_told():
    """In a part: says that it is ready, and gives an event that is set when the step has no more need of it."""
    over = threading.Event()

    def wait():
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    print("ready", flush=True)
    return over


class Driver:
    """The CUDA driver without PyTorch, in the primary context of a device."""

    def __init__(self, ordinal=0):
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} answers {code}")

    def free(self):
        """Bytes that the device has free."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, bytes):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(bytes))
        return address

    def release(self, address):
        self.call("cuMemFree_v2", address)


def two_devices(torch):
    """Whether there are two. Says so if not: the step is skipped then."""
    if torch.cuda.device_count() >= 2:
        return True
    print("skipped: there is one device")
    return False
