"""The man pages and completions are those of the parser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

import memopt

MAKE = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 4, "bindings", "python", "share", "make")


@pytest.fixture(scope="module")
def share(tmp_path_factory):
    """What pip's build makes."""
    pytest.importorskip("shtab")
    pytest.importorskip("argparse_manpage")
    folder = tmp_path_factory.mktemp("share")
    environment = dict(os.environ, MEMOPT_LIBRARY=memopt.library_path)
    subprocess.run([sys.executable, MAKE, str(folder)], check=True, env=environment)
    return str(folder)


def test_bash_completes_verbs_and_options(share):
    bash = shutil.which("bash")
    if not bash:
        pytest.skip("no bash")
    script = """
        source "$1" || exit 3
        COMP_WORDS=(memopt %s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
        $(complete -p memopt | sed 's/.*-F \\([^ ]*\\).*/\\1/') memopt
        echo "${COMPREPLY[@]}"
    """
    source = os.path.join(share, "bash-completion", "completions", "memopt")

    def reply(words):
        command = [bash, "-c", script % words, "bash", source]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert "plan" in reply("pl")
    assert {"--gpu-memory", "--optimizer"} <= set(reply("plan --"))
    assert reply("plan --attention ea") == ["eager"]


def test_zsh_completion_is_in_order(share):
    zsh = shutil.which("zsh")
    if not zsh:
        pytest.skip("no zsh")
    path = os.path.join(share, "zsh", "site-functions", "_memopt")
    subprocess.run([zsh, "-n", path], check=True)


def test_fish_completes(share):
    fish = shutil.which("fish")
    if not fish:
        pytest.skip("no fish")
    path = os.path.join(share, "fish", "vendor_completions.d", "memopt.fish")

    def reply(words):
        command = [fish, "--no-config", "-c", "source $argv[1]; complete -C $argv[2]", path, words]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return dict((line + "\t").split("\t")[:2] for line in shown.splitlines())

    assert reply("memopt pl")["plan"].startswith("what a model needs")
    assert {"--gpu", "--gpu-memory"} == set(reply("memopt plan --gpu"))
    assert {"eager", "sdpa", "flash"} == set(reply("memopt plan --attention "))
    assert "adamw8bit" in reply("memopt plan --optimizer adamw8")


def test_words_and_files_are_completed(share):
    text = open(os.path.join(share, "bash-completion", "completions", "memopt")).read()
    for name in ("replay_pos_0", "plan___config_path", "plan___model", "monitor___log"):
        assert re.search(r"%s_COMPGEN=_shtab_compgen_files" % name, text), name
    for words in ("adamw adamw-foreach", "fp32 fp16 bf16"):
        assert words in re.sub("[\"']+", "", text.replace("' '", " ")), words


def test_pages_say_what_they_are_about(share):
    """The command's own page names the verbs and repeats none; exit codes are each verb's own."""
    pages = {}
    for name in os.listdir(os.path.join(share, "man", "man1")):
        with open(os.path.join(share, "man", "man1", name), encoding="utf-8") as file:
            pages[name] = file.read()
    assert len(pages) == 7 and "gpu\\-memory" not in pages["memopt.1"]
    assert "live memory of devices" in pages["memopt.1"]  # what the verb is for
    assert "127: there is no such program" in pages["memopt-profile.1"]
    assert "143 after SIGTERM" in pages["memopt-monitor.1"]
    assert all(".SH EXIT STATUS" in page for page in pages.values())


def test_mandoc_finds_nothing(share):
    mandoc = shutil.which("mandoc")
    if not mandoc:
        pytest.skip("no mandoc")
    folder = os.path.join(share, "man", "man1")
    pages = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    result = subprocess.run([mandoc, "-Tlint", "-Wwarning", *pages], capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout + result.stderr == ""
