"""Rules of which no package with a wheel has an optimizer, as their papers write them, in plain torch:
the peers of GaLore, APOLLO and AdamMini in torch_optim.py."""

import math

import torch


class Plain(torch.optim.Optimizer):
    """What they have in common: Adam's moments of something smaller than the gradient."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, rank=128, scale=0.25):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, rank=rank, scale=scale))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                p.add_(self.update(p.grad, state, group), alpha=-group["lr"])

    def adam(self, g, squares, state, group):
        """The quotient of the corrected moments."""
        if "m" not in state:
            state["m"], state["v"] = torch.zeros_like(g), torch.zeros_like(squares)
        beta1, beta2 = group["betas"]
        state["m"].mul_(beta1).add_(g, alpha=1 - beta1)
        state["v"].mul_(beta2).add_(squares, alpha=1 - beta2)
        root = (state["v"] / (1 - beta2 ** state["step"])).sqrt().add_(group["eps"])
        return state["m"] / (1 - beta1 ** state["step"]) / root


class GaLore(Plain):
    """Adam of a projection on leading singular vectors, found once here."""

    def update(self, g, state, group):
        tall = g.shape[0] >= g.shape[1]
        if "basis" not in state:
            u, _, v = torch.linalg.svd(g.float(), full_matrices=False)
            state["basis"] = (v[: group["rank"]].T if tall else u[:, : group["rank"]]).to(g.dtype)
        basis = state["basis"]
        low = g @ basis if tall else basis.T @ g
        low = self.adam(low, low * low, state, group)
        return (low @ basis.T if tall else basis @ low) * group["scale"]


class APOLLO(Plain):
    """The gradient, scaled by channels as Adam scales a random projection of it."""

    def update(self, g, state, group):
        tall = g.shape[0] >= g.shape[1]
        if "basis" not in state:
            state["basis"] = torch.randn(min(g.shape), group["rank"], dtype=g.dtype)
            state["basis"] /= math.sqrt(group["rank"])
        low = g @ state["basis"] if tall else state["basis"].T @ g
        dim = 1 if tall else 0
        update = self.adam(low, low * low, state, group).norm(dim=dim, keepdim=True)
        update = g * (update / (low.norm(dim=dim, keepdim=True) + 1e-8))
        length = float(update.norm())
        if length > 1.01 * state.get("length", math.inf):
            update *= 1.01 * state["length"] / length
        state["length"] = min(length, 1.01 * state.get("length", math.inf))
        return update


class AdamMini(Plain):
    """Adam with one second moment for each row."""

    def update(self, g, state, group):
        squares = (g * g).mean(dim=1, keepdim=True) if g.dim() > 1 else (g * g).mean()
        return self.adam(g, squares, state, group)
