"""With PyTorch, where it is installed: tensors without copies, and training like torch's AdamW."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")
import memopt  # noqa: E402

torch.set_num_threads(1)  # small tensors: more threads only wait for each other


def test_views_of_tensors():
    values = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    view = memopt.tensor(values)
    assert view.pointer == values.data_ptr() and view.shape == (2, 3)
    for name, dtype in (
        ("bfloat16", "BF16"),
        ("float16", "F16"),
        ("float64", "F64"),
        ("uint8", "U8"),
        ("int32", "I32"),
        ("int64", "I64"),
        ("float8_e4m3fn", "F8_E4M3"),
        ("float8_e5m2", "F8_E5M2"),
    ):
        tensor = torch.zeros(3, dtype=getattr(torch, name))
        assert memopt.tensor(tensor).dtype is memopt.DType[dtype]
    assert memopt.tensor(torch.zeros(0)).count == 0
    assert memopt.tensor(torch.tensor(2.5)).tolist() == [2.5]
    assert memopt.tensor(torch.nn.Parameter(torch.ones(3))).count == 3


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: torch.zeros(4, 4).T[1:], ValueError, "not contiguous"),
        (lambda: torch.zeros(1).expand(4), ValueError, "not contiguous"),
        (lambda: torch.zeros(4, device="meta"), TypeError, "meta"),
        (lambda: torch.zeros(4, 4).to_sparse(), TypeError, "dense"),
        (lambda: torch.zeros(4, dtype=torch.complex64), NotImplementedError, "complex64"),
        (lambda: torch.zeros(4, dtype=torch.bool), NotImplementedError, "bool"),
    ],
)
def test_tensors_that_cannot_be_used(make, error, text):
    with pytest.raises(error) as caught:
        memopt.tensor(make())
    assert text in str(caught.value)


def test_our_memory_as_a_tensor(allocator):
    with allocator.alloc(4096) as buffer:
        tensor = torch.from_dlpack(buffer.tensor("bf16", (32, 64)))
        assert tensor.dtype is torch.bfloat16 and tensor.shape == (32, 64)
        assert tensor.data_ptr() == buffer.pointer
        tensor.fill_(1.0)
        assert bytes(buffer.as_memoryview()[:2]) == b"\x80\x3f"
        part = tensor[3]
        del tensor
        gc.collect()
        with pytest.raises(BufferError):
            buffer.free()
        del part
        gc.collect()


def test_a_tensor_outlives_what_it_came_from(device):
    allocator = memopt.Allocator(device)
    tensor = torch.from_dlpack(allocator.alloc(4096).tensor("f32"))
    del allocator
    gc.collect()
    tensor.fill_(3.0)
    assert tensor.sum().item() == 3 * 1024
    del tensor
    gc.collect()
    assert device.memory_info().used == 0


def test_casts_are_torch_s(device):
    source = torch.randn(10007, generator=torch.Generator().manual_seed(1)) * 1e3
    source[:4] = torch.tensor([float("inf"), float("-inf"), 1e-42, -0.0])
    for dtype in (torch.bfloat16, torch.float16):
        ours = torch.empty(10007, dtype=dtype)
        memopt.cast(device, ours, source)
        assert torch.equal(ours.view(torch.int16), source.to(dtype).view(torch.int16))
        back = torch.empty(10007)
        memopt.cast(device, back, ours)
        assert torch.equal(back.view(torch.int32), ours.to(torch.float32).view(torch.int32))


# Tolerances (absolute, relative) of the field's own tests, 20 steps.
TOLERANCES = {
    torch.float32: (1e-6, 1e-5),
    torch.float16: (1e-4, 1e-3),
    torch.bfloat16: (1e-3, 1e-2),
}


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_32bit_states_step_like_torch(allocator, dtype):
    generator = torch.Generator().manual_seed(0)
    start = [
        torch.randn(shape, generator=generator) for shape in ((64, 33), (1024,), (1,), (7, 300))
    ]
    ours = [value.to(dtype) for value in start]
    theirs = [value.to(dtype).float().requires_grad_() for value in start]
    reference = torch.optim.AdamW(theirs, lr=1e-3, weight_decay=1e-2)
    with memopt.AdamW(allocator, ours, lr=1e-3, weight_decay=1e-2) as optimizer:
        for _ in range(20):
            gradients = [torch.randn(p.shape, generator=generator).to(dtype) * 0.01 for p in ours]
            for parameter, gradient in zip(theirs, gradients):
                parameter.grad = gradient.float()
            optimizer.step(gradients)
            reference.step()
            # The states in full precision are torch's; the parameter is rounded at each step.
            for parameter, other in zip(ours, theirs):
                atol, rtol = TOLERANCES[dtype]
                torch.testing.assert_close(parameter.float(), other.detach(), atol=atol, rtol=rtol)
                other.data.copy_(parameter.float())
        for i, other in enumerate(theirs):
            for name in ("exp_avg", "exp_avg_sq"):
                mine = torch.from_dlpack(optimizer.state(i)[name]).view(other.shape)
                torch.testing.assert_close(mine, reference.state[other][name], atol=1e-6, rtol=1e-5)
        del mine


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(momentum=0.9),
        dict(momentum=0.9, dampening=0.2, weight_decay=0.1),
        dict(momentum=0.9, nesterov=True, weight_decay=0.1),
        dict(momentum=0.5, maximize=True, weight_decay=0.1),
        dict(dampening=0.2, weight_decay=0.1),
    ],
)
def test_sgd_steps_like_torch(allocator, options):
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(64, 33, generator=generator)
    theirs = ours.clone().requires_grad_()
    reference = torch.optim.SGD([theirs], lr=0.05, **options)
    with memopt.SGD(allocator, [ours], lr=0.05, **options) as optimizer:
        for _ in range(10):
            theirs.grad = torch.randn(64, 33, generator=generator)
            optimizer.step([theirs.grad])
            reference.step()
            torch.testing.assert_close(ours, theirs.detach(), atol=1e-6, rtol=1e-5)
        if options.get("momentum"):
            mine = torch.from_dlpack(optimizer.state(0)["momentum_buffer"]).view(64, 33)
            theirs_buffer = reference.state[theirs]["momentum_buffer"]
            torch.testing.assert_close(mine, theirs_buffer, atol=1e-6, rtol=1e-5)
            del mine


@pytest.mark.parametrize("rows, size", [(1024, 32), (256, 1024), (64, 4097)])
def test_8bit_states_step_near_torch(allocator, rows, size):
    """50 steps of small gradients: the field's test of an 8-bit optimizer."""
    generator = torch.Generator().manual_seed(size)
    ours = torch.randn(rows, size, generator=generator) * 0.1
    theirs = ours.clone().requires_grad_()
    reference = torch.optim.AdamW([theirs], lr=1e-3, weight_decay=1e-2)
    with memopt.AdamW8bit(allocator, [ours], lr=1e-3, weight_decay=1e-2) as optimizer:
        for _ in range(50):
            gradient = torch.randn(ours.shape, generator=generator) * 0.01
            theirs.grad = gradient.clone()
            reference.step()
            optimizer.step([gradient])
            error = ours - theirs.detach()
            assert error.abs().mean() < 6e-5
            assert error.norm() < 6e-4 * theirs.detach().norm()
            with torch.no_grad():
                theirs.copy_(ours)  # each step is judged by itself


class Net(torch.nn.Module):
    """A small classifier with layers above and below the size where 8-bit states begin."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(32, 128),
            torch.nn.GELU(),
            torch.nn.LayerNorm(128),
            torch.nn.Linear(128, 128),
            torch.nn.GELU(),
            torch.nn.Linear(128, 10),
        )

    def forward(self, x):
        return self.body(x)


def train(make_optimizer, steps=150):
    torch.manual_seed(0)
    model, teacher = Net(), torch.nn.Linear(32, 10)
    optimizer = make_optimizer(model)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 32)
        loss = torch.nn.functional.cross_entropy(model(x), teacher(x).argmax(1))
        model.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in model.parameters()]


def test_training_a_model(allocator):
    expected, weights = train(lambda m: torch.optim.AdamW(m.parameters(), lr=3e-3))
    ours, our_weights = train(lambda m: memopt.AdamW(allocator, m.parameters(), lr=3e-3))
    gc.collect()
    assert ours[0] == expected[0]
    for a, b in zip(ours, expected):
        assert abs(a - b) < 2e-3
    for a, b in zip(our_weights, weights):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-2)
    small, _ = train(lambda m: memopt.AdamW8bit(allocator, m.parameters(), lr=3e-3))
    gc.collect()
    assert expected[-1] < 0.6 * expected[0], "the task can be learnt"
    for a, b in zip(small, expected):
        assert abs(a - b) < 0.12
    assert abs(sum(small[-20:]) - sum(expected[-20:])) / 20 < 0.03


def test_gradscaler_s_rules(device):
    """The same verdicts and scales as torch's own function over a sequence of steps."""
    scaler = memopt.Scaler(device, init_scale=4.0, growth_interval=2)
    scale, tracker = torch.tensor(4.0), torch.tensor(0, dtype=torch.int32)
    for bad in [False, False, True, False, True, True, False, False, False, False]:
        gradient = torch.tensor([1.0, float("nan") if bad else 2.0])
        expected = gradient / scale
        scaler.unscale(gradient)
        assert torch.equal(gradient.nan_to_num(7), expected.nan_to_num(7))
        scaler.update()
        torch._amp_update_scale_(scale, tracker, torch.tensor(float(bad)), 2.0, 0.5, 2)
        assert scaler.get_scale() == scale.item()
        assert scaler.state_dict()["_growth_tracker"] == tracker.item()
    scaler.close()


def test_a_parameter_that_moved_is_refused(allocator):
    parameter = torch.nn.Parameter(torch.ones(8))
    with memopt.AdamW(allocator, [parameter]) as optimizer:
        parameter.grad = torch.ones(8)
        optimizer.step()
        parameter.data = parameter.data.clone()
        with pytest.raises(ValueError) as caught:
            optimizer.step()
        assert "parameter 0 is not where it was" in str(caught.value)


def test_non_contiguous_gradients_are_refused(allocator):
    parameter = torch.ones(4, 4)
    with memopt.AdamW(allocator, [parameter]) as optimizer:
        with pytest.raises(ValueError) as caught:
            optimizer.step([torch.ones(4, 4).T[:]])
        assert "gradient 0" in str(caught.value) and "contiguous" in str(caught.value)
        assert torch.equal(parameter, torch.ones(4, 4))


def test_offloading_tensors(device, allocator):
    with memopt.Offloader(allocator) as offloader, device.stream() as stream:
        values = [torch.randn(10000) for _ in range(5)]
        copies = [value.clone() for value in values]
        tickets = [offloader.pack_borrowed(value, stream) for value in values]
        [ticket.wait_packed(stream) for ticket in tickets]
        stream.sync()
        [value.fill_(0) for value in values]
        for ticket, copy in zip(tickets, copies):
            with ticket:
                value = torch.from_dlpack(ticket.unpack(stream).tensor("f32"))
                stream.sync()
                assert torch.equal(value, copy)
                del value


def test_a_region_over_torch(allocator):
    """A checkpointed layer whose activations live in leases, its dropout by torch's generator."""
    size = len(bytes(torch.get_rng_state().numpy()))
    state = memopt.RandomState(
        size,
        lambda: bytes(torch.get_rng_state().numpy()),
        lambda data: torch.set_rng_state(torch.frombuffer(bytearray(data), dtype=torch.uint8)),
    )
    x, w = torch.randn(16, 32), torch.randn(32, 64)

    def run(region, which, stream):
        hidden = torch.from_dlpack(region.alloc(16 * 64 * 4).tensor("f32", (16, 64)))
        hidden.copy_(torch.nn.functional.dropout(x @ w, 0.5))
        region.check("hidden", hidden)

    with memopt.Region(allocator, run, name="layer", check="exact", random=state) as region:
        region.forward()
        torch.randn(100)
        region.recompute()
        region.release()
