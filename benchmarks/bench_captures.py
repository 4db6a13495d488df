"""What do several captures at once cost?

    python benchmarks/bench_captures.py [--number 1000] [--size 100000] [--dir DIR]

One process opens captures of `bench_fleet.py` together: seconds and memory, for a part of the captures and for all.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench_fleet import captures, row
from generate import build
from measure import Command, columns, run_once

_PARTS = (10, 1)
"""Steps of the two rows: every tenth capture, and every capture."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--size", type=int, default=100_000, help="bytes of a capture")
    parser.add_argument("--dir", type=Path, default=Path("build/bench"), help="where the captures are made")
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    program = given.dir / "program"
    build(program, program / "lbrbench")
    paths, _ = captures(given.dir / f"captures-{given.size}", given.size, given.number, program)
    lines: list[tuple[str, ...]] = [("", "captures", "wall s", "CPU s", "peak MB", "status")]
    for verb in (["export", "--to", "counts"], ["report", "--by", "module"], ["branches", "--no-symbols"]):
        for part in _PARTS:
            some = paths[::part]
            name = f"{verb[0]}-{len(some)}"
            words = [sys.executable, "-m", "lastbranch", *verb, *map(str, some)]
            run = run_once(Command(name, words, given.dir / f"{name}.log"))
            status = "done" if run.exit_code == 0 else f"void: exit code {run.exit_code}"
            done = row(name, run, status)
            figures = (f"{done.wall:.2f}", f"{done.cpu:.2f}", f"{(done.peak or 0) / 1e6:.0f}")
            lines.append((" ".join(verb), str(len(some)), *figures, status))
    print(columns(lines))


if __name__ == "__main__":
    main()
