"""The names that are written into configuration files exist in what reads them."""

from __future__ import annotations

import importlib

import pytest

from memopt.cli.apply.words import OPTIMIZERS


def test_the_names_of_transformers_are_its_own():
    training_args = pytest.importorskip("transformers.training_args")
    names = {name.value for name in training_args.OptimizerNames}
    for _, word, others in OPTIMIZERS.values():
        assert word is None or word in names
        old = {"adamw_hf"}  # of Transformers 4
        assert {other for other in others.split() if "." not in other} - old <= names


def test_the_classes_exist():
    for name, _, _ in OPTIMIZERS.values():
        module, _, what = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), what), type)
