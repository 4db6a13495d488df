"""Pair counting, ranges and weights against plain Python over made-up captures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastbranch
from lastbranch import native
from lastbranch.analysis import count_stacks
from lastbranch.analysis.counting import bound_pairs, pair_counter
from lastbranch.analysis.counting.compact import Compactor
from lastbranch.bind import bind
from lastbranch.errors import NotRecordedError
from lastbranch.lbr import PERF_SELECT, branch_type, type_name
from lastbranch.model import (
    Change,
    Event,
    Module,
    ModuleKind,
    Profile,
    SampleBatch,
    SampleFilter,
    SampleStream,
    Timeline,
)

ANY = PERF_SELECT["ANY"]
Entry = tuple[int, int, int]


@dataclass
class Sample:
    time: int
    pid: int
    stack: list[Entry]
    ip: int = 0x1000
    event: int = 0
    period: int = 5
    tid: int = 0


@dataclass
class Capture:
    """A profile in memory: no file format takes part."""

    samples: list[Sample]
    timeline: Timeline = field(default_factory=Timeline)
    modules: list[Module] = field(default_factory=list)
    events: list[Event] = field(default_factory=lambda: [Event("cycles", branch_select=ANY, has_period=True)])

    def profile(self, size: int = 7) -> Profile:
        def read(_wanted: object) -> object:
            for lo in range(0, len(self.samples), size):
                yield self.batch(self.samples[lo : lo + size]), 0

        depths = [len(s.stack) for s in self.samples]
        columns = ("branch_from", "branch_to", "branch_flags")
        stream = SampleStream(0, columns, (0,), len(depths), sum(depths), max(depths, default=0), read)  # type: ignore[arg-type]
        seen = {(s.pid, s.tid or s.pid) for s in self.samples}
        profile = Profile(
            "made",
            "test",
            modules=self.modules,
            events=self.events,
            streams=[stream],
            timeline=self.timeline,
            seen_threads=seen,
        )
        return bind(profile)

    @staticmethod
    def batch(samples: list[Sample]) -> SampleBatch:
        n = len(samples)
        entries = [e for s in samples for e in s.stack]
        offsets = np.cumsum([0, *(len(s.stack) for s in samples)])
        columns = {
            "time": np.array([s.time for s in samples], np.int64),
            "ip": np.array([s.ip for s in samples], np.uint64),
            "pid": np.array([s.pid for s in samples], np.int32),
            "tid": np.array([s.tid or s.pid for s in samples], np.int32),
            "cpu": np.zeros(n, np.int32),
            "event": np.array([s.event for s in samples], np.int32),
            "period": np.array([s.period for s in samples], np.uint64),
            "mode": np.full(n, 2, np.uint8),
        }
        for i, name in enumerate(("branch_from", "branch_to", "branch_flags")):
            columns[name] = np.array([e[i] for e in entries], np.uint64)
        return SampleBatch(columns, {"branch": offsets})


# Few addresses, so that pairs repeat; far apart, so that regions are many; some not canonical in 48 bits.
NEAR = st.sampled_from([0, 1, 0x1000, 0x1004, 0x2000, 0x400000, 0x7FFFFFFFFFFF, 0xFFFF800000000000, 0xFFFFFFFFFFFFFFFF])
FAR = st.integers(0, 400).map(lambda n: n << 24 | 8)
WIDE = st.sampled_from([1 << 47, 1 << 56, 0xFF00000000001000])
ENTRIES = st.tuples(st.one_of(NEAR, FAR, WIDE), st.one_of(NEAR, FAR), st.sampled_from([0, 1, 2, 3, 0x12, 0xF0000F]))
SAMPLES = st.lists(
    st.builds(Sample, st.integers(0, 60), st.integers(1, 40), st.lists(ENTRIES, max_size=5)), max_size=60
)


def oracle(samples: list[Sample]) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]], dict[str, int]]:
    """Branches, ranges and broken ranges where nothing is mapped anywhere."""
    branches: Counter[tuple[int, int]] = Counter()
    ranges: Counter[tuple[int, int]] = Counter()
    broken = dict.fromkeys(("next to an empty entry", "ends in different modules", "ends before it starts"), 0)
    for s in samples:
        branches.update((f, t) for f, t, _ in s.stack)
        for (newer_from, newer_to, _), (older_from, older_to, _) in zip(s.stack, s.stack[1:], strict=False):
            if 0 in (newer_from, newer_to, older_from, older_to):
                broken["next to an empty entry"] += 1
            elif older_to > newer_from:
                broken["ends before it starts"] += 1
            else:
                ranges[older_to, newer_from] += 1
    return branches, ranges, broken


LITTLE_ROOM = {  # what the compactor has numbers for
    "plenty": {},
    "regions run out": {"REGIONS": 5},
    "scopes run out": {"SCOPES": 2},
    "no scope fits": {"SCOPES": 0},
}


@pytest.mark.parametrize("merge_rows", [1, 50, 1 << 19])
@pytest.mark.parametrize("room", LITTLE_ROOM)
@settings(max_examples=30, deadline=None)
@given(samples=SAMPLES)
def test_counts_equal_plain_python(merge_rows: int, room: str, samples: list[Sample]) -> None:
    """The NumPy form, also with so little room that it merges all the time and cannot compact addresses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        patch.setattr(pair_counter, "_MERGE_ROWS", merge_rows)
        for limit, value in LITTLE_ROOM[room].items():
            patch.setattr(Compactor, limit, value)
        counted = count_stacks(Capture(samples).profile(), ranges=True, details=True)
    branches, ranges, broken = oracle(samples)
    found: Counter[tuple[int, int]] = Counter()
    b = counted.branches
    for f, t, n in zip(b.a.tolist(), b.b.tolist(), b.count.tolist(), strict=True):
        found[f, t] += n
    assert found == branches
    assert int(b.mispredicted.sum()) == sum(e[2] & 1 for s in samples for e in s.stack)
    assert int(b.values["cycles"].sum()) == sum(e[2] >> 4 & 0xFFFF for s in samples for e in s.stack)
    found = Counter()
    r = counted.ranges
    assert r is not None
    for start, end, n in zip(r.a.tolist(), r.b.tolist(), r.count.tolist(), strict=True):
        found[start, end] += n
    assert found == ranges
    assert counted.broken == broken
    assert counted.entries == sum(len(s.stack) for s in samples)


def two_modules() -> Capture:
    t = Timeline()
    t.add(Change.MAP, 0, 1, module=0, start=0x1000, end=0x2000, offset=0)
    t.add(Change.MAP, 0, 1, module=1, start=0x2000, end=0x3000, offset=0)
    t.add(Change.MAP, 0, 2, module=0, start=0x9000, end=0xA000, offset=0)
    t.name(0, 1, 1, "one")
    t.name(0, 2, 2, "two")
    return Capture([], t, [Module("/a"), Module("/b")])


def test_one_program_at_two_bases_is_one_module() -> None:
    c = two_modules()
    c.samples = [
        Sample(1, 1, [(0x1010, 0x1100, 2), (0x1050, 0x1000, 1)]),
        Sample(2, 2, [(0x9010, 0x9100, 1), (0x9050, 0x9000, 2)]),
    ]
    table = lastbranch.branches(c.profile())
    rows = set(zip(table.from_module.tolist(), table.from_address.tolist(), table.count.tolist(), strict=True))
    assert rows == {(0, 0x10, 2), (0, 0x50, 2)}
    assert table.mispredicted.tolist() == [1, 1]
    ranges = lastbranch.ranges(c.profile())
    columns = (ranges.module, ranges.start, ranges.end, ranges.count)
    assert [c.tolist() for c in columns] == [[0], [0], [0x10], [2]]


@pytest.mark.parametrize("rows", [1, 1 << 17])
def test_equal_branches_of_several_processes_are_one_row_if_nobody_asks_for_the_process(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bound_pairs, "_SHRINK_ROWS", rows)
    c = two_modules()
    c.samples = [Sample(1, 1, [(0x1010, 0x1100, 2), (0x1050, 0x1000, 1)])]
    c.samples += [Sample(2, 2, [(0x9010, 0x9100, 1)])] * 5
    counted = count_stacks(c.profile(), ranges=False, details=True, by_process=False).branches
    table = zip(counted.process.tolist(), counted.a.tolist(), counted.count.tolist(), strict=True)
    assert sorted(table) == [(-1, 0x10, 6), (0, 0x50, 1)]
    assert counted.predicted.tolist() == [1, 0]
    assert set(counted.values) == set(bound_pairs.BRANCH_VALUES)
    apart = count_stacks(c.profile(), ranges=False, details=False).branches
    assert sorted(zip(apart.process.tolist(), apart.a.tolist(), strict=True)) == [(0, 0x10), (0, 0x50), (1, 0x10)]


def test_a_range_over_two_modules_is_broken() -> None:
    c = two_modules()
    c.samples = [Sample(1, 1, [(0x2010, 0x1000, 2), (0x1010, 0x1100, 2)])]
    ranges = lastbranch.ranges(c.profile())
    assert len(ranges) == 0
    assert ranges.broken["ends in different modules"] == 1


def test_a_mapping_that_changes_between_samples_splits_the_counts() -> None:
    c = two_modules()
    c.timeline.add(Change.MAP, 5, 1, module=1, start=0x1000, end=0x2000, offset=0x5000)
    c.samples = [Sample(t, 1, [(0x1010, 0x1020, 2)]) for t in (4, 5, 6)]
    table = lastbranch.branches(c.profile())
    rows = sorted(zip(table.from_module.tolist(), table.from_address.tolist(), table.count.tolist(), strict=True))
    assert rows == [(0, 0x10, 1), (1, 0x5010, 2)]


@pytest.mark.parametrize(
    ("select", "words"),
    [
        ("ANY_CALL", "any_call"),
        ("COND", "cond"),
        ("IND_JUMP", "ind_jump"),
        ("CALL", "call"),
        ("IND_CALL", "ind_call"),
        ("ANY_RETURN", "any_return"),
        ("CALL_STACK", "call-stack mode"),
        ("ANY|NO_TX", "no_tx"),
        ("ANY|IN_TX", "in_tx"),
        ("ANY|CALL_STACK", "call-stack mode"),
    ],
)
def test_ranges_need_every_near_branch(select: str, words: str) -> None:
    bits = sum(PERF_SELECT[s] for s in select.split("|"))
    c = Capture([Sample(1, 1, [(1, 2, 2)])], events=[Event("cycles", branch_select=bits)])
    with pytest.raises(NotRecordedError, match=words):
        lastbranch.ranges(c.profile())
    assert len(lastbranch.branches(c.profile())) == 1


@pytest.mark.parametrize(
    "select", ["ANY", "ANY|USER", "USER|KERNEL", "ANY|COND", "ANY|TYPE_SAVE|HW_INDEX", "USER|NO_FLAGS"]
)
def test_ranges_exist_where_all_were_recorded(select: str) -> None:
    bits = sum(PERF_SELECT[s] for s in select.split("|"))
    c = Capture([Sample(1, 1, [(9, 2, 2), (3, 4, 2)])], events=[Event("cycles", branch_select=bits)])
    assert len(lastbranch.ranges(c.profile())) == 1


def test_without_branch_stacks_there_are_no_branches() -> None:
    c = Capture([Sample(1, 1, [])], events=[Event("cycles")])
    with pytest.raises(NotRecordedError, match="no branch stacks") as error:
        lastbranch.branches(c.profile())
    assert "perf record -b" in str(error.value.hint)


def test_weights_are_per_event_and_never_added_up() -> None:
    c = two_modules()
    c.events = [Event("cycles", has_period=True), Event("fixed", period=100), Event("adaptive", frequency=99)]
    c.samples = [
        Sample(1, 1, [(1, 2, 2)], ip=0x1800, event=0, period=7),
        Sample(2, 1, [], ip=0x2800, event=0, period=5),
        Sample(3, 1, [], ip=0x1800, event=1, period=0),
        Sample(4, 2, [], ip=0x9000, event=1, period=0),
        Sample(5, 2, [], ip=0x50, event=2, period=0),
    ]
    profile = c.profile(size=2)
    rows = lastbranch.weights(profile, "module")
    columns = (rows.event, rows.key, rows.samples, rows.period, rows.has_period, rows.entries)
    assert sorted(zip(*(x.tolist() for x in columns), strict=True)) == [
        (0, 0, 1, 7, True, 1),
        (0, 1, 1, 5, True, 0),
        (1, 0, 2, 200, True, 0),
        (2, -1, 1, 0, False, 0),
    ]
    rows = lastbranch.weights(profile, "process")

    names = [bind(profile).binder.processes[k].name for k in rows.key]
    assert list(zip(rows.event.tolist(), names, rows.samples.tolist(), strict=True)) == [
        (0, "one", 2),
        (1, "one", 1),
        (1, "two", 1),
        (2, "two", 1),
    ]


def test_filters() -> None:
    c = two_modules()
    c.samples = [
        Sample(1, 1, [(0x1010, 0x1020, 2)], ip=0x1000),
        Sample(2, 1, [(0x2010, 0x2020, 2)], ip=0x2000, tid=9),
        Sample(3, 2, [(0x9010, 0x9020, 2), (0x1, 0x2, 2)], ip=0x9000),
    ]

    def count(**options: object) -> int:
        return int(lastbranch.branches(c.profile(), sample_filter=SampleFilter(**options)).count.sum())  # type: ignore[arg-type]

    assert count() == 4
    assert count(pids=frozenset({1})) == 2
    assert count(tids=frozenset({9})) == 1
    assert count(first=2) == 3
    assert count(last=2) == 1
    assert count(first=2, last=3) == 1
    assert count(modules=frozenset({0})) == 2
    assert count(events=frozenset({1})) == 0
    by_module = lastbranch.weights(c.profile(), "module", sample_filter=SampleFilter(modules=frozenset({1})))
    assert by_module.samples.tolist() == [1]


def test_a_branch_of_several_types_says_so() -> None:
    c = Capture([Sample(1, 1, [(1, 2, 1 << 20), (1, 2, 3 << 20), (5, 6, 4 << 20), (5, 6, 4 << 20), (5, 6, 4 << 20)])])
    table = lastbranch.branches(c.profile())
    assert table.type.tolist() == [4, -1]
    assert type_name(4) == "call"
    assert branch_type(np.array([15 << 20 | 3 << 26], np.uint64)).tolist() == [19]


def test_anonymous_memory_keeps_its_address() -> None:
    t = Timeline()
    t.add(Change.MAP, 0, 1, module=0, start=0x5000, end=0x6000, offset=0)
    c = Capture([Sample(1, 1, [(0x5010, 0x5020, 2)])], t, [Module("//anon", ModuleKind.ANONYMOUS)])
    assert lastbranch.branches(c.profile()).from_address.tolist() == [0x5010]
