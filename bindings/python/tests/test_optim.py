"""Optimizers through Python, against the formula in double."""

from __future__ import annotations

import array
import gc
import math
import random

import pytest

import memopt


def f32(values):
    return array.array("f", values)


def numbers(count, seed, scale=1.0):
    generator = random.Random(seed)
    return [generator.gauss(0, scale) for _ in range(count)]


def test_what_states_take(allocator):
    """(What steps compute is proved in C and against torch.)"""
    for make, taken in ((memopt.AdamW, 80000), (memopt.AdamW8bit, 20000 + 320)):
        with make(allocator, [f32(numbers(10000, 1))], lr=1e-2) as optimizer:
            optimizer.step([f32(numbers(10000, 2))])
            assert optimizer.steps(0) == 1 and optimizer.state_bytes == taken
            assert allocator.tags()["optimizer"].current_bytes >= taken
    assert allocator.stat("allocated_bytes.all.current") == 0


def test_min_8bit_size(allocator):
    with memopt.AdamW8bit(allocator, [f32([0] * 100)]) as optimizer:
        assert optimizer.state(0)["exp_avg"].dtype is memopt.DType.F32
    with memopt.AdamW8bit(allocator, [f32([0] * 100)], min_8bit_size=0) as optimizer:
        assert optimizer.state(0)["exp_avg"].dtype is memopt.DType.U8
    groups = [{"params": [f32([0] * 100)], "min_8bit_size": least} for least in (0, 100, 101)]
    with memopt.AdamW8bit(allocator, groups) as optimizer:
        types = [optimizer.state(i)["exp_avg"].dtype for i in range(3)]
        assert types == [memopt.DType.U8, memopt.DType.U8, memopt.DType.F32]


def test_groups(allocator):
    a, b = f32([1.0] * 8), f32([1.0] * 8)
    groups = [{"params": [a], "lr": 0.1, "weight_decay": 0.0}, {"params": [b]}]
    with memopt.AdamW(allocator, groups, lr=0.01, weight_decay=0.5) as optimizer:
        assert optimizer.groups[0].lr == 0.1 and optimizer.groups[1].lr == 0.01
        assert optimizer.groups[1].as_dict() == {
            "lr": 0.01,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "weight_decay": 0.5,
            "maximize": False,
        }
        optimizer.groups[1].set(maximize=True, lr=0.02)
        optimizer.step([f32([1.0] * 8), f32([1.0] * 8)])
        assert math.isclose(a[0], 0.9, rel_tol=1e-5)
        assert math.isclose(b[0], 1 * (1 - 0.02 * 0.5) + 0.02, rel_tol=1e-5)
        optimizer.groups[0].lr = 0.0
        for bad in (
            dict(lr=-1.0),
            dict(betas=(1.0, 0.9)),
            dict(eps=float("nan")),
            dict(lr=math.inf),
        ):
            with pytest.raises(ValueError):
                optimizer.groups[0].set(**bad)
        with pytest.raises(TypeError):
            optimizer.groups[0].set(momentum=0.9)
        assert optimizer.groups[0].lr == 0.0


def test_adafactor_keeps_rows_and_columns(allocator):
    vector, matrix = f32([0.5] * 6), f32([0.5] * 12)
    shaped = memoryview(matrix).cast("B").cast("f", [3, 4])
    with memopt.Adafactor(allocator, [vector, shaped], d=2.0) as optimizer:
        assert optimizer.groups[0].eps == (2.0**-23, 1e-3)
        assert (optimizer.groups[0].d, optimizer.groups[0].beta2_decay) == (2.0, -0.8)
        optimizer.step([f32([1.0] * 6), f32([-1.0] * 12)])
        assert [state.count for state in optimizer.state(0).values()] == [6]
        assert {k: v.count for k, v in optimizer.state(1).items()} == {"row_var": 3, "col_var": 4}
        for value, way in [(vector[0], -1), (matrix[0], 1)]:  # lr times the parameter's RMS
            assert math.isclose(value, 0.5 + way * 0.01 * 0.5, rel_tol=1e-6)
        optimizer.groups[0].eps = (1e-3, 0.25)
        assert optimizer.groups[0].eps == (1e-3, 0.25)


def test_missing_gradients_and_step_counts(allocator):
    a, b = f32([1.0] * 4), f32([1.0] * 4)
    with memopt.AdamW(allocator, [a, b]) as optimizer:
        optimizer.step([f32([1.0] * 4), None])
        optimizer.step([f32([1.0] * 4), None])
        assert (optimizer.steps(0), optimizer.steps(1)) == (2, 0)
        assert list(b) == [1.0] * 4
        optimizer.set_steps(1, 10)
        assert optimizer.steps(1) == 10
        with pytest.raises(ValueError):
            optimizer.set_steps(1, 1 << 60)
        with pytest.raises(ValueError):
            optimizer.steps(2)


def test_unscale_and_clip_in_the_step(device, allocator):
    start = numbers(300, 1)
    plain, fused = f32(start), f32(start)
    gradient = numbers(300, 2)
    norm = math.sqrt(sum(g * g for g in gradient))
    with memopt.AdamW(allocator, [plain]) as a, memopt.AdamW(allocator, [fused]) as b:
        with memopt.Scaler(device, init_scale=1024.0) as scaler:
            a.step([f32([g / norm for g in gradient])])
            out = f32([0])
            b.step([f32([g * 1024 for g in gradient])], scaler=scaler, max_norm=1.0, out_norm=out)
            assert math.isclose(out[0], norm, rel_tol=1e-5)
            b.step([f32([math.nan] * 300)], skip_non_finite=True)
            assert b.steps(0) == 1
    for x, y in zip(plain, fused):
        assert math.isclose(x, y, rel_tol=1e-5, abs_tol=1e-6)


def test_mixed_precision_with_a_master(device, allocator):
    master = f32(numbers(500, 1))
    copy = memopt.tensor(bytearray(1000), "bf16")
    with memopt.Optimizer(allocator) as optimizer:
        optimizer.add_group(lr=0.1)
        optimizer.add_parameter(master, model_copy=copy)
        optimizer.step([f32(numbers(500, 2))])
    rounded = bytearray(1000)
    memopt.cast(device, memopt.tensor(rounded, "bf16"), master)
    assert memopt.tensor(rounded, "bf16").tolist() == copy.tolist()


def test_parameters_in_device_memory_and_streams(device, allocator):
    with device.stream() as stream, allocator.alloc(4 * 5000, stream, "weights") as memory:
        parameter = memory.tensor("f32")
        device.fill(memory, 0, stream=stream)
        with memopt.AdamW8bit(allocator, [parameter], lr=0.5, stream=stream) as optimizer:
            optimizer.step([f32([1.0] * 5000)], stream=stream)
            stream.sync()
            assert math.isclose(parameter.as_memoryview()[4999], -0.5, rel_tol=1e-3)


def test_export_and_import(allocator):
    start = numbers(9000, 1)
    gradients = [f32(numbers(9000, step)) for step in range(6)]

    def run(steps, optimizer, parameter):
        for gradient in steps:
            optimizer.step([gradient])
        return parameter.tobytes()

    parameter = f32(start)
    with memopt.AdamW8bit(allocator, [parameter]) as optimizer:
        halfway = run(gradients[:3], optimizer, parameter)
        data = optimizer.export_bytes()
        whole = run(gradients[3:], optimizer, parameter)
        again = f32(halfway)
        with memopt.AdamW8bit(allocator, [again]) as other:
            other.import_bytes(bytes(data))
            assert run(gradients[3:], other, again) == whole
            before = other.export_bytes()
            for damage in (0, len(data) // 2, len(data) - 8):
                broken = bytearray(data)
                broken[damage] ^= 1
                with pytest.raises(memopt.MemoptError):
                    other.import_bytes(broken)
            with pytest.raises(memopt.CorruptError):
                other.import_bytes(data[:-5])
            assert other.export_bytes() == before
    with memopt.AdamW8bit(allocator, [f32([0.0] * 8999)]) as other:
        for convert in (False, True):
            with pytest.raises(memopt.InvalidArgumentError):
                other.import_bytes(data, convert=convert)
    with memopt.AdamW4bit(allocator, [again]) as other:
        with pytest.raises(memopt.InvalidArgumentError, match="companded states.*companded 4-bit ones"):
            other.import_bytes(data)
        other.import_bytes(data, convert=True)
        assert other.steps(0) == 3


def test_shards_together_are_the_whole(allocator):
    """(Every rule, format and cut is proved in C.)"""
    start, gradient = numbers(9000, 1), numbers(9000, 2)

    def step(first, end):
        parameter = f32(start[first:end])
        with memopt.Optimizer(allocator, states="8bit") as optimizer:
            optimizer.add_group(lr=0.1)
            optimizer.add_parameter(parameter, shard=(first, 9000))
            optimizer.step([f32(gradient[first:end])])
            return parameter.tobytes(), optimizer.state_bytes

    (first, bytes_first), (empty, bytes_empty), (last, bytes_last) = (
        step(0, 3072),
        step(3072, 3072),
        step(3072, 9000),
    )
    whole, bytes_whole = step(0, 9000)
    assert first + empty + last == whole
    assert bytes_first + bytes_last == bytes_whole and bytes_empty == 0
    with pytest.raises(memopt.InvalidArgumentError, match="100 elements from 0 on, of 9000"):
        step(0, 100)


def test_save_and_load_in_other_cuts(allocator, tmp_path):
    start, gradient = numbers(9000, 1), f32(numbers(9000, 2))

    def make(first, end):
        optimizer = memopt.Optimizer(allocator, states="8bit")
        optimizer.add_group(lr=0.1)
        optimizer.add_parameter(f32(start[first:end]), shard=(first, 9000))
        return optimizer

    with make(0, 9000) as whole:
        whole.step([gradient])
        for name, (first, end) in {"0": (0, 3072), "1": (3072, 9000)}.items():
            with make(first, end) as optimizer:
                optimizer.step([gradient[first:end]])
                optimizer.save(tmp_path / name)
        with make(0, 9000) as other:
            other.load(tmp_path / "1", tmp_path / "0")
            assert other.export_bytes() == whole.export_bytes()
        with make(256, 512) as other:
            other.load(tmp_path / "0")
            with pytest.raises(memopt.InvalidArgumentError, match="element 256 of parameter 0"):
                other.load(tmp_path / "1")
            with pytest.raises(memopt.StorageError, match="cannot open"):
                other.load(tmp_path / "2")


@pytest.mark.parametrize(
    "params, options, error",
    [
        ([], {}, ValueError),
        ([b"12345678"], {}, TypeError),
        ([array.array("q", [1])], {}, memopt.UnsupportedError),
        ([None], {}, TypeError),
        ([f32([1.0])], dict(lr=-1), ValueError),
        ([f32([1.0])], dict(betas=(0.9, 1.0)), ValueError),
        ([f32([1.0])], dict(block_size=100), TypeError),
        ([f32([1.0])], dict(states="fp8"), ValueError),
        ([f32([1.0])], dict(seed=-1), ValueError),
        ([{"params": [f32([1.0])], "momentum": 1}], {}, TypeError),
    ],
)
def test_bad_construction(allocator, params, options, error):
    with pytest.raises(error):
        memopt.AdamW8bit(allocator, params, **options)
    gc.collect()
    assert allocator.stat("allocated_bytes.all.current") == 0


def test_bad_steps(device, allocator):
    parameter = f32([1.0] * 8)
    with memopt.AdamW(allocator, [parameter]) as optimizer:
        for gradients, error, text in (
            ([], ValueError, "0 gradients for 1 parameters"),
            ([f32([1.0] * 7)], ValueError, "gradient 0 has 7 elements, its parameter 8"),
            (["text"], TypeError, "gradient 0"),
            ([array.array("i", [1] * 8)], memopt.UnsupportedError, "0"),
            ([parameter], ValueError, "0"),
        ):
            with pytest.raises(error) as caught:
                optimizer.step(gradients)
            assert text in str(caught.value)
        with pytest.raises(ValueError):
            optimizer.step([f32([1.0] * 8)], max_norm=-1.0)
        with pytest.raises(ValueError):
            optimizer.add_parameter(memoryview(parameter)[2:4])  # overlaps the first
        with pytest.raises(ValueError):
            optimizer.add_parameter(f32([1.0]), 7)
        assert len(optimizer) == 1 and list(parameter) == [1.0] * 8
        assert optimizer.steps(0) == 0


@pytest.mark.parametrize("bits, dtype", [(True, "U8"), (8, "U8"), (16, "I16")])
def test_split_weights(allocator, bits, dtype):
    parameter = memopt.tensor(bytearray(10000), "bf16")
    with memopt.Optimizer(allocator, states="8bit", split_weights=bits) as optimizer:
        optimizer.add_group(lr=1e-4)
        optimizer.add_parameter(parameter)
        residual = optimizer.state(0)["weight_residual"]
        assert residual.dtype is memopt.DType[dtype] and residual.count == 5000
    with pytest.raises(ValueError, match="split_weights is 9; it is False, True, 8 or 16"):
        memopt.Optimizer(allocator, split_weights=9)


@pytest.mark.parametrize(
    "make, names, dtype, count, state_bytes",
    [
        (memopt.AdamW4bit, ["exp_avg", "exp_avg_sq", "companded1", "companded2"], "U8", 5001, 10002 + 632),
        (memopt.AdamW8bit, ["exp_avg", "exp_avg_sq", "power1", "power2"], "U8", 10001, 20002 + 320),
        (memopt.AdamWBf16, ["exp_avg", "exp_avg_sq"], "BF16", 10001, 40004),
        (memopt.Lion8bit, ["exp_avg", "power1"], "U8", 10001, 10001 + 160),
        (memopt.SGD8bit, ["momentum_buffer", "power1"], "U8", 10001, 10001 + 160),
    ],
)
def test_small_states(allocator, make, names, dtype, count, state_bytes):
    """(Their values are proved in C and against torch.)"""
    options = {"momentum": 0.9} if make is memopt.SGD8bit else {}
    with make(allocator, [f32(numbers(10001, 1))], 1e-3, **options) as optimizer:
        optimizer.step([f32(numbers(10001, 2))])
        state = optimizer.state(0)
        assert list(state) == names
        assert (state[names[0]].dtype.name, state[names[0]].count) == (dtype, count)
        assert optimizer.state_bytes == state_bytes


def test_hyperparameters_are_those_of_the_kind(allocator):
    with memopt.SGD(allocator, [f32([1.0])], momentum=0.9) as optimizer:
        group = optimizer.groups[0]
        assert group.as_dict() == {
            "lr": 1e-3,
            "momentum": 0.9,
            "dampening": 0.0,
            "weight_decay": 0.0,
            "nesterov": False,
            "maximize": False,
        }
        group.set(nesterov=True)
        group.momentum = 0.5
        assert group.nesterov and group.momentum == 0.5
        for bad in (dict(dampening=0.1), dict(momentum=0.0), dict(momentum=-1.0)):
            with pytest.raises(ValueError):
                group.set(**bad)
        with pytest.raises(TypeError):
            group.set(betas=(0.9, 0.99))
        with pytest.raises(AttributeError):
            group.eps
    with memopt.Lion(allocator, [f32([1.0])]) as optimizer:
        assert optimizer.groups[0].as_dict() == {
            "lr": 1e-4,
            "betas": (0.9, 0.99),
            "weight_decay": 0.0,
            "maximize": False,
        }
    for options in (dict(kind="lion", states="4bit"), dict(kind="sgd", states="bf16")):
        with pytest.raises(memopt.UnsupportedError):
            memopt.Optimizer(allocator, **options)
    with pytest.raises(ValueError):
        memopt.Optimizer(allocator, kind="adadelta")


@pytest.mark.parametrize("states, codes", [("8bit", 256), (memopt.StateFormat.BITS8_DYNAMIC, 256), ("4bit", 16)])
def test_codes_of_states(device, states, codes):
    """A code's value times its block's scale is what it stands for."""
    values, block, pairs = [float(v) for v in range(-500, 500)], 128 if codes == 16 else 256, codes == 16
    made = memopt.tensor(bytearray(500 if pairs else 1000), "u8")
    scales, back = f32([0.0] * -(-1000 // block)), f32([0.0] * 1000)
    memopt.quantize(device, states, made, scales, f32(values), signed=True)
    memopt.dequantize(device, states, back, made, scales, signed=True)
    table, raw = memopt.state_map(states, True), bytes(made.as_memoryview())
    assert len(table) == len(memopt.state_map(states, False)) == codes
    for i in (0, 1, 499, 998, 999):
        code = raw[i // 2] >> (4 if i % 2 == 0 else 0) & 15 if pairs else raw[i]
        assert back[i] == f32([f32([table[code]])[0] * scales[i // block]])[0]
    with pytest.raises(memopt.UnsupportedError):
        memopt.quantize(device, "f32", made, scales, f32(values))


def test_groups_of_ademamix(allocator):
    """A group has three betas; alpha is the slow mean's weight, not RMSprop's decay."""
    parameter = f32(numbers(300, 1))
    with memopt.Optimizer(allocator, kind="ademamix") as optimizer:
        group = optimizer.add_group(betas=(0.8, 0.99, 0.999), t_alpha=4)
        assert group.betas == (0.8, 0.99, 0.999) and group.alpha == 5.0
        group.set(alpha=3.0, t_beta3=8)
        assert group.as_dict() == dict(
            lr=1e-3, betas=(0.8, 0.99, 0.999), alpha=3.0, t_alpha=4.0, t_beta3=8.0, eps=1e-8,
            weight_decay=1e-2, maximize=False,
        )  # fmt: skip
        with pytest.raises(ValueError, match="3 betas"):
            group.betas = (0.9, 0.99)
        optimizer.add_parameter(parameter)
        optimizer.step([f32(numbers(300, 2))])
        assert set(optimizer.state(0)) == {"exp_avg", "exp_avg_slow", "exp_avg_sq"}
