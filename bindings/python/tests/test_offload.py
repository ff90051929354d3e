"""Save-on-CPU through Python."""

from __future__ import annotations

import array
import gc
import threading
import weakref

import pytest

import memopt

MIB = 1 << 20


def filled(allocator, byte, nbytes=MIB, stream=None):
    buffer = allocator.alloc(nbytes, stream=stream, tag="activations")
    allocator.device.fill(buffer, byte, stream=stream)
    return buffer


def test_pack_and_unpack(device, allocator):
    with memopt.Offloader(allocator) as offloader:
        buffer = filled(allocator, 7)
        ticket = offloader.pack(buffer)
        assert buffer.freed and ticket.nbytes == MIB
        with pytest.raises(memopt.ClosedError):
            buffer.pointer
        device.sync()
        assert ticket.packed
        stats = offloader.stats()
        assert stats["tickets"] == 1 and stats["host_bytes_used"] == MIB
        ticket.prefetch()
        value = ticket.unpack()
        device.sync()
        assert bytes(value.as_memoryview()) == b"\x07" * MIB
        assert ticket.unpack() is value
        ticket.release()
        ticket.release()  # harmless
        assert ticket.released and value.freed
        for use in (ticket.unpack, ticket.prefetch, lambda: ticket.packed, lambda: value.pointer):
            with pytest.raises(memopt.ClosedError):
                use()
        assert offloader.trim() >= MIB
    assert device.memory_info().pinned == 0


def test_what_came_ahead_gives_way(device):
    """An allocation takes the memory of values that a prefetch brought and nobody asked for."""
    offloaders = []
    room = memopt.Allocator(device, limit="8MiB", on_pressure=lambda needed: offloaders[0].give_way(needed))
    with room as allocator, memopt.Offloader(allocator) as offloader:
        offloaders.append(offloader)
        assert offloader.give_way("1MiB") == 0
        tickets = [offloader.pack(filled(allocator, i, 3 * MIB)) for i in range(2)]
        for ticket in tickets:
            ticket.prefetch()
        with allocator.alloc(3 * MIB):
            assert tickets[1].unpack().as_memoryview()[5] == 1
        assert tickets[0].unpack().as_memoryview()[5] == 0
        assert offloader.stats()["prefetch_hits"] == 1
        for ticket in tickets:
            ticket.release()


def test_borrowed_memory_is_kept_until_it_is_copied(device, allocator):
    class Bytes(bytearray):
        pass

    with memopt.Offloader(allocator) as offloader, device.stream() as stream:
        source = Bytes(b"abcd" * 1024)
        forgotten = weakref.ref(source)
        gate = threading.Event()
        stream.call(gate.wait)
        ticket = offloader.pack_borrowed(source, stream)
        assert not ticket.kept and not ticket.packed
        del source
        gc.collect()
        assert forgotten() is not None
        gate.set()
        ticket.wait_packed(stream)
        stream.sync()
        assert ticket.packed
        gc.collect()
        assert forgotten() is None
        into = bytearray(4096)
        ticket.unpack_into(into, stream)
        stream.sync()
        assert into == b"abcd" * 1024
        with pytest.raises(ValueError):
            ticket.unpack_into(bytearray(4095))
        with pytest.raises(TypeError):
            ticket.unpack_into(b"x" * 4096)
        ticket.release()


def test_small_values_stay(device, allocator):
    with memopt.Offloader(allocator, min_bytes="1KiB") as offloader:
        with offloader.pack(filled(allocator, 3, 512)) as ticket:
            assert bytes(ticket.unpack().as_memoryview()) == b"\x03" * 512
        source = array.array("f", [1, 2])
        with offloader.pack_borrowed(source) as ticket:
            assert ticket.kept
        assert offloader.stats()["kept_small"] == 2
        assert offloader.stats()["copied_out_bytes"] == 0


def test_the_host_limit_and_its_policies(device, allocator):
    with memopt.Offloader(allocator, host_limit="2MiB", overflow="fail") as offloader:
        tickets = [offloader.pack(filled(allocator, i)) for i in range(2)]
        with filled(allocator, 9) as buffer:
            with pytest.raises(memopt.LimitReachedError):
                offloader.pack(buffer)
            assert buffer.as_memoryview()[0] == 9, "still the caller's"
        [ticket.release() for ticket in tickets]
    with memopt.Offloader(allocator, host_limit="2MiB", overflow="keep") as offloader:
        tickets = [offloader.pack(filled(allocator, i)) for i in range(5)]
        assert offloader.stats()["kept_overflow"] == 3
        [ticket.release() for ticket in tickets]
    with pytest.raises(ValueError):
        memopt.Offloader(allocator, overflow="explode")


def test_misuse(device, allocator):
    other = memopt.Allocator(device)
    with other, memopt.Offloader(allocator) as offloader:
        with other.alloc(100) as buffer, pytest.raises(ValueError):
            offloader.pack(buffer)
        with allocator.alloc(1000) as buffer:
            for size in (0, 1 << 30):
                with pytest.raises(ValueError):
                    offloader.pack(buffer, size)
            view = buffer.as_memoryview()
            with pytest.raises(BufferError):
                offloader.pack(buffer)
            del view
        with pytest.raises(ValueError):
            offloader.pack_borrowed(b"")


def test_close_with_live_tickets(device, allocator):
    offloader = memopt.Offloader(allocator)
    ticket = offloader.pack(filled(allocator, 1))
    with pytest.raises(memopt.BusyError):
        offloader.close()
    offloader.close(force=True)
    with pytest.raises(memopt.ClosedError):
        ticket.unpack()
    with pytest.raises(memopt.ClosedError):
        offloader.stats()


def test_forgotten_tickets_are_released(device, allocator):
    with memopt.Offloader(allocator) as offloader:
        for number in range(10):
            offloader.pack(filled(allocator, number)).unpack()
        gc.collect()
        assert offloader.stats()["tickets"] == 0
        view = offloader.pack(filled(allocator, 5)).unpack().as_memoryview()
        gc.collect()
        device.sync()
        assert offloader.stats()["tickets"] == 1 and view[0] == 5, "the view keeps the ticket"
        del view
        assert offloader.stats()["tickets"] == 0


@pytest.mark.parametrize("null_stream", [False, True])
def test_values_go_to_a_disk_and_come_back(device, allocator, tmp_path, null_stream):
    with memopt.Offloader(allocator, host_limit="2MiB", disk=(tmp_path, "64MiB"), null_stream=null_stream) as offloader:
        tickets = [offloader.pack(filled(allocator, number)) for number in range(1, 9)]
        device.sync()
        stats = offloader.stats()
        assert stats["disk_tickets"] >= 6 and stats["host_bytes"] <= 2 * MIB
        assert stats["disk_bytes_used"] == stats["disk_tickets"] * MIB
        assert not list(tmp_path.iterdir())
        for number in range(8, 0, -1):
            with tickets.pop() as ticket:
                if tickets:
                    tickets[-1].prefetch()
                value = ticket.unpack()
                device.sync()
                assert bytes(value.as_memoryview()) == bytes([number]) * MIB
        device.sync()
        stats = offloader.stats()
        assert stats["disk_bytes"] == stats["disk_tickets"] == 0
        assert stats["disk_read_bytes"] >= 6 * MIB


def test_options_of_a_disk(allocator, tmp_path):
    with pytest.raises(ValueError, match="host_limit"):
        memopt.Offloader(allocator, disk=str(tmp_path))
    with pytest.raises(memopt.InvalidArgumentError, match="overflow is not spill"):
        memopt.Offloader(allocator, host_limit=MIB, overflow="keep", disk=str(tmp_path))
    with pytest.raises(memopt.InvalidArgumentError, match="disk_path is NULL"):
        memopt.Offloader(allocator, host_limit=MIB, overflow="spill")
    with pytest.raises(memopt.StorageError, match="No such file") as raised:
        memopt.Offloader(allocator, host_limit=MIB, disk=tmp_path / "no" / "folder")
    assert raised.value.errno == 2
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(memopt.InvalidArgumentError, match="a file that does not exist"):
        memopt.Offloader(allocator, host_limit=MIB, disk=taken)
    assert taken.read_text() == "mine"
    with memopt.Offloader(allocator, host_limit=MIB, disk=tmp_path / "new"):
        assert [path.name for path in tmp_path.iterdir()] == ["taken"]
