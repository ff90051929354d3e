"""./setup --torch: what it asks of pip, with and without the CUDA toolkit, room and network.

Runs a copy of the script beside programs of its own: nothing is installed.
"""
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = {
    # pip writes its packages down, and fails for those that are not to be had.
    "python": """#!/bin/bash
case "$*" in
    "-m pip install"*)
        words=()
        for word; do
            case $word in -q | -m | pip | install | off | --[!n]* | [0-9]*) continue ;; esac
            words+=("$word")
        done
        echo "${words[*]}" >>"$LOG"
        for word in "${words[@]}"; do case " $MISSING " in *" $word "*) exit 1 ;; esac; done ;;
    "-c import torch") [ -z "$BROKEN" ] || ! grep -qe "--no-deps torch" "$LOG" ||
        grep -qe "^torch==" "$LOG" || exit 1 ;;
    "- "*) printf 'nvidia-nccl-cu13==1\\nnvidia-nvshmem-cu13==2\\n' ;;
esac
""",
    "ldconfig": '#!/bin/sh\nfor name in $LIBRARIES; do echo "$name => /cuda/$name"; done\n',
    "df": '#!/bin/sh\necho header\necho "disk 0 0 $((FREE * 1048576)) 0% /"\n',
    "sleep": '#!/bin/sh\necho "slept $1" >>"$LOG"\n',
    "dpkg-query": "#!/bin/sh\nprintf 'ii '\n",
    "cmake": "#!/bin/sh\necho cmake version 3.25.1\n",
    "du": "#!/bin/sh\necho 1G\n",
}
TOOLKIT = "libcublas.so.13 libcudnn.so.9"


@pytest.fixture
def setup(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.move(programs / "python", tmp_path / ".venv" / "bin" / "python")
    shutil.copy(ROOT / "setup", tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")

    def run(libraries="", free=100, missing="", broken=""):
        log = tmp_path / "log"
        log.write_text("")
        environment = dict(
            os.environ, PATH="%s:%s" % (programs, os.environ["PATH"]), LOG=str(log), FREE=str(free),
            LIBRARIES=libraries, MISSING=missing, BROKEN=broken,
        )  # fmt: skip
        done = subprocess.run(
            ["bash", str(tmp_path / "setup"), "--torch"],
            env=environment, text=True, capture_output=True,
        )  # fmt: skip
        return done.returncode, log.read_text().splitlines(), done.stdout + done.stderr

    return run


def asked(log, word):
    return [line for line in log if word in line]


def of_torch(log, word):
    """Without the line of the modules that come with and without torch: NVRTC is among them."""
    return [line for line in asked(log, word) if not line.startswith("pytest ")]


def test_with_the_toolkit_nothing_brings_cuda_along(setup):
    status, log, words = setup(TOOLKIT)
    assert status == 0, words
    assert asked(log, "torch==")[0].startswith("--no-deps torch==")
    assert of_torch(log, "nvidia") == [
        "--no-deps nvidia-nccl-cu13==1 nvidia-nvshmem-cu13==2 nvidia-cufile"
    ]
    for name in ("accelerate", "lightning", "bitsandbytes", "torchao"):
        assert all(line.startswith("--no-deps") for line in asked(log, name)), log
    assert not asked(log, "--no-deps transformers") and asked(log, "transformers==")


def test_without_it_pip_decides(setup):
    status, log, words = setup("libcublas.so.12")
    assert status == 0, words
    assert asked(log, "torch==")[0].startswith("torch==")
    assert not asked(log, "--no-deps") and not of_torch(log, "nvidia")


def test_a_toolkit_that_does_not_fit(setup):
    status, log, words = setup(TOOLKIT, broken="yes")
    assert status == 0 and "does not work with" in words
    torch = asked(log, "torch==")
    assert torch[0].startswith("--no-deps torch==") and torch[1].startswith("torch==")
    assert asked(log, "accelerate")[0].startswith("accelerate")


def test_both_versions_of_nvrtc_are_asked_for_where_they_exist(setup):
    wanted = {"": "==13.", "-cu12": "==12."}
    modules = asked(setup(TOOLKIT)[1], "pytest ")[0]
    for name, version in wanted.items():
        machines = "*; platform_machine in 'x86_64 aarch64'"
        assert "nvidia-cuda-nvrtc" + name + version + machines in modules


def test_the_second_time_asks_nothing(setup):
    assert setup(TOOLKIT)[0] == 0
    status, log, words = setup(TOOLKIT)
    assert (status, log, words) == (0, [], "")


@pytest.mark.parametrize("libraries, free", [(TOOLKIT, 3), ("", 9)])
def test_no_room(setup, libraries, free):
    status, log, words = setup(libraries, free)
    assert status == 1 and not asked(log, "torch")
    assert "GiB below .venv and its downloads; there are %d" % free in words


def test_no_network_for_torch(setup):
    status, log, words = setup(missing="torch==2.15.0")
    assert status == 1
    assert "torch cannot be installed here" in words and "once more in 10 s" in words
    assert [line for line in log if "slept" in line] == ["slept 10", "slept 20"]
    assert len(asked(log, "torch==")) == 3 and not asked(log, "transformers")


def test_a_friend_that_cannot_be_had_costs_only_itself(setup):
    status, log, words = setup(TOOLKIT, missing="torchao==0.18.0")
    assert status == 0
    assert "torchao==0.18.0 cannot be installed" in words
    assert "--no-deps bitsandbytes==0.50.2" in log and "--no-deps lightning==2.6.6" in log
    _, log, _ = setup(TOOLKIT)
    assert asked(log, "torchao"), "it is tried again the next time"
