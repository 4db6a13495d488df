"""SQL over captures: answers against perf's own text and exact ground truth; a connection that reaches nothing."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import lastbranch
from captures import Data
from command_line import Ran
from lastbranch import demo, sql
from lastbranch.errors import FormatError, NotRecordedError, SelectionError, UnavailableError
from lastbranch.model import COLUMNS, Profile, SampleStream
from lastbranch.sql import TABLES, query
from lastbranch.sql import result as running
from lastbranch.sql.database import Database, Plan, failures, plan_of
from lastbranch.sql.schema import UNKNOWN
from perfdata_writer import CALLCHAIN, IP, TID, TIME, Builder
from small_captures import build
from view_truth import NmSymbols, name_at, symbols

duckdb = pytest.importorskip("duckdb")


@pytest.fixture
def pie(data: Data, symfs: Callable[[str], Path]) -> Profile:
    return lastbranch.open(data.path("demo_pie"), symfs=str(symfs("demo_pie")))


@pytest.fixture
def small() -> Profile:
    return lastbranch.open(demo.capture(), symfs=demo.symfs())


def rows(profile: Profile, statement: str) -> list[tuple[object, ...]]:
    with query(profile, statement, symbols=NmSymbols(profile)) as result:  # type: ignore[arg-type]
        return list(result)


# -- answers


@pytest.mark.parametrize("name", ["demo_pie", "wsm_x5660_16deep", "cfl_9700_callgraph_lbr"])
def test_branches_are_those_that_perf_prints(name: str, data: Data) -> None:
    """Predictions and cycles that perf prints as not known (``-``, 0) are NULL; some captures have none."""
    profile = lastbranch.open(data.path(name))
    entry = re.compile(r"0x([0-9a-f]+)/0x([0-9a-f]+)/([MP-])/[^/]*/[^/]*/(\d+)/")
    printed = [
        (
            position,
            int(f, 16),
            int(t, 16),
            None if how == "-" else how == "M",
            None if how == "-" else how == "P",
            int(cycles) or None,
        )
        for line in data.golden(name, "perf612-script-brstack.txt.gz").splitlines()
        for position, (f, t, how, cycles) in enumerate(entry.findall(line))
    ]
    columns = "position, branch_from, branch_to, mispredicted, predicted, cycles"
    assert rows(profile, f"select {columns} from branches") == printed
    assert len(printed) == profile.entries
    told = sum(how is not None for *_, how, _, _ in printed)
    counted = "select coalesce(sum(mispredicted), 0)::bigint + coalesce(sum(predicted), 0)::bigint from edges"
    assert rows(profile, counted) == [(told,)]
    unknown = "select count(*) from edges where (mispredicted is null) != (predicted is null) or cycles = 0"
    assert rows(profile, unknown) == [(0,)]
    if name.startswith("cfl"):
        assert rows(profile, "select count(mispredicted), count(cycles), sum(timed)::bigint from edges") == [(0, 0, 0)]


def test_edges_and_ranges_are_the_ground_truth(pie: Profile, data: Data) -> None:
    lines = list(map(str.split, data.golden("demo_pie", "truth.txt").splitlines()))
    edges = {(w[1], int(w[2], 16), w[3], int(w[4], 16), int(w[5]), int(w[6])) for w in lines if w[0] == "B"}
    ranges = {(w[1], int(w[2], 16), int(w[3], 16), int(w[4])) for w in lines if w[0] == "R"}
    statement = """select f.name, from_address, t.name, to_address, count, mispredicted from edges
        join (select id, name from modules) f on f.id = from_module join modules t on t.id = to_module"""
    assert set(rows(pie, statement)) >= edges
    statement = "select name, start_address, end_address, count from ranges join modules on modules.id = module"
    assert set(rows(pie, statement)) >= ranges
    assert len(edges) > 100 < len(ranges)


def test_entries_counted_in_sql_are_the_edges(pie: Profile) -> None:
    """Two ways to the same numbers: one row an entry, and counted before binding."""
    by = "from_module, from_address, to_module, to_address"
    entries = f"""select {by}, count(*), sum(mispredicted::int), sum(cycles), count(cycles)
        from branches group by {by} order by all"""
    edges = f"""select {by}, sum(count)::bigint, sum(mispredicted)::hugeint, sum(cycles)::hugeint, sum(timed)::bigint
        from edges group by {by} order by all"""
    assert rows(pie, entries) == rows(pie, edges)


@pytest.mark.parametrize(
    ("statement", "counted"),
    [
        ("select from_address, count from edges order by all", {"ranges": False, "details": False}),
        ("select from_address, cycles from edges order by all", {"ranges": False, "details": True}),
        ("select sum(count)::int, (select sum(timed)::int from edges) from ranges", {"ranges": True, "details": True}),
    ],
)
def test_tables_of_counts_are_made_while_the_capture_is_opened(
    run: Callable[..., Ran], small: Profile, monkeypatch: pytest.MonkeyPatch, statement: str, counted: dict[str, bool]
) -> None:
    expected = [list(map(str, row)) for row in rows(small, statement)]
    assert sql.count_request_of(statement) == counted
    assert sql.count_request_of("select ip, (select max(samples) from stacks) from samples") is None
    monkeypatch.setattr(SampleStream, "stacks", lambda self: pytest.fail("read again"))
    ran = run("query", demo.capture(), statement, "--symfs", demo.symfs(), "--format", "csv")
    assert list(csv.reader(io.StringIO(ran.out)))[1:] == expected


def test_samples_have_what_the_batches_have_and_where_they_belong(pie: Profile) -> None:
    found = rows(pie, "select time, ip, pid, tid, period, depth, sample, position from samples order by sample")
    batch = next(pie.batches())
    expected = zip(
        *(batch[c].tolist() for c in ("time", "ip", "pid", "tid", "period")), batch.depth.tolist(), strict=True
    )
    assert [(*e, i) for i, e in enumerate(expected)] == [row[:7] for row in found][: len(batch)]
    statement = "select short, function, count(*) from samples join modules m on m.id = module group by all"
    program = next(m for m in pie.modules if m.short == "lbrdemo")
    known, (segment, *_) = symbols(program.binary), [s for s in program.segments if s.executable]
    bias = int(
        rows(
            pie, "select any_value(ip - address) from samples join modules m on m.id = module where short = 'lbrdemo'"
        )[0][0]
    )  # type: ignore[call-overload]
    inside = [ip - bias for ip in batch.ip.tolist() if 0 <= ip - bias - segment.address < segment.size]
    truth = Counter(name_at(known, a) or None for a in inside)
    assert {f: n for short, f, n in rows(pie, statement) if short == "lbrdemo"} == dict(truth)


def test_a_fixed_period_is_that_of_each_sample(tmp_path: Path) -> None:
    """Such samples need not record it."""
    b = Builder(sample_type=IP | TID | TIME | CALLCHAIN, sample_period=5000)
    for time in (1, 2):
        b.sample(ip=9, pid=7, time=time, callchain=[9])
    (tmp_path / "fixed.data").write_bytes(b.build())
    profile = lastbranch.open(tmp_path / "fixed.data")
    assert rows(profile, "select period from samples") == [(5000,)] * 2
    assert rows(profile, "select period from stacks") == [(10000,)]
    assert next(profile.batches()).period.tolist() == [0, 0]


def test_names_that_are_not_utf8(tmp_path: Path, run: Callable[..., Ran]) -> None:
    """Linux' paths are bytes: tables hold names as they are printed everywhere."""
    capture = build(tmp_path / "\udcfe.data", name="/bin/\udcff")
    profile = lastbranch.open(capture)
    asked = "select (select any_value(name) from captures), short from modules where name like '/bin/%'"
    assert rows(profile, asked)[0][1] == r"\xff"
    ran = run("query", capture, asked, "--format", "csv")
    assert (ran.code, r"\xff" in ran.out, r"\xfe.data" in ran.out) == (0, True, True), ran.err
    with pytest.raises(SelectionError, match="the statement is not UTF-8"):
        rows(profile, "select '\udcff'")


def test_model_tables_are_those_of_the_profile(small: Profile) -> None:
    assert rows(small, "select pid, name from processes order by id") == [(p.pid, p.name) for p in small.processes]
    assert rows(small, "select tid, process from threads order by id") == [(t.tid, t.process) for t in small.threads]
    assert rows(small, "select name, period from events") == [(e.name, e.period) for e in small.events]
    found = rows(small, "select name, build_id, missing from modules order by id")
    assert found == [(m.name, m.build_id.hex() or None, m.missing or None) for m in small.modules]


def test_call_chains_and_stacks(data: Data) -> None:
    profile = lastbranch.open(data.path("snb_callchain_and_branch-3.4"))
    chains = [b.chain(i).tolist() for b in profile.batches() for i in range(len(b))]
    found = rows(profile, "select sample, list(frame order by position) from frames group by 1 order by 1")
    assert found == [(i, chain) for i, chain in enumerate(chains) if chain]
    assert rows(profile, "select sum(samples) from stacks") == [(profile.samples,)]
    assert rows(profile, "select sum(depth) from stacks") == rows(profile, "select count(*) from stack_frames")


def test_arrays_and_profile_sql(small: Profile) -> None:
    with small.sql("select pid, count(*) n, null::int as nothing from samples group by 1 order by 1") as result:
        assert result.columns == ["pid", "n", "nothing"]
        found = result.arrays()
    assert found["pid"].tolist() == [5001, 5002]
    assert found["n"].sum() == small.samples
    assert np.ma.getmaskarray(found["nothing"]).all()


# -- only what is read is loaded


def test_columns_that_are_read(small: Profile) -> None:
    every, once = {c.name for c in TABLES["samples"].columns}, frozenset({"branches"})
    wanted = {"branches": {"cycles", "process"}}
    assert plan_of("select count(*) from branches") == Plan({"branches": set()}, once)
    assert plan_of("select max(cycles) from branches where process = 1 and false") == Plan(wanted, once)
    everything = plan_of("from samples natural join (select sample, branch_to from branches)")  # with functions
    assert everything == Plan({"samples": every, "branches": {"sample", "branch_to"}}, once)
    assert plan_of("with t as (select * from edges) select count from t where exists (from ranges)") == Plan(
        {"edges": {"count"}, "ranges": set()}
    )
    assert plan_of("select max(type) from branches") == Plan({"branches": {"type"}})
    assert plan_of("select max(cycles) from branches where cycles < (select avg(cycles) from branches)") == Plan(
        {"branches": {"cycles"}}
    )
    recursive = "with recursive t(n) as (select 1 union all select max(cycles) from branches, t where n < 1) from t"
    assert plan_of(recursive) == Plan({"branches": {"cycles"}})


@pytest.mark.parametrize("plan", [{}, {"branches": set()}, {"branches": {"position"}, "modules": {"id"}}])
@pytest.mark.parametrize(
    "statement",
    [
        "select count(*) from branches",
        "select sum(branch_to), max(cycles) from branches where from_module = 0",
        "select max(short) from modules where name like '%'",
        "select short from modules where id in (select id from events)",
        "select count(*) from samples where exists (from branches where mispredicted)",
        "select max(sample), count(*) from branches",
    ],
)
def test_a_plan_that_misses_something_costs_time_and_not_the_answer(
    small: Profile, monkeypatch: pytest.MonkeyPatch, plan: dict[str, set[str]], statement: str
) -> None:
    expected = rows(small, statement)
    for streamed in (frozenset[str](), frozenset(plan)):
        monkeypatch.setattr(running, "plan_of", lambda _sql, once=streamed: Plan(dict(plan), once & TABLES.keys()))
        assert rows(small, statement) == expected


def test_larger_than_memory(small: Profile) -> None:
    """Sorting more than fits: spilled to a folder that is private, and gone afterwards."""
    statement = """select count(*), sum(hash(a)) from (select a.branch_from + i a, row_number() over (order by
        hash(a.branch_from + i), b.i) from branches a, range(600) b(i))"""
    with query(small, statement, memory=64 << 20) as result:
        folder = Path(result._connection.execute("select current_setting('temp_directory')").fetchall()[0][0])
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    assert rows(small, "select count(*) from branches")[0][0] == small.entries


@pytest.mark.parametrize("streamed", [False, True], ids=["loaded", "streamed"])
@pytest.mark.parametrize("size", [3, 1 << 18], ids=["one insertion", "several"])
def test_rows_of_many_chunks(size: int, streamed: bool) -> None:
    """Readers reuse the memory of a chunk for the next one, and not all chunks have the same columns."""
    table, ip, module = TABLES["samples"], np.empty(size, np.uint64), np.empty(size, np.int64)

    def chunks() -> Iterator[dict[str, np.ndarray]]:
        for number in range(9):
            ip[:], module[:] = number, -1 if number == 7 else number
            parts = {"module": module} if number not in (0, 4) else {}
            yield {"sample": ip, "ip": ip, **parts} if number != 8 else {"sample": module}

    database = Database(256 << 20)
    try:
        if streamed:
            database.stream(table, ["ip", "module"], chunks)
        else:
            database.fill(table, ["ip", "module"], chunks())
        database.show({"id": np.empty(0, np.int64), "text": np.empty(0, object)})
        statement = "select ip, module, typeof(module), count(*) from samples group by all order by all nulls last"
        found = database.connection.execute(statement).fetchall()
    finally:
        database.close()
    expected = [(n, n if n not in (0, 4, 7) else None, "BIGINT", size) for n in range(8)]
    assert found == [*expected, (None, None, "BIGINT", size)]


@pytest.mark.parametrize("streamed", [False, True], ids=["loaded", "streamed"])
def test_truth_values_that_are_not_known(streamed: bool) -> None:
    column = np.array([0, 1, UNKNOWN], np.uint8)
    database, table = Database(256 << 20), TABLES["branches"]
    try:
        if streamed:
            database.stream(table, ["predicted"], lambda: iter([{"predicted": column}]))
        else:
            database.fill(table, ["predicted"], [{"predicted": column}])
        database.show({"id": np.empty(0, np.int64), "text": np.empty(0, object)})
        assert database.connection.execute("select predicted from branches").fetchall() == [(False,), (True,), (None,)]
    finally:
        database.close()


# -- a closed connection


HOSTILE = [
    "select * from read_text('{file}')", "select * from read_csv('{file}')", "select * from read_blob('{file}')",
    "select * from '{file}'", "select * from glob('{folder}/*')", "select * from read_json('{file}')",
    "select * from parquet_scan('{file}')", "select * from sniff_csv('{file}')",
    "copy (select 1) to '{folder}/out.csv'", "copy samples from '{file}'", "export database '{folder}/out'",
    "attach '{folder}/out.db'", "attach ':memory:' as other", "install httpfs", "load httpfs", "load '{file}'",
    "set memory_limit = '8GB'", "reset threads", "pragma threads = 8", "call pragma_version()",
    "create table mine as select 1", "drop view samples", "delete from samples", "checkpoint", "select 1; select 2",
    "select * from secret_variable", "select * from small", "select getenv('HOME')",
    "explain analyze select * from read_text('{file}')", "describe read_text('{file}')", "use memory",
    "select * from query('select * from read_text(''{file}'')')", "select * from query_table('{file}')",
    "select * from 'https://localhost:9/x.parquet'", "prepare p as select 1", "begin", "vacuum",
    "select * from arrow_scan(1::pointer, 1::pointer, 1::pointer)", "create secret s (type s3)",
    "with x as (select * from read_text('{file}')) select 1 from x",
]  # fmt: skip


@pytest.mark.parametrize("statement", HOSTILE)
def test_nothing_outside_is_reached(small: Profile, tmp_path: Path, statement: str) -> None:
    secret_variable = {"a": np.arange(3)}  # what a replacement scan would find
    assert secret_variable
    file = tmp_path / "secret.csv"
    file.write_text("secret\n1\n")
    with pytest.raises((SelectionError, UnavailableError)) as caught:
        rows(small, statement.format(file=file, folder=tmp_path))
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret.csv"]


def test_the_connection_itself_is_closed_and_locked(small: Profile, tmp_path: Path) -> None:
    """Not only because other statements than SELECT are turned away."""
    import duckdb

    (tmp_path / "secret.csv").write_text("secret\n")
    with query(small, "select 1") as result:
        for statement in (
            "set threads = 1",
            "set enable_external_access = true",
            f"copy (select 1) to '{tmp_path}/out.csv'",
            f"attach '{tmp_path}/out.db'",
            "install httpfs",
            "load httpfs",
            "select * from small",
            "pragma threads = 8",
            f"select * from '{tmp_path}/secret.csv'",
            "set lock_configuration = false",
        ):
            with pytest.raises(duckdb.Error):
                result._connection.execute(statement)
        settings = dict(result._connection.execute("select name, value from duckdb_settings()").fetchall())
    assert settings["enable_external_access"] == "false" == settings["autoload_known_extensions"]
    assert settings["lock_configuration"] == "true"
    assert int(settings["threads"]) <= 4


# -- the command line


def test_formats_limits_and_nulls(run: Callable[..., Ran]) -> None:
    capture = demo.capture()
    statement = "select id, short, null as nothing, 1 as id from modules order by id"
    ran = run("query", capture, statement, "--format", "csv", "--limit", "2")
    table = list(csv.reader(io.StringIO(ran.out)))
    assert (ran.code, table[0], len(table)) == (0, ["id", "short", "nothing", "id:1"], 3)
    found = json.loads(run("query", capture, statement, "--format", "json").out)
    assert found[0] == {"id": 0, "short": table[1][1], "nothing": None, "id:1": 1}
    ran = run("query", capture, "select * from range(50) t(n)")
    assert [line.strip() for line in ran.out.splitlines()] == ["n", *map(str, range(20))]
    assert len(run("query", capture, "select * from range(50) t(n)", "--limit", "0").out.splitlines()) == 51
    assert "nothing" in run("query", capture, statement).out.splitlines()[0]
    ran = run("query", capture, 'select 1 a, 2 a, 3 "a:1", 4 "b c", 5 b_c', "--format", "json")
    assert json.loads(ran.out) == [{"a": 1, "a:2": 2, "a:1": 3, "b_c": 4, "b_c:1": 5}]
    ran = run("query", capture, "select 'nan'::double n, '-inf'::float i, 0.5::double h", "--format", "json")
    assert json.loads(ran.out, parse_constant=pytest.fail) == [{"n": "nan", "i": "-inf", "h": 0.5}]
    ran = run("query", capture, "select [1, 2] l, 1.50::decimal(4, 2) d, {'a': 1} s, 'x\x1b[31m' t", "--format", "json")
    assert json.loads(ran.out) == [{"l": "[1, 2]", "d": "1.50", "s": "{'a': 1}", "t": "x\\x1b[31m"}]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("select nope from samples", '"nope" not found'),
        ("selec 1", "syntax error"),
        ("select * from nope", "nope"),
        ("select 'a'::int from samples", "Could not convert"),
        ("", "nothing"),
        ("copy samples to 'x'", "copy"),
        ("select error('x' || chr(10) || 'y' || pid) from samples", "x"),
    ],
)
def test_wrong_sql_is_one_line_and_exit_code_2(run: Callable[..., Ran], statement: str, words: str) -> None:
    ran = run("query", demo.capture(), statement)
    assert (ran.code, ran.out) == (2, "")
    (line,) = [line for line in ran.err.splitlines() if not line.startswith("hint: ")]
    assert line.startswith("error: ")
    assert words in line


def test_a_package_that_values_need_is_told(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB 1 needs pytz for times with a zone, DuckDB 2 needs none; another one may need another."""
    monkeypatch.setitem(sys.modules, "pytz", None)
    ran = run("query", demo.capture(), "select now()")
    assert ran.code == 0 or (ran.code, ran.out, "pip install pytz" in ran.err) == (5, "", True), ran.err
    assert run("query", demo.capture(), "select now()::timestamp").code == 0
    with pytest.raises(UnavailableError, match="pytz") as needed, failures():
        raise duckdb.InvalidInputException("Required module 'pytz' failed to import, due to this Python exception")
    assert "pip install pytz" in str(needed.value.hint)


def test_tables_are_listed_and_described(run: Callable[..., Ran]) -> None:
    names = {line.strip() for line in run("query", demo.capture(), "show tables", "--format", "csv").out.splitlines()}
    assert names == {"name", *TABLES}
    statement = "select table_name, column_name, data_type from information_schema.columns where table_schema = 'main'"
    ran = run("query", demo.capture(), statement, "--format", "csv")
    found = set(map(tuple, csv.reader(io.StringIO(ran.out))))
    declared = {(t.name, c.name, c.type) for t in TABLES.values() for c in t.columns}
    assert found == declared | {("table_name", "column_name", "data_type")}
    ran = run("query", demo.capture(), "describe branches", "--format", "csv", "--limit", "1")
    assert ran.out.splitlines()[1].startswith("sample,BIGINT")


def test_what_is_not_recorded_is_told(data: Data, small: Profile) -> None:
    with pytest.raises(NotRecordedError, match="no call chains"):
        rows(small, "select * from frames")
    without = lastbranch.open(data.path("snb_raw_callchain_branch-3.4"))
    plain = [e for e in without.events if e.branch_select is None]
    if len(plain) == len(without.events):
        with pytest.raises(NotRecordedError, match="no branch stacks"):
            rows(without, "select count(*) from branches")


@pytest.mark.parametrize("name", ["cfl_9700_callgraph_lbr", "hsw_5820k_16deep_attr136", "simpleperf_32deep_lbrloop"])
def test_real_captures_answer(data: Data, name: str) -> None:
    profile = lastbranch.open(data.path(name))
    assert rows(profile, "select count(*), sum(depth) from samples") == [(profile.samples, profile.entries)]
    assert rows(profile, "select count(*), count(distinct sample) > 0 from branches") == [(profile.entries, True)]


# -- the schema


def test_the_schema_has_every_column_of_a_sample_and_is_documented() -> None:
    of_group = {
        "sample": "samples",
        "branch": "branches",
        "frame": "frames",
        "read": "counters",
        "user_regs": "user_registers",
        "intr_regs": "interrupt_registers",
    }
    for column in COLUMNS:
        if column.group in of_group:
            declared = {c.name: c for c in TABLES[of_group[column.group]].columns}
            assert declared[column.name].kind == column.dtype
    page = (Path(__file__).parents[2] / "docs" / "reference" / "sql.md").read_text()
    for table in TABLES.values():
        assert len({c.name for c in table.columns}) == len(table.columns)
        section = page.split(f"## {table.name}\n")[1].split("\n## ")[0]
        assert all(f"| `{c.name}` | {c.type} |" in section for c in table.columns)
    assert sorted(sql.__all__) == sorted(set(sql.__all__))
    assert os.path.exists(Path(__file__).parents[2] / "docs" / "reference" / "sql.md")


def test_every_profile_answers_queries_however_it_was_opened() -> None:
    """In a process of its own: nothing else has touched the package."""
    program = (
        "from lastbranch import demo; from lastbranch.opening import open_profile; "
        "print(list(open_profile(demo.capture()).sql('SELECT count(*) FROM samples')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[(240,)]\n", "")


# -- data frames and notebooks


def test_showing_a_result_takes_no_rows() -> None:
    result = lastbranch.open(demo.capture()).sql("SELECT tid, pid FROM samples ORDER BY time, tid")
    assert repr(result).splitlines()[-1] == "..."
    assert result._repr_html_().count("<tr>") == 11
    assert len(list(result)) == 240
    result.close()
    assert repr(result).splitlines() == ["Result", "tid  pid"]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_result_as_a_data_frame(library: str) -> None:
    pytest.importorskip(library)
    select = "SELECT pid, count(*) AS n FROM samples GROUP BY pid ORDER BY pid"
    result = lastbranch.open(demo.capture()).sql(select)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of what we call, which is no concern of the user
        rows = {
            "pandas": lambda: result.df().to_dict("records"),
            "polars": lambda: result.pl().to_dicts(),
            "pyarrow": lambda: result.arrow().to_pylist(),
        }[library]()
    assert rows == [{"pid": 5001, "n": 120}, {"pid": 5002, "n": 120}]


# -- tables that are read while the query runs


@pytest.mark.parametrize(
    "statement",
    [
        "select * exclude (type, from_function, to_function) from branches",
        "select sample, position, in_tx, mispredicted, cycles from branches limit 3",
        "select time, ip, mode, module, depth from samples where thread is not null",
        "select process, count(*), max(branch_flags) from branches group by all order by all",
    ],
)
def test_what_is_streamed_is_what_is_loaded(small: Profile, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    assert plan_of(statement).streamed
    found = [rows(small, statement) for _ in range(2)]
    monkeypatch.setattr(running, "plan_of", lambda sql: Plan(plan_of(sql).wanted))
    assert found == [rows(small, statement)] * 2
    assert len(found[0]) > 2 or "group by" in statement


def test_rows_that_nobody_takes(small: Profile) -> None:
    """The query may be in the middle of the capture then, in several threads."""
    for number in range(20):
        with query(small, "select * exclude (type, from_function, to_function) from branches") as result:
            assert "branch_from" in repr(result)
            assert len([row for row, _ in zip(result, range(number), strict=False)]) == number


def test_what_goes_wrong_in_reading_is_raised(small: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> Iterator[object]:
        yield from ()
        raise FormatError("was changed while it was read", file="x.data")

    monkeypatch.setattr(SampleStream, "batches", broken)
    with pytest.raises(FormatError, match="was changed"):
        rows(small, "select sum(ip) from samples")


def test_a_stream_that_is_scanned_again_is_read_again(small: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB before 2.0 cannot do that, and gets the table loaded."""
    statement = "select count(*) from branches a join branches b on a.position = b.position + 1 and a.sample = b.sample"
    expected = rows(small, statement)
    assert not plan_of(statement).streamed
    monkeypatch.setattr(running, "plan_of", lambda sql: Plan(plan_of(sql).wanted, frozenset({"branches"})))
    assert rows(small, statement) == expected
