"""What does `lastbranch record` cost a program, and how many branches does it give?

    python benchmarks/bench_record.py [--rounds 9] [--seconds 10] [--json FILE]

Pairs of a run alone and a recorded run, interleaved, of a program with one thread and with four. Wall time of the whole
command, from the start of the interpreter to the written profile. Targets: 1.10 times the wall time (1.15 with more
threads than processors) and 1,000 branches a second. Void if the first and second half of the runs alone differ by
over 3 %."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from measure import Command, Row, Run, machine, run_rounds, summarise, table, write_json

_SOURCE = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static long rounds;

static int order(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void *work(void *argument) {
    unsigned long state = 88172645463325252UL + (long)argument, sum = 0;
    int values[500];
    for (long r = 0; r < rounds; r++) {
        for (int i = 0; i < 500; i++) {
            state ^= state << 13; state ^= state >> 7; state ^= state << 17;
            values[i] = state & 0xFFFFFF;
            switch (state % 7) {
            case 0: sum += 3; break;
            case 1: sum ^= 9; break;
            case 2: if (state & 8) sum -= 4; break;
            default: sum += state & 1;
            }
        }
        qsort(values, 500, sizeof *values, order);
        sum += values[250];
    }
    return (void *)sum;
}

int main(int count, char **words) {
    long threads = atol(words[1]);
    pthread_t started[64];
    unsigned long sum = 0;
    rounds = atol(words[2]);
    for (long i = 0; i < threads; i++) pthread_create(started + i, NULL, work, (void *)i);
    for (long i = 0; i < threads; i++) {
        void *result;
        pthread_join(started[i], &result);
        sum += (unsigned long)result;
    }
    printf("%lu\\n", sum);
    return 0;
}
"""
_LARGEST_DRIFT = 0.03
_LEAST_RATE = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost and yield of recording.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=10, help="how long the program runs alone, about")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--json", type=Path, help="write the results here as well")
    arguments = parser.parse_args()
    about = {"machine": machine()}
    print("  ".join(f"{key}: {value}" for key, value in about["machine"].items()))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.c").write_text(_SOURCE)
        program = folder / "program"
        subprocess.run(["gcc", "-O2", "-pthread", "-o", program, folder / "program.c"], check=True)
        for threads in arguments.threads:
            found = _measure(program, threads, arguments.rounds, arguments.seconds, folder)
            print(table(found, reference=found[0].name))
            rows += found
    if arguments.json:
        write_json(arguments.json, about, rows)


def _measure(program: Path, threads: int, rounds: int, seconds: float, folder: Path) -> list[Row]:
    words = [str(program), str(threads), str(_rounds_for(program, threads, seconds))]
    alone = Command(f"alone, {threads} threads", words, folder / "alone.log")
    command = [sys.executable, "-m", "lastbranch", "record", "--engine", "software", "-o", str(folder / "it.tb5"), "--"]
    # Compiled modules are kept, as where the package is installed, whatever the environment says.
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    subprocess.run([*command, "true"], check=True, env={**os.environ, **compiled}, stderr=subprocess.DEVNULL)
    recorded = Command(f"recorded, {threads} threads", command + words, folder / "recorded.log", env=compiled)
    rates: list[float] = []
    runs: dict[str, list[Run]] = {alone.name: [], recorded.name: []}
    for _ in range(rounds):
        for done, found in run_rounds([alone, recorded], 1).items():
            runs[done] += found
        rates.append(_rate(recorded.log))
    walls = [run.wall for run in runs[alone.name]]
    half = len(walls) // 2
    drift = abs(median(walls[:half]) / median(walls[half:]) - 1) if half else 0.0
    limit = 1.10 if threads == 1 else 1.15
    ratio = median(run.wall for run in runs[recorded.name]) / median(walls)
    verdict = "meets" if ratio <= limit and median(rates) >= _LEAST_RATE else "MISSES"
    status = f"{ratio:.3f} times, {median(rates):.0f} branches/s, {verdict} the target of {limit} and {_LEAST_RATE}/s"
    if drift > _LARGEST_DRIFT:
        status = f"void: runs alone drifted by {drift:.1%} ({status})"
    if any(run.exit_code for found in runs.values() for run in found):
        status = "void: a run failed"
    return [summarise(alone.name, "", runs[alone.name]), summarise(recorded.name, status, runs[recorded.name])]


def _rounds_for(program: Path, threads: int, seconds: float) -> int:
    """Rounds that take about ``seconds``."""
    begun = time.perf_counter()
    subprocess.run([program, str(threads), "5000"], check=True, stdout=subprocess.DEVNULL)
    return int(5000 * seconds / (time.perf_counter() - begun))


def _rate(log: Path) -> float:
    """Branches a second of the recording, as it says itself."""
    found = re.search(r"(\d+) branches in \d+ bursts \([\d.]+% of ([\d.]+) s\)", log.read_text())
    return int(found[1]) / float(found[2]) if found else 0.0


if __name__ == "__main__":
    main()
