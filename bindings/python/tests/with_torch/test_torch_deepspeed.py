"""An optimizer here in the place of DeepSpeedCPUAdam: ZeRO-Offload with 8-bit states on the host."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("deepspeed")


DROP_IN = """
import sys, torch
import deepspeed
import memopt.torch as mt
from memopt.torch.deepspeed import DeepSpeedCPUAdam, DeepSpeedCPUAdam8bit

stage, directory = int(sys.argv[1]), sys.argv[2]

def train(make, **further):
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
    model = torch.nn.Sequential(*layers)
    optimizer = make(model.parameters())
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": 4,
            "bf16": {"enabled": True},
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}},
            **further,
        },
    )

    def step(seed):
        x = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed)).bfloat16()
        loss = (engine(x) - x.roll(1, 1)).float().square().mean()
        engine.backward(loss)
        engine.step()
        return loss.item()

    losses = [step(seed % 2) for seed in range(40)]
    engine.save_checkpoint(directory, "one")
    step(7)
    after = [p.detach().clone() for p in engine.module.parameters()]
    engine.load_checkpoint(directory, "one")
    step(7)
    assert all(map(torch.equal, after, engine.module.parameters()))
    return losses, after, [(s["exp_avg"], s["exp_avg_sq"]) for s in optimizer.state.values()]

untested = dict(zero_force_ds_cpu_optimizer=False, zero_allow_untested_optimizer=True)
options = dict(lr=1e-3, weight_decay=0.1)
for number, (own, plain) in enumerate((
    (lambda ps: DeepSpeedCPUAdam(ps, **options), lambda ps: mt.AdamW(ps, **options)),
    (lambda ps: DeepSpeedCPUAdam8bit(ps, **options), lambda ps: mt.AdamW8bit(ps, **options)),
    (lambda ps: DeepSpeedCPUAdam(ps, adamw_mode=False, **options), lambda ps: mt.Adam(ps, **options)),
    (lambda ps: DeepSpeedCPUAdam(ps, fp32_optimizer_states=False, **options), lambda ps: mt.AdamW(ps, states="bf16", **options)),
)):
    a, b = train(own), train(plain, **untested)
    assert a[0] == b[0], (a[0], b[0])
    assert a[0][-1] < 0.5 * a[0][0], a[0]
    assert all(map(torch.equal, a[1], b[1]))
    assert a[2] and a[2][0][0].dtype is {0: torch.float32, 1: torch.uint8, 2: torch.float32, 3: torch.bfloat16}[number]
    assert all(torch.equal(x, y) and x.dtype is y.dtype for one, other in zip(a[2], b[2]) for x, y in zip(one, other))
print("the bits of the plain classes")
"""

CONSTRUCTOR = """
import inspect
import pytest, torch
from deepspeed.ops.adam import DeepSpeedCPUAdam as Theirs
from memopt.torch.deepspeed import DeepSpeedCPUAdam, DeepSpeedCPUAdam8bit
ours = inspect.signature(DeepSpeedCPUAdam.__init__).parameters
for name, parameter in inspect.signature(Theirs.__init__).parameters.items():
    assert ours[name].default == parameter.default, name
assert list(ours)[: len(inspect.signature(Theirs.__init__).parameters)] == list(inspect.signature(Theirs.__init__).parameters)
p = torch.nn.Parameter(torch.ones(300))
for make, values in (
    (DeepSpeedCPUAdam, dict(bias_correction=False)),
    (DeepSpeedCPUAdam, dict(adamw_mode=False, fp32_optimizer_states=False)),
):
    with pytest.raises(ValueError):
        make([p], **values)
with pytest.raises((ValueError, RuntimeError), match="(?i)amsgrad"):
    DeepSpeedCPUAdam([p], amsgrad=True)
optimizer = DeepSpeedCPUAdam8bit([p])
assert isinstance(optimizer, Theirs) and optimizer.param_groups[0]["bias_correction"]
p.grad = torch.ones(300)
assert optimizer.step(lambda: 3.0) == 3.0
with pytest.raises(NotImplementedError, match="SuperOffload"):
    optimizer.step_subgroup(0)
print("as DeepSpeed's")
"""


def in_an_engine(program, *arguments):
    alone = dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, **alone, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=300,
    )


@pytest.mark.parametrize("stage", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 3))])
def test_the_drop_in(stage, tmp_path):
    """Without entries in the configuration: losses, parameters and states of the plain classes."""
    ended = in_an_engine(DROP_IN, stage, tmp_path)
    assert ended.returncode == 0 and "the bits of the plain" in ended.stdout, ended.stdout[-3000:]


def test_the_drop_in_s_constructor():
    ended = in_an_engine(CONSTRUCTOR)
    assert ended.returncode == 0 and "as DeepSpeed's" in ended.stdout, ended.stdout[-3000:]
