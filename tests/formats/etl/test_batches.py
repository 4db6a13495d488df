"""All fields of all events of a type at once, against decoding event by event: real captures and built ones."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl_builder as build
from etl_oracle import largest_thorough
from lastbranch.formats.etl import Decoder, TraceLog, batches_of, events_of
from lastbranch.formats.etl.decode import COUNTERS
from lastbranch.formats.etl.kernel.layouts import LAYOUTS
from lastbranch.formats.etl.payload.layouts import REST
from lastbranch.formats.etl.payload.payload_columns import Numbers, Payloads, Texts, decode_columns
from lastbranch.model import BytesSource

CAPTURES = [
    "AMSITrace", "SelfDescribingSingleEvent", "ShutdownPerfDiagLogger", "WindowsUpdate.20251008.140245.443.8",
    "diaghub.kernel.1", "gcevents.PerfViewData", "gcrundownevents.PerfViewData.clrRundown", "krabs.powershell",
    "lxcore_kernel", "net.4.5.2.x64", "primitive-types", "smallEtlFile", "syzygy.image_data_32_v0",
    "syzygy.image_data_32_v2", "syzygy.process_data_32_v1", "syzygy.process_data_64_v3",
    "waasmedic.20251005_113019_195",
]  # fmt: skip
MOST = 30  # events of a type that are compared; all of one batch come about in the same way


def identical(one, other):
    """Same value, type, shown form and kept bytes."""
    return (
        type(one) is type(other)
        and one == other
        and str(one) == str(other)
        and getattr(one, "raw", None) == getattr(other, "raw", None)
    )


def expected(decoder, event):
    fields = decoder.decode(event).fields
    return fields | {COUNTERS: list(event.counters)} if event.counters else fields


def agrees(log, most=MOST):
    """Compares with the oracle; gives how many events there were."""
    decoder, number = Decoder(), 0
    for event in log.events():
        decoder.learn(event)
    for block in log.blocks():
        batches = list(batches_of(block, decoder))
        rows = np.concatenate([batch.rows for batch in batches])
        assert sorted(rows.tolist()) == list(range(len(block)))
        for batch in batches:
            assert (np.diff(batch.rows) > 0).all()
            step = max(1, len(batch) // most)
            few = slice(0, None, step)
            events = events_of(block.take(batch.rows[few]))
            for event, fields in zip(events, batch.fields()[few], strict=True):
                decoded = decoder.decode(event)
                known = batch.known
                assert (known.provider_name, known.event_name) == (decoded.provider_name, decoded.event_name)
                assert (known.kind, known.reason) == (decoded.layout, decoded.reason)
                wanted = expected(decoder, event)
                assert list(fields) == list(wanted)
                for name, value in wanted.items():
                    assert identical(fields[name], value), (batch.known.name, name, fields[name], value)
        number += len(block)
    return number


@pytest.mark.parametrize("name", largest_thorough(CAPTURES))
def test_every_capture_as_event_by_event(name):
    root = os.environ.get("LASTBRANCH_DATA")
    if not root:
        pytest.skip("LASTBRANCH_DATA is not set: the captures are not part of the project")
    log = TraceLog(BytesSource((Path(root) / "etl" / f"{name}.etl").read_bytes(), name))
    assert agrees(log) == sum(log.counts.values()) > 0


def test_numbers_are_columns_of_the_files_types():
    trace = build.Trace()
    for i in range(50):
        trace.add(0, build.perfinfo(0x0F2E, 1000 + i, struct.pack("<QIHBB", 0xFFFFF800_0000_0000 + i, 7 + i, 1, 1, 0)))
    (block,) = TraceLog(BytesSource(bytes(trace), "t.etl")).blocks()
    (batch,) = (b for b in batches_of(block, Decoder()) if b.known.event_name == "PerfInfo/Sample")
    ip, tid = batch.columns["InstructionPointer"], batch.columns["ThreadID"]
    assert isinstance(ip, Numbers)
    assert ip.values.dtype == np.uint64
    assert ip.values.tolist() == [0xFFFFF800_0000_0000 + i for i in range(50)]
    assert tid.values.tolist() == list(range(7, 57))
    assert batch.columns["ExecutingDPC"].tolist() == [True] * 50


@pytest.mark.parametrize("unit", ["ANSI", "WIDE"])
def test_strings_beyond_ascii_cut_and_at_odd_places(unit):
    """Image names: surrogates in pairs and alone, bytes that are not UTF-8, no NUL before the end."""
    wide = ["a.exe", "", "ä\U0001f600.dll", "\ud800x", "\ud83d", "ﻀ"]
    raws = [t.encode("utf-16-le", "surrogatepass") + b"\0\0" for t in wide] + [b"a\0b\0", b"a\0b", b"\0\0rest"]
    narrow = [b"name\0", b"\xe4\xff\0", "ä\U0001f600".encode() + b"\0", b"cut", b"\0", b"x\0rest"]
    trace = build.Trace()
    for i in range(60):
        if unit == "WIDE":
            trace.add(0, build.perfinfo(0x1402, 1000 + i, bytes(range(56)) + raws[i % len(raws)], version=2))
        else:
            head = struct.pack("<QIIiiQI", 1, 2, 3, 4, 5, 6, 0) + bytes(4)
            tail = narrow[i % len(narrow)] + (raws[i % len(raws)] if i % 2 else b"")
            trace.add(0, build.perfinfo(0x0301, 1000 + i, head + tail, version=4))
    assert agrees(TraceLog(BytesSource(bytes(trace), "t.etl")), most=1000) > 60


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([4, 8]))
def test_any_bytes_in_any_layout(seed, pointer):
    """What the layouts do not fit: payloads of random sizes and bytes, many zeros among them."""
    rng = random.Random(seed)
    layout = rng.choice([one for versions in LAYOUTS.values() for one in versions.values()])
    datas = [bytes(rng.choice((0, 0, 1, 2, 255)) for _ in range(rng.randrange(0, 160))) for _ in range(20)]
    start = 8 if seed % 2 else 3  # where payloads begin need not be a multiple of 8
    raw, at, end = bytearray(start), [], []
    for data in datas:
        at.append(len(raw))
        raw += data
        end.append(len(raw))
        raw += bytes(-len(raw) % 8 if seed % 2 else 1)
    payloads = Payloads(np.frombuffer(bytes(raw) + bytes(16), np.uint8), np.array(at), np.array(end), pointer)
    seen = []
    for rows, columns in decode_columns(layout, payloads):
        seen += rows.tolist()
        if columns is None:
            # They break off, or a field is left out that others have.
            whole = len(layout.names)
            alone = [layout.decode(datas[row], pointer) for row in rows.tolist()]
            assert all(REST in fields or len(fields) < whole for fields in alone)
            continue
        for i, row in enumerate(rows.tolist()):
            wanted = layout.decode(datas[row], pointer)
            assert list(columns) == list(wanted)
            for name, value in wanted.items():
                assert identical(columns[name].take([i]).tolist()[0], value), (name, value)
        for name, column in columns.items():
            whole = column.tolist()
            assert all(
                identical(value, layout.decode(datas[row], pointer)[name])
                for row, value in zip(rows.tolist(), whole, strict=True)
            )
    assert sorted(seen) == list(range(20))


def test_columns_outlive_the_window():
    """What batches hold is their own: the window's memory is used again."""
    trace = build.Trace()
    for i in range(20):
        trace.add(
            0, build.perfinfo(0x1402, 1000 + i, bytes(56) + f"module{i}".encode("utf-16-le") + b"\0\0", version=2)
        )
        trace.add(0, build.perfinfo(0x1820, 1000 + i, struct.pack("<QII", i, 1, 2) + struct.pack("<3Q", i, i, i)))
    (block,) = TraceLog(BytesSource(bytes(trace), "t.etl")).blocks()
    batches = {batch.known.event_name: batch for batch in batches_of(block, Decoder())}
    try:
        block.raw[:] = 0xEE
    except ValueError:
        pytest.skip("the window is read-only")
    names, stacks = batches["Image/Unload"].columns["FileName"], batches["StackWalk/Stack"].columns["Addresses"]
    assert isinstance(names, Texts)
    assert names.tolist() == [f"module{i}" for i in range(20)]
    assert stacks.tolist() == [[i, i, i] for i in range(20)]


def test_time_order_in_blocks():
    """Blocks in time order hold what the events in time order do."""
    rng = random.Random(5)
    trace, times = build.Trace(size=1024), [1000, 1000, 1000]
    for i in range(3000):
        cpu = rng.randrange(3)
        times[cpu] += rng.randrange(3)
        trace.add(cpu, build.perfinfo(0x0F2E, times[cpu], struct.pack("<QII", i, cpu, 1)))
    log = TraceLog(BytesSource(bytes(trace), "t.etl"))
    wanted = [(e.time, e.cpu, e.payload) for e in log.events(ordered=True)]
    blocks = list(log.ordered_blocks())
    found = [(e.time, e.cpu, e.payload) for block in blocks for e in events_of(block)]
    assert found == wanted
    assert len(wanted) > 3000
