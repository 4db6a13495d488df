"""Logs whose events say the wrong pointer size, read with the right one by every way in."""

import json
import struct

import pytest

import etl_builder as build
import lastbranch
import perfdata_writer as pw
from etl_event_logs import process, write
from lastbranch.cli import VERBS
from lastbranch.errors import FormatError
from lastbranch.etw import consume

BEGIN = 1_000_000


@pytest.fixture
def wrong(tmp_path):
    """64-bit payloads behind 32-bit headers: a process, its image and 40 samples in it."""
    log = build.Trace(bits=32)
    log.add(0, build.system(0x0301, BEGIN + 1, process(64, 100), bits=32, version=4, pid=100))
    image = struct.pack("<QQIIIIQIIII", 0x1_4000_0000, 0x10000, 100, 0, 0x5E00_0000, 0, 0, 0, 0, 0, 0)
    image += "\\a.exe\0".encode("utf-16-le")
    log.add(0, build.system(0x030A, BEGIN + 2, image, bits=32, version=3))
    log.add(
        0,
        build.system(
            0x0501, BEGIN + 3, struct.pack("<IIQQQQQQQQI4B", 100, 101, *range(8), 0, 8, 5, 2, 0), bits=32, version=3
        ),
    )
    for i in range(40):
        sample = struct.pack("<QIHBB", 0x1_4000_0100 + i, 101, 1, 0, 0)
        log.add(0, build.perfinfo(0x0F2E, BEGIN + 10 + i, sample, bits=32))
    return write(tmp_path, log)


def test_every_verb_that_takes_a_capture_has_the_option(run):
    others = {"print_tb5", "tbrw_reader", "tbrw_writer", "bind", "unbind", "compact"}  # of .tb5 files
    seen = set()
    for verb in (v for v in VERBS if v not in others):
        out = run(verb, "--help").out
        usage = out.partition("\n")[0]
        if "FILE" in usage or usage.endswith(("A... B", "IN... OUT")):
            seen.add(verb)
            assert "--pointer-size" in out, verb
    assert seen >= {
        "info",
        "dump",
        "consume",
        "check",
        "verify",
        "report",
        "branches",
        "export",
        "query",
        "convert",
        "diff",
    }


def test_open_and_consume(wrong):
    profile = lastbranch.open(wrong, pointer_size=64)
    assert profile.machine.bits == 64
    assert [ip for batch in profile.batches() for ip in batch.ip.tolist()] == [0x1_4000_0100 + i for i in range(40)]
    assert [(m.name, m.size) for m in profile.modules if m.name.endswith("a.exe")] == [("\\a.exe", 0x10000)]
    assert {p.pid for p in profile.processes} >= {100}
    fields = [e.fields for e in consume(wrong, pointer_size=64)]
    assert [f["ProcessID"] for f in fields if "ImageFileName" in f] == [100]
    said = lastbranch.open(wrong)
    assert [ip for batch in said.batches() for ip in batch.ip.tolist()][:1] != [0x1_4000_0100]
    for size in (8, 63):
        with pytest.raises(ValueError, match="32 or 64 bits"):
            lastbranch.open(wrong, pointer_size=size)


def test_verbs(wrong, run, tmp_path):
    for verb in ("dump", "consume"):
        rows = json.loads(run(verb, wrong, "--format", "json", "--pointer-size", "64").out)
        assert [row["fields"]["ProcessID"] for row in rows if row["event"].endswith("Process/Start")] == [100]
        head = next(row["fields"] for row in rows if row["event"] == "Windows Kernel/EventTrace")
        assert head["PointerSize"] == 4  # the log file header is what it is
    assert "0x14000" in run("dump", wrong, "--pointer-size", "64").out
    rows = json.loads(
        run(
            "query",
            wrong,
            "select count(*) n from samples where ip >= 5368709376",
            "--format",
            "json",
            "--pointer-size",
            "64",
        ).out
    )
    assert rows == [{"n": 40}]
    assert run("convert", wrong, tmp_path / "a.tb5", "--pointer-size", "64").code == 0
    made = lastbranch.open(tmp_path / "a.tb5")
    assert [ip for batch in made.batches() for ip in batch.ip.tolist()] == [0x1_4000_0100 + i for i in range(40)]
    done = run("convert", wrong, tmp_path / "cut.etl", "--pid", "100", "--pointer-size", "64")
    assert done.code == 0, done.err
    kept = [e.name for e in consume(tmp_path / "cut.etl", pointer_size=64)]
    assert kept.count("PerfInfo/Sample") == 40
    assert kept.count("Image/Load") == 1


def test_other_formats_have_no_such_thing(tmp_path, run):
    perf = tmp_path / "perf.data"
    perf.write_bytes(pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME).build())
    for verb in ("info", "dump"):
        done = run(verb, perf, "--pointer-size", "64")
        assert done.code != 0
        assert "only Windows trace logs (.etl)" in done.err
    with pytest.raises(FormatError, match="Windows trace logs"):
        lastbranch.open(perf, pointer_size=32)
