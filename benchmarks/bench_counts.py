"""How long does it take from a perf.data with branch stacks to branch and range counts?

    python benchmarks/bench_counts.py [--size 1GB] [--rounds 3] [--processes 3] [--json FILE]
    python benchmarks/bench_counts.py --scale [--rounds 3]

The first form runs `lastbranch export FILE --to counts` and its peers (`perf script`, which only prints the stacks;
`llvm-profgen`; `perf2bolt`) on one generated capture, as whole processes, in interleaved rounds with the page cache
warm. lastbranch's output must equal the exact counts of the generator, else its row is void; for the peers see
peers.py. The second form runs lastbranch alone on 0.25, 1 and 4 GB: time must grow linearly and memory must not grow.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from generate import Capture, generate, parse_size
from measure import Command, Row, machine, run_rounds, summarise, table, version_of, write_json
from peers import Tool, last_line, peers

_SCALE = ("0.25GB", "1GB", "4GB")


def default_directory() -> Path:
    """Where captures are kept from one run to the next."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "lastbranch-bench"


def _differences(output: Path, truth: Path) -> str:
    """How the counts differ from the truth, line by line in any order; empty if they do not."""
    got = Counter(line for line in output.read_text().splitlines() if not line.startswith("#"))
    want = Counter(truth.read_text().splitlines())
    missing, wrong = want - got, got - want
    if not missing and not wrong:
        return ""
    return f"{missing.total()} lines missing, {wrong.total()} wrong, such as {min(missing or wrong)!r}"


def lastbranch(capture: Capture, directory: Path, name: str = "lastbranch") -> Tool:
    """Our row: a whole process, the interpreter's start included."""
    log, output = directory / f"{name}.log", directory / f"{name}.counts.txt"
    argv = [sys.executable, "-m", "lastbranch", "export", capture.perf_data, "--to", "counts"]
    argv += ["-o", str(output), "--symfs", capture.symfs]
    output.unlink(missing_ok=True)

    def status() -> str:
        if not output.exists():
            return f"void: no output ({last_line(log)})"
        differences = _differences(output, Path(capture.truth))
        return f"void: {differences}" if differences else "100.0 % of the ranges, equal to the truth"

    version = version_of([sys.executable, "-m", "lastbranch", "--version"])
    return Tool(name, Command(name, argv, log), status, version)


def _warm(path: str) -> None:
    """Read the file once, so that the first command does not pay for the disk."""
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(1 << 22)
        while file.readinto(buffer):
            pass


def measure(tools: list[Tool], rounds: int) -> list[Row]:
    """Run the tools, then judge what each left."""
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
    return rows


def _scale(directory: Path, processes: int) -> list[tuple[Capture, Tool]]:
    captures = [generate(directory, parse_size(size), processes) for size in _SCALE]
    return [(c, lastbranch(c, directory, f"lastbranch {size}")) for c, size in zip(captures, _SCALE, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Branch and range counts from a large perf.data: lastbranch and peers."
    )
    parser.add_argument("--size", type=parse_size, default=parse_size("1GB"), help="of the perf.data (default 1GB)")
    parser.add_argument("--processes", type=int, default=3, choices=(1, 2, 3), help="in the capture (default 3)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=default_directory(), help="where captures and outputs are kept")
    parser.add_argument("--scale", action="store_true", help="lastbranch alone on 0.25, 1 and 4 GB")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    arguments = parser.parse_args()
    directory: Path = arguments.dir.resolve()
    if arguments.scale:
        pairs = _scale(directory, arguments.processes)
        captures, tools = [capture for capture, _ in pairs], [tool for _, tool in pairs]
    else:
        captures = [generate(directory, arguments.size, arguments.processes)]
        tools = [lastbranch(captures[0], directory), *peers(captures[0], directory)]
    about = {"machine": machine(), "versions": {tool.name: tool.version for tool in tools}}
    about["captures"] = [asdict(capture) for capture in captures]
    for capture in captures:
        _warm(capture.perf_data)
    rows = measure(tools, arguments.rounds)

    print("  ".join(f"{key}: {value}" for key, value in about["machine"].items()))
    for name, version in about["versions"].items():
        print(f"{name}: {version}")
    for capture in captures:
        print(f"{capture.size / 1e6:.0f} MB, {capture.samples} samples, {capture.branches} branch entries,", end=" ")
        print(f"{len(capture.ranges_by_process)} processes, {capture.distinct_branches} distinct branches,", end=" ")
        print(f"{capture.distinct_ranges} distinct ranges, {capture.basic_blocks} basic blocks")
    print(table(rows, reference=tools[0].name))
    if arguments.json:
        write_json(arguments.json, about, rows)


if __name__ == "__main__":
    main()
