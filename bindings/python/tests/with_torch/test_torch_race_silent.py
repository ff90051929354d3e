"""race() has nothing to say of programs whose streams are in order."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import multiprocessing
import os
import pathlib

import pytest

import race_programs as programs
from race_cases import find


def test_a_loader_with_a_prefetcher() -> None:
    assert not find(programs.loader)


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_with_scaler", "llama_with_lora", "vit"])
def test_a_model_of_transformers(name: str) -> None:
    pytest.importorskip("peft" if "lora" in name else "transformers")
    assert not find(getattr(programs, name))


@pytest.mark.parametrize("name", [*programs.FRAMEWORKS])
def test_a_framework(name: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip(name)
    if name == "trl" and importlib.util.find_spec("triton") and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("TRL's kernels of Triton need TRITON_INTERPRET=1")
    assert not find(programs.FRAMEWORKS[name], tmp_path)


def test_fsdp_on_two_processes(tmp_path: pathlib.Path) -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
        meeting = str(tmp_path / "meeting")
        assert [*pool.map(programs.fsdp, range(2), [meeting] * 2, timeout=300)] == [0, 0]
