"""What do the views cost over counting alone?

    python benchmarks/bench_views.py [--size 1GB] [--rounds 3] [--peers] [--json FILE]

One capture as `generate.py` makes it, with its binary; whole processes, page cache warm, names from a warm cache as in
the second look at a capture. The reference is `export --to counts`, one pass that counts branches and ranges. With
--peers, perf's own views stand beside, each for at most `_PATIENCE` seconds (they take minutes on large captures).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from bench_counts import default_directory
from generate import Capture, generate, parse_size
from measure import Command, machine, run_once, run_rounds, summarise, table, version_of, write_json

_PATIENCE = 100
_HOTTEST = "f2_108"


def _ours(capture: Capture, directory: Path) -> list[Command]:
    verbs = {
        "export --to counts": ["export", "--to", "counts", "--force", "-o", str(directory / "views.counts.txt")],
        "report --by function": ["report", "--by", "function"],
        "annotate": ["annotate"],
        "stacks": ["stacks"],
    }
    commands = []
    for name, words in verbs.items():
        argv = [sys.executable, "-m", "lastbranch", *words, capture.perf_data, "--symfs", capture.symfs]
        argv += ["--no-progress"] + ([_HOTTEST] if name == "annotate" else [])
        commands.append(Command(name, argv, directory / f"views.{words[0]}.log"))
    return commands


def _peers(capture: Capture, directory: Path) -> list[Command]:
    given = ["-i", capture.perf_data, "--symfs", capture.symfs, "--stdio", "-f"]
    words = {
        "perf report -b": ["perf", "report", "-b", *given],
        "perf report": ["perf", "report", "--no-branch-stack", *given],
        "perf annotate": ["perf", "annotate", *given, "-s", _HOTTEST],
    }
    timed = ["timeout", str(_PATIENCE)]
    return [Command(name, timed + argv, directory / f"views.{name[5:]}.log") for name, argv in words.items()]


def _status(command: Command, exit_code: int) -> str:
    if exit_code == 124:
        return f"void: not done in {_PATIENCE} s"
    return f"void: exit code {exit_code}" if exit_code else f"{command.log.stat().st_size} bytes printed"


def main() -> None:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("1GB"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--dir", type=Path, default=default_directory())
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    directory: Path = arguments.dir.resolve()
    capture = generate(directory, arguments.size)
    commands = _ours(capture, directory) + (_peers(capture, directory) if arguments.peers else [])
    run_once(commands[1])  # the file and the names come into their caches
    runs = run_rounds(commands, arguments.rounds)
    rows = [summarise(c.name, _status(c, runs[c.name][-1].exit_code), runs[c.name]) for c in commands]
    about = {"machine": machine(), "perf": version_of(["perf", "--version"]), "capture": asdict(capture)}
    print("  ".join(f"{key}: {value}" for key, value in about["machine"].items()))
    print(f"{about['perf']}\n{capture.size / 1e6:.0f} MB, {capture.samples} samples, {capture.branches} branch entries")
    print(table(rows, reference=commands[0].name))
    if arguments.json:
        write_json(arguments.json, about, rows)


if __name__ == "__main__":
    main()
