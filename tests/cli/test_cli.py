"""The command line: every verb in every form, filters, exit codes, messages, and what it does not do."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import re
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

import lastbranch
import perfdata_writer as pw
from captures import Data
from command_line import Ran, in_terminal
from lastbranch.cli import VERBS
from lastbranch.errors import FormatError
from lastbranch.opening import open_source
from perfdata_writer import Builder
from small_captures import build

Run = Callable[..., Ran]
TABLES = (
    ["info"],
    ["report", "--by", "process"],
    ["report", "--by", "thread"],
    ["report", "--by", "module"],
    ["branches"],
)
READING = (*TABLES, ["verify"], ["export", "--to", "counts"], ["export", "--to", "brstack"])


ONE_CAPTURE = [
    words.split()
    for words in (
        "info FILE",
        "report FILE",
        "branches FILE",
        "annotate FILE main",
        "callers FILE main",
        "callees FILE main",
        "stacks FILE",
        "query FILE select(1)",
        "diff FILE FILE",
        "export --to counts FILE",
        "convert FILE out.tb5",
        "convert FILE out.etl",
        "convert FILE FILE out.etl",
        "dump FILE",
        "consume FILE",
        "check FILE",
        "verify FILE",
        "bind FILE",
        "unbind FILE",
        "compact FILE",
        "view --no-open FILE",
    )
]
"""Each verb that reads captures, at its shortest."""


SAMPLE_BYTES = 8 + 5 * 8 + 2 * 24


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
    if verb == ["info"]:
        return  # `test_info_says_the_same_in_every_form`
    rows = parsed(ran["json"], "json")
    assert rows == parsed(ran["csv"], "csv")
    if verb == ["verify"]:
        assert rows == []
        return
    assert rows
    lines = ran["table"].out.splitlines()
    shown = rows[:20]
    assert len(lines) == 1 + len(shown)
    # Columns for programs alone, and in the table those without a value, are left out.
    names = [n for n in rows[0] if n not in FOR_PROGRAMS and any(row[n] for row in shown)]
    last = [n for n in NAMES if n in names]  # of people's tables alone
    names = [n for n in names if n not in last] + last
    shown_as = " ".join(names)
    for written, titled in TITLED.items():
        shown_as = shown_as.replace(written, titled)
    assert lines[0].split() == shown_as.split()
    for line, row in zip(lines[1:], shown, strict=True):
        words = iter(line.split())
        for value in " ".join(row[n] for n in names).split():
            word = next(words)
            assert word == value or float(word) == pytest.approx(float(value), abs=0.005)
    assert "\x1b" not in ran["table"].out


NAMES = ("event", "pid", "tid", "process", "thread", "from", "to", "from_function", "to_function", "module")
TITLED = {"_percent": " %", "share_of_": "share of ", "branch_": "branch ", "_function": " function"}
"""Key of a column -> its title in tables for people."""
FOR_PROGRAMS = ("from_module", "from_address", "to_module", "to_address")


def leaves(value: Any, key: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for name, part in parts for leaf in leaves(part, f"{key}.{name}".lstrip("."))]
    return [(key, "" if value is None else str(value))]


@pytest.mark.parametrize("name", ["demo_features", "cfl_9700_callgraph_lbr", "snb_callchain_and_branch-3.4"])
def test_info_says_the_same_in_every_form(name: str, data: Data, run: Run) -> None:
    told = json.loads(run("info", "--format", "json", data.path(name)).out)
    lines = list(csv.reader(io.StringIO(run("info", "--format", "csv", data.path(name)).out)))
    assert lines == [["key", "value"], *map(list, leaves(told))]
    profile = lastbranch.open(data.path(name))
    numbers = [told[k] for k in ("samples", "branch_entries", "deepest_stack", "processes", "threads")]
    tables = len(profile.processes), len(profile.threads)
    assert numbers == [profile.samples, profile.entries, profile.deepest, *tables]
    assert told["records"] == profile.records
    assert [(m["name"], m["kind"], m["build_id"] or "") for m in told["modules"]] == [
        (m.name, m.kind.value, m.build_id.hex()) for m in profile.modules
    ]
    assert sum(s["samples"] for s in told["streams"]) == profile.samples
    assert profile.first_time is not None
    assert profile.last_time is not None
    assert told["time"]["span_ns"] == profile.last_time - profile.first_time
    table = run("info", "--limit", "0", data.path(name)).out
    words = {*table.split(), *re.split(r"[\s-]+", table)}  # addresses are FIRST-END
    in_both = ("file", "recorder", "samples", "branch_entries", "records", "modules")
    for _, value in leaves({k: told[k] for k in in_both}):
        assert set(value.split()) <= words, value
    assert max(len(line.partition("  ")[0]) for line in table.partition("\n\n")[0].splitlines()) < 25


def test_every_key_of_info_is_documented(data: Data, run: Run) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "info.md").read_text()
    documented = set(re.findall(r"`(\w+)`", page))
    told = json.loads(run("info", "--format", "json", data.path("demo_features")).out)
    parts = [told, *(told[k] for k in ("machine", "clock", "time"))]
    parts += [told[k][0] for k in ("events", "streams", "modules")]
    assert {key for part in parts for key in part} <= documented


def test_info_prints_so_many_modules(tmp_path: Path, run: Run) -> None:
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    for i in range(30):
        b.mmap2(pid=7, addr=0x10000 * (i + 1), length=0x1000, pgoff=0, name=f"/lib/lib{i}.so", time=i)
    (tmp_path / "x.data").write_bytes(b.build())
    for limit, shown, last in ((None, 20, "10 more modules"), ("3", 3, "27 more modules"), ("0", 30, "/lib/lib29.so")):
        lines = run("info", *(["--limit", limit] if limit else []), tmp_path / "x.data").out.splitlines()
        assert sum(" /lib/" in line for line in lines) == shown
        assert last in lines[-1]
    assert len(json.loads(run("info", "--format", "json", tmp_path / "x.data").out)["modules"]) == 30


def test_programs_get_paths_and_addresses(capture: Path, run: Run) -> None:
    every = parsed(run("branches", "--format", "json", capture), "json")
    (row,) = (r for r in every if r["from"] == "prog+0x100")
    assert (row["from_module"], row["from_address"]) == ("/bin/prog", "0x100")
    assert (row["to"], row["to_module"], row["to_address"]) == ("other.so+0x200", "/lib/other.so", "0x200")
    unknown = [r for r in every if not r["from_module"]]
    assert unknown, "process 8 has no mappings"
    assert all(r["from"] == r["from_address"] for r in unknown)
    assert all(re.fullmatch(r"\w+", key) for key in row)
    assert "from_module" not in run("branches", capture).out


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
    ("--time", "2..1"), ("--time", "a..b"), ("--time", "nan..1"), ("--time", "..inf"), ("--time", "-inf..1"),
    ("--pid", "x"), ("--format", "xml"), ("--limit", "x"), ("--nonsense",),
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


def test_what_cannot_be_read_is_answered_with_all_that_can(tmp_path: Path, run: Run) -> None:
    (tmp_path / "text").write_bytes(b"\x01\x02 no capture at all")
    for verb in ("info", "dump", "check", "verify"):
        hint = run(verb, tmp_path / "text").err.partition("hint: ")[2]
        assert all(name in hint for name in ("perf.data", "perf script", ".etl", ".tb5")), hint


SEVERAL = ("info", "report", "branches", "export")
"""Verbs of `READING` that take several captures, and folders of them."""


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
        "folder": "the folder has no capture" if verb[0] in SEVERAL else "directory",
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
        assert "1 damaged place" in ran.err, "one cut is one damage"
    else:
        place = hex(len(whole) - 2 * SAMPLE_BYTES)
        assert f"warning: {capture}: file ends inside a record (at offset {place}, size = 0x60) (" in ran.err
    assert "Traceback" not in ran.err


def test_verify_lists_places(capture: Path, run: Run) -> None:
    whole = capture.read_bytes()
    capture.write_bytes(whole[:-100])
    ran = run("verify", "--format", "json", capture)
    (cut,) = json.loads(ran.out)
    assert (cut["offset"], cut["field"], cut["value"]) == (len(whole) - 2 * SAMPLE_BYTES, "size", "96")
    assert cut["bytes_skipped"] == 2 * SAMPLE_BYTES
    capture.write_bytes(whole[: -2 * SAMPLE_BYTES])  # between two records
    (cut,) = json.loads(run("verify", "--format", "json", capture).out)
    assert (cut["offset"], cut["bytes_skipped"]) == (len(whole) - 2 * SAMPLE_BYTES, 2 * SAMPLE_BYTES)
    assert run("verify", "--format", "json", capture).code == 1


@pytest.mark.parametrize("words", [["dump"], ["consume"], ["branches"], ["report"], ["convert"]], ids=" ".join)
def test_a_range_of_time_means_the_same_to_all_verbs(words: list[str], capture: Path, run: Run) -> None:
    """All verbs with --time refuse the same texts, before they read anything, and accept the same texts."""
    files = [capture, capture.with_name("out.etl")] if words == ["convert"] else [capture]
    wrong = {
        "2..1": "ends before it begins",
        "1..1": "ends before it begins",
        "0.5..1/2": "two numbers",
        "1e999999999..": "two numbers",
        "1e-999999999..2": "two numbers",
        "nan..1": "two numbers",
        "..inf": "two numbers",
        "3": "FROM..TO",
        "1/2..": "two numbers",
    }
    for text, reason in wrong.items():
        ran = run(*words, *files, "--time", text)
        assert (ran.code, ran.raw) == (2, b""), text
        assert f"{text!r}" in ran.err
        assert reason in ran.err
    if words != ["convert"]:
        ran = run(*words, "--format", "json", *files, "--time", "0.000001..2e-6")
        assert ran.code == 0
        assert ran.raw == run(*words, "--format", "json", *files, "--time", ".000001..00.000002").raw != b"[]\n"


@pytest.mark.parametrize("verb", ["dump", "report"])
def test_a_range_of_time_needs_time_stamps(verb: str, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "untimed.data"
    b = Builder(sample_type=pw.IP | pw.TID)
    b.sample(ip=0x400000, pid=7, tid=7)
    path.write_bytes(b.build())
    assert run(verb, path).code == 0
    ran = run(verb, path, "--time", "0..5")
    assert (ran.code, ran.raw) == (4, b"")
    assert "no time stamps" in ran.err


def test_no_branch_stacks(tmp_path: Path, run: Run) -> None:
    path = build(tmp_path / "plain.data", stacks=False)
    for verb in (["branches"], ["export", "--to", "counts"], ["export", "--to", "brstack"]):
        ran = run(*verb, path)
        assert (ran.code, ran.raw) == (4, b"")
        assert "no branch stacks" in ran.err
        assert "hint:" in ran.err
        assert "perf record -b" in ran.err
    assert run("report", path).code == run("info", path).code == run("verify", path).code == 0


@pytest.mark.parametrize(
    ("name", "pack"),
    [("gzip", gzip.compress), ("xz", lzma.compress), ("bzip2", bz2.compress), ("zstd", zstandard.compress)],
)
def test_packed_captures_are_named(name: str, pack: Callable[[bytes], bytes], capture: Path, run: Run) -> None:
    capture.write_bytes(pack(capture.read_bytes()))
    for words in ONE_CAPTURE:
        ran = run(*(str(capture) if word == "FILE" else word for word in words))
        assert ran.code == 3, words
        assert f"{capture}: packed with {name} (" in ran.err, words
        assert f"`{name} -d`" in ran.err, words


def test_the_list_of_verbs_that_read_a_capture_is_whole() -> None:
    others = {"record", "top", "session", "sources", "lbr", "doctor", "cache", "help", "completion", "fleet"}
    assert {words[0] for words in ONE_CAPTURE} | others == set(VERBS)


def test_weights_by_what_is_no_key(capture: Path) -> None:
    with pytest.raises(ValueError, match="'foo': choose from 'process', 'thread', 'module'"):
        lastbranch.weights(lastbranch.open(capture), "foo")  # type: ignore[arg-type]


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


def missing_binaries(ran: Ran) -> dict[str, tuple[str | None, str | None]]:
    return {m["name"]: (m["binary"], m["missing"]) for m in json.loads(ran.out)["modules"]}


def test_binaries_that_are_missing_are_named(data: Data, run: Run, symfs: Callable[[str], Path]) -> None:
    path = data.path("demo_pie")
    ran = run("export", "--to", "counts", path)
    info = missing_binaries(run("info", "--format", "json", path))
    for name in ("/opt/lbrdemo/lbrdemo", "/opt/lbrdemo/liblbrdemo.so"):
        assert f"note: {name}: offsets, binary not found" in ran.err
        assert info[name] == (None, "not found")
    other = symfs("lldlayout/demo_pie")
    ran = run("export", "--to", "counts", "--symfs", other, path)
    assert "/opt/lbrdemo/lbrdemo: offsets, binary build id differs" in ran.err
    info = missing_binaries(run("info", "--format", "json", "--symfs", symfs("demo_pie"), path))
    assert info["/opt/lbrdemo/lbrdemo"] == (str(symfs("demo_pie") / "opt" / "lbrdemo" / "lbrdemo"), None)
    assert "/opt/lbrdemo" not in run("export", "--to", "counts", "--symfs", symfs("demo_pie"), path).err


# -- where output goes


def test_output_to_a_file(capture: Path, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    out.write_text("before")
    ran = run("export", "--to", "brstack", "--force", "-o", out, capture)
    assert (ran.code, ran.raw) == (0, b"")
    assert out.read_bytes() == run("export", "--to", "brstack", capture).raw
    plain = build(tmp_path / "plain.data", stacks=False)
    kept = out.read_bytes()
    for bad, code in ((plain, 4), (tmp_path / "none", 3)):
        assert run("export", "--to", "brstack", "--force", "-o", out, bad).code == code
        assert out.read_bytes() == kept
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.txt", "plain.data", "some capture.data"]
    for place, said in ((tmp_path / "no" / "where", "No such file or directory"), (tmp_path, "Is a directory")):
        ran = run("export", "--to", "counts", "-o", place, capture)
        assert (ran.code, ran.err) == (5, f"error: {place}: cannot be written: {said}\n")
    assert not list(tmp_path.glob("**/*.part*"))


def test_output_to_a_pipe(capture: Path, run: Run, tmp_path: Path) -> None:
    """A device or pipe is written to, and never replaced by a regular file."""
    pipe = tmp_path / "pipe"
    getattr(os, "mkfifo", lambda _: pytest.skip("no pipes with names there"))(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    ran = run("export", "--to", "brstack", "-o", pipe, capture)
    got = os.read(reader, 1 << 16)
    os.close(reader)
    assert ran.code == 0
    assert got == run("export", "--to", "brstack", capture).raw
    assert pipe.is_fifo()


def test_a_stream_without_end_that_is_no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first bytes are enough: a device is not copied until the disk is full."""

    class Zeros:
        reads = 0

        def read1(self, size: int) -> bytes:
            self.reads += 1
            assert self.reads == 1, "read on"
            return bytes(size)

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Zeros()))
    with pytest.raises(FormatError, match="not a capture"):
        open_source("-")


def test_no_room_for_the_output(capture: Path, tmp_path: Path, run: Run) -> None:
    """A file size limit plays the part of a full disk; messages name standard output and OUT."""
    resource = pytest.importorskip("resource")
    big = tmp_path / "out"
    for words, name in ((["-o", str(big)], str(big)), ([], "standard output")):
        with (tmp_path / "stdout").open("wb") as out:
            # Under the limit Python would leave compiled modules cut short, which break every later run.
            command = [sys.executable, "-B", "-m", "lastbranch", "export", "--to", "brstack", *words, str(capture)]
            done = subprocess.run(
                command,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)),
            )
        assert done.returncode == 5, done.stderr
        assert done.stderr.startswith(f"error: {name}: ")
        assert "File too large" in done.stderr
        assert "Traceback" not in done.stderr
        assert not big.exists()


def test_no_name_at_all(run: Run) -> None:
    ran = run("info", "")
    assert (ran.code, ran.err) == (3, "error: '': No such file or directory\n")


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


@pytest.mark.skipif(os.name != "posix", reason="a shell closes streams")
def test_standard_streams_that_are_closed(capture: Path) -> None:
    """They are not given to the files that are read and written."""
    out = capture.with_name("out.tb5")
    for words in (["info", capture], ["convert", capture, out]):
        command = [sys.executable, "-m", "lastbranch", *map(str, words)]
        for closed in ("<&- >&- 2>&-", ">&-"):
            done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *command], capture_output=True, timeout=60)
            assert (done.returncode, done.stdout) == (0, b""), done.stderr
            assert b"Traceback" not in done.stderr
            whole = out.read_bytes() if out.exists() else b""
            out.unlink(missing_ok=True)
    assert whole.startswith(b"lastbranch TB5")


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
    command = [sys.executable, "-m", "lastbranch", "report", "--by", "module", "--wide", "--no-progress", capture]
    code, said, errors = in_terminal(*command, env={**os.environ, **env})
    assert (code, errors) == (0, "")
    assert b"prog" in said
    assert not re.search(rb"\x1b\[[0-9;]*(3|4|9|10)[0-9]", said)


@pytest.mark.parametrize("term", ["dumb", "xterm", ""])
def test_rows_are_whole_on_any_terminal(term: str, tmp_path: Path) -> None:
    path = build(tmp_path / "x.data", name="/" + "directory/" * 20 + "prog")
    command = [sys.executable, "-m", "lastbranch", "report", "--by", "module", "--wide", "--no-progress", path]
    env = {**os.environ, "TERM": term, "COLUMNS": "20", "LINES": "5"}
    code, shown, errors = in_terminal(*command, width=20, height=5, env=env)
    assert (code, errors) == (0, "")
    rows = [line.split() for line in shown.decode().splitlines()[1:]]
    assert sorted(row[-1] for row in rows) == ["/" + "directory/" * 20 + "prog", "[unknown]"]
    assert {len(row) for row in rows} == {9}


@pytest.mark.parametrize("to", ["file", "terminal"])
@pytest.mark.parametrize(
    "verb", ["branches --wide", "report --wide --by module", "info --format csv", "export --to counts", "dump"]
)
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
    of_no_capture = verb in ("doctor", "cache", "sources", "help", "completion")
    assert re.search(r"FILE|IN\.\.\.|COMMAND| A B$", ran.out, re.M) or of_no_capture
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


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is a signal on POSIX")
def test_an_interrupt_ends_without_a_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "lastbranch", "info", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as ours:
        assert ours.stdin is not None
        assert ours.stderr is not None
        finished_round = struct.pack("<IHH", 68, 0, 8)
        ours.stdin.write(b"PERFILE2" + struct.pack("<Q", 16) + finished_round * 50_000)  # more than a pipe holds
        ours.stdin.flush()  # so it reads, and waits for more
        ours.send_signal(signal.SIGINT)
        ours.stdin.close()
        assert ours.wait(60) == 130
        assert ours.stderr.read() == b""
