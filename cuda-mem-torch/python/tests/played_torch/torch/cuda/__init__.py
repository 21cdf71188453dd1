from torch.cuda import memory
from torch.cuda.memory import OutOfMemoryError, TOTAL


_queued, _initialized = [], False


def device_count():
    return 1


def is_initialized():
    return _initialized


def _lazy_call(call):
    if _initialized:
        call()
    else:
        _queued.append(call)


def init():
    global _initialized
    if not _initialized:
        _initialized = True
        for call in _queued:
            call()


def synchronize():
    pass


def get_device_name():
    return "a played device"


def mem_get_info(device):
    init()
    return TOTAL, TOTAL


def set_per_process_memory_fraction(fraction, device):
    init()
    memory.limit = int(fraction * TOTAL)
