"""What a pool of another process leaves behind when it is destroyed: `python3 ci/measure/imported_pools.py`, with cuda-bindings and a GPU.

Each line is a process of its own, beside one that exports two blocks of 4 MiB. It imports the pool and the blocks, uses and frees them,
destroys the pool and maps ten times 64 MiB of its own, which all stay. The pool is destroyed before the frees, between them when the
first was reached, behind both, once both were reached, or never.
"""

import os
import socket
import subprocess
import sys

from cuda.bindings import driver

POSIX = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
PINNED = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
NODE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
BLOCK, SEGMENT = 4 << 20, 64 << 20
ORDERS = "before", "between", "behind", "reached", "never"


def call(function, *arguments):
    code, *found = function(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        sys.exit(f"{function.__name__}: {code.name}")
    return found[0] if found else None


def begin():
    """A stream of the first device."""
    call(driver.cuInit, 0)
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, call(driver.cuDeviceGet, 0)))
    return call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)


def access():
    wanted = driver.CUmemAccessDesc()
    wanted.location.type, wanted.location.id = DEVICE, 0
    wanted.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return wanted


def export(channel, node):
    stream = begin()
    properties = driver.CUmemPoolProps()
    properties.allocType, properties.handleTypes = PINNED, POSIX
    properties.location.type, properties.location.id = NODE if node else DEVICE, 0
    pool = call(driver.cuMemPoolCreate, properties)
    if node:
        call(driver.cuMemPoolSetAccess, pool, [access()], 1)
    blocks = [call(driver.cuMemAllocFromPoolAsync, BLOCK, pool, stream) for _ in range(2)]
    call(driver.cuStreamSynchronize, stream)
    descriptor = int(call(driver.cuMemPoolExportToShareableHandle, pool, POSIX, 0))
    exported = [bytes(call(driver.cuMemPoolExportPointer, block).reserved) for block in blocks]
    socket.send_fds(channel, [b"".join(exported)], [descriptor])
    channel.recv(1)


def import_and_map(channel, node, destroyed):
    stream = begin()
    data, descriptors, _, _ = socket.recv_fds(channel, 1024, 1)
    pool = call(driver.cuMemPoolImportFromShareableHandle, descriptors[0], POSIX, 0)
    if node:
        call(driver.cuMemPoolSetAccess, pool, [access()], 1)
    blocks = []
    for half in (data[:len(data) // 2], data[len(data) // 2:]):
        exported = driver.CUmemPoolPtrExportData()
        exported.reserved = half
        blocks.append(call(driver.cuMemPoolImportPointer, pool, exported))
        call(driver.cuMemsetD8Async, blocks[-1], 5, BLOCK, stream)
    call(driver.cuStreamSynchronize, stream)
    if destroyed == "before":
        call(driver.cuMemPoolDestroy, pool)
    call(driver.cuMemFreeAsync, blocks[0], stream)
    if destroyed == "between":
        call(driver.cuStreamSynchronize, stream)
        call(driver.cuMemPoolDestroy, pool)
    call(driver.cuMemFreeAsync, blocks[1], stream)
    if destroyed in ("reached", "never"):
        call(driver.cuStreamSynchronize, stream)
    if destroyed in ("behind", "reached"):
        call(driver.cuMemPoolDestroy, pool)
    properties = driver.CUmemAllocationProp()
    properties.type = PINNED
    properties.location.type, properties.location.id = DEVICE, 0
    refused = []
    for _ in range(10):
        address = call(driver.cuMemAddressReserve, SEGMENT, 0, 0, 0)
        call(driver.cuMemMap, address, SEGMENT, 0, call(driver.cuMemCreate, SEGMENT, properties, 0), 0)
        (code,) = driver.cuMemSetAccess(address, SEGMENT, [access()], 1)
        if code != driver.CUresult.CUDA_SUCCESS:
            refused.append(f"{code.name} {'where a block was' if int(address) in map(int, blocks) else hex(int(address))}")
    kind = "node of the host" if node else "device"
    print(f"{kind:16}  destroyed {destroyed:7}  refused {len(refused)} of 10  {', '.join(refused)}", flush=True)
    channel.send(b"x")


def main():
    if len(sys.argv) > 1:
        role, descriptor, node, destroyed = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4]
        channel = socket.socket(fileno=descriptor)
        return export(channel, node) if role == "export" else import_and_map(channel, node, destroyed)
    for node in (0, 1):
        for destroyed in ORDERS:
            ends = socket.socketpair()
            for end in ends:
                os.set_inheritable(end.fileno(), True)
            what = [str(node), destroyed]
            started = [
                subprocess.Popen([sys.executable, __file__, role, str(end.fileno()), *what], close_fds=False)
                for role, end in zip(("export", "import"), ends)
            ]
            for end in ends:
                end.close()
            if started[1].wait() != 0:
                started[0].kill()
            started[0].wait()
    return None


main()
