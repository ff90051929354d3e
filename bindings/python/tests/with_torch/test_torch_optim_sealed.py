"""State dicts with codes: no other optimizer steps with them, and the ways back."""

from __future__ import annotations

import copy

import pytest
import torch

import memopt.torch as mt
from optim_support import (
    assert_same_states,
    assert_unchanged,
    coded,
    fill,
    make,
    parameters,
    same_bits,
    snapshot,
    through_a_file,
    twin,
    walk,
)

SHAPES = ((7,), (33, 129))  # the first keeps 32-bit states: torch's SGD would step it at once
OTHERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "AdamW": torch.optim.AdamW,
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "RMSprop": torch.optim.RMSprop,
    "bitsandbytes": lambda p: pytest.importorskip("bitsandbytes").optim.AdamW8bit(p),
    "torchao": lambda p: pytest.importorskip("torchao.optim").AdamW8bit(p),
}


def walked(kind, steps=2):
    params = parameters(shapes=SHAPES)
    optimizer = make(kind, params)
    walk(optimizer, params, steps)
    return params, optimizer


@coded
@pytest.mark.parametrize("other", OTHERS)
def test_others_raise_and_change_no_parameter(kind, other):
    params, a = walked(kind)
    b = OTHERS[other](params)
    before = [p.detach().clone() for p in params]
    fill(params, 5)
    with pytest.raises((TypeError, KeyError, AttributeError)):
        b.load_state_dict(through_a_file(a.state_dict()))
        b.step()
    assert all(map(same_bits, params, before))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", ["AdamW8bit", "SGD8bit"])
def test_others_raise_with_a_dict_of_distributed_checkpoint(kind, flat):
    from torch.distributed.checkpoint import state_dict as helpers

    options = helpers.StateDictOptions(flatten_optimizer_state_dict=flat)
    model = torch.nn.Linear(90, 100)
    params = list(model.parameters())
    a = make(kind, params)
    walk(a, params, 1)
    model.zero_grad()
    saved = helpers.get_optimizer_state_dict(model, a, options=options)
    b = OTHERS["SGD" if kind == "SGD8bit" else "AdamW"](params)
    before = [p.detach().clone() for p in params]
    with pytest.raises((TypeError, KeyError, AttributeError)):
        helpers.set_optimizer_state_dict(model, b, saved, options=options)
        fill(params, 5)
        b.step()
    assert all(map(same_bits, params, before))


@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamW8bitDynamic", "AdamW4bit", "SGD8bit"])
def test_torch_goes_on_from_portable_states(kind):
    """As the 32-bit optimizer does that decodes the same codes."""
    params, a = walked(kind)
    plain = mt.SGD if kind == "SGD8bit" else mt.AdamW
    ours, theirs = twin(params), twin(params)
    b = plain(ours)
    b.load_state_dict(a.state_dict())
    c = OTHERS["SGD" if kind == "SGD8bit" else "AdamW"](theirs)
    with mt.portable_states(a):
        c.load_state_dict(through_a_file(a.state_dict()))
    walk(b, ours, 2, 5)
    walk(c, theirs, 2, 5)
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5)


@coded
@pytest.mark.parametrize("portable", [False, True])
def test_flattened_dicts_come_back(kind, portable):
    """torch looks in them for the names in `optimizer.state`, whatever the dict holds."""
    from torch.distributed.checkpoint import state_dict as helpers

    options = helpers.StateDictOptions(flatten_optimizer_state_dict=True)
    model = torch.nn.Linear(90, 100)
    params = list(model.parameters())
    a, b = make(kind, params), make(kind, params)
    walk(a, params, 2)
    with mt.portable_states(*(a, b) if portable else ()):
        model.zero_grad()
        saved = helpers.get_optimizer_state_dict(model, a, options=options)
        helpers.set_optimizer_state_dict(model, b, saved, options=options)
    if not portable:
        assert_same_states(a, b, params, params)
    for p, dtype in zip(params, (torch.uint8, torch.float32)):  # the bias has too few elements
        assert int(b.state[p]["step"]) == 2
        moments = [v for k, v in b.state[p].items() if k in ("exp_avg", "momentum_buffer")]
        assert [m.dtype for m in moments] == [dtype] and moments[0].any()


@coded
def test_dicts_as_they_were_before_load(kind):
    """Codes directly under torch's names. And a dict as it is in memory, where
    ZeroRedundancyOptimizer puts it."""
    params, a = walked(kind)
    saved = copy.deepcopy(a.state_dict())
    others, more = twin(params), twin(params)
    b, c = make(kind, others), make(kind, more)
    for q, state in zip(more, saved["state"].values()):
        c.state[q] = copy.deepcopy(state)
    for state in saved["state"].values():
        state.update({key: value["memopt"] for key, value in state.items()})
    b.load_state_dict(saved)
    assert_same_states(a, b, params, others)
    for optimizer, its in ((a, params), (b, others), (c, more)):
        walk(optimizer, its, 1, 5)
    assert_same_states(a, b, params, others)
    assert_same_states(a, c, params, more)


# --- dicts of other rules --------------------------------------------------------------------------


RULES = [
    ("AdamW8bit", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "is of SGD, .* no betas"),
    ("AdamW8bit", torch.optim.SGD, "is of SGD"),
    ("AdamW8bit", torch.optim.Adagrad, "is of Adagrad, not of AdamW"),
    ("AdamW8bit", torch.optim.Adamax, "is of Adamax, not of AdamW"),
    ("AdamW8bit", torch.optim.NAdam, "is of NAdam, not of AdamW|RAdam or NAdam"),
    ("AdamW8bit", lambda p: torch.optim.Adam(p, weight_decay=0.1), "weight_decay=0.1, which Adam"),
    ("AdamW8bit", mt.Lion8bit, "has no exp_avg_sq: it is incomplete, or of another rule"),
    ("Lion8bit", mt.AdamW, "is of Adam, not of Lion"),
    ("Lion8bit", mt.SGD8bit, "is of SGD, not of Lion"),
    ("SGD8bit", torch.optim.AdamW, "is of Adam, not of SGD"),
    ("SGD8bit", mt.Lion8bit, "parameter 0 of group 0 has exp_avg"),
]


@pytest.mark.parametrize("kind, other, text", RULES)
def test_a_dict_of_another_rule(kind, other, text):
    theirs = parameters(shapes=SHAPES)
    b = other(theirs)
    walk(b, theirs, 1)
    params, a = walked(kind)
    before = snapshot(a, params)
    with pytest.raises(ValueError, match=text):
        a.load_state_dict(b.state_dict())
    assert_unchanged(a, params, before)


def test_torchs_adam_without_decay_is_adamw():
    theirs = parameters(shapes=SHAPES)
    b = torch.optim.Adam(theirs, lr=0.25)
    walk(b, theirs, 1)
    params, a = walked("AdamW8bit")
    a.load_state_dict(b.state_dict())
    assert a.param_groups[0]["lr"] == 0.25
    assert same_bits(a.state[params[0]]["exp_avg"], b.state[theirs[0]]["exp_avg"])
