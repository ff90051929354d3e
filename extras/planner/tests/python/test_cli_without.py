"""What the command says where a package that it could use is missing, or is there and broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import memopt
from cli_support import command, environment

SMALL = {
    "model_type": "gpt2", "vocab_size": 1000, "n_positions": 64, "n_embd": 32, "n_layer": 2,
    "n_head": 2,
}  # fmt: skip
ODD = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100}

#: The first word names packages that are not there.
PROGRAM = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from memopt.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "odd.json").write_text(json.dumps(ODD))
    (tmp_path / "notype.json").write_text("{}")
    (tmp_path / "trace.csv").write_text("Thread,Time,Action,Pointer,Size,Stream\n0,1,alloc,1,9,0\n")
    (tmp_path / "config.yaml").write_text("per_device_train_batch_size: 2\n")
    (tmp_path / "config.toml").write_text("per_device_train_batch_size = 2\n")
    return tmp_path


def without(folder, names, *words, **variables):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, names, *words],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
    )


def refusal(result, code=1):
    """What was said, on standard error alone."""
    assert result.returncode == code and "Traceback" not in result.stderr, result.stderr
    return result.stderr


def test_verbs_need_the_planner_s_library_only_to_plan(tmp_path):
    folder, file = os.path.split(memopt.library_path)
    for name in (file, file.replace("libmemopt", "libmemopt-tools")):
        os.symlink(os.path.join(os.path.abspath(folder), name), tmp_path / name)
    library = str(tmp_path / file)
    for words in (["--help"], ["info"], ["monitor", "--once", "--device", "cpu"]):
        result = command(*words, MEMOPT_LIBRARY=library)
        assert result.returncode == 0, result.stderr
    said = refusal(command("plan", "--params", "1M", MEMOPT_LIBRARY=library))
    assert said.startswith("memopt: libmemopt-plan cannot be loaded") and library in said


def test_profile_of_a_configuration_without_torch(folder):
    said = refusal(without(folder, "torch", "plan", "--model", "config.json", "--profile"))
    assert said.startswith("memopt: --profile needs PyTorch (")
    assert "pip install torch transformers" in said and "leave --profile out" in said
    assert "module:function" not in said
    words = ("plan", "--model", "config.json", "--profile", "--lora", "8")
    assert "knows no --lora" in refusal(without(folder, "torch", *words), 2)


def test_a_function_without_torch(folder):
    for extra in ((), ("--profile",)):
        said = refusal(without(folder, "torch", "plan", "--model", "net:make", *extra))
        assert said.startswith("memopt: --model module:function needs PyTorch (")
        assert "config.json" in said


def test_torch_that_lacks_a_library(folder):
    (folder / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object')")
    paths = environment()["PYTHONPATH"]
    words = ("plan", "--model", "net:make")
    said = refusal(without(folder, "none", *words, PYTHONPATH="%s:%s" % (folder, paths)))
    assert "needs PyTorch (libcudart.so.13" in said


@pytest.mark.parametrize("names", ["torch", "transformers", "torch,transformers"])
def test_a_model_that_only_transformers_knows(folder, names):
    for name in {"torch", "transformers"} - set(names.split(",")):
        if name != names:
            pytest.importorskip(name)
    said = refusal(without(folder, names, "plan", "--model", "odd.json"))
    assert 'unknown model_type "mamba"' in said and 'the "model_type" of a known one' in said
    assert "  pip install %s   Transformers' own class" % names.replace(",", " ") in said
    said = refusal(without(folder, names, "plan", "--model", "notype.json"))
    assert "pip install" not in said  # it would not help


@pytest.mark.parametrize(
    "broken, told",
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("raise RuntimeError('torch is too old')", "RuntimeError: torch is too old"),
    ],
)
def test_transformers_that_is_broken(folder, broken, told):
    pytest.importorskip("torch")
    (folder / "transformers.py").write_text(broken)
    paths = "%s:%s" % (folder, environment()["PYTHONPATH"])
    for words in (("odd.json",), ("config.json", "--profile")):
        said = refusal(without(folder, "none", "plan", "--model", *words, PYTHONPATH=paths))
        assert "which is installed but cannot be imported (%s)" % told in said
        assert "pip install transformers" not in said


@pytest.mark.parametrize(
    "name, said, words",
    [
        ("matplotlib", "memopt[plot]", ["plan", "--params", "366M", "--plot", "x.png"]),
        ("matplotlib", "memopt[plot]", ["replay", "trace.csv", "--plot", "x.png"]),
        ("matplotlib", "memopt[plot]", ["profile", "--plot", "x.png", "--", "touch", "ran"]),
        ("numpy", "numpy", ["profile", "--plot", "x.png", "--", "touch", "ran"]),
        ("ruamel", "ruamel.yaml: pip install 'memopt[apply]'", ["config.yaml"]),
        ("tomlkit", "tomlkit: pip install 'memopt[apply]'", ["config.toml"]),
    ],
)
def test_what_to_install(folder, name, said, words):
    if name == "numpy":
        pytest.importorskip("matplotlib")
    if len(words) == 1:
        words = ["plan", "--model", "config.json", "--batch", "1", "--apply", "--config-path", *words]
    assert said in refusal(without(folder, name, *words))
    assert not (folder / "ran").exists() and not (folder / "x.png").exists()


def test_what_needs_no_package(folder):
    names = "torch,transformers,numpy,rich,matplotlib,ruamel,tomlkit"
    for words in (
        ["info"],
        ["monitor", "--once"],
        ["replay", "trace.csv"],
        ["profile", "--no-gpu", "--", "true"],
        ["plan", "--model", "config.json"],
        ["plan", "--params", "366M", "--gpu-memory", "24"],
    ):
        result = without(folder, names, *words)
        assert result.returncode == 0, result.stderr
