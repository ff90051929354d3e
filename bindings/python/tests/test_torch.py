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
        ("int16", "I16"),
        ("int32", "I32"),
        ("int64", "I64"),
        ("float8_e4m3fn", "F8_E4M3"),
        ("float8_e5m2", "F8_E5M2"),
        ("float8_e4m3fnuz", "F8_E4M3FNUZ"),
        ("float8_e5m2fnuz", "F8_E5M2FNUZ"),
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


def test_a_parameter_that_moved_is_refused(allocator):
    parameter = torch.nn.Parameter(torch.ones(8))
    with memopt.AdamW(allocator, [parameter]) as optimizer:
        parameter.grad = torch.ones(8)
        optimizer.step()
        parameter.data = parameter.data.clone()
        with pytest.raises(ValueError) as caught:
            optimizer.step()
        assert "parameter 0 was moved after it was added" in str(caught.value)


def test_non_contiguous_gradients_are_refused(allocator):
    parameter = torch.ones(4, 4)
    with memopt.AdamW(allocator, [parameter]) as optimizer:
        with pytest.raises(ValueError) as caught:
            optimizer.step([torch.ones(4, 4).T[:]])
        assert "gradient 0" in str(caught.value) and "contiguous" in str(caught.value)
        assert torch.equal(parameter, torch.ones(4, 4))
