"""The command line: every verb in every form, filters, exit codes, messages, and what it does not do."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lastbranch
import perfdata_writer as pw
from conftest import Data, Ran
from lastbranch.cli import VERBS
from perfdata_writer import Builder

Run = Callable[..., Ran]
TABLES = (["info"], ["report"], ["report", "--by", "thread"], ["report", "--by", "module"], ["branches"])
READING = (*TABLES, ["verify"], ["export", "--to", "counts"], ["export", "--to", "brstack"])


SAMPLE_BYTES = 8 + 5 * 8 + 2 * 24


def build(path: Path, *, name: str = "/bin/prog", stacks: bool = True, **attr: int) -> Path:
    """Two processes, one mapped; 30 samples a microsecond apart, which tell their number in their address."""
    kinds = pw.IP | pw.TID | pw.TIME | pw.PERIOD | (pw.BRANCH_STACK if stacks else 0)
    b = Builder(**{"sample_type": kinds, **attr})
    b.comm(pid=7, name="prog", time=1, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x10000, pgoff=0, name=name, time=2)
    b.mmap2(pid=7, addr=0x600000, length=0x10000, pgoff=0, name="/lib/other.so", time=2)
    for i in range(30):
        entries = [(0x400100 + 16 * (i % 3), 0x600200, 2 | 5 << 4), (0x600300, 0x400090, 1)]
        values = {"branches": entries} if stacks else {}
        b.sample(ip=0x400000 + i, pid=7 + i % 2, tid=7 + i % 5, time=1000 * (i + 1), period=100, **values)
    path.write_bytes(b.build())
    return path


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return build(tmp_path / "some capture.data")


def parsed(ran: Ran, form: str) -> list[dict[str, str]]:
    """Rows as text by column."""
    if form == "csv":
        return list(csv.DictReader(io.StringIO(ran.out)))
    return [{k: "" if v is None else str(v) for k, v in row.items()} for row in json.loads(ran.out)]


@pytest.mark.parametrize("verb", [*TABLES, ["verify"]], ids=" ".join)
@pytest.mark.parametrize("name", ["demo_features", "snb_callchain_and_branch-3.4"])
def test_every_form_of_a_table_says_the_same(verb: list[str], name: str, data: Data, run: Run) -> None:
    ran = {form: run(*verb, "--format", form, data.path(name)) for form in ("json", "csv", "table")}
    assert {r.code for r in ran.values()} == {0}
    rows = parsed(ran["json"], "json")
    assert rows == parsed(ran["csv"], "csv")
    if verb == ["verify"]:
        assert rows == []
        return
    assert rows
    lines = ran["table"].out.splitlines()
    shown = rows if verb == ["info"] else rows[:20]
    assert len(lines) == 1 + len(shown)
    assert lines[0].split() == " ".join(rows[0]).split()
    for line, row in zip(lines[1:], shown, strict=True):
        words = iter(line.split())
        for value in " ".join(row.values()).split():
            word = next(words)
            assert word == value or float(word) == pytest.approx(float(value), abs=0.005)
    assert "\x1b" not in ran["table"].out


def test_limit(data: Data, run: Run) -> None:
    path = data.path("demo_features")
    every = parsed(run("branches", "--format", "json", path), "json")
    assert len(every) > 100
    assert parsed(run("branches", "--format", "json", "--limit", "0", path), "json") == every
    assert parsed(run("branches", "--format", "csv", "--limit", "7", path), "csv") == every[:7]
    assert len(run("branches", "--limit", "0", path).out.splitlines()) == 1 + len(every)
    assert len(run("branches", path).out.splitlines()) == 21
    assert run("branches", "--limit", "-1", path).code == 2
    counts = [int(row["count"]) for row in every]
    assert counts == sorted(counts, reverse=True)


def samples(run: Run, path: Path, *options: str) -> list[int]:
    """The numbers of the samples that `export --to brstack` prints."""
    ran = run("export", "--to", "brstack", *options, path)
    assert ran.code == 0, ran.err
    return [int(line.split()[0], 16) - 0x400000 for line in ran.out.splitlines()]


FILTERS: dict[str, Callable[[int], bool]] = {
    "": lambda i: True,
    "--pid 7": lambda i: i % 2 == 0,
    "--pid 7 --pid 8": lambda i: True,
    "--pid 99": lambda i: False,
    "--tid 9": lambda i: i % 5 == 2,
    "--pid 8 --tid 9": lambda i: i % 2 == 1 and i % 5 == 2,
    "--event 0": lambda i: True,
    "--event cycles": lambda i: True,
    "--time 0..0.000003": lambda i: i < 3,
    "--time 0.000003..": lambda i: i >= 3,
    "--time ..0.000004": lambda i: i <= 3,
    "--time 0.000001..0.000002": lambda i: i == 1,
    "--time 1e-6..2e-6": lambda i: i == 1,
    "--module prog": lambda i: i % 2 == 0,
    "--module /bin/prog": lambda i: i % 2 == 0,
    "--module /bin/*": lambda i: i % 2 == 0,
    "--module other.so": lambda i: False,
    "--module prog --time ..0.000003": lambda i: i in (0, 2),
}


@pytest.mark.parametrize("options", FILTERS)
def test_filters(options: str, capture: Path, run: Run) -> None:
    words = options.split()
    wanted = [i for i in range(30) if FILTERS[options](i)]
    assert samples(run, capture, *words) == wanted
    report = parsed(run("report", "--format", "json", *words, capture), "json")
    assert sum(int(row["samples"]) for row in report) == len(wanted)
    assert sum(int(row["period"]) for row in report) == 100 * len(wanted)
    if "--module" not in options:
        rows = parsed(run("branches", "--format", "json", *words, capture), "json")
        assert sum(int(row["count"]) for row in rows) == 2 * len(wanted)
        lines = run("export", "--to", "counts", *words, capture).out.splitlines()
        assert sum(int(x.split()[5]) for x in lines if x[0] == "B") == 2 * len(wanted)


def test_a_module_filter_keeps_branches_with_an_end_in_it(capture: Path, run: Run) -> None:
    every = parsed(run("branches", "--format", "json", capture), "json")
    mine = parsed(run("branches", "--format", "json", "--module", "other.so", capture), "json")
    assert [r["from"] for r in mine] == [r["from"] for r in every if "other.so" in r["from"] + r["to"]]
    assert len(mine) < len(every), "process 8 has no such module"


WRONG = (
    ("--event", "nonsense"), ("--event", "1"), ("--event", "²"), ("--module", "nonsense"), ("--time", "3"),
    ("--time", "2..1"), ("--time", "a..b"), ("--time", "nan..1"), ("--time", "..inf"), ("--time", "-inf..1"), ("--pid", "x"),
    ("--format", "xml"), ("--limit", "x"), ("--nonsense",),
)  # fmt: skip


@pytest.mark.parametrize("options", WRONG, ids=" ".join)
def test_options_that_make_no_sense(options: tuple[str, ...], capture: Path, run: Run) -> None:
    ran = run("report", *options, capture)
    assert (ran.code, ran.raw) == (2, b"")
    assert "Error: " in ran.err
    assert options[0] in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("args", [["nonsense"], ["export", "x"], ["export", "--to", "xml", "x"], ["info"]])
def test_usage(args: list[str], run: Run) -> None:
    assert run(*args).code == 2


# -- files that cannot be read, or lack what is asked for


@pytest.mark.parametrize("verb", READING, ids=" ".join)
def test_unreadable_files(verb: list[str], tmp_path: Path, run: Run) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("no capture at all")
    (tmp_path / "head").write_bytes(Builder().build()[:90])
    (tmp_path / "folder").mkdir()
    expected = {
        "empty": "offset 0x0",
        "text": "b'no captu'",
        "head": "offset",
        "folder": "directory",
        "none": "No such",
    }
    for name, said in expected.items():
        ran = run(*verb, tmp_path / name)
        assert (ran.code, ran.raw) == (3, b"")
        assert ran.err.startswith(f"error: {tmp_path / name}")
        assert said in ran.err
        assert "Traceback" not in ran.err


@pytest.mark.parametrize("verb", READING, ids=" ".join)
def test_damaged_files_are_delivered_and_named(verb: list[str], capture: Path, run: Run) -> None:
    whole = capture.read_bytes()
    capture.write_bytes(whole[:-100])
    ran = run(*verb, capture)
    assert ran.code == 1
    assert ran.raw
    if verb == ["verify"]:
        assert "28 samples" in ran.err
    else:
        assert f"warning: {capture}: data section is cut short (at offset 0x30, data.size = " in ran.err
        place = hex(len(whole) - 2 * SAMPLE_BYTES)
        assert f"warning: {capture}: file ends inside a record (at offset {place}, size = 0x60) (" in ran.err
    assert "Traceback" not in ran.err


def test_verify_lists_places(capture: Path, run: Run) -> None:
    whole = capture.read_bytes()
    capture.write_bytes(whole[:-100])
    ran = run("verify", "--format", "json", capture)
    first, second = json.loads(ran.out)
    assert (first["offset"], first["field"]) == (0x30, "data.size")
    assert (second["offset"], second["field"], second["value"]) == (len(whole) - 2 * SAMPLE_BYTES, "size", "96")
    assert run("verify", "--format", "json", capture).code == 1


def test_no_branch_stacks(tmp_path: Path, run: Run) -> None:
    path = build(tmp_path / "plain.data", stacks=False)
    for verb in (["branches"], ["export", "--to", "counts"], ["export", "--to", "brstack"]):
        ran = run(*verb, path)
        assert (ran.code, ran.raw) == (4, b"")
        assert "no branch stacks" in ran.err
        assert "hint:" in ran.err
        assert "perf record -b" in ran.err
    assert run("report", path).code == run("info", path).code == run("verify", path).code == 0


def test_call_stack_mode_has_branches_but_no_ranges(data: Data, run: Run) -> None:
    path = data.path("cfl_9700_callgraph_lbr")
    ran = run("export", "--to", "counts", path)
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert lines
    assert all(line.startswith("B ") for line in lines)
    assert sum(int(line.split()[5]) for line in lines) == 69
    assert "no R lines" in ran.err
    assert "call-stack mode" in ran.err
    with pytest.raises(lastbranch.NotRecordedError, match="call-stack mode"):
        lastbranch.ranges(lastbranch.open(path))
    assert run("branches", path).code == 0


@pytest.mark.parametrize(("select", "said"), [(1 | 1 << 4, "any_call"), (1 << 3 | 1 << 8, "in_tx"), (1 << 10, "cond")])
def test_filtered_branches_have_no_ranges(select: int, said: str, tmp_path: Path, run: Run) -> None:
    ran = run("export", "--to", "counts", build(tmp_path / "x.data", branch_sample_type=select))
    assert ran.code == 0
    assert "R " not in ran.out
    assert said in ran.err


def test_binaries_that_are_missing_are_named(data: Data, run: Run, symfs: Callable[[str], Path]) -> None:
    path = data.path("demo_pie")
    ran = run("export", "--to", "counts", path)
    info = {row["what"]: row["value"] for row in parsed(run("info", "--format", "json", path), "json")}
    for name in ("/opt/lbrdemo/lbrdemo", "/opt/lbrdemo/liblbrdemo.so"):
        assert f"note: {name}: offsets, binary not found" in ran.err
        assert "binary not found" in info[f"module {name}"]
    other = symfs("lldlayout/demo_pie")
    ran = run("export", "--to", "counts", "--symfs", other, path)
    assert "/opt/lbrdemo/lbrdemo: offsets, binary build id differs" in ran.err
    rows = parsed(run("info", "--format", "json", "--symfs", symfs("demo_pie"), path), "json")
    info = {row["what"]: row["value"] for row in rows}
    assert info["module /opt/lbrdemo/lbrdemo"].endswith("symfs/demo_pie/opt/lbrdemo/lbrdemo")
    assert "/opt/lbrdemo" not in run("export", "--to", "counts", "--symfs", symfs("demo_pie"), path).err


# -- where output goes


def test_output_to_a_file(capture: Path, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    out.write_text("before")
    ran = run("export", "--to", "brstack", "-o", out, capture)
    assert (ran.code, ran.raw) == (0, b"")
    assert out.read_bytes() == run("export", "--to", "brstack", capture).raw
    plain = build(tmp_path / "plain.data", stacks=False)
    kept = out.read_bytes()
    for bad, code in ((plain, 4), (tmp_path / "none", 3)):
        assert run("export", "--to", "brstack", "-o", out, bad).code == code
        assert out.read_bytes() == kept
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.txt", "plain.data", "some capture.data"]
    ran = run("export", "--to", "counts", "-o", tmp_path / "no" / "where", capture)
    assert ran.code == 3
    assert "Traceback" not in ran.err


def test_a_reader_that_has_seen_enough(data: Data, capture: Path) -> None:
    """``| head -1`` ends with code 0 and without a word, whether the output is long or short."""
    if sys.platform == "win32":
        pytest.skip("no closed pipes as standard output there")
    for verb in (["info"], ["branches", "--limit", "0", "--format", "csv"], ["export", "--to", "brstack"]):
        for path in (capture, data.path("demo_pie")):
            read, write = os.pipe()
            os.close(read)
            command = [sys.executable, "-m", "lastbranch", *verb, str(path)]
            done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
            os.close(write)
            said = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
            assert (done.returncode, said) == (0, []), verb


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_names_that_the_output_cannot_hold(encoding: str, tmp_path: Path, run: Run) -> None:
    """No name out of a capture may stop the output, nor reach a terminal as an escape sequence."""
    path = build(tmp_path / "x.data", name="/bin/é \x1b[31m日本\udcff")
    for verb in (["branches"], ["report", "--by", "module", "--format", "csv"]):
        ran = run(*verb, path, alone=True, env={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
        assert ran.code == 0, ran.err
        assert b"\x1b" not in ran.raw
        assert "Traceback" not in ran.err
        assert rb"\xff" in ran.raw


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_no_colour_where_it_is_not_wanted(env: dict[str, str], capture: Path) -> None:
    """On a terminal: text, and no escape sequence that sets a colour."""
    pty = pytest.importorskip("pty")
    main, side = pty.openpty()
    command = [sys.executable, "-m", "lastbranch", "report", "--no-progress", str(capture)]
    done = subprocess.run(command, stdout=side, stderr=subprocess.PIPE, timeout=60, env={**os.environ, **env})
    os.close(side)
    said = os.read(main, 1 << 16)
    os.close(main)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"prog" in said
    assert not re.search(rb"\x1b\[[0-9;]*(3|4|9|10)[0-9]", said)


@pytest.mark.parametrize("to", ["file", "terminal"])
@pytest.mark.parametrize("verb", ["branches", "report --by module", "info --format csv", "export --to counts", "dump"])
def test_progress_stays_out_of_the_output(verb: str, to: str, capture: Path, tmp_path: Path) -> None:
    """Standard error is a terminal, so there are bars; what is printed is as without them, and no line is cut."""
    pty = pytest.importorskip("pty")
    command = [sys.executable, "-m", "lastbranch", *verb.split(), str(capture)]
    plain = subprocess.run([*command, "--no-progress"], capture_output=True, timeout=60).stdout
    main, side = pty.openpty()
    if to == "file":
        with (tmp_path / "out").open("wb") as out:
            done = subprocess.run(command, stdout=out, stderr=side, timeout=60)
        assert (tmp_path / "out").read_bytes() == plain
    else:
        with subprocess.Popen(command, stdout=side, stderr=side) as done:
            shown = b""
            while done.poll() is None or select.select([main], [], [], 0)[0]:
                shown += os.read(main, 1 << 16) if select.select([main], [], [], 0.1)[0] else b""
        lines = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]|\r", b"", shown).splitlines()
        assert set(plain.splitlines()) <= set(lines)
    os.close(side)
    os.close(main)
    assert done.returncode == 0


# -- help


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb(verb: str, run: Run) -> None:
    ran = run(verb, "--help")
    assert ran.code == 0
    assert re.search(r"FILE|IN\.\.\.|COMMAND", ran.out) or verb == "doctor"  # that one is about the machine
    assert len(ran.out.split("Options:")[0].split()) > 10, "says what it does"
    assert run(verb, "-h").out == ran.out


def test_help_and_version(run: Run) -> None:
    ran = run("--help")
    assert ran.code == 0
    assert all(f"\n  {verb} " in ran.out for verb in VERBS)
    assert run("--version").out.split() == ["lastbranch,", "version", lastbranch.__version__]


def imported(*args: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-m", "lastbranch", *args]
    done: Any = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize("args", [["--help"], ["info", "--help"]], ids=" ".join)
def test_help_imports_little(args: list[str]) -> None:
    names = imported(*args)
    assert "click" in names
    assert not {"numpy", "rich", "zstandard", "lastbranch.model", "lastbranch.opening"} & names
