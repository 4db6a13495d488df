"""The .etl writer: identity through declared fields, new files held against plain `struct`, bad input."""

import os
import random
import re
import struct
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl_builder as build
from etl_oracle import GUID, real, slow
from lastbranch.errors import FormatError
from lastbranch.formats.etl import (
    BufferRecord,
    Event,
    LogHeader,
    TraceFile,
    TraceLog,
    TraceWriter,
    decompress,
    encode_event,
    encode_record,
    read_header,
    read_records,
)
from lastbranch.formats.etl.container.header import encode_log_header
from lastbranch.formats.etl.container.writer import Packer
from lastbranch.formats.etl.kernel.hooks import hook_provider
from lastbranch.formats.etl.layout import LogFileMode
from lastbranch.formats.etl.single_event import encode_header
from lastbranch.model import BytesSource

USE_KBYTES = LogFileMode.USE_KBYTES_FOR_SIZE
UNCOMPRESSED = (
    "ShutdownPerfDiagLogger.etl", "diaghub.kernel.1.etl", "gcevents.PerfViewData.etl",
    "gcrundownevents.PerfViewData.clrRundown.etl", "primitive-types.etl", "AMSITrace.etl", "lxcore_kernel.etl",
    "syzygy.image_data_32_v0.etl", "syzygy.image_data_32_v2.etl", "syzygy.process_data_32_v1.etl",
    "syzygy.process_data_64_v3.etl", "krabs.powershell.etl", "waasmedic.20251005_113019_195.etl",
    "WindowsUpdate.20251008.140245.443.8.etl",
)  # fmt: skip
COMPRESSED = ("net.4.5.2.x64.etl", "SelfDescribingSingleEvent.etl", "smallEtlFile.etl")
START = build.START_TIME


def parts_of(data):
    return list(read_records(BytesSource(data, "test.etl")))


def joined(parts):
    return b"".join(encode_record(part) for part in parts)


def log_of(path):
    return TraceLog(BytesSource(Path(path).read_bytes(), str(path)))


def said(event):
    """What must come back of an event."""
    return (
        event.header,
        event.time,
        event.pid,
        event.tid,
        event.hook,
        event.provider,
        event.id,
        event.version,
        event.opcode,
        event.level,
        event.task,
        event.channel,
        event.keyword,
        event.activity,
        event.counters,
        tuple(event.extended),
        event.payload,
    )


# -- identity


@pytest.mark.parametrize("name", UNCOMPRESSED)
def test_every_real_uncompressed_file_comes_out_byte_for_byte(name):
    data = real(name)
    parts = parts_of(data)
    assert all(isinstance(part, BufferRecord) for part in parts)
    for event in (event for part in parts for event in part.events):
        assert not event.event.payload  # nothing to copy from but fields …
        assert event.fields is None or not event.payload  # … or the payload that no table describes
        assert "Size" not in event.header
    assert joined(parts) == data


@pytest.mark.parametrize("name", COMPRESSED)
def test_real_compressed_buffers_come_out_with_the_same_content(name):
    at, data = 0, real(name)
    for part in islice(read_records(BytesSource(data)), 12):
        length, used, flags = struct.unpack_from("<I44xIH", data, at)
        original = data[at : at + length]
        again = encode_record(part)
        if flags & 0x40:
            assert again[4:72] == original[4:72]
            assert struct.unpack_from("<I", again)[0] == len(again)
            assert decompress(again[72:], used - 72) == decompress(original[72:], used - 72)
        else:
            assert again == original
        at += length


def test_what_is_written_are_the_fields():
    data = real("ShutdownPerfDiagLogger.etl")
    buffer = parts_of(data)[1]
    event = next(e for e in buffer.events if e.fields and "ProcessID" in e.fields)
    event.header["TimeStamp"] += 5
    event.fields["ProcessID"] = 4711
    buffer.header["SequenceNumber"] = 99
    again = encode_record(buffer)
    assert struct.unpack_from("<q", again, 0x18) == (99,)
    size = struct.unpack_from("<I", data)[0]
    before = data[size : 2 * size]
    changed = [i for i in range(size) if before[i] != again[i]]
    assert 0 < len(changed) <= 1 + 8 + 4


@pytest.mark.parametrize("name", ["ShutdownPerfDiagLogger.etl", "diaghub.kernel.1.etl", "krabs.powershell.etl"])
def test_dropping_an_event_changes_only_its_buffer_and_the_bytes_in_use(name):
    data = real(name)
    parts = parts_of(data)
    number = next(i for i, p in enumerate(parts) if i and len(p.events) > 2)
    gone = parts[number].events.pop(1)
    again = joined(parts)
    size = struct.unpack_from("<I", data)[0]
    assert len(again) == len(data)
    places = [at for at in range(0, len(data), size) if data[at : at + size] != again[at : at + size]]
    assert places == [number * size]
    old, new = data[places[0] : places[0] + size], again[places[0] : places[0] + size]
    assert {at // 4 * 4 for at in range(72) if old[at] != new[at]} == {0x30}
    left = [e for e in slow(data) if (e[0], e[1]) != (places[0], gone.event.offset)]
    assert [(*e[:1], *e[2:]) for e in slow(again)] == [(*e[:1], *e[2:]) for e in left]


def test_a_cut_file_and_its_damage_come_out_as_they_were():
    trace = build.Trace()
    for i in range(300):
        trace.add(i % 2, build.system(0x0F33, 1_000_000 + i, bytes(40)))
    whole = bytes(trace)
    for cut in (len(whole) - 100, len(whole) - 3000, 4096 + 50, 4096 * 2 + 80):
        assert joined(parts_of(whole[:cut])) == whole[:cut]
    hurt = bytearray(whole)
    hurt[4096 * 2 : 4096 * 2 + 8] = b"\x11" * 8  # no buffer
    hurt[4096 + 200 : 4096 + 204] = b"\0" * 4  # no event
    assert joined(parts_of(bytes(hurt))) == bytes(hurt)


def test_extended_items_without_a_size_come_out_as_they_were():
    """Damage within an event: an item of size 0 has no end."""
    event = build.manifest(GUID, 3, 1_000_001, b"abcd", items=[(11, b"12345678"), (5, bytes(24))])
    for size in (0, 7, 0xFFFF):
        for at in (0x50, 0x60):
            spoiled = event[:at] + struct.pack("<H", size) + event[at + 2 :]
            trace = build.Trace()
            trace.add(0, spoiled)
            assert joined(parts_of(bytes(trace))) == bytes(trace)


def test_growing_events_take_the_unused_room_and_no_more():
    trace = build.Trace()
    trace.add(0, build.manifest(GUID, 1, 1_000_001, b"abc"))
    trace.add(0, build.manifest(GUID, 1, 1_000_002, b"abc", items=[(1, bytes(16)), (13, b"12345")]))
    parts = parts_of(bytes(trace))
    parts[1].events[0].payload = b"x" * 1000
    (_, first, second) = TraceLog(BytesSource(joined(parts))).events()
    assert (first.payload, second.payload) == (b"x" * 1000, b"abc")
    assert second.extended == [(1, bytes(16)), (13, b"12345")]
    parts[1].events[0].payload = bytes(4096)
    with pytest.raises(FormatError, match="do not fit"):
        joined(parts)
    parts[1].events[0].payload = bytes(0xFFFF)
    with pytest.raises(FormatError, match="at most"):
        joined(parts)


# -- event bytes, against the builder


def kernel(hook, time, payload=b"", *, header=2, pid=4, tid=8, cpu=0, counters=(), extended=(), version=2):
    if header in (16, 17):
        pid = tid = -1
    return Event(
        header,
        4 if header in (1, 3, 16) else 8,
        time,
        pid,
        tid,
        cpu,
        hook,
        hook_provider(hook),
        0,
        version,
        hook & 0xFF,
        counters=counters,
        extended=list(extended),
        payload=payload,
    )


def test_event_bytes_are_those_of_the_builder():
    for header, bits, compact in ((1, 32, False), (2, 64, False), (3, 32, True), (4, 64, True)):
        expected = build.system(0x0501, 77, b"payload", bits=bits, compact=compact)
        assert encode_event(kernel(0x0501, 77, b"payload", header=header)) == expected
    pebs = [(7, struct.pack("<Q", 5))]
    for header, bits in ((16, 32), (17, 64)):
        expected = build.perfinfo(0x0F2E, 77, b"p", bits=bits, counters=(1, 2**63), pebs=5)
        assert encode_event(kernel(0x0F2E, 77, b"p", header=header, counters=(1, 2**63), extended=pebs)) == expected
    for header, bits in ((10, 32), (20, 64), (11, 32), (21, 64)):
        instance = (1, 2, GUID) if header in (11, 21) else None
        event = Event(header, bits // 8, 9, 1, 2, 0, -1, GUID, 0, 3, 36, 5, payload=b"xyz")
        expected = build.full(GUID, 36, 9, b"xyz", pid=1, tid=2, version=3, level=5, bits=bits, instance=instance)
        assert encode_event(event, InstanceId=1, ParentInstanceId=2, ParentGuid=GUID) == expected
    items = [(1, bytes(16)), (11, b"schema"), (8, bytes(16))]
    event = Event(19, 8, 9, 1, 2, 0, -1, GUID, 300, 1, 2, 3, 4, 5, 6, 0, GUID, items, (0, 0), payload=b"xyz")
    expected = build.manifest(
        GUID,
        300,
        9,
        b"xyz",
        pid=1,
        tid=2,
        version=1,
        opcode=2,
        level=3,
        task=4,
        channel=5,
        keyword=6,
        activity=GUID,
        items=items,
    )
    assert encode_event(event) == expected
    assert encode_event(replace(event, extended=items[:2], counters=(0, 0))) == expected
    flags = 0x01 | 0x02 | 0x08 | 0x20
    event = Event(0x90, 8, 9, 1, 2, 0, -1, GUID, 12, 0, 0, flags=flags, payload=b"m")
    expected = build.message(12, b"m", sequence=6, guid=GUID, time=9, ids=(2, 1))
    assert encode_event(event, SequenceNumber=6) == expected
    assert encode_event(Event(13, 8, 0, -1, -1, 0, -1, bytes(16), 0, 0, 0, payload=b"e")) == build.error(b"e")


def test_the_log_header_is_that_of_real_files():
    for name in (*UNCOMPRESSED, *COMPRESSED):
        data = real(name)
        header = read_header(BytesSource(data))
        made = encode_log_header(header)
        first = data[72 : 72 + struct.unpack_from("<H", data, 76)[0]]
        assert len(made) <= len(first)
        assert made[8:24] == first[8:24]  # then KernelTime and UserTime, which `LogHeader` has no room for
        assert made[32:] == first[32 : len(made)]  # the name strings of some are followed by leftovers
        assert made[2] == first[2]


@pytest.mark.parametrize(
    "event",
    [
        Event(99, 8, 0, 0, 0, 0, -1, GUID, 0, 0, 0),
        Event(2, 8, 0, 0, 0, 0, -1, GUID, 0, 0, 0),
        Event(20, 8, 0, 0, 0, 0, -1, GUID, 0, 0, 0, payload=bytes(0xFFFF)),
        Event(20, 8, 2**63, 0, 0, 0, -1, GUID, 0, 0, 0),
        Event(17, 8, 0, 0, 0, 0, 0x0F2E, GUID, 0, 0, 0, counters=(1,) * 8),
        Event(17, 8, 0, 0, 0, 0, 0x0F2E, GUID, 0, 0, 0, extended=[(1, bytes(16))]),
        Event(19, 8, 0, 0, 0, 0, -1, GUID, 1, 0, 0, extended=[(1, bytes(0xFFFF))]),
        Event(19, 8, 0, 0, 0, 0, -1, GUID, 1, 300, 0),
        Event(0x90, 8, 2**63, 0, 0, 0, -1, GUID, 1, 0, 0, flags=8),
    ],
)
def test_events_that_no_header_can_say_are_refused(event):
    with pytest.raises(FormatError) as refused:
        encode_event(event)
    assert not re.search("requires|argument|unpack|format '", str(refused.value)), "Python's own words"


def test_headers_that_lack_a_field_are_refused():
    with pytest.raises(FormatError, match="TimeStamp"):
        encode_header(17, {"Version": 2, "HeaderType": 17, "MarkerFlags": 0xC0, "Size": 16, "Type": 0, "Group": 0})
    with pytest.raises(FormatError, match="PointerSize"):
        encode_log_header(LogHeader(pointer_size=3))


# -- new files


def events_strategy():
    payload = st.binary(max_size=300)
    pid = st.integers(0, 2**31 - 1)
    counters = st.lists(st.integers(0, 2**64 - 1), max_size=7).map(tuple)
    guid = st.binary(min_size=16, max_size=16)
    byte = st.integers(0, 255)
    items = st.lists(st.tuples(st.sampled_from((1, 2, 3, 6, 11, 12, 13)), st.binary(max_size=40)), max_size=4)
    system = st.builds(
        lambda h, hook, p, pid, tid, c, v: kernel(hook, 0, p, header=h, pid=pid, tid=tid, counters=c, version=v),
        st.sampled_from((1, 2, 3, 4, 16, 17)),
        st.integers(1, 0xFFFF),
        payload,
        pid,
        pid,
        counters,
        byte,
    )
    full = st.builds(
        lambda h, g, t, v, lv, p, a, b: Event(h, 8 if h > 19 else 4, 0, a, b, 0, -1, g, 0, v, t, lv, payload=p),
        st.sampled_from((10, 11, 20, 21)),
        guid,
        byte,
        byte,
        byte,
        payload,
        pid,
        pid,
    )
    manifest = st.builds(
        lambda h, g, n, b, k, i, p, a, t: Event(
            h, 4 if h == 18 else 8, 0, a, t, 0, -1, g, n, b[0], b[1], b[2], n, b[3], k, bool(i), g, i, (), payload=p
        ),
        st.sampled_from((18, 19)),
        guid,
        st.integers(0, 0xFFFF),
        st.tuples(byte, byte, byte, byte),
        st.integers(0, 2**64 - 1),
        items,
        payload,
        pid,
        pid,
    )
    event = st.one_of(system, full, manifest)
    return st.lists(st.tuples(event, st.integers(0, 3), st.integers(0, 50)), max_size=120)


@settings(max_examples=60, deadline=None)
@given(events_strategy(), st.booleans(), st.sampled_from((1024, 4096, 65536)))
def test_random_traces_read_back_equal(tmp_path_factory, drawn, compress, size):
    path = tmp_path_factory.mktemp("random") / "out.etl"
    time, events = 1000, []
    with TraceWriter(path, LogHeader(buffer_size=size, processors=4, timestamp=1000), compress=compress) as writer:
        for event, cpu, step in drawn:
            time += step
            events.append(replace(event, time=time, cpu=cpu))
            writer.add(events[-1])
    log = log_of(path)
    got = list(log.events(ordered=True))[1:]
    assert not log.damage
    for cpu in range(4):
        assert [said(e) for e in got if e.cpu == cpu] == [said(e) for e in events if e.cpu == cpu]
    assert [e.time for e in got] == [e.time for e in events]
    assert log.header.buffers_written == len(log.index().buffers)
    if not any(e.counters for e in events):
        walked = slow(path.read_bytes())[1:]
        assert sorted((r[8], r[5], r[2], r[-1]) for r in walked) == sorted(
            (e.cpu, e.time, e.header, e.payload) for e in events
        )


def many(count, *, cpus=3, begin=1000, size=100):
    for i in range(count):
        yield kernel(0x0F33, begin + i, struct.pack("<I", i) + bytes(size - 4), cpu=i % cpus)


def numbers(log):
    return [struct.unpack_from("<I", e.payload)[0] for e in log.events(ordered=True) if e.hook == 0x0F33]


def written(path, events, header=None, **options):
    with TraceWriter(path, header or header_of(), **options) as writer:
        for event in events:
            writer.add(event)
    return writer


def header_of(**values):
    known = {
        "buffer_size": 4096,
        "processors": 3,
        "timestamp": 1000,
        "start_time": START,
        "perf_freq": 1000,
        "session_name": "sitzung",
        "file_name": "C:\\x.etl",
    }
    return LogHeader(**{**known, **values})


def test_a_complete_log_without_a_wall_time_has_an_end_time(tmp_path):
    written(tmp_path / "x.etl", [], header_of(start_time=0))
    assert log_of(tmp_path / "x.etl").header.end_time == 1  # 0 is that of a session that still runs


@pytest.mark.parametrize("compress", [False, True])
def test_a_new_file_keeps_the_rules(tmp_path, compress):
    path = tmp_path / "new.etl"
    masks = kernel(0x0005, 1000, struct.pack("<9I", *range(9)))
    written(path, many(500), compress=compress, header_events=[masks])
    data = path.read_bytes()
    at, sequence, flags_seen = 0, [], []
    while at < len(data):
        length, saved, _, refs, time, number, _, cpu, _, state, used, flags, kind = struct.unpack_from(
            "<IIIiqqQHHIIHH", data, at
        )
        assert (saved, refs) == (used, 0)
        assert kind == (0 if at else 4)
        assert state == 3
        sequence.append(number)
        flags_seen.append(flags)
        if not compress:
            assert length == 4096
            assert set(data[at + used : at + length]) <= {0xFF}
        assert (time == 0) == (at == 0)
        assert cpu < 3
        at += length
    assert at == len(data)
    assert sequence == list(range(len(sequence)))
    assert flags_seen[0] == 0x21
    assert all(flags == 0x20 | compress * 0x40 for flags in flags_seen[1:-1])
    assert flags_seen[-1] == 0x21 | compress * 0x40
    log = log_of(path)
    header = log.header
    assert header.buffers_written == len(sequence)
    assert header.end_time == START + 499 * 10_000
    assert (header.session_name, header.file_name) == ("sitzung", "C:\\x.etl")
    assert header.compressed is compress
    assert header.sub_version == (2 if compress else 1)
    assert (header.pointer_size, header.frequency, header.timestamp) == (8, 1000, 1000)
    assert numbers(log) == list(range(500))
    assert next(e for e in log.events() if e.hook == 5).payload == masks.payload
    assert not log.damage


def test_a_series_of_files(tmp_path):
    header = header_of(mode=8 | USE_KBYTES, maximum_file_size=16)
    written(tmp_path / "part%d.etl", many(500), header)
    names = sorted(tmp_path.iterdir(), key=lambda p: int(p.stem[4:]))
    assert [p.name for p in names] == [f"part{i + 1}.etl" for i in range(len(names))]
    assert len(names) > 3
    found, sequence = [], []
    for path in names:
        log = log_of(path)
        assert path.stat().st_size <= 16 << 10
        assert log.header.buffers_written == len(log.index().buffers)
        assert log.header.start_time <= log.header.end_time
        found += numbers(log)
        sequence += [int(s) for s in log.index().buffers.sequence if s]
    assert sorted(found) == list(range(500))
    assert sequence == list(range(1, len(sequence) + 1))


def test_a_ring_keeps_the_newest(tmp_path):
    path = tmp_path / "ring.etl"
    written(path, many(1000, cpus=1), header_of(mode=2 | USE_KBYTES, maximum_file_size=24, processors=1))
    assert path.stat().st_size == 24 << 10
    log = log_of(path)
    got = numbers(log)
    assert got == list(range(got[0], 1000))
    assert 100 < len(got) < 200
    assert log.header.buffers_written > len(log.index().buffers) == 6
    assert not log.damage


def test_a_session_is_appended(tmp_path):
    path = tmp_path / "more.etl"
    mode = 0x5  # SEQUENTIAL, APPEND
    written(path, many(100), header_of(mode=mode))  # there is nothing yet
    before = path.read_bytes()
    written(path, many(50), header_of(mode=mode))
    assert path.read_bytes()[: len(before)] == before
    log = log_of(path)
    assert sorted(numbers(log)) == sorted([*range(100), *range(50)])
    assert len(log.headers) == 2
    assert log.headers[1].buffers_written + log.headers[0].buffers_written == len(log.index().buffers)
    assert not log.damage
    with pytest.raises(FormatError, match="the same buffer size"):
        written(path, many(5), header_of(mode=mode, buffer_size=8192))
    path.write_bytes(b"no log at all" * 100)
    with pytest.raises(FormatError, match=r"not an \.etl file"):
        written(path, many(5), header_of(mode=mode))
    assert path.read_bytes() == b"no log at all" * 100
    assert [p.name for p in tmp_path.iterdir()] == ["more.etl"]


@pytest.mark.parametrize("seed", range(4))
def test_a_compressed_ring_keeps_the_newest(tmp_path, seed):
    """Its buffers have all sizes; what it keeps is as much as there is room for."""
    rng, path, room = random.Random(seed), tmp_path / "ring.etl", 24 << 10
    events = [
        kernel(0x0F33, 1000 + i, struct.pack("<I", i) + rng.randbytes(rng.choice((8, 900))))
        for i in range(rng.choice((5, 400)))
    ]
    header = header_of(mode=2 | USE_KBYTES, maximum_file_size=24, processors=1)
    written(path, events, header, compress=True)
    log, size = log_of(path), path.stat().st_size
    got = numbers(log)
    assert got == list(range(got[0], len(events)))
    assert not log.damage
    assert size <= room
    assert len(events) == len(got) or size > room - 4096 - 72
    buffers = log.index().buffers
    assert log.header.buffers_written - len(buffers) == int(buffers.sequence[1]) - 1
    assert buffers.flags[-1] & 1  # FLUSH_MARKER on the last one
    assert [p.name for p in tmp_path.iterdir()] == ["ring.etl"]


def test_a_compressed_session_is_appended(tmp_path):
    path = tmp_path / "more.etl"
    mode = 0x5  # SEQUENTIAL, APPEND
    written(path, many(100), header_of(mode=mode), compress=True)
    before = path.read_bytes()
    written(path, many(50), header_of(mode=mode), compress=True)
    assert path.read_bytes()[: len(before)] == before
    log = log_of(path)
    assert sorted(numbers(log)) == sorted([*range(100), *range(50)])
    assert len(log.headers) == 2
    assert not log.damage
    with pytest.raises(FormatError, match="and compression"):
        written(path, many(5), header_of(mode=mode))
    assert log_of(path).counts == log.counts


@pytest.mark.parametrize("ring", [0, 2])
def test_a_reserved_file_gives_back_what_it_does_not_need(tmp_path, ring):
    path, room = tmp_path / "room.etl", 64 << 10
    header = header_of(mode=0x20 | ring | USE_KBYTES, maximum_file_size=64)
    with TraceWriter(path, header) as writer:
        (part,) = tmp_path.iterdir()
        assert part.stat().st_size == room
        for event in many(100):
            writer.add(event)
    assert path.stat().st_size < room
    log = log_of(path)
    assert sorted(numbers(log)) == list(range(100))
    assert not log.damage
    assert log.unwritten == 0


def test_a_full_file_counts_what_it_loses(tmp_path):
    writer = written(tmp_path / "full.etl", many(1000, cpus=1), header_of(mode=1 | USE_KBYTES, maximum_file_size=16))
    log = log_of(tmp_path / "full.etl")
    assert log.buffers_lost == writer.file.buffers_lost > 0
    assert numbers(log) == list(range(len(numbers(log))))


def test_one_stream_of_buffers_for_all_processors(tmp_path):
    written(tmp_path / "one.etl", many(100), header_of(mode=1 | 0x10000000, processors=1))
    log = log_of(tmp_path / "one.etl")
    assert set(log.index().buffers.cpu.tolist()) == {0}
    assert numbers(log) == list(range(100))


def test_32_bit_logs(tmp_path):
    written(tmp_path / "32.etl", [kernel(0x0F33, 1000, bytes(4), header=1)], header_of(pointer_size=4))
    log = log_of(tmp_path / "32.etl")
    assert log.header.pointer_size == 4
    assert [(e.header, e.pointer_size) for e in log.events()] == [(1, 4), (1, 4)]


def test_losses_can_be_told(tmp_path):
    with TraceWriter(tmp_path / "lost.etl", header_of()) as writer:
        writer.file.events_lost = 7
    assert log_of(tmp_path / "lost.etl").events_lost == 7


def test_incompressible_events_stay_as_they_are(tmp_path):
    noise = np.random.default_rng(1).bytes(3000)
    written(tmp_path / "noise.etl", [kernel(0x0F33, 1000, noise), kernel(0x0F33, 1001, bytes(3000))], compress=True)
    log = log_of(tmp_path / "noise.etl")
    assert [e.payload for e in log.events()][1:] == [noise, bytes(3000)]
    assert not log.damage


# -- what does not work leaves nothing behind


def test_an_exception_leaves_what_was_there(tmp_path):
    path = tmp_path / "kept.etl"
    path.write_bytes(b"before")

    def interrupted():
        yield from many(300)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        written(path, interrupted())
    assert [p.name for p in tmp_path.iterdir()] == ["kept.etl"]
    assert path.read_bytes() == b"before"


def test_a_failing_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "kept.etl"
    path.write_bytes(b"before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        written(path, many(3))
    assert [p.name for p in tmp_path.iterdir()] == ["kept.etl"]
    assert path.read_bytes() == b"before"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"buffer_size": 512}, "BufferSize"),
        ({"buffer_size": 5000}, "BufferSize"),
        ({"buffer_size": 32 << 20}, "BufferSize"),
        ({"mode": 2}, "circular"),
        ({"mode": 2 | 4, "maximum_file_size": 1}, "a circular file cannot be appended to"),
        ({"mode": 2 | 8, "maximum_file_size": 1}, "or be one of a series"),
        ({"mode": 8 | 0x20, "maximum_file_size": 1}, "cannot be preallocated"),
        ({"mode": 8 | 4, "maximum_file_size": 1}, "cannot be appended to"),
        ({"mode": 0x20}, "preallocated file needs a MaximumFileSize"),
        ({"mode": 8, "maximum_file_size": 1}, "%d"),
        ({"mode": 1 | USE_KBYTES, "maximum_file_size": 4}, "no room"),
        ({"session_name": "x" * 2000}, "do not fit"),
        (
            {"perf_freq": 2**63},
            "log file header cannot be written: .* does not fit in a field of 8 bytes",
        ),
    ],
)
def test_logs_that_cannot_be_are_refused(tmp_path, values, reason):
    with pytest.raises(FormatError, match=reason):
        TraceWriter(tmp_path / "no.etl", header_of(**values))
    assert not list(tmp_path.iterdir())


def test_events_that_cannot_be_are_refused(tmp_path):
    with TraceWriter(tmp_path / "some.etl", header_of()) as writer:
        writer.add(kernel(0x0F33, 1010))
        for bad in (
            kernel(0x0F33, 1009),
            kernel(0x0F33, 999, cpu=1),
            kernel(0x0F33, 1020, bytes(5000)),
            kernel(0, 1020),
            kernel(0x0F33, 1011, cpu=1 << 16),
        ):
            if bad.cpu < 1 << 16:
                with pytest.raises(FormatError):
                    writer.add(bad)
        writer.add(kernel(0x0F33, 1010))
    assert [e.time for e in log_of(tmp_path / "some.etl").events()][1:] == [1010, 1010]
    with pytest.raises(ValueError, match="closed"):
        writer.file.write(0, b"", 0)


def test_buffers_that_cannot_be_are_refused(tmp_path):
    file = TraceFile(tmp_path / "x.etl", header_of())
    with pytest.raises(FormatError):
        file.write(1 << 16, b"", 0)
    with pytest.raises(FormatError):
        file.write(0, bytes(4096), 0)
    with pytest.raises(FormatError, match="larger than a buffer"):
        Packer(file).extend(0, bytes(8000), np.array([8000]), np.array([1]))
    file.discard()
    file.discard()
    assert not list(tmp_path.iterdir())
