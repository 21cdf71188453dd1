"""What a pool of another process leaves behind when it is destroyed: `python3 ci/measure/imported_pools.py`, with cuda-bindings and a GPU.

Each line is a process of its own, beside one that exports two blocks of 64 MiB. It imports the pool and the blocks, uses and frees them,
destroys the pool and maps twenty times 64 MiB of its own, which all stay: how many of those the driver refuses, and where. A line names
what is done, in this order. The lines of `own` are of the process that exports.
"""

import ctypes
import os
import socket
import subprocess
import sys

from cuda.bindings import driver

POSIX = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
PINNED = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
NODE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
BLOCK = SEGMENT = 64 << 20
MAPPINGS = 20
# `killed`: the other process. `one`: one block is freed and waited for. `behind`: the blocks are freed behind
# another stream's event. `free`: they are freed. `wait`: for the stream of the frees. `query`: an event behind them. `destroy`: the pool.
# `end`: the stream of the frees. `anew`: the primary context is released and retained. `trim`: the pool, to nothing.
ORDERS = [
    "destroy",
    "one destroy",
    "free wait destroy",
    "free destroy",
    "free destroy wait",
    "one free destroy",
    "free destroy end",
    "free destroy wait end",
    "free destroy anew",
    "free destroy end anew",
    "free destroy wait end anew",
    "behind free destroy query end",
    "behind free destroy query wait end",
    "killed free destroy",
    "killed free destroy wait",
    "killed behind free destroy query end anew",
    "killed behind free destroy query wait end anew",
]
ORDERS_OF_OWN = [
    "gone free wait destroy",
    "gone free wait trim destroy",
    "killed free wait trim destroy",
    "killed free wait trim destroy anew",
]


def call(function, *arguments):
    code, *found = function(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{function.__name__}: {code.name}")
    return found[0] if found else None


def context():
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, 0))


def stream():
    return call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)


def access():
    wanted = driver.CUmemAccessDesc()
    wanted.location.type, wanted.location.id = DEVICE, 0
    wanted.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return wanted


def export(channel, node, order):
    """Sends the blocks and waits for the importer's end; then it follows an order of its own, if that is one."""
    context()
    own, properties = stream(), driver.CUmemPoolProps()
    properties.allocType, properties.handleTypes = PINNED, POSIX
    properties.location.type, properties.location.id = NODE if node else DEVICE, 0
    pool = call(driver.cuMemPoolCreate, properties)
    if node:
        call(driver.cuMemPoolSetAccess, pool, [access()], 1)
    blocks = [call(driver.cuMemAllocFromPoolAsync, BLOCK, pool, own) for _ in range(2)]
    call(driver.cuStreamSynchronize, own)
    descriptor = int(call(driver.cuMemPoolExportToShareableHandle, pool, POSIX, 0))
    exported = [call(driver.cuMemPoolExportPointer, block) for block in blocks]
    exported = [ctypes.string_at(one.getPtr(), 64) for one in exported]
    socket.send_fds(channel, [b"".join(exported)], [descriptor])
    channel.recv(1)
    if order in ORDERS_OF_OWN:
        follow(order, channel, pool, blocks, own, own, "own node" if node else "own device")


def mapped():
    """A mapping that stays: where it is, and the driver's word for its access."""
    properties = driver.CUmemAllocationProp()
    properties.type = PINNED
    properties.location.type, properties.location.id = DEVICE, 0
    address = call(driver.cuMemAddressReserve, SEGMENT, 0, 0, 0)
    call(driver.cuMemMap, address, SEGMENT, 0, call(driver.cuMemCreate, SEGMENT, properties, 0), 0)
    return int(address), driver.cuMemSetAccess(address, SEGMENT, [access()], 1)[0]


def import_and_map(channel, node, order):
    context()
    used, home = stream(), stream()
    data, descriptors, _, _ = socket.recv_fds(channel, 1024, 1)
    pool = call(driver.cuMemPoolImportFromShareableHandle, descriptors[0], POSIX, 0)
    if node:
        call(driver.cuMemPoolSetAccess, pool, [access()], 1)
    blocks = []
    for half in (data[:64], data[64:]):
        exported = driver.CUmemPoolPtrExportData()
        ctypes.memmove(exported.getPtr(), half, 64)
        blocks.append(call(driver.cuMemPoolImportPointer, pool, exported))
        call(driver.cuMemsetD8Async, blocks[-1], 5, BLOCK, used)
    call(driver.cuStreamSynchronize, used)
    if order in ORDERS_OF_OWN:
        # As if it had never been, or killed with all that it has.
        for block in blocks if order.startswith("gone") else []:
            call(driver.cuMemFreeAsync, block, home)
        call(driver.cuStreamSynchronize, home)
        channel.send(b"u")
        return channel.recv(1)
    return follow(order, channel, pool, blocks, used, home, "node" if node else "device")


def follow(order, channel, pool, blocks, used, home, where):
    """Does what an order says, and tells what is refused then."""
    were, event, said = [int(block) for block in blocks], call(driver.cuEventCreate, 2), []
    for step in order.split():
        if step == "killed":
            if not where.startswith("own"):
                channel.send(b"k")
                channel.recv(1)
        elif step == "one":
            call(driver.cuMemFreeAsync, blocks.pop(), home)
            call(driver.cuStreamSynchronize, home)
        elif step == "behind":
            call(driver.cuEventRecord, event, used)
            call(driver.cuStreamWaitEvent, home, event, 0)
        elif step == "free":
            while blocks:
                call(driver.cuMemFreeAsync, blocks.pop(0), home)
        elif step == "wait":
            call(driver.cuStreamSynchronize, home)
        elif step == "query":
            call(driver.cuEventRecord, event, home)
            driver.cuEventQuery(event)
        elif step == "destroy":
            (code,) = driver.cuMemPoolDestroy(pool)
            said += [] if code == driver.CUresult.CUDA_SUCCESS else [f"cuMemPoolDestroy {code.name}"]
        elif step == "end":
            call(driver.cuStreamDestroy, home)
        elif step == "trim":
            call(driver.cuMemPoolTrimTo, pool, 0)
        elif step == "anew":
            call(driver.cuDevicePrimaryCtxRelease, 0)
            context()
    refused = [(at, code) for at, code in (mapped() for _ in range(MAPPINGS)) if code != driver.CUresult.CUDA_SUCCESS]
    said += [f"{code.name} {'at a block' if at in were else hex(at)}" for at, code in refused]
    print(f"{where:10}  {order:46}  {len(refused):2} of {MAPPINGS}  {', '.join(said)}", flush=True)


def play(node, order):
    ours, theirs = socket.socketpair()
    to_exporter, from_exporter = socket.socketpair()
    start = lambda role, end: subprocess.Popen(
        [sys.executable, __file__, role, str(end.fileno()), str(node), order], pass_fds=[end.fileno()]
    )
    exporter = start("export", from_exporter)
    # What the exporter sends goes on to the importer, which may ask for its end.
    importer = start("import", theirs)
    theirs.close()
    from_exporter.close()
    data, descriptors, _, _ = socket.recv_fds(to_exporter, 1024, 1)
    if data:
        socket.send_fds(ours, [data], descriptors)
        os.close(descriptors[0])
        said = ours.recv(1)
        if said == b"k":
            exporter.kill()
            exporter.wait()
            ours.send(b"k")
        elif said == b"u" and "killed" in order:
            importer.kill()
    ours.shutdown(socket.SHUT_WR)
    importer.wait()
    if order not in ORDERS_OF_OWN:
        exporter.kill()
    to_exporter.shutdown(socket.SHUT_WR)
    exporter.wait()


def main():
    if len(sys.argv) > 1:
        role, descriptor, node, order = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4]
        call(driver.cuInit, 0)
        channel = socket.socket(fileno=descriptor)
        return (export if role == "export" else import_and_map)(channel, node, order)
    for node in (1, 0):
        for order in [*ORDERS, *ORDERS_OF_OWN] if node else ["free wait destroy", "free destroy wait end anew", *ORDERS_OF_OWN[:1]]:
            play(node, order)
    return None


main()
