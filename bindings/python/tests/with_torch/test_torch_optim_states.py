"""Optimizers for torch: states as tensors: state dicts, copies, files, and the dicts of others."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import memopt as core
import memopt.torch as mt
from memopt._abi import StateFormat
from optim_support import (
    assert_same_states,
    assert_unchanged,
    coded,
    every,
    fill,
    kinds,
    make,
    parameters,
    same_bits,
    snapshot,
    those,
    through_a_file,
    twin,
    walk,
)

OTHER_TYPES = [torch.float32, torch.bfloat16, torch.float16]


# --- our own ---------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("way", ["dict", "file", "pickle", "deepcopy"])
def test_a_resumed_run_is_the_run(kind, way, device):
    """Bit for bit, and codes are byte-equal after each of several saves."""
    whole = those(kind, device, torch.float32 if way == "dict" else torch.bfloat16)
    part = twin(whole)
    options = dict(lr=1e-2, stochastic_rounding=way != "dict", seed=5)
    a, b = make(kind, whole, **options), make(kind, part, **options)
    for round_ in range(3):
        walk(a, whole, 2, 10 * round_)
        walk(b, part, 2, 10 * round_)
        if way in ("dict", "file"):
            saved = b.state_dict()
            saved = through_a_file(saved) if way == "file" else saved
            part = twin(part)
            b = make(kind, part)
            b.load_state_dict(saved)
        elif way == "pickle":
            part, b = pickle.loads(pickle.dumps((part, b)))
        else:
            part, b = copy.deepcopy((part, b))
        assert b.param_groups[0]["seed"] == 5
        assert_same_states(a, b, whole, part)
    walk(a, whole, 1, 99)
    walk(b, part, 1, 99)
    assert_same_states(a, b, whole, part)


@kinds
def test_a_copy_has_a_life_of_its_own(kind):
    params = parameters()
    a = make(kind, params)
    walk(a, params, 2)
    before = snapshot(a, params)
    others, b = copy.deepcopy((params, a))
    walk(b, others, 2, 7)
    c_params = twin(params)
    c = make(kind, c_params)
    c.load_state_dict(a.state_dict())
    walk(c, c_params, 2, 7)
    assert_unchanged(a, params, before)
    assert_same_states(b, c, others, c_params)


@coded
@pytest.mark.parametrize("dtype", OTHER_TYPES)
def test_loading_casts_nothing(kind, dtype, device):
    """torch's own load_state_dict would cast codes' scales and 32-bit states to the parameter's
    type."""
    params = parameters()
    a = make(kind, params)
    walk(a, params, 2)
    others = [p.detach().to(device, dtype).requires_grad_() for p in params]
    b = make(kind, others)
    b.load_state_dict(a.state_dict())
    for p, q in zip(params, others):
        for key, value in a.state[p].items():
            found = b.state[q][key]
            assert same_bits(found, value) and found.device.type == device.type
            assert found.data_ptr() != value.data_ptr()
    walk(b, others, 1)


def test_groups_of_a_dict_win():
    p = torch.ones(5).requires_grad_()
    a = mt.AdamW8bit([p], lr=0.5, betas=(0.7, 0.8), maximize=True)
    torch.optim.lr_scheduler.StepLR(a, 1)
    b = mt.AdamW8bit([torch.ones(5).requires_grad_()])
    b.load_state_dict(a.state_dict())
    group = b.param_groups[0]
    assert group["lr"] == 0.5 and group["betas"] == (0.7, 0.8) and group["maximize"] is True
    assert group["initial_lr"] == 0.5


def test_hooks_of_state_dicts():
    p, q = (torch.ones(5000).requires_grad_() for _ in range(2))
    a, b = mt.AdamW8bit([p]), mt.AdamW8bit([q])
    walk(a, [p], 1)
    seen = []
    a.register_state_dict_pre_hook(lambda o: seen.append("save pre"))
    a.register_state_dict_post_hook(lambda o, d: {**d, "extra": 1})
    saved = a.state_dict()
    assert saved["extra"] == 1

    def renamed(optimizer, state_dict):
        seen.append("load pre")
        return {**state_dict, "state": {0: state_dict["state"][0]}}

    b.register_load_state_dict_pre_hook(renamed)
    b.register_load_state_dict_post_hook(lambda o: seen.append(int(o.state[q]["step"])))
    b.load_state_dict(saved)
    assert seen == ["save pre", "load pre", 1]


@coded
def test_another_order_of_memory(kind):
    """Codes go by the order of memory; a parameter in another one gets the same values."""
    p = torch.randn(8, 6, 10, 12).requires_grad_()
    a = make(kind, [p], lr=1e-2)
    walk(a, [p], 3)
    q = p.detach().to(memory_format=torch.channels_last).requires_grad_()
    b = make(kind, [q], lr=1e-2)
    b.load_state_dict(a.state_dict())
    plain = mt.SGD if kind.startswith("SGD") else mt.Lion if kind.startswith("Lion") else mt.AdamW
    values = []
    for x, o in ((p, a), (q, b)):
        c = plain([x])
        c.load_state_dict(o.state_dict())
        values.append([v for k, v in c.state[x].items() if k != "step"])
    for first, second in zip(*values):
        assert first.dtype is torch.float32 and first.shape == second.shape
        assert (first - second).abs().max() <= first.abs().max() * (0.15 if "4" in kind else 0.04)
    r = q.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    c = make(kind, [r], lr=1e-2)
    c.load_state_dict(through_a_file(b.state_dict()))
    walk(b, [q], 1)
    walk(c, [r], 1)
    assert_same_states(b, c, [q], [r])


@pytest.mark.parametrize("target", ["AdamW", "AdamWBf16", "AdamW8bit", "AdamW8bitDynamic", "AdamW4bit"])
@pytest.mark.parametrize("source", ["AdamWBf16", "AdamW8bit", "AdamW8bitDynamic", "AdamW4bit"])
def test_between_formats(source, target):
    """The values are the codes' values exactly, or as near as the other format can be."""
    p = torch.randn(50, 100).requires_grad_()
    a = make(source, [p])
    walk(a, [p], 3)
    q = p.detach().clone().requires_grad_()
    b = make(target, [q])
    b.load_state_dict(a.state_dict())
    exact = _values(a, p)
    found = _values(b, q)
    for x, y in zip(exact, found):
        if target in ("AdamW", source):
            assert torch.equal(x, y)
        else:
            assert (x - y).abs().max() <= 0.13 * x.abs().max()
    walk(b, [q], 1)


def test_bf16_states_are_torchs_to_load():
    """No codes: torch's AdamW goes on from the dict as it is."""
    p = torch.randn(50, 100).requires_grad_()
    a = mt.AdamW([p], lr=1e-2, states="bf16")
    walk(a, [p], 3)
    assert {v.dtype for k, v in a.state[p].items() if k != "step"} == {torch.bfloat16}
    q, r = twin([p]), twin([p])
    b, c = torch.optim.AdamW(q, lr=1e-2), mt.AdamW(r, lr=1e-2)
    b.load_state_dict(through_a_file(a.state_dict()))
    c.load_state_dict(a.state_dict())
    assert torch.equal(c.state[r[0]]["exp_avg_sq"], a.state[p]["exp_avg_sq"].float())
    walk(b, q, 2, 5)
    walk(c, r, 2, 5)
    torch.testing.assert_close(q[0], r[0], atol=1e-6, rtol=1e-5)


def _values(optimizer, parameter):
    """The moments as floats, by the library's own dequantiser."""
    state = optimizer.state[parameter]
    if state["exp_avg"].dtype is not torch.uint8:
        return [state["exp_avg"].float(), state["exp_avg_sq"].float()]
    name, stem = optimizer._states, next(s for s in ("absmax", "power", "companded") if s + "1" in state)
    count = parameter.numel()
    result = []
    for i, key in enumerate(("exp_avg", "exp_avg_sq")):
        scales = state["%s%d" % (stem, i + 1)]
        codes = state[key].flatten().view(torch.uint8)
        if name is StateFormat.BITS4:
            codes = torch.stack((codes >> 4, codes & 15), 1).flatten()[:count]
        table = torch.tensor(core.state_map(name, i == 0))
        block = 128 if name is StateFormat.BITS4 else 256
        values = table[codes.long()] * scales.repeat_interleave(block)[:count]
        result.append(values.view(parameter.shape))
    return result


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@kinds
def test_distributed_checkpoint(kind, tmp_path):
    """torch.distributed.checkpoint makes states by a step without gradients' values, and loads into
    those."""
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    def model():
        return torch.nn.Sequential(torch.nn.Linear(90, 100), torch.nn.Linear(100, 7))

    first, second = model(), model()
    a = make(kind, first.parameters(), lr=0.25)
    walk(a, list(first.parameters()), 3)
    for p in first.parameters():
        p.grad = None
    second.load_state_dict(first.state_dict())
    b = make(kind, second.parameters())
    dcp.save({"o": get_optimizer_state_dict(first, a)}, checkpoint_id=tmp_path, no_dist=True)
    saved = get_optimizer_state_dict(second, b)
    dcp.load({"o": saved}, checkpoint_id=tmp_path, no_dist=True)
    set_optimizer_state_dict(second, b, saved)
    ours, theirs = list(first.parameters()), list(second.parameters())
    assert_same_states(a, b, ours, theirs)
    walk(a, ours, 1, 9)
    walk(b, theirs, 1, 9)
    assert_same_states(a, b, ours, theirs)


# --- torch's ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["AdamW", "AdamW8bit", "Adam", "SGD", "Adafactor", "RMSprop", "Adagrad"])
def test_between_ours_and_torch(kind, device):
    """A run goes on from the dict of either."""
    theirs = parameters(device, shapes=((96, 33), (64, 129), (7,), (3, 40, 5)))
    peer, plain = getattr(torch.optim, kind.replace("8bit", "")), kind != "AdamW8bit"
    b = peer(theirs, **({"momentum": 0.9, "dampening": 0.5} if kind == "SGD" else {}))
    walk(b, theirs, 2)
    ours = twin(theirs)
    a = make(kind, ours, lr=0.5)
    a.load_state_dict(through_a_file(b.state_dict()))
    state = a.state[ours[1]]
    assert a.param_groups[0]["lr"] == b.defaults["lr"] and int(state["step"]) == (1 if kind == "SGD" else 2)
    assert plain or state["exp_avg"].dtype is torch.uint8
    back = twin(theirs)
    c = peer(back)
    with mt.portable_states(a):
        c.load_state_dict(through_a_file(a.state_dict()))
    for optimizer, own in ((a, ours), (b, theirs), (c, back)):
        walk(optimizer, own, 2, 5)
    for p, q, r in zip(ours, theirs, back):
        assert not plain or same_bits(q, r)
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6 if plain else 1e-2)


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, harm, text",
    [
        ("AdamW8bit", lambda s: s.update(exp_avg=s["exp_avg"].flatten()[:-1]), "shape"),
        ("AdamW8bit", lambda s: s.update(power2=s["power2"][:-1]), "scales"),
        ("AdamW8bit", lambda s: s.pop("exp_avg_sq"), "has no exp_avg_sq"),
        ("AdamW8bit", lambda s: s.pop("power1"), "has no scales of exp_avg"),
        ("AdamW8bit", lambda s: s.update(max_exp_avg_sq=s["exp_avg_sq"]), "AMSGrad"),
        ("AdamW8bit", lambda s: s.update(step=torch.tensor(-1)), "-1 steps"),
        ("Adafactor", lambda s: s.pop("row_var"), "has no row_var"),
        ("Adafactor", lambda s: s.update(col_var=torch.zeros(8)), r"shape \(8,\)"),
        ("Adafactor", lambda s: s.update(step=torch.tensor(-1.0)), "has taken"),
        ("AdEMAMix", lambda s: s.pop("exp_avg_slow"), "has no exp_avg_slow"),
        ("LAMB", lambda s: s.update(exp_avg=torch.zeros(8)), r"shape \(8,\)"),
    ],
)
def test_a_damaged_dict_changes_nothing(kind, harm, text):
    params = parameters(shapes=((50, 100), (60, 100)))
    a = make(kind, params)
    walk(a, params, 2)
    saved = copy.deepcopy(a.state_dict())
    saved["param_groups"][0]["lr"] = 77.0
    state = {key: value["memopt"] if isinstance(value, dict) else value for key, value in saved["state"][1].items()}
    harm(state)
    saved["state"][1] = {key: {"memopt": value} if kind == "AdamW8bit" else value for key, value in state.items()}
    before = snapshot(a, params)
    with pytest.raises(ValueError, match="parameter 1 of group 0.*" + text + "|" + text):
        a.load_state_dict(saved)
    assert_unchanged(a, params, before)
    walk(a, params, 1)


@kinds
def test_a_dict_of_other_groups(kind):
    params = parameters()
    a = make(kind, params)
    walk(a, params, 1)
    before = snapshot(a, params)
    saved = a.state_dict()
    two = copy.deepcopy(saved)
    two["param_groups"].append(two["param_groups"][0])
    with pytest.raises(ValueError, match="different number of parameter groups"):
        a.load_state_dict(two)
    fewer = copy.deepcopy(saved)
    fewer["param_groups"][0]["params"] = [0]
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        a.load_state_dict(fewer)
    bad = copy.deepcopy(saved)
    bad["param_groups"][0]["lr"] = float("nan")
    with pytest.raises(ValueError, match="Invalid learning rate: nan"):
        a.load_state_dict(bad)
    ams = copy.deepcopy(saved)
    ams["param_groups"][0]["amsgrad"] = True
    with pytest.raises(ValueError, match="amsgrad=True"):
        a.load_state_dict(ams)
    assert_unchanged(a, params, before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@kinds
def test_between_devices(kind):
    ours = parameters("cuda")
    a = make(kind, ours)
    walk(a, ours, 2)
    there = [p.detach().cpu().requires_grad_() for p in ours]
    b = make(kind, there)
    b.load_state_dict(copy.deepcopy(a.state_dict()))  # torch would share the tensors
    walk(a, ours, 2, 5)
    walk(b, there, 2, 5)
    for p, q in zip(ours, there):
        assert same_bits(p, q)
    fill(ours, 1)
