"""Sizes, dtypes and the exceptions."""

from __future__ import annotations

import pickle

import pytest

import memopt


SIZES = {
    "1.5GiB": 3 << 29, "512MiB": 512 << 20, "2 GB": 2 * 10**9, "4g": 4 << 30, "1536": 1536, " 1k ": 1024,
    0: 0, 2**64 - 1: 2**64 - 1,
}  # fmt: skip
BAD_SIZES = {
    ValueError: ("", "-1", "1.5 parsecs", "GiB", "99999999999999999999", "1\0GiB", -1, 2**64),
    TypeError: (1.5, None, b"1GiB", [1]),
}


def test_sizes():
    for text, expected in SIZES.items():
        assert memopt.parse_size(text) == expected, text
    for error, values in BAD_SIZES.items():
        for value in values:
            with pytest.raises(error):
                memopt.parse_size(value)
    assert memopt.parse_size(memopt.format_size(3 << 29)) == 3 << 29


def test_names_of_dtypes():
    types = memopt.DType
    names = {"bf16": types.BF16, "bfloat16": types.BF16, "float32": types.F32, "uint8": types.U8, 3: types.BF16}
    for name, dtype in {**names, types.F64: types.F64}.items():
        assert memopt.dtype_of(name) is dtype
    for name in ("complex64", "bool", 77):
        with pytest.raises(memopt.UnsupportedError, match=str(name)):
            memopt.dtype_of(name)


def test_errors_carry_status_name_and_message():
    with pytest.raises(memopt.MemoptError) as caught:
        memopt.Device("gpu9000")
    error = caught.value
    assert error.status is memopt.Status.NOT_FOUND and error.name == "NOT_FOUND"
    assert isinstance(error, memopt.NotFoundError) and isinstance(error, LookupError)
    assert str(error) == error.message and "gpu9000" in error.message


def test_errors_can_be_pickled():
    with pytest.raises(memopt.MemoptError) as caught:
        memopt.parse_size("no size")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value)
    assert (copy.status, copy.message) == (caught.value.status, caught.value.message)
    closed = pickle.loads(pickle.dumps(memopt.ClosedError("gone")))
    assert str(closed) == "gone"


def test_subclasses_of_the_built_in_exceptions():
    assert issubclass(memopt.OutOfMemoryError, MemoryError)
    assert issubclass(memopt.InvalidArgumentError, ValueError)
    assert issubclass(memopt.UnsupportedError, NotImplementedError)
    for name in memopt.__all__:
        value = getattr(memopt, name)
        if isinstance(value, type) and name.endswith("Error"):
            assert issubclass(value, memopt.MemoptError)
