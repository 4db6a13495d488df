"""The low level of the .etl reader: buffers, event walk, columns, order, damage.

Held against: a walk in plain `struct` (`slow`) on every real file, the lines that Microsoft's reader printed for four
of them (`*.baseline.txt`), and files from `etl_builder`, which shares nothing with the reader.
"""

import re
import struct
from collections import Counter
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

import etl_builder as build
from etl_oracle import COUNTS, GUID, LINE, as_row, largest_thorough, log_of, real, sample, slow, some_trace, times
from lastbranch.errors import FormatError
from lastbranch.formats.etl import EventType, TraceLog, compress, is_etl, read_header
from lastbranch.formats.etl.events.columns import header_fields
from lastbranch.formats.etl.layout import HEADERS, LOGFILE_HEADER, MESSAGE, packed
from lastbranch.model import BytesSource


@pytest.mark.parametrize("name", largest_thorough(COUNTS))
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


@pytest.mark.parametrize("name", largest_thorough(COUNTS))
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
        build.manifest(
            GUID,
            300,
            17,
            b"user",
            pid=5,
            tid=6,
            version=1,
            channel=16,
            level=5,
            opcode=9,
            task=70,
            keyword=1 << 63,
            activity=activity,
            bits=bits,
        ),
        build.manifest(GUID, 1, 18, b"payload", items=items, bits=bits),
    ]
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
        b"abc",
        b"",
        b"x" * 16,
        b"y" * 16,
        b"z",
        b"rsds",
        b"i",
        b"user",
        b"payload",
    ]
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
    trace.add(0, build.system(0x0F33, trace.begin + 1, bits=32))
    # The log file header is what the file is read by: an override is for the events behind it.
    assert [e.pointer_size for e in log_of(bytes(trace), pointer_size=8).events()] == [4, 8]
    assert log_of(bytes(build.Trace(header={"names": ()}))).header.session_name == ""


def test_declared_sizes():
    sizes = {HEADERS[kind].name: HEADERS[kind].size for kind in (1, 3, 10, 11, 16, 18)}
    assert sizes == {
        "SYSTEM32": 32,
        "COMPACT32": 24,
        "FULL_HEADER32": 48,
        "INSTANCE32": 72,
        "PERFINFO32": 16,
        "EVENT_HEADER32": 80,
    }
    assert (packed(LOGFILE_HEADER, 4).size, packed(LOGFILE_HEADER, 8).size) == (0x110, 0x118)


def test_the_example_of_the_reference_reads_pointers_that_headers_state_wrongly(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs" / "reference" / "etl.md").read_text()
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


@pytest.mark.parametrize("codec", [None, compress])
def test_time_order_over_processors(codec):
    trace = some_trace(compress=codec)
    log = log_of(bytes(trace))
    assert times(log) != sorted(times(log))
    assert times(log, ordered=True) == [trace.begin, *(trace.begin + 10 * i for i in range(300))]
    places = [sorted((e.buffer, e.offset, e.time) for e in log.events(ordered=o)) for o in (False, True)]
    assert places[0] == places[1]
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
    assert [t for block in log.ordered_blocks() for t in block.take(slice(None)).time.tolist()] == got
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
    from lastbranch.formats.etl.events import merge

    monkeypatch.setattr(merge, "MOST_HELD", 5000)
    trace = build.Trace(size=1024)
    for i in range(2000):
        trace.add(i % 3, sample(1000 + i % 100 * 10))
    log = log_of(bytes(trace))
    held = []
    release = merge.release
    monkeypatch.setattr(merge, "release", lambda waiting, until: held.append(len(waiting)) or release(waiting, until))
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
    for size, buffers in ((1024, 200), (1 << 16, 10), (1 << 20, 2)):
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
