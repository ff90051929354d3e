"""race() has nothing to say of programs whose streams are in order."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import pathlib

import pytest

import race_programs as programs
from race_cases import find


@pytest.mark.parametrize("name", ["gpt2", "llama_with_scaler"])
def test_a_program(name: str) -> None:
    assert not find(getattr(programs, name))


@pytest.mark.parametrize("name", [*programs.FRAMEWORKS])
def test_a_framework(name: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip(name)
    assert not find(programs.FRAMEWORKS[name], tmp_path)


def test_fsdp_on_two_processes(tmp_path: pathlib.Path) -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
        meeting = str(tmp_path / "meeting")
        assert [*pool.map(programs.fsdp, range(2), [meeting] * 2, timeout=300)] == [0, 0]
