"""What fit() does below the floor where `allow` names it: losses in pieces, and states that are elsewhere."""

from __future__ import annotations

import contextlib
import re

import fit_models as models
import pytest
import torch
from fit_models import results, same
from torch.nn import functional as F

import memopt
import memopt.torch as mt
from memopt.torch.fitting import _loss, _otherwise, _states
from memopt.torch.optim import _binding


class Scores(torch.nn.Module):
    """Hidden states of tokens, and scores of words."""

    def __init__(self, words=300, width=32, bias=True):
        super().__init__()
        self.body, self.head = models.Block(width), torch.nn.Linear(width, words, bias)

    def forward(self, x):
        return self.head(self.body(x))


def scores(count=150, **options):
    torch.manual_seed(0)
    return Scores(**options), torch.randn(2, count, 32), torch.randint(0, 300, (2, count))


def both(model, step, autocast=False):
    """Loss and gradients as they are and in pieces, and what was told."""
    found = []
    for context in (contextlib.nullcontext(), _loss.chunked(model.head)):
        model.zero_grad()
        with context as told, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = step()
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    return (*found, told)


def assert_close(one, other, part=1e-5):
    for a, b in zip(one, other):
        assert a.dtype is b.dtype and (a - b).norm() <= part * max(b.norm(), 1e-3)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_in_pieces(reduction, bias, autocast):
    model, x, ids = scores(bias=bias)
    ids[0, 3:9] = -100

    def step():
        made = model(x).float()[..., :-1, :].contiguous()
        assert made.shape == (2, 149, 300) and made.dtype is torch.float32 and made.size(-1) == 300
        loss = F.cross_entropy(made.view(-1, made.size(-1)), ids[:, 1:].flatten(), reduction=reduction)
        return loss * 8 / 7

    plain, pieces, told = both(model, step, autocast)
    assert told == [""]
    assert_close(pieces, plain, 1e-5 if not autocast else 0.02)


def test_more_exact_than_sums_of_16_bits():
    """Gradients of the weights over pieces are added in 32 bits."""
    model, x, ids = scores(1500)
    exact, _, _ = both(model.double(), lambda: F.cross_entropy(model(x.double()).flatten(0, 1), ids.flatten()))
    model.bfloat16()
    plain, pieces, told = both(model, lambda: F.cross_entropy(model(x.bfloat16()).flatten(0, 1), ids.flatten()))
    assert told == [""] and pieces[0].dtype is torch.bfloat16

    def off(found):
        return [(a.double() - b).norm() / b.norm() for a, b in zip(found, exact)]

    assert all(ours <= 1.1 * theirs + 1e-3 for ours, theirs in zip(off(pieces), off(plain)))


@pytest.mark.parametrize("frozen", ["head", "body"])
def test_what_needs_no_gradient(frozen):
    model, x, ids = scores()
    getattr(model, frozen).requires_grad_(False)

    def found(context):
        model.zero_grad()
        with context:
            F.cross_entropy(model(x).flatten(0, 1), ids.flatten()).backward()
        return [p.grad for p in model.parameters() if p.requires_grad]

    assert_close(found(_loss.chunked(model.head)), found(contextlib.nullcontext()))


def test_no_token_counts():
    model, x, ids = scores()
    plain, pieces, told = both(model, lambda: F.cross_entropy(model(x).flatten(0, 1), ids.fill_(-100).flatten()))
    assert told == [""] and plain[0].isnan() and pieces[0].isnan()
    with _loss.chunked(model.head):
        loss = F.cross_entropy(model(x).flatten(0, 1), ids.flatten(), reduction="sum")
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="has one backward"):
        loss.backward()


@pytest.mark.parametrize("wrong", [300, -5])
def test_a_class_that_is_not_there(wrong):
    """Is loud: torch raises, or stops the kernel."""
    model, x, ids = scores()
    ids[1, 4] = wrong
    with _loss.chunked(model.head) as told:
        loss = F.cross_entropy(model(x).flatten(0, 1), ids.flatten())
    assert told == [""] and loss.isnan()


ELSE = {
    "softmax": lambda y, ids: -y.log_softmax(-1).gather(-1, ids[..., None]).mean(),
    "scaled": lambda y, ids: F.cross_entropy((y / 2).flatten(0, 1), ids.flatten()),
    "capped": lambda y, ids: F.cross_entropy((5 * torch.tanh(y * 0.2)).flatten(0, 1), ids.flatten()),
    "smoothed": lambda y, ids: F.cross_entropy(y.flatten(0, 1), ids.flatten(), label_smoothing=0.1),
    "classes first": lambda y, ids: F.cross_entropy(y.transpose(1, 2), ids),
    "some": lambda y, ids: F.cross_entropy(y[ids > 9], ids[ids > 9]),
    "some words": lambda y, ids: F.cross_entropy(y[..., :200].flatten(0, 1), ids.flatten() % 200),
    "each": lambda y, ids: F.cross_entropy(y.flatten(0, 1), ids.flatten(), reduction="none").mean(),
    "an exact sum": lambda y, ids: F.cross_entropy(y.double().flatten(0, 1), ids.flatten()),
}


@pytest.mark.parametrize("name", ELSE)
def test_all_else_is_what_it_was(name):
    model, x, ids = scores()
    plain, pieces, told = both(model, lambda: ELSE[name](model(x), ids))
    assert same(plain, pieces) and told[0] != "" or name == "each"


def test_changes_in_place_count():
    """Also those of what a view was taken from before."""
    model, x, ids = scores()

    def step():
        made = model(x)
        rows = made.view(-1, 300)
        made[..., 7] = -100.0
        made *= 2
        return F.cross_entropy(rows, ids.flatten())

    plain, pieces, _ = both(model, step)
    assert same(plain, pieces)


# --- within a budget -------------------------------------------------------------------------------


def floor_of(model, step, optimizer=None, allow=()):
    """A whole plan's floor, and the text of the refusal below it."""
    fit = mt.fit(model, optimizer, step, budget="1GiB")
    floor = fit._now.planner.solve(0).peak + fit._states
    fit.remove()
    with pytest.raises(memopt.LimitReachedError) as refused:
        mt.fit(model, optimizer, step, budget=1, allow=allow)
    return floor, str(refused.value)


@pytest.mark.parametrize("make", [models.gpt2, models.llama])
def test_a_budget_below_the_logits(make, tmp_path):
    model, step = make(words=4096, layers=2)
    expected = results(model, step)
    floor, said = floor_of(model, step)
    assert "allow=('chunked_loss',) would lower the least by" in said
    budget = int(0.9 * floor)
    fit = mt.fit(model, None, step, budget=budget, allow=("chunked_loss",))
    assert fit.measured <= budget and fit.done == {"chunked_loss": "lm_head"} and "chunked_loss: lm_head" in fit.table()
    found = results(model, step)
    assert_close([f for f in found if f is not None], [e for e in expected if e is not None])
    assert not same(found, expected) and not fit.unplanned
    fit.save(tmp_path / "plan.json")
    fit.remove()
    assert same(results(model, step), expected)
    again = mt.Fit.load(tmp_path / "plan.json", model)
    assert same(results(model, step), found) and again.done == fit.done
    again.remove()


def test_the_loss_outside_of_the_model_and_not_as_planned():
    model, x, ids = scores(600, words=3000)
    expected = results(model, lambda: F.cross_entropy(model(x).flatten(0, 1), ids.flatten()))
    step = lambda: F.cross_entropy(model(x).flatten(0, 1), ids.flatten())  # noqa: E731
    plain = mt.fit(model, None, step, budget="1GiB")
    plain.remove()
    floor, _ = floor_of(model, step)
    fit = mt.fit(model, None, step, budget=int(0.9 * floor), allow=("chunked_loss",))
    assert_close(results(model, step), expected)
    assert not fit.unplanned and fit.plain_bytes == plain.plain_bytes  # as it was, with whole logits
    with pytest.warns(UserWarning, match="not the one that was planned: exp needs all of what head gives"):
        found = results(model, lambda: model(x).exp().mean())
    assert fit.unplanned == 1
    fit.remove()
    assert same(found, results(model, lambda: model(x).exp().mean()))


def test_the_layers_results_are_used_otherwise():
    model, step = models.words()
    _, said = floor_of(model, step, allow=("chunked_loss",))
    assert "allow=('chunked_loss',) does not help: log_softmax needs all of what decode gives" in said


def begun(make=models.Scored, **options):
    """A model, a batch and an optimizer with states."""
    torch.manual_seed(0)
    model, x = make(), torch.randn(64, 32)
    optimizer = mt.AdamW(model.parameters(), lr=1e-3, **options)
    train(model, x, optimizer)
    return model, x, optimizer


def train(model, x, optimizer):
    model(x).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_states_in_8_bits():
    """Below the floor, where they are allowed: as if the states had been loaded into the 8-bit class."""
    model, x, optimizer = begun()
    states = optimizer.state_dict()
    whole = mt.fit(model, optimizer, lambda: model(x), budget="1GiB")
    budget = whole._now.planner.solve(0).peak + whole._states - 1
    whole.remove()
    with pytest.raises(memopt.LimitReachedError) as refused:
        mt.fit(model, optimizer, lambda: model(x), budget=budget)
    said = re.search(r"allow=\('8bit',\) would lower the least by ([\d.]+) KiB", str(refused.value))
    assert type(optimizer) is mt.AdamW and "allow=('release',)" in str(refused.value)
    fit = mt.fit(model, optimizer, lambda: model(x), budget=budget, allow=("release", "8bit"))
    assert list(fit.done) == ["8bit"] and fit.release is None, "no more than the budget asks for"
    assert type(optimizer) is mt.AdamW8bit and fit.measured <= budget
    assert abs(whole._states - fit._states - 1024 * float(said[1])) <= 8
    train(model, x, optimizer)
    other, x, _ = begun()
    eight = mt.AdamW8bit(other.parameters(), lr=1e-3)
    eight.load_state_dict(states)
    train(other, x, eight)
    assert same([*model.parameters()], [*other.parameters()])


def test_states_on_the_host(monkeypatch):
    """The same bits; on a CPU there is no other memory, so it is no choice."""
    model, x, optimizer = begun()
    floor, said = floor_of(model, lambda: model(x), optimizer)
    assert "'host'" not in said
    for module in (_binding, _states):
        monkeypatch.setattr(module, "is_paged", lambda device: True)
    monkeypatch.setattr(_otherwise, "shares_memory", lambda device: False)
    _, said = floor_of(model, lambda: model(x), optimizer)
    assert "allow=('host',) would lower the least by %s" % memopt.sizes.format_size(_states.state_bytes(model, optimizer))
    fit = mt.fit(model, optimizer, lambda: model(x), budget=floor - 1, allow=("8bit", "host"))
    assert fit.done == {"host": "states on the host"} and type(optimizer) is mt.AdamW and optimizer._page_bytes
    train(model, x, optimizer)
    other, x, plain = begun()
    train(other, x, plain)
    assert same([*model.parameters()], [*other.parameters()])


class Cast(models.Scored):
    """Computes in its weights' type."""

    def forward(self, x):
        return super().forward(x.to(self.body[0].up.weight.dtype)).float()


def test_split_weights(tmp_path):
    model, x, optimizer = begun(Cast)
    before = [p.detach().clone() for p in model.parameters()]
    floor, said = floor_of(model, lambda: model(x), optimizer)
    assert "allow=('split',) would lower the least by" in said
    fit = mt.fit(model, optimizer, lambda: model(x), budget=floor - 1, allow=("split",))
    assert "weights in bf16" in fit.table() and fit.measured <= fit.budget < floor
    for p, whole in zip(model.parameters(), before):
        rest = optimizer.state[p]["weight_residual"]
        bits = (p.float().view(torch.int32) + rest).view(torch.float32)
        assert p.dtype is torch.bfloat16 and ((bits == whole) | (rest == 32767)).all()
    fit.save(tmp_path / "plan.json")
    other, x, twin = begun(Cast)
    _states.to_split(twin)
    for m, o in ((model, optimizer), (other, twin)):
        train(m, x, o)
    assert same([*model.parameters()], [*other.parameters()])
    fit.remove()
    third, x, late = begun(Cast)
    with pytest.raises(ValueError, match="is for an optimizer with weights in bf16"):
        mt.Fit.load(tmp_path / "plan.json", third)
    again = mt.Fit.load(tmp_path / "plan.json", third, late)
    train(third, x, late)
    assert same([*third.parameters()], [*other.parameters()])
    again.remove()


def test_weights_that_cannot_be_split():
    """A layer would take 32 bits and 16."""
    model, x, optimizer = begun()
    _, said = floor_of(model, lambda: model(x), optimizer, allow=("split",))
    assert "allow=('split',) does not help: with weights in bf16 the step raises: " in said
    assert all(p.dtype is torch.float32 for p in model.parameters())
