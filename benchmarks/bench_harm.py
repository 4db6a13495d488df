"""What does a recording do to a program, and which part of the program does the recording miss?

    python benchmarks/bench_harm.py [--rounds 3] [--only NAME ...] [--json FILE]

``cpu-time``: the CPU time that the recording states for all processes of a program, over the rusage that the program's
parent gets: for one long process, 4 threads, 500 threads of under a millisecond, 300 processes under a shell, and 600
processes of a script like configure. The second number is the part of the CPU time that samples represent, the third
the part of the processes whose CPU time is known.

``pauses``: the longest time in ms in which a thread makes no step, alone, recorded, and the difference; the share of
time in pauses in % that the recording states, and the share that the watcher saw (--rounds 5).

``signals``: what a signal costs a program that takes many, in microseconds: alone; under a tracer in C that only passes
signals on (`empty_tracer.c`), on a processor of the scheduler's choice and on the program's processor; and recorded.
The last number is the cost when recorded over the cost under the cheaper tracer.

``short-processes``: bursts for each second of CPU time of a script of 3,600 processes, and of one long process, with
default options; the first over the second; and how long the recorded script takes over the script alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import lastbranch
from pauses import pauses

SOURCE = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static long rounds;

static void *work(void *unused) {
    volatile unsigned long state = 88172645463325252UL;
    for (long r = 0; r < rounds; r++) state = state * 6364136223846793005UL + (state >> 33);
    return unused;
}

static void run(long threads, long at_once) {
    pthread_t started[64];
    for (long begun = 0; begun < threads; begun += at_once) {
        for (long i = 0; i < at_once; i++) pthread_create(started + i, NULL, work, NULL);
        for (long i = 0; i < at_once; i++) pthread_join(started[i], NULL);
    }
}

/* usage FILE COMMAND...: the CPU time of a command in microseconds; threads N AT_ONCE ROUNDS */
int main(int count, char **words) {
    if (words[1][0] != 'u') {
        rounds = atol(words[4]);
        run(atol(words[2]), atol(words[3]));
        return 0;
    }
    pid_t pid = fork();
    if (!pid) {
        execvp(words[3], words + 3);
        _exit(127);
    }
    int status;
    struct rusage used;
    wait4(pid, &status, 0, &used);
    FILE *out = fopen(words[2], "w");
    fprintf(out, "%ld", (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000L + used.ru_utime.tv_usec
            + used.ru_stime.tv_usec);
    return fclose(out);
}
"""

_CONFIGURE = """i=0; while [ $i -lt 100 ]; do
for tool in true uname expr sed cat; do case $tool in
expr) /usr/bin/expr $i + 1 >/dev/null;; sed) echo a.c | /bin/sed s/a/b/ >/dev/null;;
cat) /bin/cat </dev/null;; *) /usr/bin/$tool >/dev/null;; esac; done; i=$((i+1)); done"""


def cpu_time(folder: Path, rounds: int) -> dict[str, list[float]]:
    """By program: stated over used, sampled over used, processes known over processes."""
    program = folder / "harm"
    (folder / "harm.c").write_text(SOURCE)
    subprocess.run(["cc", "-O1", "-pthread", "-o", program, folder / "harm.c"], check=True)
    threads = [str(program), "threads"]
    programs = {
        "one long process": [*threads, "1", "1", "600000000"],
        "4 threads": [*threads, "4", "4", "150000000"],
        "500 threads of under 1 ms": [*threads, "500", "4", "400000"],
        "300 processes under bash": ["bash", "-c", "for i in $(seq 300); do /bin/true; done"],
        "600 processes of a script": ["bash", "-c", _CONFIGURE],
    }
    found: dict[str, list[list[float]]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, command in programs.items():
            found[name].append(_stated(folder, [str(program), "usage", str(folder / "used"), *command]))
    return {name: [median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}


def _stated(folder: Path, command: list[str]) -> list[float]:
    record = [sys.executable, "-m", "lastbranch", "record", "-o", str(folder / "x.data"), "--", *command]
    subprocess.run(record, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    profile = lastbranch.open(folder / "x.data")
    used = int((folder / "used").read_text()) * 1000
    mine = profile.processes[1:]  # the first process waits for the others
    known = [process.cpu_ns for process in mine if process.cpu_ns is not None]
    table = lastbranch.weights(profile, "process")
    clock = next(row for row, event in enumerate(profile.events) if event.name == "cpu-clock")
    sampled = int(table.period[(table.event == clock) & (table.key > 0)].sum())
    return [sum(known) / used, sampled / used, len(known) / len(mine)]


def signals(folder: Path, rounds: int) -> dict[str, list[float]]:
    """By kind of signal: microseconds a signal alone, traced apart and together, recorded, and the last quotient."""
    takes, tracer = _built(folder, _PROGRAMS / "takes.c"), _built(folder, _TRACER)
    found: dict[str, list[list[float]]] = {kind: [] for kind in ("trap", "barrier", "divide")}
    for _ in range(rounds):
        for kind, rows in found.items():
            command = [str(takes), kind, str(_SIGNALS)]
            ways = [_wall(folder, [], [str(tracer), way], command) for way in ("alone", "apart", "together")]
            ways.append(_wall(folder, [*_RECORD, str(folder / "x.data"), "--"], [str(tracer), "alone"], command))
            each = [seconds * 1e6 / _SIGNALS for seconds in ways]
            rows.append([each[0], *(more - each[0] for more in each[1:])])
    medians = {kind: [median(column) for column in zip(*rows, strict=True)] for kind, rows in found.items()}
    return {kind: [*row, row[3] / min(row[1], row[2])] for kind, row in medians.items()}


def _built(folder: Path, source: Path) -> Path:
    program = folder / source.stem
    subprocess.run(["cc", "-O1", "-o", program, source], check=True)
    return program


def _wall(folder: Path, before: list[str], tracer: list[str], command: list[str]) -> float:
    """Seconds that ``command`` takes."""
    out = folder / "took"
    quiet = subprocess.DEVNULL
    subprocess.run([*before, *tracer, str(out), *command], check=True, stdout=quiet, stderr=quiet)
    return int(out.read_text().split()[0]) / 1e9


def short_processes(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Bursts a second of CPU time of the script and of the long process, their quotient, and the script's slowdown."""
    tracer = _built(folder, _TRACER)
    (folder / "harm.c").write_text(SOURCE)
    subprocess.run(["cc", "-O1", "-pthread", "-o", folder / "harm", folder / "harm.c"], check=True)
    script, long = ["sh", "-c", _MANY], [str(folder / "harm"), "threads", "1", "1", "3600000000"]
    found = []
    for _ in range(rounds):
        alone = _wall(folder, [], [str(tracer), "alone"], script)
        record = [*_RECORD, str(folder / "x.data"), "--"]
        recorded = _wall(folder, record, [str(tracer), "alone"], script)
        rates = [_burst_rate(folder, command) for command in (script, long)]
        found.append([*rates, rates[0] / rates[1], recorded / alone])
    return {"3,600 processes, one long one": [median(column) for column in zip(*found, strict=True)]}


def _burst_rate(folder: Path, command: list[str]) -> float:
    """Bursts for each second of CPU time."""
    capture, used = folder / "x.data", folder / "used"
    usage = [str(folder / "harm"), "usage", str(used), *command]
    quiet = subprocess.DEVNULL
    subprocess.run([*_RECORD, str(capture), "--", *usage], check=True, stdout=quiet, stderr=quiet)
    bursts = {
        (int(tid), int(when))
        for stream in lastbranch.open(capture).streams
        if "branch_from" in stream.columns
        for batch in stream.batches()
        for tid, when in zip(batch.tid, batch.time, strict=True)
    }
    return len(bursts) / (int(used.read_text()) / 1e6)


_PROGRAMS, _TRACER = Path(__file__).parents[1] / "tests" / "programs", Path(__file__).parent / "empty_tracer.c"
_RECORD = [sys.executable, "-m", "lastbranch", "record", "--engine", "software", "-o"]
_SIGNALS = 60_000
_MANY = "i=0; while [ $i -lt 1800 ]; do x=`expr $i + 1`; /bin/true; i=$((i+1)); done"

ROWS: dict[str, Callable[[Path, int], dict[str, list[float]]]] = {
    "cpu-time": cpu_time, "pauses": pauses, "signals": signals, "short-processes": short_processes,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=[*ROWS])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {name: ROWS[name](Path(folder), options.rounds) for name in options.only}
    for name, rows in found.items():
        for what, values in rows.items():
            print(f"{name:10} {what:30} {'  '.join(f'{value:8.4f}' for value in values)}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
