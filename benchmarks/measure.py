"""Measure whole processes: wall, user and system time and peak memory, in rounds that interleave the commands.

A command runs under a small launcher (this file, `python -I -S measure.py --launch ...`), never under the benchmark
itself: Linux carries the peak resident size of the process that calls exec over to the program it becomes, so a
benchmark that holds 500 MB of arrays would see at least 500 MB for every child. The launcher's own 10 MB is the floor
of what can be seen. The peak is `ru_maxrss` from wait4, of the process or of the largest child that it waited for, and
includes mapped file pages (perf maps its whole input).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

_KEPT = 1 << 12
"""Characters of a log."""


@dataclass(frozen=True)
class Command:
    """A command to run: standard output and error go to `log`, or output to `stdout` if given."""

    name: str
    argv: list[str]
    log: Path
    stdout: str | None = None
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One execution: seconds, bytes, the exit code (negative: the signal) and the end of the log."""

    wall: float
    user: float
    system: float
    peak: int
    exit_code: int
    log: str = ""


def _launch(report: str, argv: list[str]) -> None:
    """The launcher: fork, exec, wait4; the figures go to the file `report`."""
    begin = time.perf_counter()
    pid = os.posix_spawnp(argv[0], argv, os.environ)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - begin
    run = [wall, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status)]
    Path(report).write_text(json.dumps(run))


def _environment() -> dict[str, str]:
    """The environment, in which modules are kept compiled: else each run would compile those that changed."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def warm(path: str) -> None:
    """Have the file in the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 22):
            pass


def run_once(command: Command) -> Run:
    """Run the command to its end, with the files that it names in the page cache.

    Each time anew: systems that reclaim memory early (DAMON) take a file out of the cache within seconds.
    """
    for word in chain.from_iterable(map(shlex.split, command.argv)):  # also those of `sh -c "..."`
        if os.path.isfile(word):
            warm(word)
    report = command.log.with_suffix(".run.json")
    argv = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "--launch", str(report), *command.argv]
    with command.log.open("wb") as log, open(command.stdout or os.devnull, "wb") as out:
        stdout = out if command.stdout else log
        subprocess.run(argv, stdout=stdout, stderr=log, env={**_environment(), **command.env}, check=True)
    return Run(*json.loads(report.read_text()), log=command.log.read_text(errors="replace")[-_KEPT:])


def run_rounds(commands: list[Command], rounds: int) -> dict[str, list[Run]]:
    """Run all commands one after the other, `rounds` times over; a command that failed is not run again."""
    runs: dict[str, list[Run]] = {command.name: [] for command in commands}
    for number in range(rounds):
        for command in commands:
            if all(run.exit_code == 0 for run in runs[command.name]):
                print(f"round {number + 1} of {rounds}: {command.name}", file=sys.stderr, flush=True)
                runs[command.name].append(run_once(command))
    return runs


@dataclass(frozen=True)
class Row:
    """A line of the result; `status` says why a row has no time or does not count."""

    name: str
    status: str
    wall: float | None = None
    wall_min: float | None = None
    wall_max: float | None = None
    cpu: float | None = None
    peak: int | None = None
    rounds: int = 0

    @property
    def void(self) -> bool:
        """The command failed or did not do the work, so its figures mean nothing."""
        return self.status.startswith("void")


def summarise(name: str, status: str, runs: list[Run]) -> Row:
    """Medians over the rounds (peak memory: the largest)."""
    if not runs:
        return Row(name, status)
    walls = [run.wall for run in runs]
    cpu = median(run.user + run.system for run in runs)
    return Row(name, status, median(walls), min(walls), max(walls), cpu, max(run.peak for run in runs), len(runs))


def table(rows: list[Row], reference: str) -> str:
    """A plain table. Each `times` divides the time before it, wall or CPU, by that of the row `reference`; void rows
    have none."""
    base = next((row for row in rows if row.name == reference and not row.void), None)
    lines = [("", "wall s", "min", "max", "times", "CPU s", "times", "peak MB", "status")]
    for row in rows:
        if row.wall is None or row.cpu is None or row.peak is None:
            lines.append((row.name, *("-",) * 7, row.status))
            continue
        wall, low, high, cpu = (f"{value:.3f}" for value in (row.wall, row.wall_min, row.wall_max, row.cpu))
        times = [_times(row, base, row.wall, base and base.wall), _times(row, base, row.cpu, base and base.cpu)]
        lines.append((row.name, wall, low, high, times[0], cpu, times[1], f"{row.peak / 1e6:.0f}", row.status))
    return columns(lines)


def _times(row: Row, base: Row | None, one: float, other: float | None) -> str:
    return "-" if base is None or row.void or not other else f"{one / other:.2f}"


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Lines with their columns aligned: the first and the last to the left, the others to the right."""
    last = len(lines[0]) - 1
    widths = [max(len(line[column]) for line in lines) for column in range(last)]
    text = []
    for line in lines:
        cells = [line[0].ljust(widths[0]), *(line[column].rjust(widths[column]) for column in range(1, last))]
        text.append("  ".join([*cells, line[last]]).rstrip())
    return "\n".join(text)


def version_of(argv: list[str], pattern: str = "version") -> str:
    """The first line with `pattern` in what `argv` prints."""
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30, check=False
        )
    except OSError as error:
        return str(error)
    lines = done.stdout.splitlines()
    return next((line.strip() for line in lines if pattern in line), lines[0].strip() if lines else "unknown")


def machine() -> dict[str, str]:
    """CPU model, cores, kernel and Python."""
    cpu = "unknown"
    if Path("/proc/cpuinfo").exists():
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    load = f"{os.getloadavg()[0]:.1f}"
    cores = str(len(os.sched_getaffinity(0)))
    return {"cpu": cpu, "cores": cores, "load": load, "kernel": os.uname().release, "python": sys.version.split()[0]}


def write_json(path: Path, about: dict[str, Any], rows: list[Row]) -> None:
    """Everything that the table shows, for a machine to read."""
    path.write_text(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")


def run_parts(
    parts: Mapping[str, Callable[[Path, argparse.Namespace], list[list[Row]]]], arguments: argparse.Namespace
) -> None:
    """Run the ``parts`` that ``arguments.only`` names in a temporary folder, and print their tables, whose rows are
    compared with the first. All rows go to ``arguments.json``, if it is given."""
    import tempfile

    about = {"machine": machine()}
    print("  ".join(f"{key}: {value}" for key, value in about["machine"].items()))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        for part in arguments.only:
            for found in parts[part](Path(name), arguments):
                print(table(found, reference=found[0].name), flush=True)
                rows += found
    if arguments.json:
        write_json(arguments.json, about, rows)


if __name__ == "__main__" and sys.argv[1:2] == ["--launch"]:
    _launch(sys.argv[2], sys.argv[3:])
