"""Small models that the tests of profiles trace and run."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

FLOAT = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.drop(self.out(y))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Words(nn.Module):
    """A small language model with tied embeddings."""

    def __init__(self, words=701, width=32, layers=3):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids)))


def words_of(batch):
    return torch.randint(0, 701, (batch, 48))


def next_word(outputs, ids):
    return F.cross_entropy(outputs.flatten(0, 1), ids.flatten())


class Picture(nn.Module):
    """Convolutions, and batch norm with its buffers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.head = nn.Linear(8, 10)

    def forward(self, pixels):
        return self.head(self.layers(pixels).mean((2, 3)))


class Unet(nn.Module):
    """Down by pooling, up by a transposed convolution."""

    def __init__(self, width=24):
        super().__init__()
        self.down, self.low = self._twice(3, width), self._twice(width, 2 * width)
        self.up, self.last = nn.ConvTranspose2d(2 * width, width, 2, 2), self._twice(2 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    @staticmethod
    def _twice(a, b):
        both = ((nn.Conv2d(c, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU()) for c in (a, b))
        return nn.Sequential(*(part for parts in both for part in parts))

    def forward(self, x):
        high = self.down(x)
        return self.out(self.last(torch.cat([self.up(self.low(F.max_pool2d(high, 2))), high], 1)))


def videos():
    """Convolutions of three dimensions."""
    parts = nn.Conv3d(3, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.Conv3d(16, 24, 3, stride=2)
    return nn.Sequential(*parts), lambda batch: torch.randn(batch, 3, 8, 20, 20)


def channels_last():
    """What is in the kernels' layout is not copied."""
    last = torch.channels_last
    return Unet().to(memory_format=last), lambda batch: torch.randn(batch, 3, 32, 32).to(memory_format=last)


MODELS = {
    "words": lambda: (Words(), words_of, next_word),
    "picture": lambda: (Picture(), lambda batch: torch.randn(batch, 3, 24, 24)),
}


@pytest.fixture(params=list(MODELS))
def made(request):
    return MODELS[request.param]()
