"""cuda.core's PinnedMemoryResource: ready time, cached pairs, a pool that is freed, synchronised and allocated again.

Its pools are not open to the device (it never sets access), so nothing travels here: ready means resident.
"""

import statistics
import sys

import rounds

try:
    import cuda.core
    from cuda.core import Device, PinnedMemoryResource, PinnedMemoryResourceOptions
except ImportError as error:
    rounds.say(skip=str(error))
    sys.exit()

device = Device(0)
device.set_current()
stream = device.create_stream()


def resource():
    """A pool of its own: the default one may keep what others set."""
    return PinnedMemoryResource(PinnedMemoryResourceOptions())


def allocate(pool, size):
    buffer = pool.allocate(size, stream=stream)
    stream.sync()
    return buffer


def ready(_participant, arguments):
    size = int(arguments["bytes"])
    before = rounds.Reading()

    def make():
        pool = resource()
        return pool, allocate(pool, size)

    (pool, buffer), seconds = rounds.timed(make)
    figures = rounds.Reading().since(before, size)

    def give_back():
        buffer.close(stream)
        stream.sync()
        pool.close()

    _, release = rounds.timed(give_back)
    return figures | {"ready": seconds, "release": release}


def pair(_participant, arguments):
    size, pairs = int(arguments["bytes"]), int(arguments["pairs"])
    pool = resource()
    keep = allocate(pool, size)  # The pool keeps its memory while there is no synchronisation.

    def all_pairs():
        for _ in range(pairs):
            pool.allocate(size, stream=stream).close(stream)

    pool.allocate(size, stream=stream).close(stream)
    _, seconds = rounds.timed(all_pairs)
    stream.sync()
    keep.close(stream)
    stream.sync()
    pool.close()
    return {"pair": seconds * 1e9 / pairs}


kept = {}


def again(_participant, arguments):
    size = int(arguments["bytes"])
    if size not in kept:
        pool = resource()
        kept[size] = [pool, allocate(pool, size)]
    pool = kept[size][0]

    def free_and_allocate():
        kept[size][1].close(stream)
        stream.sync()
        kept[size][1] = pool.allocate(size, stream=stream)

    cycles = []
    for _ in range(int(arguments["times"])):
        cycles.append(rounds.timed(free_and_allocate)[1])
        # Whether it is ready is no part of the cycle, and the next one starts on a stream that is.
        stream.sync()
    return {"again": statistics.median(cycles) * 1e6 / (size / (1 << 30))}


rounds.serve({"cuda.core": cuda.core.__version__}, {"ready": ready, "pair": pair, "again": again})
