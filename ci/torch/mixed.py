"""Training and generation in one process for minutes: `python3 ci/torch/mixed.py --seconds 480`, in an environment that has the wheel.

A small language model is trained on batches of changing length and, in between, writes text with a growing key-value cache, also on a
second stream. All the time, what is reserved must stay within 2 % of the running peak of what is live and 100 MiB; and
after a first third, no more may be reserved than the peak of live memory grew by. Ends with 1 where that does not hold.
"""

import argparse
import random
import sys
import time

MIB = 1 << 20


def model_of(torch, width, layers, heads, vocabulary):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x, past=None):
            split = lambda t: t.view(t.shape[0], t.shape[1], heads, -1).transpose(1, 2)
            q, k, v = map(split, self.qkv(self.before(x)).chunk(3, dim=-1))
            if past is not None:
                k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
            x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
            return x + self.wide(self.after(x)), (k, v)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.head = nn.Linear(width, vocabulary)

        def forward(self, tokens, past=None):
            x, now = self.tokens(tokens), []
            for number, block in enumerate(self.blocks):
                x, kept = block(x, past[number] if past else None)
                now.append(kept)
            return self.head(x), now

    return Model().cuda()


def train(torch, model, optimizer, vocabulary):
    length = random.randint(64, 1024)
    tokens = torch.randint(0, vocabulary, (max(1, 16384 // length), length), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        out, _ = model(tokens)
        loss = torch.nn.functional.cross_entropy(out.flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def generate(torch, model, vocabulary, side):
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        tokens = torch.randint(0, vocabulary, (random.randint(1, 32), random.randint(16, 512)), device="cuda")
        out, past = model(tokens)
        written = []
        for _ in range(random.randint(8, 64)):
            token = out[:, -1:].argmax(dim=-1)
            out, past = model(token, past)
            # What is read back goes over another stream, as a server does it.
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                token.record_stream(side)
                written.append(token.to("cpu", non_blocking=True))
        side.synchronize()
    return torch.cat(written, dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--small", action="store_true", help="a model of one layer, for tools that slow everything down")
    arguments = parser.parse_args()

    import cuda_mem_torch
    import torch

    cuda_mem_torch.enable()
    torch.manual_seed(0)
    random.seed(0)
    width, layers, heads, vocabulary = (128, 1, 2, 1000) if arguments.small else (768, 12, 12, 32000)
    model, side = model_of(torch, width, layers, heads, vocabulary), torch.cuda.Stream()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    began, said, steps, worst, third = time.monotonic(), 0.0, 0, 0, None
    cuda = torch.cuda
    while (passed := time.monotonic() - began) < arguments.seconds or steps < 3:
        loss = train(torch, model, optimizer, vocabulary)
        generate(torch, model, vocabulary, side)
        steps += 1
        reserved, live = cuda.max_memory_reserved(), cuda.memory_stats()["active_bytes.all.peak"]
        worst = max(worst, reserved - int(live * 1.02))
        if third is None and passed > arguments.seconds / 3:
            third = (reserved, live)
        if passed - said >= arguments.seconds / 16:
            said = passed
            print(f"{passed:6.0f} s, {steps:5} steps, loss {loss.item():.4f}, reserved {reserved / MIB:8.0f} MiB, live {live / MIB:8.0f} MiB at its peak, ratio {reserved / live:.4f}", flush=True)
    grown = (reserved - third[0]) - (live - third[1]) if third else 0
    print(f"beyond 1.02 of live: {worst / MIB:.0f} MiB of 100; grown beyond live since the first third: {grown / MIB:.0f} MiB; out of memory: {cuda.memory_stats()['num_ooms']} times")
    well = worst <= 100 * MIB and grown <= 0.02 * live and cuda.memory_stats()["num_ooms"] == 0
    print("ok" if well else "failed")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
