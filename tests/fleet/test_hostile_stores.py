"""Stores with hostile contents: a reader is neither taken over nor brought down."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import Ran
from lastbranch.closed_database import closed_database, text
from lastbranch.fleet import Labels, Store, capture_file
from lastbranch.fleet.parts import batch_key
from small_captures import build

Run = Callable[..., Ran]
DAY, KEY = "2026-01-01", "0" * 32
VERBS = (["report"], ["list"], ["export", "--to", "counts", "-o", "out"], ["compact", "--keep", "0"], ["verify"])


@pytest.fixture
def store(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of one capture, in the folder in which verbs run."""
    monkeypatch.chdir(tmp_path)
    assert run("fleet", "add", "store", build(tmp_path / "a.data"), "--time", DAY).code == 0
    return tmp_path / "store"


def with_commit(store: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the newest commit of a store. Its path."""
    newest = max((store / "manifest").iterdir())
    change(commit := json.loads(newest.read_text()))
    newest.write_text(json.dumps(commit))
    return newest


def listed(store: Path, table: str) -> dict[str, Any]:
    """The manifest's entry of the first part of a table."""
    commit = json.loads(max((store / "manifest").iterdir()).read_text())
    return next(part for part in commit["add"] if part["name"].startswith(table))


def with_name(store: Path, name: str) -> None:
    """Have the part of captures be called ``name``, in the folder and in the manifest."""
    old = listed(store, "captures")["name"]
    path = store / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (store / old).rename(path)
    with_commit(
        store,
        lambda commit: commit.update(
            add=[part | {"name": name} if part["name"] == old else part for part in commit["add"]]
        ),
    )


def test_the_name_of_a_part_is_not_run_as_sql(run: Run, store: Path) -> None:
    statement = "COPY (SELECT 42) TO 'written.csv' (FORMAT csv)"
    day = f"{DAY}' AS day, 'e' AS event, 1 AS entries)) GROUP BY event; {statement}; --"
    with_name(store, f"captures/day={day}/{KEY}.parquet")
    for verb in (["report"], ["export", "--to", "counts"]):
        done = run("fleet", verb[0], "store", *verb[1:])
        assert not Path("written.csv").exists()
        assert (done.code, "name = captures/day=" in done.err) == (3, True), done.err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", f"captures/day={DAY}/../../../{KEY}.parquet"),
        ("name", f"/captures/day={DAY}/{KEY}.parquet"),
        ("name", f"captures/day=2026-02-31/{KEY}.parquet"),
        ("name", f"captures/day=2026-01-0\u0661/{KEY}.parquet"),
        ("name", f"counts/day={DAY}/{KEY}.parquet"),
        ("name", f"counts/day={DAY}/bucket=64/{KEY}.parquet"),
        ("name", f"captures/day={DAY}/bucket=01/{KEY}.parquet"),
        ("name", f"captures/day={DAY}/x.parquet"),
        ("name", f"captures/day={DAY}/{KEY}.parquet\n"),
        ("name", 7),
        ("rows", -1),
        ("rows", True),
        ("bytes", 1 << 70),
        ("bytes", None),
        ("bytes", 1.5),
        ("sha256", "0" * 63),
        ("sha256", "G" * 64),
        ("sha256", []),
    ],
)
def test_a_part_that_cannot_be_is_named(field: str, value: object, run: Run, store: Path) -> None:
    commit = with_commit(store, lambda commit: commit["add"][0].update({field: value}))
    before = sorted(store.parent.rglob("*"))
    for verb in VERBS:
        done = run("fleet", verb[0], "store", *verb[1:])
        assert done.code == 3, (verb, done.err)
        assert f"store/manifest/{commit.name}: damaged" in done.err
        assert f"({field}" in done.err
    assert sorted(store.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("remove", ["../x"]),
        ("remove", [{}]),
        ("gone", {f"captures/day={DAY}/{KEY}.parquet": "x"}),
        ("gone", []),
        ("time", None),
        ("time", float("nan")),
        ("number", 0),
        ("number", 10**30),
        ("whole", "yes"),
        ("add", {"a": 1}),
        ("version", "2"),
    ],
)
def test_a_commit_that_cannot_be_is_named(field: str, value: object, run: Run, store: Path) -> None:
    with_commit(store, lambda commit: commit.update({field: value}))
    for verb in (["list"], ["compact"]):
        done = run("fleet", verb[0], "store")
        assert (done.code, f"({field}" in done.err) == (3, True), done.err


def test_work_that_is_said_to_be_done_is_not_taken_as_it_is(run: Run, store: Path, tmp_path: Path) -> None:
    capture = build(tmp_path / "b.data", name="/bin/b")
    key = batch_key([capture_file(str(capture), Labels())])
    (store / "done" / f"{key}.json").write_text(json.dumps([listed(store, "captures") | {"name": "captures/../../x"}]))
    done = run("fleet", "add", "store", capture)
    assert done.code == 3
    assert f"store/done/{key}.json: damaged" in done.err
    assert "name = captures/../../x" in done.err


@pytest.mark.skipif(sys.platform == "win32", reason="no symbolic links for everybody")
@pytest.mark.parametrize("folder", ["done", "counts", "manifest"])
def test_links_lead_nowhere(folder: str, run: Run, store: Path, tmp_path: Path) -> None:
    """A sweep through one would delete what the user may, and the store's writer may not."""
    mine = tmp_path / "mine"
    (store / folder).rename(mine)
    (mine / "letter.txt").write_text("dear")
    os.utime(mine / "letter.txt", (0, 0))
    (store / folder).symlink_to(mine)
    before = sorted(mine.rglob("*"))
    done = run("fleet", "compact", "store", "--keep", "0")
    assert sorted(mine.rglob("*")) == before
    assert (done.code, "symbolic link" in done.err) == (5, True)


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes in folders")
def test_what_is_no_file_is_not_opened(run: Run, store: Path) -> None:
    for name in (f"manifest/{'9' * 10}.json", listed(store, "captures")["name"]):
        (store / name).unlink(missing_ok=True)
        os.mkfifo(store / name)
        done = run("fleet", "list", "store")
        assert (done.code, "is not a file" in done.err) == (5, True), done.err
        (store / name).unlink()


MODULES: dict[str, list[object]] = {
    "kind": ["", "x", None], "build_id": ["xyz", None], "pdb_guid": ["1", None], "name": [None], "mapped_size": [None],
    "size": [None], "module": [None],
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, found in MODULES.items() for value in found])
def test_a_module_that_cannot_be_is_named(field: str, value: object, run: Run, store: Path) -> None:
    changed(store, "modules", field, value)
    done = run("fleet", "report", "store")
    assert done.code == 3, done.err
    assert f"store/modules: damaged: a module cannot have this ({field} = {value!r})" in done.err


VALUES = ("x'; --", "x\0y", -1, (1 << 64) - 1, None, [1], 1.5, b"\xff")


@pytest.mark.parametrize("table", ["captures", "counts", "modules"])
@pytest.mark.parametrize("apart", [19, pytest.param(1, marks=pytest.mark.thorough)])
def test_columns_of_another_type_and_size_bring_nobody_down(apart: int, table: str, run: Run, store: Path) -> None:
    """`run` fails where there is a traceback."""
    path = store / listed(store, table)["name"]
    whole = path.read_bytes()
    cases = [(field, value) for field in pq.read_schema(path).names for value in VALUES]
    for field, value in cases[::apart]:
        changed(store, table, field, value)
        for verb in (["report"], ["report", "--saturation"], ["list", "--by", "module"])[:: 1 if apart == 1 else 2]:
            assert run("fleet", verb[0], "store", *verb[1:]).code in (0, 2, 3, 4), (field, value)
        path.write_bytes(whole)
    for content in (b"", whole[: len(whole) // 2] + b"PAR1"):
        path.write_bytes(content)
        done = run("fleet", "report", "store")
        assert (done.code, "store: its parts cannot be read" in done.err) == (3, True), done.err


def changed(store: Path, table: str, field: str, value: object) -> None:
    """Have all rows of the first part of a table say ``value``."""
    path = store / listed(store, table)["name"]
    found = pq.read_table(path, partitioning=None)
    kind = pa.uint64() if isinstance(value, int) and value > 0 else None
    column = pa.array([value] * len(found), found.schema.field(field).type if value is None else kind)
    pq.write_table(found.set_column(found.schema.get_field_index(field), field, column), path)


def test_a_capture_that_stands_for_too_much(run: Run, store: Path) -> None:
    changed(store, "captures", "recorded", 1)
    changed(store, "captures", "stands_for", 1 << 62)
    done = run("fleet", "report", "store")
    assert (done.code, "stands_for = " in done.err) == (3, True), done.err


# -- what SQL can reach


OUTSIDE = (
    "SELECT * FROM read_csv('{}')", "SELECT * FROM read_text('{}')", "SELECT * FROM read_blob('{}')",
    "SELECT * FROM parquet_metadata('{}')", "SELECT * FROM sniff_csv('{}')", "SELECT * FROM glob('{}')",
    "SELECT * FROM '{}'", "SELECT * FROM read_json('{}')", "SELECT * FROM duckdb_extensions()",
    "SELECT getenv('HOME')", "SELECT * FROM outside",
)  # fmt: skip


def test_a_users_statement_reaches_the_store_alone(run: Run, store: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.csv"
    outside.write_text("a,b\n1,2\n")
    for statement in OUTSIDE:
        done = run("fleet", "query", "store", f"{statement.format(outside)}, captures")
        assert (done.code, done.out) == (2, "") or done.code == 5, (statement, done.out)
    assert run("fleet", "query", "store", "SELECT count(*) FROM captures").code == 0


def test_no_statement_of_a_store_reaches_more(store: Path, tmp_path: Path) -> None:
    """Also one of ours: it runs in a database that is closed before it has read anything."""
    outside = tmp_path / "outside.csv"
    outside.write_text("a,b\n1,2\n")
    with Store(str(store)).reading() as reading:
        for statement in (
            *OUTSIDE,
            "COPY (SELECT 1) TO '{}'",
            "ATTACH '{}'",
            "SET enable_external_access = true",
            "SET allowed_directories = ['/']",
            "LOAD '{}'",
            "INSTALL httpfs",
            "EXPORT DATABASE '{}'",
        ):
            with pytest.raises(Exception, match=r"Permission|Catalog|configuration|does not exist|disabled|locked"):
                reading._database.execute(statement.format(outside))
    assert outside.read_text() == "a,b\n1,2\n"


def test_a_closed_database_spills(tmp_path: Path) -> None:
    """A query that needs more memory than its limit uses its folder, which statements cannot reach."""
    limits = {"memory_limit": "16MiB", "threads": "1", "temp_directory": str(tmp_path / "spilled")}
    with closed_database(limits) as database:
        database.execute("CREATE TABLE many AS SELECT hash(range) AS a FROM range(3000000)")
        assert database.execute("SELECT count(*) FROM (SELECT a FROM many ORDER BY a)").fetchone() == (3_000_000,)


letters = st.one_of(st.sampled_from("'\"\0\\;-$?x\n"), st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.text(alphabet=letters), min_size=100, max_size=100))
@settings(max_examples=1)
def test_any_text_is_a_text_in_sql(values: list[str]) -> None:
    with closed_database({"threads": "1"}) as database:
        for value in values:
            assert database.execute(f"SELECT {text(value)}, 'x' GLOB {text(value)}").fetchall()[0][0] == value
