"""A perf.data that is read while it grows: counted in parts, it has what it has in one piece."""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import perfdata_writer as pw
from growing_files import GrowingFile
from lastbranch import demo
from lastbranch.analysis import branches, names
from lastbranch.analysis.running import counts
from lastbranch.errors import FormatError
from lastbranch.formats.perfdata.growing import GrowingIndex, IndexedSoFar
from lastbranch.formats.perfdata.layout import RECORD
from lastbranch.formats.perfdata.reader import Reader, read_perfdata
from lastbranch.model import OpenFile, Profile, SampleStream
from lastbranch.opening import FileSource, open_profile
from lastbranch.recording.live import LiveCapture
from lastbranch.symbols import SymbolOptions


@pytest.fixture
def growing(tmp_path: Path) -> GrowingFile:
    return GrowingFile(demo.capture(), tmp_path / "growing.data")


@pytest.fixture
def live(growing: GrowingFile) -> Iterator[LiveCapture]:
    with LiveCapture(FileSource(str(growing.path))) as capture:
        yield capture


def test_in_parts_of_any_size_it_has_the_counts_of_the_whole(growing: GrowingFile, live: LiveCapture) -> None:
    sizes = iter([1, 7, 100, 3001, 5, 20_000, 8, 64_000])
    seen = recent = 0
    while growing.add(next(sizes, 50_021)):
        live.read()
        if (now := live.turn()) is not None:
            seen, recent = now.entries, recent + now.recent_entries
    live.read()
    assert live.profile is not None
    assert now is not None
    profile = open_profile(growing.path)
    assert now.entries == seen == recent == profile.entries > 1000
    assert now.samples.tolist() == [profile.samples]
    expected = branches(profile)
    recorded = expected.take(expected.recorded)
    for limit in (0, 1, 20, len(recorded) - 1):
        found, total = live.hottest_branches(limit)
        assert total == recorded.count.sum()
        for name, column in recorded.take(slice(limit or None)).arrays().items():
            assert np.array_equal(column, getattr(found, name)), name
    table = names(profile, "function", None, totals=False)
    by_module = {table.labels[n].module: int(c) for n, c in zip(table.name, table.samples, strict=True)}
    functions = now.hottest_functions()
    assert {now.labels[n].module: int(c) for n, c in zip(functions.name, functions.samples, strict=True)} == by_module
    assert functions.branches.sum() == expected.count[(expected.from_address != 0)].sum()


@pytest.mark.parametrize(("compress", "pipe"), [(81, False), (83, False), (0, True), (83, True)])
def test_compressed_records_and_streams_are_counted_as_they_come(compress: int, pipe: bool, tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    whole = pw.parse(Path(demo.capture()).read_bytes())
    (tmp_path / "whole.data").write_bytes(pw.encode(whole, compress=compress, pipe=pipe, chunk=5003))
    growing, counts = GrowingFile(tmp_path / "whole.data", tmp_path / "growing.data"), list[int]()
    with LiveCapture(FileSource(str(growing.path)), ours=True) as live:
        while growing.add(3001):
            live.read()
            if (now := live.turn()) is not None:
                counts.append(now.entries)
        live.save(str(tmp_path / "seen.data"))
    assert counts[-1] == open_profile(demo.capture()).entries > counts[0] > 0
    assert open_profile(tmp_path / "seen.data").entries == counts[-1]


@pytest.mark.parametrize(("compress", "pipe"), [(0, False), (0, True), (83, True)])
def test_an_index_that_goes_on_is_that_of_the_same_bytes(compress: int, pipe: bool, tmp_path: Path) -> None:
    """Its streams, also those of what was added since a state, and earlier states, which do not change."""
    if compress:
        pytest.importorskip("zstandard")
    whole = pw.parse(Path(demo.capture()).read_bytes())
    (tmp_path / "whole.data").write_bytes(pw.encode(whole, compress=compress, pipe=pipe, chunk=5003))
    growing = GrowingFile(tmp_path / "whole.data", tmp_path / "growing.data")
    states = list[tuple[IndexedSoFar, Profile]]()
    growing.add(len(growing.records) // 3)
    index = GrowingIndex(FileSource(str(growing.path)))
    while growing.add(len(growing.records) // 5):
        state, expected = index.extend(), read_perfdata(FileSource(str(growing.path)))
        states.append((state, expected))
        assert len(state.profile.timeline) == len(expected.timeline)
        for name in ("samples", "entries", "events", "records", "lost", "seen_threads", "first_time", "start"):
            assert getattr(state.profile, name) == getattr(expected, name), name
    for state, expected in states:
        for ordered in (False, True):
            assert times(state.profile.streams, ordered=ordered) == times(expected.streams, ordered=ordered)
    last = states[-1][0]
    same = [state for state, _ in states if state.tables == last.tables]
    assert len(same) > 1 or compress  # of these the index begins anew
    for before in same:
        assert times(before.profile.streams) + times(last.since(before.end)) == times(last.profile.streams)


def times(streams: list[SampleStream], *, ordered: bool = False) -> list[int]:
    (stream,) = streams
    return [time for batch in stream.batches(("branch_from",), ordered=ordered) for time in batch.time.tolist()]


def test_attributes_that_follow_samples_are_indexed_anew(tmp_path: Path) -> None:
    parts = [pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME) for _ in range(2)]
    for number, part in enumerate(parts):
        part.sample(ip=0x400000, pid=7, tid=7, time=1000 + number)
    (tmp_path / "x.data").write_bytes(parts[0].build(pipe=True))
    index = GrowingIndex(FileSource(str(tmp_path / "x.data")))
    assert index.extend().profile.samples == 1
    with open(tmp_path / "x.data", "ab") as file:
        file.write(parts[1].build(pipe=True)[16:])
    expected = read_perfdata(FileSource(str(tmp_path / "x.data")))
    for _ in range(2):
        found = index.extend().profile
        assert (found.samples, found.events) == (expected.samples, expected.events)


def test_damage_of_compressed_records_is_an_error_with_its_place(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    data = bytearray(pw.encode(pw.parse(Path(demo.capture()).read_bytes()), compress=83, pipe=True))
    at = data.index(bytes.fromhex("28b52ffd"))  # the magic number of zstd
    data[at : at + 4] = bytes(4)
    (tmp_path / "x.data").write_bytes(data)
    with LiveCapture(FileSource(str(tmp_path / "x.data"))) as live, pytest.raises(FormatError) as raised:
        live.read()
    assert raised.value.offset == at - 16


def test_code_gets_the_names_that_a_jit_writes_later(tmp_path: Path) -> None:
    """Samples of code without a file: its perf map comes later, and has more lines later still."""
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    b.comm(pid=7, name="jit", time=1, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x1000, pgoff=0, name="//anon", time=2)
    for i in range(30):
        b.sample(ip=0x400010 + 0x100 * (i % 3), pid=7, tid=7, time=1000 + i)
    (tmp_path / "whole.data").write_bytes(b.build())
    growing, names = GrowingFile(tmp_path / "whole.data", tmp_path / "growing.data"), tmp_path / "perf-7.map"
    options = SymbolOptions(cache=None, debug_dirs=(str(tmp_path),))

    def seen(live: LiveCapture) -> dict[str, int]:
        live.read()
        now = live.turn()
        assert now is not None
        functions = now.hottest_functions()
        found = zip(functions.name.tolist(), functions.samples.tolist(), strict=True)
        return {now.labels[name].function: count for name, count in found if count}

    growing.add(len(growing.records) // 2)
    with LiveCapture(FileSource(str(growing.path)), options) as live:
        first = seen(live)
        assert first.keys() == {""}
        names.write_text("400000 40 one\n")
        now = seen(live)
        assert now.keys() == {"", "one"}
        assert sum(now.values()) == first[""]
        growing.add()
        names.write_text("400000 40 one\n400100 40 two\n400200 40 three\n")
        assert seen(live) == {"one": 10, "two": 10, "three": 10}


def test_change_is_between_the_last_two_intervals(growing: GrowingFile, live: LiveCapture) -> None:
    growing.add(len(growing.records) // 2)
    live.read()
    first = live.turn()
    growing.add()
    live.read()
    second, third = live.turn(), live.turn()
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.samples.sum() > 0 < second.recent.sum()
    assert (second.before == first.recent).all()
    assert (second.samples == first.samples + second.recent).all()
    assert third.recent.sum() == 0
    assert (third.before == second.recent).all()


def test_a_loss_is_there_in_the_next_turn(growing: GrowingFile, live: LiveCapture) -> None:
    growing.add()
    live.read()
    quiet = live.turn()
    assert quiet is not None
    assert not quiet.lost
    trailer = bytes(Reader(FileSource(demo.capture())).state.attrs[0].trailer)
    growing.append(struct.pack("<IHHQQ", RECORD["LOST"], 0, 24 + len(trailer), 1, 4711) + trailer)
    live.read()
    now = live.turn()
    assert now is not None
    assert now.lost == {"records": 4711}


def test_what_is_no_record_is_an_error_with_its_place(growing: GrowingFile, live: LiveCapture) -> None:
    growing.add()
    size = growing.path.stat().st_size
    growing.append(bytes(1 << 17))
    with pytest.raises(FormatError, match="record of impossible size") as raised:
        live.read()
    assert raised.value.offset == size


def test_there_are_never_more_rows_than_allowed(
    growing: GrowingFile, live: LiveCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "MOST_ROWS", 64)
    while growing.add(50_000):
        live.read()
        now = live.turn()
        assert now is None or len(live.hottest_branches()[0]) <= 2 * 64  # in two tables
    assert now is not None
    assert now.left_out > 0
    table, total = live.hottest_branches(5)
    expected = branches(open_profile(growing.path))
    assert now.left_out + total + expected.count[~expected.recorded].sum() == now.entries
    assert table.count.tolist() == expected.count[expected.recorded][:5].tolist()


def test_the_disk_keeps_the_newest_records(growing: GrowingFile, tmp_path: Path) -> None:
    with tempfile.TemporaryFile(dir=tmp_path, buffering=0) as file:
        file.write(growing.path.read_bytes())
        source = OpenFile(os.fdopen(os.dup(file.fileno()), "rb", buffering=0), "growing")
        with LiveCapture(source, kept=200_000, ours=True) as live:
            for _ in range(20):
                for at in range(0, len(growing.records), 40_000):
                    file.write(growing.records[at : at + 40_000])
                    live.read()
            now = live.turn()
            live.save(str(tmp_path / "kept.data"))
        assert now is not None
        profile = open_profile(tmp_path / "kept.data")
        assert not profile.damage or [d.field for d in profile.damage] == ["data.size"]
        assert 0 < profile.samples < now.samples.sum() // 4
        assert (tmp_path / "kept.data").stat().st_size < 200_000 + len(growing.records)
        whole = branches(open_profile(demo.capture()))
        assert set(whole.from_module.tolist()) >= set(branches(profile).from_module.tolist()) != {-1}
        if sys.platform == "linux":
            assert os.fstat(file.fileno()).st_blocks * 512 < os.fstat(file.fileno()).st_size // 2


def test_a_complete_file_ends_where_its_header_says(tmp_path: Path) -> None:
    with LiveCapture(FileSource(demo.capture())) as live:
        live.read()
        now = live.turn()
        assert now is not None
        assert now.entries == open_profile(demo.capture()).entries
        live.save(str(tmp_path / "same.data"))
    assert (tmp_path / "same.data").read_bytes() == Path(demo.capture()).read_bytes()
