"""Numbers out of files that are larger than anything real, and the last resort where an error was not foreseen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import etl_builder
import extremes
from capture_tools import needs_ptrace
from command_line import CRASHED, run_cli
from lastbranch import open as open_profile

TOP = (1 << 64) - 1


def assert_converts(data: bytes, tmp_path: Path, name: str = "in.data") -> list[str]:
    """Output and errors for a capture that is converted to both forms, and for the results."""
    path = tmp_path / name
    path.write_bytes(data)
    said = []
    for ending in (".tb5", ".etl"):
        ran = run_cli("convert", "--force", path, tmp_path / f"out{ending}")
        assert ran.code in (0, 1), ran.err
        assert run_cli("info", tmp_path / f"out{ending}").code in (0, 1)
        said.append(ran.err)
    return said


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        ("TOTAL_MEM", {"value": TOP}),
        ("TOTAL_MEM", {"value": 1 << 54}),
        ("NUMA_TOPOLOGY", {"nr": 1, "nodes": [{"node": 0, "mem_total": TOP, "mem_free": 1, "cpus": "0-1"}]}),
        ("CLOCK_DATA", {"version": 1, "clockid": 1, "wall": TOP, "clock": 5}),
        ("CLOCK_DATA", {"version": 1, "clockid": 1, "wall": 5, "clock": TOP}),
    ],
)
def test_features_that_no_machine_has_are_damage(feature: str, values: dict[str, object], tmp_path: Path) -> None:
    made = extremes.base()
    made.feature(feature, **values)
    for said in assert_converts(made.build(), tmp_path):
        assert f"header feature {feature} is damaged" in said


@pytest.mark.parametrize("pid", [-1, 1 << 31, 0xFFFFFFF0])
def test_process_ids_that_no_process_has(pid: int, tmp_path: Path) -> None:
    made, pid = extremes.base(), pid - (1 << 32) if pid >= 1 << 31 else pid
    made.comm(pid=pid, name="it", time=11, exec=True)
    made.fork(pid=pid, ppid=pid, time=12)
    made.fork(pid=12, ppid=pid, time=12)
    made.fork(pid=pid, ppid=10, time=12)
    made.mmap2(pid=pid, addr=0x1000, length=0x1000, pgoff=0, name="/bin/it", time=13)
    made.sample(ip=0x1100, pid=pid, tid=pid, time=14, branches=[], callchain=[])
    made.exit(pid=pid, time=15)
    assert_converts(made.build(), tmp_path)
    assert open_profile(tmp_path / "out.etl").samples == 4


def test_more_losses_than_can_be_counted(tmp_path: Path) -> None:
    made = extremes.base()
    for _ in range(3):
        made.record("LOST", id=101, lost=TOP, time=11)
        made.record("LOST_SAMPLES", lost=TOP, time=11)
    assert_converts(made.build(), tmp_path)
    assert max(open_profile(tmp_path / "out.tb5").lost.values()) == (1 << 63) - 1


@pytest.mark.parametrize("start", [(1 << 63) - 1, 1, 1 << 62])
def test_a_log_from_a_year_that_no_clock_shows(start: int, tmp_path: Path) -> None:
    trace = etl_builder.Trace(header={"start": start, "end": start})
    trace.add(0, etl_builder.system(0x0301, 1_000_100, bytes(64)))
    assert_converts(bytes(trace), tmp_path, "in.etl")


@pytest.mark.thorough
def test_every_number_may_be_anything(tmp_path: Path) -> None:
    for what, data in extremes.perfdata():
        try:
            assert_converts(data, tmp_path)
        except AssertionError as error:
            raise AssertionError(what) from error


@pytest.mark.parametrize(
    "words",
    [
        ("dump", "FILE", "--limit", "BIG"),
        ("stacks", "FILE", "--limit", "BIG"),
        ("query", "FILE", "select 1", "--limit", "BIG"),
        ("query", "FILE", "select 1", "--memory", "BIG"),
        ("record", "--period", "BIG", "true"),
        ("record", "--frequency", "BIG", "true"),
        ("bind", "FILE", "--stream", "BIG"),
        ("annotate", "FILE", "main", "--limit", "BIG"),
        ("consume", "FILE", "--limit", "BIG"),
        ("session", "start", "x", "--target", "BIG"),
    ],
    ids=" ".join,
)
def test_numbers_of_the_command_line_that_nothing_takes(words: tuple[str, ...], tmp_path: Path) -> None:
    capture = tmp_path / "in.data"
    capture.write_bytes(extremes.base().build())
    ran = run_cli(*({"FILE": str(capture), "BIG": str(10**23)}.get(word, word) for word in words))
    assert ran.code == 2, ran.err
    assert f"{10**23} is more than" in ran.err


# -- the last resort

FAILING = """
import sys, threading
sys.argv[:] = sys.argv[1:]
from lastbranch import opening, model
from lastbranch.cli import {module} as program
def failing(*args, **more):
    {what}
opening.open_profile = opening.read_captures = opening.open_source = opening.FileSource.__init__ = failing
program.main()
"""
RAISED = "raise ZeroDivisionError('what \\x1b[31m nobody\\nforesaw')"
IN_A_THREAD = f"""
    def work():
        {RAISED}
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    from lastbranch.errors import FormatError
    raise FormatError("foreseen")"""


def fail(
    tmp_path: Path, *words: str, what: str = RAISED, program: str = "lastbranch", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in which opening a capture ends so."""
    module = "__init__" if program == "lastbranch" else program
    code = FAILING.format(module=module, what=what).replace(
        "from lastbranch.cli import __init__ as", "import lastbranch.cli as"
    )
    return subprocess.run(
        [sys.executable, "-c", code, program, *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "LASTBRANCH_TRACEBACK": "0", **env},
    )


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("lastbranch", ("info", "x")),
        ("lastbranch", ("convert", "x", "y.tb5")),
        ("print_tb5", ("x",)),
        ("tbrw_reader", ("x", "y")),
    ],
)
def test_what_nobody_foresaw_is_one_line_and_a_report(program: str, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    done = fail(tmp_path, *words, program=program)
    assert done.returncode == CRASHED, done.stderr
    what = r"ZeroDivisionError: what \\x1b\[31m nobody foresaw"
    found = re.fullmatch(rf"error: this is a bug in lastbranch: {what}; please report it with (.*)\n", done.stderr)
    assert found, done.stderr
    report = Path(found[1])
    assert report.parent == tmp_path
    assert report.stat().st_mode & 0o077 == 0
    text = report.read_text()
    for part in (
        f"command:  '{program}'",
        sys.version.split()[0],
        "numpy: ",
        "Traceback",
        "in failing",
    ):
        assert part in text
    assert "Traceback" in fail(tmp_path, *words, program=program, LASTBRANCH_TRACEBACK="1").stderr


def test_without_room_for_a_report_the_line_says_so(tmp_path: Path) -> None:
    full = (
        "import tempfile, errno\n    def no(*_): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "    tempfile.mkstemp = no\n    " + RAISED
    )
    done = fail(tmp_path, "info", "x", what=full)
    assert done.returncode == CRASHED
    assert done.stderr.endswith("LASTBRANCH_TRACEBACK=1 shows where (no report was written: No space left on device)\n")


def test_a_thread_that_fails_is_no_traceback_either(tmp_path: Path) -> None:
    done = fail(tmp_path, "info", "x", what=IN_A_THREAD)
    assert "Traceback" not in done.stderr
    assert "this is a bug in lastbranch: ZeroDivisionError" in done.stderr
    assert "error: foreseen" in done.stderr


def test_too_little_memory_is_foreseen(tmp_path: Path) -> None:
    done = fail(tmp_path, "info", "x", what="raise MemoryError")
    assert (done.returncode, done.stderr) == (5, "error: not enough memory\n")


@needs_ptrace
def test_a_collector_that_fails_has_a_report_too(tmp_path: Path) -> None:
    code = (
        "import sys; from lastbranch.capture import software; from lastbranch.cli import main\n"
        "def failing(*_): raise ZeroDivisionError('what')\n"
        "software.record_software = failing; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "record", "--engine", "software", "true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "LASTBRANCH_TRACEBACK": "0"},
    )
    assert done.returncode == 125
    assert "Traceback" not in done.stderr
    found = re.search(
        "error: the collector failed: .*ZeroDivisionError: what; please report it with (.*)\n", done.stderr
    )
    assert found, done.stderr
    assert "in failing" in Path(found[1]).read_text()
