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

from conftest import Data, Ran
from lastbranch.bind import binder_of
from lastbranch.errors import FormatError, LastbranchError
from lastbranch.formats.tb5 import NEVER, STRUCTS, Scope, Table, Tb5File, Tb5Writer
from lastbranch.formats.tb5.constants import ModuleFlag
from lastbranch.opening import open_profile, open_source
from lastbranch.store import bind_stream, compact, is_bound, unbind_stream, write_profile
from tb5_reader import TB5

KERNEL = 0xFFFF_8000_0000_0000
MODULE = STRUCTS["TBRW_MODULE"].dtype
SAMPLE = np.dtype([("pc", STRUCTS["TBRW_SampleRecordPC"].dtype), ("tsc", "<u8")])


def write(
    path: Path, modules: list[dict[str, int]], samples: list[dict[str, int]], tasks: list[tuple[int, int]] = ()
) -> None:  # type: ignore[assignment]
    """A file as a TBRW user makes it: 40-byte records, modules, no processes unless ``tasks`` (pid, when)."""
    with Tb5Writer.create(path) as writer:
        rows = np.zeros(len(modules), MODULE)
        for row, m in zip(rows, modules, strict=True):
            for name, value in m.items():
                row[name] = value
            row["module_name"] = writer.string(f"m{m['module_load_address']:x}")
        writer.put(Table(Scope.GLOBAL, 0, 3), rows)
        if tasks:
            pids = np.zeros(len(tasks), STRUCTS["TBRW_PID"].dtype)
            pids["pid_id"], pids["pid_event_when"] = zip(*tasks, strict=True)
            writer.put(Table(Scope.GLOBAL, 0, 2), pids)
            writer.put(Table(Scope.GLOBAL, 0, 2, 1), np.zeros(0, STRUCTS["TBRW_TID"].dtype))
        entries = np.zeros(2, STRUCTS["TBRW_SAMPREC_DESC_ENTRY"].dtype)
        entries["desc_offset"], entries["desc_data_size"], entries["desc_type"] = (0, 32), (32, 8), (1, 7)
        writer.put(Table(Scope.STREAM, 0, 1), entries)
        info = np.zeros(1, STRUCTS["TBRW_STREAM_INFO"].dtype)
        info["stream_type"] = 1
        writer.put(Table(Scope.STREAM, 0, 4), info)
        records = np.zeros(len(samples), SAMPLE)
        for row, s in zip(records, samples, strict=True):
            row["pc"]["iip"], row["pc"]["pidRecIndex"], row["pc"]["tid"] = s["ip"], s["pid"], s["tid"]
            row["pc"]["cs"], row["pc"]["cpuAndOS"], row["tsc"] = s["cs"], s["mode"] << 13, s["time"]
            row["pc"]["bitFields2"] = 1 << 28 | 1 << 29 | 1 << 30
        writer.put(Table(Scope.STREAM, 0, 2), records)


def truth(modules: list[dict[str, int]], s: dict[str, int]) -> int:
    """The row of the module by the guide's words; own modules before everybody's, the newest load first."""
    best: tuple[int, int, int] | None = None
    for row, m in enumerate(modules):
        start, everybodys = m["module_load_address"], m["module_flags"] & ModuleFlag.GLOBAL_LOAD
        if not everybodys and m["module_associated_pid"] != s["pid"]:
            continue
        if not start <= s["ip"] < min(start + m["module_length"], NEVER):
            continue
        if not m["module_event_when"] <= s["time"] or not (
            m["module_unload_tsc"] == NEVER or s["time"] < m["module_unload_tsc"]
        ):
            continue
        selector, mode = m["module_code_selector"], m["module_segment_type_word"]
        if (selector and s["cs"] and selector != s["cs"]) or (mode and s["mode"] and mode != s["mode"]):
            continue
        rank = (0 if everybodys else 1, m["module_event_when"], row)
        best = rank if best is None or rank > best else best
    return NEVER if best is None else best[2]


_ADDRESS = st.sampled_from([0x1000, 0x1800, 0x2000, 0x3000, KERNEL, KERNEL + 0x1000, KERNEL + 0x1800])
_MODULES = st.lists(
    st.fixed_dictionaries(
        {
            "module_associated_pid": st.sampled_from([0, 7, 8, 5_000_000]),
            "module_flags": st.sampled_from([0, 0, int(ModuleFlag.IS_EXE), int(ModuleFlag.GLOBAL_LOAD)]),
            "module_event_when": st.integers(0, 12),
            "module_unload_tsc": st.integers(0, 12) | st.just(NEVER),
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
@settings(max_examples=80, deadline=None)
def test_modules_are_those_of_the_guides_rule(
    tmp_path_factory: pytest.TempPathFactory, modules: list[dict[str, int]], samples: list[dict[str, int]], tidy: bool
) -> None:
    path = tmp_path_factory.mktemp("bind") / "a.tb5"
    if tidy:
        samples.sort(key=lambda s: s["time"])
    write(path, modules, samples)
    summary = bind_stream(path)
    file = TB5(path)
    assert [m for m, _, _ in bound(file, 4)] == [truth(modules, s) for s in samples]
    # Processes and threads are inferred: each id once, in the order of ids.
    own = {m["module_associated_pid"] for m in modules if not m["module_flags"] & ModuleFlag.GLOBAL_LOAD}
    pids = sorted(own | {s["pid"] for s in samples})
    pairs = sorted({(s["pid"], s["tid"]) for s in samples})
    assert [r[1] for r in file.rows((2, 0, 6, 1), "<II")] == pids
    assert [r[1:3] for r in file.rows((2, 0, 7, 1), "<3I")] == pairs
    assert [(p, t) for _, p, t in bound(file, 4)] == [
        (pids.index(s["pid"]), pairs.index((s["pid"], s["tid"]))) for s in samples
    ]
    owners = [NEVER if m["module_flags"] & ModuleFlag.GLOBAL_LOAD else m["module_associated_pid"] for m in modules]
    assert [p for (p,) in bound(file, 5)] == [NEVER if o == NEVER else pids.index(o) for o in owners]
    assert [p for (p,) in bound(file, 7)] == [pids.index(p) for p, _ in pairs]
    for (row,), pid in zip(bound(file, 6), pids, strict=True):
        mine = [i for i, o in enumerate(owners) if o == pid]
        exe = [i for i in mine if modules[i]["module_flags"] & ModuleFlag.IS_EXE]
        assert row == (exe or mine or [NEVER])[0]
    assert summary.processes_made
    assert summary.samples == len(samples)
    assert Tb5File(open_source(str(path))).verify() == []


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


@pytest.mark.parametrize(
    "name", ["demo_2proc", "skx_6154_32deep_pie", "snb_callchain_and_branch-3.4", "wsm_x5660_16deep"]
)
def test_binding_agrees_with_the_reports(data: Data, tmp_path: Path, name: str) -> None:
    profile, path = open_profile(data.path(name)), tmp_path / "a.tb5"
    write_profile(profile, path)
    bind_stream(path)
    with Tb5File(open_source(str(path))) as file:
        rows = file.records(Table(Scope.BIND, 0, 4))
        paths = [file.text(int(m)) for m in file.records(Table(Scope.GLOBAL, 0, 3))["module_path"]]
    binder, at = binder_of(profile), 0
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
    assert is_bound(path)
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
