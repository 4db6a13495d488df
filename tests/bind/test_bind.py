"""The binder: every trap of real captures, and a brute-force oracle over random histories."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binder_checks import assert_equals_brute_force, batch, bound, make, timeline_of
from binding_oracle import (
    END,
    HALVES,
    KERNEL_HALF,
    History,
    address_space_histories,
)
from lastbranch.bind import SpaceIndex
from lastbranch.bind.binder import place
from lastbranch.model import (
    Change,
    Module,
    ModuleKind,
    Segment,
    Timeline,
)


# Maps that reach above 2**47 make the index use ranks of bounds instead of 48-bit keys: both ways must agree.
@pytest.mark.parametrize("highest", [1 << 40, KERNEL_HALF], ids=["48-bit keys", "ranks"])
@settings(max_examples=80, deadline=None)
@given(history=address_space_histories())
def test_equals_brute_force(highest: int, history: History) -> None:
    assert_equals_brute_force(highest, history)


@pytest.mark.parametrize("half", HALVES, ids=["64 bits", "32 bits", "a space of its own"])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_every_mode_equals_brute_force(half: int, data: st.DataObject) -> None:
    """Low kernels, hypervisors and guests, by the mode of the sample."""
    assert_equals_brute_force(1 << 40, data.draw(address_space_histories(half=half, guests=True)))


@settings(max_examples=50, deadline=None)
@given(history=address_space_histories())
def test_large_and_small_queries_agree(history: History) -> None:
    """Many queries are merged with the slabs, few are searched."""
    timeline, tags = timeline_of(history, 1 << 40)
    binder = make(timeline, tags)
    rows = [(q.pid, q.addr, q.time) for q in history.queries]
    if rows:
        assert bound(binder, rows * 200) == bound(binder, rows) * 200


def test_exec_remaps_the_same_address() -> None:
    """perf maps itself at 0x400000, then execs the program, which lies there too; old kernels do not mark the exec."""
    t = Timeline()
    t.add(Change.MAP, 1, 7, module=0, start=0x400000, end=0x500000)
    t.add(Change.MAP, 5, 7, module=1, start=0x400000, end=0x480000)
    assert bound(make(t, 2), [(7, 0x400010, 4), (7, 0x400010, 5), (7, 0x490000, 6)]) == [0, 1, 0]


def test_exec_drops_all_mappings() -> None:
    t = Timeline()
    t.add(Change.MAP, 1, 7, module=0, start=0x400000, end=0x500000)
    t.add(Change.EXEC, 5, 7)
    assert bound(make(t, 1), [(7, 0x400000, 4), (7, 0x400000, 5)]) == [0, -1]


def test_a_reused_pid_is_another_process() -> None:
    t = Timeline()
    t.add(Change.FORK, 1, 7, tid=7, parent=1)
    t.name(1, 7, 7, "first")
    t.add(Change.MAP, 2, 7, module=0, start=0x1000, end=0x2000)
    t.add(Change.EXIT, 3, 7, tid=7)
    t.add(Change.FORK, 9, 7, tid=7, parent=1)
    t.name(9, 7, 7, "second")
    binder = make(t, 1)
    assert bound(binder, [(7, 0x1000, 2), (7, 0x1000, 8), (7, 0x1000, 9)]) == [0, 0, -1]
    samples = batch([(7, 0x1000, 8), (7, 0x1000, 9)])
    names = [binder.processes[p].name for p in binder.process_of(binder.scopes(samples))]
    assert names == ["first", "second"]
    first = next(p for p in binder.processes if p.name == "first")
    assert (first.start, first.end) == (1, 3)


def test_a_forked_child_sees_its_parent_as_it_was() -> None:
    """Fork before exec: the child's samples are the parent's code, and later changes of either stay its own."""
    t = Timeline()
    t.add(Change.MAP, 1, 1, module=0, start=0x1000, end=0x2000)
    t.add(Change.FORK, 2, 2, tid=2, parent=1)
    t.add(Change.MAP, 3, 1, module=1, start=0x1000, end=0x2000)
    t.add(Change.FORK, 4, 3, tid=3, parent=2)
    t.add(Change.MAP, 5, 2, module=2, start=0x1800, end=0x2000)
    rows = [(2, 0x1000, 4), (1, 0x1000, 4), (2, 0x1900, 5), (2, 0x1000, 5), (3, 0x1900, 9)]
    assert bound(make(t, 3), rows) == [0, 1, 2, 0, 0]


def test_a_thread_is_no_process() -> None:
    t = Timeline()
    t.add(Change.MAP, 1, 1, module=0, start=0x1000, end=0x2000)
    t.add(Change.FORK, 2, 1, tid=5, parent=1)
    binder = make(t, 1)
    assert bound(binder, [(1, 0x1000, 3)]) == [0]
    assert [(p.pid) for p in binder.processes] == [1]
    assert {x.tid for x in binder.threads} == {5}


def test_kernel_maps_are_clipped_to_the_kernel_half() -> None:
    """Old perf writes a kernel map from 0 that covers all of user space."""
    t = Timeline()
    t.add(Change.MAP, 0, -1, module=0, start=0, end=0xFFFFFFFF9FFFFFFF, offset=0xFFFFFFFF81000000)
    rows = [(1, 0x400000, 1), (1, 0xFFFFFFFF81000000, 1), (99, 0xFFFFFFFF81000000, 1), (1, 0xFFFFFFFFA0000000, 1)]
    assert bound(make(t, 1, ModuleKind.KERNEL), rows) == [-1, 0, 0, -1]


def test_guest_samples_are_not_bound_to_the_host() -> None:
    t = Timeline()
    t.add(Change.MAP, 0, -1, module=0, start=KERNEL_HALF, end=END - 1)
    assert bound(make(t, 1), [(1, KERNEL_HALF + 5, 1)], mode=4) == [-1]
    assert bound(make(t, 1), [(1, KERNEL_HALF + 5, 1)], mode=1) == [0]


def test_rundown_that_repeats_opens_no_epoch() -> None:
    t = Timeline()
    for time in (1, 2, 3):
        t.add(Change.MAP, time, 1, module=0, start=0x1000, end=0x2000)
    binder = make(t, 1)
    scopes = binder.scopes(batch([(1, 0x1000, 2), (1, 0x1000, 9)]))
    assert scopes[0] == scopes[1]


TEXT = 0xFFFFFFFF81000000
SPLIT = (Segment(0x0, 0x0, 0x900, False), Segment(0x1740, 0x740, 0x1000, True), Segment(0x4000, 0x1800, 0x100, True))


@pytest.mark.parametrize(
    ("module", "start", "end", "offset", "address", "want"),
    [
        # p_vaddr and p_offset differ and the segment shares its first page of the file with the one before it
        (Module("m", segments=SPLIT[:2]), 0x555555001000, 0x555555003000, 0, 0x555555001740, 0x1740),
        # one mapping over two executable segments: each has its own distance
        (Module("m", segments=SPLIT), 0x10000, 0x12000, 0, 0x10800, 0x1800),
        (Module("m", segments=SPLIT), 0x10000, 0x12000, 0, 0x11810, 0x4010),
        # without a binary: the offset in the file
        (Module("m"), 0x555555001000, 0x555555003000, 0x2000, 0x555555001234, 0x2234),
        (Module("k", ModuleKind.KERNEL), TEXT, TEXT + (1 << 24), TEXT, TEXT + 0x40, 0x40),
        (Module("k", ModuleKind.KERNEL), 0xFFFFFFFF81000000, 0xFFFFFFFF82000000, 0, 0xFFFFFFFF81000040, 0x40),
        (
            Module("k", ModuleKind.KERNEL, segments=(Segment(0xFFFFFFFF81000000, 0x200000, 0x1000, True),)),
            0xFFFFFFFF93000000,
            0xFFFFFFFF94000000,
            0xFFFFFFFF93000000,
            0xFFFFFFFF93000040,
            0xFFFFFFFF81000040,
        ),
        (Module("ko", ModuleKind.KERNEL_MODULE), 0xFFFFFFFFC0001000, 0xFFFFFFFFC0002000, 0, 0xFFFFFFFFC0001010, 0x10),
        (Module("[vdso]", ModuleKind.VDSO), 0x7FFF0000, 0x7FFF2000, 0, 0x7FFF0123, 0x123),
        (Module("//anon", ModuleKind.ANONYMOUS), 0x7FFF0000, 0x7FFF2000, 0, 0x7FFF0123, 0x7FFF0123),
    ],
)
def test_module_addresses(module: Module, start: int, end: int, offset: int, address: int, want: int) -> None:
    pieces = place(module, start, end, offset)
    assert pieces[0][0] == start
    assert pieces[-1][1] == end
    assert all(a[1] == b[0] for a, b in pairwise(pieces))
    (bias,) = [b for lo, hi, b in pieces if lo <= address < hi]
    assert (address - bias) % (1 << 64) == want


@pytest.mark.thorough
def test_more_spaces_than_fit_a_key() -> None:
    """70 thousand processes, each with its own mapping at the same place."""
    t, n = Timeline(), 70_000
    for pid in range(1, n + 1):
        t.add(Change.MAP, pid, pid, module=pid % 3, start=0x1000, end=0x2000)
    binder = make(t, 3)
    pids = [1, 2, 3, 65_535, 65_536, 65_537, n]
    assert bound(binder, [(p, 0x1800, n) for p in pids]) == [p % 3 for p in pids]
    assert bound(binder, [(p, 0x2000, n) for p in pids]) == [-1] * len(pids)
    assert bound(binder, [(n, 0x1800, n - 1)]) == [-1]


def test_an_empty_index_finds_nothing() -> None:
    none = np.empty(0, np.int64)
    index = SpaceIndex(none, none.astype(np.uint64), none.astype(np.uint64), none, none, none)
    assert index.find(np.zeros(2, np.int64), np.zeros(2, np.int64), np.array([1, 2], np.uint64)).tolist() == [-1, -1]


@pytest.mark.parametrize("ranks", [False, True])
def test_many_queries_about_few_places(ranks: bool) -> None:
    """More queries than places are looked up by place: a place that changes meanwhile is looked up query by query."""
    last = 1 << 62
    # (space, lo, hi, first, last): one that ends, one behind a gap, one for good, one that follows another at once
    pieces = [(1, 10, 20, 0, 4), (1, 10, 20, 6, 8), (2, 10, 20, 0, last), (2, 30, 40, 2, 5), (2, 30, 40, 5, last)]
    pieces += [(0, (1 << 63) | 5, (1 << 63) | 9, 3, 7)] if ranks else []
    columns = [np.array(c, np.uint64 if i in (1, 2) else np.int64) for i, c in enumerate(zip(*pieces, strict=True))]
    index = SpaceIndex(*columns, np.arange(len(pieces)))
    places = [(s, a) for s in (1, 2, 3) for a in (0, 9, 10, 19, 20, 29, 30, 39, 40, 1 << 60)] + [(0, (1 << 63) | 6)]
    for low, high in ((0, 10), (4, 6), (5, 5), (7, 10), (0, 3)):
        asked = [(s, m, a) for s, a in places for m in range(low, high + 1)]
        expected = [
            next((i for i, (t, lo, hi, f, e) in enumerate(pieces) if s == t and lo <= a < hi and f <= m < e), -1)
            for s, m, a in asked
        ]
        space, moment, address = zip(*asked, strict=True)
        found = index.find(np.array(space), np.array(moment), np.array(address, np.uint64))
        assert found.tolist() == expected
