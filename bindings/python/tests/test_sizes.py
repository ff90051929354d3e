"""Sizes, dtypes and the exceptions."""

from __future__ import annotations

import pickle

import pytest

import memopt

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


@pytest.mark.parametrize(
    "text, expected",
    [
        ("1.5GiB", 3 << 29),
        ("512MiB", 512 << 20),
        ("2 GB", 2 * 10**9),
        ("4g", 4 << 30),
        ("1536", 1536),
        (" 1k ", 1024),
        (0, 0),
        (2**64 - 1, 2**64 - 1),
    ],
)
def test_parse_size(text, expected):
    assert memopt.parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "1.5 parsecs", "GiB", "99999999999999999999", "1\0GiB"])
def test_bad_text(text):
    with pytest.raises(ValueError):
        memopt.parse_size(text)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_bad_number(value):
    with pytest.raises(ValueError):
        memopt.parse_size(value)


@pytest.mark.parametrize("value", [1.5, None, b"1GiB", [1]])
def test_bad_type(value):
    with pytest.raises(TypeError):
        memopt.parse_size(value)


UNITS = {
    "": 1,
    "K": 2**10,
    "KiB": 2**10,
    "KB": 10**3,
    "MiB": 2**20,
    "MB": 10**6,
    "GiB": 2**30,
    "GB": 10**9,
    "TiB": 2**40,
    "TB": 10**12,
}


@given(st.integers(0, 2**20), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " ", "  "]))
def test_whole_sizes_are_exact(number, unit, blank):
    assert memopt.parse_size("%d%s%s" % (number, blank, unit)) == number * UNITS[unit]
    assert memopt.parse_size("%d%s%s" % (number, blank, unit.lower())) == number * UNITS[unit]


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_value_error(text):
    try:
        size = memopt.parse_size(text)
    except ValueError:
        return
    assert 0 <= size < 2**64


@given(st.integers(0, 2**50))
def test_format_size_reads_back(size):
    back = memopt.parse_size(memopt.format_size(size))
    assert abs(back - size) <= max(size * 0.006, 0)


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("bf16", memopt.DType.BF16),
        ("bfloat16", memopt.DType.BF16),
        ("float32", memopt.DType.F32),
        ("uint8", memopt.DType.U8),
        (3, memopt.DType.BF16),
        (memopt.DType.F64, memopt.DType.F64),
    ],
)
def test_dtype_of(name, dtype):
    assert memopt.dtype_of(name) is dtype


@pytest.mark.parametrize("name", ["complex64", "bool", 77, ""])
def test_unknown_dtype(name):
    with pytest.raises(memopt.UnsupportedError) as caught:
        memopt.dtype_of(name)
    assert str(name) in str(caught.value)


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
