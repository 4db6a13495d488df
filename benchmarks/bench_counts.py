"""How long does it take from a perf.data with branch stacks to counts, and to other results from the stacks?

    python benchmarks/bench_counts.py [--size 1GB] [--rounds 3] [--only TEXT ...] [--perf-views] [--json FILE]
    python benchmarks/bench_counts.py --scale [--sizes 0.3GB 1GB 8GB] [--rounds 3]

The first form runs on one generated capture, as whole processes, in interleaved rounds with the page cache warm:

- `lastbranch export FILE --to counts`, compiled and in its NumPy form. The output must equal the generator's exact
  counts, else the row is void;
- the bare loop (bare_loop.c): it reads, walks and counts with the same kernels and does nothing else. With two threads
  it counts blocks at the same time. Two simultaneous runs show how much the machine's second processor adds;
- the peers (peers.py): `perf script`, which only prints the stacks, `llvm-profgen`, `perf2bolt`; with --perf-views also
  perf's own views;
- the other verbs that count (`ours.VERBS`).

The table gives wall and CPU time, each with the ratio to `export --to counts`. The project's targets are printed below
the table. The second form runs counts at three sizes, and the exports for compilers at the first two: time must grow
linearly, and memory must not grow.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median

from generate import Capture, generate, parse_size
from measure import Row, Run, columns, machine, run_once, run_rounds, summarise, table, write_json
from ours import (
    BARE,
    BARE_BESIDE,
    BARE_TWICE,
    COUNTS,
    EDGES_QUERY,
    NUMPY_FORM,
    SAMPLES_QUERY,
    VERBS,
    bare_loops,
    bare_phases,
    counts,
    default_directory,
    verb,
)
from peers import Tool, last_line, peers, perf_views

_SIZES = ("0.3GB", "1GB", "8GB")
_COMPILERS = ("export --to autofdo", "export --to sampleprof")

Target = tuple[str, float | None, str, float, str]
"""A target: its name, its value, "at least" or "at most", the limit, the unit."""

_TIMES: dict[str, tuple[str, float]] = {
    "perf script": ("at least", 10),
    "llvm-profgen": ("at least", 30),
    "perf2bolt": ("at least", 30),
    "branches": ("at most", 2),
    "export --to bolt": ("at most", 1.3),
    "report --by function": ("at most", 2.5),
    "stacks": ("at most", 2.5),
    "annotate": ("at most", 2.5),
    SAMPLES_QUERY: ("at most", 4),
    EDGES_QUERY: ("at most", 1.2),
}
"""Row -> the target of its CPU time, as a multiple of the CPU time of `COUNTS`."""
_OVER_BARE, _PEAK, _TWO_THREADS, _FIXED, _GROWTH, _MEMORY = 0.4, 100, 1.6, 1.0, 1.2, 1.1


def measure(tools: list[Tool], rounds: int) -> tuple[list[Row], dict[str, list[Run]]]:
    """Run the tools, then judge the output of each."""
    runs = run_rounds([tool.command for tool in tools if tool.command], rounds)
    rows = []
    for tool in tools:
        mine = runs.get(tool.name, [])
        failed = next((run.exit_code for run in mine if run.exit_code != 0), 0)
        if failed and tool.command:
            status = f"void: exit code {failed} ({last_line(tool.command.log)})"
        else:
            status = tool.status()
        rows.append(summarise(tool.name, status, mine))
    return rows, runs


def _counting(runs: Iterable[Run]) -> float | None:
    """The seconds of the counting phase of bare loops: the longest of the loops that ran at once."""
    walls = [max(found["count"]["wall"] for found in bare_phases(run.log)) for run in runs if run.exit_code == 0]
    return median(walls) if walls else None


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def targets(rows: list[Row], runs: dict[str, list[Run]]) -> Iterator[Target]:
    """The project's targets for 1 GB."""
    sound = {row.name: row for row in rows if row.cpu is not None and not row.void}
    cpu = {name: row.cpu for name, row in sound.items()}
    counted = cpu.get(COUNTS)
    for name, (how, limit) in _TIMES.items():
        yield f"{name} / {COUNTS}, CPU", _ratio(cpu.get(name), counted), how, limit, "times"
    bare = cpu.get(BARE)
    over = counted - bare if counted is not None and bare is not None else None
    yield f"{COUNTS} - {BARE}, CPU", over, "at most", _OVER_BARE, "s"
    peak = sound[COUNTS].peak if COUNTS in sound else None
    yield f"{COUNTS}, peak memory", peak and peak / 1e6, "at most", _PEAK, "MB"
    alone, both, beside = (_counting(runs.get(name, [])) for name in (BARE, BARE_TWICE, BARE_BESIDE))
    yield "counting on two threads, wall", _ratio(alone, both), "at least", _TWO_THREADS, "times as fast"
    gain = _ratio(alone, beside)
    yield "two processes that count at once", gain and 2 * gain, "at least", _TWO_THREADS, "times as fast"


def scale_targets(rows: list[Row], captures: list[Capture]) -> Iterator[Target]:
    """The project's targets for growing files."""
    row_of = {row.name: row for row in rows}

    def at(name: str, number: int) -> Row:
        return row_of[_at_size(name, captures[number])]

    def growth(name: str, low: int, high: int) -> float | None:
        before, after = at(name, low), at(name, high)
        if before.void or after.void or before.cpu is None or after.cpu is None:
            return None
        return after.cpu - before.cpu

    small, middle, large = (capture.size for capture in captures)
    slope = _ratio(growth(COUNTS, 0, 1), middle - small)
    steep = _ratio(growth(COUNTS, 1, 2), large - middle)
    yield f"{COUNTS}, CPU a byte: the last step / the first", _ratio(steep, slope), "at most", _MEMORY, "times"
    peaks = _ratio(at(COUNTS, 2).peak, at(COUNTS, 1).peak)
    yield f"{COUNTS}, peak memory: the largest / the middle", peaks, "at most", _MEMORY, "times"
    for name in _COMPILERS:
        grown, first = growth(name, 0, 1), at(name, 0).cpu
        yield f"{name}, growth / that of counts", _ratio(grown, growth(COUNTS, 0, 1)), "at most", _GROWTH, "times"
        fixed = None if grown is None or first is None else first - grown * small / (middle - small)
        yield f"{name}, without the growth", fixed, "at most", _FIXED, "s"


def verdicts(found: Iterable[Target]) -> str:
    """A line for each target that was measured."""
    lines = [("aim for 1 GB", "measured", "", "verdict")]
    for what, value, how, limit, unit in found:
        if value is not None:
            met = value >= limit if how == "at least" else value <= limit
            lines.append((what, f"{value:.2f}", f"{how} {limit:g} {unit}", "met" if met else "MISSED"))
    return columns(lines)


def _at_size(name: str, capture: Capture) -> str:
    return f"{name}, {capture.size / 1e9:.2g} GB"


def _scale(captures: list[Capture], directory: Path) -> list[Tool]:
    tools = [counts(c, directory, _at_size(COUNTS, c)) for c in captures]
    return tools + [verb(c, directory, name, _at_size(name, c)) for name in _COMPILERS for c in captures[:2]]


def _all(capture: Capture, directory: Path, with_views: bool) -> list[Tool]:
    return [
        counts(capture, directory),
        counts(capture, directory, NUMPY_FORM, native=False),
        *bare_loops(capture, directory),
        *peers(capture, directory),
        *(verb(capture, directory, name) for name in VERBS),
        *(perf_views(capture, directory) if with_views else []),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("1GB"), help="of the perf.data (default 1GB)")
    parser.add_argument("--processes", type=int, default=3, choices=(1, 2, 3), help="in the capture (default 3)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="rows with one of these in their names, and counts")
    parser.add_argument("--perf-views", action="store_true", help="perf report and perf annotate, too")
    parser.add_argument("--scale", action="store_true", help="lastbranch alone on --sizes")
    parser.add_argument("--sizes", nargs=3, type=parse_size, default=[*map(parse_size, _SIZES)], metavar="SIZE")
    parser.add_argument("--dir", type=Path, default=default_directory(), help="where captures and outputs are kept")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    arguments = parser.parse_args()
    directory: Path = arguments.dir.resolve()
    sizes = arguments.sizes if arguments.scale else [arguments.size]
    captures = [generate(directory, size, arguments.processes) for size in sizes]
    if arguments.scale:
        tools = _scale(captures, directory)
    else:
        every = _all(captures[0], directory, arguments.perf_views)
        wanted = arguments.only or [""]
        tools = [tool for tool in every if tool.name == COUNTS or any(text in tool.name for text in wanted)]
    about = {"machine": machine(), "versions": {tool.version: "" for tool in tools if tool.command and tool.version}}
    about["captures"] = [asdict(capture) for capture in captures]
    for tool in tools:
        if tool.command and tool.name in VERBS:
            run_once(tool.command)  # names come into their cache, as at the second look at a capture
    rows, runs = measure(tools, arguments.rounds)

    print("  ".join(f"{key}: {value}" for key, value in about["machine"].items()))
    print("\n".join(about["versions"]))
    for capture in captures:
        print(f"{capture.size / 1e6:.0f} MB, {capture.samples} samples, {capture.branches} branch entries,", end=" ")
        print(f"{len(capture.ranges_by_process)} processes, {capture.distinct_branches} distinct branches,", end=" ")
        print(f"{capture.distinct_ranges} distinct ranges, {capture.basic_blocks} basic blocks")
    print(table(rows, reference=tools[0].name))
    found = scale_targets(rows, captures) if arguments.scale else targets(rows, runs)
    print(f"\n{verdicts(found)}\nload afterwards: {machine()['load']}")
    if arguments.json:
        write_json(arguments.json, about, rows)


if __name__ == "__main__":
    main()
