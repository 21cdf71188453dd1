"""PyTorch's symmetric memory between two ranks, each a process with a GPU: one backend for the life of the processes."""

import multiprocessing
import os
import socket
import sys
import time

import pairs
import rounds

LEN = 512
RANKS = 2
BACKENDS = {"torch-cuda": "CUDA", "torch-nccl": "NCCL", "torch-nvshmem": "NVSHMEM"}

# Switch multicast is not compared, and machines that share a switch with others must not try it.
OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


class Rank:
    """One of the two, when its process group is there and its backend is not."""

    def __init__(self, number, port, words):
        import torch
        import torch.distributed
        import torch.distributed._symmetric_memory as symmetric

        self.torch, self.symmetric, self.number, self.words = torch, symmetric, number, words
        self.turn = 0
        self.device = torch.device("cuda", number)
        torch.cuda.set_device(self.device)
        self.target = torch.zeros(LEN, dtype=torch.uint8, device=self.device)
        torch.distributed.init_process_group(
            "nccl",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=number,
            world_size=RANKS,
            device_id=self.device,
        )
        # So that the communicator is there too.
        torch.distributed.barrier()
        self.group = torch.distributed.group.WORLD.group_name
        self.pool = None
        # What stays: each of the next allocations is new memory.
        self.kept = []
        self.large = None
        # Why the other rank's memory has no address here, if it has none: the rest is measured all the same.
        self.unreadable = None
        torch.cuda.synchronize()

    @property
    def other(self):
        return RANKS - 1 - self.number

    def meet(self, said=0):
        """Waits for the other rank, awake, without the device; the larger of what both have said."""
        self.turn += 1
        even = 2 * (self.turn % 2)
        self.words[2 + even + self.number] = said
        self.words[self.number] = self.turn
        end = time.monotonic() + pairs.PATIENCE
        while self.words[self.other] < self.turn:
            if time.monotonic() > end:
                raise RuntimeError("the other rank does not come")
        return max(self.words[2 + even], self.words[3 + even])

    def empty(self, size):
        return self.symmetric.empty(size, dtype=self.torch.uint8, device=self.device)

    def rendezvous(self, tensor):
        handle = self.symmetric.rendezvous(tensor, self.group)
        if handle is None:
            raise RuntimeError("the backend does not know the tensor")
        return handle

    def buffer(self, handle, size):
        return handle.get_buffer(self.other, (size,), self.torch.uint8)

    def read_back(self, tensor, handle, stamp):
        """Each rank writes, and finds what the other has written."""
        if self.unreadable:
            return
        tensor[:LEN].fill_(stamp + 128 * self.number)
        self.torch.cuda.synchronize()
        self.meet()
        self.expect(self.buffer(handle, LEN), stamp + 128 * self.other)
        self.meet()

    def expect(self, source, value):
        self.target.copy_(source)
        if not bool((self.target == value).all().item()):
            raise RuntimeError("the other rank's bytes are not what it has written")

    def start(self, backend, arguments):
        """From a process group to the first memory that the other rank can be read in."""
        size = int(arguments["bytes"])
        self.meet()
        start = pairs.now()
        # The default one is not to be found by its name.
        if self.symmetric.get_backend(self.device) != backend:
            self.symmetric.set_backend(backend)
        tensor = self.empty(size)
        handle = self.rendezvous(tensor)
        taken = self.meet(pairs.now() - start)
        try:
            self.buffer(handle, LEN)
        except RuntimeError as error:
            self.unreadable = str(error).splitlines()[0]
        self.read_back(tensor, handle, 1)
        self.kept.append((tensor, handle))
        return {"start": taken / 1e6}

    def inside(self, backend, arguments):
        """Tensors of a pool over the backend's allocator, whose segment has met before."""
        times, size = int(arguments["times"]), int(arguments["bytes"])
        if self.pool is None:
            # The one that PyTorch has itself does not split its segments.
            self.pool = self.torch.cuda.MemPool(self.symmetric.get_mempool_allocator(self.device))
        held, taken = [], []
        with self.torch.cuda.use_mem_pool(self.pool):
            for _ in range(times):
                tensor = self.torch.empty(size, dtype=self.torch.uint8, device=self.device)
                held.append((tensor, self.rendezvous(tensor)))
            self.meet()
            del tensor
            held.clear()
            for _ in range(times):
                self.meet()
                start = pairs.now()
                tensor = self.torch.empty(size, dtype=self.torch.uint8, device=self.device)
                allocated = pairs.now() - start
                self.meet()
                start = pairs.now()
                handle = self.rendezvous(tensor)
                taken.append(allocated + pairs.now() - start)
                held.append((tensor, handle))
        self.meet()
        return pairs.percentiles(taken)

    def fresh(self, backend, arguments):
        times, size = int(arguments["times"]), int(arguments["bytes"])
        taken = {"fresh": [], "allocate": [], "rendezvous": [], "first_read": []}
        grown = []
        for number in range(times):
            before = self.torch.cuda.mem_get_info()[0]
            self.meet()
            start = pairs.now()
            tensor = self.empty(size)
            allocated = pairs.now()
            handle = self.rendezvous(tensor)
            met = pairs.now()
            if not self.unreadable:
                self.target.copy_(self.buffer(handle, LEN))
                self.torch.cuda.synchronize()
            end = pairs.now()
            slowest = self.meet(end - start)
            for name, time_taken in (
                ("fresh", slowest),
                ("allocate", allocated - start),
                ("rendezvous", met - allocated),
                ("first_read", end - met),
            ):
                taken[name].append(time_taken / 1e3)
            if self.torch.cuda.mem_get_info()[0] < before:
                grown.append(slowest / 1e3)
            self.read_back(tensor, handle, number % 127 + 1)
            self.kept.append((tensor, handle))
        figures = {name: pairs.percentiles(values)["p50"] for name, values in taken.items()}
        if grown:
            figures["grown"] = pairs.percentiles(grown)["p50"]
        return figures

    def read(self, backend, arguments):
        if self.unreadable:
            return {"skip": self.unreadable}
        times, size = int(arguments["times"]), int(arguments["bytes"])
        if self.large is None:
            tensor = self.empty(size)
            self.large = tensor, self.rendezvous(tensor)
        tensor, handle = self.large
        marks = (0, size // 2, size - LEN)
        for stamp, mark in enumerate(marks, 1):
            tensor[mark : mark + LEN].fill_(stamp)
        self.torch.cuda.synchronize()
        self.meet()
        rate = 0
        if self.number == 0:
            source, target = self.buffer(handle, size), self.torch.empty_like(tensor)
            for _ in range(2):
                target.copy_(source)
            self.torch.cuda.synchronize()
            start = pairs.now()
            for _ in range(times):
                target.copy_(source)
            self.torch.cuda.synchronize()
            rate = times * size / (pairs.now() - start)
            for stamp, mark in enumerate(marks, 1):
                self.expect(target[mark : mark + LEN], stamp)
        self.meet()
        return {"rate": rate}


def live(number, port, words, pipe):
    """A rank's process."""
    try:
        rank = Rank(number, port, words)
        pipe.send({})
        while (asked := pipe.recv()) is not None:
            case, backend, arguments = asked
            pipe.send(getattr(rank, case)(backend, arguments))
    except EOFError:
        pass
    except Exception as error:
        pipe.send(pairs.complain(error))
    # What a library does at the end of a process is not measured, and takes all ranks.
    os._exit(0)


class Crew:
    def __init__(self):
        context = multiprocessing.get_context("spawn")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        words = context.RawArray("Q", 6)
        self.pipes, self.processes = [], []
        for number in range(RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=live, args=(number, port, words, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.hear()

    def hear(self):
        """What the first says. A rank that complains is heard before one that waits for it."""
        answers = [None] * RANKS
        end = time.monotonic() + 2 * pairs.PATIENCE
        while None in answers:
            for number, pipe in enumerate(self.pipes):
                if answers[number] is None and pipe.poll(0.05):
                    try:
                        answers[number] = pipe.recv()
                    except EOFError:
                        answers[number] = "it ended without a word"
                if isinstance(answers[number], str):
                    raise RuntimeError(f"rank {number}: {answers[number]}")
            if time.monotonic() > end:
                raise RuntimeError("the ranks say nothing")
        return answers[0]

    def ask(self, case, backend, arguments):
        for pipe in self.pipes:
            pipe.send((case, backend, arguments))
        return self.hear()

    def end(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


staying = {}


def start(participant, arguments):
    """Of processes that have a context and a process group, and nothing of symmetric memory."""
    crew = Crew()
    try:
        return crew.ask("start", BACKENDS[participant], arguments)
    finally:
        crew.end()


def case(name):
    def play(participant, arguments):
        backend = BACKENDS[participant]
        if participant not in staying:
            staying[participant] = Crew()
            try:
                staying[participant].ask("start", backend, {"bytes": 1 << 20})
            except Exception:
                staying.pop(participant).end()
                raise
        try:
            figures = staying[participant].ask(name, backend, arguments)
        except Exception:
            # The ranks have come apart, and other cases may go well.
            staying.pop(participant).end()
            raise
        if "skip" in figures:
            raise rounds.Skip(figures["skip"])
        return figures

    return play


if __name__ == "__main__":
    for name, value in OFF.items():
        os.environ.setdefault(name, value)
    try:
        import torch
        import torch.distributed._symmetric_memory
    except ImportError as error:
        rounds.say(skip=str(error))
        sys.exit()
    if torch.cuda.device_count() < RANKS:
        rounds.say(skip=f"needs {RANKS} GPUs")
        sys.exit()
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    rounds.serve(versions, {"start": start, **{name: case(name) for name in ("inside", "fresh", "read")}})
