"""Blocks that two Python processes use."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

import memopt

MIB = 1 << 20

PEER = """
import socket, sys, memopt
with socket.socket(fileno=int(sys.argv[1])) as line, memopt.Device("cpu", capacity="64MiB") as device:
    with memopt.import_block(device, line) as block:
        with block.as_memoryview() as view:
            assert bytes(view) == b"\\x07" * block.nbytes, "wrong contents"
            view[:] = b"\\x09" * block.nbytes
        line.sendall(b"d")
        line.recv(1)
        with block.as_memoryview() as view:
            assert bytes(view) == b"\\x09" * block.nbytes, "lost contents"
"""


def start_peer():
    here, there = socket.socketpair()
    program = subprocess.Popen([sys.executable, "-c", PEER, str(there.fileno())], pass_fds=[there.fileno()])
    there.close()
    return here, program


@pytest.mark.parametrize("killed", [False, True])
def test_two_processes(killed):
    line, peer = start_peer()
    with line, memopt.Device("cpu", capacity="64MiB") as device:
        with memopt.Allocator(device, "expandable_segments:True") as allocator:
            block = allocator.alloc("5MiB")
            device.fill(block, 7)
            with allocator.export_block(block) as shared:
                line.settimeout(60)  # a socket with a time limit does not block
                shared.send(line)
                assert line.recv(1) == b"d"
                if killed:
                    peer.kill()
                    assert peer.wait(60) == -signal.SIGKILL
                    with pytest.raises(OSError):
                        shared.send(line)
                with block.as_memoryview() as view:
                    assert bytes(view) == b"\x09" * (5 * MIB)
            block.free()
            allocator.trim()
        if not killed:
            line.sendall(b"c")
            assert peer.wait(60) == 0
        assert device.memory_info().free == device.memory_info().total


def test_own_transport():
    with memopt.Device("cpu", capacity="64MiB") as device:
        with memopt.Allocator(device, "expandable_segments:True") as allocator:
            block = allocator.alloc("3MiB")
            device.fill(block, 3)
            shared = allocator.export_block(block)
            message, files = shared.describe(), shared.open_files()
            with pytest.raises(memopt.BusyError):
                allocator.close(force=True)
            with pytest.raises(memopt.InvalidArgumentError, match="damaged"):
                memopt.import_block(device, (message[:-1] + bytes([message[-1] ^ 1]), files))
            with pytest.raises(memopt.InvalidArgumentError, match="descriptors"):
                memopt.import_block(device, (message, files[:-1]))
            with pytest.raises(memopt.InvalidArgumentError):
                memopt.import_block(device, (message, []))
            twin = memopt.import_block(device, (message, files))
            for file in files:
                os.close(file)
            shared.close()
            block.free()
            allocator.trim()
            with twin.as_memoryview() as view:
                assert bytes(view) == b"\x03" * (3 * MIB)
                with pytest.raises(BufferError):
                    twin.free()
            with pytest.raises(memopt.BusyError):
                device.close()
            twin.free()
            with pytest.raises(memopt.ClosedError):
                twin.pointer


def test_what_cannot_be_shared():
    with memopt.Device("cpu", capacity="64MiB") as device:
        with memopt.Allocator(device) as classic, classic.alloc(4096) as block:
            with pytest.raises(memopt.UnsupportedError, match="expandable"):
                classic.export_block(block)
        here, there = socket.socketpair()
        with here, there:
            here.close()
            with pytest.raises(memopt.StorageError, match="closed"):
                memopt.import_block(device, there)
