"""What does `lastbranch record` cost a program, and how many branches does it give?

    python benchmarks/bench_record.py [--rounds 9] [--seconds 20] [--threads 1 4] [--only NAME ...] [--json FILE]

``program``: in each round a program runs three times, alone, recorded and alone, in turns of a second or two
(`in_turn`). The result is the median over rounds of the wall time of the whole recorded command, from the start of the
interpreter to the written profile, over the mean of the two runs alone. The control is one run alone over the other; if
its median differs from 1 by over 3 %, the result is void. Targets: 1.10 times (1.15 with more threads than processors)
and 1,000 branches a second of that wall time.

``make``: the same for ``make -j8`` of the compiled library's C sources, in several copies: hundreds of processes, each
of some milliseconds. Target: 1.15 times.

``start``: the time from the start of the command to the start of the program, and from the end of the program to the
end of the command, in whole processes. Targets: 0.25 and 0.1 s.

``stacks``: a recursive program, recorded by lastbranch and by perf with call stacks from call frame information: cost,
and the number of samples with a stack that leads to main.

On a loaded machine, CPU times mean more than wall times."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from in_turn import Groups, run_in_turn
from lastbranch.analysis import Namer, call_stacks, fold
from lastbranch.opening import open_profile
from lastbranch.symbols import Symbolizer
from measure import Command, Row, Run, run_parts, run_rounds, summarise

SOURCE = """
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
_NOW = """
#include <stdio.h>
#include <time.h>

int main(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("%ld.%09ld\\n", (long)now.tv_sec, now.tv_nsec);
    return 0;
}
"""
_ROOT = Path(__file__).resolve().parents[1]
_LIBRARY = _ROOT / "src" / "lastbranch" / "native"
_STACKS = _ROOT / "tests" / "programs" / "stacks.cpp"
_LARGEST_DIFFERENCE = 0.03
_LEAST_RATE = 1000
_TURN, _LONG_TURN = 1.0, 2.0
"""Seconds. The collector takes the time between two bursts of several threads for running time. After a frozen turn it
records too much for a moment."""
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
        """The cost and the yield of the recording."""
        alone = (self.before.wall + self.after.wall) / 2
        return {
            "times": self.recorded.wall / alone,
            "control": self.before.wall / self.after.wall,
            "CPU times": 2 * _cpu(self.recorded) / (_cpu(self.before) + _cpu(self.after)),
            "branches/s": self.branches / self.recorded.wall,
            "bursts": self.bursts,
            "us/branch": self.in_bursts / max(self.branches, 1) * 1e6,
            "in bursts %": self.in_bursts / alone * 100,
        }


def _cpu(run: Run) -> float:
    return run.user + run.system


@dataclass(frozen=True)
class Case:
    """A program that runs alone and recorded. ``words`` gives the command of one of the three runs: before, recorded,
    after."""

    name: str
    words: Callable[[str], list[str]]
    limit: float
    """Times that recording may take."""
    least_rate: int = 0
    """Branches a second of the recorded command."""
    turn: float = 1.0
    """Seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost and yield of recording.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=20, help="how long programs run alone, about")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--only", nargs="+", choices=list(_PARTS), default=list(_PARTS))
    parser.add_argument("--json", type=Path, help="write the results here as well")
    arguments = parser.parse_args()
    run_parts(_PARTS, arguments)


def environment(folder: Path) -> dict[str, str]:
    """Compiled modules are kept, as where the package is installed, whatever the environment says."""
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


def _recording(folder: Path, *options: str) -> list[str]:
    output = str(folder / "it.tb5")
    return [sys.executable, "-m", "lastbranch", "record", "--engine", "software", *options, "-o", output, "--"]


def compiled(folder: Path, name: str, source: str, *options: str) -> Path:
    (folder / f"{name}.c").write_text(source)
    program = folder / name
    subprocess.run(["gcc", "-O2", *options, "-o", program, folder / f"{name}.c"], check=True)
    return program


# -- programs, alone and recorded, in turns


def _of_program(folder: Path, arguments: argparse.Namespace) -> list[list[Row]]:
    program, found = compiled(folder, "program", SOURCE, "-pthread"), []
    for threads in arguments.threads:
        words = [str(program), str(threads), str(rounds_for(program, threads, arguments.seconds))]
        limit = 1.15 if threads > len(os.sched_getaffinity(0)) else 1.10
        turn = _TURN if threads == 1 else _LONG_TURN
        case = Case(f"{threads} threads", _always(words), limit, _LEAST_RATE, turn)
        found.append(_measure(case, arguments.rounds, folder))
    return found


def _always(words: list[str]) -> Callable[[str], list[str]]:
    """`Case.words` of a program that runs with the same words each time."""
    return lambda run: words


def _of_make(folder: Path, arguments: argparse.Namespace) -> list[list[Row]]:
    if shutil.which("make") is None:
        return [[Row("make -j8", "not installed")]]

    def words(run: str) -> list[str]:
        return ["make", "-B", "-s", "-j8", "-C", str(folder / f"make-{run}")]

    _prepare_make(folder / "make-before", 1)
    begun = time.perf_counter()
    subprocess.run(words("before"), check=True)
    copies = max(1, int(arguments.seconds / (time.perf_counter() - begun)))
    for run in _RUNS:
        _prepare_make(folder / f"make-{run}", copies)
    return [_measure(Case("make -j8", words, 1.15, turn=_LONG_TURN), arguments.rounds, folder)]


def _prepare_make(folder: Path, copies: int) -> None:
    """Have make build so many copies of the compiled library in ``folder``."""
    folder.mkdir(exist_ok=True)
    names = [path.stem for path in sorted(_LIBRARY.glob("*.c"))]
    lines = ["all:" + "".join(f" {copy}.so" for copy in range(copies))]
    for copy in range(copies):
        objects = [f"{copy}-{name}.o" for name in names]
        lines += [f"{copy}.so: {' '.join(objects)}", "\tgcc -shared -o $@ $^ -lpthread"]
        for name, made in zip(names, objects, strict=True):
            lines += [f"{made}: {_LIBRARY / name}.c", "\tgcc -O1 -fPIC -c -o $@ $<"]
    (folder / "Makefile").write_text("\n".join(lines) + "\n")


_RUNS = ("before", "recorded", "after")


def _measure(case: Case, rounds: int, folder: Path) -> list[Row]:
    before, after = (Command("alone", case.words(run), folder / f"{run}.log") for run in ("before", "after"))
    record, env = _recording(folder), environment(folder)
    subprocess.run([*record, "true"], check=True, env={**os.environ, **env}, stderr=subprocess.DEVNULL)
    recorded = Command(f"recorded, {case.name}", record + case.words("recorded"), folder / "recorded.log", env=env)
    found: list[Round] = []
    groups = Groups()
    if groups.folder is None:
        print("no control group may be made here: whole runs follow each other", file=sys.stderr)
    try:
        for _ in range(rounds):
            runs = run_in_turn([before, recorded, after], groups, case.turn)
            said = _SAID.search(recorded.log.read_text())
            branches, bursts, share, lasted = map(float, said.groups()) if said else (0.0,) * 4
            found.append(Round(*runs, int(branches), int(bursts), share / 100 * lasted))
            print(f"{recorded.name}: {_listed(found[-1].figures())}", file=sys.stderr, flush=True)
    finally:
        groups.close()
    return [
        summarise(f"alone, {case.name}", "", [run for one in found for run in (one.before, one.after)]),
        summarise(recorded.name, _verdict(found, case), [one.recorded for one in found]),
    ]


def _verdict(found: list[Round], case: Case) -> str:
    if any(one.failed for one in found):
        return "void: a run failed"
    middle = {name: median(one.figures()[name] for one in found) for name in found[0].figures()}
    verdict = "meets" if middle["times"] <= case.limit and middle["branches/s"] >= case.least_rate else "MISSES"
    if abs(middle["control"] - 1) > _LARGEST_DIFFERENCE:
        verdict = f"void: the runs alone differ; else it {verdict}"
    rate = f" and {case.least_rate}/s" if case.least_rate else ""
    return f"{verdict} {case.limit} times{rate}; medians: {_listed(middle)}"


def _listed(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


def rounds_for(program: Path, threads: int, seconds: float) -> int:
    """Rounds that take about ``seconds``, judged by a run of a second or more."""
    rounds, took = 2500, 0.0
    while took < 1:
        rounds *= 2
        begun = time.perf_counter()
        subprocess.run([program, str(threads), str(rounds)], check=True, stdout=subprocess.DEVNULL)
        took = time.perf_counter() - begun
    return int(rounds * seconds / took)


# -- how soon a program runs, and how soon it is over


def _of_start(folder: Path, arguments: argparse.Namespace) -> list[list[Row]]:
    program = str(compiled(folder, "now", _NOW))
    env = {**os.environ, **environment(folder)}
    runs: dict[str, list[Run]] = {}
    for round_ in range(arguments.rounds + 1):
        for name, words in (("alone", [program]), ("recorded", [*_recording(folder), program])):
            begun = time.clock_gettime(time.CLOCK_MONOTONIC)
            done = subprocess.run(words, env=env, capture_output=True, check=True, text=True)
            ended, at = time.clock_gettime(time.CLOCK_MONOTONIC), float(done.stdout)
            if round_:  # the first one compiles modules
                for when, seconds in (("to the program", at - begun), ("from its end", ended - at)):
                    runs.setdefault(f"{name}, {when}", []).append(Run(seconds, 0, 0, 0, 0))
    rows = [summarise(name, "", mine) for name, mine in runs.items()]
    limits = {"recorded, to the program": 0.25, "recorded, from its end": 0.1}
    return [[_within(row, limits.get(row.name)) for row in rows]]


def _within(row: Row, limit: float | None) -> Row:
    if limit is None or row.wall is None:
        return row
    return replace(row, status=f"{'meets' if row.wall <= limit else 'MISSES'} {limit} s")


# -- call stacks by call frame information, here and by perf


def _of_stacks(folder: Path, arguments: argparse.Namespace) -> list[list[Row]]:
    program = folder / "stacks"
    subprocess.run(["g++", "-w", "-g", "-O2", "-o", program, _STACKS], check=True)
    begun = time.perf_counter()
    subprocess.run([program, str(_CALLS), "30", "plain"], check=True, stdout=subprocess.DEVNULL)
    rounds = int(_CALLS * min(arguments.seconds, _STACK_SECONDS) / (time.perf_counter() - begun))
    words, by_perf = [str(program), str(rounds), "30", "plain"], folder / "perf.data"
    perf = ["perf", "record", "-q", "-e", "cpu-clock:u", "-F", "500", "--call-graph", "dwarf", "-o", str(by_perf), "--"]
    record = [*_recording(folder, "--call-graph", "dwarf"), *words]
    commands = [
        Command("alone", words, folder / "alone.log"),
        Command("lastbranch record", record, folder / "ours.log", env=environment(folder)),
    ]
    refused = _no_perf(perf)
    if not refused:
        commands.append(Command("perf record", [*perf, *words], folder / "perf.log"))
    runs = run_rounds(commands, arguments.rounds)
    found = {"lastbranch record": _of_ours(folder / "it.tb5")}
    found["perf record"] = refused or _of_perfs(by_perf)
    names = ("alone", "lastbranch record", "perf record")
    return [[summarise(name, found.get(name, ""), runs.get(name, [])) for name in names]]


_STACK_SECONDS = 5.0
_CALLS = 2_000_000
"""Rounds of 30 calls."""


def _no_perf(perf: list[str]) -> str:
    """Why perf cannot record here; empty where it can."""
    if shutil.which(perf[0]) is None:
        return "not installed"
    tried = subprocess.run([*perf, "true"], capture_output=True, text=True)
    return f"refused: {tried.stderr.strip().splitlines()[-1:]}" if tried.returncode else ""


def _of_ours(recording: Path) -> str:
    profile = open_profile(str(recording))
    namer = Namer(profile, Symbolizer(profile))
    samples = sum(stream.samples for stream in profile.streams if "branch_from" in stream.columns)
    stacks = [
        ({namer.labels[row].name.partition("(")[0] for row in rows}, number)
        for (_, rows), number in fold(call_stacks(profile), namer).items()
    ]
    return _reaching(samples, [(names, number) for names, number in stacks if len(names) > 1], recording)


def _of_perfs(recording: Path) -> str:
    argv = ["perf", "script", "-i", str(recording), "-F", "ip,sym"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    stacks = [
        {line.split(None, 1)[1] for line in part.splitlines() if len(line.split(None, 1)) == 2}
        for part in said.split("\n\n")
        if part.strip()
    ]
    return _reaching(len(stacks), [(names, 1) for names in stacks], recording)


def _reaching(samples: int, stacks: list[tuple[set[str], int]], recording: Path) -> str:
    whole = sum(number for names, number in stacks if "main" in names)
    return (
        f"{whole} of {samples} samples lead to main ({100 * whole / max(samples, 1):.1f} %); "
        f"{recording.stat().st_size / 1e6:.1f} MB"
    )


_PARTS = {"program": _of_program, "make": _of_make, "start": _of_start, "stacks": _of_stacks}


if __name__ == "__main__":
    main()
