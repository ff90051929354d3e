"""The command as a program: any locale, streams that are closed or full, names of files that are no
text, Ctrl-C before it has started, a library that cannot be loaded, wrong options."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from cli_support import environment
from memopt.cli import standard_streams
from memopt.cli.output import json_text

#: What pip makes of the project's entry point.
PROGRAM = "import sys; from memopt_command import main; sys.exit(main())"
MODEL = ["--params", "366M", "--batch", "2"]
CARD = [*MODEL, "--gpu-memory", "2"]
ODD = os.fsdecode(b"caf\xe9")  # Latin 1 on a file system that asks nothing


def program(*words, **variables):
    """The installed program, its output in bytes."""
    redirect = variables.pop("redirect", None)
    command = [sys.executable, "-c", PROGRAM, *map(os.fsencode, map(str, words))]
    if redirect:
        command = ["sh", "-c", '"$@" ' + redirect, "sh", *command]
    return subprocess.run(command, env=environment(**variables), capture_output=True, timeout=300, check=False)


# --- locales and names ----------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-8"])
def test_any_encoding(encoding):
    result = program("plan", *CARD, "--details", PYTHONIOENCODING=encoding)
    assert result.returncode == 0 and result.stderr == b""
    text = result.stdout.decode(encoding)
    changes = [line for line in text.splitlines() if "--optimizer adamw8bit" in line]
    assert changes and ("→" in text) == (encoding == "utf-8")
    if encoding == "ascii":
        assert "adamw -> adamw8bit" in changes[0] and "#" in text and " x " in text
    # what stands for a character is as wide as its column
    rows = text[text.index("Changes") :].splitlines()[1:6]
    assert len({row.find(" --") for row in rows[2:]}) == 1


def test_the_posix_locale():
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (["plan", "--help"], ["plan", *CARD], ["replay", "--help"], ["monitor", "--once"]):
        result = program(*words, **variables)
        assert result.returncode == 0 and b"Traceback" not in result.stderr, words


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_json_is_valid_in_any_encoding(encoding, tmp_path):
    result = program("plan", *CARD, "--json", PYTHONIOENCODING=encoding)
    assert "→" in json.loads(result.stdout.decode(encoding))["cards"][0]["changes"][0]["change"]
    result = program("profile", "--json", "--", "true", ODD, PYTHONIOENCODING=encoding)
    assert json.loads(result.stdout.decode(encoding))["command"] == ["true", ODD]
    report = tmp_path / "report.json"
    result = program("profile", "--output", report, "--", "true", ODD)
    assert result.returncode == 0
    assert json.loads(report.read_bytes().decode("utf-8"))["command"] == ["true", ODD]


def test_names_that_are_no_text():
    for words in (["replay", ODD], ["plan", "--model", ODD], ["plan", "--apply", "--config-path", ODD]):
        result = program(*words, PYTHONIOENCODING="utf-8:strict")
        assert result.returncode == 1 and result.stderr.startswith(b"memopt: caf\xe9"), result.stderr
        assert result.stderr.count(b"\n") == 1


def test_what_stands_for_a_character():
    assert standard_streams.nearest("a → b × c … µ°", "ascii") == "a -> b x c ... u"
    assert standard_streams.nearest("日本 → é", "latin-1") == "?? -> é"
    assert standard_streams.nearest(ODD, "ascii") == ODD
    assert standard_streams.nearest("→", None) == "→"
    assert json.loads(json_text({"a": "→"}, "ascii")) == {"a": "→"}
    assert json_text("→") == '"→"' and json_text("→", "ascii") == '"\\u2192"'
    with pytest.raises(ValueError):
        json_text(float("nan"))


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, unbuffered",
    [(["--help"], ""), (["plan", "--help"], "1"), (["info"], "1"), (["plan", *MODEL, "--json"], "")],
)
def test_a_full_disk(words, unbuffered):
    result = program(*words, redirect="> /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert result.returncode == 1
    assert result.stderr == b"memopt: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("words, unbuffered", [(["--help"], ""), (["plan", *MODEL], "1")])
def test_nobody_reads(words, unbuffered):
    script = 'exec 3>&1; { "$@" 2>&3; echo "code $?" >&3; } | true'
    command = ["sh", "-c", script, "sh", sys.executable, "-c", PROGRAM, *words]
    result = subprocess.run(command, env=environment(PYTHONUNBUFFERED=unbuffered), capture_output=True, timeout=300)
    assert result.stdout == b"code 1\n" or result.stdout == b"code 0\n"  # it may all be in the pipe
    assert result.stderr == b""


@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("words", [["info"], ["profile", "--", "sh", "-c", "exit 3"]])
def test_closed_streams(words, redirect):
    result = program(*words, redirect=redirect)
    assert result.returncode == (3 if words[0] == "profile" else 0)
    assert b"Traceback" not in result.stderr


def test_a_closed_stream_is_taken_by_no_file(tmp_path):
    """Else the samples would go where the library writes its log, or the other way round."""
    log = tmp_path / "log.csv"
    result = program("monitor", "--once", "--device", "cpu", "--log", log, redirect=">&- 2>&-")
    assert result.returncode == 0
    assert log.read_text().splitlines()[0].startswith("time,device,pid")
    seen = program("profile", "--", "sh", "-c", "echo here >&2; echo out; exit 5", redirect=">&-")
    assert seen.returncode == 5 and b"here" in seen.stderr


def test_errors_of_the_system_name_the_file():
    error = OSError(errno.ENOENT, "No such file or directory", "x.csv")
    assert standard_streams.said(error) == "x.csv: No such file or directory"
    error = OSError(errno.EXDEV, "Cross-device link", "a", None, "b")
    assert standard_streams.said(error) == "a and b: Cross-device link"
    assert standard_streams.said(OSError(errno.ENOSPC, "No space left on device")) == (
        "standard output cannot be written: No space left on device"
    )
    assert standard_streams.said(OSError("odd")) == "odd"
    assert standard_streams.said(OSError()) == "OSError"
    result = program("replay", "/nowhere/x.csv")
    assert result.stderr == b"memopt: /nowhere/x.csv: No such file or directory\n"


# --- before it has started ------------------------------------------------------------------------


def test_a_library_that_cannot_be_loaded():
    result = program("info", MEMOPT_LIBRARY="/nowhere/libmemopt.so")
    assert result.returncode == 1 and result.stdout == b""
    assert result.stderr.startswith(b"memopt: the library libmemopt cannot be loaded. Tried:\n")
    assert b"/nowhere/libmemopt.so" in result.stderr and b"Traceback" not in result.stderr


SLOW = """
import signal, sys, time
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "memopt.%s":
            print("now", flush=True)
            for _ in range(6000):  # a signal just before a sleep is handled only after it
                time.sleep(0.01)
sys.meta_path.insert(0, Finder())
from memopt_command import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["errors", "cli.info"])  # the package, the verb
def test_ctrl_c_while_it_is_imported(module):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW % module, "info"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout.readline() == b"now\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130) and rest == b"" and errors == b""


def test_ctrl_c_is_as_before_while_it_runs():
    text = """
import signal, memopt.cli, memopt_command
def run(*_): print(signal.getsignal(signal.SIGINT) is signal.default_int_handler); return 7
memopt.cli.main = run
print(memopt_command.main(), signal.getsignal(signal.SIGINT) is signal.SIG_DFL)
memopt.cli.main = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(memopt_command.main(), signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
"""
    result = subprocess.run(
        [sys.executable, "-c", text],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert result.stdout.splitlines() == ["True", "7 True", "130 True"]


# --- wrong options --------------------------------------------------------------------------------


def test_wrong_options_are_told_in_three_lines():
    result = program("plan", "--parms", "3M")
    assert result.returncode == 2 and result.stdout == b""
    assert result.stderr.decode().splitlines() == [
        "usage: memopt plan [options]",
        "memopt plan: error: unrecognized arguments: --parms 3M; did you mean --params?",
        "`memopt plan --help` lists the options",
    ]
    result = program("replay")
    assert result.stderr.decode().splitlines()[0] == "usage: memopt replay [options] TRACE"
    result = program("profile", "--interval", "0", "--", "true")
    first = result.stderr.decode().splitlines()[0]
    assert first == "usage: memopt profile [options] -- COMMAND [ARGUMENT ...]"
    result = program("info", "--xyz")
    assert b"; is" not in result.stderr
    assert program().returncode == 2 and program("--nonsense").returncode == 2
