"""Captures that are opened together, against one capture that has the records of all."""

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lastbranch
import perfdata_writer as pw
from captures import Data
from concatenated import concatenated, moved
from lastbranch.analysis import Namer, call_stacks, count_stacks
from lastbranch.analysis.counting.over_time import over_time, samples_over_time
from lastbranch.bind import JoinedProfile
from lastbranch.bind.joined import Member
from lastbranch.errors import FormatError, SelectionError
from lastbranch.export import counts as counts_text
from lastbranch.export.interface import ExportOptions
from lastbranch.model import Array, Clock, Profile, SampleFilter
from perfdata_writer import Builder

KINDS = pw.IP | pw.TID | pw.TIME | pw.PERIOD | pw.BRANCH_STACK
BASES = (0x400000, 0x500000, 0x600000)
IDS = [bytes([i + 1] * 20) for i in range(3)]


def capture(seed: int, pids: tuple[int, ...] = (7, 8), *, samples: int = 40, ids: bool = True, **attr: int) -> Builder:
    """Processes with three binaries at other places in each, and branches within and between them."""
    rng = np.random.default_rng(seed)
    b = Builder(**{"sample_type": KINDS, **attr})
    for pid in pids:
        b.comm(pid=pid, tid=pid, name=f"prog{pid}", time=1, exec=True)
        for i, base in enumerate(rng.permutation(BASES).tolist()):
            at = {"pid": pid, "tid": pid, "addr": base, "length": 0x1000, "pgoff": 0, "time": 2}
            b.mmap2(name=f"/{seed}/bin{i}", build_id=IDS[i] if ids else None, **at)
    for i in range(samples):
        entries = [
            (
                int(rng.choice(BASES)) + int(rng.integers(9)),
                int(rng.choice(BASES)) + int(rng.integers(9)),
                int(rng.integers(3)) | int(rng.integers(50)) << 4 | int(rng.integers(1, 7)) << 20,
            )
            for _ in range(int(rng.integers(6)))
        ]
        pid = int(rng.choice(pids))
        values = {"period": int(rng.integers(1, 99))} if b.capture.attrs[0]["sample_type"] & pw.PERIOD else {}
        b.sample(ip=int(rng.choice(BASES)), pid=pid, tid=pid, time=10 + i, branches=entries, **values)
    return b


def lay(folder: Path, *captures: bytes) -> list[str]:
    paths = [folder / f"{i}.data" for i in range(len(captures))]
    for path, data in zip(paths, captures, strict=True):
        path.write_bytes(data)
    return [*map(str, paths)]


def counts(profile: Profile) -> list[np.ndarray]:
    """All that is counted of a profile, as columns."""
    found = [lastbranch.branches(profile), lastbranch.ranges(profile)]
    found += [lastbranch.weights(profile, by) for by in ("process", "thread", "module")]
    return [column for table in found for column in table.arrays().values()]


def assert_equal(one: Profile, other: Profile) -> None:
    for a, b in zip(counts(one), counts(other), strict=True):
        assert a.tolist() == b.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_those_of_one_recording(tmp_path: Path, seed: int) -> None:
    one = capture(seed).build()
    other = moved(capture(seed).build(), 100, 1000)
    third = moved(capture(seed, (7, 8, 9)).build(), 200, 2000)
    whole, *paths = lay(tmp_path, concatenated(one, other, third), one, other, third)
    assert_equal(lastbranch.open(paths), lastbranch.open(whole))


def test_real_programs_are_those_of_one_recording(data: Data, tmp_path: Path) -> None:
    one = data.path("demo_2proc").read_bytes()
    other = moved(data.path("demo_pie").read_bytes(), 1000, 10**10)
    whole, *paths = lay(tmp_path, concatenated(one, other), one, other)
    joined, single = lastbranch.open(paths), lastbranch.open(whole)
    assert_equal(joined, single)
    assert [m.name for m in joined.modules] == [m.name for m in single.modules]
    assert [(p.pid, p.name) for p in joined.processes] == [(p.pid, p.name) for p in single.processes]
    assert [p.capture for p in joined.processes] == [0, 0, 1]


def test_a_module_is_one_by_identity_and_not_by_path(tmp_path: Path) -> None:
    joined = lastbranch.open(lay(tmp_path, capture(1).build(), capture(2).build()))
    assert [m.build_id for m in joined.modules] == IDS  # under /1 and /2
    table = lastbranch.branches(joined)
    assert table.count.sum() == sum(lastbranch.branches(lastbranch.open(c.name)).count.sum() for c in joined.captures)


def test_one_path_with_two_builds_is_two_modules(tmp_path: Path) -> None:
    def build(identity: bytes) -> bytes:
        b = Builder(sample_type=KINDS)
        b.mmap2(pid=7, addr=0x400000, length=0x1000, pgoff=0, name="/bin/x", build_id=identity, time=1)
        b.sample(ip=0x400010, pid=7, time=5, period=1, branches=[(0x400020, 0x400010, 1)])
        return b.build()

    joined = lastbranch.open(lay(tmp_path, build(IDS[0]), build(IDS[1]), build(IDS[0])))
    assert [(m.name, m.build_id) for m in joined.modules] == [("/bin/x", IDS[0]), ("/bin/x", IDS[1])]
    assert lastbranch.branches(joined).count.tolist() == [2, 1]


def test_modules_without_identity_count_by_capture_and_it_says_so(tmp_path: Path) -> None:
    joined = lastbranch.open(lay(tmp_path, capture(1, ids=False).build(), capture(1, ids=False).build() + b""))
    assert isinstance(joined, JoinedProfile)
    assert len(joined.modules) == 6
    assert any("bin0, bin1, bin2" in note for note in joined.notes)


def test_a_weight_counts_samples_so_often(tmp_path: Path) -> None:
    paths = lay(tmp_path, capture(1).build(), capture(1, (7, 8, 9)).build())
    one, other = map(lastbranch.open, paths)
    weighed = lastbranch.open(paths, weights={"1.data": 5})
    totals = [lastbranch.branches(p).count.sum() for p in (one, other, weighed)]
    assert totals[2] == totals[0] + 5 * totals[1]
    for by in ("process", "module"):
        tables = [lastbranch.weights(p, by) for p in (one, other, weighed)]
        for column in ("samples", "period", "entries"):
            sums = [int(table.arrays()[column].sum()) for table in tables]
            assert sums[2] == sums[0] + 5 * sums[1]
    stacks = [call_stacks(p) for p in (one, other, weighed)]
    assert stacks[2].samples.sum() == stacks[0].samples.sum() + 5 * stacks[1].samples.sum()
    assert [c.weight for c in weighed.captures] == [1, 5]
    alone = lastbranch.open(paths[1], weights={"1.data": 5})
    for count in (samples_over_time, samples_by_name_over_time):
        assert count(weighed, 3).sum() == count(one, 3).sum() + 5 * count(other, 3).sum()
        assert count(alone, 3).tolist() == (5 * count(other, 3)).tolist()
    cycles = [lastbranch.branches(p).cycles.sum() for p in (one, other, weighed)]
    assert cycles[2] == cycles[0] + 5 * cycles[1]


def samples_by_name_over_time(profile: Profile, parts: int) -> Array:
    """`samples_over_time` by what `over_time` says."""
    found = over_time(profile, Namer(profile, None), parts)
    return np.bincount(found.part, found.samples, parts).astype(np.int64)


def test_text_of_counts_keeps_modules_apart_that_may_differ(tmp_path: Path) -> None:
    paths = lay(tmp_path, *(capture(1, samples=n, ids=False).build() for n in (30, 40)))
    words = [set[str](), set[str]()]
    for found, opened in zip(words, (paths[:1], paths), strict=True):
        counts_text.export(lastbranch.open(opened), out := BytesIO(), ExportOptions())
        for line in out.getvalue().decode().splitlines():
            kind, *rest = line.split()
            found.update(rest[:1] if kind == "R" else rest[:4:2])
    assert words[0] == {f"/1/bin{i}" for i in range(3)}
    assert words[1] == {f"{name}@unidentified:{n}" for name in words[0] for n in (1, 2)}


@pytest.mark.parametrize("name", ["0.data", "*/0.data", "{folder}/0.data"])
def test_a_weight_names_a_capture_as_people_do(tmp_path: Path, name: str) -> None:
    paths = lay(tmp_path, capture(1).build(), capture(2).build())
    opened = lastbranch.open(paths, weights={name.format(folder=tmp_path): 3})
    assert [c.weight for c in opened.captures] == [3, 1]


def test_weights_of_nothing_and_weights_too_large_are_refused(tmp_path: Path) -> None:
    paths = lay(tmp_path, capture(1).build())
    with pytest.raises(SelectionError, match=r"no capture is called 'x\.data'"):
        lastbranch.open(paths, weights={"x.data": 3})
    with pytest.raises(SelectionError, match="64 bits"):
        lastbranch.open(paths, weights={"0.data": 1 << 50})
    assert lastbranch.branches(lastbranch.open(paths, weights={"0.data": 2})).count.sum() % 2 == 0


def test_each_capture_counts_its_time_from_its_start(tmp_path: Path) -> None:
    paths = lay(tmp_path, capture(1).build(), moved(capture(1).build(), 0, 10**15))
    joined, one = lastbranch.open(paths), lastbranch.open(paths[0])
    assert joined.start == 0
    assert joined.last_time == one.last_time - one.start
    chosen = SampleFilter(first=0, last=20)
    found = count_stacks(joined, ranges=False, details=False, sample_filter=chosen)
    alone = SampleFilter(first=one.start, last=one.start + 20)
    assert found.samples == 2 * count_stacks(one, ranges=False, details=False, sample_filter=alone).samples
    captures = [int(b["capture"][0]) for b in joined.batches((), ordered=True)]
    assert captures == sorted(captures)


@given(st.data())
def test_common_times_are_own_times(draw: st.DataObject) -> None:
    """Exactly, back and forth, whatever the frequencies, up to a day."""
    frequency = draw.draw(st.integers(1000, 10**10))
    common = draw.draw(st.integers(frequency, 10**10))
    start = draw.draw(st.integers(-(1 << 40), 1 << 40))
    profile = Profile("x", "perf.data", clock=Clock("TSC", frequency), start=start)
    member = Member(profile, 1, np.array([-1]), lambda: None)
    member.ticks = common, frequency
    own = np.array(draw.draw(st.lists(st.integers(-frequency * 99, frequency * 86400))), np.int64)
    shared = member.common_time(own)
    assert shared.tolist() == [(t - start) * common // frequency for t in own.tolist()]
    assert member.own_time(shared).tolist() == own.tolist()


def test_samples_of_different_events_are_added_up_on_request_only(tmp_path: Path) -> None:
    paths = lay(tmp_path, capture(1).build(), capture(1, type=0, config=1).build())  # cycles, instructions
    joined = lastbranch.open(paths)
    names = [e.name for e in joined.events]
    assert len({*names}) == 2
    with pytest.raises(SelectionError, match="different events"):
        lastbranch.branches(joined)
    with pytest.raises(SelectionError, match="different events"):
        call_stacks(joined)
    one = lastbranch.branches(joined, sample_filter=SampleFilter(events=frozenset([0])))
    both = lastbranch.branches(joined, sample_filter=SampleFilter(events=frozenset([0, 1])))
    assert both.count.sum() == 2 * one.count.sum()
    assert lastbranch.weights(joined, "module").event.tolist() == [0] * 3 + [1] * 3


def test_events_that_differ_in_their_rate_are_one(tmp_path: Path) -> None:
    """Periods that are not recorded become those of the event they were taken by."""
    kinds = KINDS & ~pw.PERIOD
    paths = lay(tmp_path, *(capture(1, sample_type=kinds, sample_period=p).build() for p in (1000, 3000)))
    joined, (one, other) = lastbranch.open(paths), map(lastbranch.open, paths)
    assert len(joined.events) == 1
    sums = [int(lastbranch.weights(p, "process").period.sum()) for p in (one, other, joined)]
    assert sums[1] == 3 * sums[0]
    assert sums[2] == sums[0] + sums[1]


def test_what_cannot_be_opened_is_named_and_the_rest_is_done(tmp_path: Path) -> None:
    good = capture(1).build()
    paths = lay(tmp_path, good, b"", good[: len(good) * 3 // 4], b"PERFILE2")
    joined = lastbranch.open([*paths, str(tmp_path / "none")])
    assert isinstance(joined, JoinedProfile)
    assert [Path(name).name for name, _ in joined.refused] == ["1.data", "3.data", "none"]
    assert [Path(c.name).name for c in joined.captures] == ["0.data", "2.data"]
    assert {Path(d.file or "").name for d in joined.damage} == {"2.data"}
    with pytest.raises(FormatError, match="empty"):
        lastbranch.open([paths[1], paths[3]])


def test_folders_patterns_and_files_that_come_again(tmp_path: Path) -> None:
    lay(tmp_path, capture(1).build(), capture(2).build())
    (tmp_path / "README.md").write_text("# nothing\n")
    (tmp_path / "NOTES.md").write_text("# Captures\n\n| PERF_RECORD_MMAP2 | `0x1/0x2/P` |\n")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "2.data").write_bytes(capture(3).build())

    def names(*what: str) -> list[str]:
        return [os.path.relpath(c.name, tmp_path) for c in lastbranch.open(what).captures]

    assert names(str(tmp_path)) == ["0.data", "1.data"]
    assert names(f"{tmp_path}/**/*.data") == ["0.data", "1.data", "below/2.data"]
    assert names(f"{tmp_path}/[1-9].data") == ["1.data"]
    assert names(str(tmp_path), f"{tmp_path}/./0.data") == ["0.data", "1.data"]
    assert any("NOTES.md" in note and "README.md" in note for note in lastbranch.open([tmp_path]).notes)
    with pytest.raises(FormatError, match="no file has a name like this"):
        lastbranch.open(f"{tmp_path}/*.etl")
    (tmp_path / "none").mkdir()
    with pytest.raises(FormatError, match="the folder has no capture"):
        lastbranch.open(tmp_path / "none")


def test_a_file_that_was_replaced_is_not_read(tmp_path: Path) -> None:
    paths = lay(tmp_path, capture(1).build(), capture(2).build())
    joined = lastbranch.open(paths)
    Path(paths[1]).write_bytes(capture(3, samples=9).build())
    with pytest.raises(FormatError, match="changed or replaced"):
        lastbranch.branches(joined)


def test_more_captures_than_a_process_may_have_files(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    lay(tmp_path, *(capture(i % 3, samples=5).build() for i in range(80)))
    program = (
        "import resource, sys, lastbranch\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "joined = lastbranch.open(sys.argv[1])\n"
        "print(len(joined.captures), lastbranch.branches(joined).count.sum() > 0)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert ran.stdout == "80 True\n"


def test_prose_in_a_folder_is_no_capture(data: Data, tmp_path: Path) -> None:
    """Though a line of it looks like a sample of `perf script`."""
    lay(tmp_path, capture(1).build())
    prose = (data.root / "SOURCES.md").read_text()
    (tmp_path / "SOURCES.md").write_text(f"{prose}\nspin  2535  2948.915829:    2004008 cpu-clock:  {0x7A0:16x} hot\n")
    assert lastbranch.open(tmp_path / "SOURCES.md").damage
    joined = lastbranch.open(tmp_path)
    assert [Path(c.name).name for c in joined.captures] == ["0.data"]
    assert any("SOURCES.md" in note for note in joined.notes)
