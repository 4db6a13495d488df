"""Parquet and Arrow folders: every declared column, with the values that the model gives."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from captures import REAL, SYNTHETIC, Data
from lastbranch.bind import bind
from lastbranch.export import columnar
from lastbranch.export.columnar import arrow_type
from lastbranch.lbr import FLAG_FIELDS, branch_type, type_name
from lastbranch.model import COLUMNS, TABLES, Event, Module, Process, Profile, Segment, Thread
from lastbranch.opening import open_profile

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
FORMS = ("parquet", "arrow")


def read(folder: Path, name: str, form: str) -> Any:
    if form == "parquet":
        import pyarrow.parquet as pq

        return pq.read_table(folder / f"{name}.parquet")
    with pa.ipc.open_file(folder / f"{name}.arrow") as file:
        return file.read_all()


def exported(run, path: Path, folder: Path, form: str = "parquet", *words: str) -> Path:
    done = run("export", "--to", form, *words, "-o", folder, path)
    assert done.code == 0, done.err
    return folder


def rows(column: Any) -> list[int]:
    """Row numbers with -1 for none."""
    assert -1 not in column.to_pylist()
    return [-1 if v is None else v for v in column.to_pylist()]


def expected(profile: Profile) -> dict[str, dict[str, list[Any]]]:
    """Samples, branches and frames, from batches and the binder."""
    binder = bind(profile).binder
    out: dict[str, dict[str, list[Any]]] = {"samples": {}, "branches": {}, "frames": {}}

    def add(table: str, **columns: Any) -> None:
        for name, values in columns.items():
            out[table].setdefault(name, []).extend(values.tolist() if isinstance(values, np.ndarray) else values)

    first = 0
    for batch in profile.batches():
        scope = binder.scopes(batch)
        module, address = binder.locate(scope, batch.ip)
        sample = np.arange(first, first + len(batch))
        first += len(batch)
        add(
            "samples",
            sample=sample,
            module=module,
            address=address,
            process=binder.process_of(scope),
            thread=binder.threads_of(batch, scope),
            time=batch.time,
            ip=batch.ip,
            pid=batch.pid,
            period=batch.period,
        )
        for table, group, names in (
            ("branches", "branch", ("branch_from", "branch_to")),
            ("frames", "frame", ("frame",)),
        ):
            if group not in batch.offsets:
                continue
            sizes = np.diff(batch.offsets[group])
            each = np.repeat(scope, sizes)
            add(table, sample=np.repeat(sample, sizes), index=[i for n in sizes.tolist() for i in range(n)])
            for name in names:
                module, address = binder.locate(each, batch[name])
                short = name.removeprefix("branch_") + "_" if table == "branches" else ""
                add(table, **{name: batch[name], f"{short}module": module, f"{short}address": address})
            if table == "branches":
                flags = batch["branch_flags"]
                words = flags.tolist()
                told = [w & 3 != 0 for w in words]
                add(
                    table,
                    branch_flags=flags,
                    type=[type_name(c) if c else None for c in branch_type(flags).tolist()],
                    cycles=[w >> 4 & 0xFFFF or None for w in words],
                    mispred=[bool(w & 1) if t else None for w, t in zip(words, told, strict=True)],
                    predicted=[bool(w & 2) if t else None for w, t in zip(words, told, strict=True)],
                    in_tx=[bool(w & 4) for w in words],
                    abort=[bool(w & 8) for w in words],
                    spec=[w >> 24 & 3 or None for w in words],
                    priv=[w >> 30 & 7 or None for w in words],
                )
    return out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name", ["demo_features", "snb_callchain_and_branch-3.4", "arm_etm_inject_hwindex", "cfl_9700_callgraph_lbr"]
)
def test_values_are_those_of_the_model(run, data: Data, tmp_path: Path, name: str, form: str) -> None:
    folder = exported(run, data.path(name), tmp_path / "x", form)
    profile = open_profile(data.path(name))
    counts = {}
    for table, columns in expected(profile).items():
        if not columns:
            assert not (folder / f"{table}.{form}").exists()
            continue
        found = read(folder, table, form)
        counts[table] = len(found)
        for column, values in columns.items():
            got = rows(found[column]) if column.endswith(("module", "process", "thread")) else found[column].to_pylist()
            assert got == values, (table, column)
    for table in TABLES:
        found = read(folder, table, form)
        counts[table] = len(found)
        assert found["row"].to_pylist() == list(range(len(getattr(profile, table))))
    assert read(folder, "modules", form)["build_id"].to_pylist() == [m.build_id for m in profile.modules]
    assert read(folder, "modules", form)["kind"].to_pylist() == [str(m.kind) for m in profile.modules]
    index = [line.split("\t") for line in (folder / "index.tsv").read_text().splitlines()]
    assert index[0] == ["file", "table", "rows"]
    assert {table: int(count) for _, table, count in index[1:]} == counts
    assert {file for file, *_ in index[1:]} | {"index.tsv"} == {p.name for p in folder.iterdir()}


@pytest.mark.parametrize("name", REAL + SYNTHETIC)
def test_every_column_of_the_capture_is_there_with_its_unit(run, data: Data, tmp_path: Path, name: str) -> None:
    folder = exported(run, data.path(name), tmp_path / "x")
    profile = open_profile(data.path(name))
    tables = {"sample": "samples", "branch": "branches", "frame": "frames"}
    there = {c for s in profile.streams for c in s.columns} | {c.name for c in COLUMNS if not c.optional}
    for column in (c for c in COLUMNS if c.name in there):
        schema = read(folder, tables.get(column.group, "samples"), "parquet").schema
        kind = schema.field(column.name).type
        ragged = column.group not in tables
        assert (kind.value_type if ragged else kind) == pa.from_numpy_dtype(np.dtype(column.dtype))
        meta = schema.field(column.name).metadata
        assert (meta[b"unit"], meta[b"meaning"]) == (column.unit.encode(), column.meaning.encode())
    table = read(folder, "samples", "parquet")
    assert len(table) == profile.samples
    assert table.schema.metadata[b"ticks_per_second"] == str(profile.clock.frequency).encode()
    for group in {c.group for c in COLUMNS if c.name in there} - tables.keys():
        names = [c.name for c in COLUMNS if c.group == group and c.name in there]
        lists = [np.concatenate([b[n] for b in profile.batches() if n in b]).tolist() for n in names]
        assert [[v for one in table[n].to_pylist() for v in one or []] for n in names] == lists


def test_row_groups_are_bounded(run, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(columnar, "_ROW_GROUP", 5000)
    folder = exported(run, data.path("wsm_x5660_16deep"), tmp_path / "x")
    file = pq.ParquetFile(folder / "branches.parquet")
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    assert sum(sizes) == 147_712
    assert len(sizes) > 1
    assert read(folder, "samples", "parquet")["sample"].to_pylist() == list(range(9232))
    assert Counter(file.read()["sample"].to_pylist()) == dict.fromkeys(range(9232), 16)


def test_filters_hold_and_a_folder_is_replaced(run, data: Data, tmp_path: Path) -> None:
    path, folder = data.path("demo_2proc"), tmp_path / "x"
    exported(run, path, folder, "parquet", "--pid", "5001")
    assert Counter(read(folder, "samples", "parquet")["pid"].to_pylist()) == {5001: 120}
    exported(run, path, folder, "arrow", "--force")
    assert not list(folder.glob("*.parquet"))
    assert len(read(folder, "samples", "arrow")) == 240
    (folder / "mine").write_text("")
    done = run("export", "--to", "arrow", "--force", "-o", folder, path)
    assert done.code == 5
    assert "mine" in done.err
    assert run("export", "--to", "arrow", path).code == 2


def test_without_pyarrow_it_says_what_to_install(
    run, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run("export", "--to", "parquet", "-o", tmp_path / "x", data.path("demo_hwidx"))
    assert done.code == 5
    assert "lastbranch[arrow]" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("owner", [Module, Process, Thread, Event])
def test_every_field_of_the_tables_has_a_type(owner: type) -> None:
    for field in fields(owner):
        kind, convert = arrow_type(owner, field.name, str(field.type))
        assert kind is not None
        assert callable(convert)


def test_addresses_of_the_upper_half_fit() -> None:
    top = (1 << 64) - 4096
    kind, convert = arrow_type(Module, "segments", "tuple[Segment, ...]")
    made = pa.array([convert((Segment(top, 0, 4096, True),))], kind)
    assert made.to_pylist() == [[{"address": top, "offset": 0, "size": 4096, "executable": True}]]
    kind, convert = arrow_type(Event, "programming", "dict[str, int]")
    assert pa.array([convert({"config": -1})], kind).to_pylist() == [[("config", (1 << 64) - 1)]]
    assert FLAG_FIELDS.keys() - set(columnar._FLAGS) == {"type", "new_type", "reserved"}
