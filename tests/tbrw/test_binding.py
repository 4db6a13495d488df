"""Binding of TB5 streams against a brute-force reading of the guide's rules, and that it can be taken away again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captures import Data
from command_line import Ran
from lastbranch.bind import bind
from lastbranch.errors import FormatError, LastbranchError
from lastbranch.formats.tb5.layout import NEVER, STRUCTS, ModuleFlag, Scope, Table
from lastbranch.formats.tb5.profile_writer import write_profile
from lastbranch.formats.tb5.reader import Tb5File
from lastbranch.formats.tb5.verification import verify
from lastbranch.formats.tb5.writer import Tb5Writer, compact
from lastbranch.opening import open_profile, open_source
from lastbranch.tbrw.binding import Pairs, bind_stream, sample_streams, unbind_stream
from tb5_profiles import KERNEL, write
from tb5_reader import TB5

MODULE = STRUCTS["TBRW_MODULE"].dtype


def everybodys(m: dict[str, int]) -> bool:
    flags, pid = m["module_flags"], m["module_associated_pid"]
    return bool(flags & ModuleFlag.GLOBAL_LOAD) or pid == 0 or m["module_load_address"] >= KERNEL


def is_notice(m: dict[str, int]) -> bool:
    return bool(m["module_flags"] & ModuleFlag.UNLOADED) and not m["module_flags"] & ModuleFlag.LOADED


def owner(m: dict[str, int]) -> int | None:
    return None if everybodys(m) else m["module_associated_pid"]


def life(modules: list[dict[str, int]], row: int) -> tuple[int, int]:
    """From when to when a record's module was there, in times or in sample numbers: notices of unloading of the same
    clock behind it may end it early."""
    m = modules[row]
    since = m["module_event_when"]
    until = m["module_unload_tsc"] if timed(m) else m["reserved_for_legacy"] or NEVER
    for number, other in enumerate(modules):
        if not is_notice(other) or timed(other) != timed(m):
            continue
        same = owner(other) == owner(m) and other["module_load_address"] == m["module_load_address"]
        if same and (since, row) < (other["module_event_when"], number):
            until = min(until, other["module_event_when"])
    return since, until


def timed(m: dict[str, int]) -> bool:
    return bool(m["module_flags"] & ModuleFlag.TSC_USED)


def truth(modules: list[dict[str, int]], number: int, s: dict[str, int]) -> int:
    """The row of the module by the guide's words; own modules before everybody's, time stamps before sample numbers,
    the newest load first."""
    best: tuple[int, bool, int, int] | None = None
    for row, m in enumerate(modules):
        if is_notice(m) or (not everybodys(m) and m["module_associated_pid"] != s["pid"]):
            continue
        start = m["module_load_address"]
        if not start <= s["ip"] < min(start + m["module_length"], NEVER):
            continue
        since, until = life(modules, row)
        now = s["time"] if timed(m) else number
        if not since <= now or not (until == NEVER or now < until):
            continue
        selector, mode = m["module_code_selector"], m["module_segment_type_word"]
        if (selector and s["cs"] and selector != s["cs"]) or (mode and s["mode"] and mode != s["mode"]):
            continue
        rank = (0 if everybodys(m) else 1, timed(m), since, row)
        best = rank if best is None or rank > best else best
    return NEVER if best is None else best[3]


_ADDRESS = st.sampled_from([0x1000, 0x1800, 0x2000, 0x3000, KERNEL, KERNEL + 0x1000, KERNEL + 0x1800])
_MODULES = st.lists(
    st.fixed_dictionaries(
        {
            "module_associated_pid": st.sampled_from([0, 7, 8, 5_000_000]),
            "module_flags": st.builds(
                lambda kind, notice, clock: int(kind | notice | clock),
                st.sampled_from([0, 0, ModuleFlag.IS_EXE, ModuleFlag.GLOBAL_LOAD]),
                st.sampled_from([0, ModuleFlag.LOADED, ModuleFlag.UNLOADED, ModuleFlag.LOADED | ModuleFlag.UNLOADED]),
                st.sampled_from([0, ModuleFlag.TSC_USED]),
            ),
            "module_event_when": st.integers(0, 12),
            "module_unload_tsc": st.integers(0, 12) | st.just(NEVER),
            "reserved_for_legacy": st.sampled_from([0, 0, 3, 8]),
            "module_segment_type_word": st.sampled_from([0, 2, 3]),
            "module_code_selector": st.sampled_from([0, 0x10, 0x33]),
            "module_length": st.sampled_from([0, 1, 0x800, 0x1000, 0x2800]),
            "module_load_address": _ADDRESS,
        }
    ),
    max_size=9,
)
_SAMPLES = st.lists(
    st.fixed_dictionaries(
        {
            "ip": _ADDRESS.flatmap(lambda a: st.sampled_from([a, a + 0x7FF, a + 0x800])),
            "pid": st.sampled_from([0, 7, 8, 9, 5_000_000, 0xFFFFFFFF]),
            "tid": st.integers(0, 3),
            "cs": st.sampled_from([0, 0x10, 0x33]),
            "mode": st.sampled_from([0, 2, 3]),
            "time": st.integers(0, 13),
        }
    ),
    max_size=30,
)


def bound(file: TB5, kind: int) -> list[tuple[Any, ...]]:
    return file.rows((2, 0, kind, 0), {4: "<3Q"}.get(kind, "<Q"))


@given(_MODULES, _SAMPLES, st.booleans())
@settings(max_examples=40, deadline=None)
def test_modules_are_those_of_the_guides_rule(
    tmp_path_factory: pytest.TempPathFactory, modules: list[dict[str, int]], samples: list[dict[str, int]], tidy: bool
) -> None:
    path = tmp_path_factory.mktemp("bind") / "a.tb5"
    if tidy:
        samples.sort(key=lambda s: s["time"])
    write(path, modules, samples)
    summary = bind_stream(path)
    file = TB5(path)
    assert [m for m, _, _ in bound(file, 4)] == [truth(modules, i, s) for i, s in enumerate(samples)]
    # Processes and threads are inferred: each id once, in the order of ids.
    own = {m["module_associated_pid"] for m in modules if not everybodys(m)}
    pids = sorted(own | {s["pid"] for s in samples})
    pairs = sorted({(s["pid"], s["tid"]) for s in samples})
    assert [r[1] for r in file.rows((2, 0, 6, 1), "<II")] == pids
    assert [r[1:3] for r in file.rows((2, 0, 7, 1), "<3I")] == pairs
    assert [(p, t) for _, p, t in bound(file, 4)] == [
        (pids.index(s["pid"]), pairs.index((s["pid"], s["tid"]))) for s in samples
    ]
    owners = [NEVER if everybodys(m) else m["module_associated_pid"] for m in modules]
    assert [p for (p,) in bound(file, 5)] == [NEVER if o == NEVER else pids.index(o) for o in owners]
    assert [p for (p,) in bound(file, 7)] == [pids.index(p) for p, _ in pairs]
    for (row,), pid in zip(bound(file, 6), pids, strict=True):
        mine = [i for i, o in enumerate(owners) if o == pid and not is_notice(modules[i])]
        exe = [i for i in mine if modules[i]["module_flags"] & ModuleFlag.IS_EXE]
        assert row == (exe or mine or [NEVER])[0]
    assert summary.processes_made
    assert summary.samples == len(samples)
    assert verify(Tb5File(open_source(str(path)))) == []


def module(when: int, flags: int, pid: int = 7, start: int = 0x1000, unload: int = NEVER) -> dict[str, int]:
    names = ("module_event_when", "module_flags", "module_associated_pid", "module_load_address", "module_unload_tsc")
    out = dict(zip(names, (when, flags | ModuleFlag.TSC_USED, pid, start, unload), strict=True))
    return out | {"module_segment_type_word": 0, "module_code_selector": 0, "module_length": 0x800}


def test_a_notice_of_unloading_ends_what_was_loaded_there(tmp_path: Path) -> None:
    path, (loaded, gone) = tmp_path / "a.tb5", (int(ModuleFlag.LOADED), int(ModuleFlag.UNLOADED))
    modules = [
        module(0, loaded),
        module(6, gone),
        module(9, 0),
        module(3, loaded, pid=8),
        module(12, gone, start=0x1001),
        module(0, loaded, pid=9, start=KERNEL),
        module(4, gone, start=KERNEL),
        module(5, loaded | gone, start=KERNEL),
        module(8, gone, pid=8) | {"module_flags": gone},  # without a time
        module(0, loaded, pid=8, start=0x5000),
    ]
    cases = [
        (7, 0x1000, 5, 0),
        (7, 0x1000, 6, NEVER),
        (7, 0x1000, 9, 2),
        (7, 0x1000, 13, 2),
        (8, 0x1000, 9, 3),
        (7, KERNEL, 3, 5),
        (9, KERNEL, 4, NEVER),
        (1, KERNEL, 13, 7),
        (8, 0x5000, 1, 9),
    ]
    samples = [{"ip": ip, "pid": pid, "tid": 1, "cs": 0, "mode": 0, "time": time} for pid, ip, time, _ in cases]
    write(path, modules, samples)
    assert [truth(modules, i, s) for i, s in enumerate(samples)] == [row for *_, row in cases]
    bind_stream(path)
    assert [m for m, _, _ in bound(TB5(path), 4)] == [row for *_, row in cases]
    profile = open_profile(path)
    (batch,) = profile.batches()
    binder = bind(profile).binder
    found, _ = binder.locate(binder.scopes(batch), batch.ip)
    names = [profile.modules[m].name if m >= 0 else None for m in found.tolist()]
    assert names == [None if row == NEVER else f"m{ip:x}" for _, ip, _, row in cases]


def test_sample_numbers_are_the_lives_of_modules_without_time_stamps(tmp_path: Path) -> None:
    """8.6: module_event_when may be a sample number, and reserved_for_legacy holds that of the end."""
    path = tmp_path / "a.tb5"
    base = {
        "module_associated_pid": 7,
        "module_length": 0x100,
        "module_flags": 0,
        "reserved_for_legacy": 0,
        "module_code_selector": 0,
        "module_segment_type_word": 0,
        "module_unload_tsc": 1,
    }
    loads = [
        base | {"module_load_address": 0x1000, "module_event_when": 0, "reserved_for_legacy": 2},
        base | {"module_load_address": 0x1000, "module_event_when": 3},
        base | {"module_load_address": 0x2000, "module_event_when": 1},
        base | {"module_load_address": 0x2000, "module_event_when": 4, "module_flags": int(ModuleFlag.UNLOADED)},
        module(0, 0, start=0x4000),  # with time stamps
    ]
    samples = [
        {"ip": ip, "pid": 7, "tid": 1, "cs": 0, "mode": 0, "time": 1000 + 10 * i}
        for i, ip in enumerate([0x1000, 0x2000, 0x1000, 0x1000, 0x2000, 0x1000, 0x4000])
    ]
    expected = [0, 2, NEVER, 1, NEVER, 1, 4]
    write(path, loads, samples)
    assert [truth(loads, i, s) for i, s in enumerate(samples)] == expected
    bind_stream(path)
    assert [m for m, _, _ in bound(TB5(path), 4)] == expected
    profile = open_profile(path)
    (batch,) = profile.batches()
    binder = bind(profile).binder
    found, _ = binder.locate(binder.scopes(batch), batch.ip)
    assert (found >= 0).tolist() == [row != NEVER for row in expected]


def test_processes_of_the_file_are_used_by_their_time(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    samples = [
        {"ip": 1, "pid": p, "tid": 1, "cs": 0, "mode": 0, "time": t}
        for p, t in ((7, 5), (7, 10), (7, 99), (8, 1), (9, 1))
    ]
    write(path, [], samples, [(8, 50), (7, 10), (7, 2)])
    assert not bind_stream(path).processes_made
    file = TB5(path)
    # pid 7 began at 2 (row 2) and was used again from 10 on (row 1); 8 is its only life; 9 is not listed
    assert [p for _, p, _ in bound(file, 4)] == [2, 1, 1, 0, NEVER]
    assert (2, 0, 6, 1) not in file.tables


@pytest.mark.parametrize("threads", [[], [(5, 77)]])
def test_a_section_without_processes_says_that_there_are_none(tmp_path: Path, threads: list[tuple[int, int]]) -> None:
    path = tmp_path / "a.tb5"
    samples = [{"ip": 1, "pid": 5, "tid": t, "cs": 0, "mode": 0, "time": 1} for t in (5, 77)]
    write(path, [], samples, threads=threads)
    assert not bind_stream(path).processes_made
    file = TB5(path)
    assert bound(file, 4) == [(NEVER,) * 3, (NEVER, NEVER, 0 if threads else NEVER)]
    assert ((2, 0, 6, 1) in file.tables, (2, 0, 7, 1) in file.tables) == (False, False)
    assert verify(Tb5File(open_source(str(path)))) == []


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from([0, 1, 7, 2**31, 2**32 - 1]), st.sampled_from([0, 1, 2**22 - 1, 2**22, 2**32 - 1])
            )
        ),
        max_size=4,
    )
)
def test_inferred_threads_are_all_pairs_of_process_and_thread(batches: list[list[tuple[int, int]]]) -> None:
    """Also where processes take turns at the same thread id, and with ids behind those that are looked up."""
    pairs = Pairs()
    for batch in batches:
        pid, tid = np.array(batch, np.uint32).reshape(-1, 2).T
        pairs.add(pid, tid)
    assert pairs.distinct.tolist() == sorted({pid << 32 | tid for batch in batches for pid, tid in batch})


def test_threads_without_processes_are_those_of_their_process_id(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    threads = [(5, 77), (6, 78), (6, 9), (5, 9), (2**32 - 1, 9), (2**31, 9), (0, 9)]
    asked = [*threads, (6, 77), (5, 78), (7, 9), (2**31 - 1, 9), (1, 77)]
    write(path, [], [{"ip": 1, "pid": p, "tid": t, "cs": 0, "mode": 0, "time": 1} for p, t in asked], threads=threads)
    bind_stream(path)
    assert [row for _, _, row in bound(TB5(path), 4)] == [*range(len(threads)), *[NEVER] * 5]


@pytest.mark.parametrize("name", ["demo_2proc", "skx_6154_32deep_pie", "snb_callchain_and_branch-3.4"])
def test_binding_agrees_with_the_reports(data: Data, tmp_path: Path, name: str) -> None:
    profile, path = open_profile(data.path(name)), tmp_path / "a.tb5"
    write_profile(profile, path)
    bind_stream(path)
    with Tb5File(open_source(str(path))) as file:
        rows = file.records(Table(Scope.BIND, 0, 4))
        paths = [file.text(int(m)) for m in file.records(Table(Scope.GLOBAL, 0, 3))["module_path"]]
    binder, at = bind(profile).binder, 0
    for batch in profile.streams[0].batches(()):
        scope = binder.scopes(batch)
        mine = rows[at : at + len(batch)]
        module, _ = binder.locate(scope, batch.ip)
        names = [profile.modules[m].name if m >= 0 else None for m in module.tolist()]
        assert [None if m == NEVER else paths[m] for m in mine["module_index"].tolist()] == names
        assert np.array_equal(mine["pid_index"].view(np.int64), binder.process_of(scope))
        assert np.array_equal(mine["tid_index"].view(np.int64), binder.threads_of(batch, scope))
        at += len(batch)
    assert at == len(rows)


def test_unbind_and_compact_give_the_file_back(data: Data, run: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    write_profile(open_profile(data.path("demo_2proc")), path)
    sections = TB5(path).tables
    size = path.stat().st_size
    assert run("bind", path).err.startswith("stream 0: 240 samples bound: 100.0 % module")
    assert sample_streams(path, bound=True) == [0]
    bound_tables = TB5(path).tables
    assert {k: v for k, v in bound_tables.items() if k[0] != 2} == sections
    assert Tb5File(open_source(str(path))).streams == max(k[1] for k in sections if k[0] == 1) + 1
    with pytest.raises(LastbranchError, match="is bound"):
        bind_stream(path)
    assert run("bind", path).code == 0
    assert TB5(path).tables == bound_tables
    assert run("unbind", path).code == 0
    assert TB5(path).tables == sections
    with pytest.raises(LastbranchError, match="not bound"):
        unbind_stream(path)
    grown = path.stat().st_size
    assert compact(path) == grown - path.stat().st_size
    assert TB5(path).tables == sections
    assert path.stat().st_size <= size
    with pytest.raises(LastbranchError, match="no data stream 9"):
        bind_stream(path, 9)


def test_a_damaged_stream_is_not_bound_and_the_file_stays(data: Data, tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    write_profile(open_profile(data.path("demo_2proc")), path)
    whole = bytearray(path.read_bytes())
    whole[int(Tb5File(open_source(str(path))).offsets(Table(Scope.STREAM, 0, 2))[0]) + 9] ^= 1
    path.write_bytes(whole)
    with pytest.raises(FormatError, match="block 0 of stream 0 data is damaged"):
        bind_stream(path)
    with pytest.raises(FormatError):
        compact(path)
    assert path.read_bytes() == whole
    assert len(list(tmp_path.iterdir())) == 1


def test_summary_is_counts(tmp_path: Path) -> None:
    write(tmp_path / "a.tb5", [], [])
    assert dataclasses.astuple(bind_stream(tmp_path / "a.tb5")) == (0, 0, 0, 0, True)


def rewritten(path: Path, out: Path, leave: set[Table]) -> None:
    """The file without some tables."""
    with Tb5File(open_source(str(path))) as file, Tb5Writer.create(out) as writer:
        for key in sorted(set(file.tables) - leave):
            writer.put(key, file.read(key))


@pytest.mark.parametrize(("kind", "part"), [(4, 0), (5, 0), (6, 0), (7, 0), (6, 1), (7, 1)])
def test_an_incomplete_binding_is_told_and_made_again(tmp_path: Path, kind: int, part: int) -> None:
    whole, path = tmp_path / "a.tb5", tmp_path / "b.tb5"
    write(whole, [], [{"ip": 1, "pid": 5, "tid": 6, "cs": 0, "mode": 0, "time": 1}])
    bind_stream(whole)
    assert verify(Tb5File(open_source(str(whole)))) == []
    rewritten(whole, path, {Table(Scope.BIND, 0, kind, part)})
    assert any("is not complete: no bind of stream 0" in str(d) for d in verify(Tb5File(open_source(str(path)))))
    assert sample_streams(path, bound=True) == []
    bind_stream(path)
    assert sample_streams(path, bound=True) == [0]
    assert verify(Tb5File(open_source(str(path)))) == []
    assert TB5(path).tables == TB5(whole).tables
    rewritten(whole, path, {Table(Scope.BIND, 0, kind, part)})
    unbind_stream(path)
    assert not any(key[0] == Scope.BIND for key in TB5(path).tables)


def test_a_stream_without_data_is_whole(tmp_path: Path) -> None:
    write(tmp_path / "a.tb5", [], [])
    rewritten(tmp_path / "a.tb5", tmp_path / "b.tb5", {Table(Scope.STREAM, 0, 2)})
    assert verify(Tb5File(open_source(str(tmp_path / "b.tb5")))) == []
    rewritten(tmp_path / "a.tb5", tmp_path / "b.tb5", {Table(Scope.STREAM, 0, 4)})
    (damage,) = verify(Tb5File(open_source(str(tmp_path / "b.tb5"))))
    assert "no stream info" in str(damage)


def test_compact_keeps_permissions_and_links(tmp_path: Path) -> None:
    path, link = tmp_path / "a.tb5", tmp_path / "link.tb5"
    write(path, [], [])
    path.chmod(0o600)
    link.symlink_to("a.tb5")
    bind_stream(link)
    unbind_stream(link)
    assert compact(link) > 0
    assert (path.stat().st_mode & 0o777, link.is_symlink(), link.resolve()) == (0o600, True, path)
    assert sample_streams(path, bound=True) == []


def test_a_tb5_file_is_converted_with_all_that_is_in_it(run: Callable[..., Ran], tmp_path: Path) -> None:
    path, out = tmp_path / "a.tb5", tmp_path / "b.tb5"
    write(path, [], [{"ip": 1, "pid": 5, "tid": 6, "cs": 0, "mode": 0, "time": 1}])
    bind_stream(path)
    with Tb5Writer.append(path) as writer:
        writer.put(Table(Scope.GLOBAL, 0, 4), b"user's own")
        writer.put(Table(Scope.STREAM, 1, 2), np.arange(9))
        writer.string("more")
    assert run("convert", path, out).code == 0
    assert (TB5(out).tables, TB5(out).texts) == (TB5(path).tables, TB5(path).texts)
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"user's own")] ^= 1
    path.write_bytes(whole)
    told = run("convert", "--force", path, out)
    assert "not copied: damaged samples, user-defined data, custom streams, binding" in told.err
    assert open_profile(out).samples == 1
