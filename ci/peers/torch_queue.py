"""torch.multiprocessing: a CUDA tensor that goes over a queue to another process.

PyTorch sends an event along, which the receiver's stream waits for: the same order as ours.
"""

import sys

import pairs
import rounds

LEN = 512

QUEUES = {
    "torch-queue": lambda context: context.Queue(),
    "torch-simple-queue": lambda context: context.SimpleQueue(),
}


def receive(queue, pipe):
    """The other process: says when it has a tensor, and then what is in it."""
    import torch

    try:
        torch.zeros(1, device="cuda")
        pipe.send("ready")
        # Another tensor of the same memory, so that it stays mapped.
        kept = queue.get()
        pipe.send(int(kept[0].item()))
        while pipe.recv() == "next":
            pipe.send("waiting")
            tensor = queue.get()
            arrived = pairs.now()
            pipe.send((arrived, int(tensor[-1].item())))
            del tensor
    except Exception as error:
        pipe.send(pairs.complain(error))


class Receiver:
    """A process that stays from one round to the next."""

    def __init__(self, queue):
        context = torch.multiprocessing.get_context("spawn")
        self.queue = queue(context)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=receive, args=(self.queue, theirs), daemon=True)
        self.process.start()
        pairs.expect(self.pipe, "ready")
        # All tensors are parts of one segment of PyTorch's allocator, which is mapped at the first of them.
        self.kept = torch.full((LEN,), 7, dtype=torch.uint8, device="cuda")
        self.queue.put(self.kept)
        pairs.expect(self.pipe, 7)


receivers = {}
work = {}


def warm(participant, arguments):
    if participant not in receivers:
        receivers[participant] = Receiver(QUEUES[participant])
    receiver, size = receivers[participant], int(arguments["work"])
    if size not in work:
        work[size] = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    source, target = work[size]
    times = []
    for number in range(int(arguments["rounds"])):
        tensor = torch.empty(LEN, dtype=torch.uint8, device="cuda")
        receiver.pipe.send("next")
        pairs.expect(receiver.pipe, "waiting")
        pairs.linger()
        # A stream that is busy when the tensor is sent.
        target.copy_(source)
        tensor.fill_(number % 251)
        start = pairs.now()
        receiver.queue.put(tensor)
        arrived, seen = pairs.hear(receiver.pipe)
        if seen != number % 251:
            raise RuntimeError(f"tensor {number} came with the bytes of another")
        times.append(arrived - start)
        del tensor
    return pairs.percentiles(times)


if __name__ == "__main__":
    try:
        import torch
        import torch.multiprocessing
    except ImportError as error:
        rounds.say(skip=str(error))
        sys.exit()
    torch.zeros(1, device="cuda")
    rounds.serve({"torch": torch.__version__, "cuda": torch.version.cuda}, {"warm": warm})
