"""Publishing allocators' statistics, and reading what other processes publish."""

from __future__ import annotations

import gc
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

import memopt.tools
from cli_support import PACKAGE, environment, wait_for
from memopt.tools import published as client

MIB = 1 << 20


@pytest.fixture(autouse=True)
def place(socket_folder, monkeypatch):
    """A folder of this test's own, and nobody else's sockets."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(socket_folder))
    folder = socket_folder / "memopt"
    monkeypatch.setattr(client, "_folders", lambda: [str(folder)])
    yield folder


def published():
    """What everybody who answers publishes, however busy the machine is."""
    return memopt.tools.read_published(60)


def mine():
    """What this process publishes, as a client sees it."""
    found = [one for one in published() if one.pid == os.getpid()]
    assert len(found) <= 1
    return found[0] if found else None


def test_publish(device, place):
    allocator = memopt.Allocator(device)
    publisher = memopt.tools.publish(allocator)
    assert publisher.path == str(place / ("%d.sock" % os.getpid())) and publisher.path in repr(
        publisher
    )
    with allocator.alloc(3 * MIB), allocator.alloc(5 * MIB) as second:
        second.free()
        (seen,) = mine().allocators
        stats = allocator.stats()
        assert seen.device == "cpu:0"
        assert seen.allocated == stats["allocated_bytes.all.current"] == 3 * MIB
        assert seen.allocated_peak == stats["allocated_bytes.all.peak"] == 8 * MIB
        assert seen.reserved == stats["reserved_bytes.all.current"]
        assert seen.cached == seen.reserved - 3 * MIB > 0
    assert mine().version == memopt.__version__
    publisher.close()
    publisher.close()
    assert mine() is None and os.listdir(place) == [] and publisher.closed
    allocator.close()


def test_an_allocator_that_ends_is_published_no_longer(device):
    publisher = memopt.tools.publish()
    allocator = memopt.Allocator(device)
    publisher.add(allocator)
    block = allocator.alloc(MIB)
    with pytest.raises(memopt.BusyError):
        allocator.close()
    assert len(mine().allocators) == 1  # it is still there, and still published
    block.free()
    allocator.close()
    assert mine().allocators == ()
    forgotten = memopt.Allocator(device)
    publisher.add(forgotten)
    del forgotten
    gc.collect()
    assert mine().allocators == ()
    other = memopt.Allocator(device)
    publisher.add(other)
    with pytest.raises(memopt.InvalidArgumentError):
        publisher.add(other)
    publisher.remove(other)
    with pytest.raises(memopt.NotFoundError):
        publisher.remove(other)
    other.close()
    publisher.close()
    with pytest.raises(memopt.ClosedError):
        publisher.serve()


def test_serving_in_a_loop_of_ones_own(device):
    allocator = memopt.Allocator(device)
    with memopt.tools.Publisher() as publisher:
        publisher.add(allocator)
        assert publisher.serve() == 0
        answers = []
        thread = threading.Thread(target=lambda: answers.append(published()))
        thread.start()
        assert publisher.serve(60) == 1
        thread.join()
        assert len(answers[0][0].allocators) == 1
    allocator.close()


def test_two_publishers_of_a_process_are_one_entry(device):
    first, second = memopt.Allocator(device), memopt.Allocator(device)
    publishers = [memopt.tools.publish(first), memopt.tools.publish(second)]
    assert publishers[0].path != publishers[1].path
    assert len(mine().allocators) == 2
    for publisher in publishers:
        publisher.close()
    first.close()
    second.close()


# --- other processes ------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
import memopt.tools
device = memopt.Device("cpu", capacity="64MiB")
allocator = memopt.Allocator(device)
block = allocator.alloc("6MiB")
publisher = memopt.tools.publish(allocator)
print(os.getpid(), flush=True)
%s
"""


def program(text, place, **variables):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM % text],
        env=environment(XDG_RUNTIME_DIR=str(place.parent), PYTHONPATH=PACKAGE, **variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_another_process_and_its_end(place):
    process = program("sys.stdin.read()", place)
    pid = int(process.stdout.readline())
    (one,) = published()
    assert one.pid == pid == process.pid and one.allocators[0].allocated == 6 * MIB
    process.communicate("")
    assert process.returncode == 0  # the thread did not keep it, nor its native objects
    assert published() == [] and os.listdir(place) == []


def test_what_a_killed_process_left_is_removed(place):
    process = program("sys.stdin.read()", place)
    process.stdout.readline()
    process.kill()
    process.communicate()
    assert os.listdir(place) == ["%d.sock" % process.pid]
    assert published() == [] and os.listdir(place) == []


def test_a_process_that_stands_still_holds_nobody_up(place):
    process = program("sys.stdin.read()", place)
    process.stdout.readline()
    reader = client.Reader()
    assert len(reader.read(60)) == 1
    process.send_signal(signal.SIGSTOP)
    threads = "/proc/%d/task" % process.pid

    def stopped():
        states = []
        for thread in os.listdir(threads):
            with open("%s/%s/stat" % (threads, thread)) as file:
                states.append(file.read().rpartition(")")[2].split()[0])
        return set(states) == {"T"}

    wait_for(stopped, "its standstill")
    try:
        assert reader.read(0.05) == []
        asked = len(reader._silent)
        assert reader.read(3600) == [] and asked == 1  # it is not asked again for a while
        reader._silent.clear()
    finally:
        process.send_signal(signal.SIGCONT)
    assert len(reader.read(60)) == 1
    process.communicate("")


def test_fork(place):
    process = program(
        """
if os.fork() == 0:
    assert publisher.closed and memopt.tools.publish.__globals__["_publishers"] == set()
    links = [os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd")[:-1]]
    assert not [link for link in links if link.startswith("socket:")]
    second = memopt.tools.Publisher()  # one of its own
    assert str(os.getpid()) in second.path
    second.close()
    print("closed", flush=True)
    sys.stdin.read()
    os._exit(7)
sys.stdout.flush()
assert os.wait()[1] == 7 << 8
""",
        place,
    )
    pid = int(process.stdout.readline())
    assert process.stdout.readline() == "closed\n"
    (one,) = published()
    assert one.pid == pid
    process.communicate("")
    assert process.returncode == 0
    assert os.listdir(place) == []


# --- what is no publisher -------------------------------------------------------------------------

GOOD = (
    b'{"memopt": 1, "version": "1.0.0", "pid": 7, "allocators": [{"device": "cuda:1", '
    b'"allocated": 10, "allocated_peak": 20, "reserved": 30, "reserved_peak": 40, "ooms": 0, '
    b'"retries": 0, "new": []}], "more": 1}\n'
)


def test_answers():
    one = client.understand(GOOD, 5)
    assert one.pid == 5 and one.allocators[0].cached == 20
    assert client.understand(GOOD, 0).pid == 7  # the system does not know the process here
    for bad in (
        b"",
        GOOD[:-1],
        GOOD[:40] + b"\n",
        b"\xff\xfe\n",
        b"[]\n",
        b"[" * 100000 + b"\n",
        GOOD.replace(b'"memopt": 1', b'"memopt": 0'),
        GOOD.replace(b'"allocated": 10', b'"allocated": -1'),
        GOOD.replace(b'"allocated": 10', b'"allocated": true'),
        GOOD.replace(b'"allocated": 10', b'"allocated": 1e99'),
        GOOD.replace(b'"allocated": 10, ', b""),
        GOOD.replace(b'"cuda:1"', b"1"),
        GOOD.replace(b'"version": "1.0.0", ', b""),
    ):
        assert client.understand(bad, 5) is None, bad[:60]


def serve_with(place, name, answer):
    """A socket that answers with these bytes; a thread that ends with it."""
    place.mkdir(mode=0o700, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place / name))
    listener.listen()

    def run():
        try:
            while True:
                connection, _ = listener.accept()
                with connection:
                    answer(connection)
        except OSError:
            pass

    threading.Thread(target=run, daemon=True).start()
    return listener


def end(listeners):
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_others_that_listen_there(place):
    def endless(connection):
        for _ in range(1000):
            connection.sendall(b"x" * 65536)

    listeners = [
        serve_with(place, "1.sock", endless),
        serve_with(place, "2.sock", lambda c: c.sendall(b"nonsense\n")),
        serve_with(place, "3.sock", lambda c: c.recv(1)),
        serve_with(place, "4.sock", lambda c: c.sendall(GOOD)),
    ]
    (place / "5.sock").write_text("a file\n")
    (place / "6.sock").symlink_to("/nowhere")
    (place / "7.sock").symlink_to("4.sock")  # what it says would count twice
    # One of them never answers, so that each look takes its whole time.
    (one,) = wait_for(memopt.tools.read_published, "an answer")
    assert one.pid == os.getpid() and one.allocators[0].device == "cuda:1"
    assert len(one.allocators) == 1
    end(listeners)
    published()
    # What is no socket is left alone.
    assert sorted(os.listdir(place)) == ["5.sock", "6.sock", "7.sock"]


#: Asks with few files that may be opened.
FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
from memopt.tools.published import Reader
found = [one for one in Reader().read(60) if one.pid == int(sys.argv[1])]
print(sum(len(one.allocators) for one in found))
"""


def test_more_publishers_than_files_that_may_be_opened(place):
    listeners = [serve_with(place, "%d.sock" % n, lambda c: c.sendall(GOOD)) for n in range(50)]
    result = subprocess.run(
        [sys.executable, "-c", FEW_FILES, str(os.getpid())],
        env=environment(XDG_RUNTIME_DIR=str(place.parent)),
        capture_output=True,
        text=True,
    )
    assert result.stdout == "50\n", result.stderr
    end(listeners)


def test_the_silent_hold_up_the_others_once(place, monkeypatch):
    """Also where so many are asked that not all are at once."""
    listeners = [serve_with(place, "0.sock", lambda c: c.recv(1))]
    listeners += [serve_with(place, "%d.sock" % n, lambda c: c.sendall(GOOD)) for n in range(1, 50)]
    monkeypatch.setattr(client, "_AT_ONCE", 8)
    reader = client.Reader()
    assert sum(len(one.allocators) for one in reader.read(0.5)) <= 7
    assert str(place / "0.sock") in reader._silent
    reader._silent = {str(place / "0.sock"): time.monotonic() + 3600}
    assert sum(len(one.allocators) for one in reader.read(60)) == 49
    end(listeners)


def test_a_folder_of_others_is_not_looked_into(place):
    publisher = memopt.tools.publish()
    assert mine() is not None
    place.chmod(0o755)
    assert published() == []
    place.chmod(0o700)
    publisher.close()
    place.rmdir()
    place.symlink_to(place.parent)
    with pytest.raises(memopt.MemoptError, match="must be owned by uid"):
        memopt.tools.Publisher()
    place.unlink()


def test_errors(socket_folder):
    with pytest.raises(memopt.MemoptError, match="/nowhere/x.sock") as caught:
        memopt.tools.Publisher("/nowhere/x.sock")
    assert caught.value.status == memopt.Status.IO_ERROR
    first = memopt.tools.Publisher(socket_folder / "x.sock")
    assert stat.S_ISSOCK(os.lstat(socket_folder / "x.sock").st_mode)
    with pytest.raises(memopt.BusyError):
        memopt.tools.publish(path=socket_folder / "x.sock")
    first.close()
    with pytest.raises(TypeError):
        memopt.tools.Publisher(7)
