"""PyTorch's copies between host and device, from pageable and from pinned memory."""

import statistics
import sys

import rounds

try:
    import torch
except ImportError as error:
    rounds.say(skip=str(error))
    sys.exit()

sides = {}


def side(name, room):
    if name not in sides or sides[name].numel() < room:
        place = {"device": {"device": "cuda"}, "pytorch-pinned": {"pin_memory": True}}.get(name, {})
        sides[name] = torch.ones(room, dtype=torch.uint8, **place)
    return sides[name]


def copies(up):
    def measure(participant, arguments):
        size, count, room = (int(arguments[key]) for key in ("bytes", "copies", "room"))
        host, device = side(participant, room)[:size], side("device", room)[:size]
        source, target = (host, device) if up else (device, host)
        verify = "verify" in arguments
        if verify:
            # On the device, where numbers and comparisons of GiB take no time.
            pattern = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
            source.copy_(pattern)
            target.zero_()
            torch.cuda.synchronize()

        def one():
            target.copy_(source)
            # To the device the call may return before the bytes are there.
            torch.cuda.synchronize()

        times = [rounds.timed(one)[1] for _ in range(count)]
        if verify and not torch.equal(target.cuda(), pattern):
            raise RuntimeError(f"of {size} bytes not all arrived as they left")
        return {"rate": size / statistics.median(times) / 1e9}

    return measure


torch.zeros(1, device="cuda")
rounds.serve({"torch": torch.__version__, "cuda": torch.version.cuda}, {"h2d": copies(True), "d2h": copies(False)})
