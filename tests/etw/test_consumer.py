"""OpenTrace, ProcessTrace and CloseTrace over log files: EVENT_RECORDs against the bytes of the files, order, ends."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl_builder as build
from etl_oracle import FULL, GUID, real, sample, slow, some_trace
from lastbranch.etw import consumer_api as consumer
from lastbranch.etw.consumer_api import (
    INVALID_PROCESSTRACE_HANDLE,
    CloseTrace,
    Logfile,
    OpenTrace,
    ProcessTrace,
    close_trace,
    open_trace,
    process_trace,
)
from lastbranch.etw.event_records import event_of
from lastbranch.etw.events import CallbackChannel, consume
from lastbranch.etw.flags import ProcessTraceMode
from lastbranch.etw.status import EtwError, Status
from lastbranch.etw.streams import LiveStream
from lastbranch.etw.structures import structure
from lastbranch.formats.etl import Decoder, Event, TraceLog
from lastbranch.formats.etl import events_of as stream_events
from lastbranch.formats.etl.events import merge as run_block
from lastbranch.model import BytesSource
from late_manifests import late_manifest

RECORDS, RAW = ProcessTraceMode.EVENT_RECORD, ProcessTraceMode.RAW_TIMESTAMP
REAL = (
    "diaghub.kernel.1.etl", "AMSITrace.etl", "krabs.powershell.etl", "primitive-types.etl", "smallEtlFile.etl",
    "SelfDescribingSingleEvent.etl", "syzygy.image_data_32_v0.etl", "syzygy.process_data_64_v3.etl",
    "waasmedic.20251005_113019_195.etl", "gcevents.PerfViewData.etl",
)  # fmt: skip
GROUPS = {  # Geoff Chappell's table of hook ids
    0x00: "68fdd900-4a3e-11d1-84f4-0000f80464e3", 0x01: "3d6fa8d4-fe05-11d0-9dda-00c04fd7ba7c",
    0x02: "3d6fa8d3-fe05-11d0-9dda-00c04fd7ba7c", 0x03: "3d6fa8d0-fe05-11d0-9dda-00c04fd7ba7c",
    0x05: "3d6fa8d1-fe05-11d0-9dda-00c04fd7ba7c", 0x0B: "01853a65-418f-4f36-aefc-dc0f1d2fd235",
    0x0F: "ce1dbfb4-137e-4da6-87b0-3f59aa102cbc", 0x11: "89497f50-effe-4440-8cf2-ce6b1cdcaca7",
    0x14: "2cb15d1d-5fc1-11d2-abe1-00a0c911f518", 0x18: "def2fe46-7bd6-4b80-bd94-f57fe20d0ce3",
}  # fmt: skip
HEADER = struct.Struct("<HHHHIIq16sHBBBBHQQ16s")  # EVENT_HEADER, evntcons.h
CLASSIC = 0x100 | 0x200
LEGACY = 4


def write(tmp_path: Path, data: Any, name: str = "x.etl") -> str:
    path = tmp_path / name
    path.write_bytes(bytes(data))
    return str(path)


def delivered(raw: bytes, cpu: int, logger: int, clock: Any) -> tuple[Any, ...]:
    """What a consumer is given of the event ``raw``: EVENT_HEADER, context, extended items, user data."""
    kind = raw[2]
    wide = 0x40 if kind in (2, 4, 17, 19, 20, 21) else 0x20
    context = struct.pack("<HH", cpu, logger)
    items: list[tuple[int, bytes]] = []
    if kind in (18, 19):
        size, _, flags, prop, tid, pid, time, guid, *rest = HEADER.unpack_from(raw)
        at, more = 0x50, flags & 1
        while more:
            step, item, link, length = struct.unpack_from("<HHHH", raw, at)
            items.append((item, raw[at + 8 : at + 8 + length]))
            at, more = at + step, link & 1
        head = HEADER.pack(size, 0, flags | wide | 0x200, prop, tid, pid, clock(time), guid, *rest)
        return head, context, items, raw[at:]
    if kind in FULL:
        size, type_, level, version, tid, pid, time, guid, times = struct.unpack_from("<H2xBBHIIq16sQ", raw)
        at = FULL[kind]
        if at == 0x48:
            items.append((4, raw[0x30:0x48]))
    else:
        version, size, hook = struct.unpack_from("<H2xHH", raw)
        type_, level, times, at = hook & 0xFF, 0, 0, {16: 0x10, 17: 0x10, 1: 0x20, 2: 0x20, 3: 0x18, 4: 0x18}[kind]
        tid = pid = 0xFFFFFFFF
        (time,) = struct.unpack_from("<q", raw, 8)
        if kind < 16:
            tid, pid, time = struct.unpack_from("<IIq", raw, 8)
        if kind < 3:
            (times,) = struct.unpack_from("<Q", raw, 0x18)
        guid = UUID(GROUPS[0x14 if hook == 0x030A else hook >> 8]).bytes_le
        if count := version >> 8 & 7:
            items.append((8, raw[at : at + 8 * count]))
            at += 8 * count
        if version & 0x8000:
            items.append((7, raw[at : at + 8]))
            at += 8
    data = raw[at:]
    flags = CLASSIC | wide | bool(items)
    rest = (0, version & 0xFF, 0, level, type_, 0, 0, times, bytes(16))
    head = HEADER.pack(0x50 + len(data), 0, flags, LEGACY, tid, pid, clock(time), guid, *rest)
    return head, context, items, data


def expected(data: bytes, clock: Any = lambda time: time) -> list[tuple[Any, ...]]:
    """`delivered` of all events of a file without compression."""
    found = []
    for buffer, at, _, size, *_ in slow(data):
        (flags,) = struct.unpack_from("<H", data, buffer + 0x34)
        cpu, logger = struct.unpack_from("<HH", data, buffer + 0x28)
        raw = data[buffer + at : buffer + at + size]
        found.append(delivered(raw, cpu if flags & 0x20 else cpu & 0xFF, logger, clock))
    return found


def taken(record: Any) -> tuple[Any, ...]:
    """What stands in an EVENT_RECORD and behind its pointers, read at the documented offsets."""
    raw = ctypes.string_at(ctypes.addressof(record), 112)
    count, length, extended, user, _ = struct.unpack_from("<HHQQQ", raw, 0x54)
    items = []
    for n in range(count):
        reserved, kind, linkage, size, place = struct.unpack("<HHHHQ", ctypes.string_at(extended + 16 * n, 16))
        assert (reserved, linkage) == (0, n + 1 < count)
        items.append((kind, ctypes.string_at(place, size)))
    return raw[:80], raw[80:84], items, ctypes.string_at(user, length) if length else b""


def processed(*paths: str, mode: ProcessTraceMode = RECORDS, take: Any = taken, **range_: int) -> list[Any]:
    found: list[Any] = []
    handles = [
        open_trace(Logfile(LogFileName=p, ProcessTraceMode=mode, EventRecordCallback=lambda r: found.append(take(r))))
        for p in paths
    ]
    process_trace(handles, **range_)
    assert [close_trace(handle) for handle in handles] == [Status.SUCCESS] * len(handles)
    return found


def times(*paths: str, **range_: int) -> list[int]:
    return processed(*paths, take=lambda r: r.EventHeader.TimeStamp, **range_)


def comparable(found: list[tuple[Any, ...]]) -> Counter[Any]:
    return Counter((head, context, tuple(items), data) for head, context, items, data in found)


def refusal(call: Any, *arguments: Any) -> int:
    with pytest.raises(EtwError) as caught:
        call(*arguments)
    return caught.value.status


# -- what is delivered


@pytest.mark.parametrize("name", [n for n in REAL if n not in ("SelfDescribingSingleEvent.etl", "smallEtlFile.etl")])
def test_records_of_real_files_byte_for_byte(name: str, tmp_path: Path) -> None:
    data = real(name)
    found = processed(write(tmp_path, data), mode=RECORDS | RAW)
    assert comparable(found) == comparable(expected(data))
    stamps = [HEADER.unpack(head)[6] for head, *_ in found]
    assert stamps == sorted(stamps)


def test_filetimes_are_those_of_the_header() -> None:
    """StartTime + (time - that of the header event) * 10^7 / PerfFreq, by integers: 2,337,949 Hz do not divide."""
    name = next(n for n in REAL if TraceLog(BytesSource(real(n))).header.frequency not in (10_000_000, 0))
    data = real(name)
    header = TraceLog(BytesSource(data)).header
    path = Path(os.environ["LASTBRANCH_DATA"]) / "etl" / name
    found = Counter(times(str(path)))
    told = [row[5] for row in slow(data)]
    assert found == Counter(
        header.start_time + (time - header.timestamp) * 10_000_000 // header.frequency for time in told
    )


@pytest.mark.parametrize("name", REAL)
def test_back_to_events(name: str, tmp_path: Path) -> None:
    """`event_of` of each record is what the reader makes of the file, decoded alike."""
    path, decoder = write(tmp_path, real(name)), Decoder()
    events = list(TraceLog(BytesSource(real(name))).events(ordered=True))
    for event in events:
        decoder.learn(event)
    found = processed(path, mode=RECORDS | RAW, take=event_of)
    assert len(found) == len(events)
    for number, (mine, theirs) in enumerate(zip(found, events, strict=True)):
        assert (mine.time, mine.pid, mine.tid, mine.cpu, mine.provider, mine.extended, mine.payload) == (
            theirs.time,
            theirs.pid,
            theirs.tid,
            theirs.cpu,
            theirs.provider,
            theirs.extended,
            theirs.payload,
        )
        if number % 8 == 0 or number < 100:
            assert decoder.decode(mine) == decoder.decode(theirs)


def every_header() -> Any:
    trace = build.Trace()
    begin = trace.begin
    for n, bits in enumerate((32, 64)):
        at = begin + 100 * n
        trace.add(0, build.system(0x0501, at + 1, b"abcd", pid=7, tid=9, times=(3, 5), bits=bits))
        trace.add(0, build.system(0x0501, at + 2, b"efgh", compact=True, bits=bits))
        trace.add(0, build.system(0x030A, at + 3, b"image", bits=bits))
        trace.add(0, build.perfinfo(0x0F2E, at + 4, b"", bits=bits))
        trace.add(0, build.perfinfo(0x0F2F, at + 5, b"12345678", counters=(1, 2, 3), pebs=4, bits=bits))
        trace.add(0, build.full(GUID, 11, at + 6, b"classic", level=3, bits=bits))
        trace.add(0, build.full(GUID, 12, at + 7, b"x", instance=(1, 2, GUID[::-1]), bits=bits))
        trace.add(
            0,
            build.manifest(
                GUID,
                1000,
                at + 8,
                b"data",
                channel=11,
                level=2,
                opcode=5,
                task=6,
                keyword=1 << 63 | 7,
                activity=GUID,
                bits=bits,
            ),
        )
        trace.add(
            0, build.manifest(GUID, 2, at + 9, b"more", items=[(1, GUID), (8, bytes(16)), (11, b"odd")], bits=bits)
        )
        trace.add(300, build.manifest(GUID, 3, at + 9, b"far", bits=bits))
    return trace


def test_every_header(tmp_path: Path) -> None:
    trace = every_header()
    found = processed(write(tmp_path, trace), mode=RECORDS | RAW)
    assert len(found) == 21
    assert comparable(found[1:]) == comparable([delivered(raw, cpu, 7, lambda time: time) for cpu, raw in trace.log])


def test_user_context_and_messages(tmp_path: Path) -> None:
    trace = build.Trace()
    trace.add(0, build.message(77, b"text", guid=GUID, time=trace.begin + 5, ids=(3, 4)))
    found: list[Any] = []

    def take(record: Any) -> None:
        found.append((record.UserContext, event_of(record), record.EventHeader.Flags))

    logfile = Logfile(LogFileName=write(tmp_path, trace), ProcessTraceMode=RECORDS | RAW, Context=4711)
    logfile.EventRecordCallback = take
    handle = open_trace(logfile)
    process_trace([handle])
    close_trace(handle)
    context, event, flags = found[1]
    assert context == 4711
    assert (event.id, event.provider, event.tid, event.pid, event.payload) == (77, GUID, 3, 4, b"text")
    assert flags & 0x8
    assert not flags & 0x100


def test_old_callback_gets_event_traces(tmp_path: Path) -> None:
    """EVENT_TRACE at the offsets of evntrace.h."""
    path = write(tmp_path, every_header())

    def take(trace: Any) -> Any:
        raw = ctypes.string_at(ctypes.addressof(trace), 88)
        size, version, tid, pid, time, guid, spent = struct.unpack_from("<H2xIIIq16sQ", raw)
        ids, data, length, context = struct.unpack_from("<24sQII", raw, 0x30)
        return size, version, tid, pid, time, guid, spent, ids, ctypes.string_at(data, length), context

    found = processed(path, mode=RAW, take=take)
    begin = build.Trace().begin
    kernel = UUID(GROUPS[5]).bytes_le
    assert found[1] == (52, 2 << 16 | 1, 9, 7, begin + 1, kernel, 3 | 5 << 32, bytes(24), b"abcd", 7 << 16)
    instance = struct.pack("<II16s", 1, 2, GUID[::-1])
    assert found[7] == (49, 2 << 16 | 12, 8, 4, begin + 7, GUID, 0, instance, b"x", 7 << 16)
    assert found[8][:7] == (52, 2 << 8 | 5, 8, 4, begin + 8, GUID, 0)


def test_pointers_of_a_c_callback(tmp_path: Path) -> None:
    """A callback may be C code, by its address: it is given the address of the record."""
    seen: list[int] = []
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    @prototype
    def callback(address: int) -> None:
        seen.append(struct.unpack("<q", ctypes.string_at(address + 16, 8))[0])

    logfile = Logfile(LogFileName=write(tmp_path, some_trace(5)), ProcessTraceMode=RECORDS | RAW)
    logfile.EventRecordCallback = ctypes.cast(callback, ctypes.c_void_p).value
    handle = open_trace(logfile)
    process_trace([handle])
    close_trace(handle)
    assert seen == [1_000_000, *range(1_000_000, 1_000_050, 10)]


def test_a_bare_structure_works_as_in_c(tmp_path: Path) -> None:
    """EVENT_TRACE_LOGFILEW with addresses in it: of UTF-16 text, and of functions."""
    name = ctypes.create_string_buffer(write(tmp_path, some_trace(5)).encode("utf-16-le") + b"\0\0")
    seen: list[int] = []
    received = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(seen.append)
    ended = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)(lambda address: address == ctypes.addressof(bare))
    bare = structure("EVENT_TRACE_LOGFILEW")(ProcessTraceMode=RECORDS, LogFileName=ctypes.addressof(name))
    bare.EventRecordCallback = ctypes.cast(received, ctypes.c_void_p).value
    bare.BufferCallback = ctypes.cast(ended, ctypes.c_void_p).value
    status, handle = OpenTrace(bare)
    assert (status, bare.LogfileHeader.PerfFreq) == (0, 10_000_000)
    assert ProcessTrace([handle]) == CloseTrace(handle) == 0
    assert (len(seen), bare.BuffersRead) == (6, 4)


# -- what OpenTrace fills in


def test_log_file_header(tmp_path: Path) -> None:
    """LogfileHeader is that of the file, byte for byte, but for its pointers; of a 32-bit one, its values."""
    data = bytes(some_trace(5, header={"lost": 17, "names": ("NT Kernel Logger", "x")}))
    logfile = Logfile(LogFileName=write(tmp_path, data))
    handle = open_trace(logfile)
    at = 72 + 0x20
    told = bytes(logfile.LogfileHeader)
    assert told[:0x38] == data[at : at + 0x38]
    assert told[0x48:0x118] == data[at + 0x48 : at + 0x118]
    assert (logfile.EventsLost, logfile.IsKernelTrace, logfile.BufferSize) == (17, 1, 4096)
    close_trace(handle)
    small = Logfile(LogFileName=write(tmp_path, some_trace(5, bits=32)))
    close_trace(open_trace(small))
    assert (small.LogfileHeader.PerfFreq, small.LogfileHeader.PointerSize) == (10_000_000, 4)
    assert (small.LogfileHeader.TimeZone.Bias, small.IsKernelTrace) == (-60, 0)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 161),
        ({"LoggerName": "no file"}, 161),
        ({"ProcessTraceMode": 0x100}, 161),
        ({"LogFileName": "nowhere.etl"}, 2),
        ({"LogFileName": "file/x.etl"}, 3),
        ({"LogFileName": "."}, 161),
        ({"LogFileName": "file"}, 13),
    ],
)
def test_refusals_of_open(fields: dict[str, Any], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_bytes(b"no trace log" * 100)
    assert refusal(open_trace, Logfile(**fields)) == status
    assert OpenTrace(Logfile(**fields)) == (status, INVALID_PROCESSTRACE_HANDLE)


def test_refusals(tmp_path: Path) -> None:
    path = write(tmp_path, some_trace(3))
    assert refusal(open_trace, None) == Status.INVALID_PARAMETER
    handle = open_trace(Logfile(LogFileName=path))
    assert refusal(process_trace, None) == Status.INVALID_PARAMETER
    assert refusal(process_trace, []) == refusal(process_trace, [handle] * 65) == Status.BAD_LENGTH
    assert refusal(process_trace, [handle, 10**6]) == Status.INVALID_HANDLE
    assert refusal(process_trace, [handle, handle]) == Status.BUSY
    assert refusal(process_trace, [handle], 10, 9) == Status.INVALID_TIME == 1901
    assert refusal(close_trace, 10**6) == Status.INVALID_HANDLE
    assert ProcessTrace([handle]) == CloseTrace(handle) == Status.SUCCESS
    assert CloseTrace(handle) == ProcessTrace([handle]) == Status.INVALID_HANDLE
    with pytest.raises(TypeError, match="NoSuchField"):
        Logfile(NoSuchField=1)


# -- on Windows


class FakeTraces:
    """What stands for `windows.consumer.WindowsTraces`."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def open(self, source: str, *, mode: int, context: int, on_event: Any, on_buffer: Any) -> tuple[int, Any]:
        self.calls.append((source, mode, context))
        self.on_event, self.on_buffer = on_event, on_buffer
        made = structure("EVENT_TRACE_LOGFILEW")()
        made.LogfileHeader.PerfFreq, made.LogfileHeader.BufferSize, made.LogfileHeader.LoggerName = 1234, 4096, 7
        return 77, made

    def process(self, handles: Any, start: Any, end: Any) -> None:
        self.calls.append((list(handles), start, end))
        self.on_event("record")
        self.calls.append(self.on_buffer(structure("EVENT_TRACE_LOGFILEW")(BuffersRead=5, BufferSize=4096, Filled=80)))

    def close(self, handle: int) -> Status:
        self.calls.append(handle)
        return Status.CTX_CLOSE_PENDING


def test_on_windows_the_calls_are_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, mode and callbacks go there; a BufferCallback sees the caller's own `Logfile`."""
    system, seen = FakeTraces(), []
    monkeypatch.setattr(consumer, "windows", lambda: SimpleNamespace(traces=system))
    logfile = Logfile(LoggerName="live", ProcessTraceMode=RECORDS | ProcessTraceMode.REAL_TIME, Context=5)
    logfile.EventRecordCallback = seen.append
    logfile.BufferCallback = lambda told: seen.append((told is logfile, told.BuffersRead, told.Filled))
    assert OpenTrace(logfile) == (0, 77)
    assert (logfile.LogfileHeader.PerfFreq, logfile.LogfileHeader.LoggerName, logfile.BufferSize) == (1234, 0, 4096)
    assert ProcessTrace([77], 1, 2) == 0
    assert CloseTrace(77) == Status.CTX_CLOSE_PENDING
    assert system.calls == [("live", 0x10000100, 5), ([77], 1, 2), None, 77]
    assert seen == ["record", (True, 5, 80)]
    assert refusal(process_trace, [77], 2, 1) == Status.INVALID_TIME


# -- ends


def test_close_in_a_callback_ends_it(tmp_path: Path) -> None:
    path, seen, statuses = write(tmp_path, some_trace(2000)), [], []

    def take(record: Any) -> None:
        seen.append(record.EventHeader.TimeStamp)
        if len(seen) == 7:
            statuses.extend([CloseTrace(handle), CloseTrace(handle), ProcessTrace([handle])])

    handle = open_trace(Logfile(LogFileName=path, ProcessTraceMode=RECORDS, EventRecordCallback=take))
    assert ProcessTrace([handle]) == Status.SUCCESS
    assert statuses == [Status.CTX_CLOSE_PENDING, Status.INVALID_HANDLE, Status.INVALID_HANDLE]
    assert len(seen) == 7
    assert CloseTrace(handle) == Status.INVALID_HANDLE


def test_closing_one_of_several_leaves_the_others(tmp_path: Path) -> None:
    path, seen = write(tmp_path, some_trace(500)), Counter[str]()

    def count(name: str) -> Any:
        def take(record: Any) -> None:
            seen[name] += 1
            if name == "a" and seen[name] == 3:
                close_trace(first)

        return take

    first, second = (
        open_trace(Logfile(LogFileName=path, ProcessTraceMode=RECORDS, EventRecordCallback=count(n))) for n in "ab"
    )
    process_trace([first, second])
    assert seen == {"a": 3, "b": 501}
    close_trace(second)


@pytest.mark.parametrize(("result", "calls"), [(False, 1), (0, 1), (True, 12), (None, 12), (1, 12)])
def test_buffer_callback(result: Any, calls: int, tmp_path: Path) -> None:
    trace, seen, events = some_trace(800), [], []

    def ended(logfile: Any) -> Any:
        seen.append((logfile.BuffersRead, logfile.BufferSize, logfile.Filled, logfile.CurrentTime, len(events)))
        return result

    data = bytes(trace)
    logfile = Logfile(LogFileName=write(tmp_path, data), BufferCallback=ended, ProcessTraceMode=RECORDS)
    logfile.EventRecordCallback = lambda record: events.append(record.EventHeader.TimeStamp)
    handle = open_trace(logfile)
    buffers = len(data) // 4096
    calls = min(calls, buffers) if calls == 1 else buffers
    assert ProcessTrace([handle]) == (Status.SUCCESS if calls > 1 else Status.CANCELLED)
    assert [row[0] for row in seen] == list(range(1, calls + 1))
    assert {row[1] for row in seen} == {4096}
    filled = Counter(struct.unpack_from("<I", data, at + 0x30)[0] for at in range(0, len(data), 4096))
    assert Counter(row[2] for row in seen) <= filled
    assert all(now == events[count - 1] for *_, now, count in seen)
    if calls > 1:
        assert seen[-1][4] == len(events) == 801
        assert Counter(row[2] for row in seen) == filled
    close_trace(handle)


def test_what_a_callback_raises_is_raised(tmp_path: Path) -> None:
    def fail(record: Any) -> None:
        raise KeyError("mine")

    handle = open_trace(
        Logfile(LogFileName=write(tmp_path, some_trace(3)), ProcessTraceMode=RECORDS, EventRecordCallback=fail)
    )
    with pytest.raises(KeyError, match="mine"):
        ProcessTrace([handle])
    assert CloseTrace(handle) == Status.SUCCESS


# -- time


def test_time_range_includes_both_ends(tmp_path: Path) -> None:
    path = write(tmp_path, some_trace(300))
    every = times(path)
    start, end = every[50], every[200]
    assert times(path, start=start, end=end) == [t for t in every if start <= t <= end]
    assert times(path, start=start + 1) == [t for t in every if t > start]
    assert times(path, end=end - 1) == [t for t in every if t < end]
    assert times(path, end=every[0] - 1) == times(path, start=every[-1] + 1) == []


lives = st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(lives)
def test_several_files_in_one_time_order(tmp_path_factory: pytest.TempPathFactory, steps: list[list[int]]) -> None:
    """By time, at equal times by handle, within one handle as the file has it."""
    folder, paths, told = tmp_path_factory.mktemp("many"), [], []
    for number, gaps in enumerate(steps):
        trace = build.Trace(size=1024, header={"start": build.START_TIME + number % 2})
        at = trace.begin
        told.append((build.START_TIME + number % 2, number, -1))
        for row, gap in enumerate(gaps):
            at += gap
            trace.add(0, sample(at, row % 20))
            told.append((build.START_TIME + number % 2 + at - trace.begin, number, row))
        paths.append(write(folder, trace, f"{number}.etl"))
    found: list[tuple[int, int]] = []
    handles = []
    for number, path in enumerate(paths):
        logfile = Logfile(LogFileName=path, ProcessTraceMode=RECORDS)
        logfile.EventRecordCallback = lambda r, number=number: found.append((r.EventHeader.TimeStamp, number))
        handles.append(open_trace(logfile))
    with mock.patch.object(run_block, "LEAST", 8):  # so that a file is several blocks
        process_trace(handles)
    for handle in handles:
        close_trace(handle)
    assert found == [(time, number) for time, number, _ in sorted(told)]


MEASURE = """
import resource, sys
from lastbranch.etw.consumer_api import Logfile, open_trace, process_trace
seen = [0, 0]
def take(record):
    seen[0] += 1
    seen[1] = max(seen[1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) if seen[0] % 50 == 0 else seen[1]
handle = open_trace(Logfile(LogFileName=sys.argv[1], ProcessTraceMode=0x10000000, EventRecordCallback=take))
process_trace([handle])
print(*seen)
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Five times the file takes no more memory: buffers of 64 KB with one event, over 4 processors."""
    sizes, peaks = (192, 960), []
    body = bytes(60_000)
    for count in sizes:
        trace = build.Trace(size=1 << 16)
        path = tmp_path / f"{count}.etl"
        with path.open("wb") as out:
            out.write(bytes(trace))
            for n in range(count):
                event = build.perfinfo(0x0F2E, trace.begin + n, body)
                out.write(build.buffer([event], size=1 << 16, sequence=n + 1, cpu=n % 4))
        told = subprocess.run(
            [sys.executable, "-B", "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
        )
        events, peak = map(int, told.stdout.split())
        assert events == count + 1
        peaks.append(peak)
        path.unlink()
    assert peaks[1] - peaks[0] < 20_000, peaks  # KB; the file is 48 MB longer


# -- the friendly form


def test_consume_is_what_the_decoder_says(tmp_path: Path) -> None:
    data, decoder = real("gcevents.PerfViewData.etl"), Decoder()
    events = list(TraceLog(BytesSource(data)).events(ordered=True))
    for event in events:
        decoder.learn(event)
    header = TraceLog(BytesSource(data)).header
    found = list(consume(Path(write(tmp_path, data))))
    assert len(found) == len(events)
    for mine, event in zip(found, events, strict=True):
        decoded = decoder.decode(event)
        assert (mine.provider_name, mine.name, mine.fields) == (
            decoded.provider_name,
            decoded.event_name,
            decoded.fields,
        )
        assert replace(mine.event, offset=event.offset, buffer=event.buffer) == event
        assert (mine.provider.bytes_le, mine.pid, mine.id) == (event.provider, event.pid, event.id)
        assert abs(mine.time.timestamp() * 1e9 - header.clock.wall_ns(event.time)) < 2000
    assert repr(found[0]).startswith("<Windows Kernel/EventTrace pid=")


def test_what_stands_behind_describes_events_of_files(tmp_path: Path) -> None:
    _, first, _, last = ((e.provider_name, e.name, e.fields) for e in consume(write(tmp_path, late_manifest())))
    assert [first, last] == [
        ("Late", "Seven", {"Count": 41}),
        ("Late", "Seven", {"Count": 43}),
    ]


def test_consume_gives_the_file_up(tmp_path: Path) -> None:
    path = write(tmp_path, some_trace(50))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    events = consume(path)
    next(events)
    events.close()  # type: ignore[attr-defined]
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before  # what other tests left may be collected meanwhile
    with pytest.raises(EtwError):
        list(consume(tmp_path / "none.etl", real_time=False))


@pytest.mark.parametrize("name", REAL[1:])
def test_events_by_callback_are_the_same(name: str, tmp_path: Path) -> None:
    """What Windows' sessions deliver by callback comes out as the events of the file do, with FILETIMEs."""
    path = write(tmp_path, real(name))
    stream = LiveStream(CallbackChannel(path, session=False), name)
    found = [event for part in stream.parts() for event in stream_events(part.block)]
    stream.close()
    told = list(consume(path))

    def content(event: Event) -> tuple[Any, ...]:
        return (
            event.pid,
            event.tid,
            event.cpu,
            event.provider,
            event.id,
            event.version,
            event.opcode,
            event.keyword,
            event.extended,
            event.payload,
        )

    assert [(event.time, content(event)) for event in found] == [(e.filetime, content(e.event)) for e in told]


def test_messages_and_counters_by_callback(tmp_path: Path) -> None:
    trace = build.Trace()
    trace.add(0, build.message(77, b"text", guid=GUID, time=trace.begin + 5, ids=(3, 4)))
    trace.add(0, build.perfinfo(0x0F2F, trace.begin + 6, b"12345678", counters=(1, 2), pebs=4))
    stream = LiveStream(CallbackChannel(write(tmp_path, trace), session=False), "x")
    _, message, sampled = (event for part in stream.parts() for event in stream_events(part.block))
    stream.close()
    assert (message.header, message.id, message.provider, message.payload) == (0x90, 77, GUID, b"text")
    assert (sampled.hook, sampled.counters, sampled.extended) == (0x0F2F, (1, 2), [(7, (4).to_bytes(8, "little"))])


def test_a_stream_by_callback_can_be_ended(tmp_path: Path) -> None:
    path = write(tmp_path, some_trace(40_000))
    channel = CallbackChannel(path, session=False)
    stream = LiveStream(channel, "x")
    parts = stream.parts()
    next(parts)
    stream.end()
    for _ in parts:
        pass
    assert channel.recv(1) == b""
    stream.close()
    assert not channel._thread.is_alive()
