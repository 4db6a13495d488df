"""A store under bad input, several writers at once, and sudden ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import perfdata_writer as pw
from captures import Data
from command_line import Ran
from fleet_faults import add_captures, create_object
from lastbranch.errors import FormatError, UnavailableError
from lastbranch.fleet import TABLES, Labels, Part, Store, capture_file, count_batch, reduce_parts
from lastbranch.fleet.objects import open_objects
from lastbranch.fleet.schema import VERSION, bucket_of
from perfdata_writer import Builder
from small_captures import build
from waiting import until

Run = Callable[..., Ran]


def captures(folder: Path, number: int) -> list[str]:
    """Files with different contents."""
    return [str(build(folder / f"{i:02}.data", name=f"/bin/prog{i}")) for i in range(number)]


def parts_of(store: Path) -> dict[str, bytes]:
    """Name -> bytes of all that the manifest lists."""
    return {name: (store / name).read_bytes() for name in Store(str(store)).state().parts}


def sql(run: Run, store: Path | str, statement: str, *words: str) -> list[list[str]]:
    done = run("fleet", "query", store, statement, "--format", "csv", *words)
    assert done.code == 0, done.err
    return [line.split(",") for line in done.out.splitlines()[1:]]


# -- what is added


def test_a_capture_counts_once(run: Run, tmp_path: Path) -> None:
    (capture,) = captures(tmp_path, 1)
    copy = shutil.copy(capture, tmp_path / "another name")
    store = tmp_path / "store"
    assert run("fleet", "add", store, capture, copy).err == "1 capture added, 1 already counted\n"
    before = parts_of(store)
    assert run("fleet", "add", store, copy, "--service", "other").err == "0 captures added, 1 already counted\n"
    assert parts_of(store) == before
    assert sql(run, store, "SELECT sum(n) FROM counts WHERE kind = 'sample'") == [["30"]]


def test_what_is_damaged_counts_and_what_cannot_be_read_is_listed(run: Run, tmp_path: Path) -> None:
    whole, cut = captures(tmp_path, 2)
    data = Path(cut).read_bytes()
    Path(cut).write_bytes(data[: len(data) // 2])
    (tmp_path / "none").write_bytes(b"")
    store = tmp_path / "store"
    done = run("fleet", "add", store, whole, cut, tmp_path / "none", tmp_path / "gone")
    assert done.code == 1
    assert f"{tmp_path / 'none'}: not counted: " in done.err
    assert f"{tmp_path / 'gone'}: not counted: No such file" in done.err
    assert cut in done.err
    assert done.err.endswith("2 captures added, 2 refused\n")
    rows = sql(run, store, "SELECT file, refused, damage > 0 FROM captures ORDER BY file")
    assert rows == [["00.data", "False", "False"], ["01.data", "False", "True"], ["none", "True", "False"]]
    listed = run("fleet", "list", store).out
    assert "empty" in listed
    # A refused capture is tried again: the next version may be able to read it.
    assert "1 refused" in run("fleet", "add", store, tmp_path / "none").err
    assert sql(run, store, "SELECT count(*) FROM captures WHERE file = 'none'")[0][0] in "12"


def test_a_pause_of_sampling_is_no_loss(run: Run, tmp_path: Path) -> None:
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    b.sample(ip=0x400000, pid=7, tid=7, time=9)
    b.record("LOST", id=0, lost=5)
    for _ in range(3):
        b.record("THROTTLE", time=10, id=0, stream_id=0)
    (capture := tmp_path / "throttled.data").write_bytes(b.build())
    store = tmp_path / "store"
    assert run("fleet", "add", store, capture).code == 0
    (row,) = json.loads(run("fleet", "list", store, "--format", "json").out)
    assert row["lost"] == 5
    assert "paused sampling 3 times" in row["notes"]
    said = run("info", capture).out
    assert re.search(r"^throttled +3 times$", said, re.MULTILINE)
    assert re.findall(r"^lost +(.*)$", said, re.MULTILINE) == ["records: 5"]


def test_folders_are_added_with_all_that_is_in_them(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in" / "deeper").mkdir(parents=True)
    captures(tmp_path / "in" / "deeper", 2)
    build(tmp_path / "in" / "one")
    (tmp_path / "in" / "README").write_text("no capture\n")
    done = run("fleet", "add", tmp_path / "store", tmp_path / "in")
    assert done.code == 0
    assert done.err.endswith("1 capture added\n")
    assert "left out 1 file of no capture format" in done.err
    assert run("fleet", "add", tmp_path / "store", tmp_path / "in" / "**" / "*.data").err == "2 captures added\n"
    assert run("fleet", "add", tmp_path / "store", tmp_path / "in" / "README").code == 1


def test_labels_and_days(run: Run, tmp_path: Path) -> None:
    (capture,) = captures(tmp_path, 1)
    os.utime(capture, (0, 86400 * 365))
    store = tmp_path / "store"
    run("fleet", "add", store, capture, "--service", "a's", "--version", "1\N{SNOWMAN}", "--host", "h")
    assert sql(run, store, "SELECT DISTINCT day, service, version, host FROM counts") == [
        ["1971-01-01", "a's", "1\N{SNOWMAN}", "h"]
    ]
    assert run("fleet", "list", store, "--service", "a's").out.count("00.data") == 1


def test_names_that_are_not_utf8(run: Run, tmp_path: Path) -> None:
    """A file keeps the name that is printed everywhere; what people say must be text."""
    store, capture = tmp_path / "store", build(tmp_path / "\udcfe.data")
    refused = run("fleet", "add", store, capture, "--service", "\udcff")
    assert (refused.code, refused.err) == (2, "error: a name is not UTF-8: \\xff\n")
    assert run("fleet", "add", store, capture).code == 0
    assert sql(run, store, "SELECT file FROM captures") == [[r"\xfe.data"]]
    for words in (["list", "--service", "\udcff"], ["query", "SELECT '\udcff'"]):
        ran = run("fleet", words[0], store, *words[1:])
        assert (ran.code, "is not UTF-8" in ran.err) == (2, True), ran.err


# -- anybody can read it


def test_parquet_is_what_is_declared(run: Run, tmp_path: Path) -> None:
    """Read by pyarrow alone."""
    store = tmp_path / "store"
    run("fleet", "add", store, *captures(tmp_path, 3))
    kinds = {"VARCHAR": pa.string(), "UBIGINT": pa.uint64(), "TIMESTAMP": pa.timestamp("us"), "BOOLEAN": pa.bool_()}
    for name, table in TABLES.items():
        for path in (store / name).rglob("*.parquet"):
            schema = pq.read_schema(path)
            assert dict(zip(schema.names, schema.types, strict=True)) == {c.name: kinds[c.type] for c in table.columns}
            assert schema.metadata[b"lastbranch_fleet"] == str(VERSION).encode()
    counts = pa.concat_tables(pq.read_table(p, partitioning=None) for p in (store / "counts").rglob("*.parquet"))
    rows = counts.to_pylist()
    assert sum(row["n"] for row in rows if row["kind"] == "sample") == 90
    assert sum(row["n"] for row in rows if row["kind"] == "branch") == 180
    for row in rows:
        assert row["other_module"] is not None or row["other_address"] == 0 or row["kind"] == "range"
    for path in (store / "counts").rglob("*.parquet"):
        modules = pq.read_table(path, partitioning=None)["module"].to_pylist()
        assert {f"bucket={bucket_of(module):02}" for module in modules} == {path.parent.name}
        assert modules == sorted(modules)


def test_queries_read_the_store_and_nothing_else(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    run("fleet", "add", store, *captures(tmp_path, 1))
    (tmp_path / "x.csv").write_text("1\n")
    for statement in (
        f"SELECT * FROM '{tmp_path / 'x.csv'}', counts",
        f"COPY (SELECT 1) TO '{tmp_path / 'y'}'",
        "SELECT 1; SELECT 2",
        "SELECT * FROM nothing",
        "SELECT getenv('HOME') FROM captures",
        "SET threads = 3",
        "",
    ):
        done = run("fleet", "query", store, statement)
        assert done.code in (2, 5), statement
        assert done.err.startswith("error: ")
    assert not (tmp_path / "y").exists()
    assert sql(run, store, "SELECT count(*) FROM modules") == [["2"]]


# -- sums


def test_a_sum_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "store" / "counts" / "day=2026-01-01" / "bucket=00").mkdir(parents=True)
    store, found = str(tmp_path / "store"), []
    for number, n in enumerate((2**63, 2**63 - 1, 1)):
        row = {c.name: n if c.name == "n" else 0 if c.type == "UBIGINT" else "x" for c in TABLES["counts"].columns}
        schema = pa.schema(
            [(c.name, pa.uint64() if c.type == "UBIGINT" else pa.string()) for c in TABLES["counts"].columns]
        )
        name = f"counts/day=2026-01-01/bucket=00/{number:032x}.parquet"
        pq.write_table(pa.Table.from_pylist([row], schema), tmp_path / "store" / name)
        found.append(Part(name, 1, 0, ""))
    most = reduce_parts(store, found[:2])
    assert pq.read_table(tmp_path / "store" / most.name, partitioning=None)["n"].to_pylist() == [2**64 - 1]
    with pytest.raises(FormatError, match="64 bits"):
        reduce_parts(store, found)


def test_a_weight_that_makes_too_much_is_an_error(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    run("fleet", "add", store, *captures(tmp_path, 1), "--service", "a")
    row = next(iter((store / "counts").rglob("*.parquet")))
    table = pq.read_table(row, partitioning=None)
    large = table.set_column(table.schema.get_field_index("n"), "n", pa.array([2**62] * len(table), pa.uint64()))
    pq.write_table(large, row)
    done = run("fleet", "export", store, "--to", "counts", "--weight", "a=2")
    assert done.code == 3
    assert "64 bits" in done.err


# -- merging, removing, checking


def test_compact_changes_no_answer(run: Run, tmp_path: Path) -> None:
    store, files = tmp_path / "store", captures(tmp_path, 6)
    for file in files:
        run("fleet", "add", store, file)
    statement = "SELECT * FROM counts ORDER BY ALL"
    keys, sums = ", ".join(TABLES["counts"].keys), ", ".join(f"sum({name})" for name in TABLES["counts"].sums)
    sorted_sums = sql(run, store, f"SELECT day, {keys}, {sums} FROM counts GROUP BY ALL ORDER BY ALL")
    captures_before = sql(run, store, "SELECT * FROM captures ORDER BY ALL")
    done = run("fleet", "compact", store, "--keep", "0")
    assert done.code == 0
    assert int(done.err.split()[0]) >= 12
    assert sql(run, store, "SELECT * FROM counts ORDER BY ALL") == sorted_sums
    assert sql(run, store, "SELECT * FROM captures ORDER BY ALL") == captures_before
    again = sql(run, store, statement)
    assert run("fleet", "compact", store, "--keep", "0").err == "0 parts merged\n"
    assert sql(run, store, statement) == again
    assert sorted(p.name for p in store.rglob("*.parquet")) == sorted(n.rpartition("/")[2] for n in parts_of(store))
    assert len({Path(name).parent for name in parts_of(store)}) == len(parts_of(store))
    assert not list((store / "done").iterdir())
    assert run("fleet", "add", store, *files).err == "0 captures added, 6 already counted\n"


def test_parts_that_somebody_may_read_are_kept(run: Run, tmp_path: Path) -> None:
    store, files = tmp_path / "store", captures(tmp_path, 3)
    for file in files:
        run("fleet", "add", store, file)
    with Store(str(store)).reading() as reading:
        assert run("fleet", "compact", store).code == 0
        assert reading.rows(f"SELECT sum(n) FROM {reading.relation('counts')} WHERE kind = 'sample'") == [(90,)]
    assert len(list(store.rglob("*.parquet"))) > len(parts_of(store))
    run("fleet", "compact", store, "--keep", "0")
    assert len(list(store.rglob("*.parquet"))) == len(parts_of(store))


def test_expired_days_go_and_can_be_added_again(run: Run, tmp_path: Path) -> None:
    store, files = tmp_path / "store", captures(tmp_path, 3)
    for day, file in enumerate(files):
        run("fleet", "add", store, file, "--time", f"2026-01-0{day + 1}")
    assert run("fleet", "expire", store, "--before", "2026-01-03", "--keep", "0").code == 0
    assert sql(run, store, "SELECT DISTINCT day FROM captures") == [["2026-01-03"]]
    assert {part.parent.parent.name for part in store.rglob("bucket*/*.parquet")} == {"day=2026-01-03"}
    assert run("fleet", "add", store, files[0], "--time", "2026-01-01").err == "1 capture added\n"
    assert run("fleet", "verify", store).code == 0
    assert run("fleet", "expire", store, "--before", "1d", "--keep", "0").code == 0
    assert sql(run, store, "SELECT count(*) FROM counts") == [["0"]]
    assert run("fleet", "expire", store, "--before", "soon").code == 2


def test_verify_names_what_is_wrong(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    run("fleet", "add", store, *captures(tmp_path, 3))
    assert run("fleet", "verify", store).code == 0
    gone, longer, other, *_ = (store / name for name in parts_of(store))
    foreign = store / "counts" / "theirs.parquet"
    shutil.copy(other, foreign)
    gone.unlink()
    longer.write_bytes(longer.read_bytes() + b"x")
    data = bytearray(other.read_bytes())
    data[len(data) // 2] ^= 1
    other.write_bytes(data)
    done = run("fleet", "verify", store)
    assert done.code == 1
    for path, reason in ((gone, "missing"), (longer, "bytes instead of"), (other, "not those that were written")):
        assert any(str(path.relative_to(store)) in line and reason in line for line in done.err.splitlines())
    assert "note: counts/theirs.parquet: not of the store" in done.err
    run("fleet", "compact", store, "--keep", "0")
    assert foreign.exists()


def test_a_store_that_is_none_newer_or_damaged(run: Run, tmp_path: Path) -> None:
    for verb in (["list"], ["verify"], ["compact"], ["query", "SELECT 1"]):
        assert run("fleet", verb[0], tmp_path / "none", *verb[1:]).code == 5
    store = tmp_path / "store"
    run("fleet", "add", store, *captures(tmp_path, 1))
    newest = max((store / "manifest").iterdir())
    commit = json.loads(newest.read_text())
    newest.write_text(json.dumps(commit | {"version": VERSION + 1}))
    done = run("fleet", "list", store)
    assert done.code == 3
    assert f"version = {VERSION + 1}" in done.err
    for text in ("", "[]", "{}", json.dumps(commit | {"add": [{}]}), json.dumps(commit | {"number": "x"})):
        newest.write_text(text)
        done = run("fleet", "list", store)
        assert done.code == 3, text
        assert newest.name in done.err


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File too large"):
        _limited(lambda: open_objects(str(tmp_path / "store")).put("counts/x", b"x" * 10_000))
    assert not (tmp_path / "store" / "counts" / "x").exists()
    assert not list(tmp_path.rglob("*.part-*"))


def _limited(work: Callable[[], None]) -> None:
    import resource

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
    try:
        work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


# -- several writers


@pytest.fixture(scope="module")
def writers():
    with get_context("spawn").Pool(8) as pool:
        yield pool


def test_one_of_eight_writers_creates_an_object(writers, tmp_path: Path) -> None:
    for round_ in range(5):
        name = f"manifest/{round_}"
        won = writers.starmap(create_object, [(str(tmp_path), name, i) for i in range(8)], 1)
        assert sum(won) == 1
        assert (tmp_path / name).read_bytes() == f"{won.index(True)}".encode() * 1000


def test_eight_writers_lose_nothing_and_count_nothing_twice(writers, tmp_path: Path) -> None:
    """Each adds captures of its own, and some that its neighbours add at the same time."""
    files, store = captures(tmp_path, 24), str(tmp_path / "store")
    done = writers.starmap(add_captures, [(store, [files[(3 * i + j) % 24] for j in range(5)]) for i in range(8)], 1)
    assert sum(captures for captures, _ in done) == 24
    assert sum(known for _, known in done) == 16
    alone = str(tmp_path / "alone")
    add_captures(alone, files)
    assert _answers(store) == _answers(alone)


def _answers(store: str) -> list[tuple[object, ...]]:
    with Store(store).reading() as reading:
        digests = reading.rows(f"SELECT digest, count(*) FROM {reading.relation('captures')} GROUP BY ALL ORDER BY ALL")
        columns = ", ".join(f"sum({name})" for name in TABLES["counts"].sums)
        keys = ", ".join(TABLES["counts"].keys)
        counts = reading.relation("counts")
        return digests + reading.rows(f"SELECT {keys}, {columns} FROM {counts} GROUP BY {keys} ORDER BY ALL")


# -- sudden ends


@pytest.mark.thorough
def test_a_killed_writer_is_finished_by_the_same_call(data: Data, tmp_path: Path) -> None:
    """Killed after any file, it leaves a store as it was; run again, the parts have the bytes of a run in peace."""
    files = [*captures(tmp_path, 20), str(data.path("demo_pie")), str(data.path("skx_6154_32deep_pie"))]
    peace, store = tmp_path / "peace", tmp_path / "store"
    command = [sys.executable, "-m", "lastbranch", "fleet", "add"]
    subprocess.run([*command, peace, *files], check=True, capture_output=True)
    kills = 0
    (scratch := tmp_path / "scratch").mkdir()  # what killed processes leave there
    for more in (1, 4, 12, 24):
        enough = more + len(list(store.rglob("*")))
        process = subprocess.Popen(
            [*command, store, *files], stderr=subprocess.PIPE, env=os.environ | {"TMPDIR": str(scratch)}
        )
        until(lambda p=process, n=enough: p.poll() is not None or len(list(store.rglob("*"))) >= n)
        process.kill()
        process.communicate()
        if process.returncode == 0:
            break
        kills += 1
        if list(store.glob("manifest/*.json")):
            assert not Store(str(store)).state().parts or parts_of(store) == parts_of(peace)
    assert kills
    environment = os.environ | {"TMPDIR": str(scratch)}
    subprocess.run([*command, store, *files], check=True, capture_output=True, env=environment)
    assert list(scratch.iterdir()) == []
    assert parts_of(store) == parts_of(peace)
    Store(str(store)).compact(0)
    Store(str(peace)).compact(0)
    assert parts_of(store) == parts_of(peace)
    assert not list(store.rglob("*.part-*"))
    assert Store(str(store)).verify().foreign == []


def test_finished_work_is_not_done_again(tmp_path: Path) -> None:
    files, store = captures(tmp_path, 3), Store(str(tmp_path / "store"))

    def failing(function, arguments):
        yield from map(function, arguments)
        if arguments and len(arguments[0]) == 2 and isinstance(arguments[0][1], list):
            raise UnavailableError("the power is gone")

    with pytest.raises(UnavailableError):
        Store(store.url, failing).add(files)
    assert not store.state().parts
    written = {path: path.stat().st_mtime_ns for path in Path(store.url).rglob("*.parquet")}
    assert written
    assert store.add(files).captures == 3
    assert {path: path.stat().st_mtime_ns for path in Path(store.url).rglob("*.parquet")} == written


# -- a bucket


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory):
    """The address of a bucket in a server of this machine."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'lastbranch[fleet]'")
    server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[server]'")
    import obstore
    from obstore.store import S3Store

    log = tmp_path_factory.mktemp("moto")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(log)
        running.start()
        host, port = running.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            patch.setenv(name, value)
        import urllib.request

        request = urllib.request.Request(f"http://{host}:{port}/profiles", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        assert obstore.list(S3Store("profiles", client_options={"allow_http": True})) is not None
        yield "s3://profiles/counts"
        running.stop()


def test_a_bucket_holds_what_a_folder_holds(run: Run, bucket: str, tmp_path: Path) -> None:
    files = captures(tmp_path, 4)
    for url in (bucket, str(tmp_path / "store")):
        assert run("fleet", "add", url, *files[:2]).code == 0
        assert run("fleet", "add", url, *files).err == "2 captures added, 2 already counted\n"
    assert _answers(bucket) == _answers(str(tmp_path / "store"))
    for verb in (["compact", "--keep", "0"], ["verify"], ["list", "--by", "module"], ["export", "--to", "counts"]):
        there, here = (run("fleet", verb[0], url, *verb[1:]) for url in (bucket, tmp_path / "store"))
        assert (there.code, there.out, there.err) == (here.code, here.out, here.err)
    assert sql(run, bucket, "SELECT sum(n) FROM counts WHERE kind = 'sample'") == [["120"]]


def test_parts_that_were_counted_elsewhere_come_into_a_bucket_once(run: Run, bucket: str, tmp_path: Path) -> None:
    (capture,) = captures(tmp_path, 1)
    parts = count_batch(str(tmp_path / "spool"), [capture_file(capture, Labels("a"))])
    store = Store(f"{bucket}/agent")
    assert [store.adopt(str(tmp_path / "spool"), parts) for _ in range(2)] == [True, False]
    assert sql(run, store.url, "SELECT sum(n) FROM counts WHERE kind = 'sample'") == [["30"]]


def test_one_of_eight_creates_an_object_in_a_bucket(bucket: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: create_object(bucket, "manifest/race", i), range(8)))
    assert sum(won) == 1
    open_objects(bucket).delete(["manifest/race"])


def test_a_bucket_that_is_not_there_is_said(run: Run, bucket: str) -> None:
    done = run("fleet", "list", bucket.replace("profiles", "others"))
    assert done.code == 5
    assert done.err.startswith("error: s3://others/counts: ")
    assert run("fleet", "list", "ftp://x/y").code == 5
