"""CPU time of threads and processes, which records of their ends say: `READ` of perf.data."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastbranch
import perfdata_writer as pw
from lastbranch.model import Profile
from perfdata_writer import Builder

KINDS = pw.IP | pw.TID | pw.TIME | pw.PERIOD | pw.IDENTIFIER
SOFTWARE, CPU_CLOCK, TASK_CLOCK, DUMMY = 1, 0, 1, 9
TIMES = pw.FORMAT_ENABLED | pw.FORMAT_RUNNING


def capture(*, config: int = CPU_CLOCK, read_format: int = TIMES) -> Builder:
    """A shell (7) with two threads, and a child (8) whose id is given again; the reads follow the ends."""
    b = Builder(sample_type=KINDS, type=SOFTWARE, config=config, read_format=read_format)
    b.comm(pid=7, name="shell", time=1, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x1000, pgoff=0, name="/bin/shell", time=2)
    b.fork(pid=7, ppid=7, tid=70, ptid=7, time=3)
    b.fork(pid=8, ppid=7, time=4)
    b.comm(pid=8, name="first", time=5, exec=True)
    b.sample(ip=0x400010, pid=7, time=6, period=1000)
    b.exit(pid=8, time=10)
    b.record("READ", pid=8, value=900, time=11, **times(read_format))
    b.fork(pid=8, ppid=7, time=12)
    b.comm(pid=8, name="second", time=13, exec=True)
    b.exit(pid=8, time=20)
    b.record("READ", pid=8, value=500, time=21, **times(read_format))
    b.exit(pid=7, tid=70, ppid=7, ptid=70, time=22)
    b.record("READ", pid=7, tid=70, value=30, time=23, **times(read_format))
    b.record("READ", pid=7, value=4000, time=25, **times(read_format))
    return b


def times(read_format: int) -> dict[str, int]:
    return {"time_enabled": 9, "time_running": 9} if read_format & pw.FORMAT_ENABLED else {}


def opened(b: Builder, folder: Path, name: str = "x.data") -> Profile:
    (folder / name).write_bytes(b.build())
    return lastbranch.open(folder / name)


def lives(profile: Profile) -> list[tuple[int, str, int | None]]:
    return [(p.pid, p.name, p.cpu_ns) for p in profile.processes]


LIVES = [(7, "shell", 4030), (8, "first", 900), (8, "second", 500)]


@pytest.mark.parametrize("read_format", [0, TIMES, TIMES | pw.FORMAT_LOST])
def test_each_life_has_the_time_that_was_read_when_it_ended(tmp_path: Path, read_format: int) -> None:
    b = capture(read_format=read_format)
    profile = opened(b, tmp_path)
    assert lives(profile) == LIVES
    threads = {(t.tid, profile.processes[t.process].name): t.cpu_ns for t in profile.threads}
    assert threads == {(7, "shell"): 4000, (70, "shell"): 30, (8, "first"): 900, (8, "second"): 500}


def test_only_clocks_count_time_and_of_two_the_first(tmp_path: Path) -> None:
    assert {p.cpu_ns for p in opened(capture(config=DUMMY), tmp_path).processes} == {None}
    b = capture(read_format=0)
    second = b.attr(sample_type=KINDS, type=SOFTWARE, config=TASK_CLOCK)
    b.record("READ", pid=7, value=4000, time=26, event=second)
    assert lives(opened(b, tmp_path)) == LIVES


def test_parts_of_one_thread_add_up_as_processors_report_them(tmp_path: Path) -> None:
    b = capture(read_format=0)
    b.record("READ", pid=7, value=70, time=25)
    b.record("READ", pid=7, value=(1 << 64) - 1, time=26)
    shell = opened(b, tmp_path).processes[0].cpu_ns
    assert shell is not None
    assert shell > 1 << 61  # what no clock can have counted overflows nothing


def test_times_of_processes_that_nothing_else_names_are_not_of_the_recording(tmp_path: Path) -> None:
    b = capture(read_format=0)
    b.record("READ", pid=99, value=5, time=30)
    assert lives(opened(b, tmp_path)) == LIVES


@pytest.mark.parametrize("name", ["x.tb5", "x.etl"])
def test_they_survive_conversion(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    lastbranch.convert(opened(capture(), tmp_path).name, path)
    again = lastbranch.open(path)
    assert [(pid, ns) for pid, _, ns in lives(again) if ns] == [(pid, ns) for pid, _, ns in LIVES]
    assert {t.cpu_ns for t in again.threads} - {None} == {4000, 30, 900, 500}


def test_several_files_keep_their_own(tmp_path: Path) -> None:
    opened(capture(), tmp_path, "a.data")
    opened(capture(), tmp_path, "b.data")
    both = lastbranch.open([tmp_path / "a.data", tmp_path / "b.data"])
    assert lives(both) == LIVES * 2


def test_sql_has_them(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    profile = opened(capture(), tmp_path)
    found = profile.sql("SELECT pid, cpu_ns FROM processes ORDER BY id")
    assert [tuple(row) for row in found] == [(pid, ns) for pid, _, ns in LIVES]
