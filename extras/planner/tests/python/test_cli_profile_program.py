"""`memopt profile` and its program: streams, signals, exit codes, and what cannot be run."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from cli_support import Terminal, command, environment, start, wait_for
from memopt.cli.profile import _Run, program
from profile_support import MIB, SEEN, profiled, python, seen

# --- the program is left alone --------------------------------------------------------------------


def test_streams_and_exit_code():
    text = """
import sys
print(sys.stdin.read().upper(), end="")
print("to stderr", file=sys.stderr)
sys.exit(42)
"""
    result = subprocess.run(
        [sys.executable, "-m", "memopt", "profile", *python(text)],
        env=environment(),
        input="hello\n",
        capture_output=True,
        text=True,
    )
    assert result.returncode == 42
    assert result.stdout == "HELLO\n"  # the report goes to standard error
    assert result.stderr.startswith("to stderr\nmemopt profile\n")
    assert "exit code 42" in result.stderr and "Peaks" in result.stderr


def test_its_environment_and_signals_are_its_own():
    text = """
import os, signal
print(sorted(set(os.environ) - {"LC_CTYPE"}))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    plain = subprocess.run(python(text), env=environment(), capture_output=True, text=True).stdout
    _, wrote, _ = profiled(*python(text))
    names, mask = wrote.splitlines()
    plain_names, plain_mask = plain.splitlines()
    assert mask == plain_mask == "set()"
    assert set(eval(names)) - set(eval(plain_names)) == {"MEMOPT_PROFILE"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_program_that_is_killed(number, tmp_path):
    path, text = tmp_path / "samples.csv", "import os; os.kill(os.getpid(), %d)" % number
    report, _, _ = profiled(
        *python(SEEN + "seen()\n" + text), options=["--output", str(path)], code=128 + number, SAMPLES=str(path)
    )
    assert report["signal"] == number and report["peaks"]["rss"]["bytes"] > MIB
    result = command("profile", "--", *python(text))
    assert result.returncode == 128 + number
    assert "killed by signal %d" % number in result.stderr


WAITING = """
import os, signal, sys, time
def told(number, frame):
    os.write(1, b"got %d\\n" % number)  # it may come while "ready" is being printed
    sys.exit(9)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, told)
print("ready", flush=True)
for _ in range(6000):  # in short parts: a signal just before a sleep is handled only after it
    time.sleep(0.01)
"""


STOPPED = """
import os, signal, sys
print(os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
print("on", flush=True)
sys.exit(6)
"""

OWN_WAY = """
import os, sys, tempfile, time
reading, writing = os.pipe()
if os.fork() == 0:
    middle = os.getpid()
    if os.fork() == 0:
        os.write(writing, b"%d" % os.getpid())
        while os.getppid() == middle:
            time.sleep(0.01)
        os._exit(9)  # an orphan's end is not the program's
    os._exit(0)
os.wait()
orphan = int(os.read(reading, 20))
while os.path.exists("/proc/%d" % orphan):  # until memopt has taken its end
    time.sleep(0.01)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        os.execvp("sleep", ["sleep", "0.5"])
    os._exit(0)
os.wait()
folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
os.closerange(0, 3)
os.execvp("sh", ["sh", "-c", "sleep 0.2; exit 8"])
"""


def state_of(pid):
    with open("/proc/%d/stat" % pid) as file:
        return file.read().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_program(number):
    process = start("profile", "--", *python(WAITING))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    wrote, errors = process.communicate(timeout=60)
    assert process.returncode == 9 and wrote == "got %d\n" % number, wrote + errors
    assert "exit code 9" in errors and "Traceback" not in errors


def test_a_program_that_is_stopped_and_goes_on():
    """It is sampled meanwhile, and its end is seen afterwards."""
    process = start("profile", "--", *python(STOPPED))
    pid = int(process.stdout.readline())
    wait_for(lambda: state_of(pid) == "T", "its standstill")
    assert process.poll() is None
    os.kill(pid, signal.SIGCONT)
    wrote, errors = process.communicate(timeout=60)
    assert process.returncode == 6 and wrote == "on\n" and "exit code 6" in errors


def test_a_program_that_goes_its_own_way():
    """Another session, another folder that is gone, no streams, another program in its place, and a
    daemon that it leaves behind."""
    result = command("profile", "--", *python(OWN_WAY))
    assert result.returncode == 8 and result.stdout == ""
    assert "exit code 8" in result.stderr and "Traceback" not in result.stderr


def test_ctrl_c_on_a_terminal_reaches_it_once():
    """From the terminal (si_code 0x80), and not from memopt as well."""
    text = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("ready", flush=True)
codes = [signal.sigwaitinfo([signal.SIGINT]).si_code]
more = signal.sigtimedwait([signal.SIGINT], 1)
print("codes", codes + [more.si_code] if more else codes, flush=True)
sys.exit(5)
"""
    terminal = Terminal("profile", "--", *python(text), size=(40, 100))
    terminal.until(lambda lines: "ready" in lines, "the program")
    terminal.child.sendintr()
    code, _ = terminal.end()
    shown = terminal.text.decode()
    assert code == 5 and "codes [128]" in shown and "Peaks" in shown


def test_where_ends_of_children_are_ignored():
    """It is so for the program as well, and yet its end is seen."""
    ignoring = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "memopt", "profile", "--", *sys.argv[1:]])
"""
    text = "import signal, sys; sys.exit(7 * (signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN))"
    result = subprocess.run(python(ignoring) + python(text), env=environment(), capture_output=True, timeout=300)
    assert result.returncode == 7


def test_the_command_on_one_line():
    result = command("profile", "--", "sh", "-c", "true\n\x1b[31m", "it's")
    line = next(line for line in result.stderr.splitlines() if " command " in line)
    assert line == "  command  sh -c 'true  [31m' 'it'\"'\"'s'"


def test_a_program_that_has_just_ended_has_no_memory_to_tell(tmp_path):
    report, rows = seen(tmp_path, "pass")
    assert all(int(row["rss"]) > 0 and int(row["processes"]) > 0 for row in rows)
    figures = {"processes": 0, "rss": 0, "time": 0.0}
    added = []

    class Ended:
        pid, turns = 1, iter([False, True])

        def wait(self, _until):
            return next(self.turns)

    run = _Run.__new__(_Run)
    run._figures = type("F", (), {"take": staticmethod(lambda pid: figures), "hidden": None})()
    run._arguments = type("A", (), {"interval": 0.1})()
    run._add = lambda record, recorder, marks: added.append(record)
    recorder, marks = (type("R", (), {"mark": lambda self, m: None})(), type("M", (), {"read": lambda self: []})())
    run._sample(Ended(), recorder, marks)
    assert added == []


# --- what cannot be run ---------------------------------------------------------------------------


def test_commands_that_are_not_there(tmp_path):
    result = command("profile", "--", "no-such-program-here", "x")
    assert result.returncode == 127 and result.stdout == ""
    assert result.stderr == ("memopt: no-such-program-here: the program was not found in any folder of PATH\n")
    denied = PermissionError(errno.EACCES, "Permission denied")  # a folder of PATH that is closed
    assert program._cannot_start("no-such-program-here", denied).code == 127
    assert program._cannot_start("sh", denied).code == 126
    result = command("profile", "/nowhere/program")
    assert result.returncode == 127
    assert "/nowhere/program: the program was not found" in result.stderr
    result = command("profile", "--", "")
    assert result.returncode == 127
    assert result.stderr == "memopt: '': the program was not found in any folder of PATH\n"
    file = tmp_path / "file"
    file.write_text("#!/nowhere/interpreter\n")
    result = command("profile", file)
    assert result.returncode == 126 and "Permission denied" in result.stderr
    file.chmod(0o755)
    result = command("profile", file)
    assert result.returncode == 127 and "interpreter" in result.stderr


@pytest.mark.parametrize("stream, option", [("stdout", "--json"), ("stderr", "--no-gpu")])
def test_a_report_that_nobody_takes(stream, option):
    """What the program returned counts, unless all is well but the report."""
    for code, expected, length in ((3, 3, 1), (0, 1, 20000)):
        with open("/dev/full", "w") as full:
            result = subprocess.run(
                [sys.executable, "-m", "memopt", "profile", option, "--", "sh", "-c"]
                + ["exit %d" % code, "x" * length],
                env=environment(),
                **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full},
                text=True,
            )
        assert result.returncode == expected
        other = result.stderr if stream == "stdout" else result.stdout
        assert "Traceback" not in other


@pytest.mark.parametrize("words", [(), ("--",), ("--interval", "0", "--", "true"), ("--nonsense", "--", "true")])
def test_usage(words):
    """Nothing is run."""
    result = command("profile", *words)
    assert result.returncode == 2 and "usage: memopt " in result.stderr and result.stdout == ""


def test_options_of_the_program_are_its_own():
    result = command("profile", "--", "echo", "--json", "--", "-h")
    assert result.returncode == 0 and result.stdout == "--json -- -h\n"
