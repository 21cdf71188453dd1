"""What cuda.core does with the driver's memory pools, step by step: `python3 pools.py`.

It runs as it is on hardware and on the simulated driver, which must be found as libcuda.so.1.
"""

import cuda.bindings
import cuda.core
from cuda.core import Device, DeviceMemoryResource, PinnedMemoryResource, PinnedMemoryResourceOptions

import steps
from steps import expect, refused, step
from tools import (
    KEEP_ALL,
    MIB,
    access,
    host_bytes,
    keeps,
    machine,
    needs_driver,
    needs_host_pools,
    needs_nodes,
    own_pool,
    read,
    write,
)

READ_WRITE = 3


def facts(resource):
    return (
        resource.is_device_accessible,
        resource.is_host_accessible,
        resource.is_handle_owned,
        resource.is_ipc_enabled,
        resource.is_mapped,
    )


def use(stream, resource):
    """Takes a block, has bytes copied into and out of it, and gives it back."""
    buffer = resource.allocate(MIB, stream=stream)
    expect((buffer.size, buffer.memory_resource is resource), (MIB, True), "size and resource")
    write(stream, buffer, b"\x01\x02\x03\x04")
    expect(read(stream, buffer) == b"\x01\x02\x03\x04" * (MIB // 4), True, "that the bytes came back")
    buffer.close(stream=stream)
    expect(buffer.is_closed, True, "closed")


@step("device properties")
def properties():
    expect(Device().properties.memory_pools_supported, True, "device pools supported")
    needs_driver(13000)
    found = Device().properties
    expect(found.host_memory_pools_supported, True, "host pools supported")
    expect(found.host_numa_memory_pools_supported, found.host_numa_id >= 0, "node pools supported")
    return "device and host pools"


@step("DeviceMemoryResource, no options")
def device_default():
    with machine() as (device, stream):
        resource = DeviceMemoryResource(device)
        expect(facts(resource), (True, False, False, False, False), "facts")
        expect((resource.device_id, resource.uuid), (0, None), "device and uuid")
        expect(resource.attributes.release_threshold, KEEP_ALL, "the threshold")
        use(stream, resource)
        resource.close()
        use(stream, device.memory_resource)
    return "the device's own pool"


@step("DeviceMemoryResource, options")
def device_options():
    with machine() as (device, stream):
        resource = own_pool("device")
        expect(facts(resource), (True, False, True, False, False), "facts")
        use(stream, resource)
        resource.close()
        expect(resource.is_closed, True, "closed")
    return "an own pool"


@step("PinnedMemoryResource, no options")
def pinned_default():
    with machine() as (device, stream):
        needs_host_pools()
        resource = PinnedMemoryResource()
        expect(facts(resource), (True, True, False, False, False), "facts")
        expect((resource.device_id, resource.numa_id, resource.uuid), (-1, -1, None), "device, node, uuid")
        use(stream, resource)
        resource.close()
        use(stream, PinnedMemoryResource())
    return "the host's own pool"


@step("PinnedMemoryResource, options")
def pinned_options():
    with machine() as (device, stream):
        resource = own_pool("pinned")
        expect(facts(resource), (True, True, True, False, False), "facts")
        expect(resource.numa_id, -1, "the node")
        use(stream, resource)
        resource.close()
    return "an own pool"


@step("PinnedMemoryResource, numa_id")
def pinned_node():
    needs_nodes()
    with machine() as (device, stream):
        resource = own_pool("pinned", numa_id=0)
        expect((resource.numa_id, resource.is_ipc_enabled), (0, False), "node and IPC")
        use(stream, resource)
        resource.close()
    return "node 0"


@step("PinnedMemoryResource, ipc_enabled")
def pinned_ipc():
    with machine() as (device, stream):
        node = device.properties.host_numa_id
        if node < 0:
            options = PinnedMemoryResourceOptions(ipc_enabled=True)
            refused(lambda: PinnedMemoryResource(options), RuntimeError, "Cannot determine host NUMA ID")
            return "at the device's node"
        resource = own_pool("pinned", ipc_enabled=True)
        expect((resource.numa_id, resource.is_ipc_enabled), (node, True), "node and IPC")
        expect(resource.uuid is not None, True, "a uuid")
        use(stream, resource)
        resource.close()
    return "at the device's node"


@step("PinnedMemoryResource, nodes that are refused")
def pinned_refused():
    with machine():
        for node, kind, text in ((-1, ValueError, "numa_id must be >= 0"), (1000, Exception, "CUDA_ERROR_INVALID_VALUE")):
            options = PinnedMemoryResourceOptions(numa_id=node)
            refused(lambda: PinnedMemoryResource(options), kind, text)
    return "-1 and 1000"


@step("attributes of pools")
def attributes():
    with machine() as (device, stream):
        for kind in ("device", "pinned"):
            resource = own_pool(kind)
            buffer = resource.allocate(3 * MIB, stream=stream)
            found = resource.attributes
            reuse = (
                found.reuse_follow_event_dependencies,
                found.reuse_allow_opportunistic,
                found.reuse_allow_internal_dependencies,
            )
            expect(reuse, (True, True, True), "reuse")
            expect(found.release_threshold, 0, "the threshold")
            expect((found.used_mem_current, found.used_mem_high), (3 * MIB, 3 * MIB), "used")
            expect(found.reserved_mem_current >= 3 * MIB, True, "enough reserved")
            expect(found.reserved_mem_high, found.reserved_mem_current, "the highest reserved")
            buffer.close(stream=stream)
            stream.sync()
            expect((found.used_mem_current, found.used_mem_high), (0, 3 * MIB), "used after the free")
            refused(lambda: setattr(found, "release_threshold", 1), AttributeError, "not writable")
            resource.close()
    return "eight each"


@step("release thresholds")
def thresholds():
    with machine() as (device, stream):
        for kind in ("device", "pinned"):
            resource = own_pool(kind)
            kept = [keeps(stream, resource, threshold) for threshold in (0, KEEP_ALL)]
            expect(kept, [False, True], "what is kept")
            resource.close()
    return "0 gives back, more keeps"


@step("max_size")
def max_size():
    with machine() as (device, stream):
        for kind in ("device", "pinned"):
            resource = own_pool(kind, max_size=32 * MIB)
            buffer = resource.allocate(MIB, stream=stream)
            refused(lambda: resource.allocate(256 * MIB, stream=stream), Exception, "MEMORY")
            buffer.close(stream=stream)
            resource.close()
    return "no more than that"


@step("who can reach a pinned pool")
def pinned_access():
    with machine() as (device, stream):
        resource = own_pool("pinned")
        expect(access(resource, device), 0, "the device's access")
        expect(access(resource, device, READ_WRITE), READ_WRITE, "the device's access after it was granted")
        buffer = resource.allocate(MIB, stream=stream)
        stream.sync()
        host_bytes(buffer)[:8] = b"from cpu"
        expect(read(stream, buffer)[:8], b"from cpu", "what the device reads")
        buffer.fill(0x5A, stream=stream)
        stream.sync()
        expect(bytes(host_bytes(buffer)) == b"\x5a" * MIB, True, "that the host sees the fill")
        buffer.close(stream=stream)
        resource.close()
    return "the host; the device once it is granted"


@step("a pool that is closed before its buffer")
def closed_early():
    with machine() as (device, stream):
        resource = own_pool("device")
        buffer = resource.allocate(MIB, stream=stream)
        resource.close()
        write(stream, buffer, b"\x09")
        expect(read(stream, buffer)[:1], b"\x09", "what was written")
        buffer.close(stream=stream)
    return "goes with it"


if __name__ == "__main__":
    # Their steps come behind those here.
    import buffers  # noqa: F401
    import shared  # noqa: F401

    print(f"cuda.core {cuda.core.__version__}, cuda.bindings {cuda.bindings.__version__}", flush=True)
    steps.main("cuda-core/pools")
