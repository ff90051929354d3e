"""`memopt monitor`: signals, keys, readers and terminals that go away, Ctrl-Z and back."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

import pytest

from cli_support import Terminal, environment, start, wait_for
from json_schema import validate
from memopt.cli.monitor.signals import Stopped, StopSignals
from memopt.cli.monitor.live import Keyboard, LiveView
from monitor_support import MONITORS, SCHEMA, simulated


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_signals_end_it_with_a_summary(number, code):
    process = start("monitor", "--interval", "0.05", "--device", "cpu", "--processes", "1")
    for _ in range(4):
        process.stdout.readline()
    process.send_signal(number)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == code and errors == ""
    assert "samples in" in rest


def test_json_lines_end_with_a_whole_line():
    process = start("monitor", "--json", "--interval", "0.01", "--device", "cpu")
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors == ""
    for line in [first] + rest.splitlines():
        validate(json.loads(line), SCHEMA)


def test_a_reader_that_goes_away():
    process = start("monitor", "--interval", "0.01", "--device", "cpu")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 1 and process.stderr.read() == ""
    process.stderr.close()


def test_keys_signals_and_the_terminal_afterwards():
    for how in ("x then q", "Ctrl-C", "SIGTERM", "SIGHUP"):
        terminal = Terminal("monitor", "--interval", "0.05", "--device", "cpu")
        terminal.until(lambda lines: "cpu:0" in lines[3], "the device")
        if how == "x then q":
            terminal.child.send("x")
            terminal.until(lambda lines: "cpu:0" in lines[3], "the device, whatever key that was")
            terminal.child.send("q")
        elif how == "Ctrl-C":
            terminal.child.sendintr()
        else:
            terminal.child.kill(getattr(signal, how))
        code, after = terminal.end()
        assert code == {"SIGTERM": 143, "SIGHUP": 129}.get(how, 0), how
        assert ("samples in" in after or how == "SIGHUP") and "Traceback" not in after
        assert b"\x1b[?25h" in terminal.text
        assert terminal.text.count(b"\x1b[?1049h") == terminal.text.count(b"\x1b[?1049l") == 1


def test_the_terminal_goes_away():
    terminal = Terminal("monitor", "--interval", "0.05", "--device", "cpu")
    terminal.until(lambda lines: "cpu:0" in lines[3], "the device")
    os.close(terminal.child.child_fd)
    status = wait_for(lambda: os.waitpid(terminal.child.pid, os.WNOHANG)[1], "its end")
    assert os.waitstatus_to_exitcode(status) == 129


def test_a_keyboard_that_has_ended_says_that_it_is_enough():
    """Else the view would look at it again and again, without a pause."""
    reading, writing = os.pipe()
    keyboard = Keyboard()
    keyboard._descriptor, keyboard._before = reading, []
    assert keyboard.key(0) == ""
    os.write(writing, b"xq")
    assert keyboard.key(1) == "x"
    assert keyboard.key(0) == "q"  # pressed before anybody looked
    assert keyboard.key(0) == ""
    os.close(writing)
    assert keyboard.key(1) == "q"
    os.close(reading)


@simulated
def test_ctrl_z_and_back():
    """In a shell: the terminal is the shell's while it is stopped, and the view goes on."""
    pexpect = pytest.importorskip("pexpect")
    pytest.importorskip("rich")
    shell = pexpect.spawn(
        "bash",
        ["--norc", "-i"],
        env=environment(MONITORS, MEMOPT_SIM_DEVICES="1", PS1="READY% "),
        dimensions=(24, 80),
        timeout=60,
    )
    shell.expect_exact("READY% ")
    shell.sendline("stty -echo; '%s' -m memopt monitor --interval 0.05" % sys.executable)
    shell.expect_exact("\x1b[?1049h")
    shell.expect_exact("cuda:0")
    for _ in range(2):
        shell.send("\x1a")
        shell.expect_exact("\x1b[?1049l")
        shell.expect_exact("Stopped")
        shell.expect_exact("READY% ")
        shell.sendline("stty -a | grep -o '[-]*icanon'")
        shell.expect(r"(-?)icanon")
        assert shell.match.group(1) == b""
        shell.sendline("fg")
        shell.expect_exact("\x1b[?1049h")
        shell.expect_exact("cuda:0")
    shell.send("q")  # a key without a return
    shell.expect_exact("samples in")
    shell.expect_exact("READY% ")
    shell.sendline("echo code $?")
    shell.expect_exact("code 0")
    shell.close(force=True)


def test_signals_are_not_lost_in_a_sample():
    """The library calls back while it lists processes, and what is raised there goes nowhere."""
    with StopSignals() as ends:
        done = []
        with pytest.raises(Stopped):
            with ends.held():
                called = ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGTERM))
                called()
                done.append(True)  # the sample goes on to its end
        assert done and ends.code == 143
        os.kill(os.getpid(), signal.SIGTERM)  # another one while it tidies up
        assert ends.signal == signal.SIGTERM
    with StopSignals() as ends:
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        assert ends.code == 0
    with StopSignals() as ends:  # a pipe that nobody reads
        reached = []
        with pytest.raises(Stopped):
            with ends.held():
                os.kill(os.getpid(), signal.SIGHUP)
                time.sleep(0.01)
                reached.append("after the first")
                os.kill(os.getpid(), signal.SIGHUP)
                time.sleep(5)
                reached.append("after the second")
        assert ends.code == 129 and reached == ["after the first"]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with StopSignals() as ends:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.01)
        assert ends.signal is None and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_keys_count_on_a_machine_too_busy_for_the_interval():
    terminal = Terminal("monitor", "--interval", "0.01", "--device", "cpu")
    terminal.until(lambda lines: lines[3].startswith("  cpu:0"), "the device")
    terminal.child.send("q")
    assert terminal.end()[0] == 0
    view = LiveView(None, None, "", 1)
    view._keyboard.key = lambda seconds: "q" if seconds == 0 else ""
    assert not view.wait(time.monotonic() - 1)
