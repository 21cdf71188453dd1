"""What cuda.core does with memory from pools and from elsewhere: copies, fills, and the other resources."""

from cuda.core import Host, LegacyPinnedMemoryResource, ManagedMemoryResource, VirtualMemoryResource

from steps import expect, refused, step
from tools import MIB, host_bytes, machine, needs_driver, own_pool, read, write


@step("fill, with one, two and four bytes")
def fill():
    with machine() as (device, stream):
        buffer = own_pool("device").allocate(MIB, stream=stream)
        for pattern in (0x42, b"\x01", b"\x01\x02", b"\x01\x02\x03\x04"):
            buffer.fill(pattern, stream=stream)
            wanted = bytes([pattern]) if isinstance(pattern, int) else pattern
            expect(read(stream, buffer) == wanted * (MIB // len(wanted)), True, f"that {pattern} repeats")
        refused(lambda: buffer.fill(b"\x01\x02\x03", stream=stream), ValueError, "1, 2, or 4")
        buffer.close(stream=stream)
    return "repeated"


@step("copies between device, pinned and managed memory")
def copies():
    needs_driver(13000)
    with machine() as (device, stream):
        resources = [own_pool("device"), own_pool("pinned"), ManagedMemoryResource(), LegacyPinnedMemoryResource()]
        buffers = [resource.allocate(MIB, stream=stream) for resource in resources]
        write(stream, buffers[0], b"round tr")
        for one, next_one in zip(buffers, buffers[1:] + buffers[:1]):
            one.copy_to(next_one, stream=stream)
        expect(read(stream, buffers[0]) == b"round tr" * (MIB // 8), True, "that the bytes came round")
        fresh = buffers[0].copy_to(stream=stream)
        expect((fresh.size, read(stream, fresh)[:8]), (MIB, b"round tr"), "the copy in a new buffer")
        for buffer in (*buffers, fresh):
            buffer.close(stream=stream)
    return "all the way round"


@step("managed memory")
def managed():
    needs_driver(13000)
    with machine() as (device, stream):
        resource = ManagedMemoryResource()
        expect((resource.is_managed, resource.is_ipc_enabled), (True, False), "managed, IPC")
        buffer = resource.allocate(MIB, stream=stream)
        stream.sync()
        expect((buffer.is_managed, buffer.is_host_accessible), (True, True), "managed, the host's")
        host_bytes(buffer)[:4] = b"host"
        # The driver takes no advice about memory of a pool.
        for attribute, value in (("preferred_location", device), ("read_mostly", True)):
            refused(lambda: setattr(buffer, attribute, value), Exception, "CUDA_ERROR_NOT_SUPPORTED")
        refused(lambda: buffer.accessed_by.add(device), Exception, "CUDA_ERROR_NOT_SUPPORTED")
        for place in (Host(), device):
            buffer.prefetch(place, stream=stream)
            expect(read(stream, buffer)[:4], b"host", "what was written")
        buffer.close(stream=stream)
    return "prefetched, and no advice taken"


@step("virtual memory")
def virtual():
    with machine() as (device, stream):
        resource = VirtualMemoryResource(device)
        buffer = resource.allocate(MIB, stream=stream)
        expect(buffer.size, 2 * MIB, "the rounded size")
        write(stream, buffer, b"\x07")
        expect(read(stream, buffer) == b"\x07" * buffer.size, True, "that the bytes came back")
        buffer.close(stream=stream)
    return "mapped"


@step("DLPack")
def dlpack():
    with machine() as (device, stream):
        kinds = {"device": (2, 0), "pinned": (3, 0)}
        for kind, wanted in kinds.items():
            buffer = own_pool(kind).allocate(MIB, stream=stream)
            expect(tuple(map(int, buffer.__dlpack_device__())), wanted, f"the device of {kind} memory")
            expect("dltensor" in repr(buffer.__dlpack__()), True, "a capsule")
            buffer.close(stream=stream)
    return "device 2 and 3"


@step("a stream that captures gets nothing")
def capturing():
    needs_driver(12030)
    with machine() as (device, stream):
        builder = device.create_graph_builder()
        builder.begin_building()
        refused(lambda: own_pool("device").allocate(64, stream=builder), RuntimeError, "capturing stream")
        builder.end_building()
        builder.close()
    return "and is told the graph way"
