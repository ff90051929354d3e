"""Small parts that the savers and reports stand on."""

from __future__ import annotations

import collections
import operator
import re
import types

import pytest
import stubs
import torch

import memopt.torch as mt
from memopt.torch import _arguments, _call_context, _pluggable, _storages, amp
from memopt.torch._live_bytes import LiveBytes
from memopt.torch._moved import MOVED

# --- storages -------------------------------------------------------------------------------------


def test_a_wrapper_is_what_it_holds():
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
    parts = [torch.ones(4, 5), torch.zeros(4, 5)]
    wrapper = two_tensor.TwoTensor(two_tensor.TwoTensor(parts[0], parts[1]), parts[0].clone())
    found = list(_storages.plain_tensors(wrapper))
    assert [f.data_ptr() for f in found[:2]] == [p.data_ptr() for p in parts] and len(found) == 3
    model = torch.nn.Module()
    model.both = torch.nn.Parameter(two_tensor.TwoTensor(*parts))
    assert mt.report(model).devices["cpu"].weights == 2 * 80


# --- live bytes -----------------------------------------------------------------------------------


def test_live_bytes_come_and_go(device):
    with LiveBytes() as live:
        a = torch.ones(1000, device=device)
        b = a + 1
        assert live.live == live.peak == 8000
        del a
        assert (live.live, live.peak) == (4000, 8000)
        b = b[:10]  # a view keeps the whole storage, once
        assert live.live == 4000
        del b
        assert (live.live, live.peak) == (0, 8000)
        c = torch.full((5,), 0.5, device=device).sum(0, keepdim=True, dtype=torch.float64)
        assert c.dtype is torch.float64 and c.shape == (1,)  # operations get all arguments


def test_known_tensors_and_what_is_left_out_do_not_count(device):
    known = torch.ones(1000, device=device)
    with LiveBytes([known]) as live:
        view = known.view(10, 100)
        known.add_(1)
        assert live.live == 0
        made = view * 2
        assert live.live == 4000
        live.leave_out(made)
        assert live.live == 0
        made.mul_(3)
        assert (live.live, live.peak) == (0, 4000)


# --- devices and allocators -----------------------------------------------------------------------


def bare_allocator(device=None):
    allocator = object.__new__(mt.allocator.TorchAllocator)
    allocator._device = device
    return allocator


def test_which_gpu_an_allocator_is_asked_of(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    assert bare_allocator()._index(3) == 3 and bare_allocator(2)._index(None) == 2
    assert bare_allocator()._index("cuda:1") == 1
    assert bare_allocator()._index("cuda") == bare_allocator()._index(None) == 5
    with pytest.raises(ValueError, match="device must be a cuda device, not cpu"):
        bare_allocator()._index("cpu")


def test_figures_of_graphs_are_added_but_for_the_setting_among_them(monkeypatch):
    def get_stats(handle, count, names, values, _):
        values[:] = [{7: 1, 8: 10, 9: 100}[handle], 4]

    names = ["reserved_bytes.all.current", "max_split_size"]
    monkeypatch.setattr(_pluggable, "handles", lambda device: [7, 8, 9])
    monkeypatch.setattr(_pluggable, "stat_names", lambda: names)
    library = types.SimpleNamespace(memopt_allocator_get_stats=get_stats)
    monkeypatch.setattr(_pluggable, "lib", library)
    assert bare_allocator(0).stats() == {"reserved_bytes.all.current": 111, "max_split_size": 4}


# --- what a call depends on -----------------------------------------------------------------------


def test_the_default_device_is_asked_for_only_where_there_may_be_one(monkeypatch):
    with torch.device("meta"):
        assert _call_context.CallContext((), False).device == torch.device("meta")

    def asked():
        raise AssertionError("it costs more than all the rest")

    monkeypatch.setattr(_call_context, "_default_device", asked)
    assert _call_context.CallContext((), False).device is None


Box = collections.namedtuple("Box", "value rest")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: {"x": x, "n": 1},
        lambda x: collections.OrderedDict(n=1, x=x),
        lambda x: [1, x],
        lambda x: (x,),
        lambda x: Box(x, 2),
        lambda x: [{"deep": (x,)}],
    ],
    ids=["dict", "ordered", "list", "tuple", "named", "nested"],
)
@pytest.mark.parametrize("named", [False, True])
def test_tensors_are_found_in_containers(wrap, named):
    """Autograd keeps them: outer hooks see them, and changes in place are told."""
    x = torch.ones(4)
    given = wrap(x)
    arguments = _arguments.Arguments((3,) if named else (3, given), {"box": given} if named else {})
    assert len(arguments.tensors) == 1 and arguments.tensors[0] is x
    args, kwargs = arguments.with_tensors([x + 1])
    made = kwargs["box"] if named else args[1]
    assert args[0] == 3 and type(made) is type(given)
    assert repr(made) == repr(given).replace("1., 1., 1., 1.", "2., 2., 2., 2.")


def test_containers_of_other_classes_are_kept():
    given = collections.defaultdict(list, x=torch.ones(4))
    arguments = _arguments.Arguments((given,), {})
    assert arguments.tensors == [] and arguments.with_tensors([])[0][0] is given


# --- gradients of every kind of parameter ---------------------------------------------------------


class Odd(torch.nn.Parameter):
    """A parameter with a behaviour of its own."""


def gradients(*kinds):
    """Parameters of these classes with gradients of 8, one a group."""
    made = [kind(torch.zeros(5)) for kind in kinds]
    for parameter in made:
        parameter.grad = torch.full((5,), 8.0)
    return torch.optim.SGD([{"params": [parameter]} for parameter in made], lr=1.0)


def scaled(optimizer):
    """The gradients after they were multiplied by 1/4, and the flag."""
    flag = torch.zeros(())
    amp._visit(optimizer, torch.tensor(0.25), flag, True, True)
    return [float(g["params"][0].grad[0]) for g in optimizer.param_groups], float(flag)


def test_parameters_with_a_behaviour_of_their_own_go_one_by_one(monkeypatch):
    plain, odd = torch.nn.Parameter, Odd
    for kinds in ((plain, plain), (plain, odd), (odd, plain), (odd, odd)):
        assert scaled(gradients(*kinds)) == ([2.0] * 2, 0.0), kinds
    slow = []
    monkeypatch.setattr(amp, "_visit_each", lambda found, *_: slow.append(len(found)))
    for kinds, one_by_one in (((plain, plain), []), ((plain, odd), [2]), ((odd,), [1])):
        slow.clear()
        scaled(gradients(*kinds))
        assert slow == one_by_one, kinds


def test_what_is_no_tensor_among_parameters_is_refused():
    optimizer = gradients(torch.nn.Parameter)
    optimizer.param_groups[0]["params"].append(types.SimpleNamespace(grad=torch.ones(3)))
    with pytest.raises(AssertionError, match="expected param to be torch.Tensor, got Simple"):
        scaled(optimizer)


# --- names and stubs ------------------------------------------------------------------------------


@pytest.mark.parametrize("module", stubs.MODULES)
def test_stubs_say_what_the_table_of_rules_says(module):
    assert stubs.path(module).read_text() == stubs.stub(module), "run tests/stubs.py"


def test_the_top_has_few_names():
    assert len(mt.__all__) <= 35 and all(hasattr(mt, name) for name in mt.__all__)


@pytest.mark.parametrize(
    "name, now",
    [
        ("AdamWFp8", "AdamW8bit"),
        ("AdamW8bitCompanded", 'codes="dynamic"'),
        ("AdamWBf16", 'states="bf16"'),
        ("PagedAdamW8bit", "memopt.torch.bnb.PagedAdamW8bit"),
        ("RMSprop", "memopt.torch.optim.RMSprop"),
        ("LAMB8bit", "memopt.torch.bnb.LAMB8bit"),
        ("share_tensor", "memopt.torch.sharing.share_tensor"),
    ],
)
def test_a_name_that_moved_says_where(name, now):
    with pytest.raises(AttributeError, match=re.escape(now)):
        getattr(mt, name)
    for text in MOVED.values():  # every place that is named is there
        for path in re.findall(r"memopt\.torch\.(\w+(?:\.\w+)+)", text):
            if not path.startswith("monitor."):  # beside the library: its own tests import it
                assert operator.attrgetter(path)(mt)
