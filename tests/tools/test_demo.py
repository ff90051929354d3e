"""./demo, with everything it starts in the place of the real thing."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def said(place, *devices):
    """What a copy of ./demo prints on a machine with these files in /dev."""
    text = (ROOT / "demo").read_text()
    assert text.count("devices=/dev ") == 1
    (place / "dev").mkdir()
    for name in devices:
        (place / "dev" / name).touch()
    programs = {
        "demo": text.replace("devices=/dev ", "devices=dev "),
        "setup": "#!/bin/sh\n",
        "tools/progress": "#!/bin/sh\n",
        "build/demo/examples/c/train_gpt/train_gpt": '#!/bin/sh\necho "trained $*"\n',
    }
    for name, source in programs.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(source)
        (place / name).chmod(0o755)
    run = subprocess.run(
        [place / "demo", "--steps", "3"], capture_output=True, text=True, check=True
    )
    return run.stdout.splitlines()


@pytest.mark.parametrize("device, torch", [("nvidiactl", "./setup --torch &&"), ("kfd", "ROCm")])
def test_a_gpu_gets_one_line_before_the_demo(tmp_path, device, torch):
    line, trained = said(tmp_path, device)
    assert trained == "trained --demo --steps 3"
    assert torch in line and line.endswith("examples/python/train_gpt.py --device cuda")
    words = line.split()
    assert (ROOT / words[-3]).is_file() and (ROOT / "bindings/python/memopt/torch").is_dir()


def test_no_gpu_no_line(tmp_path):
    assert said(tmp_path) == ["trained --demo --steps 3"]
