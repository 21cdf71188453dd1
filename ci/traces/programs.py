"""Programs as one would write them: what each allocates and frees, in order."""

import heapq
import random

MIB = 1 << 20


class Program:
    """What a program allocates and frees, in order, as rows of the traces: (op, id, size, stream)."""

    def __init__(self, name):
        self.random = random.Random(name)
        self.rows, self.blocks, self.pending = [], [], []

    def allocate(self, size, stream=0):
        self._catch_up()
        self.blocks.append((max(int(size), 512), stream))
        self.rows.append(("a", len(self.blocks) - 1, *self.blocks[-1]))
        return len(self.blocks) - 1

    def free(self, block, after=0):
        """Frees a block. Another stream that used it is done with it `after` operations later."""
        self._catch_up()
        self.rows.append(("f", block, "", self.blocks[block][1]))
        if after:
            heapq.heappush(self.pending, (len(self.rows) + after, block))

    def size(self, block):
        return self.blocks[block][0]

    def _catch_up(self, is_over=False):
        while self.pending and (is_over or self.pending[0][0] <= len(self.rows)):
            block = heapq.heappop(self.pending)[1]
            self.rows.append(("c", block, "", self.blocks[block][1]))

    def end(self):
        self._catch_up(is_over=True)
        return self.rows

    def temporary(self, size, stream=0):
        self.free(self.allocate(size, stream))

    def layer(self, tokens, hidden, stream=0, keep=True):
        """A layer of a transformer forward: what its backward pass needs, if anything."""
        unit, kept = tokens * hidden * 2, []
        for factor, is_kept in ((1, True), (3, True), (1, True), (1, False), (4, True), (4, False), (1, True)):
            block = self.allocate(unit * factor, stream)
            if keep and is_kept:
                kept.append(block)
            else:
                self.free(block)
        return kept

    def backward(self, kept, after=0, weights=0):
        """The backward pass of a layer: each block has a gradient of its size, until that of the next is there. Those of weights stay."""
        gradients, before = [], None
        for block in reversed(kept):
            gradient = self.allocate(self.size(block), self.blocks[block][1])
            if before is not None:
                self.free(before)
            self.free(block, after)
            before = gradient
        if weights:
            gradients.append(self.allocate(weights, self.blocks[kept[0]][1]))
        if before is not None:
            self.free(before)
        return gradients

    def weights(self, layers, hidden):
        return [self.allocate(hidden * hidden * factor * 2) for _ in range(layers) for factor in (3, 1, 4, 4)]

    def step(self, layers, tokens, hidden, vocabulary=0):
        """A step of training."""
        kept = [self.layer(tokens, hidden) for _ in range(layers)]
        logits = self.allocate(tokens * vocabulary * 4) if vocabulary else None
        if logits is not None:
            self.temporary(tokens * vocabulary * 4)
            self.free(logits)
        gradients = [gradient for blocks in reversed(kept) for gradient in self.backward(blocks, 0, hidden * hidden * 24)]
        for gradient in gradients:
            self.free(gradient)


def growing_caches(p):
    p.weights(16, 2048)
    for _ in range(10):
        batch, length = p.random.randint(4, 24), p.random.randint(50, 600)
        caches = [p.allocate(batch * length * 8192) for _ in range(16)]
        for step in range(1, 100):
            for layer, cache in enumerate(caches):
                caches[layer] = p.allocate(batch * (length + step) * 8192)
                p.free(cache)
                p.temporary(batch * 4096 * 4)
        for cache in caches:
            p.free(cache)


def paged_caches(p):
    p.weights(24, 2048)
    running = []
    for _ in range(400):
        while len(running) < 24:
            length = p.random.randint(100, 4000)
            for _ in range(4):
                p.layer(length, 2048, keep=False)
            running.append([p.random.randint(1, 60), [p.allocate(16 * MIB) for _ in range(length // 256 + 1)]])
        for request in running:
            request[0] -= 1
            if p.random.random() < 0.1:
                request[1].append(p.allocate(16 * MIB))
        for _, pages in [request for request in running if request[0] == 0]:
            for page in pages:
                p.free(page)
        running = [request for request in running if request[0] > 0]


def batches_come_and_go(p):
    p.weights(24, 1536)
    for _ in range(250):
        tokens = p.random.randint(200, 24_000)
        for _ in range(24):
            p.layer(tokens, 1536, keep=False)
        p.temporary(tokens * 64_000)


def diffusion(p):
    p.weights(20, 2048)
    for _ in range(60):
        width, height = (p.random.choice((512, 640, 768, 896, 1024)) for _ in range(2))
        images = p.random.randint(1, 8)
        for _ in range(6):
            skipped = []
            for level in range(4):
                size = images * (width * height >> 2 * level) * (32 << level)
                skipped += [p.allocate(size) for _ in range(2)]
                p.temporary(size * 3 // 2)
            for block in reversed(skipped):
                p.temporary(p.size(block) * 2)
                p.free(block)
        p.temporary(images * width * height * 12)


def experts(p):
    p.weights(12, 2048)
    for _ in range(60):
        tokens, kept = 8192, []
        for _ in range(12):
            shares = [p.random.expovariate(1) for _ in range(16)]
            for share in shares:
                routed = max(1, int(tokens * 2 * share / sum(shares)))
                kept.append([p.allocate(routed * 2048 * factor) for factor in (2, 8, 8, 2)])
        for blocks in reversed(kept):
            p.backward(blocks)


def checkpointed(p):
    p.weights(32, 2048)
    for _ in range(50):
        tokens = p.random.randint(2000, 24_000)
        inputs = [p.allocate(tokens * 4096) for _ in range(32) if p.layer(tokens, 2048, keep=False) == []]
        for block in reversed(inputs):
            p.backward(p.layer(tokens, 2048))
            p.free(block)


def generation_and_training(p):
    p.weights(12, 1536)
    for _ in range(8):
        growing, batch = [p.allocate(32 * 64 * 6144) for _ in range(12)], p.random.randint(24, 40)
        for length in range(64, 200):
            for layer, cache in enumerate(growing):
                growing[layer] = p.allocate(batch * length * 6144)
                p.free(cache)
        for cache in growing:
            p.free(cache)
        for _ in range(6):
            p.step(12, batch * p.random.randint(64, 400), 1536, 32_000)


def detection(p):
    p.weights(8, 2048)
    for _ in range(120):
        width, height = p.random.randint(600, 1333), p.random.randint(600, 1333)
        kept = [p.allocate(4 * (width * height >> 2 * level) * (64 << level)) for level in range(5) for _ in range(5)]
        for _ in range(4):
            p.temporary(p.random.randint(50, 2000) * 256 * 49 * 4)
        proposals = p.random.randint(100, 2000)
        kept += [p.allocate(proposals * factor * 4) for factor in (256 * 49, 1024, 1024)]
        p.backward(kept)


def graphs(p):
    p.allocate(1200 * MIB)
    for _ in range(350):
        nodes = [int(1024 * 9 ** level * p.random.uniform(0.5, 1)) for level in range(4)]
        features = p.allocate(nodes[3] * 400)
        kept = [p.allocate(count * width) for count in reversed(nodes) for width in (8, 512, 1024)]
        p.backward(kept)
        p.free(features)


def embeddings(p):
    tables = [p.allocate(rows * 256) for rows in (4_000_000, 2_000_000, 1_000_000, 500_000)]
    for _ in range(500):
        batch = p.random.choice((8192, 16_384))
        kept = [p.allocate(batch * p.random.randint(8, 40) * 256) for _ in tables]
        unique = [p.allocate(p.random.randint(10_000, 200_000) * 264) for _ in tables]
        kept += [p.allocate(batch * width * 4) for width in (1024, 512, 256)]
        p.backward(kept)
        for block in unique:
            p.free(block)


def evaluation_between(p):
    p.weights(16, 1536)
    for epoch in range(10):
        for _ in range(12):
            p.step(16, 64 * p.random.randint(40, 160), 1536, 32_000)
        results = []
        for _ in range(10):
            tokens = p.random.randint(2000, 30_000)
            for _ in range(16):
                p.layer(tokens, 1536, keep=False)
            results.append(p.allocate(tokens * 1536))
        for block in results:
            p.free(block)


def late_optimizer(p):
    weights = p.weights(16, 2048)
    for step in range(60):
        if step == 20:
            for block in weights * 2:
                p.allocate(p.size(block) * 2)
        p.step(16, p.random.randint(2000, 12_000), 2048, 32_000)


def two_models(p):
    p.weights(8, 1536)
    p.weights(16, 1024)
    for _ in range(90):
        p.step(8, p.random.randint(2000, 16_000), 1536)
        p.step(16, p.random.randint(1000, 12_000), 1024)


def buckets(p, streams):
    """Each stream has a part of the batch; one more reduces their gradients, and is behind."""
    p.weights(8, 1536)
    for _ in range(max(12, 90 // streams)):
        parts = [p.random.randint(1000, 12_000) for _ in range(streams)]
        kept = [[p.layer(tokens, 1536, stream) for stream, tokens in enumerate(parts)] for _ in range(8)]
        for layer in reversed(kept):
            bucket = p.allocate(1536 * 1536 * 24, streams)
            for blocks in layer:
                for gradient in p.backward(blocks, 0, 1536 * 1536 * 24):
                    p.free(gradient, after=p.random.randint(10, 60))
            p.free(bucket, after=p.random.randint(10, 60))


def pipeline(p):
    p.weights(16, 1536)
    for _ in range(30):
        parts = [p.random.randint(1000, 6000) for _ in range(8)]
        kept = {}
        for tick in range(len(parts) + 7):
            for stage in range(4):
                if (forward := tick - stage) in range(len(parts)):
                    kept[stage, forward] = [p.layer(parts[forward], 1536, stage) for _ in range(2)]
                    p.free(p.allocate(parts[forward] * 3072, stage), after=30)
                if (backward := tick - 7 + stage) in range(len(parts)) and (stage, backward) in kept:
                    for blocks in reversed(kept.pop((stage, backward))):
                        p.backward(blocks)
        for layers in kept.values():
            for blocks in layers:
                p.backward(blocks)


def offloading(p):
    """What the layers keep is copied out on a second stream, and comes back on it."""
    p.weights(24, 2048)
    for _ in range(25):
        tokens = p.random.randint(4000, 20_000)
        for _ in range(24):
            for block in p.layer(tokens, 2048):
                p.free(block, after=60)
        for _ in range(24):
            back = [p.allocate(tokens * 4096 * factor, 1) for factor in (1, 3, 1, 4, 1)]
            p.backward(back, after=20)


def serving_streams(p):
    p.weights(8, 1024)
    running = [[] for _ in range(8)]
    for _ in range(40_000):
        stream = p.random.randrange(8)
        if len(running[stream]) > 6 or (running[stream] and p.random.random() < 0.4):
            p.free(running[stream].pop(p.random.randrange(len(running[stream]))))
        else:
            running[stream].append(p.allocate(p.random.randint(1, 64) * p.random.randint(10_000, 2_000_000), stream))


WRITTEN = [growing_caches, paged_caches, batches_come_and_go, diffusion, experts, checkpointed, generation_and_training, detection,
           graphs, embeddings, evaluation_between, late_optimizer, two_models, pipeline, offloading, serving_streams]
