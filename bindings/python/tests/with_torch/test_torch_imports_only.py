"""A script that uses torch's AdamW, save_on_cpu, checkpoint and GradScaler needs only its imports
changed: examples/python/plain_training.py is run as it is, and with its import lines rewritten."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")
import memopt  # noqa: E402
import memopt.torch  # noqa: E402, F401

ROOT = pathlib.Path(__file__).resolve().parents[4]
SCRIPT = ROOT / "examples" / "python" / "plain_training.py"
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


def rewritten(source, names):
    """The script with the imports of these names changed, and not a character elsewhere."""
    for name in names:
        module, new, _ = REPLACEMENTS[name]
        old = "\nfrom %s import %s\n" % (module, new.split(" as ")[-1])
        assert source.count(old) == 1, "the script imports %s in one line" % name
        source = source.replace(old, "\nfrom memopt.torch import %s\n" % new)
    return source


def losses_of(source, device, text, steps=STEPS):
    """Trains as the script does, in this process."""
    script = types.ModuleType("script")
    script.__file__ = str(SCRIPT)
    exec(compile(source, "script", "exec"), script.__dict__)
    torch.manual_seed(1)
    model = script.GPT().to(device)
    return torch.tensor(list(script.train(model, text, device, steps)))


@pytest.fixture(scope="module")
def source():
    if not SCRIPT.exists():
        pytest.skip("the examples are not beside this package")
    return SCRIPT.read_text()


@pytest.fixture(scope="module")
def text():
    """The same documents for every run."""
    return b"\n".join(path.read_bytes() for path in sorted((ROOT / "docs").rglob("*.md")))


@pytest.fixture(scope="module")
def plain(source, text):
    """The losses of the script as it is, by device."""
    found = {}

    def run(device):
        if device not in found:
            found[device] = losses_of(source, device, text)
        return found[device]

    return run


def compare(plain, ours, tolerance):
    assert plain[-1] < plain[0] - 1, "it learns"
    assert torch.isfinite(ours).all()
    difference = float((ours - plain).abs().max())
    print("largest difference of a loss: %.3g, at most %.3g" % (difference, tolerance))
    assert difference <= tolerance


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_one_import_changed(name, source, text, plain, device):
    tolerance = REPLACEMENTS[name][2]
    if device.type == "cuda":  # kernels of torch's own are not all reproducible there
        tolerance = max(tolerance, 0.02)
    compare(plain(device), losses_of(rewritten(source, [name]), device, text), tolerance)


@pytest.mark.parametrize("optimizer", ["AdamW", "AdamW8bit"])
def test_only_the_imports_changed(optimizer, source, plain, device, tmp_path):
    """The whole script, in a process of its own, with all four imports changed."""
    names = ["GradScaler", "save_on_cpu", "checkpoint", optimizer]
    script = tmp_path / "changed.py"
    script.write_text(rewritten(source, names))
    changed = [
        (old, new)
        for old, new in zip(source.splitlines(), script.read_text().splitlines())
        if old != new
    ]
    assert len(changed) == 4 and all(old.startswith("from torch") for old, _ in changed)
    package = os.path.dirname(os.path.dirname(memopt.__file__))
    result = subprocess.run(
        [sys.executable, script, "--device", str(device), "--steps", str(STEPS), "--text",
         ROOT / "docs"],
        env=dict(
            os.environ, PYTHONPATH=package, MEMOPT_LIBRARY=memopt.library_path, OMP_NUM_THREADS="1"
        ),
        capture_output=True,
        text=True,
        timeout=170,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    ours = torch.tensor([float(line.split()[-1]) for line in result.stdout.splitlines()])
    tolerance = REPLACEMENTS[optimizer][2] if device.type == "cpu" else 0.02
    compare(plain(device), ours, tolerance)


def test_another_step_would_be_seen(source, text, plain):
    """The comparison notices an optimizer that steps half as far again."""
    broken = source.replace("lr=2e-3", "lr=3e-3")
    assert broken != source
    ours = losses_of(broken, torch.device("cpu"), text)
    with pytest.raises(AssertionError, match="<= 0.05"):
        compare(plain(torch.device("cpu")), ours, 0.05)
