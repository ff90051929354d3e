"""What rows put on top of Transformers' models: contrastive scores, and losses in chunks."""

from __future__ import annotations

from typing import Any, Tuple

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import CausalLMOutputWithPast, SequenceClassifierOutput

#: Tokens whose logits exist at once.
CHUNK = 256


class Contrastive(torch.nn.Module):
    """Scores of anchors against the positives and negatives of all samples, and their loss.

    Rows come anchors first; the positive of anchor i is row `anchors + i`.
    """

    def __init__(self, encoder: torch.nn.Module, group: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.group = group

    def forward(self, input_ids: torch.Tensor) -> Any:
        pooled = self.encoder(input_ids=input_ids, use_cache=False).last_hidden_state.mean(1)
        pooled = F.normalize(pooled.float(), dim=-1)
        anchors = len(pooled) // self.group
        scores = pooled[:anchors] @ pooled[anchors:].T / 0.05
        loss = F.cross_entropy(scores, torch.arange(anchors))
        return SequenceClassifierOutput(loss=loss, logits=scores)


def chunk_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The summed cross entropy of some tokens."""
    return F.cross_entropy((hidden @ weight.T).float(), labels, reduction="sum")


class Gradients(torch.autograd.Function):
    """Cross entropy of all tokens, whose gradients are computed with it, a chunk at a time."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        total = torch.zeros((), dtype=torch.float32)
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            logits = (hidden[part] @ weight.T).float()
            total += F.cross_entropy(logits, labels[part], reduction="sum")
            scores = logits.softmax(-1)
            del logits
            scores[torch.arange(len(scores)), labels[part]] -= 1.0
            gradient = scores.div_(len(hidden)).to(hidden.dtype)
            del scores
            of_hidden[part] = gradient @ weight
            if of_weight is not None:
                of_weight.addmm_(gradient.T, hidden[part])
            del gradient
        ctx.save_for_backward(of_hidden, of_weight)
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, Any, None]:
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden * gradient, None if of_weight is None else of_weight * gradient, None


class Fused(torch.nn.Module):
    """As fused kernels do it."""

    def forward(self, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = Gradients.apply(hidden, weight, labels)  # type: ignore
        return loss


class Chunked(torch.nn.Module):
    """Each chunk is a checkpoint: its logits exist in forward, and again in backward."""

    def forward(self, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for part, words in zip(hidden.split(CHUNK), labels.split(CHUNK)):
            total = total + checkpoint(chunk_loss, part, weight, words, use_reentrant=False)
        return total / len(hidden)


class Headless(torch.nn.Module):
    """A causal language model whose head is part of the loss: logits never exist as a whole. Like
    models whose loss somebody has fused, it fills the cache and returns it as the plain one does."""

    def __init__(self, model: Any, kind: str) -> None:
        super().__init__()
        self.model = model
        self.score = {"fused": Fused, "chunked": Chunked}[kind]()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        outputs = self.model.model(input_ids=input_ids)
        hidden = outputs.last_hidden_state
        hidden, labels = hidden[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        loss = self.score(hidden, self.model.lm_head.weight, labels)
        return CausalLMOutputWithPast(loss=loss, past_key_values=outputs.past_key_values)
