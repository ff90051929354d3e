"""Views of anything: buffers, DLPack, data pointers; and our memory given to others."""

from __future__ import annotations

import array
import ctypes
import gc
import struct
import sys
import weakref

import pytest

import memopt
from memopt import _dlpack
from memopt.memory import Memory


def np():
    return pytest.importorskip("numpy")


def test_buffer_protocol():
    values = array.array("f", [1, 2, 3])
    view = memopt.tensor(values)
    assert view.pointer == values.buffer_info()[0]
    assert (view.count, view.dtype, view.shape, view.nbytes) == (3, memopt.DType.F32, (3,), 12)
    view.as_memoryview()[1] = 7
    assert values[1] == 7 and view.tolist() == [1, 7, 3]
    with pytest.raises(BufferError):
        values.append(1)  # the view keeps it where it is
    del view
    gc.collect()
    values.append(1)


@pytest.mark.parametrize(
    "code, dtype", [("f", "F32"), ("d", "F64"), ("h", "I16"), ("i", "I32"), ("q", "I64"), ("l", "I64"), ("B", "U8")]
)
def test_types_of_buffers(code, dtype):
    assert memopt.tensor(array.array(code, [1, 2])).dtype is memopt.DType[dtype]


@pytest.mark.parametrize("code", ["b", "H", "I", "Q"])
def test_types_that_the_library_lacks(code):
    with pytest.raises(TypeError) as caught:
        memopt.tensor(array.array(code, [1, 2]))
    assert "element type" in str(caught.value)


def test_read_only_memory():
    data = b"12345678"
    view = memopt.tensor(data)
    assert view.readonly and view.as_memoryview().readonly and view.tolist() == list(data)
    with pytest.raises(TypeError) as caught:
        memopt.tensor(data, writable=True)
    assert "read-only" in str(caught.value)


def test_bare_pointer():
    raw = (ctypes.c_float * 4)(1, 2, 3, 4)
    view = memopt.tensor((ctypes.addressof(raw), 4, "f32"))
    assert view.tolist() == [1, 2, 3, 4]
    for bad in ((1, 2), (-1, 4, "f32"), (0, -1, "f32"), (0, 1 << 63, "f32"), ("a", 1, "f32")):
        with pytest.raises((TypeError, ValueError)):
            memopt.tensor(bad)
    with pytest.raises(memopt.UnsupportedError):
        memopt.tensor((0, 0, "complex64"))


@pytest.mark.parametrize("value", [None, 3.5, "text", [1.0, 2.0], object()])
def test_no_tensor(value):
    with pytest.raises(TypeError):
        memopt.tensor(value)


def test_another_type_for_the_same_bytes():
    view = memopt.tensor(bytearray(8), "bf16")
    assert (view.count, view.dtype) == (4, memopt.DType.BF16)
    with pytest.raises(ValueError):
        memopt.tensor(bytearray(7), "f32")


class FakeDLPack:
    """A producer written here: any struct, old or new protocol, with a count of its releases."""

    def __init__(
        self, versioned=False, code=2, bits=32, shape=(2, 3), strides=None, flags=0, device=(1, 0), major=1, offset=0
    ):
        self.memory = (ctypes.c_ubyte * 256)()
        self.released = 0
        self.versioned = versioned
        self.device = device
        self.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.strides = (ctypes.c_int64 * len(strides))(*strides) if strides else None
        self.struct = _dlpack._ManagedVersioned() if versioned else _dlpack._Managed()
        if versioned:
            self.struct.major, self.struct.flags = major, flags
        tensor = self.struct.tensor
        tensor.data, tensor.byte_offset = ctypes.addressof(self.memory), offset
        tensor.device_type, tensor.device_id = device
        tensor.code, tensor.bits, tensor.lanes, tensor.ndim = code, bits, 1, len(shape)
        kind = ctypes.POINTER(ctypes.c_int64)
        tensor.shape = ctypes.cast(self.shape, kind)
        if strides:
            tensor.strides = ctypes.cast(self.strides, kind)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None, **options):
        if options and not self.versioned:
            raise TypeError("an old producer")
        assert stream == (None if self.device[0] == 1 else -1)
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        return _dlpack._capsule_new(ctypes.addressof(self.struct), name, None)


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack_in(versioned):
    source = FakeDLPack(versioned, offset=16)
    view = memopt.tensor(source)
    assert view.pointer == ctypes.addressof(source.memory) + 16
    assert (view.shape, view.dtype, view.readonly) == ((2, 3), memopt.DType.F32, False)
    assert memopt.tensor(FakeDLPack(versioned, shape=())).count == 1
    assert memopt.tensor(FakeDLPack(versioned, shape=(4, 0))).count == 0
    assert memopt.tensor(FakeDLPack(versioned, shape=(2, 3), strides=(3, 1))).count == 6
    assert memopt.tensor(FakeDLPack(versioned, shape=(1, 3), strides=(99, 1))).count == 3


@pytest.mark.parametrize(
    "code, bits, dtype",
    [
        (4, 16, "BF16"),
        (2, 16, "F16"),
        (2, 64, "F64"),
        (1, 8, "U8"),
        (0, 16, "I16"),
        (0, 32, "I32"),
        (0, 64, "I64"),
        (10, 8, "F8_E4M3"),
        (12, 8, "F8_E5M2"),
    ],
)
def test_dlpack_types(code, bits, dtype):
    assert memopt.tensor(FakeDLPack(code=code, bits=bits)).dtype is memopt.DType[dtype]


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        (dict(shape=(2, 3), strides=(1, 2)), ValueError, "not contiguous"),
        (dict(shape=(2, 3), strides=(0, 1)), ValueError, "not contiguous"),
        (dict(code=5, bits=64), TypeError, "element type"),
        (dict(code=6, bits=8), TypeError, "element type"),
        (dict(versioned=True, major=2), BufferError, "version 2"),
    ],
)
def test_dlpack_that_cannot_be_used(arguments, error, text):
    with pytest.raises(error) as caught:
        memopt.tensor(FakeDLPack(**arguments))
    assert text in str(caught.value)


def test_dlpack_read_only_is_refused_for_outputs(device):
    source = FakeDLPack(versioned=True, flags=1)
    assert memopt.tensor(source).readonly
    with pytest.raises(TypeError) as caught:
        memopt.cast(device, [source], [FakeDLPack()])
    assert "destination 0" in str(caught.value) and "read-only" in str(caught.value)


def test_memory_of_another_device_is_refused(device):
    with pytest.raises(ValueError) as caught:
        memopt.cast(device, [FakeDLPack(device=(2, 1))], [FakeDLPack()])
    assert "cuda:1" in str(caught.value) and "cpu" in str(caught.value)


def test_numpy_in():
    numpy = np()
    values = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    view = memopt.tensor(values)
    assert view.pointer == values.ctypes.data and view.shape == (2, 3)
    assert memopt.tensor(values.astype(numpy.float16)).dtype is memopt.DType.F16
    with pytest.raises(ValueError):
        memopt.tensor(values.T)
    with pytest.raises(ValueError):
        memopt.tensor(values[:, ::2])
    values.flags.writeable = False
    with pytest.raises(TypeError):
        memopt.tensor(values, writable=True)
    with pytest.raises(TypeError):
        memopt.tensor(numpy.zeros(3, numpy.complex64))
    assert memopt.dtype_of(numpy.float32) is memopt.DType.F32
    assert memopt.dtype_of(numpy.dtype("uint8")) is memopt.DType.U8


def test_a_view_keeps_what_it_looks_at():
    numpy = np()
    values = numpy.ones(4, numpy.float32)
    forgotten = weakref.ref(values)
    view = memopt.tensor(values)
    del values
    gc.collect()
    assert forgotten() is not None and view.tolist() == [1, 1, 1, 1]
    del view
    gc.collect()
    assert forgotten() is None


# --- our memory, given to others ---


def test_typed_views(allocator):
    with allocator.alloc(64) as buffer:
        words = buffer.tensor("f32")
        assert words.count == 16 and words.pointer == buffer.pointer
        words.as_memoryview()[3] = 2.5
        assert struct.unpack_from("f", buffer.as_memoryview(), 12) == (2.5,)
        part = buffer.tensor("f32", (2, 3), offset=8)
        assert part.shape == (2, 3)
        assert part.as_memoryview()[0, 1] == 2.5
        for bad in (dict(shape=17), dict(shape=-1), dict(offset=65), dict(shape=(4, 5))):
            with pytest.raises(ValueError):
                buffer.tensor("f32", **bad)
    with pytest.raises(memopt.ClosedError):
        words.pointer
    with pytest.raises(memopt.ClosedError):
        words.as_memoryview()


def test_views_hold_a_buffer(allocator):
    buffer = allocator.alloc(4096)
    view = buffer.tensor("f32").as_memoryview()
    with pytest.raises(BufferError):
        buffer.free()
    part = view[5:9]
    del view
    gc.collect()
    with pytest.raises(BufferError):
        buffer.free()
    del part
    buffer.free()


def test_a_view_outlives_everything_else(device):
    allocator = memopt.Allocator(device)
    view = allocator.alloc(4096).as_memoryview()
    del allocator
    gc.collect()
    assert device.memory_info().used > 0
    view[:] = b"z" * 4096
    del view
    gc.collect()
    assert device.memory_info().used == 0


def test_dlpack_out_to_numpy(allocator):
    numpy = np()
    with allocator.alloc(4096) as buffer:
        buffer.tensor("f32").as_memoryview()[:3] = memoryview(array.array("f", [1, 2, 3]))
        view = numpy.from_dlpack(buffer.tensor("f32", (2, 2)))
        assert view.tolist()[0] == [1, 2] and view.ctypes.data == buffer.pointer
        raw = numpy.from_dlpack(buffer)
        assert raw.dtype == numpy.uint8 and raw.size == 4096
        with pytest.raises(BufferError):
            buffer.free()
        del view, raw
    assert buffer.freed


def test_capsules_nobody_takes_and_failing_consumers(allocator):
    numpy = np()
    with allocator.alloc(64) as buffer:
        capsule = buffer.__dlpack__()
        with pytest.raises(BufferError):
            buffer.free()
        del capsule
        with pytest.raises(Exception):  # NumPy has no bfloat16
            numpy.from_dlpack(buffer.tensor("bf16"))
        with pytest.raises(BufferError):
            buffer.tensor().__dlpack__(copy=True)
        with pytest.raises(BufferError):
            buffer.tensor().__dlpack__(dl_device=(2, 0))
    assert buffer.freed and not _dlpack._given


def test_dlpack_out_and_in_again(allocator):
    with allocator.alloc(64) as buffer:
        for version in (None, (1, 0)):

            class Producer:
                def __dlpack_device__(self):
                    return buffer.__dlpack_device__()

                def __dlpack__(self, stream=None, max_version=None):
                    return buffer.tensor("bf16", (4, 8)).__dlpack__(max_version=version)

            view = memopt.tensor(Producer())
            assert (view.pointer, view.shape) == (buffer.pointer, (4, 8))
            assert view.dtype is memopt.DType.BF16
            with pytest.raises(BufferError):
                buffer.free()
            del view


def test_exports_of_views_of_other_objects():
    numpy = np()
    values = array.array("f", [1, 2, 3])
    view = numpy.from_dlpack(memopt.tensor(values))
    values[0] = 9
    assert view[0] == 9
    with pytest.raises(BufferError):
        values.append(1)
    del view
    gc.collect()
    values.append(1)
    with pytest.raises(BufferError):  # only DLPack 1.0 can say read-only
        memopt.tensor(b"1234").__dlpack__()


def test_memory_is_an_address_to_ctypes(allocator):
    with allocator.alloc(16) as buffer:
        ctypes.memset(buffer, 65, 16)
        assert bytes(buffer.as_memoryview()) == b"A" * 16
        assert isinstance(buffer, Memory) and hex(buffer) == hex(buffer.pointer)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="counts references")
def test_no_references_leak(allocator):
    numpy = np()

    def cycle():
        with allocator.alloc(4096) as buffer:
            numpy.from_dlpack(buffer.tensor("f32"))
            buffer.as_memoryview()
            memopt.tensor(numpy.zeros(4, numpy.float32))
            buffer.__dlpack__()

    for _ in range(20):
        cycle()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        cycle()
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_at_exit_consumers_stop_calling_back(allocator):
    with allocator.alloc(64) as buffer:
        capsule = buffer.__dlpack__()
        ((address, entry),) = _dlpack._given.items()
        assert entry.struct.deleter
        _dlpack._at_exit()  # what the interpreter calls at its end
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        call(entry.struct.deleter)(address)  # JAX calls what it is given: NULL would crash
        assert address in _dlpack._given  # Python was not called
        del _dlpack._given[address], capsule
        entry.done()
