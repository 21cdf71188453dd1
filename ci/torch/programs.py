"""Programs of the kinds that PyTorch is used for: `python3 ci/torch/programs.py NAME OUT [record]`.

They were written to see how the allocator does on what nobody tuned it for. With `record`, what the program asks of the allocator is
written to OUT/NAME.csv.gz in the form of `ci/traces`. Ends with a line of what was held. `ci/torch/workloads.py` runs them natively and
with ours by turns.
"""

import gzip
import os
import random
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = torch.device(os.environ.get("PROGRAMS_DEVICE", "cuda"))
HALF = torch.bfloat16


def autocast():
    return torch.autocast(DEVICE.type, HALF)


def tokens(batch, length, words=32000):
    return torch.randint(0, words, (batch, length), device=DEVICE)


def llama(hidden, layers, heads, inner, dtype=torch.float32):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        intermediate_size=inner,
        vocab_size=32000,
        max_position_embeddings=8192,
    )
    return LlamaForCausalLM(config).to(DEVICE, dtype)


def step(optimizer, loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def checkpointed_llama():
    """Layers are run again in the backward pass, and four batches make a step."""
    model = llama(1536, 16, 12, 4096)
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for number in range(24):
        length = random.randint(256, 4096)
        batch = tokens(max(1, 16384 // length), length)
        with autocast():
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        if number % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return loss


class Experts(nn.Module):
    """Each token goes to two of the experts: how many each has is another number every time."""

    def __init__(self, width, inner, count):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)) for _ in range(count)
        )

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weight, chosen = self.gate(flat).softmax(-1).topk(2)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            row, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, row, (expert(flat[row]) * weight[row, place, None]).to(out.dtype))
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, width, heads, inside):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.mix, self.out, self.inside = heads, nn.Linear(width, 3 * width), nn.Linear(width, width), inside

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.mix(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.inside(self.second(x))


def mixture_of_experts():
    words = nn.Embedding(16000, 768).to(DEVICE)
    blocks = nn.Sequential(*[Block(768, 12, Experts(768, 2048, 8)) for _ in range(8)]).to(DEVICE)
    head = nn.Linear(768, 16000).to(DEVICE)
    optimizer = torch.optim.AdamW([*words.parameters(), *blocks.parameters(), *head.parameters()], 1e-4)
    for _ in range(40):
        length = random.choice([128, 256, 384, 512, 768, 1024])
        batch = tokens(max(1, random.randint(8000, 14000) // length), length, 16000)
        with autocast():
            scores = head(blocks(words(batch)))
            loss = F.cross_entropy(scores[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        step(optimizer, loss)
    return loss


class Residual(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(16, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(16, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1),
        )
        self.past = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x):
        return self.past(x) + self.body(x)


class Unet(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.begin = nn.Conv2d(4, widths[0], 3, padding=1)
        pairs = list(zip(widths, widths[1:]))
        self.down = nn.ModuleList(nn.ModuleList([Residual(a, a), Residual(a, b)]) for a, b in pairs)
        self.look = nn.MultiheadAttention(widths[-1], 8, batch_first=True)
        self.up = nn.ModuleList(nn.ModuleList([Residual(2 * b, a), Residual(a, a)]) for a, b in reversed(pairs))
        self.end = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x):
        x, kept = self.begin(x), []
        for first, second in self.down:
            x = second(first(x))
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        flat = x.flatten(2).transpose(1, 2)
        x = x + self.look(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(x)
        for first, second in self.up:
            x = F.interpolate(x, scale_factor=2.0)
            x = second(first(torch.cat([x, kept.pop()], 1)))
        return self.end(x)


def diffusion():
    """A U-Net on pictures of many shapes, with an average of its weights beside, and a picture drawn now and then."""
    model = Unet([192, 384, 576, 768]).to(DEVICE)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for number in range(36):
        height, width = (8 * random.randint(4, 12) for _ in range(2))
        clean = torch.randn(max(1, 60000 // (height * width)), 4, height, width, device=DEVICE)
        noise = torch.randn_like(clean)
        with autocast():
            loss = F.mse_loss(model(clean + noise), noise)
        step(optimizer, loss)
        average.update_parameters(model)
        if number % 12 == 11:
            with torch.no_grad(), autocast():
                drawn = torch.randn(4, 4, 96, 96, device=DEVICE)
                for _ in range(10):
                    drawn = drawn - 0.1 * average(drawn)
    return loss


def generation():
    """A server of one model: requests of any length and number, whose keys and values grow by a token at a time."""
    model = llama(2048, 16, 16, 5632, HALF).eval()
    with torch.inference_mode():
        for _ in range(10):
            prompt = tokens(random.randint(1, 48), random.randint(16, 1500))
            told = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=random.randint(8, 40), do_sample=False, pad_token_id=0
            )
    return told.float().mean()


def reinforcement():
    """Answers are made, judged by a second model, and learned from, by turns."""
    model, judge = llama(1024, 12, 16, 2816), llama(1024, 12, 16, 2816).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    for _ in range(6):
        prompt = tokens(random.randint(8, 24), random.randint(64, 512))
        with torch.no_grad(), autocast():
            told = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=random.randint(12, 28), do_sample=True, pad_token_id=0
            )
        for part in told.split(8):
            with autocast():
                scores = model(input_ids=part).logits[:, :-1]
                with torch.no_grad():
                    wanted = judge(input_ids=part).logits[:, :-1]
                own = scores.log_softmax(-1).gather(-1, part[:, 1:, None]).squeeze(-1)
                other = wanted.log_softmax(-1).gather(-1, part[:, 1:, None]).squeeze(-1)
                loss = (own - other).pow(2).mean()
            step(optimizer, loss)
    return loss


def detection():
    """Pictures of different sizes, with any number of things in them."""
    import torchvision

    model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21, min_size=480, max_size=800)
    model = model.to(DEVICE).train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    for _ in range(24):
        pictures, things = [], []
        for _ in range(random.randint(4, 10)):
            height, width, count = random.randint(300, 900), random.randint(300, 900), random.randint(1, 20)
            corner = torch.rand(count, 2, device=DEVICE) * torch.tensor([width - 60, height - 60], device=DEVICE)
            pictures.append(torch.rand(3, height, width, device=DEVICE))
            boxes = torch.cat([corner, corner + 20 + 40 * torch.rand(count, 2, device=DEVICE)], 1)
            things.append({"boxes": boxes, "labels": torch.randint(1, 21, (count,), device=DEVICE)})
        with autocast():
            loss = sum(model(pictures, things).values())
        step(optimizer, loss)
    return loss


def speech():
    """Recurrent layers over recordings of any length."""
    front = nn.Sequential(nn.Conv1d(80, 512, 5, 2, 2), nn.ReLU(), nn.Conv1d(512, 512, 5, 2, 2), nn.ReLU()).to(DEVICE)
    layers = nn.LSTM(512, 768, 4, batch_first=True, bidirectional=True, dropout=0.1).to(DEVICE)
    head = nn.Linear(1536, 500).to(DEVICE)
    optimizer = torch.optim.Adam([*front.parameters(), *layers.parameters(), *head.parameters()], 1e-4)
    for _ in range(40):
        count = random.randint(8, 32)
        lengths = sorted((random.randint(200, 2000) for _ in range(count)), reverse=True)
        sound = torch.randn(count, 80, lengths[0], device=DEVICE)
        with autocast():
            heard = front(sound).transpose(1, 2)
            left = torch.tensor([min((n + 3) // 4, heard.shape[1]) for n in lengths])
            packed = nn.utils.rnn.pack_padded_sequence(heard, left, batch_first=True)
            out = nn.utils.rnn.pad_packed_sequence(layers(packed)[0], batch_first=True)[0]
            scores = head(out).float().log_softmax(-1).transpose(0, 1)
        said = torch.randint(1, 500, (count, 30), device=DEVICE)
        loss = F.ctc_loss(scores, said, left, torch.full((count,), 30))
        step(optimizer, loss)
    return loss


def vision_transformer():
    """Training with batches of any size, and after each ten an evaluation with larger ones."""
    import timm

    model = timm.create_model("vit_base_patch16_224", num_classes=1000, dynamic_img_size=True).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for number in range(30):
        side = random.choice([160, 192, 224, 288])
        pictures = torch.randn(random.randint(24, 96), 3, side, side, device=DEVICE)
        with autocast():
            loss = F.cross_entropy(model(pictures), torch.randint(0, 1000, (len(pictures),), device=DEVICE))
        step(optimizer, loss)
        if number % 10 == 9:
            model.eval()
            with torch.no_grad(), autocast():
                for _ in range(3):
                    model(torch.randn(256, 3, 224, 224, device=DEVICE)).argmax(-1)
            model.train()
    return loss


def translation():
    """Two lengths that differ, the source's and the target's."""
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config(d_model=768, d_ff=2048, num_layers=10, num_heads=12, vocab_size=32128, feed_forward_proj="gated-gelu", decoder_start_token_id=0))
    model = model.to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(30):
        source, target = random.randint(32, 768), random.randint(16, 512)
        count = max(1, 12000 // (source + target))
        with autocast():
            loss = model(input_ids=tokens(count, source), labels=tokens(count, target)).loss
        step(optimizer, loss)
    return loss


def point_clouds():
    """Neighbours are looked for in clouds of any number of points: a large table of distances, gone at once."""
    widths = [3, 64, 128, 256, 512]
    layers = nn.ModuleList(nn.Sequential(nn.Linear(2 * a, b), nn.ReLU(), nn.Linear(b, b)) for a, b in zip(widths, widths[1:])).to(DEVICE)
    head = nn.Linear(512, 40).to(DEVICE)
    optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], 1e-3)
    for _ in range(50):
        losses = []
        for _ in range(random.randint(2, 6)):
            x = torch.randn(random.randint(1000, 20000), 3, device=DEVICE)
            for layer in layers:
                near = torch.cdist(x.detach(), x.detach()).topk(12, largest=False).indices
                x = layer(torch.cat([x[:, None].expand(-1, 12, -1), x[near] - x[:, None]], -1)).amax(1)
            losses.append(head(x.amax(0)).logsumexp(0))
        loss = torch.stack(losses).mean()
        step(optimizer, loss)
    return loss


def serving():
    """Three models answer, whichever is asked."""
    import timm
    import torchvision

    write = llama(1024, 16, 16, 2816, HALF).eval()
    look = timm.create_model("convnext_base", num_classes=1000).to(DEVICE, HALF).eval()
    outline = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None).to(DEVICE, HALF).eval()
    with torch.inference_mode():
        for _ in range(90):
            asked = random.choice(["write", "look", "outline"])
            if asked == "write":
                answer = write(tokens(random.randint(1, 32), random.randint(10, 1000))).logits
            elif asked == "look":
                answer = look(torch.randn(random.randint(1, 128), 3, 224, 224, device=DEVICE, dtype=HALF))
            else:
                side = 32 * random.randint(6, 24)
                answer = outline(torch.randn(random.randint(2, 12), 3, side, side, device=DEVICE, dtype=HALF))["out"]
            last = answer.float().mean()
            del answer
    return last


def alone():
    """A group of this process alone."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(random.Random().randint(20000, 60000)))
    torch.distributed.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))


def sharded_data_parallel():
    """Weights are gathered for each layer, and gradients scattered, on streams of their own."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    alone()
    model = llama(1536, 14, 12, 4096)
    policy = MixedPrecisionPolicy(param_dtype=HALF, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(24):
        length = random.randint(128, 2048)
        batch = tokens(max(1, 8192 // length), length)
        loss = model(input_ids=batch, labels=batch).loss
        step(optimizer, loss)
    return loss


def data_parallel_prefetched():
    """Gradients are reduced in buckets on one stream, the next batch arrives on another."""
    import torchvision

    alone()
    model = torchvision.models.resnet101().to(DEVICE).to(memory_format=torch.channels_last)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    arrival = torch.cuda.Stream()

    def arrive():
        side, count = random.choice([192, 224, 256, 320]), random.randint(24, 64)
        with torch.cuda.stream(arrival):
            pictures = torch.randn(count, 3, side, side).pin_memory().to(DEVICE, non_blocking=True)
            return pictures.contiguous(memory_format=torch.channels_last), torch.randint(0, 1000, (count,), device=DEVICE)

    following = arrive()
    for _ in range(30):
        here = torch.cuda.current_stream()
        here.wait_stream(arrival)
        pictures, classes = following
        pictures.record_stream(here)
        classes.record_stream(here)
        following = arrive()
        with autocast():
            loss = F.cross_entropy(model(pictures), classes)
        step(optimizer, loss)
    return loss


def adversaries_on_two_streams():
    """Two models that learn from each other, each on a stream of its own."""
    make = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU())], nn.Conv2d(128, 3, 1)).to(DEVICE)
    judge = nn.Sequential(nn.Conv2d(3, 128, 3, padding=1), *[layer for _ in range(5) for layer in (nn.LeakyReLU(0.2), nn.Conv2d(128, 128, 3, padding=1))]).to(DEVICE)
    optimizers = [torch.optim.Adam(model.parameters(), 1e-4) for model in (make, judge)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(60):
        side, count = 8 * random.randint(8, 20), random.randint(8, 32)
        with torch.cuda.stream(streams[0]), autocast():
            made = make(torch.randn(count, 128, side, side, device=DEVICE))
        shown = made.detach()
        streams[1].wait_stream(streams[0])
        with torch.cuda.stream(streams[1]):
            shown.record_stream(streams[1])
            with autocast():
                loss = judge(torch.randn(count, 3, side, side, device=DEVICE)).relu().mean() - judge(shown).mean()
            step(optimizers[1], loss)
        streams[0].wait_stream(streams[1])
        with torch.cuda.stream(streams[0]):
            with autocast():
                wanted = judge(made).mean()
            step(optimizers[0], wanted)
        streams[1].wait_stream(streams[0])
    return loss


def weights_that_arrive_in_time():
    """A model that is kept on the host: each layer's weights arrive while the one before computes, and results leave on a third stream."""
    computing, arriving, leaving = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
    layers = [[torch.randn(2048, 6144, dtype=HALF).pin_memory(), torch.randn(6144, 2048, dtype=HALF).pin_memory()] for _ in range(12)]
    results = []

    def arrive(layer):
        with torch.cuda.stream(arriving):
            return [weight.to(DEVICE, non_blocking=True) for weight in layer]

    with torch.inference_mode():
        for _ in range(40):
            x = torch.randn(random.randint(2000, 30000), 2048, device=DEVICE, dtype=HALF)
            following = arrive(layers[0])
            for number in range(len(layers)):
                computing.wait_stream(arriving)
                first, second = following
                for weight in following:
                    weight.record_stream(computing)
                if number + 1 < len(layers):
                    following = arrive(layers[number + 1])
                x = F.layer_norm(x + F.gelu(x @ first) @ second, (2048,))
            leaving.wait_stream(computing)
            with torch.cuda.stream(leaving):
                x.record_stream(leaving)
                results = results[-3:] + [x.float().mean(0).to("cpu", non_blocking=True)]
    torch.cuda.synchronize()
    return results[-1].mean()


def pipeline_on_four_streams():
    """Four parts of a model, each on a stream, with eight small batches on their way."""
    parts = [nn.Sequential(*[Block(1024, 16, nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))) for _ in range(4)]).to(DEVICE) for _ in range(4)]
    optimizer = torch.optim.AdamW([weight for part in parts for weight in part.parameters()], 1e-4)
    streams = [torch.cuda.Stream() for _ in parts]
    for _ in range(16):
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        length, losses = random.randint(128, 1024), []
        for _ in range(8):
            x = torch.randn(4, length, 1024, device=DEVICE)
            for number, (part, stream) in enumerate(zip(parts, streams)):
                stream.wait_stream(streams[number - 1] if number else torch.cuda.current_stream())
                with torch.cuda.stream(stream), autocast():
                    x.record_stream(stream)
                    x = part(x)
            with torch.cuda.stream(streams[-1]):
                losses.append(x.float().pow(2).mean())
        torch.cuda.current_stream().wait_stream(streams[-1])
        for loss in losses:
            loss.record_stream(torch.cuda.current_stream())
            loss.backward()
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss


ON_ONE_STREAM = [
    checkpointed_llama, mixture_of_experts, diffusion, generation, reinforcement, detection, speech, vision_transformer, translation,
    point_clouds, serving,
]
ON_MANY_STREAMS = [
    sharded_data_parallel, data_parallel_prefetched, adversaries_on_two_streams, weights_that_arrive_in_time, pipeline_on_four_streams,
]


def write(path, seconds, statistics):
    """What PyTorch recorded, in the form of `ci/traces`."""
    blocks, pending, streams, last, count = {}, {}, {}, None, 0
    reserved, allocated = (statistics[f"{key}_bytes.all.peak"] for key in ("reserved", "allocated"))
    active, requested = (statistics[f"{key}_bytes.all.peak"] for key in ("active", "requested"))
    with gzip.open(path, "wt", compresslevel=9) as out:
        out.write(
            f"# torch={torch.__version__} alloc_peak={allocated} requested_peak={requested} active_peak={active} "
            f"native_reserved_peak={reserved} wall_s={seconds:.1f}\nop,id,size,stream\n"
        )
        for event in torch.cuda.memory._snapshot()["device_traces"][0]:
            action, address = event["action"], event.get("addr")
            stream = streams.setdefault(event["stream"], len(streams))
            if action == "alloc":
                blocks[address] = count
                out.write(f"a,{count},{event['size']},{stream}\n")
                count += 1
            elif action == "free_requested" and address in blocks:
                pending[address] = blocks.pop(address)
                out.write(f"f,{pending[address]},,{stream}\n")
                last = address
                continue
            elif action == "free_completed" and address in pending:
                block = pending.pop(address)
                # Behind its free at once: nobody else had used it.
                if address != last:
                    out.write(f"c,{block},,{stream}\n")
            last = None


if __name__ == "__main__":
    name, folder, is_recording = sys.argv[1], Path(sys.argv[2]), len(sys.argv) > 3
    torch.manual_seed(0)
    random.seed(0)
    if is_recording:
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=3_000_000)
    t0 = time.time()
    loss = {program.__name__: program for program in ON_ONE_STREAM + ON_MANY_STREAMS}[name]()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    dt = time.time() - t0
    print(f"last loss {loss.item():.9f}", flush=True)
    if DEVICE.type == "cuda":
        held = torch.cuda.memory_stats()
        print(
            f"{name}: {dt:.1f} s, active {held['active_bytes.all.peak'] >> 20} MiB, "
            f"held {held['reserved_bytes.all.peak'] / held['active_bytes.all.peak']:.4f}, allocations {held['allocation.all.allocated']}",
            flush=True,
        )
        if is_recording:
            write(folder / f"{name}.csv.gz", dt, held)
    os._exit(0)
