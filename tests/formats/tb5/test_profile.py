"""Profiles into TB5 files and out again: every capture gives the same numbers, whoever reads the file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lastbranch
from captures import REAL, SYNTHETIC, Data
from command_line import Ran
from lastbranch.bind import bind
from lastbranch.errors import FormatError
from lastbranch.formats.tb5.layout import MODEL, STRUCTS, ModuleFlag, Scope, Table, empty_records
from lastbranch.formats.tb5.model_section import read_model
from lastbranch.formats.tb5.profile_writer import ProfileWriter, write_profile
from lastbranch.formats.tb5.reader import Tb5File
from lastbranch.formats.tb5.verification import verify
from lastbranch.formats.tb5.writer import Tb5Writer
from lastbranch.model import COLUMNS, Clock, Event, Machine, Module, Profile
from lastbranch.opening import open_profile, open_source
from lastbranch.tbrw.binding import bind_stream
from tb5_profiles import every_column
from tb5_reader import TB5

CAPTURES = [*REAL, *SYNTHETIC]
ETL = "net.4.5.2.x64.etl"


opened: dict[str, Profile] = {}


@pytest.fixture(scope="session")
def converted(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """``converted(name)``: the capture and its TB5 file, made once; the profile that it was made of is ``opened``."""
    folder = tmp_path_factory.mktemp("tb5")
    made: dict[str, tuple[Path, Path]] = {}

    def convert(name: str) -> tuple[Path, Path]:
        if name not in made:
            source = data.root.parent / "etl" / name if name.endswith(".etl") else data.path(name)
            out = folder / f"{len(made)}.tb5"
            opened[name] = open_profile(source)
            write_profile(opened[name], out)
            made[name] = source, out
        return made[name]

    return convert


def columns_of(profile: Profile, ordered: bool) -> list[dict[str, np.ndarray]]:
    out = []
    for stream in profile.streams:
        batches = list(stream.batches(ordered=ordered))
        values = {n: np.concatenate([b[n] for b in batches if n in b]) for n in stream.columns if n in batches[0]}
        for group in batches[0].offsets:
            values[f"lengths {group}"] = np.concatenate([np.diff(b.offsets[group]) for b in batches])
        out.append(values)
    return out


@pytest.mark.parametrize("name", [*CAPTURES, ETL])
def test_every_column_and_table_comes_back(converted: Callable[[str], tuple[Path, Path]], name: str) -> None:
    copy, source = open_profile(converted(name)[1]), opened[name]
    for table in ("machine", "clock", "modules", "processes", "threads", "events", "first_time", "last_time", "lost"):
        assert getattr(copy, table) == getattr(source, table), table
    assert (copy.records, copy.raw_features, copy.seen_threads) == (
        source.records,
        source.raw_features,
        source.seen_threads,
    )
    assert source.header.items() <= copy.header.items()
    assert copy.damage == []
    # Sorting the stacks of the log twice would take longer than all other tests of this file.
    for ordered in (False,) if name == ETL else (False, True) if source.samples < 1000 else (True,):
        for ours, theirs in zip(columns_of(copy, ordered), columns_of(source, ordered), strict=True):
            assert set(theirs) <= set(ours)
            for column, values in theirs.items():
                assert np.array_equal(ours[column], values), column
                assert ours[column].dtype == values.dtype


def test_a_windows_log_gives_the_same_numbers(converted: Callable[[str], tuple[Path, Path]]) -> None:
    copy = open_profile(converted(ETL)[1])
    mine, theirs = (lastbranch.weights(p, "module") for p in (copy, opened[ETL]))
    for column in ("event", "key", "samples", "period", "entries"):
        assert np.array_equal(getattr(mine, column), getattr(theirs, column))


@pytest.mark.parametrize("name", CAPTURES)
def test_verbs_give_the_same_numbers(
    converted: Callable[[str], tuple[Path, Path]], run: Callable[..., Ran], name: str
) -> None:
    source, copy = converted(name)
    verbs = [["report", "--by", "thread", "--format", "csv"], ["branches", "--format", "csv"]]
    if source.stat().st_size < 1 << 17:  # the others come from the same columns
        verbs += [["report", "--by", by, "--format", "csv"] for by in ("process", "module")]
        verbs += [["export", "--to", "counts"], ["export", "--to", "brstack"]]
    for verb in verbs:
        before, after = run(*verb, source), run(*verb, copy)
        assert (after.code, after.raw) == (before.code, before.raw), verb


@pytest.mark.parametrize("name", ["demo_hwidx", "snb_callchain_and_branch-3.4", "skl_m7_32deep_branch-4.14"])
def test_the_specifications_reader_finds_samples_branches_and_frames(
    converted: Callable[[str], tuple[Path, Path]], name: str
) -> None:
    source, out = converted(name)
    other = TB5(out)
    found = iter(other.samples())
    for batch in open_profile(source).streams[0].batches():
        for i in range(len(batch)):
            one = next(found)
            row = (one["time"], one["ip"], one["pid"], one["tid"], one["cpu"], one["event"])
            wanted = (batch.time[i], batch.ip[i], batch.pid[i], batch.tid[i], batch.cpu[i], batch.event[i])
            assert row == tuple(map(int, wanted))
            source_, target, _ = batch.stack(i)
            assert one["branches"] == list(zip(source_.tolist(), target.tolist(), strict=True))
            if "frame" in batch:
                assert one["frame"] == batch.chain(i).tobytes()
            kernel = one["ip"] >> 63
            assert (one["cs"], one["mode"]) == ((0x10 if kernel else 0x33), 3)
    assert next(found, None) is None
    names = [n for *_, n in other.descriptors(0)]
    assert any(n.startswith(b"branch_from, branch_to: perf filter ") and b"any" in n for n in names)


def test_a_tbrw_file_without_our_tables(
    data: Data, converted: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    """The guide's sections alone are enough to find where samples fell."""
    source, full = converted("demo_2proc")
    with Tb5File(open_source(str(full))) as file, Tb5Writer.create(tmp_path / "guide.tb5") as writer:
        for text in file.all_strings():
            writer.string(text)
        for key in file.tables:
            if key.scope is not Scope.STORE:
                writer.put(key, file.read(key))
    want, got = open_profile(source), open_profile(tmp_path / "guide.tb5")
    assert (got.samples, got.entries, got.deepest) == (want.samples, want.entries, want.deepest)
    assert (got.first_time, got.last_time, got.seen_threads) == (want.first_time, want.last_time, want.seen_threads)
    assert [e.name for e in got.events] == [e.name for e in want.events]
    assert got.clock.frequency == want.clock.frequency
    for by in ("process", "module"):
        mine, theirs = (lastbranch.weights(p, by) for p in (got, want))
        rows = getattr(want, {"process": "processes", "module": "modules"}[by])
        others = getattr(got, {"process": "processes", "module": "modules"}[by])
        assert sorted((others[k].name, n) for k, n in zip(mine.key, mine.samples, strict=True)) == sorted(
            (rows[k].name, n) for k, n in zip(theirs.key, theirs.samples, strict=True)
        )


def test_the_reference_lists_every_key_of_the_model(converted: Callable[[str], tuple[Path, Path]]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "tb5-format.md").read_text()
    with Tb5File(open_source(str(converted("demo_2proc")[1]))) as file:
        value = read_model(file)
        parts = {key.part for key in file.tables if key.scope is Scope.STORE and key.section == MODEL}
    assert value is not None
    keys = {*value, *value["machine"], *value["clock"]}
    for rows in (value["modules"], value["events"], value["streams"], value["machine"]["cpus"]):
        keys |= {key for row in rows for key in row}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
    assert parts <= {0, 1, 2, 3, 5}


def test_dump_shows_what_the_specifications_reader_finds(
    converted: Callable[[str], tuple[Path, Path]], run: Callable[..., Ran]
) -> None:
    _, out = converted("demo_2proc")
    rows = json.loads(run("dump", out, "--format", "json").out)
    times = [row["time_ms"] for row in rows]
    assert times == sorted(times)
    samples = [row for row in rows if row["event"] == "SAMPLE"]
    other = TB5(out)
    wanted = sorted(other.samples(), key=lambda one: one["time"])
    assert [(r["pid"], r["tid"], r["cpu"], int(r["fields"]["ip"], 16)) for r in samples] == [
        (w["pid"], w["tid"], w["cpu"], w["ip"]) for w in wanted
    ]
    for row, one in zip(samples, wanted, strict=True):
        columns = [[int(v, 16) for v in row["fields"][f"branch_{end}"]] for end in ("from", "to")]
        assert list(zip(*columns, strict=True)) == one["branches"]
        assert round((row["time_ms"] - samples[0]["time_ms"]) * 1e6) == one["time"] - wanted[0]["time"]
    maps = [(r["pid"], int(r["fields"]["start"], 16), r["fields"]["module"]) for r in rows if r["event"] == "MAP"]
    modules = [(m["pid"], m["address"], m["path"].decode()) for m in other.modules()]
    assert sorted(maps) == sorted(modules)
    pid = wanted[-1]["pid"]
    some = json.loads(run("dump", out, "--format", "json", "--event", "sample", "--pid", pid, "--limit", 7).out)
    assert some == [row for row in samples if row["pid"] == pid][:7]


@pytest.mark.parametrize(
    ("cpuid", "signature"),
    [
        ("GenuineIntel,6,44,2", 0x206C2),
        ("GenuineIntel,6,85,4", 0x50654),
        ("GenuineIntel,6,158,13", 0x906ED),
        ("GenuineIntel,15,4,3", 0xF43),
        ("GenuineIntel,5,4,3", 0x543),
        ("AuthenticAMD,25,17,0", 0xA10F10),
        ("GenuineIntel,5,16,3", None),  # no extended model before family 6
        ("GenuineIntel,6,85,16", None),
        ("GenuineIntel,271,1,1", None),
        ("0x00000000410fd0c0", None),
        ("", None),
    ],
)
def test_the_signature_of_a_processor_is_written_where_it_is_known(
    tmp_path: Path, cpuid: str, signature: int | None
) -> None:
    path = tmp_path / "a.tb5"
    write_profile(bind(Profile("x", "made", machine=Machine("x86_64", cpuid=cpuid, cpus_online=2))), path)
    file = TB5(path)
    leaves = file.rows((0, 0, 0, 4), "<5I")
    assert leaves == ([] if signature is None else [(1, signature, 0, 0, 0)] * 2)
    assert [(n, at) for *_, n, at in file.rows((0, 0, 0, 3), "<IHHQ")] == (
        [(0, 0)] * 2 if signature is None else [(1, 0), (1, 1)]
    )
    assert read_leaves(path) == signature


def read_leaves(path: Path) -> int | None:
    """eax of leaf 1, as lastbranch's own reader has it; the file is whole."""
    with Tb5File(open_source(str(path))) as file:
        assert verify(file) == []
        return next((int(one["cpuid_eax"]) for one in file.records(Table(Scope.GLOBAL, 0, 0, 4))), None)


@pytest.mark.parametrize("sizes", [(4, 8, 8, 2, 4), (4, 4, 4, 4, 8), (8, 8, 4, 1, 8), (8, 2, 2, 8, 8)], ids=str)
@pytest.mark.parametrize("name", ["", "iip"])
def test_addresses_ids_and_times_of_other_widths(tmp_path: Path, sizes: tuple[int, ...], name: str) -> None:
    """ST_IP, ST_PID, ST_TID, ST_PROCESSOR_NUMBER and ST_TIME_STAMP as wide as another writer has them."""
    path, module = tmp_path / "a.tb5", empty_records("TBRW_MODULE", 1)
    fields = [(f"f{i}", f"<u{size}") for i, size in enumerate(sizes)]
    with Tb5Writer.create(path) as writer:
        module["module_load_address"], module["module_length"], module["module_associated_pid"] = 0x40_0000, 0x1000, 77
        writer.put(Table(Scope.GLOBAL, 0, 3), module)
        entries = empty_records("TBRW_SAMPREC_DESC_ENTRY", len(sizes))
        entries["desc_type"], entries["desc_data_size"] = [2, 3, 4, 5, 7], sizes
        entries["desc_subtype"][-1] = 5
        entries["desc_offset"] = np.cumsum([0, *sizes[:-1]])
        entries["desc_name"][0] = writer.string(name)
        writer.put(Table(Scope.STREAM, 0, 1), entries)
        info = empty_records("TBRW_STREAM_INFO", 1)
        info["stream_type"] = 1
        writer.put(Table(Scope.STREAM, 0, 4), info)
        writer.put(
            Table(Scope.STREAM, 0, 2), np.array([(0x40_0123, 77, 78, 3, 1000), (0x40_0FFF, 77, 79, 0, 7)], fields)
        )
    (batch,) = open_profile(path).batches()
    columns = [batch.ip, batch.pid, batch.tid, batch.cpu, batch.time]
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == [
        (0x40_0123, 77, 78, 3, 1000),
        (0x40_0FFF, 77, 79, 0, 7),
    ]
    assert [c.dtype for c in columns] == ["u8", "i4", "i4", "i4", "i8"]
    done = bind_stream(path)
    assert (done.samples, done.module, done.process, done.thread) == (2,) * 4
    assert [row[-1] for row in TB5(path).rows((2, 0, 4, 0), "<3Q")] == [0, 1]


def test_streams_may_differ_in_all_but_the_clock(tmp_path: Path) -> None:
    """Each stream is read by its own descriptor; times are compared over all, so other units are told."""
    path = tmp_path / "a.tb5"
    layouts = [[(2, 0, 8), (7, 7, 8)], [(7, 7, 8), (3, 0, 4), (2, 0, 4)], [(2, 0, 8), (7, 32, 8)], [(2, 0, 8)]]
    with Tb5Writer.create(path) as writer:
        for number, layout in enumerate([[(0x4400, 0, 8)], *layouts]):
            entries = empty_records("TBRW_SAMPREC_DESC_ENTRY", len(layout))
            entries["desc_type"], entries["desc_subtype"], entries["desc_data_size"] = np.array(layout).T
            entries["desc_offset"] = np.cumsum([0, *entries["desc_data_size"][:-1]])
            writer.put(Table(Scope.STREAM, number, 1), entries)
            info = empty_records("TBRW_STREAM_INFO", 1)
            info["stream_type"] = 1 if number else 8
            writer.put(Table(Scope.STREAM, number, 4), info)
            fields = [(str(i), f"<u{size}") for i, (_, _, size) in enumerate(layout)]
            writer.put(Table(Scope.STREAM, number, 2), np.array([tuple(range(1, len(layout) + 1))] * 2, fields))
    profile = open_profile(path)
    assert profile.clock.frequency == 10**9  # that of the first stream that has a time, not of stream 0
    seen = [[(b.ip[0], b.pid[0], b.time[0]) for b in s.batches()] for s in profile.streams]
    assert seen == [[(1, -1, 2)], [(3, 2, 1)], [(1, -1, 2)], [(1, -1, 0)]]
    assert [(d.reason[:8], d.value) for d in profile.damage] == [("stream 3", 32), ("stream 4", -1)]
    assert "SST_TSC, the first stream's SST_TS_NANOSECONDS" in profile.damage[0].reason


def test_fields_of_other_users_are_not_taken_for_ours(tmp_path: Path) -> None:
    """User-defined types (0x4000 to 0x7FFF) mean what their user says, whatever they are called."""
    path, names = tmp_path / "a.tb5", ("event", "cpu", "period", "branch count", "frame count", "frame first", "iip")
    entries = empty_records("TBRW_SAMPREC_DESC_ENTRY", 2 + len(names))
    with Tb5Writer.create(path) as writer:
        entries["desc_offset"] = [0, 32, *range(40, 40 + 8 * len(names), 8)]
        entries["desc_data_size"] = [32, 8, 4, 4, 8, 4, 4, 8, 8]
        entries["desc_type"] = [1, 7, *range(0x7000, 0x7000 + len(names))]
        entries["desc_name"] = [0, 0, *map(writer.string, names)]
        writer.put(Table(Scope.STREAM, 0, 1), entries)
        info = empty_records("TBRW_STREAM_INFO", 1)
        info["stream_type"] = 1
        writer.put(Table(Scope.STREAM, 0, 4), info)
        records = np.full((3, 40 + 8 * len(names)), 0x77, np.uint8)
        records[:, 28:32] = np.array([0x70000000], "<u4").view(np.uint8)  # event 0
        writer.put(Table(Scope.STREAM, 0, 2), records)
    (batch,) = open_profile(path).batches()
    assert (batch.event.tolist(), batch.ip.tolist()) == ([0] * 3, [0x7777777777777777] * 3)
    assert not {0x77, 0x77777777, 0x7777777777777777} & {*batch["period"].tolist(), *batch["cpu"].tolist()}
    assert ("frame" in batch, batch.entries) == (False, 0)


@pytest.mark.parametrize("bits", [32, 64])
def test_all_columns_with_extreme_values(tmp_path: Path, bits: int) -> None:
    path, batches = tmp_path / "a.tb5", [every_column(n, 5, n) for n in (1, 700, 4096)]
    writer = ProfileWriter(path, Machine(arch="x86_64" if bits == 64 else "i686", bits=bits, os="Linux"))
    stream = writer.stream([c.name for c in COLUMNS], depth=5)
    for batch in batches:
        stream.write(batch)
    tables = Profile("x", "made", events=[Event(f"e{i}") for i in range(3)], clock=Clock("TSC", 3_000_000_000))
    writer.finish(bind(tables))
    copy = open_profile(path)
    assert (copy.samples, copy.deepest, copy.clock) == (4797, 5, tables.clock)
    (got,) = columns_of(copy, ordered=False)
    for c in COLUMNS:
        assert np.array_equal(got[c.name], np.concatenate([b[c.name] for b in batches])), c.name
    only = [b.columns.keys() for b in copy.streams[0].batches(("raw", "branch_to"))]
    required = {c.name for c in COLUMNS if not c.optional}
    assert all(set(k) == required | {"raw", "branch_to"} for k in only)


def test_a_deeper_stack_than_was_said_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    path.write_bytes(b"old")
    writer = ProfileWriter(path, Machine())
    stream = writer.stream([c.name for c in COLUMNS], depth=2)
    with pytest.raises(ValueError, match="room for 2"):
        stream.write(every_column(100, 5))
    writer.abort()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.tb5"]


def test_a_damaged_block_is_stepped_over_and_named(
    converted: Callable[[str], tuple[Path, Path]], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    _, out = converted("skx_6154_32deep_pie")
    whole = bytearray(out.read_bytes())
    file = Tb5File(open_source(str(out)))
    key = Table(Scope.STREAM, 0, 2)
    first, second = file.offsets(key).tolist()
    whole[first + 100_000] ^= 4
    (tmp_path / "bad.tb5").write_bytes(whole)
    copy = open_profile(tmp_path / "bad.tb5")
    left = file.count(key) - file.tables[key].block_records
    assert sum(len(b) for b in copy.batches()) == left > 0
    (damage,) = copy.damage
    assert (damage.offset, damage.field) == (first, "check")
    assert "block 0 of stream 0 data" in damage.reason
    verified = run("verify", tmp_path / "bad.tb5")
    assert verified.code == 1
    assert "block 0 of stream 0 data is damaged" in verified.out
    assert second > first


def test_model_tables_that_make_no_sense(converted: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    _, out = converted("demo_pie")
    with Tb5File(open_source(str(out))) as file, Tb5Writer.create(tmp_path / "bad.tb5") as writer:
        for text in file.all_strings():
            writer.string(text)
        for key in file.tables:
            rows = file.read(key)
            if key == Table(Scope.STORE, 0, 2, 2):
                rows[0, -8:] = 0  # a mapping
                rows[0, -16:-8] = 250  # of no module
            if key.section != 1 or key.scope is not Scope.STORE:
                writer.put(key, rows)
    with pytest.raises(FormatError, match="change 0 points outside"):
        open_profile(tmp_path / "bad.tb5")


def test_convert_from_the_command_line(data: Data, run: Callable[..., Ran], tmp_path: Path) -> None:
    out = tmp_path / "a.tb5"
    assert run("convert", data.path("demo_pie"), out).code == 0
    again = run("convert", data.path("demo_pie"), out)
    assert again.code == 2
    assert "--force" in again.err
    assert run("convert", "--force", out, tmp_path / "b.tb5").code == 0  # a TB5 file is a capture too
    first, second = (run("export", "--to", "counts", tmp_path / n).raw for n in ("a.tb5", "b.tb5"))
    assert first == second
    assert run("convert", "--pid", "3", data.path("demo_pie"), tmp_path / "c.tb5").code == 2
    assert run("verify", out).code == 0
    assert "stream 0 data: 403" in run("info", out).out


def test_modules_stand_where_the_recorder_saw_them(converted: Callable[[str], tuple[Path, Path]]) -> None:
    """A module record for each MMAP of the demo; forked children have their own."""
    modules = TB5(converted("demo_2proc")[1]).modules()
    assert {m["size"] for m in modules} == {STRUCTS["TBRW_MODULE"].size}
    assert sum(bool(m["flags"] & ModuleFlag.IS_EXE) for m in modules) == len({m["pid"] for m in modules if m["pid"]})
    assert all(m["length"] > 0 and m["unload"] > m["load"] for m in modules)
    assert Module("/a/b").short == "b"
