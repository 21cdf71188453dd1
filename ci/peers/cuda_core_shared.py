"""cuda.core: a buffer of a shared pool that another process imports.

No fence goes along, so an interprocess event is recorded, sent with the buffer's descriptor, and waited for by the receiver's
stream: the same order as ours.
"""

import ctypes
import multiprocessing
import sys

import pairs
import rounds

LEN = 512


def receive(pipe, handle):
    """The other process: says when its stream is behind the buffer's event, and then what is in the buffer."""
    from cuda.core import Buffer, Device, DeviceMemoryResource, Event, LegacyPinnedMemoryResource

    try:
        device = Device(0)
        device.set_current()
        stream = device.create_stream()
        resource = DeviceMemoryResource.from_allocation_handle(device, handle)
        landed = LegacyPinnedMemoryResource().allocate(LEN, stream=stream)
        seen = (ctypes.c_ubyte * LEN).from_address(int(landed.handle))
        pipe.send("ready")
        while pipe.recv() == "next":
            pipe.send("waiting")
            descriptor, fence = pipe.recv()
            buffer = Buffer.from_ipc_descriptor(resource, descriptor, stream=stream)
            stream.wait(Event.from_ipc_descriptor(fence))
            arrived = pairs.now()
            buffer.copy_to(landed, stream=stream)
            stream.sync()
            pipe.send((arrived, seen[LEN - 1]))
            # Before the exporter frees it.
            buffer.close(stream)
            stream.sync()
            pipe.send("closed")
    except Exception as error:
        pipe.send(pairs.complain(error))


class Sender:
    """A pool, and a process that has it and stays from one round to the next."""

    def __init__(self):
        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.pool = DeviceMemoryResource(self.device, DeviceMemoryResourceOptions(ipc_enabled=True))
        self.pipe, theirs = multiprocessing.Pipe()
        arguments = (theirs, self.pool.allocation_handle)
        self.process = multiprocessing.Process(target=receive, args=arguments, daemon=True)
        self.process.start()
        pairs.expect(self.pipe, "ready")
        # The pool keeps its memory while this lives.
        self.kept = self.pool.allocate(LEN, stream=self.stream)
        self.work = {}

    def keep_busy(self, size):
        if size not in self.work:
            own = DeviceMemoryResource(self.device, DeviceMemoryResourceOptions())
            self.work[size] = [own.allocate(size, stream=self.stream) for _ in range(2)]
        source, target = self.work[size]
        source.copy_to(target, stream=self.stream)


senders = []


def warm(_participant, arguments):
    if not senders:
        senders.append(Sender())
    sender, size = senders[0], int(arguments["work"])
    times = []
    for number in range(int(arguments["rounds"])):
        buffer = sender.pool.allocate(LEN, stream=sender.stream)
        sender.pipe.send("next")
        pairs.expect(sender.pipe, "waiting")
        pairs.linger()
        sender.keep_busy(size)
        buffer.fill(number % 251, stream=sender.stream)
        start = pairs.now()
        event = sender.stream.record(options=EventOptions(ipc_enabled=True))
        sender.pipe.send((buffer.ipc_descriptor, event.ipc_descriptor))
        arrived, seen = pairs.hear(sender.pipe)
        if seen != number % 251:
            raise RuntimeError(f"buffer {number} came with the bytes of another")
        times.append(arrived - start)
        pairs.expect(sender.pipe, "closed")
        buffer.close(sender.stream)
    return pairs.percentiles(times)


if __name__ == "__main__":
    try:
        import cuda.core
        from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions, EventOptions
    except ImportError as error:
        rounds.say(skip=str(error))
        sys.exit()
    # CUDA does not survive a fork.
    multiprocessing.set_start_method("spawn")
    rounds.serve({"cuda.core": cuda.core.__version__}, {"warm": warm})
