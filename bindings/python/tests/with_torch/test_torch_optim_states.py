"""Optimizers for torch: states as tensors: state dicts, copies, files, and the dicts of others."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

import memopt as core  # noqa: E402
import memopt.torch as mt  # noqa: E402
from optim_support import (  # noqa: E402
    assert_same_states,
    assert_unchanged,
    coded,
    fill,
    kinds,
    make,
    parameters,
    same_bits,
    snapshot,
    twin,
    walk,
)

OTHER_TYPES = [torch.float32, torch.bfloat16, torch.float16]


def through_a_file(value):
    """What torch.save and torch.load make of it."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# --- our own ---------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("way", ["dict", "file", "pickle", "deepcopy"])
def test_a_resumed_run_is_the_run(kind, way, device):
    """Bit for bit, and codes are byte-equal after each of several saves."""
    whole = parameters(device, torch.bfloat16)
    part = twin(whole)
    a = make(kind, whole, lr=1e-2, stochastic_rounding=True, seed=5)
    b = make(kind, part, lr=1e-2, stochastic_rounding=True, seed=5)
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


@pytest.mark.parametrize("target", ["AdamW", "AdamW8bit", "AdamW4bit", "AdamWFp8"])
@pytest.mark.parametrize("source", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_between_formats(source, target):
    """The values are the codes' values exactly, or as near as the other format can be."""
    p = torch.randn(50, 100).requires_grad_()
    a = make(source, [p])
    walk(a, [p], 3)
    q = p.detach().clone().requires_grad_()
    b = make(target, [q])
    b.load_state_dict(a.state_dict())
    assert b.param_groups[0]["block_size"] == make(target, [q]).param_groups[0]["block_size"]
    exact = _values(a, p)
    found = _values(b, q)
    for x, y in zip(exact, found):
        if target in ("AdamW", source):
            assert torch.equal(x, y)
        else:
            assert (x - y).abs().max() <= 0.13 * x.abs().max()
    walk(b, [q], 1)


def _values(optimizer, parameter):
    """The moments as floats, by the library's own dequantiser."""
    state = optimizer.state[parameter]
    if state["exp_avg"].dtype is torch.float32:
        return [state["exp_avg"], state["exp_avg_sq"]]
    kind = type(optimizer).__name__
    name = {"AdamW8bit": "8bit", "AdamW4bit": "4bit", "AdamWFp8": "fp8"}[kind]
    count = parameter.numel()
    result = []
    for i, key in enumerate(("exp_avg", "exp_avg_sq")):
        scales = state[("scale%d" if name == "fp8" else "absmax%d") % (i + 1)]
        codes = state[key].flatten().view(torch.uint8)
        if name == "4bit":
            codes = torch.stack((codes >> 4, codes & 15), 1).flatten()[:count]
        table = torch.tensor(core.state_map(name, i == 0))
        block = 128 if name == "4bit" else 256
        values = table[codes.long()] * scales.repeat_interleave(block)[:count]
        result.append(values.view(parameter.shape))
    return result


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@kinds
def test_distributed_checkpoint(kind, tmp_path):
    """torch.distributed.checkpoint makes states by a step without gradients' values, and loads into
    those."""
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

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


@pytest.mark.parametrize("kind", ["AdamW", "AdamW8bit"])
def test_a_dict_of_torchs_adamw(kind):
    params = parameters(shapes=((50, 100), (9,)))
    theirs = twin(params)
    b = torch.optim.AdamW(theirs, lr=1e-2)
    walk(b, theirs, 3)
    a = make(kind, twin(theirs))
    a.load_state_dict(b.state_dict())
    ours = a.param_groups[0]["params"]
    assert int(a.state[ours[0]]["step"]) == 3
    assert same_bits(a.state[ours[1]]["exp_avg"], b.state[theirs[1]]["exp_avg"])
    assert a.state[ours[0]]["exp_avg"].dtype is (torch.float32 if kind == "AdamW" else torch.uint8)
    walk(a, ours, 2, 30)
    walk(b, theirs, 2, 30)
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q, atol=1e-6 if kind == "AdamW" else 1e-2, rtol=1e-5)


def test_torch_loads_ours():
    ours = parameters()
    a = mt.AdamW(ours, lr=1e-2)
    walk(a, ours, 3)
    theirs = twin(ours)
    b = torch.optim.AdamW(theirs)
    b.load_state_dict(copy.deepcopy(a.state_dict()))  # torch would share the tensors
    walk(a, ours, 2, 5)
    walk(b, theirs, 2, 5)
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5)


def test_a_dict_of_torchs_sgd():
    theirs = parameters()
    b = torch.optim.SGD(theirs, lr=0.1, momentum=0.9, dampening=0.5)
    walk(b, theirs, 2)
    ours = twin(theirs)
    a = mt.SGD(ours, lr=1.0)
    a.load_state_dict(b.state_dict())
    walk(a, ours, 2, 5)
    walk(b, theirs, 2, 5)
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5)
    b = torch.optim.SGD(theirs, lr=0.1)  # without momentum it has no state
    walk(b, theirs, 1)
    a = mt.SGD(ours)
    a.load_state_dict(b.state_dict())
    walk(a, ours, 1)


# --- bitsandbytes and torchao ------------------------------------------------------------------------


def peers_map(signed):
    """The dynamic map as bitsandbytes makes it: the same but for last bits."""
    table = torch.tensor(core.state_map("8bit", signed))
    table[200] = torch.nextafter(table[200], torch.tensor(2.0))
    return table


def bitsandbytes_state(p, block, signed=(True, False), nested=False, seed=0):
    """A state as bitsandbytes saves it."""
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-p.numel() // block)
    state = {}
    for i, s in enumerate(signed):
        state["state%d" % (i + 1)] = torch.randint(
            0, 256, p.shape, generator=generator, dtype=torch.uint8
        )
        state["qmap%d" % (i + 1)] = peers_map(s)
        state["absmax%d" % (i + 1)] = torch.rand(blocks, generator=generator)
    return {"step": 17, **({"__bnb_optimizer_quant_state__": state} if nested else state)}


def dict_of(states, **group):
    """A state dict of one group."""
    return {
        "state": dict(enumerate(states)),
        "param_groups": [
            {"lr": 0.25, "weight_decay": 0.5, **group, "params": [*range(len(states))]}
        ],
    }


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("block", [256, 2048])
@pytest.mark.parametrize("shape", [(64, 100), (4097,), (8192,)])
def test_bitsandbytes_codes_are_kept(shape, block, nested):
    p = torch.zeros(shape, dtype=torch.bfloat16).requires_grad_()
    saved = dict_of([bitsandbytes_state(p, block, nested=nested)], betas=(0.8, 0.9), alpha=0.0)
    a = mt.AdamW8bit([p])
    a.load_state_dict(saved)
    state = a.state[p]
    theirs = saved["state"][0].get("__bnb_optimizer_quant_state__", saved["state"][0])
    assert torch.equal(state["exp_avg"], theirs["state1"])
    assert torch.equal(state["exp_avg_sq"], theirs["state2"])
    for i in (1, 2):
        expected = theirs["absmax%d" % i].repeat_interleave(block // 256)
        assert torch.equal(state["absmax%d" % i], expected[: -(-p.numel() // 256)])
        assert state["absmax%d" % i].dtype is torch.float32
    assert int(state["step"]) == 17
    assert a.param_groups[0]["lr"] == 0.25 and a.param_groups[0]["betas"] == (0.8, 0.9)
    walk(a, [p], 1)


def test_bitsandbytes_with_another_map():
    """A map in another order is renumbered; one of other values becomes 32-bit states, exactly."""
    p = torch.zeros(5000).requires_grad_()
    one = bitsandbytes_state(p, 256)
    permutation = torch.randperm(256)
    shuffled = {**one, "qmap1": one["qmap1"][permutation]}
    shuffled["state1"] = torch.argsort(permutation)[one["state1"].long()].to(torch.uint8)
    a = mt.AdamW8bit([p])
    a.load_state_dict(dict_of([shuffled], betas=(0.9, 0.99)))
    assert torch.equal(a.state[p]["exp_avg"], one["state1"])

    linear = {**one, "qmap1": torch.linspace(-1, 1, 256)}
    a.load_state_dict(dict_of([linear], betas=(0.9, 0.99)))
    scales = one["absmax1"].repeat_interleave(256)[:5000]
    assert torch.equal(a.state[p]["exp_avg"], linear["qmap1"][one["state1"].long()] * scales)
    assert a.state[p]["exp_avg_sq"].dtype is torch.float32
    walk(a, [p], 1)
    assert int(a.state[p]["step"]) == 18


def test_bitsandbytes_small_and_one_moment():
    p, q = torch.zeros(5000).requires_grad_(), torch.zeros(10).requires_grad_()
    small = {"step": 17, "state1": torch.rand(10)}
    saved = dict_of([bitsandbytes_state(p, 256, (True,)), small], betas=(0.9, 0.99))
    a = mt.Lion8bit([p, q])
    a.load_state_dict(saved)
    assert torch.equal(a.state[p]["exp_avg"], saved["state"][0]["state1"])
    assert torch.equal(a.state[q]["exp_avg"], small["state1"])
    walk(a, [p, q], 1)
    b = mt.SGD8bit([p, q], momentum=0.5)
    b.load_state_dict(saved)
    assert b.param_groups[0]["momentum"] == 0.9 and "betas" not in b.param_groups[0]
    assert torch.equal(b.state[p]["momentum_buffer"], saved["state"][0]["state1"])
    walk(b, [p, q], 1)


def torchao_state(p, bits, seed=0):
    """A state as torchao saves it, as dicts."""
    generator = torch.Generator().manual_seed(seed)
    n, block = p.numel(), 128 if bits == 4 else 256
    state = {"step": torch.tensor(17.0)}
    for key, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        count = n // 2 if bits == 4 else n
        codes = torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8)
        if bits == "fp8":
            codes = (codes & 0x77).view(torch.float8_e4m3fn)
        moment = {
            "codes": codes if bits == 4 else codes.view(p.shape),
            "scale": torch.rand(n // block, generator=generator),
        }
        if bits != "fp8":
            moment.update(
                qmap=peers_map(signed)
                if bits == 8
                else torch.tensor(core.state_map("4bit", signed)),
                signed=signed,
            )
        state[key] = moment
    return state


@pytest.mark.parametrize("bits", [8, 4, "fp8"])
def test_torchao_codes_are_kept(bits):
    p, q = torch.zeros(64, 128).requires_grad_(), torch.zeros(65, 100).requires_grad_()
    odd = {
        "step": torch.tensor(17.0),
        "exp_avg": torch.randn(65, 100, dtype=torch.bfloat16),
        "exp_avg_sq": torch.rand(65, 100, dtype=torch.bfloat16),
    }
    saved = dict_of([torchao_state(p, bits), odd], betas=(0.9, 0.99), lr=torch.tensor(0.5))
    a = {8: mt.AdamW8bit, 4: mt.AdamW4bit, "fp8": mt.AdamWFp8}[bits]([p, q])
    a.load_state_dict(saved)
    for i, key in enumerate(("exp_avg", "exp_avg_sq")):
        codes = saved["state"][0][key]["codes"].view(torch.uint8)
        assert torch.equal(a.state[p][key], codes)
        scale = ("scale%d" if bits == "fp8" else "absmax%d") % (i + 1)
        assert torch.equal(a.state[p][scale], saved["state"][0][key]["scale"])
        assert same_bits(a.state[q][key], odd[key].float()), "32-bit beside codes stay exact"
    assert int(a.state[p]["step"]) == 17
    walk(a, [p, q], 1)


def test_bitsandbytes_itself(device):
    """The same inputs; its dict continues here, where its own second moment's floor is ours."""
    bnb = pytest.importorskip("bitsandbytes")
    theirs = parameters(device, torch.float32, ((128, 256), (40,)))
    ours = twin(theirs)
    b = bnb.optim.AdamW8bit(theirs, lr=1e-3, weight_decay=1e-2)
    a = mt.AdamW8bit(ours, lr=1e-3, weight_decay=1e-2)
    walk(b, theirs, 20)
    walk(a, ours, 20)
    for p, q in zip(ours, theirs):
        assert (p - q).abs().mean() < 2e-3
    ours = twin(theirs)
    a = mt.AdamW8bit(ours)
    a.load_state_dict(through_a_file(b.state_dict()))
    assert torch.equal(a.state[ours[0]]["exp_avg"], b.state[theirs[0]]["state1"])
    assert torch.equal(a.state[ours[0]]["absmax2"], b.state[theirs[0]]["absmax2"])
    assert torch.equal(a.state[ours[1]]["exp_avg"], b.state[theirs[1]]["state1"])
    assert int(a.state[ours[0]]["step"]) == 20
    walk(b, theirs, 3, 50)
    walk(a, ours, 3, 50)
    for p, q in zip(ours, theirs):
        assert (p - q).abs().max() < 2e-3 and (p - q).abs().mean() < 6e-5


@pytest.mark.parametrize("rule", ["AdamW8bit", "AdamW", "Lion8bit", "SGD8bit"])
def test_bitsandbytes_loads_ours(rule, device):
    """And goes on from there as we do."""
    bnb = pytest.importorskip("bitsandbytes")
    ours = parameters(device, torch.float32, ((128, 256), (40,)))
    a = make(rule, ours, lr=1e-4)
    walk(a, ours, 5)
    theirs = twin(ours)
    momentum = {"momentum": 0.9} if rule == "SGD8bit" else {}
    b = getattr(bnb.optim, rule)(theirs, lr=1.0, **momentum)
    saved = mt.optim.to_bitsandbytes(a)
    b.load_state_dict(through_a_file(saved))
    found, name = b.state[theirs[0]], [k for k in a.state[ours[0]] if k != "step"][0]
    assert same_bits(found["state1"], a.state[ours[0]][name]) and found["step"] == 5
    if "8" in rule:
        assert same_bits(found["absmax1"], a.state[ours[0]]["absmax1"])
    try:
        walk(b, theirs, 1, 50)
    except NotImplementedError as error:
        pytest.skip("bitsandbytes cannot step this here: %s" % error)
    walk(a, ours, 1, 50)
    for p, q in zip(ours, theirs):
        assert (p - q).abs().mean() < 6e-5
    c_params = twin(ours)
    c = make(rule, c_params)
    c.load_state_dict(saved)  # and we load it again
    assert same_bits(c.state[c_params[0]][name], a.state[ours[0]][name])
    assert c.param_groups[0]["lr"] == 1e-4


def test_what_bitsandbytes_does_not_have():
    a = mt.AdamW4bit(parameters())
    with pytest.raises(TypeError, match="AdamW4bit"):
        mt.optim.to_bitsandbytes(a)


@pytest.mark.slow
def test_torchao_itself():
    ao = pytest.importorskip("torchao.optim")
    theirs = parameters("cpu", torch.float32, ((16, 256),))
    ours = twin(theirs)
    b = ao.AdamW8bit(theirs, lr=1e-3)
    a = mt.AdamW8bit(ours, lr=1e-3)
    try:
        walk(b, theirs, 3)
    except Exception as error:  # noqa: BLE001 - it compiles, for which a machine may lack a compiler
        pytest.skip("torchao cannot step here: %s" % error)
    walk(a, ours, 3)
    assert (ours[0] - theirs[0]).abs().mean() < 1e-3
    ours = twin(theirs)
    a = mt.AdamW8bit(ours)
    a.load_state_dict(b.state_dict())
    assert torch.equal(a.state[ours[0]]["exp_avg"], b.state[theirs[0]]["exp_avg"].codes)
    assert torch.equal(a.state[ours[0]]["absmax2"], b.state[theirs[0]]["exp_avg_sq"].scale)
    walk(a, ours, 1, 9)
    walk(b, theirs, 1, 9)
    assert (ours[0] - theirs[0]).abs().mean() < 6e-5


def test_torchao_tensors_without_a_step():
    """The subclass tensors themselves, through a file as torchao's users keep them."""
    ao = pytest.importorskip("torchao.optim")
    from torchao.optim.subclass_4bit import OptimState4bit
    from torchao.optim.subclass_8bit import OptimState8bit
    from torchao.optim.subclass_fp8 import OptimStateFp8

    assert ao.AdamW8bit
    p = torch.zeros(32, 256).requires_grad_()
    for cls, ours in (
        (OptimState8bit, mt.AdamW8bit),
        (OptimState4bit, mt.AdamW4bit),
        (OptimStateFp8, mt.AdamWFp8),
    ):
        state = {"step": torch.tensor(3.0)}
        for key, signed in (("exp_avg", True), ("exp_avg_sq", False)):
            block = 128 if cls is OptimState4bit else 256
            args = () if cls is OptimStateFp8 else (signed,)
            state[key] = cls.zeros(p.shape, *args, block_size=block)
            state[key].copy_(torch.rand(32, 256))
        a = ours([p])
        a.load_state_dict(dict_of([through_a_file_unsafe(state)], betas=(0.9, 0.99)))
        exact = mt.AdamW([p])
        exact.load_state_dict(a.state_dict())
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(
                exact.state[p][key], state[key].dequantize(), atol=0, rtol=2.5e-7
            )


def through_a_file_unsafe(value):
    """For classes that torch.load does not know to be safe."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


# --- refusals --------------------------------------------------------------------------------------


def _shape(state):
    state["exp_avg"] = state["exp_avg"].flatten()[:-1]


def _scales(state):
    state["absmax2"] = state["absmax2"][:-1]


def _lacking(state):
    del state["exp_avg_sq"]


def _lacking_scales(state):
    del state["absmax1"]


def _amsgrad(state):
    state["max_exp_avg_sq"] = state["exp_avg_sq"]


def _negative(state):
    state["step"] = torch.tensor(-1)


@pytest.mark.parametrize(
    "harm, text",
    [
        (_shape, "shape"),
        (_scales, "scales"),
        (_lacking, "has no exp_avg_sq"),
        (_lacking_scales, "has no absmax1"),
        (_amsgrad, "AMSGrad"),
        (_negative, "-1 steps"),
    ],
)
def test_a_damaged_dict_changes_nothing(harm, text):
    params = parameters(shapes=((50, 100), (60, 100)))
    a = mt.AdamW8bit(params)
    walk(a, params, 2)
    saved = copy.deepcopy(a.state_dict())
    saved["param_groups"][0]["lr"] = 77.0
    harm(saved["state"][1])
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
