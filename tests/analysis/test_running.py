"""Counts of a recording that still runs: part by part they are those of the whole file, compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest

import perfdata_writer as pw
from growing_files import GrowingFile
from lastbranch import demo, native
from lastbranch.analysis import BranchTable, annotate, branches
from lastbranch.analysis.function.annotation import Annotation
from lastbranch.analysis.naming import Namer, Place, find_functions
from lastbranch.analysis.running import counts
from lastbranch.analysis.running.counts import Order, Snapshot
from lastbranch.model import Profile
from lastbranch.opening import FileSource, open_profile
from lastbranch.recording.live import LiveCapture
from lastbranch.symbols import Symbolizer, SymbolOptions

ORDERS: tuple[Order, ...] = ("samples", "now", "change", "branches", "mispredicted", "cycles")
_CODE, _JIT, _SMALL = 0x40_0000, 0x7F00_0000_0000, 0x50_0000
both = pytest.mark.parametrize("compiled", [
    pytest.param(True, marks=pytest.mark.skipif(native.library() is None, reason="there is no library")), False,
])  # fmt: skip


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes with one library at two addresses, which is mapped anew while they run; mappings that end within a
    page; made code, whose names depend on the process; branches in transactions; entries without an address, and of
    unmapped memory; stacks deeper than a block."""
    rng = np.random.default_rng(5)
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    for pid in (7, 8):
        b.comm(pid=pid, name=f"p{pid}", time=1, exec=True)
        b.mmap2(pid=pid, addr=_CODE * pid, length=0x8000, pgoff=0x1000, name="/lib/x.so", time=2)
        b.mmap2(pid=pid, addr=_JIT, length=0x4000, pgoff=0, name="//anon", time=3)
        b.mmap2(pid=pid, addr=_SMALL, length=0x1800, pgoff=0, name="/lib/small.so", time=4)
        b.mmap2(pid=pid, addr=_SMALL + 0x1800, length=0x1000, pgoff=0, name="/lib/other.so", time=5)
    time = 10

    def address(pid: int) -> int:
        kind, at = rng.random(), int(rng.zipf(1.5) % 64)
        if kind < 0.9:
            return _CODE * pid + 0x1FF * at  # most pages have several
        return [_JIT + 16 * at, _SMALL + 0x90 * at, 0, 0x1234_5678_0000 + at][int(rng.integers(4))]

    def flags(may_be_in_tx: bool) -> int:
        guess, in_tx = int(rng.integers(1, 3)), bool(rng.random() < 0.02) and may_be_in_tx
        return guess | in_tx << 2 | int(rng.integers(30)) << 4 | int(rng.integers(1, 4)) << 20

    for number in range(900):
        time += 1
        pid = 7 + int(rng.integers(2))
        if number in (300, 600):
            b.mmap2(
                pid=pid, addr=_CODE * pid, length=0x8000, pgoff=0x1000 * (number // 100), name="/lib/x.so", time=time
            )
        depth = 2600 if number == 450 else int(rng.integers(0, 33))
        if rng.random() < 0.3 and depth < 33:
            ends = [address(pid) for _ in range(depth + 1)]
        else:
            ends = [_CODE * pid + 4 * at % 0x8000 for at in rng.zipf(1.4, depth + 1).tolist()]
        entries = [(start, end, flags(depth < 33)) for end, start in pairwise(ends)]
        b.sample(ip=ends[0], pid=pid, tid=pid, time=time, branches=entries)
    path = tmp_path_factory.mktemp("running") / "awkward.data"
    for pid in (7, 8):
        path.with_name(f"perf-{pid}.map").write_text(f"{_JIT:x} 100 made_by_{pid}\n")
    path.write_bytes(b.build())
    return path


def watched(
    file: Path, tmp_path: Path, compiled: bool, look: Callable[[LiveCapture, Snapshot], Any], parts: int
) -> Any:
    """What ``look`` makes of ``file`` after its last part."""
    growing = GrowingFile(file, tmp_path / f"growing-{compiled}.data")
    options = SymbolOptions(cache=None, debug_dirs=(str(file.parent),))
    with (
        mock.patch.object(native, "library", native.library if compiled else lambda: None),
        LiveCapture(FileSource(str(growing.path)), options, symfs=demo.symfs()) as live,
    ):
        now = None
        while growing.add(len(growing.records) // parts + 1):
            live.read()
            now = live.turn()
        assert now is not None
        return look(live, now)


def check_equal(found: BranchTable, expected: BranchTable, limit: int) -> None:
    for name, column in expected.take(slice(limit or None)).arrays().items():
        assert np.array_equal(column, getattr(found, name)), (name, limit)


@both
@pytest.mark.parametrize("parts", [1, 6])
def test_branches_are_those_of_the_whole_file(awkward: Path, tmp_path: Path, compiled: bool, parts: int) -> None:
    expected = branches(open_profile(awkward))
    expected = expected.take(expected.recorded)
    assert expected.in_tx.any()
    assert {-1, 0, 1} <= set(expected.process.tolist())
    assert (expected.type == -1).any()

    def look(live: LiveCapture, now: Snapshot) -> None:
        for limit in (0, 1, 10, len(expected) - 1, len(expected) + 1):
            found, total = live.hottest_branches(limit)
            check_equal(found, expected, limit)
            assert total == expected.count.sum()
        assert now.left_out == 0

    watched(awkward, tmp_path, compiled, look, parts)


def test_functions_and_ranges_are_those_that_numpy_counts(
    awkward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.library() is None:
        pytest.skip("there is no library")
    monkeypatch.setattr(counts, "annotate_counts", lambda *given: given)

    def look(live: LiveCapture, now: Snapshot) -> Any:
        functions = {}
        for order in ORDERS:
            for limit in (0, 2):
                found = now.hottest_functions(limit, order)
                rows = zip(*(column.tolist() for column in found.arrays().values()), strict=True)
                functions[order, limit] = [(now.labels[row[1]], *row) for row in rows]
        ranges = {}
        assert live.profile is not None
        place = find_functions(live.profile, live.namer, "x.so+0x2000")[0]._replace(start=0x2000, end=0x2800)
        _, _, near, between, samples, missing = cast("Any", live.annotate(place))
        for name, kept in (("branches", near), ("ranges", between)):
            inside = [
                (kept.a_module == place.module) & (kept.a >= place.start) & (kept.a < place.end),
                (kept.b_module == place.module) & (kept.b >= place.start) & (kept.b < place.end),
            ]
            over = (kept.a_module == kept.b_module) & (kept.a_module == place.module) & (kept.a < place.end)
            inside.append(over & (kept.b >= place.start) & (name == "ranges"))
            kept = kept.take(np.logical_or.reduce(inside))
            ranges[name] = sorted(
                zip(*(c.tolist() for c in [*kept.arrays().values(), *kept.values.values()]), strict=True)
            )
            assert ranges[name]
        assert missing is None
        return functions, ranges, sorted(zip(*(c.tolist() for c in samples), strict=True))

    one, other = (watched(awkward, tmp_path, compiled, look, 5) for compiled in (True, False))
    assert {"made_by_7", "made_by_8"} < {row[0].function for row in one[0]["branches", 0]}
    assert one[1] == other[1]
    assert one[2] == other[2]
    for key, rows in one[0].items():  # the numbers of labels are by the order in which they came
        assert [(row[0], row[1], *row[3:]) for row in rows] == [(row[0], row[1], *row[3:]) for row in other[0][key]], (
            key
        )


@both
def test_live_code_has_the_counts_of_annotate(tmp_path: Path, compiled: bool) -> None:
    file = Path(demo.capture())
    profile = open_profile(file, symfs=demo.symfs())

    def counts(profile: Profile, namer: Namer, make: Callable[[Place], Annotation]) -> list[Any]:
        found = []
        for name in ("main", "cmp", "lib_visit*"):
            flow = make(find_functions(profile, namer, name)[0]).flow
            assert flow.executed > 0
            edges = sorted(zip(*(c.tolist() for c in flow.edges.arrays().values()), strict=True))
            blocks = flow.blocks
            columns = flow.arrivals, blocks.count, blocks.ended, blocks.mispredicted, blocks.predicted
            found += [*(column.tolist() for column in columns), edges]
        return found

    expected = counts(profile, Namer(profile, Symbolizer(profile)), lambda place: annotate(profile, place))

    def look(live: LiveCapture, now: Snapshot) -> None:
        assert live.profile is not None
        assert counts(live.profile, live.namer, live.annotate) == expected

    watched(file, tmp_path, compiled, look, 3)


@both
def test_what_is_held_stays_as_it_was(awkward: Path, tmp_path: Path, compiled: bool) -> None:
    growing = GrowingFile(awkward, tmp_path / "growing.data")
    with (
        mock.patch.object(native, "library", native.library if compiled else lambda: None),
        LiveCapture(FileSource(str(growing.path)), ours=True) as live,
    ):
        growing.add(len(growing.records) // 2)
        live.read()
        first = live.turn()
        assert first is not None
        functions, (table, total) = first.hottest_functions(), live.hottest_branches()
        live.hold()
        growing.add()
        live.read()
        assert first.hottest_functions().branches.tolist() == functions.branches.tolist()
        check_equal(live.hottest_branches()[0], table, 0)
        assert live.hottest_branches(5)[1] == total
        last = live.turn()
        assert last is not None
        assert last.hottest_functions().branches.sum() > functions.branches.sum()
        assert live.hottest_branches()[1] > total
        assert last.recent_entries == last.entries - first.entries


def test_rows_that_are_let_go_stay_in_the_sums_of_their_functions(
    awkward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = open_profile(awkward)
    expected = branches(whole)
    for most in (4, 150):
        monkeypatch.setattr(counts, "MOST_ROWS", most)

        def look(live: LiveCapture, now: Snapshot, most: int = most) -> None:
            functions = now.hottest_functions()
            recorded = expected.count[(expected.from_address != 0) | (expected.from_module >= 0)].sum()
            assert functions.branches.sum() == recorded
            table, total = live.hottest_branches()
            assert now.left_out > 0
            lost = now.left_out + total  # of entries without addresses some are let go, too
            assert expected.count[expected.recorded].sum() <= lost <= whole.entries
            assert (table.count > 0).all()

        for compiled in {native.library() is not None, False}:
            watched(awkward, tmp_path, compiled, look, 6)
