"""Steps of `run_all.py` on a device that has little left: beside another process, and with other libraries in this one. `neighbours.py NAME`;
`--list` names them. Each prints its figures."""

import ctypes
import datetime
import os
import random
import shutil
import subprocess
import tempfile
import time

from figures import ARMS, GIB, MIB, Beside, Driver, Steps, alone, answer, pytorch, started, until_told

STEPS = Steps()
HERE = os.path.dirname(os.path.abspath(__file__))
# What the neighbour leaves.
LEFT = 2 * GIB
# The largest block of each churn.
LARGEST = (MIB, 8 * MIB, 64 * MIB)
# What has to fit: live bytes and a twentieth of them.
SPARE = 1.05


@STEPS.part
def hold_all_but(left):
    """Another program: takes all of the device but so many bytes, until it is told to end."""
    driver, kept = Driver(), []
    while (more := min(driver.free() - left, GIB)) >= 2 * MIB:
        kept.append(driver.allocate(more // (2 * MIB) * 2 * MIB))
    over = until_told()
    over.wait()
    free = driver.free()
    for address in kept:
        driver.release(address)
    return free


class Churn:
    """Blocks of random sizes, as many as fit into so many live bytes. Each has its number in its first and last bytes, which a part of
    them is looked at for when they go."""

    def __init__(self, torch, most, largest, seed=0):
        self.torch, self.most, self.largest, self.draw = torch, most, largest, random.Random(seed)
        self.blocks, self.live, self.peak = [], 0, 0
        self.allocations, self.fails, self.why, self.wrong = 0, 0, "", 0
        self.numbers = torch.arange(251, dtype=torch.uint8).repeat_interleave(64).view(251, 64)
        self.seen = torch.empty(64, dtype=torch.uint8)

    def free_one(self):
        at = self.draw.randrange(len(self.blocks))
        self.blocks[at], self.blocks[-1] = self.blocks[-1], self.blocks[at]
        block, bytes, number = self.blocks.pop()
        self.live -= bytes
        if number % 25 == 0:
            for part in (block[:64], block[-64:]):
                self.wrong += not self.torch.equal(self.seen.copy_(part), self.numbers[number])

    def allocate_one(self):
        # Sizes are spread evenly over their magnitudes.
        asked = int(512 * (self.largest / 512) ** self.draw.random())
        bytes = -(-asked // 512) * 512
        while self.blocks and self.live + bytes > self.most:
            self.free_one()
        number = self.allocations % 251
        self.allocations += 1
        try:
            block = self.torch.empty(asked, dtype=self.torch.uint8, device="cuda")
        except self.torch.OutOfMemoryError as error:
            self.fails += 1
            self.why = self.why or str(error)[:400]
            return
        block[:64].copy_(self.numbers[number], non_blocking=True)
        block[-64:].copy_(self.numbers[number], non_blocking=True)
        self.blocks.append((block, bytes, number))
        self.live += bytes
        self.peak = max(self.peak, self.live)

    def run(self, seconds, before=lambda: None, after=lambda: None):
        """Allocates and frees for so long; `before` and `after` are called around each allocation."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            before()
            self.allocate_one()
            after()
            if self.blocks and self.draw.random() < 0.3:
                self.free_one()
        return self

    def told(self):
        names = ("allocations", "fails", "why", "wrong", "peak")
        return {name: getattr(self, name) for name in names} | {"reserved": self.torch.cuda.memory_reserved(), "most": self.most}


def within_what_is_left(torch, largest):
    """A churn whose live bytes, and a twentieth of them, fit into what the device has left."""
    free, _ = torch.cuda.mem_get_info()
    return Churn(torch, int((free + torch.cuda.memory_reserved()) / SPARE), largest)


@STEPS.part
def churn_beside(arm, seconds):
    """The program of the step below."""
    torch = pytorch(arm)
    # Its context is there before the neighbour comes.
    torch.empty(1, device="cuda")
    told = []
    with Beside(hold_all_but, LEFT):
        for largest in LARGEST:
            churn = within_what_is_left(torch, largest).run(seconds)
            told.append(churn.told())
            churn.blocks.clear()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    return told


@STEPS.step
def beside_a_neighbour():
    """Another process has all of the device but 2 GiB. Nothing fails whose live bytes and a twentieth fit into that."""
    for arm in reversed(ARMS):
        for largest, told in zip(LARGEST, alone(churn_beside, arm, 10.0)):
            name = f"{arm}, blocks to {largest // MIB} MiB"
            STEPS.figure(f"{name}: live at the peak", told["peak"] / MIB, f"MiB, of {told['most'] / MIB:.0f} that fit with a twentieth")
            STEPS.figure(f"{name}: reserved", told["reserved"] / MIB, "MiB")
            failed = (f"{name}: out of memory", told["fails"], f"times in {told['allocations']} allocations")
            if arm == "cuda-mem":
                STEPS.at_most(*failed, 0)
                STEPS.at_most(f"{name}: blocks with the bytes of others", told["wrong"], "blocks", 0)
            else:
                STEPS.figure(*failed)
            if told["why"]:
                print(f"    {told['why']}", flush=True)


@STEPS.part
def churn_counted(library, seconds):
    """The program of the step below: what the driver was asked in each allocation."""
    counted = ctypes.CDLL(library)
    names = ("counted_asked", "counted_made", "counted_mapped")
    for name in names:
        getattr(counted, name).restype = ctypes.c_ulong
    now = lambda: [getattr(counted, name)() for name in names]
    torch = pytorch("cuda-mem")
    torch.empty(1, device="cuda")
    before, most, refused, growths, asked, fails = [0] * 3, 0, 0, 0, 0, 0

    def begin():
        before[:] = now()

    def end():
        nonlocal most, refused, growths, asked, fails
        questions, made, mapped = (then - first for then, first in zip(now(), before))
        if churn.fails > fails:
            # The error says what is free.
            refused, fails = max(refused, questions), churn.fails
        else:
            # A block may come free behind the question.
            most, growths, asked = max(most, questions), growths + (questions + made + mapped > 0), asked + questions

    with Beside(hold_all_but, LEFT):
        churn = within_what_is_left(torch, 64 * MIB)
        churn.run(seconds, begin, end)
        told = churn.told()
        churn.blocks.clear()
    return told | {"asked": asked, "growths": growths, "most": most, "refused": refused, "made": now()[1]}


@STEPS.step
def one_question_a_growth():
    """How often the driver is asked what is left, with headroom and without, counted between the library and the driver."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print("skipped: there is no C compiler")
        return
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "libcounted.so")
        source = os.path.join(HERE, "counted_driver.c")
        subprocess.run([compiler, "-O1", "-fPIC", "-shared", "-o", library, source, "-ldl"], check=True)
        told = alone(churn_counted, library, 10.0, environment={"CUDA_MEM_DRIVER": library})
    STEPS.at_least("handles made, seen by the counting driver", told["made"], "calls", 1)
    STEPS.at_least("allocations that asked for memory, made or mapped handles", told["growths"], f"of {told['allocations']}", 1)
    STEPS.at_most("cuMemGetInfo in one allocation, at most", told["most"], "calls", 1)
    STEPS.at_most("cuMemGetInfo in one that is refused, its error's included, at most", told["refused"], "calls", 2)
    STEPS.at_most("cuMemGetInfo for each growth", told["asked"] / max(1, told["growths"]), "calls", 1)


def nccl_communicator(torch, rank, world, folder):
    import torch.distributed as dist

    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group(
        "nccl", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60), device_id=torch.device("cuda", rank)
    )
    ones = torch.ones(4 * MIB, device="cuda")
    dist.all_reduce(ones)
    torch.cuda.synchronize()
    assert float(ones[-1].item()) == world, float(ones[-1].item())


def cublas_handle(torch, *_group):
    with torch.cuda.stream(torch.cuda.Stream()):
        for kind in (torch.float32, torch.bfloat16):
            a = torch.ones(1024, 1024, device="cuda", dtype=kind)
            assert float((a @ a)[0, 0].item()) == 1024
    torch.cuda.synchronize()


def lazy_modules(torch, *_group):
    """Kernels of PyTorch's that were not used before: each is of a module that the driver loads now."""
    x = torch.rand(1 << 16, device="cuda")
    found = [torch.special.erfinv(x), torch.special.bessel_j0(x), torch.sort(x).values, torch.cumsum(x, 0), torch.fft.rfft(x).abs()]
    found.append(torch.histc(x, 100))
    image = torch.rand(2, 3, 64, 64, device="cuda")
    found.append(torch.nn.functional.conv2d(image, torch.rand(8, 3, 3, 3, device="cuda")))
    found.append(torch.linalg.cholesky(torch.eye(64, device="cuda")))
    torch.cuda.synchronize()
    assert all(bool(torch.isfinite(one[one == one]).any()) for one in found)


def graph_of_many_nodes(torch, *_group):
    x, graph = torch.zeros(1024, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(2000):
            x.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert float(x[0].item()) == 2000, float(x[0].item())


@STEPS.part
def at_the_brim(arm, rank, world, folder):
    """The program of the step below: what came of each library, and of allocations before and behind it."""
    torch = pytorch(arm)
    torch.cuda.set_device(rank)
    torch.ones(1, device="cuda").sum().item()
    free, total = torch.cuda.mem_get_info()
    reserve = min(GIB, max(256 * MIB, total // 100))
    churn = Churn(torch, int((free - reserve) / 1.25), 64 * MIB).run(8.0)
    # Memory of somebody else in the process: there is the reserve left, and no headroom.
    driver, others = Driver(rank), []
    while (more := min(torch.cuda.mem_get_info()[0] - reserve - 64 * MIB, GIB)) >= 2 * MIB:
        others.append(driver.allocate(more // (2 * MIB) * 2 * MIB))
    told = {"free_before": torch.cuda.mem_get_info()[0], "fails_before": churn.fails, "came": {}}
    fails = churn.fails
    for library in (nccl_communicator, cublas_handle, lazy_modules, graph_of_many_nodes):
        # The program goes on meanwhile, and may take what there is.
        churn.run(1.0)
        try:
            library(torch, rank, world, folder)
            told["came"][library.__name__] = ""
        except Exception as error:
            told["came"][library.__name__] = f"{type(error).__name__}: {str(error)[:300]}"
    told["free_after"] = torch.cuda.mem_get_info()[0]
    churn.run(1.0)
    return told | {"fails_after": churn.fails - fails, "wrong": churn.wrong}


@STEPS.step
def libraries_at_the_brim():
    """A program has no headroom left, and goes on; then other libraries in it want memory of their own. None fails that does not with
    expandable segments. With two devices NCCL has a rank on each."""
    import torch

    world = min(2, torch.cuda.device_count())
    failed = {}
    for arm in ("expandable", "cuda-mem"):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [started(at_the_brim, arm, rank, world, folder) for rank in range(world)]
            failed[arm] = set()
            for rank, process in enumerate(ranks):
                try:
                    told = answer(process, 150)
                except RuntimeError as error:
                    print(f"    {arm}, device {rank}: {error}", flush=True)
                    failed[arm].add("the whole program")
                    continue
                name = f"{arm}, device {rank}"
                STEPS.figure(f"{name}: free before the libraries", told["free_before"] / MIB, "MiB")
                STEPS.figure(f"{name}: free behind them", told["free_after"] / MIB, "MiB")
                STEPS.figure(f"{name}: out of memory with headroom", told["fails_before"], "times")
                STEPS.figure(f"{name}: out of memory without", told["fails_after"], "times")
                for library, why in told["came"].items():
                    print(f"{name}: {library}: {why or 'well'}", flush=True)
                    if why:
                        failed[arm].add(library)
                if arm == "cuda-mem":
                    STEPS.at_most(f"{name}: blocks with the bytes of others", told["wrong"], "blocks", 0)
    beyond = sorted(failed["cuda-mem"] - failed["expandable"])
    STEPS.figure("libraries that fail and do not with expandable segments", ", ".join(beyond) or "none", "", "none", not beyond)


if __name__ == "__main__":
    STEPS.main()
