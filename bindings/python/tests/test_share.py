"""The man pages and completions are those of the parser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

SHARE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "share")


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="made by Python 3.11")
def test_up_to_date():
    pytest.importorskip("shtab")
    pytest.importorskip("argparse_manpage")
    make = [sys.executable, os.path.join(SHARE, "make"), "--check"]
    result = subprocess.run(make, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + "run bindings/python/share/make"


def test_bash_completes_verbs_and_options():
    bash = shutil.which("bash")
    if not bash:
        pytest.skip("no bash")
    script = """
        source "$1" || exit 3
        COMP_WORDS=(memopt %s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
        $(complete -p memopt | sed 's/.*-F \\([^ ]*\\).*/\\1/') memopt
        echo "${COMPREPLY[@]}"
    """
    source = os.path.join(SHARE, "bash-completion", "completions", "memopt")

    def reply(words):
        command = [bash, "-c", script % words, "bash", source]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert "plan" in reply("pl")
    assert {"--gpu-memory", "--optimizer"} <= set(reply("plan --"))
    assert reply("plan --attention ea") == ["eager"]


def test_zsh_completion_is_in_order():
    zsh = shutil.which("zsh")
    if not zsh:
        pytest.skip("no zsh")
    path = os.path.join(SHARE, "zsh", "site-functions", "_memopt")
    subprocess.run([zsh, "-n", path], check=True)


def test_pages_are_in_order():
    man = shutil.which("man")
    if not man:
        pytest.skip("no man")
    folder = os.path.join(SHARE, "man", "man1")
    for name in sorted(os.listdir(folder)):
        command = [man, "--warnings", "-l", os.path.join(folder, name)]
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert result.returncode == 0 and result.stderr == "", name
        assert "EXIT STATUS" in result.stdout
