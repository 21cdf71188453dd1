"""How many streams that wait can be destroyed: `python3 ci/measure/ended_streams.py`, with the driver's library or the one in `CUDA_MEM_DRIVER`.

A stream waits for a word of the host, and 300 others for that stream; each of them is destroyed. Meanwhile another thread records an event
again and again, to see whether it is held up. After four seconds the word is written.
"""

import ctypes
import os
import threading
import time

COUNT = 300
NON_BLOCKING, NO_TIMING, EQUAL = 1, 2, 1
# Calls of it let other threads of Python go on.
DRIVER = ctypes.CDLL(os.environ.get("CUDA_MEM_DRIVER", "libcuda.so.1"))


def call(name, *arguments):
    code = getattr(DRIVER, name)(*arguments)
    if code != 0:
        raise SystemExit(f"{name}: error {code}")


def made(name, *arguments):
    """A handle that a function writes to its first argument."""
    handle = ctypes.c_void_p()
    call(name, ctypes.byref(handle), *arguments)
    return handle


def begin():
    call("cuInit", 0)
    call("cuCtxSetCurrent", made("cuDevicePrimaryCtxRetain", 0))


def main():
    begin()
    word = made("cuMemHostAlloc", ctypes.c_size_t(4096), 0)
    number = ctypes.c_uint32.from_address(word.value)
    number.value = 0
    first, event, beside = made("cuStreamCreate", NON_BLOCKING), made("cuEventCreate", NO_TIMING), made("cuEventCreate", NO_TIMING)
    call("cuStreamWaitValue32_v2", first, ctypes.c_uint64(word.value), 1, EQUAL)
    call("cuEventRecord", event, first)
    streams = [made("cuStreamCreate", NON_BLOCKING) for _ in range(COUNT)]
    other = made("cuStreamCreate", NON_BLOCKING)
    for stream in streams:
        call("cuStreamWaitEvent", stream, event, 0)
    destroyed, recorded = [0], [0]

    def destroy():
        begin()
        for stream in streams:
            call("cuStreamDestroy_v2", stream)
            destroyed[0] += 1

    def record():
        begin()
        while destroyed[0] < COUNT:
            call("cuEventRecord", beside, other)
            recorded[0] += 1
            time.sleep(0.01)

    threads = [threading.Thread(target=destroy), threading.Thread(target=record)]
    for thread in threads:
        thread.start()
    for half in range(1, 9):
        time.sleep(0.5)
        print(f"{half / 2:.1f} s: {destroyed[0]} of {COUNT} destroyed, {recorded[0]} records in another thread", flush=True)
    number.value = 1
    for thread in threads:
        thread.join()
    print(f"the word is written: {destroyed[0]} of {COUNT} destroyed")


main()
