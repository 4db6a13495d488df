"""Thread events kept as columns, against a list that is gone through one by one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import etl_builder as eb
from lastbranch.formats.etl import Decoder, TraceLog
from lastbranch.formats.etl.profile import system as thread_events
from lastbranch.formats.etl.profile.system import ThreadEvents, ThreadTable
from lastbranch.model import BytesSource, Change, Timeline

START, END, DC_START, DC_END = 1, 2, 3, 4
BEGIN = 1000


class Told(NamedTuple):
    kind: int
    time: int
    tid: int
    pid: int
    version: int
    name: str = ""
    cut: bool = False
    bits: int = 64


def encoded(told: Told) -> bytes:
    """As the MOF classes Thread_V0 to Thread_V3 have it; the name behind them as real logs of Windows 10."""
    pointer = "I" if told.bits == 32 else "Q"
    if told.version == 0:
        payload = struct.pack("<II", told.tid, told.pid)
    elif told.version == 1:
        payload = struct.pack(f"<II6{pointer}b", told.pid, told.tid, *range(6), 0)
    elif told.version == 2:
        payload = struct.pack(f"<II7{pointer}I", told.pid, told.tid, *range(7), 0)
    else:
        payload = struct.pack(f"<II7{pointer}I4B", told.pid, told.tid, *range(7), 0, 8, 5, 2, 0)
        payload += told.name.encode("utf-16-le") + b"\0\0" if told.name else b""
    payload = payload[:7] if told.cut else payload
    return eb.system(0x0500 | told.kind, BEGIN + told.time, payload, version=told.version, bits=told.bits)


def gathered(events: list[Told], step: int) -> tuple[ThreadTable, Timeline, int]:
    """By the code under test, ``step`` events at a time; the number of starts that it kept."""
    trace = eb.Trace(size=65536)
    for told in events:
        trace.add(0, encoded(told))
        trace.add(0, eb.perfinfo(0x0F2E, BEGIN + told.time, bytes(16)))
    found, decoder, timeline = ThreadEvents(), Decoder(), Timeline()
    for block in TraceLog(BytesSource(bytes(trace))).blocks():
        for lo in range(0, len(block), step):
            found.gather(block.take(slice(lo, lo + step)), decoder)
    rows = found.finish(timeline)
    return ThreadTable(rows), timeline, len(rows)


class Listed:
    """The same by the rules alone."""

    def __init__(self, events: list[Told]) -> None:
        self.starts: list[tuple[int, int, int]] = []
        self.exits: list[tuple[int, int, int]] = []
        self.names: list[tuple[int, int, int, str]] = []
        known: dict[int, int] = {}  # thread id -> what named it first, ends apart
        for kind, time, tid, pid, version, name, cut, _ in events:
            if cut:
                continue
            if kind == END:
                self.exits.append((BEGIN + time, tid, pid))
                continue
            known.setdefault(tid, kind)
            since = BEGIN + time if kind == START else 0
            if kind != DC_END or known[tid] == DC_END:
                if kind != DC_END or not any(t == tid for t, _, _ in self.starts):
                    self.starts.append((tid, since, pid))
                if name and version >= 3:
                    self.names.append((since, pid, tid, name))

    def pid(self, tid: int, time: int) -> int:
        if tid == 0:
            return 0
        mine = sorted((since, pid) for who, since, pid in self.starts if who == tid)
        begun = [pid for since, pid in mine if since <= time]
        return begun[-1] if begun else mine[0][1] if mine else -1


def changes(timeline: Timeline, kind: Change) -> Iterator[tuple[int, ...]]:
    columns = timeline.columns()
    for i in np.flatnonzero(columns["kind"] == kind).tolist():
        yield tuple(int(columns[name][i]) for name in ("time", "tid", "pid", "parent", "module"))


EVENTS = st.lists(
    st.builds(
        Told,
        st.sampled_from((START, START, START, END, DC_START, DC_END)),
        st.integers(0, 12),
        st.integers(0, 3),
        st.integers(40, 43),
        st.integers(0, 4),
        st.sampled_from(("", "", "worker", "ä\U0001f600")),
        st.sampled_from((False,) * 9 + (True,)),
        st.sampled_from((64, 64, 32)),
    ),
    max_size=40,
)
# The first start of the file is neither the first nor the last one in time, and a list stands between them.
OUT_OF_ORDER = [Told(START, 5, 1, 42, 3), Told(DC_END, 6, 1, 41, 3), Told(START, 1, 1, 42, 3), Told(START, 9, 1, 42, 3)]


@pytest.mark.parametrize("many", [1 << 17, 3])
@settings(max_examples=150, deadline=None)
@given(events=EVENTS, step=st.sampled_from((2, 5, 1000)))
@example(events=OUT_OF_ORDER, step=1000)
def test_threads_are_those_of_a_list(many: int, events: list[Told], step: int) -> None:
    if many == 3 and events is not OUT_OF_ORDER:  # repeated ones are left out only once all of their time is there
        events = sorted(events, key=lambda told: told.time)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_events, "_MANY", many)
        table, timeline, kept = gathered(events, step)
    listed = Listed(events)
    asked = [(tid, BEGIN + time) for tid in range(5) for time in range(-1, 14)]
    found = table.pid(np.array([tid for tid, _ in asked]), np.array([time for _, time in asked]))
    assert found.tolist() == [listed.pid(tid, time) for tid, time in asked]
    assert [change[:3] for change in changes(timeline, Change.EXIT)] == listed.exits
    forks = [(tid, time, pid) for time, tid, pid, _, _ in changes(timeline, Change.FORK)]
    assert all(pid == parent for _, _, pid, parent, _ in changes(timeline, Change.FORK))
    names = [(time, pid, tid, timeline.names[row]) for time, tid, pid, _, row in changes(timeline, Change.NAME)]
    assert sorted(names) == sorted(listed.names)
    if many > len(events):
        assert sorted(forks) == sorted(listed.starts)
        assert kept == len(forks)
    else:
        assert set(forks) <= set(listed.starts)


def test_a_thread_that_starts_again_and_again_takes_the_room_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tools log the list of threads every second: what is reported a thousand times is kept twice."""
    monkeypatch.setattr(thread_events, "_MANY", 50)
    again = [Told(START, time, tid, 42, 3) for time in range(1000) for tid in (1, 2, 3)]
    table, timeline, kept = gathered(again, 120)
    assert kept < 3 * 50 + 60
    assert table.pid(np.array([1, 2, 3, 4]), np.full(4, BEGIN + 500)).tolist() == [42, 42, 42, -1]
    assert len(timeline) == kept


def test_of_repeated_starts_the_first_and_the_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end between them may come later in the file: then the last one is a life of its own."""
    monkeypatch.setattr(thread_events, "_MANY", 3)
    again = [Told(START, time, tid, 42, 3) for time in (1, 5, 9) for tid in (1, 2)]
    _, timeline, _ = gathered(again, 1000)
    forks = {(tid, time - BEGIN) for time, tid, *_ in changes(timeline, Change.FORK)}
    assert forks == {(1, 1), (1, 9), (2, 1), (2, 9)}
