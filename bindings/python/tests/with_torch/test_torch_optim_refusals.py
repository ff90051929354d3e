"""Optimizers for torch: what is refused, with the type torch raises, the parameter's name in the
message, and nothing changed."""

from __future__ import annotations

import copy

import pytest
import torch

import memopt.torch as mt
from memopt._abi import StateFormat
from optim_support import assert_unchanged, fill, kinds, make, parameters, snapshot, walk


@kinds
@pytest.mark.parametrize(
    "values, text",
    [
        ({"lr": float("nan")}, "Invalid learning rate: nan"),
        ({"lr": -0.5}, "Invalid learning rate: -0.5"),
        ({"lr": float("inf")}, "Invalid learning rate: inf"),
        ({"lr": torch.tensor([0.1, 0.2])}, "Tensor lr must be 1-element"),
        ({"weight_decay": -1.0}, "Invalid weight_decay value: -1.0"),
        ({"seed": -1}, "Invalid seed value"),
        ({"min_8bit_size": -1}, "Invalid min_8bit_size value"),
    ],
)
def test_values(kind, values, text):
    p = torch.ones(10).requires_grad_()
    with pytest.raises(ValueError, match=text):
        make(kind, [p], **values)
    a = make(kind, [p])
    before = snapshot(a, [p])
    with pytest.raises(ValueError, match=text):
        a.add_param_group({"params": [torch.ones(3).requires_grad_()], **values})
    assert_unchanged(a, [p], before)


@pytest.mark.parametrize("cls", [mt.AdamW8bit, mt.SGD8bit])
@pytest.mark.parametrize("key", ["lr", "eps", "momentum", "weight_decay", "min_8bit_size", "seed"])
def test_text_that_reads_as_a_number(cls, key):
    p = torch.ones(3).requires_grad_()
    if key not in cls([p]).defaults:
        pytest.skip("%s has no %s" % (cls.__name__, key))
    with pytest.raises(TypeError, match="Invalid .*: '1e-3' is a str, not a number"):
        cls([p], **{key: "1e-3"})
    with pytest.raises(TypeError, match="Invalid .*: '1e-3' is a str, not a number"):
        cls([{"params": [p], key: "1e-3"}])
    if key == "lr":
        optimizer = cls([p])
        optimizer.param_groups[0]["lr"] = "1e-3"
        fill([p], 0)
        with pytest.raises(TypeError, match="Invalid learning rate: '1e-3' is a str"):
            optimizer.step()


@pytest.mark.parametrize(
    "key, meant",
    [
        ("weigth_decay", "weight_decay"),
        ("beta", "betas"),
        ("LR", "lr"),
        ("stochastic_round", "stochastic_rounding"),
        ("optim_bits", "min_8bit_size"),
    ],
)
def test_a_misspelt_key_of_a_group(key, meant):
    p, q = (torch.ones(3).requires_grad_() for _ in range(2))
    text = "parameter group 1 has the key %r, .* did you mean %r" % (key, meant)
    with pytest.raises(ValueError, match=text):
        mt.AdamW8bit([{"params": [p]}, {"params": [q], key: 0}])


NEUTRAL = {"percentile_clipping": 100, "block_wise": True, "is_paged": False, "args": None}


def test_arguments_of_bitsandbytes():
    """What asks for what there is anyway has no effect; states and homes are those of the name."""
    p = torch.ones(3).requires_grad_()
    for name in mt.bnb.__all__:
        optimizer = getattr(mt.bnb, name)([p], lr=0.5, **NEUTRAL)
        assert optimizer._page_bytes == (64 << 20 if name.startswith("Paged") else 0)
        assert optimizer._states is (StateFormat.BITS8 if name.endswith("8bit") else StateFormat.F32)
        twin_ = copy.deepcopy(optimizer)
        assert (twin_._states, twin_._page_bytes) == (optimizer._states, optimizer._page_bytes)
    plain = mt.bnb.AdamW([p], 0.5, optim_bits=8, is_paged=True)
    assert plain._states is StateFormat.BITS8 and plain._page_bytes
    assert plain.defaults == mt.AdamW8bit([p], 0.5).defaults
    inner = mt.CPUOffloadOptimizer([p], mt.bnb.AdamW, optim_bits=8)._masters.inner
    assert inner._states is StateFormat.BITS8 and inner.defaults == plain.defaults | {"lr": 1e-3}


@pytest.mark.parametrize(
    "cls, values, error, text",
    [
        (mt.bnb.AdamW, {"optim_bits": 4}, ValueError, "of AdamW have 32 bits"),
        (mt.bnb.Adam32bit, {"optim_bits": 8}, ValueError, "of Adam32bit have 32 bits"),
        (mt.bnb.Adam8bit, {"percentile_clipping": 5}, ValueError, "Adam8bit does not clip; call clip_g"),
        (mt.bnb.Lion8bit, {"block_wise": False}, ValueError, "a scale for each block"),
        (mt.bnb.LAMB8bit, {"is_paged": True}, ValueError, "not paged; CPUOffloadOptimizer"),
        (mt.bnb.AdamW8bit, {"args": 1}, ValueError, "args: AdamW8bit takes each value"),
        (mt.bnb.LAMB8bit, {"colour": 0}, TypeError, "LAMB8bit has no argument 'colour'"),
        (mt.AdamW8bit, {"is_paged": True}, ValueError, "memopt.torch.bnb, or states= and paged="),
        (mt.Adam8bit, {"weigth_decay": 0}, ValueError, "Adam8bit has no .* mean 'weight_decay'"),
        (mt.SGD8bit, {"learning_rate": 0}, ValueError, "did you mean 'lr'"),
        (mt.AdamW8bit, {"block_size": 64}, TypeError, "no argument 'block_size'"),
        (mt.AdamW, {"states": "fp8"}, ValueError, "4bit; take '8bit'"),
        (mt.AdamW, {"codes": "dynamic"}, ValueError, "codes='dynamic', states='fp32'"),
        (mt.AdamW8bit, {"codes": "linear"}, ValueError, "companded, or dynamic of 8-bit states"),
        (mt.Lion, {"states": "bf16"}, ValueError, "states='bf16': Lion has fp32, 8bit$"),
        (mt.CPUOffloadOptimizer, {"weigth_decay": 0}, ValueError, "AdamW8bit .* 'weight_decay'"),
    ],
)
def test_arguments_that_a_constructor_does_not_have(cls, values, error, text):
    with pytest.raises(error, match=text):
        cls([torch.ones(3).requires_grad_()], **values)


@pytest.mark.parametrize(
    "cls, values, text",
    [
        (mt.AdamW8bit, {"eps": -1e-3}, "Invalid epsilon value: -0.001"),
        (mt.AdamW, {"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0: 1.0"),
        (mt.Lion, {"betas": (0.9, -0.1)}, "Invalid beta parameter at index 1: -0.1"),
        (mt.AdamW, {"betas": (0.9, float("nan"))}, "Invalid beta parameter at index 1: nan"),
        (mt.SGD, {"momentum": -0.1}, "Invalid momentum value: -0.1"),
        (mt.SGD, {"momentum": float("inf")}, "Invalid momentum value: inf"),
        (mt.SGD, {"momentum": 0.9, "dampening": float("inf")}, "Invalid dampening value: inf"),
        (mt.SGD, {"momentum": 0.9, "dampening": float("-inf")}, "Invalid dampening value: -inf"),
        (mt.SGD8bit, {"nesterov": True}, "Nesterov momentum requires a momentum"),
        (mt.SGD, {"momentum": 0.9, "dampening": 0.1, "nesterov": True}, "zero dampening"),
        (mt.Adafactor, {"eps": 1e-3}, "Invalid eps: 0.001; two numbers"),
        (mt.Adafactor, {"d": 0.5}, "Invalid d value: 0.5"),
        (mt.Adafactor, {"beta2_decay": 0.1}, "Invalid beta2_decay value: 0.1"),
        (mt.optim.AdEMAMix, {"betas": (0.9, 0.999)}, "Invalid betas: .*; three numbers"),
        (mt.optim.AdEMAMix, {"alpha": -1.0}, "Invalid alpha value: -1.0"),
        (mt.optim.AdEMAMix, {"t_alpha": 0}, "Invalid t_alpha value: 0; None or above 0"),
        (mt.optim.AdEMAMix, {"betas": (0.0, 0.9, 0.9), "t_beta3": 5}, "t_beta3 needs two above 0"),
        (mt.optim.RMSprop, {"centered": True}, "does not support centered=True"),
        (mt.optim.RMSprop, {"alpha": 1.0}, "Invalid alpha value: 1.0"),
        (mt.optim.Adagrad, {"lr_decay": 0.1}, "Adagrad does not support lr_decay=0.1"),
        (mt.optim.Adagrad, {"initial_accumulator_value": 1.0}, "not support initial_accumulator_value=1.0"),
        (mt.AdamWScheduleFree, {"betas": (0.0, 0.9)}, "index 0: 0.0; the average needs more"),
        (mt.AdamWScheduleFree, {"warmup_steps": -1}, "Invalid warmup_steps value: -1"),
        (mt.AdamWScheduleFree, {"r": float("nan")}, "Invalid r value: nan"),
        (mt.optim.LAMB, {"max_unorm": -1.0}, "Invalid max_unorm value: -1.0"),
        (mt.optim.LARS, {"momentum": -1.0}, "Invalid momentum value"),
        (mt.optim.LARS, {"nesterov": True}, "Nesterov momentum requires a momentum"),
        (mt.Muon, {"ns_steps": 100}, "Invalid ns_steps value: 100"),
        (mt.Muon, {"ns_coefficients": (1.0, 2.0)}, "Invalid ns_coefficients"),
        (mt.Muon8bit, {"adjust_lr_fn": "best"}, "Invalid adjust_lr_fn: 'best'"),
    ],
)
def test_values_of_a_rule(cls, values, text):
    with pytest.raises(ValueError, match=text):
        cls(parameters(shapes=((8, 9),)), **values)
    optimizer = cls(parameters(shapes=((8, 9),)))
    with pytest.raises(ValueError, match=text):
        optimizer.add_param_group({"params": parameters(shapes=((8, 9),)), **values})
    assert len(optimizer.param_groups) == 1


@kinds
@pytest.mark.parametrize("lr", [float("nan"), -1.0])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_learning_rate_set_later(kind, lr, as_tensor):
    lr = torch.tensor(lr) if as_tensor else lr
    params = parameters()
    a = make(kind, params)
    walk(a, params, 1)
    a.param_groups[0]["lr"] = lr
    before = snapshot(a, params)
    fill(params, 1)
    with pytest.raises(ValueError, match="lr|learning rate"):
        a.step()
    before["groups"][0]["lr"] = lr
    assert_unchanged(a, params, before)
    a.param_groups[0]["lr"] = 1e-3
    a.step()
    assert int(a.state[params[0]]["step"]) == 2


@kinds
@pytest.mark.parametrize(
    "bad, text",
    [
        (lambda: torch.ones(3, dtype=torch.float64), "float64"),
        (lambda: torch.ones(3, dtype=torch.complex64), "complex64"),
        (lambda: torch.ones(3, 3).to_sparse(), "sparse"),
    ],
)
def test_parameters(kind, bad, text):
    good = torch.ones(3).requires_grad_()
    with pytest.raises(TypeError, match="parameter 1 of group 0 is.*" + text):
        make(kind, [good, bad().requires_grad_()])
    a = make(kind, [good])
    before = snapshot(a, [good])
    with pytest.raises(TypeError, match="parameter 0 of group 1 is.*" + text):
        a.add_param_group({"params": [bad().requires_grad_()]})
    assert_unchanged(a, [good], before)


def test_what_torch_refuses_too():
    p = torch.ones(3).requires_grad_()
    with pytest.raises(ValueError, match="empty parameter list"):
        mt.AdamW([])
    with pytest.raises(TypeError, match="argument given to the optimizer should be an iterable"):
        mt.AdamW(p)
    with pytest.raises(ValueError, match="non-leaf"):
        mt.AdamW([p * 2])
    with pytest.raises(TypeError, match="can only optimize Tensors"):
        mt.AdamW(["p"])
    with pytest.raises(TypeError, match="param_group must be a dict"):
        mt.AdamW([p]).add_param_group([p])
    for cls in (mt.AdamW, mt.Lion8bit, mt.SGD):
        with pytest.raises(RuntimeError, match="`fused` and `foreach` cannot be `True` together"):
            cls([p], foreach=True, fused=True)


@kinds
def test_gradients(kind, device):
    good, bad = parameters(device, shapes=((50, 100), (60, 100)))
    a = make(kind, [good, bad])
    walk(a, [good, bad], 1)
    before = snapshot(a, [good, bad])
    fill([good], 1)
    bad.grad = torch.eye(60, 100, device=device).to_sparse()
    with pytest.raises(RuntimeError, match="sparse gradients.*parameter 1 of group 0"):
        a.step()
    assert_unchanged(a, [good, bad], before)
    late = torch.ones(4, 4, device=device).requires_grad_()
    a.add_param_group({"params": [late]})
    before = snapshot(a, [good, bad])
    bad.grad = None
    late.grad = torch.eye(4, device=device).to_sparse()
    with pytest.raises(RuntimeError, match="sparse gradients.*parameter 0 of group 1"):
        a.step()
    assert_unchanged(a, [good, bad], before)
    assert late not in a.state


def test_double_after_the_start():
    p = torch.ones(5000).requires_grad_()
    a = mt.AdamW8bit([p])
    walk(a, [p], 1)
    p.grad = None
    p.data = p.data.double()
    p.grad = torch.ones_like(p)
    with pytest.raises(TypeError, match="parameter 0 of group 0 is torch.float64"):
        a.step()
    assert torch.equal(p, p.detach().clone()) and int(a.state[p]["step"]) == 1


def test_elements_that_share_memory():
    p = torch.ones(1, 5).expand(4, 5).detach().requires_grad_()
    a = mt.AdamW([p])
    p.grad = torch.ones(4, 5)
    with pytest.raises(RuntimeError, match="parameter 0 of group 0 has elements that share memory"):
        a.step()


def test_a_shape_changed_under_the_gradient():
    p = torch.ones(100).requires_grad_()
    a = mt.AdamW([p])
    p.grad = torch.ones(100)
    a.step()
    p.data = torch.ones(5000)
    with pytest.raises(RuntimeError, match="parameter 0 of group 0"):
        a.step()
    assert torch.equal(p, torch.ones(5000))


@pytest.mark.parametrize("key", ["step", "exp_avg", "power1"])
@pytest.mark.parametrize("value", [3, [1.0], None])
def test_a_state_with_something_else_than_a_tensor(key, value):
    p = torch.ones(5000).requires_grad_()
    a = mt.AdamW8bit([p])
    walk(a, [p], 1)
    was, kept = p.detach().clone(), a.state[p][key]
    a.state[p][key] = value
    with pytest.raises(RuntimeError, match="the state of parameter 0 of group 0 has a"):
        a.step()
    assert torch.equal(p, was)
    a.state[p][key] = kept
    a.step()


def test_a_state_that_lacks_something():
    p = torch.ones(5000).requires_grad_()
    a = mt.AdamW8bit([p])
    walk(a, [p], 1)
    was = p.detach().clone()
    del a.state[p]["power2"]
    with pytest.raises(ValueError, match="state of parameter 0 of group 0 has no scales of exp_avg_sq"):
        a.step()
    assert torch.equal(p, was)
