#!/usr/bin/env python3
"""Writes generated lists of allocations and frees as traces, and prints what is held for them.

    tests/bench/workloads.py FOLDER [--only NAME...] [-- OPTIONS OF held_memory]

Each list is what a program of its kind asks for: a model's weights, then steps with their activations,
gradients and temporary blocks. The traces (NAME.csv) are the same on every machine. With options after
"--", or nothing but it, build/dev/tests/bench/held_memory is run on them; HELD_MEMORY names another.
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20


class Program:
    """Operations in order. A block is its number."""

    def __init__(self, name):
        self.random = random.Random(name)
        self.rows, self.made, self.stream = [], 0, 0

    def new(self, nbytes, stream=None):
        self.made += 1
        where = self.stream if stream is None else stream
        self.rows.append("0,0,allocate,%#x,%d,%d" % (self.made << 9, max(1, int(nbytes)), where))
        return self.made

    def free(self, *blocks):
        for block in blocks:
            self.rows.append("0,0,free,%#x,0,0" % (block << 9))

    def use(self, block, stream):
        self.rows.append("0,0,record stream,%#x,0,%d" % (block << 9, stream))

    def passing(self, *sizes):
        "Blocks that end when the last one exists."
        self.free(*[self.new(size) for size in sizes])


class Model:
    """A decoder: `layers` blocks of `width`, its feed-forward part `inner`, `vocabulary` words."""

    def __init__(self, program, layers, width, inner, vocabulary, trained=1.0, eager=0, checkpointed=False):
        self.p, self.layers, self.width, self.inner, self.vocabulary = program, layers, width, inner, vocabulary
        self.eager, self.checkpointed = eager, checkpointed
        self.matrices = [3 * width * width, width * width, 2 * width * inner, width * inner]
        self.weights = [program.new(2 * n) for n in self.shapes()]
        self.trained = [max(64, int(n * trained)) for n in self.shapes()]
        if trained < 1:
            self.weights += [program.new(2 * n) for n in self.trained]
        self.states = None

    def shapes(self):
        for _ in range(self.layers):
            yield from (self.width, *self.matrices, self.width)
        yield from (self.width, self.vocabulary * self.width)

    def layer(self, tokens, length):
        "Forward; the blocks that the backward pass needs."
        p, row = self.p, 2 * tokens * self.width
        kept = [p.new(row), p.new(3 * row)]
        p.passing(row, row)
        if self.eager:
            scores = 2 * tokens * length * self.eager
            first = p.new(scores)
            kept += [p.new(2 * scores), p.new(scores)]
            p.free(first)
        kept += [p.new(row), p.new(4 * tokens * 16), p.new(row), p.new(4 * tokens), p.new(row)]
        wide = 2 * tokens * self.inner
        kept += [p.new(wide), p.new(wide), p.new(wide)]
        p.passing(row)
        return kept

    def layer_back(self, kept, tokens, gradients, index):
        p, row, wide = self.p, 2 * tokens * self.width, 2 * tokens * self.inner
        flowing = p.new(row)
        for block in reversed(kept):
            piece = p.new(wide if block in kept[-3:] else row)
            p.free(flowing, block)
            flowing = piece
        for n in self.trained[index * 6 : index * 6 + 6]:
            gradients.append(p.new(2 * n))
        p.free(flowing)

    def step(self, sequences, length):
        "Forward, backward, optimizer."
        p, tokens, gradients = self.p, sequences * length, []
        ids, hidden = p.new(8 * tokens), p.new(2 * tokens * self.width)
        inputs, kept = [], []
        for _ in range(self.layers):
            if self.checkpointed:
                inputs.append(p.new(2 * tokens * self.width))
                p.free(*self.layer(tokens, length))
            else:
                kept.append(self.layer(tokens, length))
        logits = p.new(2 * tokens * self.vocabulary)
        wide = p.new(4 * tokens * self.vocabulary)
        loss = [p.new(4 * tokens), p.new(4)]
        p.free(logits)
        back = p.new(4 * tokens * self.vocabulary)
        p.free(wide)
        half = p.new(2 * tokens * self.vocabulary)
        p.free(back)
        gradients.append(p.new(2 * self.trained[-1]))
        p.free(half)
        for i in reversed(range(self.layers)):
            layer = self.layer(tokens, length) if self.checkpointed else kept.pop()
            self.layer_back(layer, tokens, gradients, i)
            if self.checkpointed:
                p.free(inputs.pop())
        p.free(ids, hidden, *loss)
        self.update(gradients)

    def update(self, gradients):
        p = self.p
        if self.states is None:
            self.states = [p.new(4 * n) for n in self.trained for _ in range(2)]
        for n in self.trained:
            p.passing(4 * n, 4 * n)
        p.passing(*[4] * 8)
        p.free(*gradients)

    def generate(self, sequences, prompt, words, free_logits=True):
        "Caches that are written anew, one word longer each time, as a framework without pages does."
        p, cache = self.p, []
        for _ in range(self.layers):
            row = 2 * sequences * prompt * self.width
            cache.append([p.new(row), p.new(row)])
            p.passing(row, 3 * row, 2 * sequences * prompt * self.inner)
        for i in range(1, words + 1):
            for layer in cache:
                row = 2 * sequences * (prompt + i) * self.width
                p.passing(2 * sequences * self.width, 6 * sequences * self.width)
                for k in (0, 1):
                    longer = p.new(row)
                    p.free(layer[k])
                    layer[k] = longer
                p.passing(2 * sequences * self.inner)
            p.passing(2 * sequences * self.vocabulary, 4 * sequences * self.vocabulary)
        for layer in cache:
            p.free(*layer)


def lengths(p, low, high, step=1):
    return p.random.randrange(low, high, step)


def full_finetuning(p):
    model = Model(p, 16, 1024, 2816, 32000)
    for _ in range(16):
        model.step(4, lengths(p, 160, 640))


def lora(p):
    model = Model(p, 24, 2048, 5632, 32000, trained=0.01)
    for _ in range(14):
        model.step(4, lengths(p, 300, 1000))


def checkpointed(p):
    model = Model(p, 22, 2048, 5632, 32000, trained=0.02, checkpointed=True)
    for _ in range(12):
        model.step(8, lengths(p, 200, 1000))


def eager_attention(p):
    model = Model(p, 12, 1024, 4096, 50257, eager=16)
    for _ in range(14):
        model.step(4, lengths(p, 256, 1024))


def ragged_with_evaluation(p):
    model = Model(p, 28, 2048, 5632, 32000, trained=0.01)
    for i in range(16):
        model.step(lengths(p, 1, 6), lengths(p, 100, 1500))
        if i % 4 == 3:
            for _ in range(6):
                tokens = lengths(p, 50, 3000)
                for _ in range(model.layers):
                    p.free(*model.layer(tokens, tokens))
                p.passing(2 * tokens * model.vocabulary, 4 * tokens * model.vocabulary)


def mixture(p, skew):
    width, inner, experts = 1024, 2048, 16
    weights = [p.new(2 * n) for _ in range(12) for n in [4 * width * width] + [3 * width * inner] * experts]
    states = [p.new(8 * 3 * width * inner) for _ in range(12)]
    for _ in range(12):
        tokens, kept = 4096, []
        for _ in range(12):
            blocks = [p.new(2 * tokens * width) for _ in range(5)]
            shares = [p.random.random() ** skew + 0.02 for _ in range(experts)]
            for share in shares:
                mine = int(2 * tokens * share / sum(shares)) + 1
                blocks += [p.new(2 * mine * width), p.new(2 * mine * inner), p.new(2 * mine * inner), p.new(8 * mine)]
                p.passing(2 * mine * width)
            kept.append(blocks)
        gradients = []
        for blocks in reversed(kept):
            flowing = p.new(2 * tokens * width)
            for i, block in enumerate(reversed(blocks)):
                if i % 4 == 0:
                    p.passing(2 * tokens * width // 8)
                p.free(block)
            gradients.append(p.new(2 * 3 * width * inner))
            p.free(flowing)
        p.free(*gradients)
    p.free(*weights, *states)


def even_mixture(p):
    mixture(p, 0)


def skewed_mixture(p):
    mixture(p, 3)


def unet(p, height, width, batch, channels):
    "Down, middle, up; what backward needs, in order."
    kept = []
    path = list(enumerate(channels)) + list(reversed(list(enumerate(channels))))
    for level, wide in path:
        pixels = (height >> level) * (width >> level) * batch
        for _ in range(3):
            kept += [p.new(2 * pixels * wide), p.new(2 * pixels * wide), p.new(4 * batch * 32)]
            p.passing(2 * pixels * wide)
    return kept


def diffusion_buckets(p):
    weights = [p.new(2 * n) for n in [9 * 320 * 320] * 40 + [9 * 640 * 640] * 40 + [9 * 1280 * 1280] * 24]
    states = [p.new(8 * 9 * 640 * 640) for _ in range(40)]
    sizes = [(64, 64), (48, 80), (80, 48), (56, 72), (72, 56), (40, 96), (96, 40), (64, 56)]
    for _ in range(24):
        height, width = p.random.choice(sizes)
        kept, gradients = unet(p, height, width, 12, [320, 640, 1280, 1280]), []
        for i, block in enumerate(reversed(kept)):
            p.passing(2 * height * width * 4 * 320)
            p.free(block)
            if i % 2 == 0:
                gradients.append(p.new(2 * 9 * 640 * 640))
        p.free(*gradients)
    p.free(*weights, *states)


def video_transformer(p):
    model = Model(p, 20, 1536, 6144, 64, trained=0.05)
    for _ in range(14):
        frames = lengths(p, 5, 33, 4)
        height, width = p.random.choice([(30, 52), (26, 46), (40, 40), (52, 30)])
        model.step(1, frames * height * width // 4)


def learning_from_feedback(p):
    model = Model(p, 16, 1536, 4096, 32000)
    for _ in range(4):
        model.generate(16, lengths(p, 60, 200), lengths(p, 50, 120))
        for _ in range(2):
            model.step(4, lengths(p, 200, 500))


def serving(p):
    weights = [p.new(2 * n) for _ in range(24) for n in (3 * 1536 * 1536, 1536 * 1536, 3 * 1536 * 4096)]
    running = []
    for _ in range(900):
        if len(running) < 24 and p.random.random() < 0.5:
            words = lengths(p, 16, 1500)
            running.append([lengths(p, 10, 400), [p.new(2 * 2 * words * 1536) for _ in range(24)], words])
            p.passing(2 * words * 1536, 6 * words * 1536, 2 * words * 4096, 2 * 32000 * 4)
        p.passing(2 * len(running) * 1536 + 1, 6 * len(running) * 1536 + 1, 4 * len(running) * 32000 + 1)
        for request in running:
            request[0] -= 8
            request[2] += 8
            if request[2] % 128 < 8:
                old, request[1] = request[1], [p.new(2 * 2 * (request[2] + 128) * 1536) for _ in range(24)]
                p.free(*old)
        for request in [r for r in running if r[0] <= 0]:
            running.remove(request)
            p.free(*request[1])
    p.free(*weights)


def sharded_three_streams(p):
    "Stream 1 gathers weights, stream 2 scatters gradients."
    layers, shard = 24, 6 * 1024 * 1024
    shards = [p.new(2 * shard) for _ in range(layers)]
    states = [p.new(8 * shard // 4) for _ in range(2 * layers)]
    for _ in range(12):
        tokens, kept, whole = lengths(p, 1500, 4000), [], []
        for i in range(layers):
            whole.append(p.new(8 * shard, 1))
            p.use(whole[-1], 0)
            kept.append([p.new(2 * tokens * n) for n in (1024, 3072, 1024, 4096, 4096)])
            if i > 0:
                p.free(whole[i - 1])
        p.free(whole[-1])
        for i in reversed(range(layers)):
            again = p.new(8 * shard, 1)
            p.use(again, 0)
            for block in reversed(kept[i]):
                p.passing(2 * tokens * 1024)
                p.free(block)
            gradient = p.new(8 * shard)
            p.use(gradient, 2)
            piece = p.new(2 * shard, 2)
            p.free(gradient, again)
            p.passing(4 * shard)
            p.use(piece, 0)
            p.free(piece)
    p.free(*shards, *states)


def offload_three_streams(p):
    "Stream 1 copies out, stream 2 copies in; buffers of the copies are the streams' own."
    layers = 32
    weights = [p.new(2 * 12 * 1024 * 1024) for _ in range(layers)]
    for _ in range(12):
        tokens = lengths(p, 1000, 4000)
        sizes = [2 * tokens * n for n in (1024, 3072, 1024, 2816, 2816)]
        for _ in range(layers):
            kept = [p.new(size) for size in sizes]
            staging = p.new(sum(sizes) // 2, 1)
            for block in kept:
                p.use(block, 1)
            p.free(*kept, staging)
            p.passing(2 * tokens * 1024)
        before = []
        for _ in range(layers):
            kept = [p.new(size, 2) for size in sizes]
            for block in kept:
                p.use(block, 0)
            p.free(*before)
            p.passing(2 * tokens * 2816, 2 * tokens * 1024)
            gradient = p.new(2 * 12 * 1024 * 1024)
            p.use(gradient, 1)
            p.free(gradient)
            before = kept
        p.free(*before)
    p.free(*weights)


def small_tensors(p):
    def size():
        return 512 * p.random.randrange(1, 24) if p.random.random() < 0.8 else p.random.randrange(1, 150000)

    live = [p.new(size()) for _ in range(20000)]
    for _ in range(40000):
        i = p.random.randrange(len(live))
        p.free(live[i])
        live[i] = p.new(size())
        if len(live) < 28000 and p.random.random() < 0.2:
            live.append(p.new(size()))
    p.free(*live)


def pins(p):
    "Small blocks that stay, each between two large ones; larger ones follow when those have gone."
    large, kept = [], []
    for _ in range(190):
        large.append(p.new(6 * MIB))
        kept += [p.new(MIB), p.new(512)]
    for size in (8, 7, 12, 6, 20, 9):
        p.free(*large)
        large = [p.new(size * MIB) for _ in range(190 * 6 // size)]
    p.free(*large, *kept)


def scattered_pins(p):
    "The same where the large blocks go in any order and a pin falls between some."
    kept, live = [], []
    for i in range(6000):
        live.append(p.new((6 if i % 1500 < 900 else 8) * MIB))
        if p.random.random() < 0.06:
            kept.append(p.new(MIB if p.random.random() < 0.5 else 512))
        while len(live) > (160 if i % 1500 < 900 else 120):
            p.free(live.pop(p.random.randrange(len(live))))
    p.free(*live, *kept)


def fours_after_eights(p):
    for _ in range(8):
        p.passing(*[16 * MIB] * 8)
        p.passing(*[32 * MIB] * 4)


def unbounded_cycle(p):
    kept = []
    for _ in range(60):
        first, second = p.new(91 * MIB), p.new(91 * MIB // 2)
        kept.append(p.new(2 * MIB))
        p.free(first, second)
    p.free(*kept)


WORKLOADS = [
    full_finetuning, lora, checkpointed, eager_attention, ragged_with_evaluation, even_mixture, skewed_mixture,
    diffusion_buckets, video_transformer, learning_from_feedback, serving, sharded_three_streams,
    offload_three_streams, small_tensors, pins, scattered_pins, fours_after_eights, unbounded_cycle,
]  # fmt: skip


def main():
    own, theirs = sys.argv[1:], None
    if "--" in own:
        theirs = own[own.index("--") + 1 :]
        own = own[: own.index("--")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[w.__name__ for w in WORKLOADS])
    arguments = parser.parse_args(own)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for workload in WORKLOADS:
        if workload.__name__ not in arguments.only:
            continue
        program = Program(workload.__name__)
        workload(program)
        paths.append(arguments.folder / (workload.__name__ + ".csv"))
        paths[-1].write_text("\n".join(["Thread,Time,Action,Pointer,Size,Stream", *program.rows]) + "\n")
    if theirs is not None:
        measure = os.environ.get("HELD_MEMORY", str(ROOT / "build/dev/tests/bench/held_memory"))
        subprocess.run([measure, *theirs, *map(str, paths)], check=True)


if __name__ == "__main__":
    main()
