"""`report` and `check` say how much CPU time has no samples: 300 processes without samples under a shell."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

import perfdata_writer as pw
from command_line import Ran
from perfdata_writer import Builder

KINDS = pw.IP | pw.TID | pw.TIME | pw.PERIOD | pw.IDENTIFIER
Cli = Callable[..., Ran]
MS = 1_000_000


def capture(path: Path, *, shell: int | None = 30 * MS, each: int = MS, samples: int = 3, counted: int = 300) -> Path:
    """``counted``: how many processes have a CPU time."""
    b = Builder(sample_type=KINDS, type=1, config=0, sample_period=2 * MS)
    b.comm(pid=7, name="bash", time=1, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x1000, pgoff=0, name="/bin/bash", time=2)
    for i in range(samples):
        b.sample(ip=0x400010, pid=7, time=10 + i, period=2 * MS)
    for pid in range(1000, 1300):
        b.fork(pid=pid, ppid=7, time=pid)
        b.comm(pid=pid, name="true", time=pid, exec=True)
        b.exit(pid=pid, time=pid)
        if pid < 1000 + counted:
            b.record("READ", pid=pid, value=each, time=pid)
    if shell is not None:
        b.record("READ", pid=7, value=shell, time=2000)
    path.write_bytes(b.build())
    return path


def test_shares_are_of_the_time_that_was_spent(tmp_path: Path, run: Cli) -> None:
    done = run("report", "--by", "process", "--format", "csv", "--limit", "0", str(capture(tmp_path / "x.data")))
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [(row["process"], row["cpu_ms"], row["cpu_percent"]) for row in rows[:2]] == [
        ("bash", "30.0", "9.09"),
        ("true", "1.0", "0.3"),
    ]
    assert len(rows) == 301
    assert sum(float(row["cpu_ms"]) for row in rows) == 330
    assert "0.324 s of 0.330 s of CPU time (98 %) have no samples: 0.300 s of 300 x true, 0.024 s of bash" in done.err


def test_three_samples_are_not_sure_of_anything(tmp_path: Path, run: Cli) -> None:
    done = run("report", "--by", "process", "--format", "csv", str(capture(tmp_path / "x.data")))
    first = next(csv.DictReader(io.StringIO(done.out)))
    assert (first["samples_percent"], first["noise"]) == ("100.0", "12.5")
    done = run("report", "--by", "process", "--format", "csv", str(capture(tmp_path / "y.data", samples=999)))
    assert next(csv.DictReader(io.StringIO(done.out)))["noise"] == "0.05"


@pytest.mark.parametrize("by", ["process", "thread"])
def test_a_filter_leaves_times_out(by: str, tmp_path: Path, run: Cli) -> None:
    words = ("report", "--by", by, "--format", "csv", "--pid", "7", str(capture(tmp_path / "x.data")))
    assert "cpu_ms" not in run(*words).out


def test_functions_say_it_too(tmp_path: Path, run: Cli) -> None:
    assert (
        "0.324 s of 0.330 s of CPU time (98 %) have no samples: "
        in run("report", str(capture(tmp_path / "x.data"))).err
    )


def test_check_finds_it_and_nothing_where_samples_stand_for_it(tmp_path: Path, run: Cli) -> None:
    assert "time without samples" in run("check", str(capture(tmp_path / "x.data"))).out
    whole = capture(tmp_path / "y.data", shell=600 * MS, each=MS // 100, samples=299)
    assert "time without samples" not in run("check", str(whole)).out


def test_check_finds_threads_that_ended_without_a_cpu_time(tmp_path: Path, run: Cli) -> None:
    """Their counts were lost."""
    assert "CPU times missing" not in run("check", str(capture(tmp_path / "x.data"))).out
    lossy = capture(tmp_path / "y.data", counted=200)
    said = run("check", str(lossy)).out
    assert "CPU times missing" in said
    assert "100 of 301 threads" in said
    nothing = capture(tmp_path / "z.data", counted=0, shell=None)
    assert "CPU times missing" not in run("check", str(nothing)).out, "this recorder counts no CPU times"


def test_what_a_short_recording_takes_to_begin_is_no_finding(tmp_path: Path, run: Cli) -> None:
    short = capture(tmp_path / "x.data", shell=98 * MS, each=0, samples=38)
    assert "no samples" not in run("report", str(short)).err
    assert "time without samples" not in run("check", str(short)).out


def test_less_than_a_tenth_of_a_second_is_said_and_no_finding(tmp_path: Path, run: Cli) -> None:
    short = capture(tmp_path / "x.data", shell=60 * MS, each=0, samples=3)
    assert "0.054 s of 0.060 s of CPU time (90 %) have no samples: " in run("report", str(short)).err
    assert "time without samples" not in run("check", str(short)).out
