"""Small models for the tests of fit(): each gives the model and a step, the loss of one batch."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F


def gpt2(layers=3, width=64, length=64, batch=2, words=512, **more):
    transformers = pytest.importorskip("transformers")
    more = {"use_cache": False, "bos_token_id": 0, "eos_token_id": 0, **more}
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=4, n_positions=length, vocab_size=words, **more
    )
    torch.manual_seed(0)
    return _language(transformers.GPT2LMHeadModel(config), words, batch, length)


def llama(layers=3, width=64, length=64, batch=2, words=512, **more):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=3 * width,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=words,
        **{"use_cache": False, **more},
    )
    torch.manual_seed(0)
    return _language(transformers.LlamaForCausalLM(config), words, batch, length)


def mixtral():
    """Its routing needs values: a real step is recorded."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        vocab_size=256,
        use_cache=False,
    )
    torch.manual_seed(0)
    return _language(transformers.MixtralForCausalLM(config), 256, 2, 64)


def _language(model, words, batch, length):
    ids = torch.randint(0, words, (batch, length))
    return model.train(), lambda: model(input_ids=ids, labels=ids).loss


def vit(layers=3, width=64, batch=4):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * width,
        image_size=48,
        patch_size=8,
        num_labels=10,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config).train()
    images, labels = torch.randn(batch, 3, 48, 48), torch.randint(0, 10, (batch,))
    return model, lambda: model(pixel_values=images, labels=labels).loss


class Residual(nn.Module):
    """Two convolutions with BatchNorm, dropout, and activations in place."""

    def __init__(self, width):
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, 1, 1, bias=False) for _ in range(2))
        self.first, self.second = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.1)

    def forward(self, x):
        return F.relu(self.second(self.two(self.drop(self.relu(self.first(self.one(x)))))) + x)


def resnet(width=8, size=16, batch=4):
    torch.manual_seed(0)
    blocks = [Residual(width) for _ in range(5)]
    first, last = nn.Conv2d(3, width, 3, 1, 1), nn.Linear(width * size * size, 10)
    model = nn.Sequential(first, nn.BatchNorm2d(width), *blocks, nn.Flatten(), last)
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))
    return model.train(), lambda: F.cross_entropy(model(images), labels)


class Words(nn.Module):
    """A language model of words: LSTM layers between tied embeddings."""

    def __init__(self, words=512, width=64, layers=2):
        super().__init__()
        self.embed, self.drop = nn.Embedding(words, width), nn.Dropout(0.2)
        self.layers = nn.ModuleList(nn.LSTM(width, width) for _ in range(layers))
        self.decode = nn.Linear(width, words)
        self.decode.weight = self.embed.weight

    def forward(self, ids):
        x = self.drop(self.embed(ids))
        for layer in self.layers:
            x = self.drop(layer(x)[0])
        return F.log_softmax(self.decode(x).flatten(0, 1), dim=-1)


def words():
    torch.manual_seed(0)
    model, ids = Words(), torch.randint(0, 512, (33, 8))
    return model, lambda: F.nll_loss(model(ids[:-1]), ids[1:].flatten())


def encoder():
    """A language model of torch's own layers."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    model, ids = nn.Sequential(nn.Embedding(512, 64), body, nn.Linear(64, 512)), torch.randint(0, 512, (8, 33))
    return model, lambda: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


MODELS = {
    "encoder": encoder, "gpt2": gpt2, "llama": llama, "mixtral": mixtral, "resnet": resnet, "vit": vit, "words": words,
}  # fmt: skip


class Block(nn.Module):
    """A norm and two layers with a gate between them."""

    def __init__(self, width=32):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.gate, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act = F.silu

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(self.act(self.up(y)) * self.gate(y))


def stack(count=4, make=Block, batch=64):
    torch.manual_seed(0)
    model = nn.Sequential(*(make() for _ in range(count)))
    x = torch.randn(batch, 32)
    return model, lambda: model(x).square().mean()


class Scored(nn.Module):
    """A stack that gives its loss."""

    def __init__(self):
        super().__init__()
        self.body, _ = stack()

    def forward(self, x):
        return self.body(x).square().mean()


def results(model, step):
    """Loss, gradients and buffers of a step, which leaves the model as it was."""
    random, buffers = torch.get_rng_state(), [(b, b.clone()) for b in model.buffers()]
    model.zero_grad()
    loss = step()
    loss.backward()
    found = [loss.detach()] + [p.grad for p in model.parameters()] + [b.clone() for b in model.buffers()]
    model.zero_grad()
    torch.set_rng_state(random)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    return found


def same(one, other):
    return len(one) == len(other) and all(a is b or torch.equal(a, b) for a, b in zip(one, other))


def offloading(model, step):
    """The step, with every saved tensor of 1 KiB or more in host memory of its own, as torchtune's offloader does it:
    copied in line, and in numpy's memory, which no judge of the device counts."""
    weights = {p.untyped_storage()._cdata for p in model.parameters()}

    def pack(tensor):
        if tensor.nbytes < 1024 or tensor.untyped_storage()._cdata in weights:
            return tensor
        memory = torch.from_numpy(numpy.empty(tensor.nbytes, numpy.uint8))
        return (memory.view(tensor.dtype).view(tensor.shape).copy_(tensor),)

    def unpack(packed):
        return packed[0].clone() if isinstance(packed, tuple) else packed

    def moving():
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return step()

    return moving
