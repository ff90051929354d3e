"""Optimizers for torch: state dicts of bitsandbytes and torchao."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import memopt as core
import memopt.torch as mt
from memopt._abi import OptimizerKind, StateFormat
from memopt.torch.optim import _format, _load, _sharded
from optim_support import assert_same_states, make, parameters, same_bits, through_a_file, twin, walk


def peers_map(signed):
    """The dynamic map as bitsandbytes makes it: the same but for last bits."""
    table = torch.tensor(core.state_map(StateFormat.BITS8_DYNAMIC, signed))
    table[200] = torch.nextafter(table[200], torch.tensor(2.0))
    return table


def bitsandbytes_state(p, block, signed=(True, False), nested=False, seed=0):
    """A state as bitsandbytes saves it."""
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-p.numel() // block)
    state = {}
    for i, s in enumerate(signed):
        state["state%d" % (i + 1)] = torch.randint(0, 256, p.shape, generator=generator, dtype=torch.uint8)
        state["qmap%d" % (i + 1)] = peers_map(s)
        state["absmax%d" % (i + 1)] = torch.rand(blocks, generator=generator)
    return {"step": 17, **({"__bnb_optimizer_quant_state__": state} if nested else state)}


def dict_of(states, **group):
    """A state dict of one group."""
    return {
        "state": dict(enumerate(states)),
        "param_groups": [{"lr": 0.25, "weight_decay": 0.5, **group, "params": [*range(len(states))]}],
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


@pytest.mark.parametrize("source", ["bitsandbytes", "ours"])
def test_codes_that_were_not_chosen_are_those_of_the_dict(source):
    p, q = torch.zeros(5000).requires_grad_(), torch.ones(5000).requires_grad_()
    if source == "ours":
        old = mt.AdamW8bit([p], codes="dynamic")
        walk(old, [p], 2)
        saved = old.state_dict()
    else:
        saved = dict_of([bitsandbytes_state(p, 256)], betas=(0.9, 0.99))
    free, fixed, exact = mt.AdamW8bit([p]), mt.AdamW8bit([p], codes="companded"), mt.AdamW([p])
    for optimizer in (free, fixed, exact):
        optimizer.load_state_dict(saved)
    exact.load_state_dict(free.state_dict())
    assert "absmax2" in free.state[p] and "power2" in fixed.state[p]
    exact_too = mt.AdamW([p])
    exact_too.load_state_dict(fixed.state_dict())
    near = exact.state[p]["exp_avg"]
    assert 0 < (exact_too.state[p]["exp_avg"] - near).abs().max() <= 0.02 * near.abs().max()
    copies = copy.deepcopy(free), pickle.loads(pickle.dumps(free))
    for optimizer, key in ((free, "absmax1"), (fixed, "power1"), *((c, "absmax1") for c in copies)):
        optimizer.add_param_group({"params": [new := q.detach().clone().requires_grad_()]})
        walk(optimizer, [*optimizer.param_groups[0]["params"], new], 1)
        assert key in optimizer.state[new]
    theirs = mt.optim.to_bitsandbytes(fixed)["state"][0]
    coded = theirs["qmap1"][theirs["state1"].long()] * theirs["absmax1"].repeat_interleave(256)[:5000]
    exact_too.load_state_dict(fixed.state_dict() | {"param_groups": exact_too.state_dict()["param_groups"]})
    assert (coded - exact_too.state[p]["exp_avg"]).abs().max() <= 0.02 * coded.abs().max()
    back = mt.AdamW8bit([p], codes="dynamic")
    back.load_state_dict(mt.AdamW8bit([p]).state_dict() | {"state": {0: fixed.state_dict()["state"][0]}})
    assert "absmax1" in back.state[p]


def test_other_codes_that_a_loader_puts_in_place_are_coded_anew():
    """A step would take them for its own: they have as many bytes."""
    p, q = torch.zeros(5000).requires_grad_(), torch.zeros(5000).requires_grad_()
    a, b = mt.AdamW8bit([p]), mt.AdamW8bit([q], codes="dynamic")
    walk(b, [q], 2)
    a.state[p] = {key: value.clone() for key, value in b.state[q].items()}
    p.data.copy_(q.detach())
    walk(a, [p], 1, 2)
    walk(b, [q], 1, 2)
    assert "power1" in a.state[p] and (p - q).abs().max() < 1e-4


def test_companded_codes_of_older_versions():
    """Their keys beside whole bytes say which they are."""
    p = torch.zeros(5000).requires_grad_()
    codes, scale = torch.arange(5000) % 255 - 127, torch.rand(20) + 0.5
    curve, wide = codes / (254.0 - codes.abs()), scale.repeat_interleave(256)[:5000]
    state = {
        "step": torch.tensor(3), "exp_avg": codes.to(torch.int8).view(torch.uint8), "companded1": scale,
        "exp_avg_sq": codes.abs().to(torch.uint8), "companded2": scale,
    }
    exact, coded = mt.AdamW([p]), mt.AdamW8bit([p])
    for optimizer in (exact, coded):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: state}})
    torch.testing.assert_close(exact.state[p]["exp_avg"], curve * wide, rtol=0.02, atol=0.0)
    torch.testing.assert_close(exact.state[p]["exp_avg_sq"], (codes / 255.0) ** 2 * wide, rtol=1e-5, atol=0.0)
    assert "power2" in coded.state[p]


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


#: torchao's 4-bit maps, with signs and without.
_HALF = torch.tensor([0.0, 0.0055, 0.0325, 0.0775, 0.2125, 0.4375, 0.6625, 0.8875, 1.0])
DYNAMIC4 = {True: torch.cat((-_HALF[1:8].flip(0), _HALF)), False: torch.arange(1, 17) / 16}


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
            moment.update(qmap=peers_map(signed) if bits == 8 else DYNAMIC4[signed], signed=signed)
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
    a = {4: mt.AdamW4bit}.get(bits, mt.AdamW8bit)([p, q])
    a.load_state_dict(saved)
    exact = mt.AdamW([p, q])
    exact.load_state_dict(a.state_dict())
    for i, key in enumerate(("exp_avg", "exp_avg_sq")):
        theirs = saved["state"][0][key]
        assert same_bits(a.state[q][key], odd[key].float()), "32-bit beside codes stay exact"
        if bits == 8 or bits == 4 and i == 1:
            assert torch.equal(a.state[p][key], theirs["codes"])
            assert torch.equal(a.state[p]["%s%d" % ("absmax" if bits == 8 else "companded", i + 1)], theirs["scale"])
            continue
        # another curve: rounded once, to half of our widest step
        codes = theirs["codes"]
        if bits == 4:
            codes = torch.stack((codes >> 4, codes & 15), 1).flatten()
        units = codes.float() if bits == "fp8" else theirs["qmap"][codes.long()]
        blocks = units.view(len(theirs["scale"]), -1) * theirs["scale"][:, None]
        apart = (exact.state[p][key].view(blocks.shape) - blocks).abs().amax(1)
        assert (apart <= (0.135 if bits == 4 else 0.02) * blocks.abs().amax(1)).all()
    assert int(a.state[p]["step"]) == 17
    walk(a, [p, q], 1)


@pytest.mark.parametrize("shape", [(64, 100), (4097,), (130,)])
@pytest.mark.parametrize("form", ["4bit", "fp8", "64", "1024"])
def test_our_dicts_of_forms_that_are_gone(form, shape):
    """Dynamic 4-bit and e4m3 codes, and blocks of another size, load by way of their values."""
    p = torch.zeros(shape).requires_grad_()
    n, generator = p.numel(), torch.Generator().manual_seed(3)
    block = {"4bit": 128, "fp8": 256}.get(form) or int(form)
    state, values = {"step": torch.tensor(5)}, []
    for i, key in enumerate(("exp_avg", "exp_avg_sq")):
        codes = torch.randint(0, 120, (n,), generator=generator, dtype=torch.uint8)
        scales = torch.rand(-(-n // block), generator=generator)
        if form == "4bit":
            codes &= 15
            units, kept = DYNAMIC4[i == 0][codes.long()], torch.nn.functional.pad(codes, (0, n % 2))
            kept = kept[0::2] << 4 | kept[1::2]
        elif form == "fp8":
            units, kept = codes.view(torch.float8_e4m3fn).float(), codes.view(shape)
        else:
            units, kept = torch.tensor(core.state_map(StateFormat.BITS8_DYNAMIC, i == 0))[codes.long()], codes.view(shape)
        state[key], state["%s%d" % ("scale" if form == "fp8" else "absmax", i + 1)] = kept, scales
        values.append((units * scales.repeat_interleave(block)[:n]).view(shape))
    saved = {key: {"memopt": value} for key, value in state.items()}
    for make_ in (mt.AdamW8bit, mt.AdamW4bit, mt.AdamW):
        a, exact = make_([p], min_8bit_size=0), mt.AdamW([p])
        a.load_state_dict(dict_of([saved], block_size=block))
        assert "block_size" not in a.param_groups[0]
        exact.load_state_dict(a.state_dict())
        for key, value in zip(("exp_avg", "exp_avg_sq"), values):
            bound = {mt.AdamW: 0.0, mt.AdamW4bit: 0.135}.get(make_, 0.02) * value.abs().max()
            assert (exact.state[p][key] - value).abs().max() <= bound
        walk(a, [p], 1)


def test_forms_that_are_gone_and_shards():
    """A whole parameter's codes are coded anew by rows; rows of such codes are refused with the way."""
    p, four = torch.zeros(6, 100), StateFormat.BITS4
    bytes_ = torch.randint(0, 256, (300,), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    state = {"exp_avg": bytes_, "exp_avg_sq": bytes_, "absmax1": torch.ones(5), "absmax2": torch.ones(5)}
    place, rows = _load.Place(OptimizerKind.ADAMW, four, p, "it"), _sharded._rows(p, p)
    codes, scales = _sharded._whole_to_rows(state, 0, p, place, four)
    moved = _sharded.from_rows(codes, scales, rows, 0, four, place)
    found = torch.empty(6, 100)
    _format.decode(found, moved[0], moved[1], four, True)
    exact = DYNAMIC4[True][torch.stack((bytes_ >> 4, bytes_ & 15), 1).flatten().long()].view(6, 100)
    assert (found - exact).abs().max() <= 0.135
    codes[:, 0] = 4  # as rows of dynamic codes were marked
    with pytest.raises(ValueError, match="of it is in rows of the format 4.*portable_states"):
        _sharded.from_rows(codes, scales, rows, 0, four, place)


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


@pytest.mark.parametrize("kind", [
    "AdamW8bit", "AdamW", "Lion8bit", "SGD8bit", "AdEMAMix", "AdEMAMix8bit", "RMSprop", "RMSprop8bit", "Adagrad",
    "Adagrad8bit", "LAMB", "LAMB8bit", "LARS", "LARS8bit",
])  # fmt: skip
def test_bitsandbytes_loads_ours(kind, device):
    """And goes on from there as we do; codes and scales come back as they were; its own dict goes on here."""
    bnb = pytest.importorskip("bitsandbytes")
    ours = parameters(device, torch.float32, ((128, 256), (40,)))
    a = make(kind, ours, lr=1e-4, **({"codes": "dynamic"} if kind.endswith("8bit") else {}))
    walk(a, ours, 5)
    theirs, needed = twin(ours), {"momentum": 0.9} if kind[:3] in ("SGD", "LAR") else {}
    b = getattr(bnb.optim, kind)(theirs, lr=1.0, **needed)
    b.load_state_dict(through_a_file(mt.optim.to_bitsandbytes(a)))
    found, name = b.state[theirs[0]], [k for k in a.state[ours[0]] if k != "step"][0]
    first = found["state1"][0] if kind.startswith("AdEMAMix") else found["state1"]
    assert same_bits(first, a.state[ours[0]][name]) and found["step"] == 5
    back = twin(ours)
    c = make(kind, back, lr=1.0)
    c.load_state_dict(b.state_dict())
    assert_same_states(a, c, ours, back)
    assert c.param_groups[0]["lr"] == 1e-4 and ("betas" in c.param_groups[0]) == ("betas" in c.defaults)
    if not kind.startswith("LARS"):  # its own dicts do not tell it from SGD
        own, last = twin(ours), twin(ours)
        d, e = getattr(bnb.optim, kind)(own, lr=0.02, **needed), make(kind, last)
        walk(d, own, 2)
        e.load_state_dict(d.state_dict())
        walk(e, last, 1, 9)
        assert all(torch.isfinite(p).all() and not torch.equal(p, q) for p, q in zip(last, ours))
    if kind in ("AdamW8bit", "AdamW", "Lion8bit", "SGD8bit"):
        try:
            walk(b, theirs, 1, 50)
        except NotImplementedError as error:
            pytest.skip("bitsandbytes cannot step this here: %s" % error)
        walk(a, ours, 1, 50)
        assert all((p - q).abs().mean() < 6e-5 for p, q in zip(ours, theirs))


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
        (OptimStateFp8, mt.AdamW8bit),
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
            coarse = {OptimState8bit: 0.0, OptimStateFp8: 0.0125}.get(cls, 0.135)  # of the largest
            torch.testing.assert_close(exact.state[p][key], state[key].dequantize(), atol=coarse, rtol=2.5e-7)


def through_a_file_unsafe(value):
    """For classes that torch.load does not know to be safe."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_the_two_places_of_the_decay():
    """torch says where its Adam takes the decay; the other class refuses the dict."""
    p = torch.randn(5000).requires_grad_()
    for theirs, ours, other in (
        (torch.optim.Adam, mt.Adam8bit, mt.AdamW8bit),
        (torch.optim.AdamW, mt.AdamW8bit, mt.Adam8bit),
    ):
        saved = theirs([p], weight_decay=0.1)
        walk(saved, [p], 2)
        ours([p]).load_state_dict(saved.state_dict())
        with pytest.raises(ValueError, match="weight_decay=0.1"):
            other([p]).load_state_dict(saved.state_dict())
