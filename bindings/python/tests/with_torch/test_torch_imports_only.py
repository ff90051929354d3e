"""A script that uses torch's AdamW, save_on_cpu, checkpoint and GradScaler needs only its imports
changed: examples/python/plain_training.py, and plain_ddp_training.py with checkpoint_sequential,
clipping and schedulers in two processes, are run as they are, and with their import lines rewritten.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import types

import pytest
import torch

import memopt
import memopt.torch  # noqa: F401
from distributed_support import TORCHRUN

pytestmark = pytest.mark.long

ROOT = pathlib.Path(__file__).resolve().parents[4]
SCRIPT = ROOT / "examples" / "python" / "plain_training.py"
SCRIPT_DDP = SCRIPT.with_name("plain_ddp_training.py")
STEPS = 20

#: Each import of the script, what takes its place, and how far a loss may then be from plain's.
#: Recomputing, offloading and scaling by powers of two change no bit.
REPLACEMENTS = {
    "GradScaler": ("torch.amp", "GradScaler", 0.0),
    "save_on_cpu": ("torch.autograd.graph", "save_on_cpu", 0.0),
    "checkpoint": ("torch.utils.checkpoint", "checkpoint", 0.0),
    "AdamW": ("torch.optim", "AdamW", 0.005),
    "AdamW8bit": ("torch.optim", "AdamW8bit as AdamW", 0.01),
}
REPLACEMENTS_DDP = {
    "GradScaler": ("torch.amp", "GradScaler", 0.0),
    "save_on_cpu": ("torch.autograd.graph", "save_on_cpu", 0.0),
    "clip_grad_norm_": ("torch.nn.utils", "clip_grad_norm_", 0.002),  # a norm rounded otherwise
    "checkpoint_sequential": ("torch.utils.checkpoint", "checkpoint_sequential", 0.0),
    "AdamW": ("torch.optim", "AdamW", 0.005),
    "AdamW8bit": ("torch.optim", "AdamW8bit as AdamW", 0.01),
}


def rewritten(source, names, replacements=REPLACEMENTS):
    """The script with the imports of these names changed, and not a character elsewhere."""
    for name in names:
        module, new, _ = replacements[name]
        old = "\nfrom %s import %s\n" % (module, new.split(" as ")[-1])
        assert source.count(old) == 1, "the script imports %s in one line" % name
        source = source.replace(old, "\nfrom memopt.torch import %s\n" % new)
    return source


def module_of(source):
    """The script as a module, which finds what lies beside it."""
    if str(SCRIPT.parent) not in sys.path:
        sys.path.insert(0, str(SCRIPT.parent))
    script = types.ModuleType("script")
    script.__file__ = str(SCRIPT)
    exec(compile(source, "script", "exec"), script.__dict__)
    return script


def losses_of(source, device, text, steps=STEPS):
    """Trains as the script does, in this process."""
    script = module_of(source)
    torch.manual_seed(1)
    model = script.GPT().to(device)
    return torch.tensor(list(script.train(model, text, device, steps)))


@pytest.fixture(scope="module")
def source():
    if not SCRIPT.exists():
        pytest.skip("the examples are not beside this package")
    return SCRIPT.read_text()


@pytest.fixture(scope="module")
def text(text_file):
    """The same for every run."""
    return text_file.read_bytes()


@pytest.fixture(scope="module")
def plain(source, text):
    """The losses of the script as it is, by device."""
    found = {}

    def run(device):
        if device not in found:
            found[device] = losses_of(source, device, text)
        return found[device]

    return run


def losses_printed(command, device, text_file, **environment):
    """What a command that runs a script prints."""
    paths = [os.path.dirname(os.path.dirname(memopt.__file__)), str(SCRIPT.parent)]
    environment.update(MEMOPT_LIBRARY=memopt.library_path, PYTHONPATH=os.pathsep.join(paths))
    options = ["--device", device.type, "--steps", STEPS, "--text", text_file.parent]
    result = subprocess.run(
        [str(part) for part in [*command, *options]],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert result.returncode == 0, result.stderr
    return torch.tensor([float(line.split()[-1]) for line in result.stdout.splitlines()])


def compare(plain, ours, tolerance):
    assert plain[-1] < plain[0] - 1, "it learns"
    assert torch.isfinite(ours).all()
    difference = float((ours - plain).abs().max())
    print("largest difference of a loss: %.3g, at most %.3g" % (difference, tolerance))
    assert difference <= tolerance


def assert_only_imports_differ(source, changed, count):
    old, new = source.splitlines(), changed.splitlines()
    assert len(old) == len(new)
    pairs = [(a, b) for a, b in zip(old, new) if a != b]
    assert len(pairs) == count
    assert all(a.startswith("from torch") and b.startswith("from memopt") for a, b in pairs)


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_one_import_changed(name, source, text, plain, device):
    tolerance = REPLACEMENTS[name][2]
    if device.type == "cuda":  # kernels of torch's own are not all reproducible there
        tolerance = max(tolerance, 0.02)
    compare(plain(device), losses_of(rewritten(source, [name]), device, text), tolerance)


@pytest.mark.parametrize("optimizer", ["AdamW", "AdamW8bit"])
def test_only_the_imports_changed(optimizer, source, plain, device, tmp_path, text_file):
    """The whole script, in a process of its own, with all four imports changed."""
    names = ["GradScaler", "save_on_cpu", "checkpoint", optimizer]
    script = tmp_path / "changed.py"
    script.write_text(rewritten(source, names))
    assert_only_imports_differ(source, script.read_text(), 4)
    ours = losses_printed([sys.executable, script], device, text_file)
    tolerance = REPLACEMENTS[optimizer][2] if device.type == "cpu" else 0.02
    compare(plain(device), ours, tolerance)


def test_another_step_would_be_seen(source, text, plain):
    """The comparison notices an optimizer that steps half as far again."""
    broken = source.replace("lr=2e-3", "lr=3e-3")
    assert broken != source
    ours = losses_of(broken, torch.device("cpu"), text)
    with pytest.raises(AssertionError, match="<= 0.05"):
        compare(plain(torch.device("cpu")), ours, 0.05)


# --- two processes --------------------------------------------------------------------------------


def _train_ddp(rank, source, text, backend, steps):
    """Trains as the script does, in a process of a group."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    return list(module_of(source).train(text, device, steps))


def losses_of_two(two, source, text):
    first, second = two.run(_train_ddp, source, text, two.backend, STEPS)
    assert first == second
    return torch.tensor(first)


@pytest.fixture(scope="module")
def source_ddp():
    if not SCRIPT_DDP.exists():
        pytest.skip("the examples are not beside this package")
    return SCRIPT_DDP.read_text()


@pytest.fixture(scope="module")
def plain_ddp(two, source_ddp, text):
    return losses_of_two(two, source_ddp, text)


@pytest.mark.parametrize("name", REPLACEMENTS_DDP)
def test_one_import_changed_in_two_processes(name, two, source_ddp, plain_ddp, text):
    tolerance = REPLACEMENTS_DDP[name][2] if two.backend == "gloo" else 0.02
    changed = rewritten(source_ddp, [name], REPLACEMENTS_DDP)
    assert_only_imports_differ(source_ddp, changed, 1)
    compare(plain_ddp, losses_of_two(two, changed, text), tolerance)


def test_only_the_imports_changed_under_torchrun(two, source_ddp, plain_ddp, tmp_path, text_file):
    """The whole script as a user starts it, with all five imports changed."""
    names = [name for name in REPLACEMENTS_DDP if name != "AdamW"]
    script = tmp_path / "changed.py"
    script.write_text(rewritten(source_ddp, names, REPLACEMENTS_DDP))
    assert_only_imports_differ(source_ddp, script.read_text(), 5)
    device = torch.device("cuda" if two.backend == "nccl" else "cpu")
    compare(plain_ddp, losses_printed([*TORCHRUN, script], device, text_file), 0.02)
