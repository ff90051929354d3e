"""report(): every byte counted once, and the peak of a step to the byte."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
import torch
from torch import nn

import memopt.torch as mt
from simulated import run

WIDE = 4 * 64 * 32  # bytes of a 64 × 32 weight in float32


def chain():
    return nn.Sequential(nn.Linear(32, 64, bias=False), nn.Tanh(), nn.Linear(64, 32, bias=False))


def name_of(device):
    return "cpu" if device.type == "cpu" else "cuda:%d" % (device.index or 0)


def of(model, optimizer=None, **options):
    """The report of the one device."""
    report = mt.report(model, optimizer, **options)
    ((name, memory),) = report.devices.items()
    return memory


def backward(model, device, rows=16):
    model(torch.randn(rows, 32, device=device)).square().sum().backward()


# --- what there is now ----------------------------------------------------------------------------


def test_weights_gradients_and_states(device):
    model = chain().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    assert of(model)[:3] == (2 * WIDE, 0, 0)
    backward(model, device)
    assert of(model, optimizer)[:3] == (2 * WIDE, 2 * WIDE, 0)
    optimizer.step()
    steps = 8 if device.type == "cpu" else 0  # torch keeps step counts on the CPU
    report = mt.report(model, optimizer)
    assert report.devices[name_of(device)][:3] == (2 * WIDE, 2 * WIDE, 4 * WIDE + steps)
    assert report.dtypes["gradients"] == {"float32": 2 * WIDE}
    optimizer.zero_grad()
    assert mt.report(model, optimizer).devices[name_of(device)].gradients == 0


def test_ties_and_views_count_once(device):
    model = nn.Module()
    model.one = nn.Linear(32, 64, bias=False, device=device)
    model.two = nn.Linear(64, 32, bias=False, device=device)
    model.two.weight = nn.Parameter(model.one.weight.detach().t())  # a view of the same storage
    model.three = model.one
    model.register_buffer("part", model.one.weight.detach()[:3])
    assert of(model).weights == WIDE
    model.register_buffer("own", torch.zeros(10, dtype=torch.bfloat16, device=device))
    report = mt.report(model)
    assert report.dtypes["weights"] == {"float32": WIDE, "bfloat16": 20}


def test_unusual_tensors(device):
    """Sparse gradients, meta tensors, nested and foreign optimizer states."""
    model = nn.Embedding(100, 8, sparse=True, device=device)
    model(torch.tensor([1, 2, 3], device=device)).sum().backward()
    assert of(model).gradients == 3 * 8 * 4 + 3 * 8  # values and indices
    assert not mt.report(nn.Linear(1000, 1000, device="meta")).devices
    weight = next(model.parameters())

    class Own:
        param_groups = [{"params": [weight]}]
        state = {weight: {"a": [torch.zeros(5, device=device), {"b": torch.zeros(3)}], "n": 4}}

    report = mt.report(model, Own())
    assert sum(memory.optimizer for memory in report.devices.values()) == 32


def test_several_optimizers_and_parameters_outside_of_the_model(device):
    model, extra = chain().to(device), nn.Parameter(torch.ones(100, device=device))
    first = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    second = torch.optim.SGD([extra], lr=0.1, momentum=0.9)
    backward(model, device)
    extra.sum().backward()
    first.step()
    second.step()
    memory = of(model, [first, second])
    assert memory[:3] == (2 * WIDE, 2 * WIDE + 400, 2 * WIDE + 400)


def test_modules(device):
    model = chain().to(device)
    backward(model, device)
    rows = mt.report(model, modules=1).modules
    assert [(row.name, row.kind, row.weights, row.gradients) for row in rows] == [
        ("", "Sequential", 2 * WIDE, 2 * WIDE),
        ("0", "Linear", WIDE, WIDE),
        ("1", "Tanh", 0, 0),
        ("2", "Linear", WIDE, WIDE),
    ]
    model[2].weight = nn.Parameter(model[0].weight.detach().t())
    assert [row.weights for row in mt.report(model, modules=1).modules] == [WIDE, WIDE, 0, 0]


def test_wrong_arguments():
    with pytest.raises(TypeError, match="model"):
        mt.report([1])
    with pytest.raises(TypeError, match="optimizer"):
        mt.report(chain(), 3)


# --- a measured step ------------------------------------------------------------------------------


def test_peak_by_hand(device):
    """Every byte of a step whose tensors can be written down."""
    weight = nn.Parameter(torch.ones(1000, device=device))
    model = nn.ParameterList([weight])

    def step():
        x = weight.exp()  # its result is saved
        y = x.sin()  # x is saved: now weight, x, y
        y.sum().backward()

    memory = of(model, step=step)
    # In backward at its most: weight, x, cos(x), the product, and y or the next product.
    assert memory.at_peak["weights"] == 4000
    assert memory.at_peak["activations"] == 4000
    assert sum(memory.at_peak.values()) == memory.peak
    assert memory.gradients == 4000
    weight.grad = None

    def forward():
        with torch.no_grad():
            x = weight + 1
            del x
            torch.cat([weight, weight])

    memory = of(model, step=forward)
    assert memory.at_peak == dict(weights=4000, gradients=0, optimizer=0, activations=0, other=8000)


def test_gradients_at_the_peak_though_they_are_gone_after_it(device):
    model = chain().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step():
        backward(model, device, rows=1)
        optimizer.step()
        optimizer.zero_grad()

    step()
    memory = mt.report(model, optimizer, step=step).devices[name_of(device)]
    assert memory.gradients == 0
    assert memory.at_peak["gradients"] == 2 * WIDE
    assert memory.at_peak["optimizer"] >= 4 * WIDE


def test_the_step_does_what_it_does_without(device):
    def train(measured):
        torch.manual_seed(5)
        model = nn.Sequential(chain(), nn.Dropout(0.5)).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(8, 32, device=device)

        def step():
            mt.checkpoint(model, x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(3):
            mt.report(model, optimizer, step=step) if measured else step()
        return [p.detach().clone() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(train(False), train(True)))


def test_an_exception_of_the_step_comes_out_and_nothing_stays(device):
    model = chain().to(device)

    def step():
        backward(model, device)
        raise KeyError("from the step")

    with pytest.raises(KeyError, match="from the step"):
        mt.report(model, step=step)
    assert not model[0].weight._post_accumulate_grad_hooks
    backward(model, device)  # no mode is left behind


def test_nothing_is_kept_alive(device):
    model = chain().to(device)
    mt.report(model, step=lambda: backward(model, device))
    gc.collect()
    kept = [o for o in gc.get_objects() if type(o).__name__ in ("Timeline", "_Life")]
    assert not kept
    reference = weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert reference() is None


# --- how it looks ---------------------------------------------------------------------------------


def test_table_and_dict(device):
    model = chain().to(device)
    report = mt.report(model, step=lambda: backward(model, device), modules=1)
    table = str(report)
    assert table == report.table()
    lines = table.splitlines()
    assert lines[0].split() == [name_of(device), "now", "at", "the", "peak"]
    rows = {line.split("  ")[0]: line for line in lines}
    for row in ("weights", "gradients", "optimizer", "activations", "other", "together", "free"):
        assert row in rows, table
    assert rows["weights"].split()[1:] == ["16.00", "KiB", "16.00", "KiB"]
    assert "host memory of this process" in lines[-1]
    assert "0 (Linear)" in table
    values = json.loads(json.dumps(report.as_dict()))
    assert values["devices"][name_of(device)]["weights"] == 2 * WIDE
    assert values["host"]["rss"] > 1 << 20
    assert "MemoryReport" in repr(report)


def test_without_a_step_the_table_says_how_to_get_its_peak(device):
    model = chain().to(device)
    said = "the peak of a step: report(..., step=f)"
    assert said in mt.report(model).table().splitlines()[-1]
    assert said not in mt.report(model, step=lambda: backward(model, device)).table()


def test_rich(device):
    console = pytest.importorskip("rich.console")
    output = console.Console(record=True, width=100, file=open("/dev/null", "w"))
    output.print(mt.report(chain().to(device), modules=1))
    text = output.export_text()
    assert "weights" in text and "16.00 KiB" in text and "modules" in text and "host memory" in text
    assert "step=f" in text


# --- a GPU, simulated -----------------------------------------------------------------------------


@pytest.mark.parametrize("ours", [False, True])
def test_gpu_columns_on_the_simulated_driver(ours):
    run(
        """
        allocator = mt.enable_allocator("") if %s else None
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.empty(1024, 1024, device="cuda"))
        kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        gone = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
        del gone
        report = mt.report(model, step=lambda: torch.empty(7 * MIB, dtype=torch.uint8,
                                                           device="cuda"))
        memory = report.devices["cuda:0"]
        assert memory.weights == 4 * MIB and memory.other == 3 * MIB, memory
        assert memory.peak == 11 * MIB and memory.at_peak["other"] == 7 * MIB
        memory = mt.report(model).devices["cuda:0"]
        assert memory.peak == 15 * MIB and memory.at_peak is None
        assert memory.total == 256 * MIB and memory.reserved >= 15 * MIB
        assert memory.free == memory.total - 7 * MIB
        assert "reserved" in str(report)
        """
        % ours,
        torch_too=True,
    )
