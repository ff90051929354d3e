"""Tests of memopt.torch: each file of them is skipped, and counted, where torch is missing.

`device` is parametrised: a test that takes it runs on the CPU and, where torch sees a GPU, there.
"""

from __future__ import annotations

import pathlib
from typing import Any, Iterator, Optional

import pytest

try:
    import torch
except ImportError as error:
    torch = None
    missing = "torch cannot be imported (./setup --torch): %s" % error
else:
    torch.set_num_threads(1)  # small tensors: more threads only wait for each other


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not (torch and torch.cuda.is_available()), reason="torch sees no GPU")
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> "torch.device":
    """A torch device."""
    return torch.device(request.param)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A file, alone in its folder, with the text that training programs learn in tests."""
    import training_text

    path = tmp_path_factory.mktemp("text") / "text.md"
    path.write_bytes(training_text.make())
    return path


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random state."""
    if torch:
        torch.manual_seed(1234)


@pytest.fixture(params=["in place", "staged"])
def staged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether gradients and parameters of the CPU go through CPUOffloadOptimizer's buffers, as a device's do."""
    if request.param == "staged":
        import memopt.torch as mt
        from memopt.torch.optim import _masters

        monkeypatch.setattr(mt.CPUOffloadOptimizer, "_is_staged", staticmethod(lambda p: True))
        monkeypatch.setattr(_masters, "PIECE", 5000)
    return bool(request.param == "staged")


def _group(size: int, backend: str) -> Iterator[Any]:
    import distributed_support

    group = distributed_support.Group(size, backend)
    yield group
    group.close()


@pytest.fixture(
    scope="session",
    params=[
        "gloo",
        pytest.param(
            "nccl",
            marks=pytest.mark.skipif(
                not (torch and torch.cuda.device_count() > 1), reason="torch sees fewer than two GPUs for NCCL"
            ),
        ),
    ],
)
def two(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Two processes that are a process group."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch has no gloo")
    yield from _group(2, request.param)


@pytest.fixture(scope="module")
def four() -> Iterator[Any]:
    """Four processes on the CPU."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch has no gloo")
    yield from _group(4, "gloo")


@pytest.fixture(scope="session")
def one() -> Iterator[Any]:
    """A process that is a group of its own."""
    yield from _group(1, "gloo")


class FileWithoutTorch(pytest.Module):
    """Stands for a file of tests that cannot even be imported."""

    def collect(self) -> Iterator[pytest.Item]:
        yield Skipped.from_parent(self, name=self.path.stem)


class Skipped(pytest.Item):
    def runtest(self) -> None:
        pytest.skip(missing)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: pathlib.Path, parent: pytest.Collector) -> Optional[pytest.Module]:
    if torch:
        return None
    module: pytest.Module = FileWithoutTorch.from_parent(parent, path=module_path)
    return module
