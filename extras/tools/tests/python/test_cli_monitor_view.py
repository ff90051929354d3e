"""`memopt monitor` on a terminal: what the screen shows at every size."""

from __future__ import annotations

import os
import time

from cli_support import Terminal, without
from memopt.cli.layout import Cell
from memopt.cli.monitor import screen
from memopt.cli.monitor.trends import Watch, duration
from monitor_support import GIB, MONITORS, fake, idle_processes, simulated, text_of


@simulated
def test_the_live_view():
    terminal = Terminal(
        *("monitor", "--interval", "0.05", "--device", "cuda"),
        folders=[MONITORS],
        MEMOPT_SIM_PROCESSES="%d:64M:c,4000002:16M:c@1" % os.getpid(),
        size=(16, 120),
    )
    lines = terminal.until(lambda lines: any("▃▃▃" in line for line in lines), "the course")
    assert lines[0].startswith("memopt monitor  every 0.05 s  q quits  ")
    assert lines[2].split() == (["device", "name", "used", "of", "%", "peak", "util", "temp", "power", "over", "time"])
    assert lines[3].startswith(
        "  cuda:0  libmemopt simulated device  256.00 MiB  1.00 GiB  25  256.00 MiB  37 %  54 °C"
    )
    assert lines[4].startswith("  cuda:1  libmemopt simulated device  272.00 MiB")
    # columns stand below their titles
    assert lines[2].index("used") + len("used") == lines[3].index("256.00 MiB") + 10
    row = lines[7].split()
    assert row[:2] == ["cuda:0", str(os.getpid())] and row[3:7] == ["64.00", "MiB", "64.00", "MiB"]
    assert "█" in row[7] and lines[8].split()[:3] == ["cuda:1", "4000002", "?"]
    assert lines[10].startswith("  host memory: ")
    terminal.child.send("q")
    code, after = terminal.end()
    assert code == 0 and "samples in" in after and "Processes by peak" in after
    assert "\x1b[?25h" in terminal.text.decode()  # the cursor is back


def test_a_narrow_view_says_which_device():
    watch = Watch(1.0)
    two = fake(1, [6 * GIB, GIB], pids=[7])
    two["devices"].append({**fake(1, [GIB], pids=[7])["devices"][0], "device": "cuda:1"})
    for sample, device in ((two, True), (fake(2, [6 * GIB, GIB], pids=[7]), False)):
        lines = text_of(screen.screen(watch.add(sample), watch, "memopt  a  q quits", 36, 20, 10))
        head = next(line for line in lines if " pid" in line)
        assert ("device" in head) == device and ("peak" in head) == (not device), head
        clock = time.strftime("%H:%M:%S", time.localtime(sample["time"]))
        assert lines[0].endswith(clock) and "…" not in lines[0]
    assert screen._heading(["memopt monitor", "every 1 s", "q quits", "12:00:00"], 40) == (
        "memopt monitor  q quits  12:00:00"
    )
    assert screen._heading(["memopt monitor", "every 1 s", "q quits", "12:00:00"], 24) == ("memopt monitor  12:00:00")
    assert screen._heading(["memopt monitor", "every 1 s", "q quits", "12:00:00"], 8) == "12:00:00"
    assert screen._aligned("日本語の名前", 7, False) == "日本語…" and (screen._aligned("日本", 6, True) == "  日本")


@idle_processes(40)  # more than there are lines
def test_the_window_changes():
    """At each size every line fits, and what matters most is there, before the next sample."""
    terminal = Terminal("monitor", "--interval", "3600", "--device", "cpu", size=(24, 80))
    terminal.until(lambda lines: lines[3].startswith("  cpu:0"), "the device")
    for rows, columns in ((40, 160), (12, 60), (8, 40), (24, 80)):
        terminal.resize(rows, columns)

        def fits(lines, rows=rows, columns=columns):
            shown = [line for line in lines[6:] if line.split()[1:2] and "iB" in line]
            return (
                len(lines) == rows
                and max(map(len, lines)) <= columns
                and lines[3].startswith("  cpu:0")
                and "iB" in lines[3]
                and "pid" in lines[5]
                and "used" in lines[5]
                and ("over time" in lines[2] or columns < 80)
                and len(shown) >= (1 if rows < 12 else 3)
                and any("and " in line and "more" in line for line in lines)
            )

        terminal.until(fits, "the view in %d lines of %d" % (rows, columns))
    terminal.child.send("q")
    assert terminal.end()[0] == 0


def test_no_colour():
    terminal = Terminal("monitor", "--interval", "0.05", "--count", "3", "--device", "cpu", NO_COLOR="1")
    code, after = terminal.end()
    assert code == 0 and "3 samples in" in after
    assert b"\x1b[36m" not in terminal.text and b"\x1b[31m" not in terminal.text


def test_a_terminal_without_rich(tmp_path):
    terminal = Terminal(
        *("monitor", "--interval", "0.05", "--count", "2", "--device", "cpu", "--processes", "1"),
        PYTHONPATH=without(tmp_path, "rich"),
    )
    code, _ = terminal.end()
    assert code == 0 and b"\x1b" not in terminal.text and b"2 samples in" in terminal.text


def test_tables_fit_every_width():
    watch = Watch(1.0)
    for number in range(1, 50):
        sample = watch.add(fake(number, [6 * GIB, GIB], pids=[7, 4194304]))
    sample["devices"][0].update(temperature=54.0, power=120.0, name="A device with a long name")
    for width in range(20, 200):
        lines = text_of(screen.screen(sample, watch, "title", width, 30, 10))
        assert max(map(len, lines)) <= width, width
        assert "cuda:0" in lines[3]
    for height in range(1, 30):
        assert len(screen.screen(sample, watch, "title", 80, height, 10)) <= height


def test_processes_that_have_no_room_are_counted():
    watch = Watch(1.0)
    sample = watch.add(fake(1, [GIB] * 9, pids=range(1, 10)))
    for most in (4, 100):
        for height in range(9, 20):
            lines = text_of(screen.screen(sample, watch, "title", 80, height, most))
            shown = sum(" train " in line for line in lines)
            (more,) = [line for line in lines if " more" in line] or ["  and 0 more"]
            assert 1 <= shown <= most and shown + int(more.split()[1]) == 9, lines


def test_a_device_that_is_nearly_full_stands_out():
    for used, meaning in ((95 * GIB // 10, "bad"), (94 * GIB // 10, "")):
        (device,) = fake(1, [used])["devices"]
        assert screen.device_row(device, None)[4] == Cell("%.0f" % (used * 10 / GIB), meaning)


def test_a_course_is_no_longer_than_it_can_be_read():
    watch = Watch(1.0)
    for number in range(1, 300):
        sample = watch.add(fake(number, [10 * GIB], pids=[7]))
    line = text_of(screen.screen(sample, watch, "title", 400, 24, 10))[3]
    assert line.count("█") == 60


def test_sparks():
    assert screen.Spark([0, 50, 100], 100).text(8) == "▁▅█"
    assert screen.Spark(range(101), 100).text(3) == "███"
    assert screen.Spark([5], 0).text(3) == ""
    assert screen.Spark([500, -5], 100).text(3) == "█▁"


def test_durations():
    shown = [duration(s) for s in (0.44, 45, 720, 12600, 345600)]
    assert shown == ["0.4 s", "45 s", "12 min", "3.5 h", "4 days"]
