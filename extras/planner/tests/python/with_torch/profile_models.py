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


MODELS = {
    "words": lambda: (Words(), words_of, next_word),
    "picture": lambda: (Picture(), lambda batch: torch.randn(batch, 3, 24, 24)),
}


@pytest.fixture(params=list(MODELS))
def made(request):
    return MODELS[request.param]()
