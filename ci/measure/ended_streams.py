"""How many streams that wait can be destroyed: `python3 ci/measure/ended_streams.py`, with cuda-bindings and a GPU.

A stream waits for a word of the host, and 300 others for it; each of them is destroyed. A second thread says every half second where the
first one is, and makes an event meanwhile, to see whether others are held up. After four seconds the word is written.
"""

import ctypes
import threading
import time

from cuda.bindings import driver

COUNT = 300


def call(function, *arguments):
    code, *found = function(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{function.__name__}: {code.name}")
    return found[0] if found else None


def begin():
    call(driver.cuInit, 0)
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, call(driver.cuDeviceGet, 0)))


def new_stream():
    return call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)


def main():
    begin()
    word = call(driver.cuMemHostAlloc, 4096, 0)
    ctypes.c_uint32.from_address(int(word)).value = 0
    first, event, beside = new_stream(), call(driver.cuEventCreate, 2), call(driver.cuEventCreate, 2)
    call(driver.cuStreamWaitValue32, first, driver.CUdeviceptr(int(word)), 1, 1)
    call(driver.cuEventRecord, event, first)
    streams, other = [new_stream() for _ in range(COUNT)], new_stream()
    for stream in streams:
        call(driver.cuStreamWaitEvent, stream, event, 0)
    destroyed, recorded = [0], [0]

    def destroy():
        begin()
        for stream in streams:
            call(driver.cuStreamDestroy, stream)
            destroyed[0] += 1

    def record():
        begin()
        while destroyed[0] < COUNT:
            call(driver.cuEventRecord, beside, other)
            recorded[0] += 1
            time.sleep(0.01)

    threads = [threading.Thread(target=destroy), threading.Thread(target=record)]
    for thread in threads:
        thread.start()
    for half in range(1, 9):
        time.sleep(0.5)
        print(f"{half / 2:.1f} s: {destroyed[0]} of {COUNT} destroyed, {recorded[0]} records in another thread", flush=True)
    ctypes.c_uint32.from_address(int(word)).value = 1
    for thread in threads:
        thread.join()
    print(f"the word is written: {destroyed[0]} of {COUNT} destroyed")


main()
