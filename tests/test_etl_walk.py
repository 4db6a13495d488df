"""The low level of the .etl reader: buffers, event walk, columns, order, damage.

Held against: a walk in plain `struct` (`slow`) on every real file, the lines that Microsoft's reader printed for four
of them (`*.baseline.txt`), and files from `etl_builder`, which shares nothing with the reader.
"""

import os
import re
import struct
from collections import Counter
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import etl_builder as build
from lastbranch.errors import FormatError
from lastbranch.formats.etl import EventType, TraceLog, is_etl, read_header
from lastbranch.formats.etl.compression import compress, decompress
from lastbranch.formats.etl.layout import HEADERS, LOGFILE_HEADER, MESSAGE, packed
from lastbranch.formats.etl.materialise import header_fields
from lastbranch.model import BytesSource

GUID = UUID("12345678-9abc-def0-1122-334455667788").bytes_le
COUNTS = {  # SOURCES.md of the captures, and for what it does not tell, its own probe
    "net.4.5.2.x64.etl": 179_474, "diaghub.kernel.1.etl": 16_335, "gcevents.PerfViewData.etl": 71,
    "gcrundownevents.PerfViewData.clrRundown.etl": 112, "primitive-types.etl": 7, "SelfDescribingSingleEvent.etl": 23,
    "smallEtlFile.etl": 2, "ShutdownPerfDiagLogger.etl": 17_078, "AMSITrace.etl": 21, "lxcore_kernel.etl": 4,
    "syzygy.image_data_32_v0.etl": 27, "syzygy.image_data_32_v2.etl": 27, "syzygy.process_data_32_v1.etl": 3,
    "syzygy.process_data_64_v3.etl": 9, "krabs.powershell.etl": 114, "waasmedic.20251005_113019_195.etl": 21,
    "WindowsUpdate.20251008.140245.443.8.etl": 82,
}  # fmt: skip


def real(name):
    root = os.environ.get("LASTBRANCH_DATA")
    if not root:
        pytest.skip("LASTBRANCH_DATA is not set: no real captures")
    return (Path(root) / "etl" / name).read_bytes()


def log_of(data, **options):
    return TraceLog(BytesSource(bytes(data), "test.etl"), **options)


# -- the oracle: one event after the other, with struct

FULL = {10: 0x30, 20: 0x30, 11: 0x48, 21: 0x48}


def slow(data):
    """Every event of an undamaged file without messages, in file order.

    (buffer offset, offset in it, header, size, hook, time, pid, tid, cpu, version, opcode, id, GUID or None, payload)
    """
    at, found = 0, []
    while at < len(data):
        length, used = struct.unpack_from("<I44xI", data, at)
        (flags,) = struct.unpack_from("<H", data, at + 0x34)
        cpu = struct.unpack_from("<H", data, at + 0x28)[0] if flags & 0x20 else data[at + 0x28]
        body = data[at : at + used]
        if flags & 0x40:
            body = data[at : at + 72] + decompress(data[at + 72 : at + length], used - 72)
        place = 72
        while place < used and body[place : place + 4] != b"\xff\xff\xff\xff":
            kind, marker = body[place + 2], body[place + 3]
            assert marker == 0xC0
            event = slow_event(body, place, kind)
            found.append((at, place, kind, event[0], *event[1 : 4 + 1], cpu, *event[5:]))
            place += event[0] + 7 & ~7
        at += length
    return found


def slow_event(body, at, kind):
    if kind in (1, 2, 3, 4, 16, 17):
        version, size, hook = struct.unpack_from("<H2xHH", body, at)
        if kind >= 16:
            pid = tid = -1
            (time,), head = struct.unpack_from("<q", body, at + 8), 16
        else:
            (tid, pid, time), head = struct.unpack_from("<iiq", body, at + 8), 0x20 if kind < 3 else 0x18
        assert version < 256
        return size, hook, time, pid, tid, version, hook & 0xFF, 0, None, body[at + head : at + size]
    (size,) = struct.unpack_from("<H", body, at)
    tid, pid, time, guid = struct.unpack_from("<iiq16s", body, at + 8)
    if kind in FULL:
        type_, _, version = struct.unpack_from("<BBH", body, at + 4)
        return size, -1, time, pid, tid, version & 0xFF, type_, 0, guid, body[at + FULL[kind] : at + size]
    flags, id_, version, _, _, opcode = struct.unpack_from("<4xH34xHBBBB", body, at)
    head = 0x50
    while flags & 1:
        step, _, more, _ = struct.unpack_from("<HHHH", body, at + head)
        head += step
        if not more & 1:
            break
    return size, -1, time, pid, tid, version, opcode, id_, guid, body[at + head : at + size]


def as_row(e):
    guid = None if e.hook >= 0 else e.provider
    return (
        e.buffer,
        e.offset,
        e.header,
        e.hook,
        e.time,
        e.pid,
        e.tid,
        e.cpu,
        e.version,
        e.opcode,
        e.id,
        guid,
        e.payload,
    )


@pytest.mark.parametrize("name", COUNTS)
def test_every_real_file_event_by_event(name):
    data = real(name)
    log = log_of(data)
    expected = slow(data)
    assert len(expected) == COUNTS[name]
    got = [as_row(event) for event in log.events()]
    assert got == [(*row[:3], *row[4:]) for row in expected]
    sizes = [size for block in log.blocks() for size in block.size.tolist()]
    assert sizes == [row[3] for row in expected]
    assert not log.damage
    assert sum(log.counts.values()) == COUNTS[name]


@pytest.mark.parametrize("name", COUNTS)
def test_every_real_file_in_time_order(name):
    log = log_of(real(name))
    ordered = list(log.events(ordered=True))
    assert all(a.time <= b.time for a, b in pairwise(ordered))
    assert Counter((e.buffer, e.offset) for e in ordered) == Counter((e.buffer, e.offset) for e in log.events())


def test_header_of_a_real_file():
    header = read_header(BytesSource(real("net.4.5.2.x64.etl")))
    assert (header.session_name, header.processors, header.pointer_size, header.buffers_written) == (
        "Relogger",
        8,
        8,
        360,
    )
    assert (header.compressed, header.compression_format, header.provider_version) == (True, 3, 9200)
    clock = log_of(real("syzygy.image_data_32_v0.etl")).clock
    assert (clock.name, clock.frequency) == ("QPC", 2_337_949)


LINE = re.compile(r"EVENT ([\d,.]+): (\S.*?) PID=(-?\d+); TID=(-?\d+); PName=.*?; ProceNum=(\d+); DataLen=([\d,]+);")
OF_PAYLOAD = re.compile(r"Windows Kernel/(Image|Process|Thread|SystemConfig/Services)\b")


@pytest.mark.parametrize(
    ("name", "capture", "differing"),
    [
        ("net.4.5.2.x64", "net.4.5.2.x64.etl", 93),
        ("gcevents", "gcevents.PerfViewData.etl", 0),
        ("gcrundownevents", "gcrundownevents.PerfViewData.clrRundown.etl", 0),
        ("primitive-types", "primitive-types.etl", 0),
    ],
)
def test_lines_of_microsofts_reader(name, capture, differing):
    """Each EVENT line is one event: time to 0.001 ms, PID, TID, CPU and size of the payload.

    Where ids differ, that reader shows those of the payload: the header has none (PERFINFO), or it is an event about
    another process or thread. What the reader dropped (idle samples) has no line.
    """
    text = real(f"{name}.baseline.txt").decode("utf-8", "replace")
    log = log_of(real(capture))
    begin, frequency = log.header.timestamp, log.clock.frequency
    events = {}
    for event in log.events():
        microseconds = ((event.time - begin) * 10_000_000 // frequency + 5) // 10
        events.setdefault((microseconds, event.cpu, len(event.payload)), []).append(event)
    parsed, other_ids = LINE.findall(text), 0
    assert len(parsed) == len(re.findall("^EVENT ", text, re.M))
    for line in parsed:
        time, title, pid, tid, cpu, length = line
        key = (round(float(time.replace(",", "")) * 1000), int(cpu), int(length.replace(",", "")))
        assert key in events, line
        if not any((e.pid, e.tid) == (int(pid), int(tid)) for e in events[key]):
            assert OF_PAYLOAD.match(title) or any(e.header in (16, 17) for e in events[key]), line
            other_ids += 1
    assert other_ids == differing


# -- headers


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("windows7", [False, True])
def test_every_event_header(bits, windows7):
    trace = build.Trace(windows7=windows7, bits=bits)
    other = bytes(range(16))
    activity = bytes(range(16, 32))
    items = [(5, b"\1" * 12), (13, b"\2" * 8), (8, struct.pack("<2Q", 77, 88))]
    made = [
        build.system(0x0301, 10, b"abc", pid=1, tid=2, version=4, bits=bits, times=(3, 4)),
        build.system(0x0524, 11, b"", pid=-1, tid=-1, bits=bits, compact=True),
        build.perfinfo(0x0F2E, 12, b"x" * 16, bits=bits),
        build.perfinfo(0x0F2F, 13, b"y" * 16, bits=bits, counters=(5, 6, 7)),
        build.perfinfo(0x0F2F, 14, b"z", bits=bits, counters=(9,), pebs=1 << 40),
        build.full(GUID, 36, 15, b"rsds", version=2, level=3, bits=bits),
        build.full(GUID, 1, 16, b"i", bits=bits, instance=(21, 22, other)),
        build.manifest(GUID, 300, 17, b"user", pid=5, tid=6, version=1, channel=16, level=5, opcode=9, task=70,
                       keyword=1 << 63, activity=activity, bits=bits),
        build.manifest(GUID, 1, 18, b"payload", items=items, bits=bits),
    ]  # fmt: skip
    for event in made:
        trace.add(3, event)
    log = log_of(bytes(trace))
    events = list(log.events())[1:]
    assert log.damage == []
    assert [e.time for e in events] == list(range(10, 19))
    assert {e.cpu for e in events} == {3}
    assert {e.pointer_size for e in events} == {bits // 8}
    assert [e.header for e in events] == [made_kind[2] for made_kind in made]
    assert [e.hook for e in events] == [0x0301, 0x0524, 0x0F2E, 0x0F2F, 0x0F2F, -1, -1, -1, -1]
    assert [e.opcode for e in events] == [1, 0x24, 0x2E, 0x2F, 0x2F, 36, 1, 9, 0]
    assert [(e.pid, e.tid) for e in events[:3]] == [(1, 2), (-1, -1), (-1, -1)]
    assert [e.payload for e in events] == [
        b"abc", b"", b"x" * 16, b"y" * 16, b"z", b"rsds", b"i", b"user", b"payload",
    ]  # fmt: skip
    assert [e.counters for e in events] == [(), (), (), (5, 6, 7), (9,), (), (), (), (77, 88)]
    assert events[4].extended == [(7, struct.pack("<Q", 1 << 40))]
    assert events[8].extended == items
    user = events[7]
    assert (user.id, user.version, user.channel, user.level, user.task) == (300, 1, 16, 5, 70)
    assert (user.keyword, user.activity, user.provider, user.flags) == (1 << 63, activity, GUID, 0)
    assert events[0].provider == UUID("3d6fa8d0-fe05-11d0-9dda-00c04fd7ba7c").bytes_le
    assert (events[5].provider, events[5].level, events[5].version) == (GUID, 3, 2)
    block = list(log.blocks())[-1]
    fields = header_fields(block, int(np.flatnonzero(block.time == 16)[0]))
    assert (fields["InstanceId"], fields["ParentInstanceId"], fields["ParentGuid"]) == (21, 22, other)
    assert header_fields(block, int(np.flatnonzero(block.time == 10)[0]))["UserTime"] == 4


def test_image_load_has_the_provider_of_image_events():
    trace = build.Trace()
    trace.add(0, build.system(0x030A, 5))
    assert list(log_of(bytes(trace)).events())[1].provider == UUID("2cb15d1d-5fc1-11d2-abe1-00a0c911f518").bytes_le


def test_messages():
    trace = build.Trace()
    trace.add(0, build.perfinfo(0x0F2E, 50))
    trace.add(0, build.message(10, b"arguments", sequence=7, guid=GUID, time=60, ids=(8, 4), flags=0x80))
    trace.add(0, build.message(11, b"", component=99, guid=GUID, ids=(9, 5), flags=0x40))
    trace.add(0, build.message(12, b"bare"))
    trace.add(0, build.error(b"????"))
    trace.add(0, build.message(13, time=70))
    log = log_of(bytes(trace))
    events = list(log.events())[2:]
    assert [e.header for e in events] == [MESSAGE, MESSAGE, MESSAGE, 13, MESSAGE]
    assert [e.id for e in events] == [10, 11, 12, 0, 13]
    assert [e.time for e in events] == [60, 60, 60, 60, 70]  # those without a time have that of the one before
    assert [(e.tid, e.pid) for e in events] == [(8, 4), (9, 5), (-1, -1), (-1, -1), (-1, -1)]
    assert [e.provider for e in events[:2]] == [GUID, bytes(16)]
    assert [e.payload for e in events] == [b"arguments", b"", b"bare", b"????", b""]
    assert [e.pointer_size for e in events[:3]] == [8, 4, 8]
    block = list(log.blocks())[-1]
    assert header_fields(block, 1 + 1)["SequenceNumber"] == 7
    assert header_fields(block, 2 + 1)["ComponentId"] == 99
    chosen = [e.time for e in log.events(select=lambda b: b.id == 12)]
    assert chosen == [60]


def test_header_of_a_built_file():
    trace = build.Trace(bits=32, header={"clock": 3, "mhz": 2500, "lost": 5, "buffers_lost": 2, "end": 0})
    log = log_of(bytes(trace))
    assert (log.clock.name, log.clock.frequency) == ("TSC", 2_500_000_000)
    assert (log.events_lost, log.buffers_lost, log.header.end_time) == (5, 2, 0)
    assert (log.header.session_name, log.header.file_name) == build.NAMES
    assert (log.header.time_zone.bias, log.header.time_zone.standard_name) == (-60, "W. Europe")
    assert log.clock.wall == (trace.begin, (build.START_TIME - 116_444_736_000_000_000) * 100)
    assert next(log.events()).pid == 100
    assert log_of(bytes(trace), pointer_size=8).events().__next__().pointer_size == 8
    assert log_of(bytes(build.Trace(header={"names": ()}))).header.session_name == ""


def test_declared_sizes():
    sizes = {HEADERS[kind].name: HEADERS[kind].size for kind in (1, 3, 10, 11, 16, 18)}
    assert sizes == {"SYSTEM32": 32, "COMPACT32": 24, "FULL_HEADER32": 48, "INSTANCE32": 72, "PERFINFO32": 16,
                     "EVENT_HEADER32": 80}  # fmt: skip
    assert (packed(LOGFILE_HEADER, 4).size, packed(LOGFILE_HEADER, 8).size) == (0x110, 0x118)


def test_the_example_of_the_reference_reads_pointers_that_headers_state_wrongly(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parent.parent / "docs" / "reference" / "etl.md").read_text()
    name = "process_data_64_v3.etl"
    (tmp_path / name).write_bytes(real(f"syzygy.{name}"))
    monkeypatch.chdir(tmp_path)
    code = page.partition("```python\n")[2].partition("```")[0]
    exec(code, {})
    assert capsys.readouterr().out.count("'ImageFileName': 'notepad.exe'") == 2
    exec(code.replace(", pointer_size=8", ""), {})
    assert "notepad.exe'" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "change", [{"version": (5, 1, 1, 0)}, {"build": 2600}, {"version": (5, 0, 0, 0), "build": 2195}]
)
def test_a_file_from_before_vista_is_refused(change):
    with pytest.raises(FormatError, match="before Windows Vista"):
        log_of(bytes(build.Trace(header=change)))


@pytest.mark.parametrize("data", [b"", b"PERFILE2" * 20, bytes(4096), b"\xff" * 200])
def test_what_is_no_etl(data):
    assert not is_etl(data)
    with pytest.raises(FormatError, match=r"not an \.etl file|file is empty"):
        log_of(data)


# -- kinds of files


def sample(time, size=16):
    return build.perfinfo(0x0F2E, time, bytes(size))


def some_trace(events=300, cpus=3, **options):
    trace = build.Trace(**options)
    for i in range(events):
        trace.add(i * 7 % cpus, sample(trace.begin + 10 * i, i % 40))
    return trace


def times(log, **options):
    return [event.time for event in log.events(**options)]


@pytest.mark.parametrize("codec", [None, compress])
def test_time_order_over_processors(codec):
    trace = some_trace(compress=codec)
    log = log_of(bytes(trace))
    assert times(log) != sorted(times(log))
    assert times(log, ordered=True) == [trace.begin, *(trace.begin + 10 * i for i in range(300))]
    assert log.damage == []


def test_equal_times_stay_in_the_order_of_the_buffers():
    trace = build.Trace(size=1024)
    for i in range(60):
        trace.add(0, build.perfinfo(0x0F2F, 2_000_000 + i // 7, struct.pack("<I", i)))
    log = log_of(bytes(trace))
    order = [struct.unpack("<I", e.payload)[0] for e in log.events(ordered=True) if e.hook == 0x0F2F]
    assert order == list(range(60))


def test_a_circular_file_after_its_wrap():
    trace = some_trace(size=1024, header={"mode": 2})
    whole = bytes(trace)
    head, ring = whole[:1024], [whole[i : i + 1024] for i in range(1024, len(whole), 1024)]
    assert len(ring) > 6
    wrapped = head + b"".join(ring[5:] + ring[2:5])  # 0 and 1 were overwritten
    log = log_of(wrapped)
    got = times(log, ordered=True)
    assert got == sorted(times(log))
    cpu0 = [e.time for e in log.events(ordered=True) if e.cpu == 0]
    assert cpu0 == sorted(cpu0)


@pytest.mark.parametrize("mode", [0x21, 0x2])
@pytest.mark.parametrize("tail", [0, 1, 71, 100, 4095])
def test_room_that_was_never_written_to(mode, tail):
    trace = some_trace(header={"mode": mode})
    log = log_of(bytes(trace) + bytes(4096 * 5 + tail))
    assert len(times(log)) == 301
    assert (log.damage, log.skipped, log.unwritten) == ([], 0, 5 + bool(tail))
    log = log_of(bytes(trace) + bytes(some_trace(header={"mode": mode})) + bytes(4096 * 5))
    assert (len(times(log)), log.damage, log.unwritten) == (602, [], 5)


def test_a_file_that_was_appended_to():
    first = some_trace(30, header={"clock": 1, "boot": 5})
    hour = 36_000_000_000
    second = some_trace(30, begin=77, header={"clock": 1, "boot": 6, "start": build.START_TIME + hour})
    log = log_of(bytes(first) + bytes(second))
    got = times(log, ordered=True)
    assert got == sorted(got)
    assert len(got) == 62
    assert len(log.headers) == 2
    assert got[31] == first.begin + hour  # 10 MHz: a tick is 100 ns
    same_boot = some_trace(30, begin=2_000_000, header={"start": build.START_TIME + hour})
    log = log_of(bytes(some_trace(30)) + bytes(same_boot))
    assert times(log)[31] == 2_000_000


def test_buffers_that_processors_share_may_overlap():
    mode = 0x10000000
    events = [[sample(t) for t in (10, 30, 20, 50)], [sample(t) for t in (40, 60, 55)], [sample(70)]]
    trace = build.Trace(begin=0, header={"mode": mode, "processors": 1})
    data = bytes(trace) + b"".join(build.buffer(e, size=4096, sequence=i + 1) for i, e in enumerate(events))
    assert times(log_of(data), ordered=True) == [0, 10, 20, 30, 40, 50, 55, 60, 70]


def test_the_end_of_a_session_in_the_header_buffer_does_not_hold_up_the_rest():
    trace = some_trace(header_events=[build.system(0x0005, 5), build.system(0x0020, 1 << 40)])
    got = times(log_of(bytes(trace)), ordered=True)
    assert got == sorted(got)


def test_times_that_jump_back_do_not_fill_the_memory(monkeypatch):
    from lastbranch.formats.etl import merge

    monkeypatch.setattr(merge, "MOST_HELD", 5000)
    trace = build.Trace(size=1024)
    for i in range(2000):
        trace.add(i % 3, sample(1000 + i % 100 * 10))
    log = log_of(bytes(trace))
    held = []
    release = merge._release
    monkeypatch.setattr(merge, "_release", lambda s, u: held.append(sum(len(x.held) for x in s)) or release(s, u))
    assert sorted(times(log, ordered=True)) == sorted(times(log))
    assert max(held) < 12


def test_a_marker_ends_a_buffer_before_its_fill():
    body = [sample(5), b"\xff" * 8, sample(6)]
    log = log_of(bytes(build.Trace()) + build.buffer(body, size=4096))
    assert times(log)[1:] == [5]
    assert log.damage == []


def test_counts():
    trace = build.Trace()
    for i in range(10):
        trace.add(0, sample(i))
        trace.add(0, build.manifest(GUID, i % 2, i))
    counts = log_of(bytes(trace)).counts
    kernel = UUID("ce1dbfb4-137e-4da6-87b0-3f59aa102cbc").bytes_le
    assert counts[EventType(kernel, 0x0F2E, 0, 0x2E)] == 10
    assert counts[EventType(GUID, -1, 1, 0)] == 5
    assert sum(counts.values()) == 21


def test_large_and_many_buffers_take_every_path_of_the_walk():
    for size, buffers in ((1024, 400), (1 << 16, 20), (1 << 20, 2)):
        trace = build.Trace(size=size)
        expected = []
        while trace.sequence < buffers:
            trace.add(len(trace.log) % 5, sample(len(trace.log), len(trace.log) * 13 % 97))
        data = bytes(trace)
        expected = [row[5] for row in slow(data)]
        assert times(log_of(data)) == expected
        small = TraceLog(BytesSource(data))
        small._reader._window = size  # several windows for one file
        assert times(small) == expected
        assert len(times(small, ordered=True)) == len(expected)


# -- damage


def damaged(change, events=200, cpus=2, **options):
    """A log of buffers of 1 KiB whose bytes ``change`` altered, its times, and those of each undamaged buffer."""
    trace = some_trace(events, cpus, size=1024, **options)
    data = bytearray(bytes(trace))
    per_buffer = {}
    for row in slow(bytes(data)):
        per_buffer.setdefault(row[0], []).append(row[5])
    data = change(data) or data
    log = log_of(data)
    return log, times(log), per_buffer


def put(form, offset, value):
    return lambda data: struct.pack_into(form, data, offset, value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (put("<I", 2048, 0x77777777), "BufferSize"), (put("<I", 2048, 3), "BufferSize"),
        (put("<I", 2048, 2048), "BufferSize"), (put("<I", 2048 + 0x30, 71), "Offset"),
        (put("<I", 2048 + 0x30, 1025), "Offset"), (put("<I", 2048 + 0x30, 1 << 31), "Offset"),
    ],
)  # fmt: skip
def test_a_damaged_buffer_is_skipped_and_named(change, field):
    log, got, buffers = damaged(change)
    assert got == [t for at, part in buffers.items() if at != 2048 for t in part]
    assert [(d.offset, d.field, d.lost) for d in log.damage] == [(2048, field, 1024)]
    assert log.skipped == 1
    assert sorted(times(log, ordered=True)) == sorted(got)
    assert len(log.damage) == 1


@pytest.mark.parametrize("mode", [0, 1, 2, 0x21])
@pytest.mark.parametrize("zeroed", [(1024,), (2048,), (2048, 3072), (1024, 4096)])
@pytest.mark.parametrize("window", [1024, 2048, 1 << 20])
def test_zeros_before_a_later_buffer_are_damage(mode, zeroed, window):
    def change(data):
        for at in zeroed:
            data[at : at + 1024] = bytes(1024)

    log, got, buffers = damaged(change, header={"mode": mode})
    assert got == [t for at, part in buffers.items() if at not in zeroed for t in part]
    log._reader._window = window
    assert times(log) == got
    runs = [(2048, 2048)] if zeroed == (2048, 3072) else [(at, 1024) for at in zeroed]
    assert [(d.offset, d.field, d.value, d.lost) for d in log.damage] == [(at, "BufferSize", 0, n) for at, n in runs]
    assert (log.skipped, log.unwritten) == (len(zeroed), 0)
    assert sorted(times(log, ordered=True)) == sorted(got)
    assert len(log.damage) == len(runs)


@pytest.mark.parametrize("mode", [0, 1])
def test_zeros_at_the_end_of_a_file_that_reserves_no_room_are_damage(mode):
    trace = bytes(some_trace(header={"mode": mode}))
    log = log_of(trace + bytes(4096 * 5 + 100))
    assert len(times(log)) == 301
    assert [(d.offset, d.reason, d.lost) for d in log.damage] == [
        (len(trace), "zeros where a buffer should be", 4096 * 5 + 100)
    ]
    assert (log.skipped, log.unwritten) == (6, 0)


def test_a_zeroed_buffer_of_a_real_file():
    data = bytearray(real("ShutdownPerfDiagLogger.etl"))
    expected = [row[5] for row in slow(bytes(data)) if row[0] != 3 << 16]
    data[3 << 16 : 4 << 16] = bytes(1 << 16)
    log = log_of(data)
    index = [at for _, rows in log._reader.index() for at in rows.offset.tolist()]  # headers only
    assert 3 << 16 not in index
    assert [(d.offset, d.lost) for d in log.damage] == [(3 << 16, 1 << 16)]
    assert times(log) == expected
    assert len(expected) == 17_078 - 401
    assert log.skipped == 1


WRONG = [0, 3, 4096, 2048, 512, 1 << 20, 1 << 31]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("zeroed", [False, True])
def test_a_header_buffer_of_a_wrong_size_costs_nothing(wrong, zeroed):
    """Nor when the buffer behind it, which tells what is right, is damaged, too."""

    def change(data):
        struct.pack_into("<I", data, 0, wrong)
        if zeroed:
            data[1024:2048] = bytes(1024)

    log, got, buffers = damaged(change)
    assert got == [t for at, part in buffers.items() if not (zeroed and at == 1024) for t in part]
    found = [(d.offset, d.field, d.value) for d in log.damage]
    assert found == [(0, "BufferSize", wrong)] + [(1024, "BufferSize", 0)] * zeroed
    assert log.skipped == zeroed
    assert log.header.stride == 1024
    assert sorted(times(log, ordered=True)) == sorted(got)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_size_in_the_log_file_header_costs_nothing(wrong):
    log, got, buffers = damaged(put("<I", 72 + 0x20, wrong))
    assert got == [t for part in buffers.values() for t in part]
    assert [(d.offset, d.field, d.value) for d in log.damage] == [(72 + 0x20, "BufferSize", wrong)]
    assert (log.skipped, log.header.stride) == (0, 1024)


@pytest.mark.parametrize("at", [0, 72 + 0x20])
def test_a_wrong_size_where_only_the_header_buffer_is_left(at):
    data = bytearray(bytes(build.Trace(size=1024)))
    struct.pack_into("<I", data, at, 4096)
    log = log_of(data)
    assert times(log) == [1_000_000]
    assert [(d.offset, d.value) for d in log.damage] == [(at, 4096)]


def test_a_wrong_size_in_the_second_header_buffer():
    first, second = some_trace(30, size=1024), some_trace(30, size=1024, begin=2_000_000)
    data = bytearray(bytes(first) + bytes(second))
    expected = [row[5] for row in slow(bytes(data))]
    struct.pack_into("<I", data, len(bytes(first)), 4096)
    log = log_of(data)
    assert times(log) == expected
    assert [(d.offset, d.field, d.value) for d in log.damage] == [(len(bytes(first)), "BufferSize", 4096)]


@pytest.mark.parametrize("wrong", [4096, 1 << 20])
def test_a_wrong_size_in_the_header_buffer_of_a_real_file(wrong):
    data = bytearray(real("ShutdownPerfDiagLogger.etl"))
    expected = [row[5] for row in slow(bytes(data))]
    struct.pack_into("<I", data, 0, wrong)
    log = log_of(data)
    assert times(log) == expected
    assert [(d.offset, d.value, d.lost) for d in log.damage] == [(0, wrong, 0)]


@pytest.mark.parametrize("wrong", [0, 3, 700, 2049, 4096, 6000, 1 << 20, 1 << 31])
def test_a_wrong_size_in_the_header_buffer_of_a_compressed_file(wrong):
    """Only what fills the header buffer up may be taken for a gap."""
    data = bytearray(bytes(some_trace(400, 2, compress=compress)))
    expected = [row[5] for row in slow(bytes(data))]
    struct.pack_into("<I", data, 0, wrong)
    log = log_of(data)
    assert times(log) == expected
    gap = [(700, None, 2048 - 700)] if wrong == 700 else [(0, wrong, 0)]
    assert [(d.offset, d.value if d.offset == 0 else None, d.lost) for d in log.damage] == gap
    assert sorted(times(log, ordered=True)) == sorted(expected)


def test_a_damaged_buffer_behind_the_header_buffer_of_a_compressed_file():
    data = bytearray(bytes(some_trace(400, 2, compress=compress)))
    rows = slow(bytes(data))
    data[2048 : 2048 + 72] = b"\xff" * 72
    log = log_of(data)
    assert times(log) == [row[5] for row in rows if row[0] != 2048]
    assert [d.offset for d in log.damage] == [2048]


def test_two_damaged_buffers_and_lost_bytes():
    def change(data):
        struct.pack_into("<I", data, 2048, 5)
        struct.pack_into("<I", data, 3072, 5)

    log, got, buffers = damaged(change)
    assert got == [t for at, part in buffers.items() if at not in (2048, 3072) for t in part]
    assert log.skipped == 2
    log, got, buffers = damaged(lambda data: data[:2500] + data[2601:])
    assert {t for at, part in buffers.items() if at not in (2048, 3072) for t in part} <= set(got)
    assert [d.offset for d in log.damage][1] == 3072


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("<H", 2048 + 72 + 4, 0), "event smaller than its header"),
        (put("<H", 2048 + 72 + 4, 15), "event smaller than its header"),
        (put("<H", 2048 + 72 + 4, 2000), "event runs over the end of its buffer"),
        (put("<B", 2048 + 72 + 2, 99), "unknown event header"), (put("<I", 2048 + 72, 0), "unknown event header"),
        (put("<B", 2048 + 72 + 3, 0xB0), "unknown event header"),
    ],
)  # fmt: skip
def test_a_broken_chain_of_events_is_named(change, reason):
    log, got, buffers = damaged(change)
    assert got == [t for at, part in buffers.items() if at != 2048 for t in part]
    assert [(d.offset, d.reason) for d in log.damage] == [(2048 + 72, reason)]


def test_counters_longer_than_their_event():
    trace = build.Trace()
    trace.add(0, build.perfinfo(0x0F2F, 5, b"", version=2 | 7 << 8))
    trace.add(0, build.manifest(GUID, 1, 6, bytes(8), items=[(5, bytes(8))]))
    trace.add(0, sample(7))
    data = bytearray(bytes(trace))
    struct.pack_into("<H", data, 4096 + 72 + 16 + 80, 4000)  # size of the extended item
    log = log_of(data)
    events = list(log.events())[1:]
    assert [e.payload for e in events[:2]] == [b"", b""]
    assert events[2].time == 7
    assert [d.offset for d in log.damage] == [4096 + 72, 4096 + 72 + 16]


@pytest.mark.parametrize("windows7", [False, True])
def test_truncation_everywhere(windows7):
    trace = some_trace(40, 2, size=1024, windows7=windows7)
    data = bytes(trace)
    rows = slow(data)
    for cut in [*range(0, 1200, 7), *range(1200, len(data), 13)]:
        try:
            log = log_of(data[:cut])
        except FormatError:
            assert cut < 72 + 0x20 + 0x118 + 100
            continue
        got = times(log)
        assert got == [row[5] for row in rows if row[0] + row[1] + row[3] <= cut]
        assert sorted(times(log, ordered=True)) == sorted(got)
        last = cut // 1024 * 1024
        assert bool(log.damage) == (cut != last), cut


def test_compressed_truncation_and_damage():
    trace = some_trace(400, 2, compress=compress)
    data = bytes(trace)
    rows = slow(data)
    starts = sorted({row[0] for row in rows})
    lengths = dict(zip(starts, [*starts[1:], len(data)], strict=True))
    for cut in range(2048, len(data), 37):
        log = log_of(data[:cut])
        assert times(log) == [row[5] for row in rows if lengths[row[0]] <= cut]
        assert bool(log.damage) == (cut not in lengths.values()), cut
    victim = starts[2]
    for offset, value in ((0, b"\0\0\0\0"), (0, b"\xff\xff\xff\x7f"), (0x30, b"\1\0\0\0"), (72 + 4, b"\xff" * 40)):
        broken = bytearray(data)
        broken[victim + offset : victim + offset + len(value)] = value
        log = log_of(broken)
        assert times(log) == [row[5] for row in rows if row[0] != victim]
        assert log.skipped == 1
        assert victim <= log.damage[0].offset < lengths[victim]
        ordered = times(log, ordered=True)
        assert ordered == sorted(ordered)
        assert len(ordered) == len(times(log))


# -- properties

event_strategy = st.one_of(
    st.builds(lambda t, n: ("perfinfo", t, n), st.integers(0, 50), st.integers(0, 300)),
    st.builds(lambda t, n: ("system", t, n), st.integers(0, 50), st.integers(0, 300)),
    st.builds(lambda t, n: ("full", t, n), st.integers(0, 50), st.integers(0, 300)),
    st.builds(lambda t, n: ("manifest", t, n), st.integers(0, 50), st.integers(0, 300)),
    st.builds(lambda t, n: ("message", t, n), st.integers(0, 50), st.integers(0, 300)),
)


def make(kind, time, size, bits=64):
    body = bytes(i & 0xFF for i in range(size))
    if kind == "perfinfo":
        return build.perfinfo(0x0F2E, time, body, bits=bits, counters=range(size % 4))
    if kind == "system":
        return build.system(0x0501, time, body, bits=bits, compact=bool(size & 1))
    if kind == "full":
        return build.full(GUID, 1, time, body, bits=bits)
    if kind == "manifest":
        return build.manifest(GUID, 7, time, body, bits=bits, items=[(1, bytes(16))] * (size % 3))
    return build.message(3, body, time=time, guid=GUID if size & 1 else None)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, 4), event_strategy), max_size=120),
    st.sampled_from([1024, 4096, 65536]), st.booleans(), st.sampled_from([None, compress]),
)  # fmt: skip
def test_built_traces_come_back(events, size, windows7, codec):
    trace = build.Trace(size=size, windows7=windows7, compress=codec, begin=0)
    now = [0] * 5
    for cpu, (kind, step, length) in events:
        now[cpu] += step
        trace.add(cpu, make(kind, now[cpu], length))
    log = log_of(bytes(trace))
    per_cpu = {}
    for event in list(log.events())[1:]:
        per_cpu.setdefault(event.cpu, []).append((event.time, event.payload))
    expected = {}
    for cpu, (time, length) in zip((c for c, _ in trace.log), _expected(events), strict=True):
        expected.setdefault(cpu, []).append((time, bytes(i & 0xFF for i in range(length))))
    assert per_cpu == expected
    ordered = times(log, ordered=True)
    assert ordered == sorted(ordered)
    assert len(ordered) == len(events) + 1
    assert log.damage == []


def _expected(events):
    now = [0] * 5
    for cpu, (_, step, length) in events:
        now[cpu] += step
        yield now[cpu], length


SEEDS = [bytes(some_trace(80, 3, size=1024)), bytes(some_trace(200, 3, compress=compress)),
         bytes(some_trace(80, 3, size=1024, windows7=True, bits=32))]  # fmt: skip
_rich = build.Trace(size=2048)
for _i in range(60):
    _rich.add(_i % 2, make(["perfinfo", "system", "full", "manifest", "message"][_i % 5], _i, _i * 3))
SEEDS.append(bytes(_rich))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=6),
    st.floats(0, 1), st.integers(-40, 40),
)  # fmt: skip
@example(SEEDS[0], [], 0.5, 1)
def test_mutations_never_raise_anything_else(seed, changes, where, shift):
    data = bytearray(seed)
    for place, value in changes:
        at = int(place * (len(data) - 1))
        data[at : at + len(value)] = value
    at = int(where * len(data))
    if shift < 0:
        del data[at : at - shift]
    else:
        data[at:at] = bytes(shift)
    try:
        log = log_of(data)
    except FormatError:
        return
    events = list(log.events())
    assert len(list(log.events(ordered=True))) == len(events) == sum(log.counts.values())
    again = len(log.damage)
    assert len(list(log.events())) == len(events)
    assert len(log.damage) == again


def test_the_size_of_a_header_event_bounds_its_names():
    data = bytearray(bytes(build.Trace()))
    struct.pack_into("<H", data, 72 + 4, 0x20 + 0x118 + 5)
    assert read_header(BytesSource(bytes(data))).file_name == ""


def test_a_compressed_flag_in_a_file_that_is_not():
    trace = some_trace(60, 2, size=1024, state=9)
    data = bytearray(bytes(trace))
    data[2048 + 0x34] |= 0x40
    log = log_of(data)
    assert times(log) == [row[5] for row in slow(bytes(trace)) if row[0] != 2048]
    assert log.skipped == 1


def test_an_unknown_compression_format_is_taken_for_xpress():
    log = log_of(bytes(some_trace(60, 2, compress=compress, state=77)))
    assert len(times(log)) == 61
    assert log.damage[0].field == "State"
