"""Pools of cuda.core in two processes: one makes and exports them, the other imports them and writes.

The other process is spawned: CUDA does not survive a fork.
"""

import multiprocessing

from cuda.bindings import driver
from cuda.core import Buffer, Event, EventOptions

from steps import expect, refused, step
from tools import KEEP_ALL, MIB, check, imported_pool, keeps, machine, read, shared_pool, write

SIZE = 2 * MIB
PATIENCE = 60


def in_other_process(target, *arguments):
    """Runs a function in a process of its own; what it raises is raised here."""
    multiprocessing.set_start_method("spawn", force=True)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=guarded, args=(target, there, *arguments))
    process.start()
    there.close()
    try:
        if not here.poll(PATIENCE):
            raise TimeoutError(f"the other process said nothing for {PATIENCE} s")
        complaint = here.recv()
    finally:
        here.close()
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
    if complaint:
        raise AssertionError(f"in the other process: {complaint}")


def guarded(target, pipe, *arguments):
    try:
        with machine() as (device, stream):
            target(device, stream, *arguments)
        pipe.send("")
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")


def import_and_write(device, stream, kind, handle, descriptor):
    resource = imported_pool(kind, handle)
    state = resource.is_mapped, resource.is_handle_owned, resource.is_ipc_enabled
    expect(state, (True, True, True), "mapped, owned, IPC")
    refused(lambda: resource.allocate(64, stream=stream), TypeError, "Cannot allocate from a mapped")
    buffer = Buffer.from_ipc_descriptor(resource, descriptor, stream=stream)
    expect((buffer.is_mapped, buffer.size), (True, SIZE), "the buffer")
    expect(read(stream, buffer) == b"\x11" * SIZE, True, "that the exporter's bytes are here")
    refused(lambda: resource.attributes.used_mem_current, Exception, "CUDA_ERROR_INVALID_VALUE")
    write(stream, buffer, b"\x22")
    buffer.close(stream=stream)
    stream.sync()
    resource.close()


def written_elsewhere(kind):
    with machine() as (device, stream):
        resource = shared_pool(kind)
        buffer = resource.allocate(SIZE, stream=stream)
        write(stream, buffer, b"\x11")
        in_other_process(import_and_write, kind, resource.allocation_handle, buffer.ipc_descriptor)
        expect(read(stream, buffer) == b"\x22" * SIZE, True, "that the importer's bytes are here")
        buffer.close(stream=stream)
        stream.sync()
        resource.close()
    return "written there, read here"


@step("two processes: a device pool")
def share_device_pool():
    return written_elsewhere("device")


@step("two processes: a pinned pool")
def share_pinned_pool():
    return written_elsewhere("pinned")


def receive(device, stream, resource, buffer):
    same = type(resource).from_registry(resource.uuid)
    expect((resource.is_mapped, buffer.is_mapped, same is resource), (True, True, True), "mapped, mapped, known")
    expect(read(stream, buffer) == b"\x33" * SIZE, True, "that the exporter's bytes are here")
    buffer.close(stream=stream)


def send_objects(kind):
    with machine() as (device, stream):
        resource = shared_pool(kind)
        buffer = resource.allocate(SIZE, stream=stream)
        write(stream, buffer, b"\x33")
        in_other_process(receive, resource, buffer)
        buffer.close(stream=stream)
        stream.sync()
        resource.close()
    return "found in the registry there"


@step("two processes: a device pool and its buffer, sent as objects")
def send_device_pool():
    return send_objects("device")


@step("two processes: a pinned pool and its buffer, sent as objects")
def send_pinned_pool():
    return send_objects("pinned")


def import_into_wrong_pool(device, stream, handle, descriptor):
    resource = imported_pool("device", handle)
    wrong = lambda: Buffer.from_ipc_descriptor(resource, descriptor, stream=stream)
    refused(wrong, Exception, "CUDA_ERROR_INVALID_VALUE")


@step("two processes: a buffer of another pool")
def wrong_pool():
    with machine() as (device, stream):
        one, other = shared_pool("device"), shared_pool("device")
        buffer = one.allocate(SIZE, stream=stream)
        stream.sync()
        in_other_process(import_into_wrong_pool, other.allocation_handle, buffer.ipc_descriptor)
        buffer.close(stream=stream)
    return "CUDA_ERROR_INVALID_VALUE"


def wait_for(device, stream, descriptor):
    event = Event.from_ipc_descriptor(descriptor)
    event.sync()
    expect(event.is_done, True, "done")


@step("two processes: an event")
def share_event():
    with machine() as (device, stream):
        event = stream.record(options=EventOptions(ipc_enabled=True))
        in_other_process(wait_for, event.ipc_descriptor)
    return "done there"


def gives_back(kind):
    with machine() as (device, stream):
        resource = shared_pool(kind)
        kept = [keeps(stream, resource, threshold) for threshold in (0, KEEP_ALL)]
        expect(kept, [False, True], "what is kept")
        check(driver.cuMemPoolTrimTo(resource.handle, 0))
        expect(resource.attributes.reserved_mem_current, 0, "reserved after a trim")
        resource.close()
    return "at its threshold and by a trim"


@step("a device pool for other processes gives its memory back")
def device_pool_gives_back():
    return gives_back("device")


@step("a pinned pool for other processes gives its memory back")
def pinned_pool_gives_back():
    return gives_back("pinned")
