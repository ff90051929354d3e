"""Adafactor: torch's rule and what differs from it, and the manners of the other optimizers."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import memopt.torch as mt  # noqa: E402
from memopt.torch._live_bytes import LiveBytes  # noqa: E402
from memopt.torch.optim import _whole  # noqa: E402

from optim_support import (  # noqa: E402
    assert_same_states,
    assert_unchanged,
    drawn,
    fill,
    same_bits,
    snapshot,
    through_a_file,
    twin,
    walk,
)

#: Numbers of dimensions, rows and columns of one, and what does not divide into pieces.
SHAPES = ((96, 33), (7,), (), (3, 40, 5), (2, 3, 4, 5), (1, 9), (9, 1))


def parameters(seed=0, shapes=SHAPES, **named):
    return drawn(shapes, seed, **named)


def apart(params, exact, start):
    """The difference as a share of the movement."""
    with torch.no_grad():
        return [
            float((p.double() - q.double()).norm() / (q.double() - s.double()).norm())
            for p, q, s in zip(params, exact, start)
        ]


# --- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"weight_decay": 0.1, "maximize": True},
        {"beta2_decay": -0.5, "eps": (1e-30, 1e-2)},
        {"eps": (1.0, 1e-3)},  # above the root of most second moments
        {"d": 3.0, "lr": torch.tensor(0.03)},
    ],
)
@pytest.mark.parametrize("piece", [None, 50])  # 50: every matrix in several
def test_the_rule_is_torchs(values, piece, device, monkeypatch):
    """Of torch's class on the same numbers in 64 bits, as near as torch's in 32."""
    if piece:
        monkeypatch.setitem(_whole.PIECE, device.type, piece)
    ours, theirs = parameters(device=device), parameters(device=device)
    exact = parameters(dtype=torch.float64, device=device)
    start = [p.detach().clone() for p in ours]
    a = mt.Adafactor(ours, **values)
    eps = values.get("eps", (torch.finfo(torch.float32).eps, 1e-3))
    b = torch.optim.Adafactor(theirs, **values)
    c = torch.optim.Adafactor(exact, **{**values, "eps": eps})
    for t in range(10):
        fill(ours, t, 1.0)
        for p, q, r in zip(ours, theirs, exact):
            q.grad, r.grad = p.grad.clone(), p.grad.double()
        for optimizer in (a, b, c):
            optimizer.step()
    for ours_off, theirs_off in zip(apart(ours, exact, start), apart(theirs, exact, start)):
        assert ours_off < max(2e-5, 1.5 * theirs_off)
    for p, r in zip(ours, exact):
        for key in set(a.state[p]) - {"step"}:
            torch.testing.assert_close(a.state[p][key].double(), c.state[r][key], rtol=1e-5, atol=0)


def test_defaults_are_those_of_torch():
    ours, theirs = mt.Adafactor(parameters()).defaults, torch.optim.Adafactor(parameters()).defaults
    assert {key: ours[key] for key in theirs} == theirs
    assert set(ours) - set(theirs) == {"seed", "stochastic_rounding"}


@pytest.mark.parametrize("seed", range(3))
def test_a_regression_ends_as_with_torch(seed, device):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(256, 80, generator=generator).to(device)
    y = torch.tanh(x @ torch.randn(80, 40, generator=generator).to(device) * 0.2)
    losses = []
    for make in (mt.Adafactor, torch.optim.Adafactor):
        layers = parameters(seed, shapes=((96, 80), (96,), (40, 96)), device=device)
        optimizer = make(layers, lr=0.02)
        for _ in range(60):
            h = torch.tanh(torch.nn.functional.linear(x, layers[0] * 0.2, layers[1]))
            loss = (h @ layers[2].T * 0.2 - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    assert abs(losses[0] - losses[1]) < 1e-3 * losses[1]


def test_bytes(device):
    """Of a matrix, its rows and columns; beside them, of fp32, a piece."""
    (p,) = parameters(shapes=((1024, 768),), device=device)
    optimizer = mt.Adafactor([p])
    fill([p], 0)
    with LiveBytes([p, p.grad]) as live:
        optimizer.step()
        assert live.live == 4 * (1024 + 768) + 8
    assert device.type != "cpu" or live.peak < 4 * (p.numel() // 2)


# --- state dicts ----------------------------------------------------------------------------------


def test_between_ours_and_torch(device):
    theirs = parameters(device=device)
    b = torch.optim.Adafactor(theirs)
    walk(b, theirs, 2)
    ours = twin(theirs)
    a = mt.Adafactor(ours, lr=0.5)
    a.load_state_dict(through_a_file(b.state_dict()))
    assert a.param_groups[0]["lr"] == 1e-2 and int(a.state[ours[0]]["step"]) == 2
    back = twin(theirs)
    c = torch.optim.Adafactor(back)
    with mt.portable_states(a):
        c.load_state_dict(through_a_file(a.state_dict()))
    for optimizer, own in ((a, ours), (b, theirs), (c, back)):
        walk(optimizer, own, 2, seed=5)
    for p, q, r in zip(ours, theirs, back):
        assert same_bits(q, r)
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_states_that_do_not_fit_are_refused(device):
    params = parameters(device=device)
    optimizer = mt.Adafactor(params)
    walk(optimizer, params, 1)
    before = snapshot(optimizer, params)
    for change, text in (
        (lambda s: s[0].pop("row_var"), "parameter 0 of group 0 has no row_var"),
        (lambda s: s[1].update(variance=torch.zeros(8)), r"variance of parameter 1 .* shape \(8,\)"),
        (lambda s: s[0].update(col_var=torch.zeros(1, 33).int()), "no col_var"),
        (lambda s: s[0].update(step=torch.tensor(-1.0)), "has taken"),
    ):
        saved = copy.deepcopy(optimizer.state_dict())
        change(saved["state"])
        with pytest.raises(ValueError, match=text):
            optimizer.load_state_dict(saved)
        assert_unchanged(optimizer, params, before)


def test_dicts_of_other_rules_are_refused(device):
    params = parameters(shapes=((8, 9), (5, 6)), device=device)
    optimizer = mt.Adafactor(params)
    walk(optimizer, params, 1)
    for other in (mt.SGD8bit(params, momentum=0.9), mt.AdamW(params), mt.Muon(params)):
        walk(other, params, 1)
        before = snapshot(optimizer, params)
        with pytest.raises(ValueError, match="not of Adafactor: group 0 has no beta2_decay"):
            optimizer.load_state_dict(other.state_dict())
        assert_unchanged(optimizer, params, before)
        with pytest.raises(ValueError, match="another rule|is of Adafactor, not of"):
            other.load_state_dict(optimizer.state_dict())


# --- manners --------------------------------------------------------------------------------------


def test_groups_are_optimizers_of_their_own(device):
    params = parameters(device=device)
    values = [{"lr": 0.1}, {"d": 2.0}, {"weight_decay": 0.1}, {"eps": (1e-3, 0.1)}]
    together = mt.Adafactor([{"params": [p], **v} for p, v in zip(params, values)])
    alone = twin(params[: len(values)])
    own = [mt.Adafactor([p], **v) for p, v in zip(alone, values)]
    walk(together, params, 3)
    for t in range(3):
        fill(alone, t)
        for optimizer in own:
            optimizer.step()
    for p, q, optimizer in zip(params, alone, own):
        assert_same_states(together, optimizer, [p], [q])


def test_empty_repeated_and_without_gradient(device):
    p, q = parameters(shapes=((20, 30), (20, 30)), device=device)
    empty = torch.zeros(0, 5, device=device, requires_grad=True)
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = mt.Adafactor([p, q, empty, p])
    before = q.detach().clone()
    fill([p, empty], 0)
    optimizer.step()
    assert list(optimizer.state) == [p] and same_bits(q, before)
    assert int(optimizer.state[p]["step"]) == 1


@pytest.mark.parametrize(
    "values, text",
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"weight_decay": -0.5}, "Invalid weight_decay value: -0.5"),
        ({"d": 0.5}, "Invalid d value: 0.5"),
        ({"beta2_decay": 0.5}, "Invalid beta2_decay value: 0.5"),
        ({"eps": 1e-8}, "Invalid eps: 1e-08; two numbers"),
        ({"eps": (-1e-8, 1e-3)}, "Invalid first eps value: -1e-08"),
        ({"eps": (None, float("nan"))}, "Invalid second eps value: nan"),
        ({"seed": -1}, "Invalid seed value: -1"),
    ],
)
def test_values(values, text):
    optimizer = mt.Adafactor(parameters())
    with pytest.raises(ValueError, match=text):
        optimizer.add_param_group({"params": parameters(), **values})
    assert len(optimizer.param_groups) == 1


def test_what_it_cannot_take(device):
    params = parameters(device=device)
    optimizer = mt.Adafactor(params)
    walk(optimizer, params, 1)
    before = snapshot(optimizer, params)
    params[0].grad = params[0].grad.to_sparse()
    with pytest.raises(RuntimeError, match="sparse gradients: that of parameter 0 of group 0"):
        optimizer.step()
    assert_unchanged(optimizer, params, before)
    with pytest.raises(TypeError, match="complex64"):
        mt.Adafactor([torch.zeros(3, 4, dtype=torch.complex64, requires_grad=True)])
    with pytest.raises(TypeError, match="needs a whole parameter for a step"):
        mt.CPUOffloadOptimizer(params, mt.Adafactor, disk="/nowhere")
    with pytest.raises(TypeError, match="no Adafactor"):
        mt.to_bitsandbytes(optimizer)
    flat = torch.zeros(20, requires_grad=True)
    flat._fsdp_flattened = True
    with pytest.raises(TypeError, match="needs whole parameters"):
        mt.Adafactor([flat])
