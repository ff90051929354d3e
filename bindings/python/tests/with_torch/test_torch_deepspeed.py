"""An optimizer here in the place of DeepSpeedCPUAdam: ZeRO-Offload with 8-bit states on the host."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("deepspeed")

PROGRAM = """
import sys, torch
import deepspeed
import memopt.torch as mt

stage, directory = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
layers = torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
model = torch.nn.Sequential(*layers)
optimizer = mt.AdamW8bit(model.parameters(), lr=1e-3)
engine, _, _, _ = deepspeed.initialize(
    model=model,
    optimizer=optimizer,
    config={
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    },
)

def step(seed):
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed)).bfloat16()
    loss = (engine(x) - x.roll(1, 1)).float().square().mean()
    engine.backward(loss)
    engine.step()
    return loss.item()

losses = [step(seed % 2) for seed in range(40)]
assert losses[-1] < 0.5 * losses[0], losses
states = list(optimizer.state.values())
assert states and all(s["exp_avg"].dtype is torch.uint8 for s in states)
assert sum(s["exp_avg"].numel() for s in states) == 2 * 64 * 256 + 256 + 64
engine.save_checkpoint(directory, "one")
step(7)
after = [p.detach().clone() for p in engine.module.parameters()]
engine.load_checkpoint(directory, "one")
step(7)
assert all(map(torch.equal, after, engine.module.parameters()))
print("trained and resumed")
"""


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=pytest.mark.long)])
def test_zero_offload(stage, tmp_path):
    """With `zero_force_ds_cpu_optimizer: false`; a checkpoint resumes bit for bit."""
    alone = dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(stage), str(tmp_path)],
        env={**os.environ, **alone, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=300,
    )
    assert ended.returncode == 0 and "trained and resumed" in ended.stdout, ended.stdout[-3000:]
