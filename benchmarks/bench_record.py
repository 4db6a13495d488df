"""What does `lastbranch record` cost a program, and how many branches does it give?

    python benchmarks/bench_record.py [--rounds 9] [--seconds 20] [--threads 1 4] [--json FILE]

In each round a program runs three times, alone, recorded and alone, in turns of a second or two (`in_turn`).
The result is the median over rounds of the wall time of the whole recorded command, from the start of the interpreter
to the written profile, over the mean of the two runs alone. The control is the one run alone over the other; where its
median is off 1 by over 3 % the result is void. Targets: 1.10 times (1.15 with more threads than processors) and 1,000
branches a second of that wall time."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from in_turn import Groups, run_in_turn
from measure import Command, Row, Run, machine, summarise, table, write_json

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
_LARGEST_DIFFERENCE = 0.03
_LEAST_RATE = 1000
_TURN, _LONG_TURN = 1.0, 2.0
"""Seconds. The collector takes the time between two bursts of several threads for time that they ran: where they are
frozen it records more than it should for a moment."""
_SAID = re.compile(r"(\d+) branches in (\d+) bursts \(([\d.]+)% of ([\d.]+) s\)")


@dataclass(frozen=True)
class Round:
    """A recorded run, and two alone."""

    before: Run
    recorded: Run
    after: Run
    branches: int
    bursts: int
    in_bursts: float
    """Seconds."""

    @property
    def failed(self) -> bool:
        return any(run.exit_code for run in (self.before, self.recorded, self.after))

    def figures(self) -> dict[str, float]:
        """What the recording cost, and what it gave."""
        alone = (self.before.wall + self.after.wall) / 2
        return {
            "times": self.recorded.wall / alone,
            "control": self.before.wall / self.after.wall,
            "branches/s": self.branches / self.recorded.wall,
            "bursts": self.bursts,
            "us/branch": self.in_bursts / max(self.branches, 1) * 1e6,
            "in bursts %": self.in_bursts / alone * 100,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost and yield of recording.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=20, help="how long the program runs alone, about")
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
        groups = Groups()
        if groups.folder is None:
            print("no control group may be made here: whole runs follow each other", file=sys.stderr)
        try:
            for threads in arguments.threads:
                found = _measure(program, threads, arguments.rounds, arguments.seconds, folder, groups)
                print(table(found, reference=found[0].name))
                rows += found
        finally:
            groups.close()
    if arguments.json:
        write_json(arguments.json, about, rows)


def _measure(program: Path, threads: int, rounds: int, seconds: float, folder: Path, groups: Groups) -> list[Row]:
    words = [str(program), str(threads), str(_rounds_for(program, threads, seconds))]
    before, after = (Command("alone", words, folder / f"{name}.log") for name in ("before", "after"))
    command = [sys.executable, "-m", "lastbranch", "record", "--engine", "software", "-o", str(folder / "it.tb5"), "--"]
    # Compiled modules are kept, as where the package is installed, whatever the environment says.
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    subprocess.run([*command, "true"], check=True, env={**os.environ, **compiled}, stderr=subprocess.DEVNULL)
    recorded = Command(f"recorded, {threads} threads", command + words, folder / "recorded.log", env=compiled)
    found: list[Round] = []
    for _ in range(rounds):
        runs = run_in_turn([before, recorded, after], groups, _TURN if threads == 1 else _LONG_TURN)
        said = _SAID.search(recorded.log.read_text())
        branches, bursts, share, lasted = map(float, said.groups()) if said else (0.0,) * 4
        found.append(Round(*runs, int(branches), int(bursts), share / 100 * lasted))
        print(f"{recorded.name}: {_listed(found[-1].figures())}", file=sys.stderr, flush=True)
    return [
        summarise(f"alone, {threads} threads", "", [run for one in found for run in (one.before, one.after)]),
        summarise(recorded.name, _verdict(found, threads), [one.recorded for one in found]),
    ]


def _verdict(found: list[Round], threads: int) -> str:
    if any(one.failed for one in found):
        return "void: a run failed"
    middle = {name: median(one.figures()[name] for one in found) for name in found[0].figures()}
    limit = 1.15 if threads > len(os.sched_getaffinity(0)) else 1.10
    verdict = "meets" if middle["times"] <= limit and middle["branches/s"] >= _LEAST_RATE else "MISSES"
    if abs(middle["control"] - 1) > _LARGEST_DIFFERENCE:
        verdict = f"void: the runs alone differ; else it {verdict}"
    return f"{verdict} {limit} times and {_LEAST_RATE}/s; medians: {_listed(middle)}"


def _listed(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


def _rounds_for(program: Path, threads: int, seconds: float) -> int:
    """Rounds that take about ``seconds``, judged by a run of a second or more."""
    rounds, took = 2500, 0.0
    while took < 1:
        rounds *= 2
        begun = time.perf_counter()
        subprocess.run([program, str(threads), str(rounds)], check=True, stdout=subprocess.DEVNULL)
        took = time.perf_counter() - begun
    return int(rounds * seconds / took)


if __name__ == "__main__":
    main()
