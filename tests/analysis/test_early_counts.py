"""Counting while a capture is indexed: the counts are those of a second pass, whatever the order of the records."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfdata_writer as pw
from lastbranch.analysis.counting.bound_pairs import BoundPairs
from lastbranch.analysis.counting.count_stacks import EarlyCounts, StackCounts, count_stacks
from lastbranch.analysis.counting.early_pass import EarlyPass
from lastbranch.fleet.counting import Labels, capture_file, count_captures
from lastbranch.formats.perfdata import walk
from lastbranch.model import BytesSource, Mode, Profile, SampleFilter
from lastbranch.opening import read_profile
from perfdata_writer import Builder

PAGE, KERNEL = 0x1000, 0xFFFFFFFF81000000
PIDS = (1, 2, 3, -1)
PLACES = (0, 0x10, PAGE, PAGE + 0x20, 2 * PAGE + 4, 1 << 30, KERNEL + 8, 1 << 50)
"""Among them none, and one that the kernel cannot compact."""
FLAGS = (0, 1, 2, 2 | 7 << 4, 1 | 4)
PID = st.sampled_from(PIDS)
CHANGES = st.one_of(
    st.tuples(st.just("map"), PID, st.integers(0, 2), st.sampled_from("ab")),
    st.tuples(st.just("fork"), PID, PID),
    st.tuples(st.just("exec"), PID),
    st.tuples(st.just("exit"), PID),
    st.tuples(st.just("kernel"), st.sampled_from([KERNEL, 0xC0000000]), st.sampled_from("kl")),
    st.tuples(st.just("guest"), PID),
)
"""What happens to processes, and the kernel last: that touches all samples."""


@st.composite
def histories(draw: Any) -> list[tuple[int, tuple[Any, ...]]]:
    """Records in the order of the file, each with how much earlier or later than its place there it happened."""
    random = Random(draw(st.integers(0, 1 << 32)))

    def sample() -> tuple[Any, ...]:
        stack = [tuple(map(random.choice, (PLACES, PLACES, FLAGS))) for _ in range(random.randrange(5))]
        return "sample", random.choice(PIDS), random.choice((0, 1, 2, 2, 2, 3, 4, 5)), random.choice(PLACES), stack

    found = [(random.randint(-2, 2), sample()) for _ in range(draw(st.integers(1, 80)))]
    for place, change in draw(st.lists(st.tuples(st.integers(0, 80), CHANGES), max_size=6)):
        found.insert(place, (draw(st.integers(-40, 40)), change))
    return found


FORMS = st.sampled_from([{}, {}, {}, {"big": True}, {"pipe": True}, {"compress": 83}])


def capture(history: list[tuple[int, tuple[Any, ...]]], events: int = 1) -> Builder:
    layout = pw.IDENTIFIER | pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK
    b = Builder(sample_type=layout if events > 1 else layout ^ pw.IDENTIFIER)
    numbers = [0, *(b.attr(sample_type=layout) for _ in range(events - 1))]
    for place, (shift, (kind, *values)) in enumerate(history):
        at = {"time": max(1, 50 + place + shift)}
        match kind, values:
            case "sample", [pid, mode, ip, branches]:
                b.sample(mode, ip=ip, pid=pid, branches=branches, event=numbers[place % events], **at)
            case "map", [pid, page, name]:
                b.mmap2(pid=pid, addr=page * PAGE, length=PAGE, pgoff=0, name=f"/bin/{name}", **at)
            case "kernel", [addr, name]:
                b.kernel_map(addr, PAGE, name=f"[{name}]", **at)
            case "guest", [pid]:
                b.mmap2(int(Mode.GUEST_USER), pid=pid, addr=PAGE, length=PAGE, pgoff=0, name="/guest", **at)
            case "fork", [pid, parent]:
                b.fork(pid=pid, ppid=parent, **at)
            case "exec", [pid]:
                b.comm(exec=True, pid=pid, name="x", **at)
            case "exit", [pid]:
                b.exit(pid=pid, **at)
    return b


def opened(raw: bytes, early: EarlyCounts | None = None) -> Profile:
    return read_profile(BytesSource(raw, "x.data"), binaries=False, watcher=early)


def columns(counted: StackCounts) -> dict[str, Any]:
    tables = {"branches": counted.branches, "ranges": counted.ranges, "sampled": counted.sampled}
    found: dict[str, Any] = {"broken": counted.broken, "totals": (counted.samples, counted.entries)}
    for name, table in tables.items():
        if table is not None:
            values = table.values if isinstance(table, BoundPairs) else {}
            found |= {f"{name} {column}": rows.tolist() for column, rows in (table.arrays() | values).items()}
    return found


class Asked:
    """Which blocks were read again."""

    def __init__(self, profile: Profile) -> None:
        (stream,), self.blocks, self.passes = profile.streams, set[int](), 0
        again, reader = stream.blocks, stream.reader

        def blocks(numbers: Any) -> Any:
            self.blocks |= set(numbers)
            assert again is not None
            return again(numbers)

        def batches(wanted: Any) -> Any:
            self.passes += 1
            return reader(wanted)

        stream.blocks, stream.reader = blocks if again else None, batches


@settings(max_examples=150, deadline=None)
@given(histories(), FORMS, st.sampled_from([512, 2048, 4 << 20]), st.tuples(*[st.booleans()] * 3))
def test_early_counts_are_those_of_a_second_pass(
    history: list[Any], form: dict[str, Any], block: int, wanted: tuple[bool, bool, bool]
) -> None:
    raw = capture(history).build(**form)
    kinds: Any = dict(zip(("ranges", "details", "sampled"), wanted, strict=True))
    with patch.object(walk, "BLOCK_BYTES", block):
        expected = columns(count_stacks(opened(raw), **kinds))
        profile = opened(raw, EarlyCounts(**kinds))
        assert columns(count_stacks(profile, **kinds)) == expected
        assert columns(count_stacks(profile, **kinds)) == expected  # and the next one reads the capture


class Closable(BytesSource):
    def close(self) -> None: ...


def counted_for_a_store(raw: bytes) -> list[Any]:
    out: list[Any] = []
    with patch("lastbranch.fleet.counting.open_source", lambda name: Closable(raw, name)):
        counted = list(count_captures([capture_file("x.data", Labels())]))
    for day, rows in counted:
        texts = {name for name, column in rows.counts.items() if column.dtype == np.int32}
        columns = {n: [rows.words[i] if n in texts else i for i in c.tolist()] for n, c in rows.counts.items()}
        out += [day, sorted(zip(*columns.values(), strict=True)), rows.captures, sorted(rows.modules)]
    return out


@settings(max_examples=60, deadline=None)
@given(histories(), FORMS, st.sampled_from([512, 2048, 4 << 20]), st.integers(1, 2))
def test_a_store_gets_the_same_from_one_pass(history: list[Any], form: dict[str, Any], block: int, events: int) -> None:
    raw = capture(history, events).build(**form)
    with patch.object(walk, "BLOCK_BYTES", block):
        found = counted_for_a_store(raw)
        with patch.object(EarlyPass, "pour", return_value=False):
            assert found == counted_for_a_store(raw)
    assert not any(row["refused"] for row in found[2])


def test_a_compressed_capture_is_inflated_once_for_a_store() -> None:
    history: list[Any] = [(0, ("sample", 1, 2, PAGE, [(PAGE, PAGE + 8, 1)])) for _ in range(20)]
    raw = capture(history).build(compress=83)
    with patch.object(walk.Inflater, "_inflate", autospec=True, side_effect=walk.Inflater._inflate) as inflate:
        opened(raw)
        once = inflate.call_count
        counted_for_a_store(raw)
    assert inflate.call_count == 2 * once > 0


def steady(samples: int = 40, changes: dict[int, tuple[Any, ...]] | None = None) -> bytes:
    """Samples of two processes with an empty entry each, a change at some of them."""
    history: list[Any] = [(-49, ("map", pid, page, "a")) for pid in (1, 2) for page in (0, 1)]
    for i in range(samples):
        stack = [(PAGE + 0x20, PAGE, 2), (PAGE + 0x10, 0, 0), (PAGE + 0x10, PAGE + 8, 1)]
        history.append((0, ("sample", 1 + i % 2, 2, PAGE, stack)))
        history += [(changes or {})[i]] if i in (changes or {}) else []
    raw: bytes = capture(history).build()
    return raw


@pytest.mark.parametrize(
    ("changes", "least", "most"),
    [
        ({}, 0, 0),
        # the samples of a process wait in the block that has a change of it
        ({20: (0, ("map", 1, 0, "b"))}, 1, 2),
        # a change that happened two blocks before has the samples since the last change counted again
        ({20: (-12, ("map", 1, 1, "b"))}, 4, 7),
        # and some change nothing
        ({20: (0, ("exit", 1)), 22: (0, ("fork", 1, 1))}, 0, 0),
    ],
)
def test_only_blocks_that_a_change_touches_are_read_again(changes: dict[int, Any], least: int, most: int) -> None:
    raw = steady(changes=changes)
    with patch.object(walk, "BLOCK_BYTES", 512):
        expected = columns(count_stacks(opened(raw), ranges=True, details=False))
        profile = opened(raw, EarlyCounts(ranges=True, details=False))
        asked = Asked(profile)
        assert columns(count_stacks(profile, ranges=True, details=False)) == expected
    assert asked.passes == 0
    assert least <= len(asked.blocks - {0}) <= most  # the first block has mappings


def test_a_filter_of_samples_reads_the_capture() -> None:
    raw, only = steady(), SampleFilter(pids=frozenset([1]))
    expected = columns(count_stacks(opened(raw), ranges=True, details=False, sample_filter=only))
    profile = opened(raw, EarlyCounts(ranges=True, details=False))
    asked = Asked(profile)
    assert columns(count_stacks(profile, ranges=True, details=False, sample_filter=only)) == expected
    assert asked.passes == 1


def test_too_many_rows_are_not_kept() -> None:
    raw = steady()
    with patch("lastbranch.analysis.counting.early_pass._MOST_EARLY", -1), patch.object(walk, "BLOCK_BYTES", 512):
        profile = opened(raw, EarlyCounts(ranges=True, details=False))
        asked = Asked(profile)
        found = columns(count_stacks(profile, ranges=True, details=False))
    assert asked.passes == 1
    assert found == columns(count_stacks(opened(raw), ranges=True, details=False))


def test_several_layouts_are_counted_from_the_file() -> None:
    b = Builder(sample_type=pw.IDENTIFIER | pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    other = b.attr(sample_type=pw.IDENTIFIER | pw.IP | pw.TID | pw.TIME | pw.PERIOD | pw.BRANCH_STACK)
    for event in (0, other):
        b.sample(2, ip=PAGE, pid=1, time=5, branches=[(PAGE, 2 * PAGE, 1)], event=event)
    profile = opened(b.build(), EarlyCounts(ranges=False, details=False))
    assert count_stacks(profile, ranges=False, details=False).branches.count.tolist() == [2]


def test_columns_that_are_compared() -> None:
    found = columns(count_stacks(opened(steady()), ranges=True, details=True, sampled=True))
    assert {"branches count", "branches cycles", "ranges a", "sampled address"} <= found.keys()
    assert np.sum(found["branches count"]) == 120
