"""Steps of `run_all.py` on tagged memory that NCCL has registered: `registered.py NAME`; `--list` names them. Each prints its figures. They need
two devices with peer access."""

import contextlib
import sys
import tempfile
from pathlib import Path

from figures import MIB, Steps, answer, pytorch, started

STEPS = Steps()
WHOLE, REPLAYS = 64 * MIB, 100


@STEPS.part
def rank(number, directory, keeps):
    """Captures an all-gather of tagged buffers, sleeps, wakes, and replays it."""
    torch = pytorch("cuda-mem")
    import cuda_mem_torch
    import torch.distributed as dist

    torch.cuda.set_device(number)
    dist.init_process_group("nccl", store=dist.FileStore(f"{directory}/store", 2), rank=number, world_size=2, device_id=torch.device("cuda", number))
    together = dist.new_group(backend="gloo")
    with cuda_mem_torch.tag("weights"):
        whole = torch.zeros(WHOLE // 4, device="cuda")
        part = torch.zeros(WHOLE // 8, device="cuda")
    dist.all_gather_into_tensor(whole, part)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_gather_into_tensor(whole, part)

    def wrong(count):
        """How many replays gathered what was not given."""
        found = 0
        for turn in range(count):
            part.fill_(2 * turn + number)
            whole.zero_()
            graph.replay()
            halves = whole.view(2, -1)
            found += not bool((halves[0] == 2 * turn).all() and (halves[1] == 2 * turn + 1).all())
        return found

    before, address = wrong(3), whole.data_ptr()
    torch.cuda.synchronize()
    dist.barrier(together)
    with contextlib.ExitStack() as stay:
        for tensor in (whole, part) if keeps else ():
            stay.enter_context(cuda_mem_torch.keep(tensor, reason="NCCL"))
        slept = cuda_mem_torch.sleep("weights")
        dist.barrier(together)
        cuda_mem_torch.wake("weights")
        dist.barrier(together)
    # The registration keeps memory that is not mapped here any more, and the other rank writes there: what arrives here is not judged.
    after = 0 if slept.missing else wrong(REPLAYS)
    torch.cuda.synchronize()
    dist.barrier(together)
    moved = whole.data_ptr() != address
    del graph
    dist.destroy_process_group()
    kept = sum(kept.size for kept in slept.kept if kept.reason == "NCCL")
    return {"wrong": before + after, "moved": moved, "freed": slept.freed, "missing": slept.missing, "kept": kept}


def ranks(registers, keeps):
    """What both ranks found, and the lines of NCCL's log on registrations."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            "NCCL_GRAPH_REGISTER": str(registers), "NCCL_LOCAL_REGISTER": "0", "NCCL_PROTO": "Simple", "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "REG,INIT", "NCCL_DEBUG_FILE": f"{directory}/nccl.%p",
        }
        both = [started(rank, number, directory, keeps, environment=environment) for number in range(2)]
        found = [answer(process, 150) for process in both]
        log = [line for file in Path(directory).glob("nccl.*") for line in file.read_text(errors="replace").splitlines()]
    return found, [line for line in log if "register" in line.lower()]


def captured(registers, keeps):
    """What each rank found, and how many registrations of the graph's memory NCCL logged."""
    import torch

    if torch.cuda.device_count() < 2:
        print("skipped: there is one device")
        sys.exit(0)
    found, log = ranks(registers, keeps)
    for number, of_rank in enumerate(found):
        STEPS.figure(f"rank {number}: freed, kept, missing", tuple(of_rank[name] // MIB for name in ("freed", "kept", "missing")), "MiB")
        STEPS.at_most(f"rank {number}: replays of {REPLAYS} that were wrong", of_rank["wrong"], "", 0)
        STEPS.figure(f"rank {number}: its buffer moved", of_rank["moved"], "", "False", not of_rank["moved"])
    return found, sum(f"size {WHOLE})" in line and "IPC register buffer" in line for line in log)


@STEPS.step
def captured_without_registration():
    found, registered = captured(0, False)
    STEPS.at_most("registrations in NCCL's log", registered, "", 0)
    STEPS.at_most("memory that is missing", max(of_rank["missing"] for of_rank in found), "bytes", 0)


@STEPS.step
def captured_and_kept():
    found, registered = captured(1, True)
    STEPS.at_least("registrations in NCCL's log", registered, "", 2)
    STEPS.at_least("memory that was kept for NCCL", min(of_rank["kept"] for of_rank in found), "bytes", WHOLE)
    STEPS.at_most("memory that is missing", max(of_rank["missing"] for of_rank in found), "bytes", 0)


@STEPS.step
def captured_and_not_kept():
    found, registered = captured(1, False)
    STEPS.at_least("registrations in NCCL's log", registered, "", 2)
    STEPS.at_least("memory that is missing", min(of_rank["missing"] for of_rank in found), "bytes", WHOLE)


if __name__ == "__main__":
    STEPS.main()
