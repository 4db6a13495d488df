"""Where does the time of a command go?

    python benchmarks/bench_phases.py [--size 1GB] [--rounds 3] [--only TEXT ...] [--numpy]

The table has a line for each command of bench_counts.py, with the CPU seconds of its phases (phase_probe.py) as medians
of the rounds. The first line is the bare loop, which only reads, walks and counts. `start` is the start and the end of
the interpreter, `walk` is records and samples, `decode` instructions; other processes are in `rest`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

from generate import generate, parse_size
from measure import Command, columns, machine, run_once
from ours import BARE, COUNTS, VERBS, bare_loops, bare_phases, default_directory, words_of
from phase_probe import PHASES

_NAMES = [name for name, _ in PHASES]
_LOOP = ("read", "walk", "count")


def phases_of(command: Command, report: Path) -> dict[str, float]:
    """Run the command under the probe: CPU seconds of each phase, and ``total``."""
    run = run_once(command)
    if run.exit_code:
        raise SystemExit(f"{command.name}: exit code {run.exit_code}\n{run.log}")
    found: dict[str, float] = json.loads(report.read_text())
    found["total"] = run.user + run.system
    found["start"] += max(0.0, found["total"] - sum(found[name] for name in _NAMES))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("1GB"), help="of the perf.data (default 1GB)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="rows with one of these in their names")
    parser.add_argument("--numpy", action="store_true", help="without the compiled library")
    parser.add_argument("--dir", type=Path, default=default_directory(), help="where captures and outputs are kept")
    arguments = parser.parse_args()
    directory: Path = arguments.dir.resolve()
    capture = generate(directory, arguments.size)
    report, probe = directory / "phases.json", Path(__file__).with_name("phase_probe.py")
    commands = []
    for name in (COUNTS, *VERBS):
        if any(text in name for text in arguments.only or [""]):
            python, _, _, *words = words_of(name, capture, directory / "phases.out")
            env = {"LASTBRANCH_NATIVE": "0" if arguments.numpy else "1"}
            commands.append(Command(name, [python, str(probe), str(report), *words], directory / "phases.log", env=env))
    bare = next(tool for tool in bare_loops(capture, directory) if tool.name == BARE)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (BARE, *(c.name for c in commands))}
    for _ in range(arguments.rounds):
        if bare.command:
            run = run_once(bare.command)
            loop = bare_phases(run.log)[0]
            found[BARE].append({"total": run.user + run.system, **{name: loop[name]["cpu"] for name in _LOOP}})
        for command in commands:
            found[command.name].append(phases_of(command, report))
    lines = [["CPU s", "total", *_NAMES, ""]]
    for name, runs in found.items():
        if runs:
            middle = {phase: median(run.get(phase, 0.0) for run in runs) for phase in ("total", *_NAMES)}
            lines.append([name, *(f"{middle[phase]:.2f}" for phase in ("total", *_NAMES)), ""])
    print("  ".join(f"{key}: {value}" for key, value in machine().items()))
    print(f"{capture.size / 1e6:.0f} MB, {capture.branches} branch entries")
    print(columns(lines))


if __name__ == "__main__":
    main()
