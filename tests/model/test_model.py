"""Batches, time order with spilling, clocks, names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch.errors import FormatError
from lastbranch.model import (
    COLUMNS,
    REQUIRED,
    BytesSource,
    Change,
    Clock,
    OpenFile,
    Profile,
    SampleBatch,
    Timeline,
    by_time,
    concatenate,
    merge,
    read_at,
)
from lastbranch.model.safe_text import visible, word


def batch(times: list[int], first: int = 0) -> SampleBatch:
    """Sample i of a file (numbered from ``first``) has i % 3 branch entries and its number as position."""
    n = len(times)
    numbers = np.arange(first, first + n)
    columns = {c.name: np.zeros(n, c.dtype) for c in REQUIRED}
    columns |= {"time": np.array(times, np.int64), "position": numbers.astype(np.int64)}
    depth = numbers % 3
    offsets = np.concatenate([[0], np.cumsum(depth)])
    values = np.repeat(numbers, depth).astype(np.uint64)
    columns |= {"branch_from": values, "branch_to": values + np.uint64(1), "branch_flags": values}
    return SampleBatch(columns, {"branch": offsets})


def arrive(times: list[int], size: int, exact: bool) -> list[tuple[SampleBatch, int]]:
    """Batches of a file with their watermarks: the earliest later time, or (not exact) a promise of nothing."""
    out = []
    for lo in range(0, len(times), size):
        later = min(times[lo + size :], default=10**9)
        out.append((batch(times[lo : lo + size], lo), later if exact else -1))
    return out


@settings(max_examples=200, deadline=None)
@given(
    times=st.lists(st.integers(0, 20), max_size=60),
    size=st.integers(1, 9),
    exact=st.booleans(),
    spill=st.sampled_from([0, 2000, 1 << 30]),
)
def test_time_order_is_a_stable_sort(times: list[int], size: int, exact: bool, spill: int) -> None:
    out = list(by_time(iter(arrive(times, size, exact)), spill_bytes=spill))
    want = sorted(range(len(times)), key=times.__getitem__)
    assert [p for b in out for p in b["position"].tolist()] == want
    for b in out:
        for i, number in enumerate(b["position"].tolist()):
            assert b.stack(i)[0].tolist() == [number] * (number % 3)


@given(st.lists(st.lists(st.integers(0, 9), max_size=9).map(sorted), max_size=4))
def test_merge_keeps_the_order_of_parts_at_equal_times(parts: list[list[int]]) -> None:
    batches = [batch(times, 100 * i) for i, times in enumerate(parts)]
    out = [p for b in merge([b.split(3) for b in batches if len(b)]) for p in b["position"].tolist()]
    want = sorted(((t, i, k) for i, times in enumerate(parts) for k, t in enumerate(times)))
    assert out == [100 * i + k for _, i, k in want]


@given(st.lists(st.integers(0, 19), max_size=20))
def test_select_takes_ragged_values_along(rows: list[int]) -> None:
    chosen = batch(list(range(20))).select(np.array(rows, np.int64))
    assert chosen["position"].tolist() == rows
    assert [chosen.stack(i)[0].tolist() for i in range(len(rows))] == [[r] * (r % 3) for r in rows]


def test_slice_select_concatenate_agree() -> None:
    whole = batch(list(range(10)))
    parts = [whole.slice(0, 4), whole.slice(4, 4), whole.slice(4, 10)]
    again = concatenate(parts)
    for name in whole.columns:
        assert (again[name] == whole[name]).all()
    assert (again.offsets["branch"] == whole.offsets["branch"]).all()
    mask = np.arange(10) >= 4
    assert (whole.select(mask)["branch_from"] == parts[2]["branch_from"]).all()
    assert whole.entries == 9
    assert whole.depth.tolist() == [0, 1, 2] * 3 + [0]


def test_every_column_is_declared_once() -> None:
    names = [c.name for c in COLUMNS]
    assert len(names) == len(set(names))
    assert all(np.dtype(c.dtype) and c.meaning and c.unit for c in COLUMNS)


@pytest.mark.parametrize("frequency", [1_000_000_000, 10_000_000, 3_117_777, 2_337_949, 24_000_000_000_000])
@given(ticks=st.integers(0, 2**52))
def test_clock_is_exact(frequency: int, ticks: int) -> None:
    clock = Clock("QPC", frequency, wall=(5, 1000))
    assert clock.to_ns(ticks) == ticks * 10**9 // frequency
    assert clock.to_ns_array(np.array([ticks])).tolist() == [ticks * 10**9 // frequency]
    assert clock.wall_ns(ticks) == 1000 + (ticks - 5) * 10**9 // frequency


def test_a_clock_without_time() -> None:
    clock = Clock("file order", 0)
    assert (clock.has_time, clock.to_ns(5), clock.wall_ns(5)) == (False, 0, None)
    assert clock.to_ns_array(np.array([5])).tolist() == [0]


def test_names_cannot_drive_the_terminal() -> None:
    assert visible("a\x1b[31m\n\udc80") == r"a\x1b[31m\x0a\x80"
    assert visible(r"C:\Windows dir") == r"C:\Windows dir"
    assert visible("a\ud800\ufffe") == r"a\xed\xa0\x80\xef\xbf\xbe"  # UTF-16 has surrogates without a partner
    assert word(r"C:\a b") == r"C:\x5ca\x20b"
    assert word("/plain") == "/plain"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(Change), st.integers(-(2**63), 2**63 - 1), st.integers(-1, 2**31), st.integers(0, 2**64 - 1)
        )
    )
)
def test_a_timeline_from_columns_is_the_one_that_they_are_of(changes: list[tuple[Change, int, int, int]]) -> None:
    one, other = Timeline(), Timeline()
    for kind, time, pid, start in changes:
        one.add(kind, time, pid, tid=pid, parent=7, module=3, start=start, end=start, offset=1)
    one.name(5, 42, 43, "n")
    other.add(Change.EXIT, 1, 2)
    other.extend(one.columns())
    assert len(other) == len(one) + 1
    for name, values in other.columns().items():
        assert values[1:].tolist() == one.columns()[name].tolist(), name
        assert values.dtype == one.columns()[name].dtype
    short = {name: values[:1].astype(np.int64) for name, values in one.columns().items() if name != "start"}
    other.extend({**short, "start": np.zeros(1, np.uint8)})  # whatever integers the columns have
    assert other.columns()["start"][-1] == 0


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system does not say whether a read would wait")
def test_reads_are_announced_after_one_that_had_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only then: a file that is in the page cache need not be looked up there twice."""
    announced, in_cache, preadv = [], True, os.preadv

    def read(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags and not in_cache:
            raise BlockingIOError
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, offset, length, how: announced.append((offset, length)))
    (tmp_path / "file").write_bytes(b"abcdefgh")
    with (tmp_path / "file").open("rb", buffering=0) as file:
        source, buffer = OpenFile(file, "file"), memoryview(bytearray(4))
        assert (source.readinto(0, buffer), bytes(buffer)) == (4, b"abcd")
        source.expect(4, 4)
        assert announced == []
        in_cache = False
        assert (source.readinto(4, buffer), bytes(buffer)) == (4, b"efgh")
        source.expect(0, 4)
        assert announced == [(0, 4)]
        in_cache = True
        for _ in range(100):
            source.expect(0, 4)
        assert 1 < len(announced) < 100
        assert source.readinto(8, buffer) == 0


def test_read_at_stops_at_the_end() -> None:
    source = BytesSource(b"abcdef")
    assert read_at(source, 4, 100) == b"ef"
    assert read_at(source, 9, 1) == b""
    assert read_at(source, 0, 1 << 60) == b"abcdef"


def test_tables_are_columns() -> None:
    profile = Profile("x", "test")
    assert set(profile.table("events")) >= {"name", "period", "branch_select"}
    with pytest.raises(KeyError):
        profile.table("samples")


def test_a_message_names_the_place() -> None:
    error = FormatError("bad", file="f", offset=16, field="size", value=255)
    assert str(error) == "f: bad (at offset 0x10, size = 0xff)"
