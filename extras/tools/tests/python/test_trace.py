"""memopt.tools.Trace: events, text, files, snapshots; replays and their callbacks."""

from __future__ import annotations

import gzip
import io
import os
import pickle

import pytest

import memopt.tools
import traces
from memopt.tools import _pickles, _trace_files
from on_threads import on_threads

MIB = 1 << 20


def read(data, **options):
    return memopt.tools.Trace.read(io.BytesIO(data), **options)


def pickled(*entries, segments=(), protocol=4, **options):
    return read(pickle.dumps(traces.snapshot(*entries, segments=segments), protocol), **options)


# --- events ---------------------------------------------------------------------------------------


def test_events_one_by_one():
    with memopt.tools.Trace() as trace:
        trace.alloc(1, "3MiB")
        trace.alloc(2, 100, stream=7)
        trace.record_stream(2, 9)
        trace.record_stream(2, 7)  # its own is nothing
        trace.free(2)
        trace.free(1, stream=7)
        trace.free(1)
        assert len(trace) == 5 and trace.source is None
        info = trace.info
        assert info.allocations == 2 and info.streams == 3 and info.double_frees == 1
        assert info.first_double == 7 and info.peak_live_bytes == 3 * MIB + 100
        assert info.live_bytes == 0 and info.peak_live_blocks == 2
    assert trace.closed
    with pytest.raises(memopt.ClosedError):
        trace.info


@pytest.mark.parametrize("event", [(1, -1, 5, 0), (1, 1, 1 << 64, 0), (1, 1, 5, "0"), (9, 1, 5, 0), (1, 1.5, 5, 0)])
def test_events_that_are_none(event):
    with memopt.tools.Trace() as trace:
        with pytest.raises((ValueError, TypeError)):
            trace.add([(1, 1, 5, 0), event])
        assert len(trace) == 0


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_files(tmp_path, pack):
    events = traces.training()
    path = tmp_path / "trace"  # what it is, its bytes say
    path.write_bytes(pack(traces.csv(events, end="\r\n").encode()))
    told = []
    trace = memopt.tools.Trace.read(path, progress=lambda done, total: told.append((done, total)))
    with trace:
        assert trace.source == memopt.tools.TraceSource("csv")
        assert trace.info.peak_live_bytes == traces.peaks(events)[0]
    assert told[-1] == (path.stat().st_size, path.stat().st_size)
    with open(path, "rb") as file, memopt.tools.Trace.read(file) as trace:
        assert len(trace) == len(events) and not file.closed


def test_files_that_are_cut_off():
    text = traces.csv(traces.training()).encode()
    packed = gzip.compress(text)
    with pytest.raises(memopt.CorruptError, match="was cut off"):
        read(packed[: len(packed) // 2])
    with pytest.raises(memopt.CorruptError, match="cut off"):
        read(packed[:5])
    with read(packed[: len(packed) // 2], partial=True) as trace:
        assert "cut off" in trace.source.cut and 0 < len(trace) < len(traces.training())
    cut = text[: len(text) // 2].rsplit(b",", 2)[0]
    with pytest.raises(memopt.CorruptError, match="has no line end: the file was cut off"):
        read(cut)
    with read(cut, partial=True) as trace:
        assert len(trace) == cut.count(b"\n") - 1
        assert "line %d: " % (cut.count(b"\n") + 1) in trace.source.cut
    damaged = packed[:100] + bytes(50) + packed[150:]
    with pytest.raises(memopt.CorruptError, match="damaged"):
        read(damaged)
    wrong_sum = packed[:-8] + bytes(8)
    with pytest.raises(memopt.CorruptError, match="damaged.*CRC"):
        read(wrong_sum)
    with pytest.raises(memopt.CorruptError, match="empty"):
        read(b"", partial=True)  # nothing to replay


@pytest.mark.parametrize(
    "start, says", [(b"PK\x03\x04", "zip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh9", "bzip2"), (b"\xfd7zXZ", "xz")]
)
def test_formats_that_are_told(start, says):
    with pytest.raises(memopt.CorruptError, match=says):
        read(start + bytes(100))


def test_a_bomb_is_refused_early():
    """A gigabyte of zeros in a megabyte: it is no line."""
    packed = gzip.compress(bytes(1 << 27)) * 8
    with pytest.raises(memopt.CorruptError, match="line 1 is longer than 4096 bytes"):
        read(packed)


def test_what_a_gzip_file_may_unpack_to(monkeypatch):
    monkeypatch.setattr(_trace_files, "FREE_UNPACKED", 1 << 20)
    text = b"Action,Pointer,Size\n" + b"free,0,\n" * (1 << 18)  # 2 MiB; nothing is freed
    packed = gzip.compress(text)
    says = "unpack to more than the limit of 1.00 MiB.*--max-unpacked"
    with pytest.raises(memopt.CorruptError, match=says):
        read(packed)
    with pytest.raises(memopt.CorruptError, match="limit of 1.50 MiB"):
        read(packed, max_unpacked="1.5MiB")
    with read(packed, max_unpacked=len(text)) as trace, read(text, max_unpacked=1) as same:
        assert trace.info == same.info
    stored = gzip.compress(text, 0)  # not much smaller
    with read(stored) as trace:
        assert trace.info.lines == (1 << 18) + 1


def test_the_checksum_of_a_packed_snapshot():
    packed = gzip.compress(pickle.dumps(traces.snapshot(traces.trace_entries(traces.training()))))
    with pytest.raises(memopt.CorruptError, match="damaged.*CRC"):
        read(packed[:-8] + bytes(8))


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        memopt.tools.Trace.read(tmp_path / "nothing.csv")
    with pytest.raises(IsADirectoryError):
        memopt.tools.Trace.read(tmp_path)


# --- snapshots ------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_snapshot(protocol):
    events = traces.training()
    with pickled(traces.trace_entries(events), protocol=protocol) as trace:
        assert trace.source == memopt.tools.TraceSource("pytorch", 0, (len(events),))
        info = trace.info
        assert (info.peak_live_bytes, info.live_bytes) == traces.peaks(events)
        assert info.events == len(events) and info.streams == 2
        assert info.unknown_frees == info.double_frees == info.lost_frees == 0
    packed = gzip.compress(pickle.dumps(traces.snapshot(traces.trace_entries(events)), protocol))
    with read(packed) as trace:
        assert len(trace) == len(events)


def test_blocks_from_before_the_recording():
    entries = [
        traces.entry("alloc", 0x5000, 700),
        traces.entry("free_completed", 0x9000, 64, stream=3),  # lived before, freed in it
        traces.entry("free_completed", 0x5000, 700),
        traces.entry("alloc", 0x9000, 50),
    ]
    blocks = [
        (512, 400, "active_allocated"),  # lived before, lives on
        (512, 0, "inactive"),
        (1024, 1000, "active_pending_free"),
        (512, 50, "active_allocated"),  # in the recording
    ]
    segments = [
        traces.segment(0, 0x9000 - 2048, blocks, stream=5),
        traces.segment(1, 0x100000, [(512, 512, "active_allocated")]),
    ]
    with pickled(entries, [], segments=segments) as trace:
        assert trace.source.earlier_blocks == 3 and trace.source.earlier_bytes == 64 + 400 + 1000
        info = trace.info
        assert info.events == 3 + 4 and info.streams == 3
        assert info.peak_live_bytes == 64 + 400 + 1000 + 700
        assert info.live_bytes == 400 + 1000 + 50 and info.unknown_frees == 0
    with pickled(entries, [], segments=segments, recorded_only=True) as trace:
        assert trace.source.earlier_blocks == 0
        assert trace.info.unknown_frees == 1 and trace.info.first_unknown == 2
        assert trace.info.peak_live_bytes == 700
    for block in segments[0]["blocks"]:  # as older versions wrote them
        del block["address"], block["requested_size"]
    with pickled(entries, [], segments=segments) as trace:
        assert trace.source.earlier_bytes == 64 + 512 + 1024


class Payload:
    """What a malicious pickle would run."""

    def __reduce__(self):
        return os.system, ("touch %s" % self.path,)


def test_nothing_of_a_pickle_is_run(tmp_path):
    payload = Payload()
    Payload.path = str(tmp_path / "proof")
    for value in (payload, traces.snapshot([payload])):
        with pytest.raises(memopt.CorruptError, match=r"refers to \w+\.system.*nothing was"):
            read(pickle.dumps(value))
    with pytest.raises(memopt.CorruptError, match="refers to builtins.eval"):
        read(b"\x80\x04cbuiltins\neval\n(S'1'\ntR.")
    with pytest.raises(memopt.CorruptError, match="outside itself"):
        read(b"\x80\x04Pid\n.")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value, says",
    [
        ([], "a list, as memopt's snapshot"),
        (7, "no 'device_traces'"),
        ({"segments": []}, "no 'device_traces'"),
        ({"device_traces": [7]}, "no 'device_traces'"),
        (traces.snapshot([], []), "_record_memory_history"),
        (traces.snapshot([traces.entry("segment_alloc", 1, 2)]), "no events"),
        (traces.snapshot([{"action": "alloc", "addr": 1, "stream": 0}]), "malformed: KeyError"),
        (traces.snapshot([traces.entry("alloc", -1, 10)]), "malformed: OverflowError"),
        (traces.snapshot([traces.entry("alloc", "x", 10)]), "malformed: TypeError"),
        (traces.snapshot([traces.entry("alloc", 1, 2)], segments=[{}]), "malformed: KeyError"),
        (traces.snapshot([traces.entry("alloc", 1, 2)], segments=[7]), "malformed: AttributeErr"),
    ],
)
def test_snapshots_that_are_none(value, says):
    with pytest.raises(memopt.CorruptError, match=says):
        read(pickle.dumps(value))


def test_damaged_pickles():
    whole = pickle.dumps(traces.snapshot(traces.trace_entries(traces.training())))
    for size in (1, 5, 100, len(whole) // 2, len(whole) - 1):
        with pytest.raises(memopt.CorruptError, match="snapshot: "):
            read(whole[:size])
    with pytest.raises(memopt.CorruptError, match="damaged"):
        read(whole[:50] + b"\xff\xfe" + whole[50:])
    with pytest.raises(memopt.CorruptError, match="cut off|damaged"):
        read(gzip.compress(whole)[:200])
    huge = b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x"  # BINBYTES8
    with pytest.raises(memopt.CorruptError, match="snapshot: "):
        read(huge)


ITEM = (1 << 40).to_bytes(8, "little")


@pytest.mark.parametrize(
    "opcodes, says",
    [
        (b"Nr\xff\xff\xff\x0b.", "remembers value 201326591 within"),  # 1.6 GB of places
        (b"\x8e" + ITEM, "an item of 1099511627776 bytes"),
        (b"\x95" + ITEM + b".", "an item of 1099511627776 bytes"),
        (b"Nb.", "opcode 0x62"),
        (b"Np200000000\n.", "opcode 0x70"),
        (b"\x82\x01.", "opcode 0x82"),
        (b"]" * 100_000 + b".", "of the pickle may take more than"),
        (b"}" * 100_000 + b".", "may take more than"),
        (b"N" + b"\x85" * 100_000 + b".", "may take more than"),
    ],
)
@pytest.mark.parametrize("together", [1, 1 << 20])
def test_hostile_pickles(opcodes, says, together, monkeypatch):
    """They are refused before the unpickler comes to them, wherever they are cut into pieces."""
    monkeypatch.setattr(_pickles, "FREE_MEMORY", 1 << 20)
    pieces = Pieces(b"\x80\x04" + opcodes, together)
    with pytest.raises(memopt.CorruptError, match=says):
        _pickles.load(pieces)


class Pieces(io.BytesIO):
    """A file that gives so many bytes at once."""

    def __init__(self, data, together):
        super().__init__(data)
        self.together = together

    def read1(self, size=-1):
        return self.read(min(size, self.together))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_value_of_a_snapshot_passes(protocol):
    values = [None, True, False, 0.5, 7, 300, -1, 1 << 40, 1 << 63, -(1 << 900), "", "é" * 300]
    values += [b"", b"x" * 300, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}, {"a": [1]}]
    values += [str(n) for n in range(400)] + values  # remembered, also at places above 255
    if protocol == 2:  # bytes are made by a function there
        values = [value for value in values if not isinstance(value, bytes)]
    data = pickle.dumps(values, protocol)
    for together in (1, 2, 7, 1 << 20):
        assert _pickles.load(Pieces(data, together)) == values


# --- replays --------------------------------------------------------------------------------------


@pytest.fixture
def trace():
    with memopt.tools.Trace() as trace:
        trace.parse_csv(traces.csv(traces.training()))
        trace.end_csv()
        yield trace


def test_replay(trace):
    peak = traces.peaks(traces.training())[0]
    replay = trace.replay("expandable_segments:True", warm_passes=2, samples=50)
    assert not replay.out_of_memory and replay.failure is None and replay.events == len(trace)
    assert replay.peak_live_bytes == peak <= replay.peak_reserved_bytes
    assert replay.ratio == replay.peak_reserved_bytes / peak
    assert replay.ns_per_event > 0 and replay.first_ns_per_event > 0
    assert 40 <= len(replay.samples) <= 50 and replay.samples[-1].event == len(trace)
    assert max(s.live_bytes for s in replay.samples) == peak
    assert max(s.reserved_bytes for s in replay.samples) == replay.peak_reserved_bytes
    assert trace.replay("expandable_segments:True")[:4] == replay[:4]  # the same each time


def test_refused(trace):
    with pytest.raises(memopt.InvalidArgumentError, match="unknown key"):
        trace.replay("nonsense:1")
    with pytest.raises(ValueError, match="capacity must be"):
        trace.replay(capacity=0)
    none = pytest.raises(memopt.InvalidArgumentError, match="no allocation")
    with memopt.tools.Trace() as empty, none:
        empty.replay()


def test_progress_and_its_exceptions(trace):
    told = []
    trace.replay(warm_passes=3, progress=lambda done, total: told.append((done, total)))
    assert told == [(n * len(trace), 4 * len(trace)) for n in range(1, 5)]

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace.replay(progress=stop)
    with pytest.raises(KeyboardInterrupt):
        trace.find_capacity(progress=stop)
    with pytest.raises(KeyboardInterrupt):
        memopt.tools.Trace.read(io.BytesIO(traces.csv(traces.training()).encode()), progress=stop)


def test_replays_of_one_trace_on_threads(trace):
    found = []
    on_threads(lambda _: found.append(trace.find_capacity()), range(3))
    assert found == [trace.find_capacity()] * 3


# --- recording ------------------------------------------------------------------------------------


def test_a_recorded_run_replays_to_the_same_peaks(tmp_path):
    path = tmp_path / "run.csv"
    device = memopt.Device("cpu", capacity="64MiB", threads=1)
    with device, memopt.Allocator(device, "expandable_segments:True") as allocator:
        weight = allocator.alloc("2MiB", tag="weights")
        allocator.start_trace(path)
        with pytest.raises(memopt.BusyError):
            allocator.start_trace(path)
        first, second = allocator.alloc("3MiB"), allocator.alloc("5MiB")
        first.free()
        third = allocator.alloc("7MiB")
        for buffer in (second, third, weight):
            buffer.free()
        assert allocator.stop_trace() == 8  # the weight is there from the start
        live, reserved = map(allocator.stat, ("requested_bytes.all.peak", "reserved_bytes.all.peak"))
    with memopt.tools.Trace.read(path) as trace:
        replay = trace.replay("expandable_segments:True")
        assert (replay.peak_live_bytes, replay.peak_reserved_bytes) == (live, reserved)
    assert ",weights\n" in path.read_text()
