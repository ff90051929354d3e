"""Tests of memopt.torch: skipped (and counted) where torch is missing.

`device` is parametrised: each test that takes it runs on the CPU and, where torch sees a GPU, there.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

torch.set_num_threads(1)  # small tensors: more threads only wait for each other


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> "torch.device":
    """A torch device."""
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random state."""
    torch.manual_seed(1234)
