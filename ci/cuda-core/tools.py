"""What the steps share: a device with a stream, bytes in and out of buffers, and pools of either kind."""

import ctypes
from contextlib import contextmanager

from cuda.bindings import driver
from cuda.core import (
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    LegacyPinnedMemoryResource,
    PinnedMemoryResource,
    PinnedMemoryResourceOptions,
)

from steps import Skip

MIB = 1 << 20

# A threshold that nothing is above.
KEEP_ALL = (1 << 64) - 1


@contextmanager
def machine():
    """The first device, current, and a stream on it that is idle in the end."""
    device = Device()
    device.set_current()
    stream = device.create_stream()
    yield device, stream
    stream.sync()
    stream.close()


def check(answer):
    """What a function of the driver gave, whose errors are raised."""
    code, *values = answer
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(code.name)
    return values[0] if values else None


def host_bytes(buffer):
    """The bytes of a buffer that the host can reach; they stay the buffer's."""
    return (ctypes.c_ubyte * buffer.size).from_address(int(buffer.handle))


def read(stream, buffer):
    """The bytes of any buffer, by way of pinned memory."""
    landed = LegacyPinnedMemoryResource().allocate(buffer.size, stream=stream)
    buffer.copy_to(landed, stream=stream)
    stream.sync()
    found = bytes(host_bytes(landed))
    landed.close(stream=stream)
    return found


def write(stream, buffer, pattern):
    """Fills any buffer with bytes that repeat, by way of pinned memory."""
    source = LegacyPinnedMemoryResource().allocate(buffer.size, stream=stream)
    host_bytes(source)[:] = pattern * (buffer.size // len(pattern))
    buffer.copy_from(source, stream=stream)
    stream.sync()
    source.close(stream=stream)


def own_pool(kind, **options):
    """A new pool of a kind."""
    if kind == "device":
        return DeviceMemoryResource(Device(), DeviceMemoryResourceOptions(**options))
    needs_host_pools(on_node=bool(options.keys() & {"numa_id", "ipc_enabled"}))
    return PinnedMemoryResource(PinnedMemoryResourceOptions(**options))


def shared_pool(kind):
    """A new pool that other processes can use."""
    if kind == "pinned":
        needs_nodes()
    return own_pool(kind, ipc_enabled=True)


def imported_pool(kind, handle):
    """The pool of another process."""
    if kind == "device":
        return DeviceMemoryResource.from_allocation_handle(Device(), handle)
    return PinnedMemoryResource.from_allocation_handle(handle)


def needs_driver(version):
    """Skips a step on a driver that is older: 13000 for CUDA 13.0."""
    if check(driver.cuDriverGetVersion()) < version:
        raise Skip(f"the driver is older than {version // 1000}.{version % 1000 // 10}")


def needs_host_pools(on_node=False):
    """Skips a step where cuda.core finds no pools of host memory, or of a node of it."""
    found = Device().properties
    if not (found.host_numa_memory_pools_supported if on_node else found.host_memory_pools_supported):
        raise Skip("no pools on nodes of the host" if on_node else "no pools on the host")


def needs_nodes():
    """Skips a step on a host without NUMA nodes."""
    if Device().properties.host_numa_id < 0:
        raise Skip("the host has no NUMA nodes")


def access(resource, device, wanted=None):
    """How a device may use a pool's memory: 0, 1 or 3. Sets that first if wanted."""
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device.device_id
    if wanted is not None:
        description = driver.CUmemAccessDesc()
        description.location = location
        description.flags = wanted
        check(driver.cuMemPoolSetAccess(resource.handle, [description], 1))
    return int(check(driver.cuMemPoolGetAccess(resource.handle, location)))


def keeps(stream, resource, threshold):
    """Whether a pool with this threshold, which cuda.core reads and does not set, keeps memory at a synchronisation."""
    attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    check(driver.cuMemPoolSetAttribute(resource.handle, attribute, driver.cuuint64_t(threshold)))
    resource.allocate(MIB, stream=stream).close(stream=stream)
    stream.sync()
    return resource.attributes.reserved_mem_current > 0
